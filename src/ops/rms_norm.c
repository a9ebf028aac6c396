/* y = x / sqrt(mean(x^2) + eps) along dimension 0. Gradient: rms_norm_back. */
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_norm_params *p = c->params;
  GR_TRY(gr_infer_need_f32(c, "rms_norm", 1, e));
  if (!(p->eps >= 0 && isfinite(p->eps))) return gr_fail(e, GR_ERR_NUMERIC, "rms_norm: eps is %g, it must be 0 or more", (double)p->eps);
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  const struct gr_norm_params *p = (const void *)b->node->params;
  if (b->wants[0]) b->din[0] = gr_rms_norm_back(b->graph, b->node->in[0], b->dout[0], p->eps);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_norm_params *p = c->params;
  const gr_array *x = &c->in[0], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y)) {
    double squares = 0;
    for (int64_t i = 0; i < x->ne[0]; i++) squares += gr_row_get(x, i, &r) * gr_row_get(x, i, &r);
    double rho = 1 / sqrt(squares / (double)x->ne[0] + (double)p->eps);
    for (int64_t i = 0; i < x->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(x, i, &r) * rho);
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 3 * n, .bytes_read = 4 * n, .bytes_written = 4 * n };
}

gr_tensor *gr_rms_norm(gr_graph *g, gr_tensor *x, float eps)
{
  struct gr_norm_params p = { .eps = eps };
  return gr_graph_node(g, GR_OP_rms_norm, &x, 1, &p);
}

const gr_op gr_op_rms_norm = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .saves_in = 1,
  .params_bytes = sizeof(struct gr_norm_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
};
