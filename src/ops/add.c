/* y = a + b, with b repeated to a's shape (i mod n along each dimension).
 * Gradient: da = dy, db = dy summed over the repeats. */
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "add", 3, e));
  if (!gr_tensor_repeats(c->in[1], c->in[0])) {
    char a[160], b[160];
    return gr_fail(e, GR_ERR_MISMATCH, "add: %s cannot be repeated to the shape of %s", gr_tensor_describe(c->in[1], b, sizeof b),
                   gr_tensor_describe(c->in[0], a, sizeof a));
  }
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  gr_tensor *dy = b->dout[0], *rhs = b->node->in[1];
  if (b->wants[0]) b->din[0] = dy;
  if (b->wants[1]) b->din[1] = gr_shape_equal(rhs->ne, dy->ne) ? dy : gr_repeat_back(b->graph, dy, rhs);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(a, i, &r) + gr_row_get_mod(b, i, &r));
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = n, .bytes_read = 4 * (n + (double)gr_array_count(&c->in[1])), .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 3.9e-8, .defect = 2e-4 };
  gr_case_add(s, &(gr_case){ .name = "same shape", .in = { { .ne = { 5, 7, 3 }, .grad = true }, { .ne = { 5, 7, 3 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "a row for all",
                             .in = { { .ne = { 67, 9 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true }, { .ne = { 67 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "one token", .in = { { .ne = { 33, 1 }, .grad = true }, { .ne = { 33 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "one number for all", .in = { { .ne = { 5, 3 }, .grad = true }, { .ne = { 1 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "repeated along every dimension",
                             .in = { { .ne = { 6, 4, 9, 2 }, .grad = true }, { .ne = { 3, 2, 3, 1 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "one number for each token",
                             .in = { { .ne = { 19, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true },
                                     { .ne = { 1, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(
        s,
        &(gr_case){ .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a, .grad = true },
                            { .ne = { 13, 7 }, .layout = a == GR_LAYOUT_ROWS ? GR_LAYOUT_TRANSPOSED : GR_LAYOUT_ROWS, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "large",
                             .in = { { .ne = { 40, 3 }, .fill = gr_fill_normal(1.5e5), .grad = true },
                                     { .ne = { 40, 3 }, .fill = gr_fill_normal(1.5e5), .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "many rows",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .ne = { 576, 130 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 576 } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 2048, 512 } }, { .ne = { 2048, 512 } } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 6, 2 } }, { .ne = { 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "cannot be repeated" });
  gr_case_add(s, &(gr_case){ .name = "a static row count against tokens",
                             .in = { { .ne = { 6, 2 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 6, 2 } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "cannot be repeated" });
  gr_case_add(
      s,
      &(gr_case){ .in = { { .ne = { 6, 2 } }, { .ne = { 6, 2 }, .dtype = GR_F16 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_add(gr_graph *g, gr_tensor *a, gr_tensor *b) { return gr_graph_node(g, GR_OP_add, (gr_tensor *[]){ a, b }, 2, NULL); }

const gr_op gr_op_add = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .flags = GR_OP_ALIAS,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
