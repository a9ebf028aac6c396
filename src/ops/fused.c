#include "ops/fused.h"

#include "base/alloc.h"

gr_status gr_fused_add_infer(gr_infer *c, gr_op_id fused, gr_op_id op, gr_error *e)
{
  const gr_tensor *y = c->in[0];
  gr_infer inner = { .params = c->params, .n_in = 2, .n_out = 1, .in = c->in + 1 };
  inner.out[0] = c->out[0];
  GR_TRY(gr_op_get(op)->infer(&inner, e));
  char text[160];
  GR_TRY(gr_infer_need_f32(c, gr_op_name(fused), 1, e));
  for (int i = 0; i < GR_DIMS; i++)
    if (y->ne[i] != inner.out[0].ne[i] || y->dim[i] != inner.out[0].dim[i])
      return gr_fail(e, GR_ERR_MISMATCH, "%s: %s has not the shape of the product", gr_op_name(fused),
                     gr_tensor_describe(y, text, sizeof text));
  c->out[0] = inner.out[0];
  return GR_OK;
}

static gr_op_call inner_call(const gr_op_call *c, gr_op_id op)
{
  gr_op_call inner = { .op = op, .params = c->params, .n_in = 2, .n_out = 1, .in = { c->in[1], c->in[2] }, .out = { c->out[0] } };
  return inner;
}

/* The product goes through doubles of its own, so that the sum is rounded once. */
void gr_fused_add_reference(const gr_op_call *c, gr_op_id op)
{
  const gr_array *y = &c->in[0], *z = &c->out[0];
  gr_op_call inner = inner_call(c, op);
  gr_array *product = &inner.out[0];
  product->dtype = GR_F64;
  gr_strides_contiguous(GR_F64, product->ne, product->nb);
  if (!(product->data = gr_reference_scratch(c, gr_array_count(z)))) return;
  gr_op_get(op)->reference(&inner);
  for (gr_row r = { 0 }; gr_row_valid(&r, z); gr_row_next(&r, z))
    for (int64_t i = 0; i < z->ne[0]; i++) gr_row_set(z, i, &r, gr_row_get(product, i, &r) + gr_row_get(y, i, &r));
  gr_free(product->data);
}

void gr_fused_add_cost(const gr_op_call *c, gr_op_id op, gr_cost *k)
{
  gr_op_call inner = inner_call(c, op);
  double n = (double)gr_array_count(&c->out[0]);
  gr_op_get(op)->cost(&inner, k);
  k->flops += n;
  k->bytes_read += 4 * n;
}
