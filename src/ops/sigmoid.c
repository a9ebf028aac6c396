/* y = 1 / (1 + exp(-x)). Gradient: sigmoid_back, from x: from y it would be lost where y rounds to 1. */
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "sigmoid", 1, e));
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  if (b->wants[0]) b->din[0] = gr_sigmoid_back(b->graph, b->node->in[0], b->dout[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, gr_reference_sigmoid(gr_row_get(x, i, &r)));
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 4 * n, .bytes_read = 4 * n, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 6.1e-8, .defect = 1.6e-5 };
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(-5, 5), .grad = true } } });
  gr_case_add(s,
              &(gr_case){ .name = "one number for each token", .in = { { .ne = { 1, 35 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "saturated",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .ne = { 8, 3 }, .fill = GR_FILL_LIST(-80, -20, 20, 80, 800, 1e4, 0, 1e-6) } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a, .grad = true } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 8 }, .dtype = GR_F16 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_sigmoid(gr_graph *g, gr_tensor *x) { return gr_graph_node(g, GR_OP_sigmoid, &x, 1, NULL); }

const gr_op gr_op_sigmoid = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .saves_in = 1,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
