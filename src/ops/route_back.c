/* The gradient of route's weights to the logits: logits [E,n], ids [k,n] I32, dweights [k,n] -> dlogits [E,n]. With s the chosen gates
 * and D what they are divided by (gr_route_params): ds_i = scale/D (dw_i - sum over j of dw_j s_j / D), the sum only where D is the sum of
 * s itself, not a clamp and not 1. Then, x over the experts: SOFTMAX dl_x = g_x (ds_x - sum g ds), SIGMOID g_x (1 - g_x) ds_x, and SELECTED
 * as SOFTMAX over the chosen ones; ds is 0 where an expert was not chosen. Ids outside [0,E) count for nothing. */
#include "base/alloc.h"
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

static void reference(const gr_op_call *c)
{
  const struct gr_route_params *p = c->params;
  const gr_array *logits = &c->in[0], *ids = &c->in[1], *dw = &c->in[2], *dl = &c->out[0];
  int64_t experts = logits->ne[0], used = ids->ne[0];
  double *g = gr_reference_scratch(c, 2 * experts);
  if (!g) return;
  double *ds = g + experts;
  for (int64_t t = 0; t < logits->ne[1]; t++) {
    bool constant;
    gr_route_gates(p, logits, ids, t, g);
    double divisor = gr_route_divisor(p, ids, t, g, experts, &constant), mean = 0, dot = 0;
    for (int64_t i = 0; i < experts; i++) ds[i] = 0;
    for (int64_t i = 0; i < used && !constant; i++) {
      int64_t id = gr_route_id(ids, i, t, experts);
      if (id >= 0) mean += gr_array_get(dw, i, t, 0, 0) * g[id] / divisor;
    }
    for (int64_t i = 0; i < used; i++) {
      int64_t id = gr_route_id(ids, i, t, experts);
      if (id >= 0) ds[id] = (double)p->scale / divisor * (gr_array_get(dw, i, t, 0, 0) - mean);
    }
    for (int64_t i = 0; i < experts; i++) dot += g[i] * ds[i];
    for (int64_t i = 0; i < experts; i++)
      gr_array_set(dl, i, t, 0, 0, p->gating == GR_GATE_SIGMOID ? g[i] * (1 - g[i]) * ds[i] : g[i] * (ds[i] - dot));
  }
  gr_free(g);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]), chosen = (double)gr_array_count(&c->in[1]);
  *k = (gr_cost){ .flops = 6 * n, .bytes_read = 4 * n + 8 * chosen, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-7, .defect = 2e-4 };
  static const struct gr_route_params p[] = { { 2, GR_GATE_SOFTMAX, 1, 6.103515625e-5f, 1 },
                                              { 2, GR_GATE_SIGMOID, 1, 0, 2.5f },
                                              { 2, GR_GATE_SELECTED, 0, 0, 1 } };
  gr_case_in logits = { .ne = { 7, 3 }, .dim = { 0, GR_DIM_TOKENS } }, dw = { .ne = { 2, 3 }, .dim = { 0, GR_DIM_TOKENS } };
  gr_case_in ids = { .dtype = GR_I32, .ne = { 2, 3 }, .dim = { 0, GR_DIM_TOKENS }, .fill = GR_FILL_LIST(3, 0, 6, 2, 1, 3) };
  for (int i = 0; i < 3; i++) gr_case_add(s, &(gr_case){ .params = &p[i], .in = { logits, ids, dw } });
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
