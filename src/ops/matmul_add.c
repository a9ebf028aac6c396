/* Fused: z = y + W x, y of the product's shape. Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/fused.h"

static gr_status infer(gr_infer *c, gr_error *e) { return gr_fused_add_infer(c, GR_OP_matmul_add, GR_OP_matmul, e); }
static void reference(const gr_op_call *c) { gr_fused_add_reference(c, GR_OP_matmul); }
static void cost(const gr_op_call *c, gr_cost *k) { gr_fused_add_cost(c, GR_OP_matmul, k); }

gr_tensor *gr_matmul_add(gr_graph *g, gr_tensor *y, gr_tensor *w, gr_tensor *x)
{
  return gr_graph_node(g, GR_OP_matmul_add, (gr_tensor *[]){ y, w, x }, 3, NULL);
}

const gr_op gr_op_matmul_add = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_FUSED,
  .infer = infer,
  .reference = reference,
  .cost = cost,
};
