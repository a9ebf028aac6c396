/* The gradient of route's weights to the logits: logits [E,n], ids [k,n] I32, dweights [k,n] -> dlogits [E,n]. With g the gates, D what the
 * chosen ones are divided by (gr_route_params) and q_i = g_i / D:
 *   ds_i = scale / D (dw_i - mean), mean = sum over the chosen j of q_j dw_j where D is their sum, and 0 where D is a clamp or 1;
 *   SIGMOID dl_x = g_x (1 - g_x) ds_x;  SOFTMAX and SELECTED dl_x = g_x (ds_x - sum over the chosen j of g_j ds_j),
 * a sum that is exactly 0, and so are the dl of all that were not chosen, where D is the sum of the chosen g. ds is 0 where an expert was
 * not chosen. Ids outside [0,E) count for nothing. */
#include "base/alloc.h"
#include "base/mutant.h"
#include "ops/route.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_route_params *p = c->params;
  const gr_tensor *logits = c->in[0], *ids = c->in[1], *dw = c->in[2];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "route_back", 5, e));
  GR_TRY(gr_route_check(p, "route_back", logits, e));
  GR_TRY(gr_infer_need_same("route_back", ids, dw, e));
  if (ids->dtype != GR_I32)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "route_back: ids must be I32, not %s", gr_tensor_describe(ids, a, sizeof a));
  if (ids->ne[0] != p->used || ids->ne[1] != logits->ne[1] || ids->dim[1] != logits->dim[1] || ids->ne[2] != 1 || ids->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "route_back: ids %s are not what route gave for %s", gr_tensor_describe(ids, a, sizeof a),
                   gr_tensor_describe(logits, b, sizeof b));
  gr_infer_like(&c->out[0], logits);
  return GR_OK;
}

/* ds [E] of token t; *sum: what softmax subtracts from each. g: the gates. */
static void gate_gradients(const gr_op_call *c, int64_t t, const double *g, double *ds, double *sum)
{
  const struct gr_route_params *p = c->params;
  const gr_array *ids = &c->in[1], *dw = &c->in[2];
  int64_t experts = c->in[0].ne[0], used = ids->ne[0];
  bool constant;
  double divisor = gr_route_divisor(p, ids, t, g, experts, &constant), mean = 0;
  for (int64_t i = 0; i < experts; i++) ds[i] = 0;
  for (int64_t i = 0; i < used && (!constant || GR_MUTANT(rule_route_clamp_passes)); i++) {
    int64_t id = gr_route_id(ids, i, t, experts);
    if (id >= 0) mean += g[id] / divisor * gr_array_get(dw, i, t, 0, 0);
  }
  for (int64_t i = 0; i < used; i++) {
    int64_t id = gr_route_id(ids, i, t, experts);
    if (id >= 0) ds[id] = (double)p->scale / divisor * (gr_array_get(dw, i, t, 0, 0) - (GR_MUTANT(rule_route_no_renormalise) ? 0 : mean));
  }
  *sum = 0;
  for (int64_t i = 0; i < experts && constant && !GR_MUTANT(rule_route_no_softmax); i++) *sum += g[i] * ds[i];
}

static void reference(const gr_op_call *c)
{
  const struct gr_route_params *p = c->params;
  const gr_array *logits = &c->in[0], *dl = &c->out[0];
  int64_t experts = logits->ne[0];
  double *g = gr_reference_scratch(c, 2 * experts);
  if (!g) return;
  double *ds = g + experts, sum;
  for (int64_t t = 0; t < logits->ne[1]; t++) {
    gr_route_gates(p, logits, &c->in[1], t, g);
    gate_gradients(c, t, g, ds, &sum);
    for (int64_t i = 0; i < experts; i++) {
      double slope = p->gating == GR_GATE_SIGMOID ? gr_reference_sigmoid(-gr_array_get(logits, i, t, 0, 0)) * ds[i] : ds[i] - sum;
      gr_array_set(dl, i, t, 0, 0, g[i] * slope);
    }
  }
  gr_free(g);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]), chosen = (double)gr_array_count(&c->in[1]);
  *k = (gr_cost){ .flops = 6 * n, .bytes_read = 4 * n + 8 * chosen, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void add(gr_case_sink *s, const gr_case *given, const struct gr_route_params *p, int64_t experts, int64_t n, gr_fill logits)
{
  gr_case c = *given;
  c.params = p;
  c.in[0] = (gr_case_in){ .ne = { experts, n }, .dim = { 0, GR_DIM_TOKENS }, .layout = c.in[0].layout, .fill = logits };
  c.in[1] = (gr_case_in){ .dtype = GR_I32, .ne = { p->used, n }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_distinct(experts) };
  c.in[2] = (gr_case_in){ .ne = { p->used, n }, .dim = { 0, GR_DIM_TOKENS }, .layout = c.in[2].layout, .fill = c.in[2].fill };
  gr_case_add(s, &c);
}

static void refusals(gr_case_sink *s)
{
  static const struct gr_route_params p = { 2, GR_GATE_SOFTMAX, 0, 0, 1 }, four = { 4, GR_GATE_SOFTMAX, 0, 0, 1 },
                                      wrong = { 2, GR_GATE_KINDS, 0, 0, 1 }, nan = { 2, GR_GATE_SIGMOID, 1, NAN, 1 };
  gr_case_in logits = { .ne = { 7, 3 } }, ids = { .dtype = GR_I32, .ne = { 2, 3 }, .fill = GR_FILL_LIST(3, 0, 6, 2, 1, 3) };
  gr_case_in dw = { .ne = { 2, 3 } };
  gr_case_add(s,
              &(gr_case){ .params = &p, .in = { { .ne = { 7, 4 } }, ids, dw }, .refuse = GR_ERR_MISMATCH, .says = "not what route gave" });
  gr_case_add(s, &(gr_case){ .params = &four, .in = { logits, ids, dw }, .refuse = GR_ERR_MISMATCH, .says = "not what route gave" });
  gr_case_add(s,
              &(gr_case){ .params = &p, .in = { logits, ids, { .ne = { 2, 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { logits, dw, dw }, .refuse = GR_ERR_UNSUPPORTED, .says = "ids must be I32" });
  gr_case_add(
      s, &(gr_case){
             .params = &p, .in = { { .ne = { 7, 3 }, .dtype = GR_F16 }, ids, dw }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { logits, ids, dw }, .refuse = GR_ERR_UNSUPPORTED, .says = "no gate" });
  gr_case_add(s, &(gr_case){ .params = &nan, .in = { logits, ids, dw }, .refuse = GR_ERR_NUMERIC, .says = "must be finite" });
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 2.5e-7, .defect = 6.5e-5 };
  struct gr_route_params p;
  for (int i = 0; gr_route_case_get(i, &p); i++) {
    gr_case c = { 0 };
    /* One weight that is divided by itself has no gradient: two numbers that meet but for a rounding. */
    if (p.used == 1 && (p.renormalise || p.gating == GR_GATE_SELECTED))
      c = (gr_case){ .flags = GR_CASE_ZERO, .tolerance = { .norm = 1e-6, .max = 1e-5, .seen = 2.5e-7, .defect = 6.5e-5, .floor = 1 } };
    add(s, &c, &p, 7, 5, (gr_fill){ 0 });
    if (c.flags) continue;
    c.name = "gradients to 1.5e5", c.in[2].fill = gr_fill_normal(4e4);
    add(s, &c, &p, 67, 35, (gr_fill){ 0 });
    /* Where one gate is nearly 1 the truth is a difference that cancels to 1e-16 of the gradient, in double too. */
    c = (gr_case){ .name = "saturated", .tolerance = { .norm = 1e-6, .max = 1e-5, .seen = 2.5e-7, .defect = 6.5e-5, .floor = 1e-9 } };
    add(s, &c, &p, 7, 9, GR_FILL_LIST(15, 12, -10, -18, 0, 17, 9, -15, 4));
    c = (gr_case){ .name = "gates below the clamp" };
    add(s, &c, &p, 9, 3, gr_fill_uniform(-22, -18));
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++) {
      c = (gr_case){ .name = "strided", .in = { { .layout = (gr_layout)a }, { 0 }, { .layout = GR_LAYOUT_ROWS } } };
      add(s, &c, &p, 7, 4, (gr_fill){ 0 });
      c.in[0].layout = GR_LAYOUT_ROWS, c.in[2].layout = (gr_layout)a;
      add(s, &c, &p, 7, 4, (gr_fill){ 0 });
    }
  }
  static const struct gr_route_params eight = { 8, GR_GATE_SOFTMAX, 1, 6.103515625e-5f, 1 };
  add(s, &(gr_case){ .name = "128 experts" }, &eight, 128, 33, (gr_fill){ 0 });
  add(s, &(gr_case){ .flags = GR_CASE_PERF }, &eight, 128, 512, (gr_fill){ 0 });
  refusals(s);
}

gr_tensor *gr_route_back(gr_graph *g, gr_tensor *logits, gr_tensor *ids, gr_tensor *dweights, const struct gr_route_params *p)
{
  return gr_graph_node(g, GR_OP_route_back, (gr_tensor *[]){ logits, ids, dweights }, 3, p);
}

const gr_op gr_op_route_back = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_route_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
