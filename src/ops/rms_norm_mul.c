/* Fused: y = rms_norm(x) * w, x [n, ...] and w [n] F32. Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *x = c->in[0], *w = c->in[1];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "rms_norm_mul", 3, e));
  if (w->ne[0] != x->ne[0] || w->ne[1] != 1 || w->ne[2] != 1 || w->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "rms_norm_mul: %s is not one weight for each channel of %s", gr_tensor_describe(w, a, sizeof a),
                   gr_tensor_describe(x, b, sizeof b));
  gr_infer_like(&c->out[0], x);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_norm_params *p = c->params;
  const gr_array *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y)) {
    double squares = 0;
    for (int64_t i = 0; i < x->ne[0]; i++) squares += gr_row_get(x, i, &r) * gr_row_get(x, i, &r);
    double rho = 1 / sqrt(squares / (double)x->ne[0] + (double)p->eps);
    for (int64_t i = 0; i < x->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(x, i, &r) * rho * gr_array_get(w, i, 0, 0, 0));
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 4 * n, .bytes_read = 4 * (n + (double)c->in[1].ne[0]), .bytes_written = 4 * n };
}

gr_tensor *gr_rms_norm_mul(gr_graph *g, gr_tensor *x, gr_tensor *w, float eps)
{
  struct gr_norm_params p = { .eps = eps };
  return gr_graph_node(g, GR_OP_rms_norm_mul, (gr_tensor *[]){ x, w }, 2, &p);
}

const gr_op gr_op_rms_norm_mul = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .flags = GR_OP_FUSED,
  .params_bytes = sizeof(struct gr_norm_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
};
