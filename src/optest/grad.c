/* Grad mode: the backward rule of an op against central differences of its reference, all in double.
 *
 * The loss is the outputs weighted by a fixed random tensor (C3). The rule's nodes run through the same references, so what is
 * compared is the mathematics alone, far below the noise of floats, and quantized weights are no staircase: they are constants.
 * Differences have four points (error of order h^4); where the two- and the four-point slopes disagree, the case sits on a kink and
 * is itself at fault. Beyond the full rule: every subset of wanted inputs gives the same bits, and so does a run in which
 * everything that the op does not list in `saves` is NaN; what it lists must have been read by some case. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "optest/internal.h"

enum { PERTURB_MAX = 4096, DIRECTIONS = 8 };
static const double grad_tolerance = 1e-6;

/* One application of the op and of its backward rule, in double. */
typedef struct grad_run {
  gr_case_graph cg;
  gr_interp it;
  gr_tensor *dout[GR_OUT_MAX];
  gr_backward back;
  size_t forward_end;
} grad_run;

/* A gradient by storage element: a broadcast input is one element seen in many places. */
typedef struct grad_vector {
  double *v;
  int64_t n; /* doubles of storage */
} grad_vector;

typedef struct grad_case {
  gr_optest *o;
  gr_op_id op;
  const gr_case *c;
  uint64_t key;
  unsigned all; /* inputs whose gradient is asked for */
  grad_vector full[GR_IN_MAX];
  unsigned read_in, read_out; /* saved bits that some backward was seen to read, over all cases of the op */
} grad_case;

static void run_close(grad_run *r)
{
  gr_interp_close(&r->it);
  gr_case_graph_free(&r->cg);
}

static gr_status add_douts(grad_run *r, const gr_case *c, gr_error *e)
{
  for (int i = 0; i < r->cg.node->n_out; i++) {
    const gr_tensor *out = r->cg.node->out[i];
    if (!(c->douts >> i & 1)) continue;
    r->dout[i] = r->back.dout[i] = gr_graph_leaf(r->cg.graph, GR_LEAF_INPUT, GR_F32, out->ne, out->dim, NULL, "dout");
    if (!r->dout[i]) return gr_graph_status(r->cg.graph, e);
  }
  return GR_OK;
}

/* Builds and fills everything and runs the forward; the backward nodes are there but have not run. */
static gr_status run_open(grad_run *r, const grad_case *k, unsigned wants, gr_error *e)
{
  *r = (grad_run){ 0 };
  GR_TRY(gr_case_build(&r->cg, k->op, k->c, e));
  r->forward_end = r->cg.graph->n_nodes;
  r->back.graph = r->cg.graph;
  r->back.node = r->cg.node;
  for (int i = 0; i < GR_IN_MAX; i++) r->back.wants[i] = wants >> i & 1;
  const gr_op *op = gr_optest_op(k->o->swap, k->op);
  gr_status status = add_douts(r, k->c, e);
  if (status == GR_OK) status = op->backward(&r->back, e);
  if (status == GR_OK) status = gr_graph_status(r->cg.graph, e);
  if (status == GR_OK) status = gr_interp_open(&r->it, r->cg.graph, true, k->o->swap, e);
  if (status != GR_OK) {
    gr_case_graph_free(&r->cg);
    return status;
  }
  for (int i = 0; i < k->c->n_in; i++) {
    if (!r->cg.in[i] || (op->shapes_in >> i & 1)) continue; /* shapes only: stays NaN */
    gr_array a = gr_interp_array(&r->it, r->cg.in[i]);
    gr_case_fill(&k->c->in[i], &a, k->o->seed, k->key + (uint64_t)i);
  }
  gr_op_call call;
  gr_interp_call(&r->it, r->cg.node, &call);
  if (k->c->prepare) k->c->prepare(&call);
  for (int i = 0; i < GR_OUT_MAX; i++) {
    if (!r->dout[i]) continue;
    gr_array a = gr_interp_array(&r->it, r->dout[i]);
    gr_case_fill(&(gr_case_in){ 0 }, &a, k->o->seed, k->key + 64 + (uint64_t)i);
  }
  gr_interp_run(&r->it, 0, r->forward_end);
  return GR_OK;
}

static void run_backward(grad_run *r) { gr_interp_run(&r->it, r->forward_end, r->cg.graph->n_nodes); }

/* Index of an element of an F64 array within its storage. */
static int64_t slot(const gr_array *a, const double *storage, const int64_t at[GR_DIMS])
{
  return (const double *)(const void *)gr_array_at(a, at[0], at[1], at[2], at[3]) - storage;
}

static gr_status vector_make(grad_vector *g, const grad_run *r, int i, gr_error *e)
{
  const gr_tensor *root = r->cg.in[i]->base;
  g->n = (int64_t)(r->it.bytes[root->id] / sizeof(double));
  g->v = gr_calloc((size_t)g->n, sizeof *g->v);
  return g->v ? GR_OK : gr_fail_memory(e, (size_t)g->n * sizeof *g->v);
}

/* The gradient that the rule gave for input i, summed where elements share storage. */
static gr_status gather(grad_vector *g, const grad_run *r, int i, gr_error *e)
{
  GR_TRY(vector_make(g, r, i, e));
  gr_array x = gr_interp_array(&r->it, r->cg.in[i]), d = gr_interp_array(&r->it, r->back.din[i]);
  const double *storage = r->it.storage[r->cg.in[i]->base->id];
  int64_t at[GR_DIMS];
  for (at[3] = 0; at[3] < x.ne[3]; at[3]++)
    for (at[2] = 0; at[2] < x.ne[2]; at[2]++)
      for (at[1] = 0; at[1] < x.ne[1]; at[1]++)
        for (at[0] = 0; at[0] < x.ne[0]; at[0]++) g->v[slot(&x, storage, at)] += gr_array_get(&d, at[0], at[1], at[2], at[3]);
  return GR_OK;
}

/* Runs the forward once more, from the state that the first run found, and weighs its outputs. */
static double loss(const grad_run *r, void *const *state)
{
  const gr_graph *g = r->cg.graph;
  for (size_t i = 0; i < g->n_tensors; i++)
    if (state[i]) memcpy(r->it.storage[i], state[i], r->it.bytes[i]);
  gr_interp_run(&r->it, 0, r->forward_end);
  double sum = 0;
  for (int i = 0; i < GR_OUT_MAX; i++) {
    if (!r->dout[i]) continue;
    gr_array y = gr_interp_array(&r->it, r->cg.node->out[i]), w = gr_interp_array(&r->it, r->dout[i]);
    for (int64_t i3 = 0; i3 < y.ne[3]; i3++)
      for (int64_t i2 = 0; i2 < y.ne[2]; i2++)
        for (int64_t i1 = 0; i1 < y.ne[1]; i1++)
          for (int64_t i0 = 0; i0 < y.ne[0]; i0++) sum += gr_array_get(&y, i0, i1, i2, i3) * gr_array_get(&w, i0, i1, i2, i3);
  }
  return sum;
}

/* Slope of the loss along `direction` (n doubles laid out as storage x; NULL: along element `one`), by four points; *two is the
 * estimate by the inner two alone. */
static double slope(const grad_run *r, void *const *state, double *x, int64_t n, const double *direction, int64_t one, double h,
                    double *two)
{
  static const double steps[4] = { 1, -1, 2, -2 };
  double f[4], keep = direction ? 0 : x[one];
  for (int s = 0; s < 4; s++) {
    if (!direction) x[one] = keep + steps[s] * h;
    for (int64_t i = 0; direction && i < n; i++)
      if (direction[i] != 0) x[i] += (steps[s] - (s ? steps[s - 1] : 0)) * h * direction[i];
    f[s] = loss(r, state);
  }
  if (!direction) x[one] = keep;
  for (int64_t i = 0; direction && i < n; i++)
    if (direction[i] != 0) x[i] -= steps[3] * h * direction[i];
  double inner = (f[0] - f[1]) / (2 * h), outer = (f[2] - f[3]) / (4 * h);
  *two = inner;
  return (4 * inner - outer) / 3;
}

/* Marks the storage elements that input i is made of, and gives their root mean square. */
static double mark(const grad_run *r, int i, double *marks, int64_t *count)
{
  gr_array x = gr_interp_array(&r->it, r->cg.in[i]);
  const double *storage = r->it.storage[r->cg.in[i]->base->id];
  double squares = 0;
  int64_t at[GR_DIMS];
  *count = 0;
  for (at[3] = 0; at[3] < x.ne[3]; at[3]++)
    for (at[2] = 0; at[2] < x.ne[2]; at[2]++)
      for (at[1] = 0; at[1] < x.ne[1]; at[1]++)
        for (at[0] = 0; at[0] < x.ne[0]; at[0]++) {
          int64_t s = slot(&x, storage, at);
          if (marks[s] == 0) {
            squares += storage[s] * storage[s];
            ++*count;
          }
          marks[s] = 1;
        }
  return sqrt(squares / (double)(*count ? *count : 1));
}

typedef struct grad_sums {
  double difference, truth, worst, kink;
} grad_sums;

static void tally(grad_sums *s, double numeric, double two, double rule)
{
  s->difference += (numeric - rule) * (numeric - rule);
  s->truth += numeric * numeric;
  if (!(fabs(numeric - rule) <= s->worst)) s->worst = fabs(numeric - rule);
  if (!(fabs(numeric - two) <= s->kink)) s->kink = fabs(numeric - two);
}

/* Each element in turn, or eight random directions when there are many. The direction's truth is scaled to what one element's
 * would be: for directions of independent normal numbers, the spread of (gradient . direction) is the norm of the gradient. */
static void differentiate(const grad_case *k, const grad_run *r, void *const *state, int i, double *marks, int64_t count, double h,
                          grad_sums *s)
{
  double *x = r->it.storage[r->cg.in[i]->base->id], two;
  const grad_vector *g = &k->full[i];
  if (count <= PERTURB_MAX) {
    for (int64_t n = 0; n < g->n; n++)
      if (marks[n] != 0) {
        double numeric = slope(r, state, x, g->n, NULL, n, h, &two);
        tally(s, numeric, two, g->v[n]);
      }
    return;
  }
  double norm2 = 0;
  for (int64_t n = 0; n < g->n; n++) norm2 += g->v[n] * g->v[n];
  for (int d = 0; d < DIRECTIONS; d++) {
    double along = 0;
    for (int64_t n = 0; n < g->n; n++)
      if (marks[n] != 0) {
        marks[n] = gr_random_normal(k->o->seed, k->key + 128 + (uint64_t)d, (uint64_t)n);
        along += marks[n] * g->v[n];
      }
    double numeric = slope(r, state, x, g->n, marks, 0, h, &two);
    tally(s, numeric, two, along);
  }
  s->truth = DIRECTIONS * norm2;
}

static void judge(const grad_case *k, int i, const grad_sums *s, double count)
{
  double norm = sqrt(s->difference / s->truth), rms = sqrt(s->truth / count);
  k->o->checks++;
  if (!isfinite(s->truth) || !isfinite(s->difference)) gr_optest_fail(k->o, NULL, k->op, k->c, "NaN on the way to input %d", i);
  else if (s->truth == 0)
    gr_optest_fail(k->o, NULL, k->op, k->c, "the true gradient to input %d is 0 everywhere: the case tests nothing", i);
  else if (!(s->kink <= 1e-2 * rms))
    gr_optest_fail(k->o, NULL, k->op, k->c,
                   "input %d sits on a kink: slopes by two and by four points differ by %.2g of the gradient's rms", i, s->kink / rms);
  else if (!(norm < grad_tolerance && s->worst < 10 * grad_tolerance * rms))
    gr_optest_fail(k->o, NULL, k->op, k->c, "gradient to input %d is off: relative error %.3g, worst %.3g of its rms", i, norm,
                   s->worst / rms);
  else gr_optest_pass(k->o, NULL, k->op, k->c, &(gr_diff){ .norm = norm, .max = s->worst / rms });
}

/* Copies of the storage that the op writes in place; NULL for the rest. */
static void **save_state(const grad_run *r)
{
  const gr_graph *g = r->cg.graph;
  void **state = gr_calloc(g->n_tensors, sizeof *state);
  for (size_t i = 0; state && i < g->n_tensors; i++)
    if (!g->tensors[i]->base && g->tensors[i]->leaf == GR_LEAF_STATE && (state[i] = gr_alloc(r->it.bytes[i])))
      memcpy(state[i], r->it.storage[i], r->it.bytes[i]);
  return state;
}

static void free_state(const grad_run *r, void **state)
{
  for (size_t i = 0; state && i < r->cg.graph->n_tensors; i++) gr_free(state[i]);
  gr_free(state);
}

static gr_status numeric_input(const grad_case *k, const grad_run *r, void *const *state, int i, gr_error *e)
{
  grad_vector marks;
  int64_t count;
  grad_sums s = { 0 };
  GR_TRY(vector_make(&marks, r, i, e));
  double rms = mark(r, i, marks.v, &count);
  differentiate(k, r, state, i, marks.v, count, rms > 0 ? 1e-3 * rms : 1e-3, &s);
  judge(k, i, &s, (double)(count <= PERTURB_MAX ? count : DIRECTIONS));
  gr_free(marks.v);
  return GR_OK;
}

/* The rule for every wanted input at once, against differences; its gradients are kept for the checks that follow. */
static gr_status check_full(grad_case *k, gr_error *e)
{
  grad_run r;
  GR_TRY(run_open(&r, k, k->all, e));
  gr_status status = GR_OK;
  run_backward(&r);
  for (int i = 0; i < GR_IN_MAX && status == GR_OK; i++) {
    if (!(k->all >> i & 1)) continue;
    if (!r.back.din[i] || !gr_shape_equal(r.back.din[i]->ne, r.cg.in[i]->ne)) {
      gr_optest_fail(k->o, NULL, k->op, k->c, "backward gave %s for input %d", r.back.din[i] ? "a gradient of another shape" : "nothing",
                     i);
      run_close(&r);
      k->all = 0;
      return GR_OK;
    }
    status = gather(&k->full[i], &r, i, e);
  }
  void **state = save_state(&r);
  if (status == GR_OK && !state) status = gr_fail(e, GR_ERR_MEMORY, "out of memory for a gradient check");
  for (int i = 0; i < GR_IN_MAX && status == GR_OK; i++)
    if (k->all >> i & 1) status = numeric_input(k, &r, state, i, e);
  free_state(&r, state);
  run_close(&r);
  return status;
}

/* Runs the backward for `wants` with everything in the masks poisoned; *same: the gradients have the bits of the full run. */
static gr_status rerun(const grad_case *k, unsigned wants, unsigned poison_in, unsigned poison_out, bool *same, gr_error *e)
{
  grad_run r;
  GR_TRY(run_open(&r, k, wants, e));
  for (int i = 0; i < r.cg.node->n_in; i++)
    if (r.cg.in[i] && (poison_in >> i & 1)) gr_interp_poison(&r.it, r.cg.in[i]);
  for (int i = 0; i < r.cg.node->n_out; i++)
    if (poison_out >> i & 1) gr_interp_poison(&r.it, r.cg.node->out[i]);
  run_backward(&r);
  gr_status status = GR_OK;
  *same = true;
  for (int i = 0; i < GR_IN_MAX && status == GR_OK; i++) {
    bool wanted = wants >> i & 1;
    grad_vector g = { 0 };
    if (!wanted || !r.back.din[i]) {
      *same = *same && wanted == (r.back.din[i] != NULL);
      continue;
    }
    status = gather(&g, &r, i, e);
    if (status == GR_OK) *same = *same && memcmp(g.v, k->full[i].v, (size_t)g.n * sizeof *g.v) == 0;
    gr_free(g.v);
  }
  run_close(&r);
  return status;
}

static gr_status check_wants(const grad_case *k, gr_error *e)
{
  for (unsigned wants = 1; wants < k->all; wants++) {
    bool same;
    if (wants & ~k->all) continue;
    GR_TRY(rerun(k, wants, 0, 0, &same, e));
    k->o->checks++;
    if (!same) gr_optest_fail(k->o, NULL, k->op, k->c, "wanting inputs 0x%x alone gives other gradients than wanting 0x%x", wants, k->all);
  }
  return GR_OK;
}

static gr_status check_saves(grad_case *k, gr_error *e)
{
  const gr_op *op = gr_optest_op(k->o->swap, k->op);
  bool same;
  GR_TRY(rerun(k, k->all, (unsigned)~op->saves_in, (unsigned)~op->saves_out, &same, e));
  k->o->checks++;
  if (!same)
    gr_optest_fail(k->o, NULL, k->op, k->c, "backward reads what `saves` does not list (inputs 0x%x, outputs 0x%x)", op->saves_in,
                   op->saves_out);
  for (int i = 0; i < GR_IN_MAX; i++) {
    if ((op->saves_in >> i & 1) && !(k->read_in >> i & 1) && i < k->c->n_in && k->c->in[i].ne[0]) {
      GR_TRY(rerun(k, k->all, 1u << i, 0, &same, e));
      k->read_in |= same ? 0 : 1u << i;
    }
    if (i < GR_OUT_MAX && (op->saves_out >> i & 1) && !(k->read_out >> i & 1)) {
      GR_TRY(rerun(k, k->all, 0, 1u << i, &same, e));
      k->read_out |= same ? 0 : 1u << i;
    }
  }
  return GR_OK;
}

/* A case that must be refused: by infer, or by backward when it asks for gradients. */
static gr_status check_refusal(gr_optest *o, gr_op_id op, const gr_case *c, gr_error *e)
{
  gr_error said = { 0 };
  gr_case_graph cg = { 0 };
  gr_status status = gr_case_build(&cg, op, c, &said);
  if (status == GR_OK && c->wants) {
    gr_backward b = { .graph = cg.graph, .node = cg.node };
    for (int i = 0; i < GR_IN_MAX; i++) b.wants[i] = c->wants >> i & 1;
    for (int i = 0; i < cg.node->n_out; i++)
      if (c->douts >> i & 1) b.dout[i] = gr_graph_leaf(cg.graph, GR_LEAF_INPUT, GR_F32, cg.node->out[i]->ne, NULL, NULL, "dout");
    status = gr_optest_op(o->swap, op)->backward(&b, &said);
    if (status == GR_OK) status = gr_graph_status(cg.graph, &said);
  }
  gr_case_graph_free(&cg);
  if (status == GR_ERR_MEMORY && c->refuse != GR_ERR_MEMORY) return gr_fail(e, status, "%s", said.text);
  o->checks++;
  if (status != c->refuse)
    gr_optest_fail(o, NULL, op, c, "must be refused as %s, was: %s %s", gr_status_name(c->refuse), gr_status_name(status), said.text);
  else if (!strstr(said.text, c->says)) gr_optest_fail(o, NULL, op, c, "the refusal must say '%s': %s", c->says, said.text);
  return GR_OK;
}

static gr_status grad_one(grad_case *k, gr_error *e)
{
  for (int i = 0; i < k->c->n_in; i++) k->all |= k->c->in[i].grad ? 1u << i : 0;
  if (!k->all) return GR_OK;
  gr_error said = { 0 };
  gr_status status = check_full(k, &said);
  if (status == GR_OK && k->all) status = check_wants(k, &said);
  if (status == GR_OK && k->all) status = check_saves(k, &said);
  for (int i = 0; i < GR_IN_MAX; i++) {
    gr_free(k->full[i].v);
    k->full[i] = (grad_vector){ 0 };
  }
  if (status == GR_ERR_MEMORY) return gr_fail(e, status, "%s", said.text);
  if (status != GR_OK) gr_optest_fail(k->o, NULL, k->op, k->c, "the case cannot be built: %s", said.text);
  return GR_OK;
}

static gr_status grad_op(gr_optest *o, gr_op_id id, gr_error *e)
{
  gr_case_list l;
  GR_TRY(gr_case_list_make(&l, o->swap, id, e));
  const gr_op *op = gr_optest_op(o->swap, id);
  size_t before = o->checks, failed = o->failures;
  unsigned read_in = 0, read_out = 0;
  gr_status status = GR_OK;
  for (size_t n = 0; n < l.n && status == GR_OK && !gr_optest_enough(o); n++) {
    const gr_case *c = l.items[n];
    grad_case k = { .o = o, .op = id, .c = c, .key = (uint64_t)id << 32 | n << 8, .read_in = read_in, .read_out = read_out };
    if ((c->flags & (GR_CASE_PERF | GR_CASE_NO_GRAD)) || ((c->flags & GR_CASE_FULL) && !o->full)) continue;
    o->cases++;
    if (c->refuse) status = check_refusal(o, id, c, e);
    else if (op->backward) status = grad_one(&k, e);
    read_in = k.read_in, read_out = k.read_out;
  }
  gr_case_list_free(&l);
  if (status != GR_OK) return status;
  if (op->backward && o->checks == before) gr_optest_fail(o, NULL, id, NULL, "has a backward that no case checks");
  if (!op->backward && !(op->flags & (GR_OP_NO_BACKWARD | GR_OP_FUSED)))
    gr_optest_fail(o, NULL, id, NULL, "has neither a backward nor a word that it has none");
  if (op->backward && o->failures == failed && ((op->saves_in & ~read_in) || (op->saves_out & ~read_out)))
    gr_optest_fail(o, NULL, id, NULL, "`saves` lists what no case's backward reads: inputs 0x%x, outputs 0x%x", op->saves_in & ~read_in,
                   op->saves_out & ~read_out);
  return GR_OK;
}

gr_status gr_optest_grad(gr_optest *o, gr_error *e)
{
  for (int id = 1; id < GR_OP_COUNT; id++)
    if (gr_optest_wanted(o, (gr_op_id)id)) GR_TRY(grad_op(o, (gr_op_id)id, e));
  gr_optest_summary(o, "grad");
  return GR_OK;
}
