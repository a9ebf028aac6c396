/* The experts of each token: logits [E,n] and an optional selection bias [E] -> weights [k,n] F32 and ids [k,n] I32. What is chosen, in
 * which order and with which weights is stated at gr_route_params. Never recomputed, so that a step routes once.
 * Gradient: dlogits = route_back of the weights' gradient. The bias moves the selection only and is frozen, ids have none: the router
 * passes a real gradient to what it reads even when its own matrix is frozen (A6). */
#include "ops/route.h"

#include "base/alloc.h"

gr_status gr_route_check(const struct gr_route_params *p, const char *op, const gr_tensor *logits, gr_error *e)
{
  char text[160];
  gr_tensor_describe(logits, text, sizeof text);
  if (logits->ne[2] != 1 || logits->ne[3] != 1 || logits->dim[0] != GR_DIM_STATIC)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: takes logits [experts, tokens], not %s", op, text);
  if (p->used < 1 || p->used > logits->ne[0])
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %d experts cannot be chosen out of %s", op, (int)p->used, text);
  if (p->gating < 0 || p->gating >= GR_GATE_KINDS) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: there is no gate %d", op, (int)p->gating);
  if (!isfinite(p->scale) || !(p->clamp >= 0) || !isfinite(p->clamp))
    return gr_fail(e, GR_ERR_NUMERIC, "%s: scale %g and clamp %g must be finite, the clamp not below 0", op, (double)p->scale,
                   (double)p->clamp);
  return GR_OK;
}

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_route_params *p = c->params;
  const gr_tensor *logits = c->in[0], *bias = c->n_in > 1 ? c->in[1] : NULL;
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "route", 3, e));
  GR_TRY(gr_route_check(p, "route", logits, e));
  if (bias && (bias->ne[0] != logits->ne[0] || bias->ne[1] != 1 || bias->ne[2] != 1 || bias->ne[3] != 1))
    return gr_fail(e, GR_ERR_MISMATCH, "route: the bias %s does not fit %s", gr_tensor_describe(bias, a, sizeof a),
                   gr_tensor_describe(logits, b, sizeof b));
  c->out[1].dtype = GR_I32;
  for (int i = 0; i < 2; i++) {
    c->out[i].ne[0] = p->used;
    gr_infer_dim(&c->out[i], 1, logits, 1);
  }
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  const struct gr_route_params *p = (const void *)b->node->params;
  GR_TRY(gr_backward_refuse(b, 2, "it moves the selection only", e));
  if (b->dout[1]) return gr_fail(e, GR_ERR_UNSUPPORTED, "route: ids of experts have no gradient");
  if (b->wants[0] && b->dout[0]) b->din[0] = gr_route_back(b->graph, b->node->in[0], b->node->out[1], b->dout[0], p);
  return GR_OK;
}

/* ---- reference ---- */

static void softmax(double *g, int64_t n)
{
  double max = -HUGE_VAL, sum = 0;
  for (int64_t i = 0; i < n; i++) max = g[i] > max ? g[i] : max;
  for (int64_t i = 0; i < n; i++) sum += g[i] == -HUGE_VAL ? 0 : exp(g[i] - max);
  for (int64_t i = 0; i < n; i++) g[i] = g[i] == -HUGE_VAL ? 0 : exp(g[i] - max) / sum;
}

void gr_route_gates(const struct gr_route_params *p, const gr_array *logits, const gr_array *ids, int64_t t, double *g)
{
  int64_t experts = logits->ne[0];
  for (int64_t i = 0; i < experts; i++) g[i] = p->gating == GR_GATE_SELECTED ? -HUGE_VAL : gr_array_get(logits, i, t, 0, 0);
  for (int64_t i = 0; p->gating == GR_GATE_SELECTED && i < ids->ne[0]; i++) {
    int64_t id = gr_route_id(ids, i, t, experts);
    if (id >= 0) g[id] = gr_array_get(logits, id, t, 0, 0);
  }
  if (p->gating != GR_GATE_SIGMOID) softmax(g, experts);
  for (int64_t i = 0; p->gating == GR_GATE_SIGMOID && i < experts; i++) g[i] = gr_reference_sigmoid(g[i]);
}

double gr_route_divisor(const struct gr_route_params *p, const gr_array *ids, int64_t t, const double *g, int64_t experts, bool *constant)
{
  double sum = 0;
  *constant = true;
  if (!p->renormalise) return 1;
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int64_t id = gr_route_id(ids, i, t, experts);
    sum += id >= 0 ? g[id] : 0;
  }
  *constant = sum < (double)p->clamp;
  return *constant ? (double)p->clamp : sum;
}

/* Writes the ids of token t by descending score. score is used up. */
static void choose(const gr_array *ids, int64_t t, double *score, int64_t experts)
{
  for (int64_t i = 0; i < experts; i++)
    if (isnan(score[i])) score[i] = -HUGE_VAL;
  for (int64_t i = 0; i < ids->ne[0]; i++) {
    int64_t best = -1;
    for (int64_t x = 0; x < experts; x++)
      if (!isnan(score[x]) && (best < 0 || score[x] > score[best])) best = x;
    gr_array_set(ids, i, t, 0, 0, (double)best);
    score[best] = (double)NAN; /* taken */
  }
}

static void reference(const gr_op_call *c)
{
  const struct gr_route_params *p = c->params;
  const gr_array *logits = &c->in[0], *weights = &c->out[0], *ids = &c->out[1];
  bool biased = c->n_in > 1 && c->in[1].ne[0] > 0, constant;
  int64_t experts = logits->ne[0];
  double *g = gr_reference_scratch(c, 2 * experts);
  if (!g) return;
  double *score = g + experts;
  struct gr_route_params all = *p;
  if (p->gating == GR_GATE_SELECTED) all.gating = GR_GATE_SOFTMAX; /* only to fill g: what is chosen is not known yet */
  for (int64_t t = 0; t < logits->ne[1]; t++) {
    gr_route_gates(&all, logits, ids, t, g);
    for (int64_t i = 0; i < experts; i++) score[i] = biased && p->gating != GR_GATE_SELECTED ? g[i] : gr_array_get(logits, i, t, 0, 0);
    for (int64_t i = 0; biased && i < experts; i++) score[i] += gr_array_get(&c->in[1], i, 0, 0, 0);
    choose(ids, t, score, experts);
    gr_route_gates(p, logits, ids, t, g);
    double divisor = gr_route_divisor(p, ids, t, g, experts, &constant);
    for (int64_t i = 0; i < ids->ne[0]; i++)
      gr_array_set(weights, i, t, 0, 0, (double)p->scale * g[gr_route_id(ids, i, t, experts)] / divisor);
  }
  gr_free(g);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]), chosen = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 3 * n, .bytes_read = 4 * n, .bytes_written = 8 * chosen };
}

/* ---- cases ---- */

/* Any 7 of these in a row are at least 0.15 apart: no tie within reach of a difference. */
static const double apart[] = { 0.3, -1.2, 0.9, 2.1, -0.4, 1.5, -2.2, 0.05, -0.9, 1.1, -1.7 };

bool gr_route_case_get(int i, struct gr_route_params *p)
{
  static const struct gr_route_params all[] = {
    { 2, GR_GATE_SOFTMAX, 1, 6.103515625e-5f, 1 },
    { 2, GR_GATE_SOFTMAX, 0, 0, 1 },
    { 3, GR_GATE_SIGMOID, 1, 0, 2.5f },
    { 2, GR_GATE_SIGMOID, 0, 0, 0.5f },
    { 2, GR_GATE_SELECTED, 0, 0, 1 },
    { 7, GR_GATE_SELECTED, 0, 0, 1.5f },
    { 1, GR_GATE_SOFTMAX, 0, 0, 1 },
    { 7, GR_GATE_SOFTMAX, 1, 0, 1 },
    { 3, GR_GATE_SELECTED, 1, 0, 2 },
    { 2, GR_GATE_SIGMOID, 1, 6.103515625e-5f, 1.5f },
    { 1, GR_GATE_SIGMOID, 1, 0, 1 },
    { 1, GR_GATE_SELECTED, 0, 0, 1 },
    { 3, GR_GATE_SOFTMAX, 1, 0.9f, 1 },
  };
  if (i >= (int)(sizeof all / sizeof *all)) return false;
  *p = all[i];
  return true;
}

static void add(gr_case_sink *s, const gr_case *given, const struct gr_route_params *p, int64_t experts, int64_t n, gr_fill logits,
                bool bias)
{
  gr_case c = *given;
  bool steady = p->used == 1 && (p->renormalise || p->gating == GR_GATE_SELECTED); /* the weight is always 1 */
  c.params = p;
  c.in[0] = (gr_case_in){ .ne = { experts, n },
                          .dim = { 0, GR_DIM_TOKENS },
                          .layout = c.in[0].layout,
                          .fill = logits,
                          .grad = !(c.flags & GR_CASE_NO_GRAD) && !steady };
  if (bias) c.in[1] = (gr_case_in){ .ne = { experts }, .fill = c.in[1].fill };
  gr_case_add(s, &c);
}

/* What is chosen, and in which order: ties, saturated gates, experts that a bias lifts or a mask takes away. */
static void choice_cases(gr_case_sink *s, const struct gr_route_params *p)
{
  gr_case c = { .name = "ties: the lower expert first", .flags = GR_CASE_NO_GRAD };
  add(s, &c, p, 16, 5, GR_FILL_LIST(1, 0, 1, -0.0, 1), false);
  add(s, &c, p, 9, 3, GR_FILL_LIST(0.5), false);
  c.name = "saturated: the logits rank";
  add(s, &c, p, 7, 3, GR_FILL_LIST(30, 38, 34, 90, 86, 45, 31), false);
  add(s, &c, p, 7, 3, GR_FILL_LIST(-30, -38, -34, -120, -86, -45, -31), false);
  c.name = "masked experts";
  add(s, &c, p, 7, 3, GR_FILL_LIST(-HUGE_VAL, 0.5, -HUGE_VAL, -HUGE_VAL, -1, -HUGE_VAL, -HUGE_VAL), false);
  c.name = "a bias that decides", c.in[1].fill = GR_FILL_LIST(3, -3, 0.125, 2, -1, 4, 1);
  add(s, &c, p, 7, 5, (gr_fill){ 0 }, true);
  c.name = "logits to 1e4", c.in[1].fill = (gr_fill){ 0 };
  add(s, &c, p, 67, 9, gr_fill_normal(1e4), false);
}

static void refusals(gr_case_sink *s)
{
  static const struct gr_route_params p = { 2, GR_GATE_SOFTMAX, 0, 0, 1 }, none = { 0, GR_GATE_SOFTMAX, 0, 0, 1 },
                                      many = { 8, GR_GATE_SOFTMAX, 0, 0, 1 }, wrong = { 2, GR_GATE_KINDS, 0, 0, 1 },
                                      nan = { 2, GR_GATE_SOFTMAX, 0, 0, NAN }, below = { 2, GR_GATE_SOFTMAX, 1, -1, 1 };
  gr_case_in logits = { .ne = { 7, 5 } }, bias = { .ne = { 7 } };
  gr_case_add(s, &(gr_case){ .params = &none, .in = { logits }, .refuse = GR_ERR_UNSUPPORTED, .says = "0 experts cannot be chosen" });
  gr_case_add(s, &(gr_case){ .params = &many, .in = { logits }, .refuse = GR_ERR_UNSUPPORTED, .says = "8 experts cannot be chosen" });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { logits }, .refuse = GR_ERR_UNSUPPORTED, .says = "no gate" });
  gr_case_add(s, &(gr_case){ .params = &nan, .in = { logits }, .refuse = GR_ERR_NUMERIC, .says = "must be finite" });
  gr_case_add(s, &(gr_case){ .params = &below, .in = { logits }, .refuse = GR_ERR_NUMERIC, .says = "not below 0" });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 7, 5, 2 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "[experts, tokens]" });
  gr_case_add(
      s, &(gr_case){ .params = &p, .in = { { .ne = { 7, 5 }, .dtype = GR_F16 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { logits, { .ne = { 6 } } }, .refuse = GR_ERR_MISMATCH, .says = "does not fit" });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { logits, bias }, .wants = 2, .refuse = GR_ERR_UNSUPPORTED, .says = "selection only" });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { logits }, .wants = 1, .douts = 3, .refuse = GR_ERR_UNSUPPORTED, .says = "no gradient" });
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1.1e-7, .defect = 1e-5 };
  gr_fill clear = gr_fill_values(apart, 11);
  static const double mostly_small[] = { 0.3, -1.2, 0.9, 2.1, -0.4, 1.5, -2.2, -12.3, -13.1, -11.4, -14.2, -12.9, -11.8, -13.6 };
  struct gr_route_params p;
  for (int i = 0; gr_route_case_get(i, &p); i++) {
    add(s, &(gr_case){ 0 }, &p, 7, 5, clear, false);
    add(s, &(gr_case){ .name = "selection bias", .in = { { 0 }, { .fill = GR_FILL_LIST(0.4, -0.35, 0.13, 0.02, -0.2, 0.3, -0.1) } } }, &p,
        7, 5, clear, true);
    add(s, &(gr_case){ .name = "one token" }, &p, 9, 1, clear, false);
    add(s, &(gr_case){ .name = "gates below the clamp, and not" }, &p, 7, 4, gr_fill_values(mostly_small, 14), false);
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
      add(s, &(gr_case){ .name = "strided", .in = { { .layout = (gr_layout)a } } }, &p, 7, 4, clear, false);
    choice_cases(s, &p);
    p.used = 8;
    add(s, &(gr_case){ .name = "many experts", .flags = GR_CASE_NO_GRAD }, &p, 128, 33, (gr_fill){ 0 }, i % 2);
    add(s, &(gr_case){ .name = "many experts", .flags = GR_CASE_NO_GRAD }, &p, 67, 9, (gr_fill){ 0 }, true);
  }
  static const struct gr_route_params ten = { 10, GR_GATE_SOFTMAX, 1, 6.103515625e-5f, 1 };
  add(s, &(gr_case){ .name = "512 experts", .flags = GR_CASE_NO_GRAD }, &ten, 512, 5, (gr_fill){ 0 }, false);
  add(s, &(gr_case){ .flags = GR_CASE_PERF }, &ten, 128, 512, (gr_fill){ 0 }, false);
  refusals(s);
}

gr_tensor *gr_route(gr_graph *g, gr_tensor *logits, gr_tensor *bias, const struct gr_route_params *p)
{
  return gr_graph_node(g, GR_OP_route, (gr_tensor *[]){ logits, bias }, bias ? 2 : 1, p);
}

const gr_op gr_op_route = {
  .inputs_min = 1,
  .inputs_max = 2,
  .outputs = 2,
  .flags = GR_OP_KEEP,
  .saves_in = 1,
  .saves_out = 2,
  .params_bytes = sizeof(struct gr_route_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
