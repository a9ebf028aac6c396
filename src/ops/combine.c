/* z[:,t] = sum over slots i of weights[i,t] y[:,i,t], slots in ascending order: y [D,k,n], weights [k,n] -> z [D,n].
 * Gradient: combine_back, which gives both; y is read for that to the weights alone. */
#include "base/alloc.h"
#include "ops/experts.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *y = c->in[0], *weights = c->in[1];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "combine", 3, e));
  bool fits = y->ne[3] == 1 && weights->ne[2] == 1 && weights->ne[3] == 1;
  for (int i = 0; i < 2; i++) fits = fits && weights->ne[i] == y->ne[i + 1] && weights->dim[i] == y->dim[i + 1];
  if (!fits)
    return gr_fail(e, GR_ERR_MISMATCH, "combine: %s needs one weight for each slot and token, not %s", gr_tensor_describe(y, a, sizeof a),
                   gr_tensor_describe(weights, b, sizeof b));
  gr_infer_dim(&c->out[0], 0, y, 0);
  gr_infer_dim(&c->out[0], 1, y, 2);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  gr_tensor *y = b->node->in[0], *weights = b->node->in[1];
  if (!b->wants[0] && !b->wants[1]) return GR_OK;
  gr_tensor *dy = gr_combine_back(b->graph, weights, b->dout[0], b->wants[1] ? y : NULL);
  if (!dy) return GR_OK;
  if (b->wants[0]) b->din[0] = dy;
  if (b->wants[1]) b->din[1] = dy->node->out[1];
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *y = &c->in[0], *weights = &c->in[1], *z = &c->out[0];
  for (int64_t t = 0; t < z->ne[1]; t++)
    for (int64_t d = 0; d < z->ne[0]; d++) {
      double sum = 0;
      for (int64_t i = 0; i < y->ne[1]; i++) sum += gr_array_get(weights, i, t, 0, 0) * gr_array_get(y, d, i, t, 0);
      gr_array_set(z, d, t, 0, 0, sum);
    }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]);
  *k = (gr_cost){ .flops = 2 * n,
                  .bytes_read = 4 * (n + (double)gr_array_count(&c->in[1])),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  static const int64_t sizes[][3] = { { 37, 3, 5 }, { 1, 1, 1 }, { 67, 1, 7 }, { 5, 8, 3 }, { 1030, 2, 3 }, { 64, 10, 1 } };
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 8.2e-8, .defect = 1.3e-5 };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    gr_case_in y = { .ne = { sizes[i][0], sizes[i][1], sizes[i][2] }, .dim = { 0, 0, GR_DIM_TOKENS }, .grad = true };
    gr_case_in weights = { .ne = { sizes[i][1], sizes[i][2] }, .dim = { 0, GR_DIM_TOKENS }, .grad = true };
    gr_case_add(s, &(gr_case){ .in = { y, weights } });
    weights.fill = gr_fill_uniform(0, 1), y.fill = gr_fill_normal(4e4);
    gr_case_add(s, &(gr_case){ .name = "values to 1.5e5", .in = { y, weights } });
  }
  gr_case_in y = { .ne = { 37, 3, 5 }, .grad = true }, weights = { .ne = { 3, 5 }, .grad = true };
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++) {
    y.layout = (gr_layout)a, weights.layout = GR_LAYOUT_ROWS;
    gr_case_add(s, &(gr_case){ .in = { y, weights } });
    weights.layout = (gr_layout)a, y.layout = GR_LAYOUT_ROWS;
    gr_case_add(s, &(gr_case){ .in = { y, weights } });
  }
  gr_case_add(s, &(gr_case){ .name = "a slot without weight",
                             .in = { { .ne = { 9, 2, 3 }, .grad = true }, { .ne = { 2, 3 }, .fill = GR_FILL_LIST(1, 0), .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "tails",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .ne = { 131, 4, 67 }, .dim = { 0, 0, GR_DIM_TOKENS } },
                                     { .ne = { 4, 67 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 2048, 8, 512 } }, { .ne = { 8, 512 } } } });
  weights.layout = y.layout = GR_LAYOUT_DENSE, weights.grad = y.grad = false;
  gr_case_add(s, &(gr_case){ .in = { y, { .ne = { 2, 5 } } }, .refuse = GR_ERR_MISMATCH, .says = "one weight for each slot" });
  gr_case_add(s, &(gr_case){ .in = { y, { .ne = { 3, 5 }, .dim = { 0, GR_DIM_TOKENS } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "one weight for each slot" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 37, 3, 5, 2 } }, weights }, .refuse = GR_ERR_MISMATCH, .says = "one weight for each slot" });
  gr_case_add(s, &(gr_case){ .in = { y, { .ne = { 3, 5 }, .dtype = GR_F16 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_combine(gr_graph *g, gr_tensor *y, gr_tensor *weights)
{
  return gr_graph_node(g, GR_OP_combine, (gr_tensor *[]){ y, weights }, 2, NULL);
}

const gr_op gr_op_combine = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .saves_in = 3,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
