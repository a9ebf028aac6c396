/* y = W x: w [k,m], x [k,n] -> y [m,n]; y[j,t] = sum over i of w[i,j] x[i,t]. W may be any float or quantized type.
 * Batch dimensions are refused by name (B5).
 * Gradient: dx[i,t] = sum over j of w[i,j] dy[j,t] = out_prod(w, dy^T); dw = out_prod(x, dy) for an F32 w only: a frozen or
 * quantized weight has no gradient (A5), asking for one is an error in words. */
#include "base/alloc.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *w = c->in[0], *x = c->in[1];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "matmul", 2, e));
  gr_dtype_kind kind = gr_dtype_get(w->dtype)->kind;
  if (kind == GR_KIND_INT) return gr_fail(e, GR_ERR_UNSUPPORTED, "matmul: %s is not a weight type", gr_tensor_describe(w, a, sizeof a));
  if (w->ne[0] != x->ne[0] || w->dim[0] != x->dim[0])
    return gr_fail(e, GR_ERR_MISMATCH, "matmul: rows of %s and of %s differ in length", gr_tensor_describe(w, a, sizeof a),
                   gr_tensor_describe(x, b, sizeof b));
  if (w->ne[2] != 1 || w->ne[3] != 1 || x->ne[2] != 1 || x->ne[3] != 1)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "matmul: no batch dimensions, got %s and %s", gr_tensor_describe(w, a, sizeof a),
                   gr_tensor_describe(x, b, sizeof b));
  if (w->nb[0] != gr_dtype_get(w->dtype)->block_bytes)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "matmul: rows of %s must be dense", gr_tensor_describe(w, a, sizeof a));
  gr_infer_dim(&c->out[0], 0, w, 1);
  gr_infer_dim(&c->out[0], 1, x, 1);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  gr_tensor *w = b->node->in[0], *x = b->node->in[1], *dy = b->dout[0];
  if (b->wants[0]) {
    char text[160];
    if (w->dtype != GR_F32)
      return gr_fail(e, GR_ERR_UNSUPPORTED, "matmul: %s is stored packed and frozen: it has no gradient",
                     gr_tensor_describe(w, text, sizeof text));
    b->din[0] = gr_out_prod(b->graph, x, dy);
  }
  if (b->wants[1]) b->din[1] = gr_out_prod(b->graph, w, gr_transpose(b->graph, dy));
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *w = &c->in[0], *x = &c->in[1], *y = &c->out[0];
  double *row = gr_reference_scratch(c, w->ne[0]);
  if (!row) return;
  for (int64_t j = 0; j < w->ne[1]; j++) {
    gr_reference_row(w, j, 0, 0, row);
    for (int64_t t = 0; t < x->ne[1]; t++) {
      double sum = 0;
      for (int64_t i = 0; i < w->ne[0]; i++) sum += row[i] * gr_array_get(x, i, t, 0, 0);
      gr_array_set(y, j, t, 0, 0, sum);
    }
  }
  gr_free(row);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[0], *x = &c->in[1];
  *k = (gr_cost){ .flops = 2.0 * (double)w->ne[0] * (double)w->ne[1] * (double)x->ne[1],
                  .bytes_read = (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] + 4 * (double)gr_array_count(x),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

gr_tensor *gr_matmul(gr_graph *g, gr_tensor *w, gr_tensor *x) { return gr_graph_node(g, GR_OP_matmul, (gr_tensor *[]){ w, x }, 2, NULL); }

const gr_op gr_op_matmul = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .saves_in = 3,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
};
