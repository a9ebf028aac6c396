/* attention, attention_back: which keys each query sees, and jobs for the kernels. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

enum { Q, K, V, POS_Q, SEG_Q, POS_K, SEG_K, SINKS, OUT = 7, LSE, DOUT };

static int32_t integer_at(const gr_array *a, int64_t i)
{
  int32_t v;
  memcpy(&v, gr_array_at(a, i, 0, 0, 0), sizeof v);
  return v;
}

/* The first key from `from` on, before `to`, whose position is at least `pos`: positions ascend within a segment. */
static int32_t first_at(const gr_array *pos_k, int32_t from, int32_t to, int64_t pos)
{
  while (from < to) {
    int32_t mid = from + (to - from) / 2;
    if (integer_at(pos_k, mid) < pos) from = mid + 1;
    else to = mid;
  }
  return from;
}

static bool same_segment(const gr_array *seg_k, int64_t j, int32_t seg) { return j < seg_k->ne[0] && integer_at(seg_k, j) == seg; }

/* Segments of keys come in runs; a query's is mostly that of the query before it, or the next. */
static void find_visible(const gr_op_call *call, gr_cpu_visible *visible)
{
  const struct gr_attention_params *p = call->params;
  const gr_array *seg_q = &call->in[SEG_Q], *seg_k = &call->in[SEG_K], *pos_k = &call->in[POS_K];
  int32_t start = 0, end = 0;
  for (int64_t i = 0; i < seg_q->ne[0]; i++) {
    int32_t seg = integer_at(seg_q, i);
    visible[i] = (gr_cpu_visible){ 0, 0, 0 };
    if (seg < 0) continue;
    if (start == end || integer_at(seg_k, start) != seg) {
      start = same_segment(seg_k, end, seg) ? end : 0;
      while (start < seg_k->ne[0] && integer_at(seg_k, start) != seg) start++;
      for (end = start; same_segment(seg_k, end, seg); end++) {
      }
    }
    if (start == end) continue;
    int64_t pos = integer_at(&call->in[POS_Q], i);
    visible[i].start = start;
    visible[i].from = p->window ? first_at(pos_k, start, end, pos - p->window + !GR_MUTANT(attention_window_off_by_one)) : start;
    visible[i].to = first_at(pos_k, start, end, pos + 1 + GR_MUTANT(attention_looks_ahead));
    if (GR_MUTANT(attention_no_segment_start) && !p->window) visible[i].from = 0;
  }
}

/* Consecutive queries of one segment; queries of none, and those that see nothing, stand in runs too. */
static int64_t find_runs(const gr_op_call *call, gr_cpu_run *runs)
{
  const gr_array *seg = &call->in[SEG_Q];
  int64_t n = 0;
  for (int64_t i = 0; i < seg->ne[0]; i++) {
    if (i == 0 || integer_at(seg, i) != integer_at(seg, i - 1)) runs[n++] = (gr_cpu_run){ (int32_t)i, 0, 0 };
    runs[n - 1].count++;
  }
  return n;
}

/* Where each key's segment begins. */
static void find_starts(const gr_array *seg, int32_t *start)
{
  for (int64_t j = 0; j < seg->ne[0]; j++) start[j] = j && integer_at(seg, j) == integer_at(seg, j - 1) ? start[j - 1] : (int32_t)j;
}

/* Into how many parts attention_back deals the queries of a run: so many that there are some jobs for each thread though key heads are few,
 * and no more than memory for sums is worth. The shape alone decides, and the run's own length: with twice the parts two threads lose a
 * tenth at 512 queries and a thirtieth at 2,048, where eight gain a fifth. */
static int64_t parts_of(const gr_cpu_attention *a, int64_t queries)
{
  enum { JOBS = 12, LONG = 2048 };
  int64_t jobs = queries < LONG ? JOBS : 2 * JOBS, most = gr_min(gr_ceil_div(jobs, a->k.ne[1]), 2 * a->group);
  return gr_max(1, gr_min(most, gr_min(queries, queries * a->group / GR_CPU_BACK_ROWS)));
}

/* Runs become their parts, of about the same work: the area below a diagonal, and what a query costs besides. Returns how many there are.
 */
static int64_t deal_parts(const gr_cpu_attention *a, const gr_cpu_run *runs, int64_t n_runs, gr_cpu_run *jobs)
{
  const double query = 24; /* a query costs what so many of its keys do: measured */
  int64_t n = 0;
  for (int64_t i = 0; i < n_runs; i++) {
    int32_t parts = (int32_t)parts_of(a, runs[i].count), from = 0;
    double count = runs[i].count, work = count * (count / 2 + query);
    for (int32_t p = 0; p < parts; p++) {
      int32_t to = p + 1 == parts ? runs[i].count : (int32_t)(sqrt(query * query + 2 * work * (p + 1) / parts) - query);
      jobs[n++] = (gr_cpu_run){ runs[i].first + from, to - from, p };
      from = to;
    }
  }
  return n;
}

/* ---- scratch ---- */

typedef struct take {
  char *base; /* NULL: only measured */
  size_t at;
} take;

static void *take_bytes(take *t, int64_t bytes)
{
  size_t from = t->at;
  t->at += (size_t)gr_cpu_align(bytes);
  return t->base ? t->base + from : NULL;
}

static float *take_floats(take *t, int64_t n) { return take_bytes(t, n * (int64_t)sizeof(float)); }

/* Queries so few that packing every key for them costs more than it saves. */
static bool few(const gr_op_call *call, int64_t group) { return call->in[Q].ne[2] * group <= GR_CPU_STRIP; }

/* An array whose rows are dense: a itself, or a copy. Room is taken when rows are not dense, or might not be at another size. */
static gr_array dense(const gr_array *a, take *t)
{
  if (a->nb[0] == sizeof(float)) return *a;
  gr_array copy = *a;
  gr_strides_contiguous(GR_F32, copy.ne, copy.nb);
  copy.data = take_floats(t, gr_array_count(a));
  for (int64_t r = 0; copy.data && r < gr_array_rows(a); r++) {
    gr_row_at at = gr_row_index(a, r);
    gr_cpu_gather(a, at, (float *)gr_array_at(&copy, 0, at.i1, at.i2, at.i3));
  }
  return copy;
}

/* Room for packed blocks, whatever the number of rows in one: at least 4, at most 16. */
static float *take_blocks(take *t, const gr_array *a)
{
  int64_t m = a->ne[2];
  return take_floats(t, a->ne[1] * ((m + 16) * a->ne[0] + (m / 4 + 1) * GR_CPU_SPARE));
}

static gr_cpu_heads take_rows(take *t, const gr_array *a)
{
  int64_t row = gr_ceil_div(a->ne[0], GR_CPU_STRIP) * GR_CPU_STRIP;
  return (gr_cpu_heads){ take_floats(t, a->ne[1] * a->ne[2] * row), row, a->ne[2] * row };
}

static gr_cpu_heads rows_of(const gr_array *a)
{
  return (gr_cpu_heads){ a->data, a->nb[2] / (int64_t)sizeof(float), a->nb[1] / (int64_t)sizeof(float) };
}

static int64_t padded(int64_t width) { return gr_ceil_div(width, GR_CPU_STRIP) * GR_CPU_STRIP; }

static int64_t strip_floats(const gr_cpu_attention *a)
{
  return (a->q.ne[0] + padded(a->q.ne[0]) + GR_CPU_KEYS + padded(a->v.ne[0])) * GR_CPU_STRIP;
}

static int64_t back_floats(const gr_cpu_attention *a)
{
  int64_t widths = a->q.ne[0] + 2 * padded(a->q.ne[0]) + a->v.ne[0] + padded(a->v.ne[0]);
  return (widths + 2 * GR_CPU_BACK_KEYS) * GR_CPU_BACK_ROWS;
}

typedef struct jobs {
  gr_cpu_attention a;
  const gr_cpu_isa *isa;
  gr_cpu_visible *visible;
  gr_cpu_run *runs, *parts;
  int64_t n_runs, n_parts, sums; /* parts of the run that has most */
  uint8_t *reached;              /* [parts][keys]: whether a query of that part sees the key */
  int32_t *key_start;
  gr_cpu_strip *strips;
  int64_t n_strips;
  float *scratch; /* of thread 0, then of the others */
  int64_t scratch_floats;
} jobs;

static void common(jobs *w, const gr_op_call *call, take *t)
{
  int64_t n = call->in[Q].ne[2];
  w->visible = take_bytes(t, n * (int64_t)sizeof *w->visible);
  w->runs = take_bytes(t, n * (int64_t)sizeof *w->runs);
  w->key_start = take_bytes(t, call->in[K].ne[2] * (int64_t)sizeof *w->key_start);
  w->a = (gr_cpu_attention){ .params = *(const struct gr_attention_params *)call->params,
                             .rounds = w->a.rounds,
                             .words = w->a.words,
                             .visible = w->visible,
                             .key_start = w->key_start,
                             .q = dense(&call->in[Q], t),
                             .k = dense(&call->in[K], t),
                             .v = dense(&call->in[V], t),
                             .group = call->in[Q].ne[1] / call->in[K].ne[1] };
}

/* The room that a few queries leave unused is taken all the same: the plan is made at the largest sizes. */
static size_t lay_out(jobs *w, const gr_op_call *call, int threads, char *base)
{
  take t = { base, 0 };
  common(w, call, &t);
  gr_cpu_attention *a = &w->a;
  int64_t rows = call->in[Q].ne[2] * a->group;
  w->strips = take_bytes(&t, (rows / 8 + call->in[Q].ne[2] + 1) * (int64_t)sizeof *w->strips);
  a->out = call->out[0];
  a->lse = call->out[1];
  if (call->n_in > SINKS && call->in[SINKS].ne[0] > 0) {
    gr_array sinks = dense(&call->in[SINKS], &t);
    a->sinks = GR_MUTANT(attention_no_sink) ? NULL : sinks.data;
  }
  float *blocks = take_blocks(&t, &a->k);
  gr_cpu_heads v_rows = take_rows(&t, &a->v);
  bool direct = !a->rounds && few(call, a->group) && a->v.ne[0] % 16 == 0;
  a->copy_v = !direct;
  a->v_rows = direct ? rows_of(&a->v) : v_rows;
  a->k_blocks = direct ? NULL : blocks;
  w->scratch_floats = strip_floats(a);
  w->scratch = take_floats(&t, gr_max(w->scratch_floats * threads, gr_cpu_attention_one_floats(a, threads)));
  return t.at;
}

static size_t lay_out_back(jobs *w, const gr_op_call *call, int threads, char *base)
{
  take t = { base, 0 };
  common(w, call, &t);
  gr_cpu_attention *a = &w->a;
  a->out = dense(&call->in[OUT], &t);
  a->lse = call->in[LSE];
  a->dout = dense(&call->in[DOUT], &t);
  a->dq = call->out[0], a->dk = call->out[1], a->dv = call->out[2];
  a->k_blocks = take_blocks(&t, &a->k);
  a->v_blocks = take_blocks(&t, &a->v);
  a->k_rows = take_rows(&t, &a->k);
  a->copy_k = true;
  int64_t n = a->q.ne[2], heads = parts_of(a, n) * a->k.ne[1], m = a->k.ne[2];
  w->parts = take_bytes(&t, n * (int64_t)sizeof *w->parts);
  a->dk_sums = a->dv_sums = (gr_cpu_heads){ 0 };
  if (heads > a->k.ne[1]) {
    a->dk_sums = (gr_cpu_heads){ take_floats(&t, heads * m * a->k.ne[0]), a->k.ne[0], m * a->k.ne[0] };
    a->dv_sums = (gr_cpu_heads){ take_floats(&t, heads * m * a->v.ne[0]), a->v.ne[0], m * a->v.ne[0] };
  }
  w->reached = take_bytes(&t, parts_of(a, n) * m);
  w->scratch_floats = back_floats(a);
  w->scratch = take_floats(&t, w->scratch_floats * threads);
  return t.at;
}

size_t gr_cpu_scratch_attention(const gr_op_call *call, int threads)
{
  jobs w = { 0 };
  return lay_out(&w, call, threads, NULL);
}

size_t gr_cpu_scratch_attention_back(const gr_op_call *call, int threads)
{
  jobs w = { 0 };
  return lay_out_back(&w, call, threads, NULL);
}

/* ---- jobs ---- */

static void pack_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const jobs *w = ctx;
  w->isa->attention_pack(&w->a, (int64_t)job / w->a.blocks, (int64_t)job % w->a.blocks);
}

static void pack(jobs *w, gr_pool *pool)
{
  w->a.blocks = gr_ceil_div(w->a.k.ne[2], w->isa->block_rows);
  if (w->a.k_blocks) gr_pool_run(pool, (size_t)(w->a.k.ne[1] * w->a.blocks), pack_job, w);
}

/* Later queries of a segment see more keys: they go first, so that the last jobs are short ones. */
static void strip_job(void *ctx, size_t job, int thread)
{
  const jobs *w = ctx;
  int64_t heads = w->a.k.ne[1], strip = w->n_strips - 1 - (int64_t)job / heads;
  w->isa->attention_strip(&w->a, (int64_t)job % heads, w->strips[strip], w->scratch + w->scratch_floats * thread);
}

static jobs begin(gr_backend *b, bool bf16)
{
  const gr_cpu_isa *isa = gr_cpu_isa_of(b);
  return (jobs){ .isa = isa, .a = { .rounds = bf16, .words = bf16 && isa->words } };
}

static gr_status run(gr_backend *b, const gr_op_call *call, bool bf16)
{
  jobs w = begin(b, bf16);
  lay_out(&w, call, gr_pool_threads(call->pool), call->scratch);
  find_visible(call, w.visible);
  if (gr_cpu_attention_is_one(&w.a)) {
    gr_cpu_attention_one(&w.a, w.isa, call->pool, w.scratch);
    return GR_OK;
  }
  if (w.a.words) find_starts(&call->in[SEG_K], w.key_start);
  w.n_runs = find_runs(call, w.runs);
  int64_t wide = 2 * w.isa->lanes;
  for (int64_t i = 0; i < w.n_runs; i++) {
    int64_t rows = w.runs[i].count * w.a.group;
    for (int64_t r = 0; r < rows; r += wide)
      w.strips[w.n_strips++] = (gr_cpu_strip){ w.runs[i].first * w.a.group + r, gr_min(wide, rows - r) };
  }
  pack(&w, call->pool);
  gr_pool_run(call->pool, (size_t)(w.n_strips * w.a.k.ne[1]), strip_job, &w);
  return GR_OK;
}

/* Keys that a query of the part sees, from an even number of keys after the segment's first on; none: an empty range. */
static gr_cpu_visible keys_of(const jobs *w, gr_cpu_run part)
{
  gr_cpu_visible all = { w->visible[part.first].start, INT32_MAX, 0 };
  for (int32_t i = part.first; i < part.first + part.count; i++) {
    const gr_cpu_visible *see = &w->visible[i];
    if (see->from >= see->to) continue;
    if (see->from < all.from) all.start = see->start, all.from = see->from;
    if (see->to > all.to) all.to = see->to;
  }
  if (all.from >= all.to) return (gr_cpu_visible){ 0, 0, 0 };
  all.from -= (all.from - all.start) % 2;
  return all;
}

static void mark_reached(jobs *w)
{
  const int64_t keys = w->a.k.ne[2];
  memset(w->reached, 0, (size_t)(w->sums * keys));
  for (int64_t i = 0; i < w->n_parts; i++) {
    gr_cpu_visible see = keys_of(w, w->parts[i]);
    memset(w->reached + w->parts[i].part * keys + see.from, 1, (size_t)(see.to - see.from));
  }
}

/* Sums of the keys that are reached are cleared by the thread that adds to them next. */
static void clear_sums(const jobs *w, int64_t head, gr_cpu_run part)
{
  const gr_cpu_heads *sums[] = { &w->a.dk_sums, &w->a.dv_sums };
  const int64_t width[] = { w->a.k.ne[0], w->a.v.ne[0] };
  const gr_cpu_visible see = keys_of(w, part);
  for (int i = 0; i < 2; i++)
    for (int64_t key = see.from; key < see.to; key++)
      memset(sums[i]->data + (part.part * w->a.k.ne[1] + head) * sums[i]->head + key * sums[i]->row, 0, (size_t)width[i] * sizeof(float));
}

/* From both ends of the queries in turn: what parts cost is only estimated, and threads take jobs from either end, so that one would have
 * all of those that cost more. */
static void back_job(void *ctx, size_t job, int thread)
{
  const jobs *w = ctx;
  int64_t heads = w->a.k.ne[1], head = (int64_t)job % heads, turn = (int64_t)job / heads;
  gr_cpu_run part = w->parts[turn % 2 ? w->n_parts - 1 - turn / 2 : turn / 2];
  clear_sums(w, head, part);
  w->isa->attention_back(&w->a, head, part, w->scratch + w->scratch_floats * thread);
}

enum { SUM_KEYS = 16 }; /* of a job */

/* The sum over parts that reach the key; 0 where none does. A single part's sums are the result already. */
static void sum_parts(const jobs *w, const gr_cpu_heads *sums, const gr_array *out, int64_t key)
{
  const int64_t part = out->ne[1] * sums->head, parts = GR_MUTANT(attention_back_one_part) ? 1 : w->sums;
  for (int64_t head = 0; head < out->ne[1]; head++) {
    float *y = (float *)gr_array_at(out, 0, head, key, 0);
    const float *x = sums->data + head * sums->head + key * sums->row;
    bool begun = false;
    for (int64_t p = 0; p < parts; p++, x += part) {
      if (!w->reached[p * w->a.k.ne[2] + key]) continue;
      if (begun) w->isa->add(y, y, x, out->ne[0]);
      else if (x != y) memcpy(y, x, (size_t)out->ne[0] * sizeof *y);
      begun = true;
    }
    if (!begun && !GR_MUTANT(attention_back_unseen_keys)) memset(y, 0, (size_t)out->ne[0] * sizeof *y);
  }
}

static void sum_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const jobs *w = ctx;
  int64_t from = (int64_t)job * SUM_KEYS, to = gr_min(from + SUM_KEYS, w->a.k.ne[2]);
  for (int64_t key = from; key < to; key++) {
    sum_parts(w, &w->a.dk_sums, &w->a.dk, key);
    sum_parts(w, &w->a.dv_sums, &w->a.dv, key);
  }
}

static gr_status run_back(gr_backend *b, const gr_op_call *call, bool bf16)
{
  jobs w = begin(b, bf16);
  lay_out_back(&w, call, gr_pool_threads(call->pool), call->scratch);
  find_visible(call, w.visible);
  if (w.a.words) find_starts(&call->in[SEG_K], w.key_start);
  w.n_runs = find_runs(call, w.runs);
  w.n_parts = deal_parts(&w.a, w.runs, w.n_runs, w.parts);
  w.sums = 1;
  for (int64_t i = 0; i < w.n_parts; i++) w.sums = gr_max(w.sums, w.parts[i].part + 1);
  if (w.sums == 1) w.a.dk_sums = rows_of(&w.a.dk), w.a.dv_sums = rows_of(&w.a.dv);
  pack(&w, call->pool);
  mark_reached(&w);
  gr_pool_run(call->pool, (size_t)(w.n_parts * w.a.k.ne[1]), back_job, &w);
  gr_pool_run(call->pool, (size_t)gr_ceil_div(w.a.k.ne[2], SUM_KEYS), sum_job, &w);
  return GR_OK;
}

/* A single query, as generation has it, stays in F32: what it costs is reading keys and values, and rounding them saves none of that. */
bool gr_cpu_admits_bf16_attention(const gr_op_call *call) { return call->in[Q].ne[2] > 1; }
bool gr_cpu_admits_bf16_attention_back(const gr_op_call *call) { return call->in[Q].ne[2] > 1; }
GR_CPU_RUN_BOTH_PRECISIONS(attention, run)
GR_CPU_RUN_BOTH_PRECISIONS(attention_back, run_back)
