/* y[i] = x[i mod n] along each dimension, in the shape of `like`, of which only the shape is read.
 * Gradient: dx = dy summed over the repeats. */
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "repeat", 1, e));
  if (!gr_tensor_repeats(c->in[0], c->in[1])) {
    char a[160], b[160];
    return gr_fail(e, GR_ERR_MISMATCH, "repeat: %s cannot be repeated to the shape of %s", gr_tensor_describe(c->in[0], a, sizeof a),
                   gr_tensor_describe(c->in[1], b, sizeof b));
  }
  gr_infer_like(&c->out[0], c->in[1]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  if (b->wants[0]) b->din[0] = gr_repeat_back(b->graph, b->dout[0], b->node->in[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get_mod(x, i, &r));
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  *k = (gr_cost){ .bytes_read = 4 * (double)gr_array_count(&c->in[0]), .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-30, .max = 1e-30, .defect = 2e-4 }; /* a copy: exact */
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 5, 1, 3 }, .grad = true }, { .ne = { 5, 4, 3 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "i mod n along every dimension", .in = { { .ne = { 3, 2, 3, 1 }, .grad = true }, { .ne = { 6, 4, 9, 2 } } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 1, 7 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true },
                                     { .ne = { 33, 7 }, .dim = { 0, GR_DIM_TOKENS } } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .in = { { .ne = { 5, 3 }, .layout = (gr_layout)a, .grad = true }, { .ne = { 10, 9, 2 } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 2048, 1 } }, { .ne = { 2048, 512 } } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 5 } }, { .ne = { 12 } } }, .refuse = GR_ERR_MISMATCH, .says = "cannot be repeated" });
  gr_case_add(
      s, &(gr_case){ .in = { { .ne = { 4 }, .dtype = GR_BF16 }, { .ne = { 12 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_repeat(gr_graph *g, gr_tensor *x, gr_tensor *like)
{
  return gr_graph_node(g, GR_OP_repeat, (gr_tensor *[]){ x, like }, 2, NULL);
}

const gr_op gr_op_repeat = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .shapes_in = 2,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
