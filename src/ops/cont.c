/* y = x in contiguous storage, for inputs that are views. Gradient: dx = dy. */
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "cont", 1, e));
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  if (b->wants[0]) b->din[0] = b->dout[0];
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(x, i, &r));
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double bytes = 4 * (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .bytes_read = bytes, .bytes_written = bytes };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-30, .max = 1e-30, .defect = 2e-4 }; /* a copy: exact */
  for (int a = GR_LAYOUT_DENSE; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .in = { { .ne = { 37, 7, 3, 2 }, .layout = (gr_layout)a, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "tokens along dimension 0",
                             .in = { { .ne = { 9, 67 }, .dim = { GR_DIM_TOKENS }, .layout = GR_LAYOUT_TRANSPOSED } } });
  gr_case_add(s, &(gr_case){ .name = "tokens last", .in = { { .ne = { 67, 9 }, .dim = { 0, GR_DIM_TOKENS }, .layout = GR_LAYOUT_ROWS } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 2048, 512 }, .layout = GR_LAYOUT_TRANSPOSED } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 32 }, .dtype = GR_Q8_0 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_cont(gr_graph *g, gr_tensor *x) { return gr_graph_node(g, GR_OP_cont, &x, 1, NULL); }

const gr_op gr_op_cont = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
