/* Gradient of rms_norm to x, from x and dz = the gradient of its output (B8), along dimension 0 of length n:
 *   dx = (dz + x * (-(x.dz) / (x.x + n eps))) / sqrt(x.x / n + eps)
 * The two sums are in double on the CPU, compensated or two-level on GPUs: n reaches 16384. */
#include "base/mutant.h"
#include "ops/cases.h"
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
    double rho = 1 / sqrt(xx / n + eps), along = xdz == 0 || GR_MUTANT(rule_rms_norm_no_mean) ? 0 : -xdz / (xx + n * eps);
    for (int64_t i = 0; i < x->ne[0]; i++) gr_row_set(dx, i, &r, (gr_row_get(dz, i, &r) + gr_row_get(x, i, &r) * along) * rho);
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 7 * n, .bytes_read = 8 * n, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-7, .defect = 2e-4 };
  struct gr_norm_params p = { 1e-5f }, none = { 0 };
  gr_case_in x = { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS } }, large = x;
  large.fill = gr_fill_normal(1.5e5);
  gr_case_add(s, &(gr_case){ .params = &p, .in = { x, x } });
  gr_case_add(s, &(gr_case){ .name = "gradients to 1.5e5", .params = &p, .in = { x, large } });
  gr_case_add(s, &(gr_case){ .name = "large", .params = &p, .in = { large, x } });
  gr_case_add(s, &(gr_case){ .name = "no eps", .params = &none, .in = { x, x } });
  gr_case_add(s, &(gr_case){ .name = "one row", .params = &p, .in = { { .ne = { 9 } }, { .ne = { 9 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "near 0", .params = &p, .in = { { .ne = { 33, 3 }, .fill = gr_fill_normal(1e-3) }, { .ne = { 33, 3 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "a row of 0", .params = &p, .in = { { .ne = { 33, 2 }, .fill = GR_FILL_LIST(0) }, { .ne = { 33, 2 } } } });
  gr_case_add(s, &(gr_case){ .name = "no gradient",
                             .flags = GR_CASE_ZERO,
                             .params = &p,
                             .in = { { .ne = { 33, 2 } }, { .ne = { 33, 2 }, .fill = GR_FILL_LIST(0) } } });
  gr_case_add(s, &(gr_case){ .params = &p,
                             .in = { { .ne = { 5120, 7 }, .fill = gr_fill_uniform(0, 4) },
                                     { .ne = { 5120, 7 }, .fill = gr_fill_uniform(-1, 3) } } });
  gr_case_add(s, &(gr_case){ .params = &p,
                             .in = { { .ne = { 16384, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(0, 4) },
                                     { .ne = { 16384, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(-1, 3) } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s,
                &(gr_case){ .params = &p,
                            .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a }, { .ne = { 13, 7, 2 }, .layout = GR_LAYOUT_ROWS } } });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 13, 7, 2 } }, { .ne = { 13, 7, 2 }, .layout = GR_LAYOUT_TRANSPOSED } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &p, .in = { { .ne = { 2048, 512 } }, { .ne = { 2048, 512 } } } });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { x, { .ne = { 67, 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
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
  .cases = cases,
};
