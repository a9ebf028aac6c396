/* The gradient of sigmoid: dx = dy s(x) s(-x), with s the sigmoid: no difference, so nothing is lost in the tails. */
#include "base/mutant.h"
#include "ops//cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "sigmoid_back", 3, e));
  GR_TRY(gr_infer_need_same("sigmoid_back", c->in[0], c->in[1], e));
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *dy = &c->in[1], *dx = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, dx); gr_row_next(&r, dx))
    for (int64_t i = 0; i < dx->ne[0]; i++) {
      double v = gr_row_get(x, i, &r);
      gr_row_set(dx, i, &r,
                 gr_row_get(dy, i, &r) * gr_reference_sigmoid(v) * (GR_MUTANT(rule_sigmoid_half) ? 1 : gr_reference_sigmoid(-v)));
    }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 6 * n, .bytes_read = 8 * n, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 2.2e-7, .defect = 2.4e-4 };
  gr_case_in x = { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(-5, 5) }, dy = x;
  dy.fill = gr_fill_normal(1.5e5);
  gr_case_add(s, &(gr_case){ .name = "gradients to 1.5e5", .in = { x, dy } });
  gr_case_add(s, &(gr_case){ .name = "the upper tail", .in = { { .ne = { 33 }, .fill = gr_fill_uniform(15, 60) }, { .ne = { 33 } } } });
  gr_case_add(s, &(gr_case){ .name = "the lower tail", .in = { { .ne = { 33 }, .fill = gr_fill_uniform(-60, -15) }, { .ne = { 33 } } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s,
                &(gr_case){ .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a }, { .ne = { 13, 7, 2 }, .layout = GR_LAYOUT_ROWS } } });
  gr_case_add(s, &(gr_case){ .in = { x, { .ne = { 67, 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
}

gr_tensor *gr_sigmoid_back(gr_graph *g, gr_tensor *x, gr_tensor *dy)
{
  return gr_graph_node(g, GR_OP_sigmoid_back, (gr_tensor *[]){ x, dy }, 2, NULL);
}

const gr_op gr_op_sigmoid_back = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
