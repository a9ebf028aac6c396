/* y[i,j] = sum over t of a[i,t] b[j,t]: a [i,t] of any float or quantized type with dense rows, b [j,t] F32 -> y [i,j] (B1).
 *
 * Both halves of a linear layer's backward are this: dx = out_prod(W, dy seen transposed), where t runs over W's rows, each decoded
 * once; dW = out_prod(x, dy), where t runs over tokens. So b comes in two layouts (B2): rows dense (nb[0] is an element), or a
 * transposed view (nb[1] is). t may be very long (B3), and b as large as 1.5e5 (B4): nothing is staged in half. */
#include "base/alloc.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *a = c->in[0], *b = c->in[1];
  char x[160], y[160];
  gr_tensor_describe(a, x, sizeof x);
  gr_tensor_describe(b, y, sizeof y);
  GR_TRY(gr_infer_need_f32(c, "out_prod", 2, e));
  if (gr_dtype_get(a->dtype)->kind == GR_KIND_INT) return gr_fail(e, GR_ERR_UNSUPPORTED, "out_prod: %s is not a weight type", x);
  if (a->ne[1] != b->ne[1] || a->dim[1] != b->dim[1])
    return gr_fail(e, GR_ERR_MISMATCH, "out_prod: %s and %s differ in the length of the sum", x, y);
  if (a->ne[2] != 1 || a->ne[3] != 1 || b->ne[2] != 1 || b->ne[3] != 1)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "out_prod: no batch dimensions, got %s and %s", x, y);
  if (a->nb[0] != gr_dtype_get(a->dtype)->block_bytes) return gr_fail(e, GR_ERR_UNSUPPORTED, "out_prod: rows of %s must be dense", x);
  if (b->nb[0] != 4 && b->nb[1] != 4) return gr_fail(e, GR_ERR_UNSUPPORTED, "out_prod: %s must be dense along dimension 0 or 1", y);
  gr_infer_dim(&c->out[0], 0, a, 0);
  gr_infer_dim(&c->out[0], 1, b, 0);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
  int64_t ni = a->ne[0], nj = b->ne[0];
  double *row = gr_reference_scratch(c, ni * (nj + 1));
  if (!row) return;
  double *sum = row + ni;
  for (int64_t t = 0; t < a->ne[1]; t++) {
    gr_reference_row(a, t, 0, 0, row);
    for (int64_t j = 0; j < nj; j++) {
      double w = gr_array_get(b, j, t, 0, 0);
      for (int64_t i = 0; i < ni; i++) sum[j * ni + i] += row[i] * w;
    }
  }
  for (int64_t j = 0; j < nj; j++)
    for (int64_t i = 0; i < ni; i++) gr_array_set(y, i, j, 0, 0, sum[j * ni + i]);
  gr_free(row);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *a = &c->in[0], *b = &c->in[1];
  *k = (gr_cost){ .flops = 2.0 * (double)a->ne[0] * (double)a->ne[1] * (double)b->ne[0],
                  .bytes_read = (double)gr_row_bytes(a->dtype, a->ne[0]) * (double)a->ne[1] + 4 * (double)gr_array_count(b),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

gr_tensor *gr_out_prod(gr_graph *g, gr_tensor *a, gr_tensor *b)
{
  return gr_graph_node(g, GR_OP_out_prod, (gr_tensor *[]){ a, b }, 2, NULL);
}

const gr_op gr_op_out_prod = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .infer = infer,
  .reference = reference,
  .cost = cost,
};
