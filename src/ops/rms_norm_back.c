/* Gradient of rms_norm to x, from x and dz = the gradient of its output (B8), along dimension 0 of length n:
 *   dx = (dz + x * (-(x.dz) / (x.x + n eps))) / sqrt(x.x / n + eps)
 * The two sums are in double on the CPU, compensated or two-level on GPUs: n reaches 16384. */
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "rms_norm_back", 3, e));
  GR_TRY(gr_infer_need_same("rms_norm_back", c->in[0], c->in[1], e));
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_norm_params *p = c->params;
  const gr_array *x = &c->in[0], *dz = &c->in[1], *dx = &c->out[0];
  double n = (double)x->ne[0], eps = (double)p->eps;
  for (gr_row r = { 0 }; gr_row_valid(&r, dx); gr_row_next(&r, dx)) {
    double xx = 0, xdz = 0;
    for (int64_t i = 0; i < x->ne[0]; i++) {
      double v = gr_row_get(x, i, &r);
      xx += v * v;
      xdz += v * gr_row_get(dz, i, &r);
    }
    double rho = 1 / sqrt(xx / n + eps), along = xdz == 0 ? 0 : -xdz / (xx + n * eps);
    for (int64_t i = 0; i < x->ne[0]; i++) gr_row_set(dx, i, &r, (gr_row_get(dz, i, &r) + gr_row_get(x, i, &r) * along) * rho);
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 7 * n, .bytes_read = 8 * n, .bytes_written = 4 * n };
}

gr_tensor *gr_rms_norm_back(gr_graph *g, gr_tensor *x, gr_tensor *dz, float eps)
{
  struct gr_norm_params p = { .eps = eps };
  return gr_graph_node(g, GR_OP_rms_norm_back, (gr_tensor *[]){ x, dz }, 2, &p);
}

const gr_op gr_op_rms_norm_back = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_norm_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
};
