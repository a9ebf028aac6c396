/* The adjoint of slice: rows of `count` zeros with the rows of dy placed at element `first`.
 * Gradient: ddy = that part of the gradient, seen in place. */
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_slice_params *p = c->params;
  const gr_tensor *dy = c->in[0];
  char text[160];
  GR_TRY(gr_infer_need_f32(c, "slice_back", 1, e));
  if (dy->dim[0] != GR_DIM_STATIC || p->first < 0 || p->count < p->first || dy->ne[0] > p->count - p->first)
    return gr_fail(e, GR_ERR_MISMATCH, "slice_back: %s does not fit at element %lld of rows of %lld",
                   gr_tensor_describe(dy, text, sizeof text), (long long)p->first, (long long)p->count);
  gr_infer_like(&c->out[0], dy);
  c->out[0].ne[0] = p->count;
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  const struct gr_slice_params *p = (const void *)b->node->params;
  if (b->wants[0]) b->din[0] = gr_slice(b->graph, b->dout[0], p->first, b->node->in[0]->ne[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_slice_params *p = c->params;
  const gr_array *dy = &c->in[0], *dx = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, dx); gr_row_next(&r, dx))
    for (int64_t i = 0; i < dx->ne[0]; i++)
      gr_row_set(dx, i, &r, i >= p->first && i - p->first < dy->ne[0] ? gr_row_get(dy, i - p->first, &r) : 0);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  *k = (gr_cost){ .bytes_read = 4 * (double)gr_array_count(&c->in[0]), .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-30, .max = 1e-30, .defect = 1e-4 }; /* copies: exact */
  static const struct gr_slice_params first = { 0, 13 }, middle = { 5, 13 }, last = { 8, 13 }, all = { 0, 5 }, beyond = { 9, 13 },
                                      before = { -1, 13 };
  gr_case_in dy = { .ne = { 5, 7 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true };
  gr_case_add(s, &(gr_case){ .name = "at the start", .params = &first, .in = { dy } });
  gr_case_add(s, &(gr_case){ .name = "in the middle", .params = &middle, .in = { dy } });
  gr_case_add(s, &(gr_case){ .name = "at the end", .params = &last, .in = { dy } });
  gr_case_add(s, &(gr_case){ .name = "all", .params = &all, .in = { dy } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .params = &middle, .in = { { .ne = { 5, 3, 2 }, .layout = (gr_layout)a, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &beyond, .in = { dy }, .refuse = GR_ERR_MISMATCH, .says = "does not fit" });
  gr_case_add(s, &(gr_case){ .params = &before, .in = { dy }, .refuse = GR_ERR_MISMATCH, .says = "does not fit" });
}

gr_tensor *gr_slice_back(gr_graph *g, gr_tensor *dy, int64_t first, int64_t count)
{
  struct gr_slice_params p = { first, count };
  return gr_graph_node(g, GR_OP_slice_back, &dy, 1, &p);
}

const gr_op gr_op_slice_back = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .params_bytes = sizeof(struct gr_slice_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
