/* Gradients of combine: weights [k,n], dout [D,n] and, for the second, y [D,k,n] -> dy [D,k,n] and dweights [k,n];
 * dy[:,i,t] = weights[i,t] dout[:,t], dweights[i,t] = y[:,i,t] . dout[:,t]. Without y there is only dy. */
#include "base/mutant.h"
#include "ops//experts.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *weights = c->in[0], *dout = c->in[1], *y = c->n_in > 2 ? c->in[2] : NULL;
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "combine_back", 7, e));
  if (weights->ne[1] != dout->ne[1] || weights->dim[1] != dout->dim[1] || weights->ne[2] != 1 || weights->ne[3] != 1 || dout->ne[2] != 1 ||
      dout->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "combine_back: weights %s and %s differ in tokens", gr_tensor_describe(weights, a, sizeof a),
                   gr_tensor_describe(dout, b, sizeof b));
  gr_infer_dim(&c->out[0], 0, dout, 0);
  gr_infer_dim(&c->out[0], 1, weights, 0);
  gr_infer_dim(&c->out[0], 2, weights, 1);
  for (int i = 0; y && i < GR_DIMS; i++)
    if (y->ne[i] != c->out[0].ne[i] || y->dim[i] != c->out[0].dim[i])
      return gr_fail(e, GR_ERR_MISMATCH, "combine_back: %s is not what weights %s combine", gr_tensor_describe(y, a, sizeof a),
                     gr_tensor_describe(weights, b, sizeof b));
  if (y) gr_infer_like(&c->out[1], weights);
  else c->n_out = 1;
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *weights = &c->in[0], *dout = &c->in[1], *y = &c->in[2], *dy = &c->out[0];
  for (int64_t t = 0; t < dy->ne[2]; t++)
    for (int64_t i = 0; i < dy->ne[1]; i++) {
      double w = gr_array_get(weights, i, t, 0, 0), sum = 0;
      for (int64_t d = 0; d < dy->ne[0]; d++) {
        double g = gr_array_get(dout, d, t, 0, 0);
        gr_array_set(dy, d, i, t, 0, GR_MUTANT(rule_combine_no_weight) ? g : w * g);
        if (c->n_out > 1) sum += g * gr_array_get(y, d, GR_MUTANT(rule_combine_slot_0) ? 0 : i, t, 0);
      }
      if (c->n_out > 1) gr_array_set(&c->out[1], i, t, 0, 0, sum);
    }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]), both = c->n_out > 1 ? 1 : 0;
  *k = (gr_cost){ .flops = (1 + 2 * both) * n,
                  .bytes_read = 4 * (both * n + (double)gr_array_count(&c->in[0]) + (double)gr_array_count(&c->in[1])),
                  .bytes_written = 4 * n + 4 * both * (double)gr_array_count(&c->in[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  static const int64_t sizes[][3] = { { 37, 3, 5 }, { 1, 1, 1 }, { 67, 1, 7 }, { 5, 8, 3 }, { 1030, 2, 3 }, { 131, 4, 67 } };
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 6.1e-7, .defect = 1.1e-4 };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    gr_case_in weights = { .ne = { sizes[i][1], sizes[i][2] }, .dim = { 0, GR_DIM_TOKENS } };
    gr_case_in dout = { .ne = { sizes[i][0], sizes[i][2] }, .dim = { 0, GR_DIM_TOKENS } };
    gr_case_in y = { .ne = { sizes[i][0], sizes[i][1], sizes[i][2] }, .dim = { 0, 0, GR_DIM_TOKENS } };
    gr_case_add(s, &(gr_case){ .in = { weights, dout, y } });
    gr_case_add(s, &(gr_case){ .name = "weights not wanted", .in = { weights, dout } });
    dout.fill = gr_fill_normal(4e4);
    gr_case_add(s, &(gr_case){ .name = "gradients to 1.5e5", .in = { weights, dout, y } });
  }
  gr_case_in x[3] = { { .ne = { 3, 5 } }, { .ne = { 37, 5 } }, { .ne = { 37, 3, 5 } } };
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    for (int i = 0; i < 3; i++) {
      gr_case c = { .name = "strided", .in = { x[0], x[1], x[2] } };
      c.in[i].layout = (gr_layout)a, c.in[(i + 1) % 3].layout = GR_LAYOUT_ROWS;
      gr_case_add(s, &c);
    }
  gr_case_add(s, &(gr_case){ .name = "a slot without weight",
                             .in = { { .ne = { 2, 3 }, .fill = GR_FILL_LIST(1, 0) }, { .ne = { 9, 3 } }, { .ne = { 9, 2, 3 } } },
                             .n_zero = 1,
                             .zero = { { .dim = 1, .at = 1 } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 8, 512 } }, { .ne = { 2048, 512 } }, { .ne = { 2048, 8, 512 } } } });
  gr_case_add(s, &(gr_case){ .in = { x[0], { .ne = { 37, 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in tokens" });
  gr_case_add(s, &(gr_case){ .in = { x[0], x[1], { .ne = { 37, 2, 5 } } }, .refuse = GR_ERR_MISMATCH, .says = "is not what weights" });
  gr_case_add(s, &(gr_case){ .in = { x[0], { .ne = { 37, 5 }, .dtype = GR_F16 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
}

gr_tensor *gr_combine_back(gr_graph *g, gr_tensor *weights, gr_tensor *dout, gr_tensor *y)
{
  return gr_graph_node(g, GR_OP_combine_back, (gr_tensor *[]){ weights, dout, y }, y ? 3 : 2, NULL);
}

const gr_op gr_op_combine_back = {
  .inputs_min = 2,
  .inputs_max = 3,
  .outputs = 2,
  .flags = GR_OP_NO_BACKWARD,
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
