/* Elements [first, first + count) of each row of x, seen in place: how one fused product (q, k and v; gate and up) is taken apart.
 * Rows of the view are dense and lie as far apart as those of x. No data moves.
 * Gradient: dx = slice_back. */
#include "base/mutant.h"
#include "ops//cases.h"
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_slice_params *p = c->params;
  const gr_tensor *x = c->in[0];
  gr_infer_out *o = &c->out[0];
  char text[160];
  gr_tensor_describe(x, text, sizeof text);
  if (gr_dtype_is_quant(x->dtype)) return gr_fail(e, GR_ERR_UNSUPPORTED, "slice: %s is stored in blocks and keeps its rows", text);
  if (x->dim[0] != GR_DIM_STATIC) return gr_fail(e, GR_ERR_UNSUPPORTED, "slice: rows of %s vary in length from run to run", text);
  if (p->first < 0 || p->count < 1 || p->first > x->ne[0] || p->count > x->ne[0] - p->first)
    return gr_fail(e, GR_ERR_MISMATCH, "slice: %lld elements from %lld on are not within the rows of %s", (long long)p->count,
                   (long long)p->first, text);
  o->dtype = x->dtype;
  o->view_of = c->in[0];
  o->offset = p->first * x->nb[0];
  gr_infer_like(o, x);
  o->ne[0] = p->count;
  for (int i = 0; i < GR_DIMS; i++) o->nb[i] = x->nb[i];
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  const struct gr_slice_params *p = (const void *)b->node->params;
  if (b->wants[0]) b->din[0] = gr_slice_back(b->graph, b->dout[0], GR_MUTANT(rule_slice_at_0) ? 0 : p->first, b->node->in[0]->ne[0]);
  return GR_OK;
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  static const struct gr_slice_params first = { 0, 5 }, middle = { 5, 7 }, last = { 12, 1 }, all = { 0, 13 }, beyond = { 7, 7 },
                                      before = { -1, 3 }, none = { 3, 0 };
  gr_case_in x = { .ne = { 13, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true };
  gr_case_add(s, &(gr_case){ .name = "from the start", .params = &first, .in = { x } });
  gr_case_add(s, &(gr_case){ .name = "from the middle", .params = &middle, .in = { x } });
  gr_case_add(s, &(gr_case){ .name = "the last element", .params = &last, .in = { x } });
  gr_case_add(s, &(gr_case){ .name = "all", .params = &all, .in = { x } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .params = &middle, .in = { { .ne = { 13, 3, 2 }, .layout = (gr_layout)a, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &beyond, .in = { x }, .refuse = GR_ERR_MISMATCH, .says = "not within the rows" });
  gr_case_add(s, &(gr_case){ .params = &before, .in = { x }, .refuse = GR_ERR_MISMATCH, .says = "not within the rows" });
  gr_case_add(s, &(gr_case){ .params = &none, .in = { x }, .refuse = GR_ERR_MISMATCH, .says = "not within the rows" });
  gr_case_add(
      s, &(gr_case){
             .params = &first, .in = { { .ne = { 64, 2 }, .dtype = GR_Q8_0 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "stored in blocks" });
  gr_case_add(s, &(gr_case){ .params = &first,
                             .in = { { .ne = { 13 }, .dim = { GR_DIM_TOKENS } } },
                             .refuse = GR_ERR_UNSUPPORTED,
                             .says = "from run to run" });
}

gr_tensor *gr_slice(gr_graph *g, gr_tensor *x, int64_t first, int64_t count)
{
  struct gr_slice_params p = { first, count };
  return gr_graph_node(g, GR_OP_slice, &x, 1, &p);
}

const gr_op gr_op_slice = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .flags = GR_OP_VIEW,
  .params_bytes = sizeof(struct gr_slice_params),
  .infer = infer,
  .backward = backward,
  .cases = cases,
};
