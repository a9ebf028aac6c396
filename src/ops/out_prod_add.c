/* Fused: z = y + out_prod(a, b), y of the product's shape. Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/fused.h"

static gr_status infer(gr_infer *c, gr_error *e) { return gr_fused_add_infer(c, GR_OP_out_prod_add, GR_OP_out_prod, e); }
static void reference(const gr_op_call *c) { gr_fused_add_reference(c, GR_OP_out_prod); }
static void cost(const gr_op_call *c, gr_cost *k) { gr_fused_add_cost(c, GR_OP_out_prod, k); }

gr_tensor *gr_out_prod_add(gr_graph *g, gr_tensor *y, gr_tensor *a, gr_tensor *b)
{
  return gr_graph_node(g, GR_OP_out_prod_add, (gr_tensor *[]){ y, a, b }, 3, NULL);
}

const gr_op gr_op_out_prod_add = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_FUSED,
  .infer = infer,
  .reference = reference,
  .cost = cost,
};
