/* Fused: z = y + out_prod(a, b), y of the product's shape. Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/cases.h"
#include "ops/fused.h"

static gr_status infer(gr_infer *c, gr_error *e) { return gr_fused_add_infer(c, GR_OP_out_prod_add, GR_OP_out_prod, e); }
static void reference(const gr_op_call *c) { gr_fused_add_reference(c, GR_OP_out_prod); }
static void cost(const gr_op_call *c, gr_cost *k) { gr_fused_add_cost(c, GR_OP_out_prod, k); }

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  gr_dtype type;
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 1.7e-7, .defect = 2e-4 };
  for (int i = 0; gr_case_weight_type(i, &type); i++) {
    int elems = gr_dtype_get(type)->block_elems;
    int64_t k = elems == 1 ? 67 : elems == 32 ? 96 : 512;
    gr_case_in a = { .dtype = type, .ne = { k, 19 } }, b = { .ne = { 5, 19 }, .dim = { GR_DIM_TOKENS }, .layout = GR_LAYOUT_TRANSPOSED },
               y = { .ne = { k, 5 }, .dim = { 0, GR_DIM_TOKENS } };
    gr_case_add(s, &(gr_case){ .in = { y, a, b } });
    b.layout = GR_LAYOUT_DENSE, y.layout = GR_LAYOUT_ROWS, a.layout = GR_LAYOUT_ROWS;
    gr_case_add(s, &(gr_case){ .in = { y, a, b } });
    gr_case_add(s,
                &(gr_case){ .name = "one token", .in = { { .ne = { k, 1 } }, { .dtype = type, .ne = { k, 67 } }, { .ne = { 1, 67 } } } });
  }
  gr_case_add(s, &(gr_case){ .name = "gradients accumulated",
                             .in = { { .ne = { 67, 16 } },
                                     { .ne = { 67, 33 }, .dim = { 0, GR_DIM_TOKENS } },
                                     { .ne = { 16, 33 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_normal(1.5e5) } } });
  gr_case_add(
      s, &(gr_case){ .flags = GR_CASE_PERF,
                     .in = { { .ne = { 5120, 512 } }, { .ne = { 5120, 16 } }, { .ne = { 512, 16 }, .layout = GR_LAYOUT_TRANSPOSED } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 8, 4 } }, { .ne = { 8, 19 } }, { .ne = { 5, 19 } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "shape of the product" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 8, 5 } }, { .ne = { 8, 18 } }, { .ne = { 5, 19 } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "length of the sum" });
}

gr_tensor *gr_out_prod_add(gr_graph *g, gr_tensor *y, gr_tensor *a, gr_tensor *b)
{
  return gr_graph_node(g, GR_OP_out_prod_add, (gr_tensor *[]){ y, a, b }, 3, NULL);
}

const gr_op gr_op_out_prod_add = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_FUSED | GR_OP_ALIAS,
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
