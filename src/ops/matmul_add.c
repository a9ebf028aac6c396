/* Fused: z = y + W x, y of the product's shape. Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/cases.h"
#include "ops/fused.h"

static gr_status infer(gr_infer *c, gr_error *e) { return gr_fused_add_infer(c, GR_OP_matmul_add, GR_OP_matmul, e); }
static void reference(const gr_op_call *c) { gr_fused_add_reference(c, GR_OP_matmul); }
static void cost(const gr_op_call *c, gr_cost *k) { gr_fused_add_cost(c, GR_OP_matmul, k); }

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  gr_dtype type;
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 1e-6, .defect = 2e-4 };
  for (int i = 0; gr_case_weight_type(i, &type); i++) {
    int elems = gr_dtype_get(type)->block_elems;
    int64_t k = elems == 1 ? 67 : elems == 32 ? 96 : 512;
    gr_case_in w = { .dtype = type, .ne = { k, 19 } }, x = { .ne = { k, 5 }, .dim = { 0, GR_DIM_TOKENS } },
               y = { .ne = { 19, 5 }, .dim = { 0, GR_DIM_TOKENS } };
    gr_case_add(s, &(gr_case){ .in = { y, w, x } });
    y.layout = GR_LAYOUT_ROWS, w.layout = GR_LAYOUT_ROWS, x.layout = GR_LAYOUT_OFFSET;
    gr_case_add(s, &(gr_case){ .in = { y, w, x } });
    gr_case_add(s,
                &(gr_case){ .name = "one token", .in = { { .ne = { 67, 1 } }, { .dtype = type, .ne = { k, 67 } }, { .ne = { k, 1 } } } });
  }
  gr_case_add(s, &(gr_case){ .name = "up from rank 16",
                             .in = { { .ne = { 131, 35 }, .dim = { 0, GR_DIM_TOKENS } },
                                     { .ne = { 16, 131 } },
                                     { .ne = { 16, 35 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 5120, 512 } }, { .ne = { 16, 5120 } }, { .ne = { 16, 512 } } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 19, 4 } }, { .ne = { 8, 19 } }, { .ne = { 8, 5 } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "shape of the product" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 19, 5 } }, { .ne = { 9, 19 } }, { .ne = { 8, 5 } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "differ in length" });
}

gr_tensor *gr_matmul_add(gr_graph *g, gr_tensor *y, gr_tensor *w, gr_tensor *x)
{
  return gr_graph_node(g, GR_OP_matmul_add, (gr_tensor *[]){ y, w, x }, 3, NULL);
}

const gr_op gr_op_matmul_add = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_FUSED | GR_OP_ALIAS,
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
