/* y = x / sqrt(mean(x^2) + eps) along dimension 0. Gradient: rms_norm_back. */
#include "ops/cases.h"
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

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-7, .defect = 2e-4 };
  struct gr_norm_params p = { 1e-5f }, none = { 0 }, wrong = { -1e-5f }, nan = { NAN };
  gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s,
              &(gr_case){ .name = "heads", .params = &p, .in = { { .ne = { 16, 3, 7 }, .dim = { 0, 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "one row", .params = &p, .in = { { .ne = { 9 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "no eps", .params = &none, .in = { { .ne = { 33, 3 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "near 0, where eps rules",
                             .params = &p,
                             .in = { { .ne = { 33, 3 }, .fill = gr_fill_normal(1e-3), .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "so small that squares vanish in floats",
                             .flags = GR_CASE_NO_GRAD,
                             .params = &p,
                             .in = { { .ne = { 33, 3 }, .fill = gr_fill_normal(1e-25) } } });
  gr_case_add(s, &(gr_case){ .name = "large", .params = &p, .in = { { .ne = { 67, 3 }, .fill = gr_fill_normal(1.5e5), .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "a row of 0",
                             .flags = GR_CASE_NO_GRAD | GR_CASE_ZERO,
                             .params = &p,
                             .in = { { .ne = { 67, 2 }, .fill = GR_FILL_LIST(0) } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "many directions", .params = &p, .in = { { .ne = { 5120, 2 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &p,
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .ne = { 16384, 9 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(0, 4) } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &p, .in = { { .ne = { 2048, 512 } } } });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { { .ne = { 5 } } }, .refuse = GR_ERR_NUMERIC, .says = "eps" });
  gr_case_add(s, &(gr_case){ .params = &nan, .in = { { .ne = { 5 } } }, .refuse = GR_ERR_NUMERIC, .says = "eps" });
  gr_case_add(s,
              &(gr_case){ .params = &p, .in = { { .dtype = GR_F16, .ne = { 5 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
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
  .cases = cases,
};
