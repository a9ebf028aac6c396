/* Fused: dx = g + rms_norm_back(x, dy * w), the gradient through rms_norm(x) * w on top of what x has already: g, x, dy [n, ...], w [n].
 * Made by the fusion pass; the three nodes it replaces are its oracle. */
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

enum { G, X, DY, W };

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *x = c->in[X];
  GR_TRY(gr_infer_need_f32(c, "norm_back_add", 15, e));
  GR_TRY(gr_infer_need_same("norm_back_add", c->in[G], x, e));
  GR_TRY(gr_infer_need_same("norm_back_add", c->in[DY], x, e));
  GR_TRY(gr_infer_need_channels("norm_back_add", c->in[W], x, e));
  gr_infer_like(&c->out[0], x);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_norm_params *p = c->params;
  const gr_array *g = &c->in[G], *x = &c->in[X], *dy = &c->in[DY], *w = &c->in[W], *dx = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, dx); gr_row_next(&r, dx)) {
    double squares = 0, along = 0, n = (double)x->ne[0];
    for (int64_t i = 0; i < x->ne[0]; i++) {
      squares += gr_row_get(x, i, &r) * gr_row_get(x, i, &r);
      along += gr_row_get(x, i, &r) * gr_row_get(dy, i, &r) * gr_array_get(w, i, 0, 0, 0);
    }
    double rho = 1 / sqrt(squares / n + (double)p->eps);
    for (int64_t i = 0; i < x->ne[0]; i++) {
      double dz = gr_row_get(dy, i, &r) * gr_array_get(w, i, 0, 0, 0);
      gr_row_set(dx, i, &r, gr_row_get(g, i, &r) + rho * (dz - gr_row_get(x, i, &r) * along / (squares + n * (double)p->eps)));
    }
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 10 * n, .bytes_read = 4 * (3 * n + (double)c->in[W].ne[0]), .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-7, .defect = 2e-4 };
  struct gr_norm_params p = { 1e-6f };
  gr_case_in x = { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS } };
  gr_case_add(s, &(gr_case){ .params = &p, .in = { x, x, x, { .ne = { 67 } } } });
  x = (gr_case_in){ .ne = { 16, 3, 7 }, .dim = { 0, 0, GR_DIM_TOKENS } };
  gr_case_add(s, &(gr_case){ .name = "heads", .params = &p, .in = { x, x, x, { .ne = { 16 } } } });
  x = (gr_case_in){ .ne = { 16384, 3 }, .fill = gr_fill_uniform(0, 4) };
  gr_case_add(s, &(gr_case){ .params = &p, .in = { x, x, x, { .ne = { 16384 } } } });
  gr_case_in small = { .ne = { 33, 3 }, .fill = gr_fill_normal(1e-3) }, one = { .ne = { 33, 3 } };
  gr_case_add(s, &(gr_case){ .name = "near 0", .params = &p, .in = { one, small, one, { .ne = { 33 } } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++) {
    x = (gr_case_in){ .ne = { 13, 7, 2 }, .layout = (gr_layout)a };
    gr_case_add(s, &(gr_case){ .params = &p, .in = { x, x, x, { .ne = { 13 }, .layout = GR_LAYOUT_OFFSET } } });
  }
  x = (gr_case_in){ .ne = { 2048, 512 } };
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &p, .in = { x, x, x, { .ne = { 2048 } } } });
  x = (gr_case_in){ .ne = { 6, 5 } };
  gr_case_add(
      s, &(gr_case){ .params = &p, .in = { x, x, x, { .ne = { 3 } } }, .refuse = GR_ERR_MISMATCH, .says = "one weight for each channel" });
  gr_case_add(
      s, &(gr_case){
             .params = &p, .in = { { .ne = { 6, 4 } }, x, x, { .ne = { 6 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
}

gr_tensor *gr_norm_back_add(gr_graph *g, gr_tensor *sum, gr_tensor *x, gr_tensor *dy, gr_tensor *w, float eps)
{
  struct gr_norm_params p = { .eps = eps };
  return gr_graph_node(g, GR_OP_norm_back_add, (gr_tensor *[]){ sum, x, dy, w }, 4, &p);
}

const gr_op gr_op_norm_back_add = {
  .inputs_min = 4,
  .inputs_max = 4,
  .outputs = 1,
  .flags = GR_OP_FUSED | GR_OP_ALIAS,
  .params_bytes = sizeof(struct gr_norm_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
