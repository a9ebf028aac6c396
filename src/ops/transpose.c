/* x seen with dimensions 0 and 1 swapped: only strides change.
 * Gradient: dx = dy transposed, made contiguous, since most ops read rows. */
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *x = c->in[0];
  gr_infer_out *o = &c->out[0];
  if (gr_dtype_is_quant(x->dtype)) {
    char text[160];
    return gr_fail(e, GR_ERR_UNSUPPORTED, "transpose: %s is stored in blocks along its rows and cannot be seen transposed",
                   gr_tensor_describe(x, text, sizeof text));
  }
  o->dtype = x->dtype;
  o->view_of = c->in[0];
  for (int i = 0; i < GR_DIMS; i++) {
    int from = i == 0 ? 1 : i == 1 ? 0 : i;
    gr_infer_dim(o, i, x, from);
    o->nb[i] = x->nb[from];
  }
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  if (b->wants[0]) b->din[0] = gr_cont(b->graph, gr_transpose(b->graph, b->dout[0]));
  return GR_OK;
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 5, 7 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 5, 7, 2, 3 }, .layout = GR_LAYOUT_ROWS, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "twice", .in = { { .ne = { 5, 7 }, .layout = GR_LAYOUT_TRANSPOSED, .grad = true } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 256, 2 }, .dtype = GR_Q4_K } }, .refuse = GR_ERR_UNSUPPORTED, .says = "stored in blocks" });
}

gr_tensor *gr_transpose(gr_graph *g, gr_tensor *x) { return gr_graph_node(g, GR_OP_transpose, &x, 1, NULL); }

const gr_op gr_op_transpose = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .flags = GR_OP_VIEW,
  .infer = infer,
  .backward = backward,
  .cases = cases,
};
