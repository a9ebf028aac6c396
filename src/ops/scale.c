/* y = s x, s a constant of the graph. Gradient: dx = s dy. */
#include "base/mutant.h"
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_scale_params *p = c->params;
  GR_TRY(gr_infer_need_f32(c, "scale", 1, e));
  if (!isfinite(p->s)) return gr_fail(e, GR_ERR_NUMERIC, "scale: the factor is %g, it must be finite", (double)p->s);
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  const struct gr_scale_params *p = (const void *)b->node->params;
  if (b->wants[0]) b->din[0] = gr_scale(b->graph, b->dout[0], GR_MUTANT(rule_scale_no_factor) ? 1 : p->s);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_scale_params *p = c->params;
  const gr_array *x = &c->in[0], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, (double)p->s * gr_row_get(x, i, &r));
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = n, .bytes_read = 4 * n, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 3e-8, .defect = 2e-4 };
  struct gr_scale_params third = { -1.0f / 3 }, large = { 1.5e5f }, zero = { 0 }, infinite = { INFINITY };
  gr_case_add(s, &(gr_case){ .params = &third, .in = { { .ne = { 67, 9 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &large, .in = { { .ne = { 5, 3, 2, 2 }, .layout = GR_LAYOUT_ROWS, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &third, .in = { { .ne = { 5, 3 }, .layout = GR_LAYOUT_TRANSPOSED, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &third, .in = { { .ne = { 21, 3 }, .layout = GR_LAYOUT_OFFSET, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "by 0", .flags = GR_CASE_NO_GRAD | GR_CASE_ZERO, .params = &zero, .in = { { .ne = { 5, 3 } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &third, .in = { { .ne = { 2048, 512 } } } });
  gr_case_add(s, &(gr_case){ .params = &infinite, .in = { { .ne = { 5 } } }, .refuse = GR_ERR_NUMERIC, .says = "must be finite" });
  gr_case_add(
      s, &(gr_case){ .params = &third, .in = { { .ne = { 5 }, .dtype = GR_I32 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_scale(gr_graph *g, gr_tensor *x, float s)
{
  struct gr_scale_params p = { .s = s };
  return gr_graph_node(g, GR_OP_scale, &x, 1, &p);
}

const gr_op gr_op_scale = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .flags = GR_OP_ALIAS,
  .params_bytes = sizeof(struct gr_scale_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
