/* route, route_back, group_experts: the router of a layer. A few numbers a token, so in double and without kernels of their own; the
 * formulas are stated at gr_route_params. */
#include <math.h>
#include <string.h>

#include "backend/cpu/pairs.h"
#include "base/mutant.h"

typedef struct router {
  const gr_op_call *call;
  struct gr_route_params p;
  const gr_array *logits, *bias; /* bias NULL: none */
  int64_t experts, per_job;
  char *threads; /* scratch of each: rows of E doubles, and one of floats for logits that are not dense */
  int64_t thread_bytes;
} router;

enum { ROWS = 2 }; /* of doubles: gates, and scores or the gradient of gates */

static router router_of(const gr_op_call *call)
{
  router r = { .call = call, .p = *(const struct gr_route_params *)call->params, .logits = &call->in[0], .threads = call->scratch };
  r.experts = r.logits->ne[0];
  r.per_job = gr_cpu_rows_per_job(16 * r.experts); /* an exponential costs as much as many elements */
  r.thread_bytes = gr_cpu_align(r.experts * (int64_t)(ROWS * sizeof(double) + sizeof(float)));
  return r;
}

static size_t scratch_of(const gr_op_call *call, int threads)
{
  router r = router_of(call);
  return (size_t)(r.thread_bytes * threads);
}

size_t gr_cpu_scratch_route(const gr_op_call *call, int threads) { return scratch_of(call, threads); }
size_t gr_cpu_scratch_route_back(const gr_op_call *call, int threads) { return scratch_of(call, threads); }

typedef struct token {
  double *g, *other;
  const float *logits;
  int64_t t;
} token;

static token token_of(const router *r, int64_t t, int thread)
{
  double *g = (double *)(r->threads + r->thread_bytes * thread);
  return (token){ g, g + r->experts, gr_cpu_row(r->logits, (gr_row_at){ t, 0, 0 }, (float *)(g + ROWS * r->experts)), t };
}

static double float_at(const gr_array *a, int64_t i0, int64_t i1)
{
  float v;
  memcpy(&v, gr_array_at(a, i0, i1, 0, 0), sizeof v);
  return (double)v;
}

/* The expert of a slot, or -1. */
static int32_t id_at(const router *r, const gr_array *ids, int64_t slot, int64_t t)
{
  int32_t id = gr_cpu_integer(ids, slot, t);
  return id >= 0 && id < r->experts ? id : -1;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* ---- gates ---- */

/* exp(logit - top), 0 for a logit of -inf whatever the top is. */
static double above(double logit, double top) { return isinf(logit) && logit < 0 ? 0 : exp(logit - top); }

static void softmax_all(const token *k, int64_t experts)
{
  double top = -HUGE_VAL, sum = 0;
  for (int64_t i = 0; i < experts; i++) top = (double)k->logits[i] > top ? (double)k->logits[i] : top;
  for (int64_t i = 0; i < experts; i++) sum += k->g[i] = above((double)k->logits[i], top);
  for (int64_t i = 0; i < experts && top > -HUGE_VAL; i++) k->g[i] /= sum;
}

/* Gates of the chosen experts alone, for kinds that need no other. */
static void gates_of_chosen(const router *r, const token *k, const gr_array *ids)
{
  double top = -HUGE_VAL, sum = 0;
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id >= 0 && (double)k->logits[id] > top) top = (double)k->logits[id];
  }
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id < 0) continue;
    double l = (double)k->logits[id];
    k->g[id] = r->p.gating == GR_GATE_SIGMOID ? sigmoid(l) : above(l, top);
    sum += k->g[id];
  }
  if (r->p.gating == GR_GATE_SIGMOID || !(top > -HUGE_VAL)) return;
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id >= 0) k->g[id] /= sum;
  }
}

/* What the weights are divided by: *constant where no gradient passes through it. */
static double divisor_of(const router *r, const token *k, const gr_array *ids, bool *constant)
{
  double sum = 0;
  *constant = true;
  if (!r->p.renormalise) return 1;
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id >= 0) sum += k->g[id];
  }
  *constant = sum < (double)r->p.clamp && !GR_MUTANT(route_no_clamp);
  return *constant ? (double)r->p.clamp : sum;
}

/* ---- route ---- */

static double score_of(const router *r, const token *k, int64_t expert)
{
  double s = (double)k->logits[expert];
  if (r->bias && r->p.gating == GR_GATE_SOFTMAX) s = k->g[expert];
  if (r->bias && r->p.gating == GR_GATE_SIGMOID) s = sigmoid(s);
  if (r->bias && !GR_MUTANT(route_no_bias)) s += float_at(r->bias, expert, 0);
  return isnan(s) ? -HUGE_VAL : s;
}

/* The largest scores, in descending order; of equal ones the lower expert. */
static void choose(const router *r, const token *k, int32_t *ids)
{
  double *best = k->other;
  for (int32_t expert = 0; expert < r->experts; expert++) {
    double s = score_of(r, k, expert);
    int64_t i = gr_min(expert, r->p.used);
    if (i == r->p.used && !(s > best[i - 1])) continue;
    if (i == r->p.used) i--;
    for (; i > 0 && (s > best[i - 1] || (s >= best[i - 1] && GR_MUTANT(route_ties_reversed))); i--)
      best[i] = best[i - 1], ids[i] = ids[i - 1];
    best[i] = s, ids[i] = expert;
  }
}

static void route_job(void *ctx, size_t job, int thread)
{
  const router *r = ctx;
  const gr_array *weights = &r->call->out[0], *ids = &r->call->out[1];
  bool constant;
  for (int64_t t = (int64_t)job * r->per_job; t < gr_min(((int64_t)job + 1) * r->per_job, r->logits->ne[1]); t++) {
    token k = token_of(r, t, thread);
    if (r->p.gating == GR_GATE_SOFTMAX) softmax_all(&k, r->experts);
    choose(r, &k, (int32_t *)gr_array_at(ids, 0, t, 0, 0));
    if (r->p.gating != GR_GATE_SOFTMAX) gates_of_chosen(r, &k, ids);
    double divisor = divisor_of(r, &k, ids, &constant);
    float *w = (float *)gr_array_at(weights, 0, t, 0, 0);
    for (int64_t i = 0; i < ids->ne[0]; i++) w[i] = (float)((double)r->p.scale * k.g[gr_cpu_integer(ids, i, t)] / divisor);
  }
}

gr_status gr_cpu_run_route(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)b;
  (void)e;
  router r = router_of(call);
  if (call->n_in > 1 && call->in[1].ne[0] > 0) r.bias = &call->in[1];
  gr_pool_run(call->pool, (size_t)gr_ceil_div(r.logits->ne[1], r.per_job), route_job, &r);
  return GR_OK;
}

/* ---- route_back ---- */

static void back_token(const router *r, const token *k)
{
  const gr_array *ids = &r->call->in[1], *dw = &r->call->in[2];
  bool constant, all = r->p.gating == GR_GATE_SOFTMAX;
  double *ds = k->other, mean = 0, sum = 0;
  float *dl = (float *)gr_array_at(&r->call->out[0], 0, k->t, 0, 0);
  if (all) softmax_all(k, r->experts);
  else gates_of_chosen(r, k, ids);
  double divisor = divisor_of(r, k, ids, &constant);
  for (int64_t i = 0; i < ids->ne[0] && !constant; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id >= 0) mean += k->g[id] / divisor * float_at(dw, i, k->t);
  }
  for (int64_t x = 0; x < r->experts; x++) ds[x] = 0, dl[x] = 0;
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id < 0) continue;
    ds[id] = (double)r->p.scale / divisor * (float_at(dw, i, k->t) - (GR_MUTANT(route_back_no_renormalise) ? 0 : mean));
    if (constant) sum += k->g[id] * ds[id];
  }
  for (int64_t x = 0; x < r->experts && all; x++) dl[x] = (float)(k->g[x] * (ds[x] - sum));
  for (int64_t i = 0; i < ids->ne[0] && !all; i++) {
    int32_t id = id_at(r, ids, i, k->t);
    if (id < 0) continue;
    double slope = r->p.gating == GR_GATE_SIGMOID ? sigmoid(-(double)k->logits[id]) * ds[id] : ds[id] - sum;
    dl[id] = (float)(k->g[id] * slope);
  }
}

static void back_job(void *ctx, size_t job, int thread)
{
  const router *r = ctx;
  for (int64_t t = (int64_t)job * r->per_job; t < gr_min(((int64_t)job + 1) * r->per_job, r->logits->ne[1]); t++) {
    token k = token_of(r, t, thread);
    back_token(r, &k);
  }
}

gr_status gr_cpu_run_route_back(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)b;
  (void)e;
  router r = router_of(call);
  gr_pool_run(call->pool, (size_t)gr_ceil_div(r.logits->ne[1], r.per_job), back_job, &r);
  return GR_OK;
}

/* ---- group_experts ---- */

/* A counting sort: one pass counts, one places. offsets[e] is where the next pair of e goes, and in the end where e + 1 begins. */
gr_status gr_cpu_run_group_experts(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)b;
  (void)e;
  const gr_array *ids = &call->in[0];
  int32_t *perm = call->out[0].data, *offsets = call->out[1].data, next = 0;
  int64_t experts = call->out[1].ne[0] - 1, n = gr_array_count(ids);
  memset(offsets, 0, (size_t)(experts + 1) * sizeof *offsets);
  for (int64_t p = 0; p < n; p++) {
    int32_t id = gr_cpu_integer(ids, p % ids->ne[0], p / ids->ne[0]);
    if (id >= 0 && id < experts) offsets[id]++;
  }
  for (int64_t x = 0; x <= experts; x++) {
    int32_t count = offsets[x];
    offsets[x] = next;
    next += count;
  }
  for (int64_t p = 0; p < n; p++) {
    int32_t id = gr_cpu_integer(ids, p % ids->ne[0], p / ids->ne[0]);
    if (id >= 0 && id < experts) perm[offsets[id]++] = (int32_t)(GR_MUTANT(group_experts_tokens) ? p - p % ids->ne[0] : p);
  }
  for (int64_t x = experts; x > 0 && !GR_MUTANT(group_experts_offset_by_one); x--) offsets[x] = offsets[x - 1];
  offsets[0] = 0;
  for (int64_t p = offsets[experts]; p < n; p++) perm[p] = -1;
  return GR_OK;
}
