/* Test mode: every row of every backend against the reference, on every case its predicate admits, at every live size.
 *
 * The truth is the op's reference on the same stored inputs, with results in double. A row passes when its errors are within the
 * op's tolerance, nothing outside its output changed, its inputs did not change, and the bits are the same in a second run and on
 * pools of 1, 2 and 7 threads (promise 4). Where a weight is packed and the row also takes it decoded to F32, both give the same
 * bits (A3, B1). A row that no case reaches is a failure; so is a case that the CPU has no row for, since every other backend
 * falls back to it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "optest/internal.h"

enum { POOLS = 3, RUNS = 4, TARGETS_MAX = 16 };
static const int pool_threads[POOLS] = { 1, 2, 7 };

/* What became of one row. */
typedef struct test_row {
  bool reached, reached_dear; /* by a case that ran; by a dear one that was left out */
  size_t checks;
  double norm, max; /* worst errors */
  double used;      /* worst share of a tolerance */
  double known;     /* worst norm error over what its tolerance says was seen */
  double apart;     /* least ratio of a real defect's error to one of these; 0: none was above 0 */
} test_row;

typedef struct test_target {
  const char *name;
  gr_backend *backend[POOLS]; /* one for each pool */
  test_row *rows;             /* as many as the backend has */
} test_target;

typedef struct test_run {
  gr_optest *o;
  gr_pool *pools[POOLS];
  test_target targets[TARGETS_MAX];
  size_t n_targets;
  gr_gguf *recording; /* NULL: each op's own cases */
} test_run;

/* One case at one set of live sizes: inputs filled, truth known. */
typedef struct test_case {
  test_run *t;
  gr_op_id op;
  const gr_case *c;
  gr_tolerance allowed; /* of the running row */
  gr_case_graph cg;
  gr_interp it;
  gr_op_call capacity;
  gr_array truth[GR_OUT_MAX]; /* F64, contiguous */
  uint64_t sum[GR_IN_MAX];    /* of the inputs' storage */
  int live;                   /* which variant */
  test_row *row;              /* where the running row's errors are kept */
} test_case;

static uint64_t checksum(const void *p, size_t bytes)
{
  const unsigned char *b = p;
  uint64_t h = 1469598103934665603u;
  size_t i = 0;
  for (uint64_t w; i + 8 <= bytes; i += 8) {
    memcpy(&w, b + i, sizeof w);
    h = (h ^ w) * 1099511628211u;
    h ^= h >> 29;
  }
  for (; i < bytes; i++) h = (h ^ b[i]) * 1099511628211u;
  return h;
}

static uint64_t input_checksum(const test_case *k, int i)
{
  const gr_tensor *t = k->cg.in[i];
  return t ? checksum(k->it.storage[t->base->id], k->it.bytes[t->base->id]) : 0;
}

/* ---- live sizes ---- */

/* Sets the live sizes of variant v: as planned, half, one token, none. False when the case has no such variant. */
static bool set_live(test_case *k, int v)
{
  int64_t capacity[GR_DIM_COUNT] = { 0 };
  bool any = false;
  for (int i = 0; i < k->c->n_in; i++)
    for (int d = 0; d < GR_DIMS; d++) {
      uint8_t dim = k->c->in[i].dim[d];
      if (dim == GR_DIM_STATIC) continue;
      any = true;
      if (k->c->in[i].ne[d] > capacity[dim]) capacity[dim] = k->c->in[i].ne[d];
    }
  for (int d = 1; d < GR_DIM_COUNT; d++) {
    int64_t n = capacity[d];
    k->it.live[d] = v == 0 ? -1 : v == 1 ? (n + 1) / 2 : v == 2 ? (d == GR_DIM_KEYS ? n - 1 : 1) : 0;
  }
  return v == 0 || (any && v < 4);
}

/* ---- the truth ---- */

static gr_status make_truth(test_case *k, gr_error *e)
{
  const gr_op *op = gr_optest_op(k->t->o->swap, k->op);
  gr_op_call call;
  gr_interp_call(&k->it, k->cg.node, &call);
  if (k->c->prepare) k->c->prepare(&call);
  for (int i = 0; i < call.n_out && !k->t->o->races; i++) {
    gr_array *y = &k->truth[i];
    bool in_place = i == 0 && (op->flags & GR_OP_INPLACE);
    *y = call.out[i];
    y->dtype = in_place && y->dtype != GR_F32 ? y->dtype : GR_F64; /* a cache in half stores halves */
    gr_strides_contiguous(y->dtype, y->ne, y->nb);
    if (!(y->data = gr_calloc((size_t)gr_array_count(y), sizeof(double)))) return gr_fail(e, GR_ERR_MEMORY, "out of memory for a truth");
    for (int64_t i3 = 0; in_place && i3 < y->ne[3]; i3++)
      for (int64_t i2 = 0; i2 < y->ne[2]; i2++)
        for (int64_t i1 = 0; i1 < y->ne[1]; i1++)
          for (int64_t i0 = 0; i0 < y->ne[0]; i0++) gr_array_set(y, i0, i1, i2, i3, gr_array_get(&call.in[0], i0, i1, i2, i3));
    call.out[i] = *y;
    if (in_place) call.in[0] = *y;
  }
  if (!k->t->o->races) op->reference(&call);
  return GR_OK;
}

static void case_close(test_case *k)
{
  for (int i = 0; i < GR_OUT_MAX; i++) gr_free(k->truth[i].data);
  gr_interp_close(&k->it);
  gr_case_graph_free(&k->cg);
}

static gr_status case_open(test_case *k, int live, bool *there, gr_error *e)
{
  GR_TRY(gr_case_build(&k->cg, k->op, k->c, e));
  gr_status status = gr_interp_open(&k->it, k->cg.graph, false, k->t->o->swap, e);
  if (status != GR_OK) {
    gr_case_graph_free(&k->cg);
    return status;
  }
  k->live = live;
  *there = set_live(k, live);
  gr_case_call(&k->cg, &k->capacity);
  unsigned shapes = gr_optest_op(k->t->o->swap, k->op)->shapes_in;
  for (int i = 0; i < k->c->n_in && *there; i++) {
    if (!k->cg.in[i] || (shapes >> i & 1)) continue;
    gr_array a = gr_interp_array(&k->it, k->cg.in[i]);
    gr_case_fill(&k->c->in[i], &a, k->t->o->seed, (uint64_t)k->op << 32 | (uint64_t)i);
  }
  if (*there) status = make_truth(k, e);
  for (int i = 0; i < k->c->n_in; i++) k->sum[i] = input_checksum(k, i);
  if (status != GR_OK || !*there) case_close(k);
  return status;
}

/* ---- one row ---- */

/* "live sizes 5 tokens, 9 keys", or nothing. */
static const char *live_text(const test_case *k, char *text, size_t size)
{
  *text = 0;
  if (k->live)
    snprintf(text, size, " (live: %lld tokens, %lld keys, %lld outputs)", (long long)k->it.live[GR_DIM_TOKENS],
             (long long)k->it.live[GR_DIM_KEYS], (long long)k->it.live[GR_DIM_OUTPUTS]);
  return text;
}

#define test_fail(k, row, ...) gr_optest_fail((k)->t->o, (row)->name, (k)->op, (k)->c, __VA_ARGS__)

/* Slices that the case says are exactly 0. */
static bool slices_zero(const test_case *k, int out, const gr_array *y)
{
  for (int z = 0; z < k->c->n_zero; z++) {
    int64_t at[GR_DIMS], lo[GR_DIMS] = { 0 }, hi[GR_DIMS];
    if (k->c->zero[z].out != out) continue;
    memcpy(hi, y->ne, sizeof hi);
    lo[k->c->zero[z].dim] = k->c->zero[z].at;
    if (hi[k->c->zero[z].dim] > k->c->zero[z].at + 1) hi[k->c->zero[z].dim] = k->c->zero[z].at + 1;
    for (at[3] = lo[3]; at[3] < hi[3]; at[3]++)
      for (at[2] = lo[2]; at[2] < hi[2]; at[2]++)
        for (at[1] = lo[1]; at[1] < hi[1]; at[1]++)
          for (at[0] = lo[0]; at[0] < hi[0]; at[0]++)
            if (gr_array_get(y, at[0], at[1], at[2], at[3]) != 0) return false;
  }
  return true;
}

static void keep_worst(test_row *r, const gr_tolerance *allowed, const gr_diff *d)
{
  r->norm = fmax(r->norm, d->norm);
  r->max = fmax(r->max, d->max);
  r->used = fmax(r->used, fmax(d->norm / allowed->norm, d->max / allowed->max));
  if (d->norm > 0) r->known = fmax(r->known, d->norm / allowed->seen);
  if (d->norm > 0 && !(r->apart > 0 && r->apart < allowed->defect / d->norm)) r->apart = allowed->defect / d->norm;
}

/* A tolerance stands between two errors that were measured (C4), and is worth what they are: at the seed they were measured at, an error
 * that is allowed but more than SEEN times the worst one written down fails as well. Other compilers and sets round in another order. */
static bool error_known(const test_case *k, const gr_kernel_row *row, const char *what, int64_t n, const gr_diff *d)
{
  enum { SEEN = 2 };
  char live[96];
  const test_run *t = k->t;
  if (t->o->seed != GR_OPTEST_SEED || t->recording || d->norm <= SEEN * k->allowed.seen) return true;
  test_fail(k, row, "%s %lld has a norm error of %.3g: allowed, but the tolerance's `seen` says that %.3g is the worst honest one (C4)%s",
            what, (long long)n, d->norm, k->allowed.seen, live_text(k, live, sizeof live));
  return false;
}

/* Each slice of an output by itself. Whether all of them are right; one that is not has been told. */
static gr_status slices_right(const test_case *k, const gr_kernel_row *row, int i, const gr_array *y, bool *right, gr_error *e)
{
  char live[96];
  const gr_tolerance *allowed = &k->allowed;
  gr_op_call call;
  gr_diff d;
  int64_t n;
  if (!k->c->slice) return GR_OK;
  gr_interp_call(&k->it, k->cg.node, &call);
  GR_TRY(gr_compare_slices(&call, k->c->slice, i, y, &k->truth[i], allowed, &d, &n, e));
  if (n < 0) return GR_OK;
  k->t->o->checks++;
  keep_worst(k->row, allowed, &d);
  *right = !d.fault && d.norm <= allowed->norm && d.max <= allowed->max;
  if (!*right)
    test_fail(k, row, "slice %lld of output %d is off: norm error %.3g (at most %.3g), worst %.3g (at most %.3g), %g for %g%s%s%s",
              (long long)n, i, d.norm, allowed->norm, d.max, allowed->max, d.got, d.want, d.fault ? ", " : "", d.fault ? d.fault : "",
              live_text(k, live, sizeof live));
  else *right = error_known(k, row, "slice", n, &d);
  return GR_OK;
}

/* The first run's outputs against the truth. */
static gr_status judge(const test_case *k, const gr_kernel_row *row, int i, const gr_array *y, bool *zero, gr_error *e)
{
  char live[96];
  bool right = true;
  const gr_tolerance *allowed = &k->allowed;
  gr_diff d = gr_compare(y, &k->truth[i], allowed);
  *zero = *zero && d.zero;
  k->t->o->checks++;
  k->row->checks++;
  keep_worst(k->row, allowed, &d);
  if (d.fault)
    test_fail(k, row, "output %d at [%lld, %lld, %lld, %lld] is %g, %s; the truth is %g%s", i, (long long)d.at[0], (long long)d.at[1],
              (long long)d.at[2], (long long)d.at[3], d.got, d.fault, d.want, live_text(k, live, sizeof live));
  else if (!(d.norm <= allowed->norm && d.max <= allowed->max))
    test_fail(k, row,
              "output %d is off: norm error %.3g (at most %.3g), worst %.3g (at most %.3g), %g for %g at [%lld, %lld, %lld, %lld]%s", i,
              d.norm, allowed->norm, d.max, allowed->max, d.got, d.want, (long long)d.at[0], (long long)d.at[1], (long long)d.at[2],
              (long long)d.at[3], live_text(k, live, sizeof live));
  else if (!slices_zero(k, i, y)) test_fail(k, row, "output %d is not exactly 0 where it must be%s", i, live_text(k, live, sizeof live));
  else if (error_known(k, row, "output", i, &d)) {
    GR_TRY(slices_right(k, row, i, y, &right, e));
    if (right) gr_optest_pass(k->t->o, row->name, k->op, k->c, &d);
  }
  return GR_OK;
}

typedef struct fetched {
  void *bytes[GR_OUT_MAX];
  gr_array view[GR_OUT_MAX];
} fetched;

static void free_fetched(fetched *f)
{
  for (int i = 0; i < GR_OUT_MAX; i++) gr_free(f->bytes[i]);
}

/* Runs a row on fresh poison and fetches what it wrote. *refused: it returned an error, which is a failure already told. */
static gr_status run_once(const test_case *k, gr_rig *rig, fetched *f, bool *refused, gr_error *e)
{
  gr_error said = { 0 };
  GR_TRY(gr_rig_reset(rig, e));
  *refused = gr_rig_run(rig, &said) != GR_OK;
  if (*refused) {
    test_fail(k, rig->row, "returned an error: %s", said.text);
    return GR_OK;
  }
  for (int i = 0; i < rig->call.n_out; i++) GR_TRY(gr_rig_fetch(rig, i, &f->bytes[i], &f->view[i], e));
  return GR_OK;
}

static gr_status judge_first(const test_case *k, gr_rig *rig, const fetched *f, gr_error *e)
{
  bool zero = true;
  for (int i = 0; i < rig->call.n_out; i++) {
    bool intact = true;
    GR_TRY(judge(k, rig->row, i, &f->view[i], &zero, e));
    GR_TRY(gr_rig_intact(rig, i, f->bytes[i], &f->view[i], &intact, e));
    if (!intact) test_fail(k, rig->row, "wrote outside output %d or its scratch%s", i, k->live ? ", at a smaller live size" : "");
  }
  for (int i = rig->in_place ? 1 : 0; i < k->c->n_in; i++)
    if (rig->backend->ops->host_memory && k->sum[i] != input_checksum(k, i)) test_fail(k, rig->row, "changed input %d", i);
  if (k->live == 0 && zero && !(k->c->flags & (GR_CASE_ZERO | GR_CASE_REAL)))
    test_fail(k, rig->row, "compares 0 with 0 everywhere: the case tests nothing");
  if (!zero && (k->c->flags & GR_CASE_ZERO)) test_fail(k, rig->row, "is meant to be 0 everywhere");
  return GR_OK;
}

static bool same_bits(const gr_rig *rig, const fetched *a, const fetched *b)
{
  for (int i = 0; i < rig->call.n_out; i++)
    if (memcmp(a->bytes[i], b->bytes[i], rig->out[i].bytes) != 0) return false;
  return true;
}

/* The runs of one row: twice on one thread (unless races alone are looked for), then on the other pools. `first` keeps what the first one
 * wrote. */
static gr_status run_row(const test_case *k, const test_target *target, const gr_kernel_row *row, fetched *first, gr_error *e)
{
  const bool races = k->t->o->races;
  for (int run = races ? 2 : 0; run < RUNS; run++) {
    int pool = run == 0 ? 0 : run - 1;
    gr_rig rig;
    fetched again = { 0 }, *f = run == (races ? 2 : 0) ? first : &again;
    bool refused = false;
    GR_TRY(gr_rig_open(&rig, target->backend[pool], row, &k->it, &k->cg, NULL, e));
    gr_status status = run_once(k, &rig, f, &refused, e);
    if (status == GR_OK && !refused && run == 0) status = judge_first(k, &rig, f, e);
    if (status == GR_OK && !refused && f == &again) {
      k->t->o->checks++;
      if (!same_bits(&rig, first, f))
        test_fail(k, row, run == 1 ? "a second run gives other bits" : "%d threads give other bits than %d", pool_threads[pool],
                  races ? 2 : 1);
    }
    free_fetched(&again);
    if (rig.state) memcpy(k->it.storage[k->cg.in[0]->base->id], rig.state, rig.state_bytes);
    gr_rig_close(&rig);
    if (status != GR_OK || refused) return status;
  }
  return GR_OK;
}

/* Written over its own inputs, as a plan may ask of such an op, a row gives the same bits (B9). */
static gr_status run_aliased(const test_case *k, const test_target *target, const gr_kernel_row *row, const fetched *first, gr_error *e)
{
  gr_rig rig;
  fetched f = { 0 };
  gr_error said = { 0 };
  GR_TRY(gr_rig_open(&rig, target->backend[1], row, &k->it, &k->cg, NULL, e));
  bool any;
  gr_status status = gr_rig_alias(&rig, &k->it, k->cg.node, &any, e);
  if (status == GR_OK && any) {
    k->t->o->checks++;
    if (gr_rig_run(&rig, &said) != GR_OK) test_fail(k, row, "returned an error when written over its input: %s", said.text);
    else
      for (int i = 0; i < k->cg.node->n_out && status == GR_OK; i++) status = gr_rig_fetch(&rig, i, &f.bytes[i], &f.view[i], e);
    for (int i = 0; i < k->cg.node->n_out && status == GR_OK && f.bytes[i]; i++)
      if (memcmp(f.bytes[i], first->bytes[i], rig.out[i].bytes) != 0) test_fail(k, row, "gives other bits when written over its input");
  }
  free_fetched(&f);
  gr_rig_close(&rig);
  return status;
}

/* ---- packed weights against the same weights decoded ---- */

/* The row that runs the decoded weights: this one if it admits them, or its sister for F32. */
static const gr_kernel_row *decoded_row(const test_target *target, const gr_kernel_row *row, const gr_op_call *call)
{
  char a[96], b[96];
  if (!row->admits || row->admits(call)) return row;
  gr_rig_family(row->name, a, sizeof a);
  for (const gr_kernel_row *r = target->backend[0]->ops->rows; r->op != GR_OP_NONE; r++) {
    gr_rig_family(r->name, b, sizeof b);
    if (r->op == row->op && strcmp(a, b) == 0 && (!r->admits || r->admits(call))) return r;
  }
  return NULL;
}

static gr_status decode_inputs(const test_case *k, gr_array replace[GR_IN_MAX], bool *any, gr_error *e)
{
  for (int i = 0; i < k->c->n_in; i++) {
    const gr_tensor *t = k->cg.in[i];
    if (!t || t->dtype == GR_F32 || gr_dtype_get(t->dtype)->kind == GR_KIND_INT) continue;
    gr_array from = gr_interp_array(&k->it, t), *to = &replace[i];
    *to = from;
    to->dtype = GR_F32;
    gr_strides_contiguous(GR_F32, to->ne, to->nb);
    int64_t n = from.ne[0];
    double *row = gr_alloc((size_t)n * sizeof *row);
    to->data = gr_alloc_aligned((size_t)gr_array_count(to) * sizeof(float), 64);
    if (!row || !to->data) {
      gr_free(row);
      return gr_fail(e, GR_ERR_MEMORY, "out of memory for decoded weights");
    }
    for (int64_t r = 0; r < gr_array_rows(&from); r++) {
      int64_t i1 = r % from.ne[1], i2 = r / from.ne[1] % from.ne[2], i3 = r / from.ne[1] / from.ne[2];
      gr_reference_row(&from, i1, i2, i3, row);
      for (int64_t j = 0; j < n; j++) gr_array_set(to, j, i1, i2, i3, row[j]);
    }
    gr_free(row);
    *any = true;
  }
  return GR_OK;
}

static gr_status run_decoded(const test_case *k, const test_target *target, const gr_kernel_row *row, const gr_array *replace,
                             const fetched *first, gr_error *e)
{
  gr_op_call call = k->capacity;
  gr_rig rig;
  fetched f = { 0 };
  bool refused = false;
  for (int i = 0; i < GR_IN_MAX; i++)
    if (replace[i].data) {
      call.in[i] = replace[i];
      call.in[i].data = NULL;
    }
  const gr_kernel_row *sister = decoded_row(target, row, &call);
  if (!sister || !first->bytes[0]) return GR_OK;
  GR_TRY(gr_rig_open(&rig, target->backend[0], sister, &k->it, &k->cg, replace, e));
  gr_status status = run_once(k, &rig, &f, &refused, e);
  if (status == GR_OK && !refused) {
    k->t->o->checks++;
    if (!same_bits(&rig, first, &f)) test_fail(k, row, "gives other bits than on the same weights decoded to F32");
  }
  free_fetched(&f);
  gr_rig_close(&rig);
  return status;
}

static gr_status check_decoded(const test_case *k, const test_target *target, const gr_kernel_row *row, const fetched *first, gr_error *e)
{
  gr_array replace[GR_IN_MAX] = { 0 };
  bool any = false;
  if (gr_op_get(k->op)->flags & GR_OP_INPLACE) return GR_OK;
  gr_status status = decode_inputs(k, replace, &any, e);
  if (status == GR_OK && any) status = run_decoded(k, target, row, replace, first, e);
  for (int i = 0; i < GR_IN_MAX; i++) gr_free(replace[i].data);
  return status;
}

/* ---- all rows, all cases ---- */

static bool is_reference(const test_target *target) { return strcmp(target->name, "ref") == 0; }

/* Runs every row that admits the case (or only marks it, for a dear case that is left out). */
static gr_status each_row(test_case *k, bool run, gr_error *e)
{
  for (size_t i = 0; i < k->t->n_targets; i++) {
    test_target *target = &k->t->targets[i];
    const gr_kernel_row *rows = target->backend[0]->ops->rows;
    bool any = false;
    for (size_t r = 0; rows[r].op != GR_OP_NONE; r++) {
      if (rows[r].op != k->op || (rows[r].admits && !rows[r].admits(&k->capacity))) continue;
      any = true;
      if (rows[r].bf16 && (k->c->flags & GR_CASE_F32)) continue;
      k->row = &target->rows[r];
      k->allowed = gr_optest_allowed(k->c, &rows[r]);
      *(run ? &k->row->reached : &k->row->reached_dear) = true;
      if (!run || (k->t->o->races && is_reference(target))) continue; /* the references have one thread */
      fetched first = { 0 };
      gr_status status = run_row(k, target, &rows[r], &first, e);
      const bool more = first.bytes[0] && !k->t->o->races;
      if (status == GR_OK && more) status = run_aliased(k, target, &rows[r], &first, e);
      if (status == GR_OK && more && k->live == 0) status = check_decoded(k, target, &rows[r], &first, e);
      free_fetched(&first);
      GR_TRY(status);
    }
    if (any || k->live || is_reference(target)) continue;
    char what[512];
    k->t->o->uncovered++;
    if (k->t->o->strict || strcmp(target->name, "cpu") == 0) gr_optest_fail(k->t->o, target->name, k->op, k->c, "no row admits it");
    else if (k->t->o->verbose) gr_optest_note(k->t->o, target->name, "no row for %s", gr_case_describe(k->op, k->c, what, sizeof what));
  }
  return GR_OK;
}

/* Whether the reference has an answer. What was recorded is data of a file: rows need not survive a grouping that is none. */
static bool has_answer(const test_case *k)
{
  for (int i = 0; i < k->cg.node->n_out; i++) {
    const gr_array *y = &k->truth[i];
    for (int64_t n = 0; y->dtype == GR_F64 && n < gr_array_count(y); n++)
      if (isnan(((const double *)y->data)[n])) return false;
  }
  return true;
}

static gr_status test_one(test_run *t, gr_op_id op, const gr_case *c, gr_error *e)
{
  gr_error said = { 0 };
  bool run = t->o->full || !(c->flags & GR_CASE_FULL), there = true;
  test_case k = { .t = t, .op = op, .c = c };
  if (!run) {
    GR_TRY(gr_case_build(&k.cg, op, c, e));
    gr_case_call(&k.cg, &k.capacity);
    gr_status status = each_row(&k, false, e);
    gr_case_graph_free(&k.cg);
    return status;
  }
  t->o->cases++;
  for (int live = 0; there && !(live && t->o->races); live++) {
    memset(k.truth, 0, sizeof k.truth);
    gr_status status = case_open(&k, live, &there, &said);
    if (status == GR_ERR_MEMORY) return gr_fail(e, status, "%s", said.text);
    if (status != GR_OK) {
      gr_optest_fail(t->o, NULL, op, c, "the case cannot be built: %s", said.text);
      return GR_OK;
    }
    if (!there) break;
    if (!(c->flags & GR_CASE_REAL) || has_answer(&k)) status = each_row(&k, true, e);
    else gr_optest_fail(t->o, NULL, op, c, "the reference gives NaN for what was recorded");
    case_close(&k);
    GR_TRY(status);
  }
  return GR_OK;
}

static gr_status test_op(test_run *t, gr_op_id id, gr_error *e)
{
  gr_case_list l;
  gr_status status = GR_OK;
  if (gr_op_get(id)->flags & GR_OP_VIEW) return GR_OK;
  GR_TRY(gr_case_list_make(&l, t->o->swap, id, e));
  size_t tested = 0;
  if (t->recording) status = gr_record_cases(t->recording, &l, e);
  for (size_t n = 0; n < l.n && status == GR_OK && !gr_optest_enough(t->o); n++) {
    const gr_case *c = l.items[n];
    if (c->refuse || (c->flags & (GR_CASE_PERF | GR_CASE_NO_TEST))) continue;
    tested++;
    const gr_tolerance *allowed = &c->tolerance;
    if (!(allowed->seen <= allowed->norm && allowed->norm < allowed->defect))
      gr_optest_fail(t->o, NULL, id, c, "its tolerance %.3g is not between the worst honest error %.3g and the least real defect %.3g (C4)",
                     allowed->norm, allowed->seen, allowed->defect);
    status = test_one(t, id, c, e);
  }
  gr_case_list_free(&l);
  if (status == GR_OK && !tested && !t->recording) gr_optest_fail(t->o, NULL, id, NULL, "has no case");
  return status;
}

static void tell_row(const gr_optest *o, const test_target *target, const gr_kernel_row *row, const test_row *r)
{
  if (o->verbose)
    gr_optest_note(o, target->name,
                   "row %s: %zu comparisons, worst errors %.2g (norm) and %.2g (max), %.0f%% of what is allowed, %.0f%% of what was seen; "
                   "a real defect is "
                   "%.3g times as large",
                   row->name, r->checks, r->norm, r->max, 100 * r->used, 100 * r->known, r->apart > 0 ? r->apart : (double)INFINITY);
}

/* Rows of the chosen ops that no case reaches fail; those that only a dear case reaches are told. */
static void check_reach(test_run *t)
{
  for (size_t i = 0; i < t->n_targets; i++) {
    const test_target *target = &t->targets[i];
    const gr_kernel_row *rows = target->backend[0]->ops->rows;
    for (size_t r = 0; rows[r].op != GR_OP_NONE; r++) {
      if (!gr_optest_wanted(t->o, rows[r].op) || (gr_op_get(rows[r].op)->flags & GR_OP_VIEW)) continue;
      if (target->rows[r].reached) tell_row(t->o, target, &rows[r], &target->rows[r]);
      else if (t->recording) continue;
      else if (target->rows[r].reached_dear) gr_optest_note(t->o, target->name, "row %s is reached by the full set only", rows[r].name);
      else gr_optest_fail(t->o, rows[r].name, rows[r].op, NULL, "no case reaches this row");
    }
  }
}

static gr_status open_targets(test_run *t, gr_error *e)
{
  for (int p = 0; p < POOLS; p++) GR_TRY(gr_pool_create(&t->pools[p], pool_threads[p], e));
  for (size_t i = 0; gr_optest_target_name(t->o, i) && i < TARGETS_MAX; i++) {
    test_target *target = &t->targets[i];
    size_t rows = 0;
    target->name = gr_optest_target_name(t->o, i);
    t->n_targets = i + 1;
    for (int p = 0; p < POOLS; p++) GR_TRY(gr_optest_open(t->o, i, t->pools[p], &target->backend[p], e));
    while (target->backend[0]->ops->rows[rows].op != GR_OP_NONE) rows++;
    if (!(target->rows = gr_calloc(rows, sizeof *target->rows))) return gr_fail_memory(e, rows * sizeof *target->rows);
  }
  return GR_OK;
}

gr_status gr_optest_test(gr_optest *o, gr_error *e)
{
  test_run *t = gr_calloc(1, sizeof *t);
  if (!t) return gr_fail_memory(e, sizeof *t);
  t->o = o;
  gr_status status = o->replay ? gr_gguf_open(&t->recording, o->replay, e) : GR_OK;
  if (status == GR_OK) status = open_targets(t, e);
  for (int id = 1; id < GR_OP_COUNT && status == GR_OK; id++)
    if (gr_optest_wanted(o, (gr_op_id)id)) status = test_op(t, (gr_op_id)id, e);
  if (status == GR_OK) {
    check_reach(t);
    gr_optest_summary(o, "test");
  }
  for (size_t i = 0; i < t->n_targets; i++) {
    for (int p = 0; p < POOLS; p++) gr_backend_close(t->targets[i].backend[p]);
    gr_free(t->targets[i].rows);
  }
  for (int p = 0; p < POOLS; p++) gr_pool_free(t->pools[p]);
  gr_gguf_close(t->recording);
  gr_free(t);
  return status;
}
