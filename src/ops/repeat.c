/* y[i] = x[i mod n] along each dimension, in the shape of `like`, of which only the shape is read.
 * Gradient: dx = dy summed over the repeats. */
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
};
