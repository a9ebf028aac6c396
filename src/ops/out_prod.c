/* y[i,j] = sum over t of a[i,t] b[j,t]: a [i,t] of any float or quantized type with dense rows, b [j,t] F32 -> y [i,j] (B1).
 *
 * Both halves of a linear layer's backward are this: dx = out_prod(W, dy seen transposed), where t runs over W's rows, each decoded
 * once; dW = out_prod(x, dy), where t runs over tokens. So b comes in two layouts (B2): rows dense (nb[0] is an element), or a
 * transposed view (nb[1] is). t may be very long (B3), and b as large as 1.5e5 (B4): nothing is staged in half. */
#include "base/alloc.h"
#include "base/mutant.h"
#include "ops/cases.h"
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
      double w = gr_array_get(b, GR_MUTANT(rule_matmul_grad_row_0) ? 0 : j, t, 0, 0);
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

/* ---- cases ---- */

/* Both layouts of b (B2), for one type of a. Gradients reach 1.5e5, beyond half (B4). */
static void typed_cases(gr_case_sink *s, gr_dtype type)
{
  int elems = gr_dtype_get(type)->block_elems;
  int64_t i = elems == 1 ? 67 : elems == 32 ? 96 : 512;
  for (int a = GR_LAYOUT_DENSE; a <= GR_LAYOUT_TRANSPOSED; a += GR_LAYOUT_TRANSPOSED) {
    gr_layout layout = (gr_layout)a;
    gr_case_add(s, &(gr_case){ .name = "gradients to 1.5e5",
                               .in = { { .dtype = type, .ne = { i, 7 } },
                                       { .ne = { 5, 7 }, .dim = { GR_DIM_TOKENS }, .layout = layout, .fill = gr_fill_normal(4e4) } } });
    gr_case_add(s, &(gr_case){ .name = "one token", .in = { { .dtype = type, .ne = { i, 9 } }, { .ne = { 1, 9 }, .layout = layout } } });
    gr_case_add(s, &(gr_case){ .name = "one row", .in = { { .dtype = type, .ne = { i, 1 } }, { .ne = { 6, 1 }, .layout = layout } } });
    gr_case_add(
        s, &(gr_case){ .name = "tails of every tile",
                       .in = { { .dtype = type, .ne = { i, 131 }, .layout = GR_LAYOUT_ROWS }, { .ne = { 35, 131 }, .layout = layout } } });
  }
}

/* Long sums (B3): sums of so many floats are honest to about 1e-5, losing one tile of 32 rows is 7e-3. */
static void long_cases(gr_case_sink *s, int64_t t, unsigned flags)
{
  gr_tolerance tolerance = { .norm = 1e-4, .max = 1e-3, .seen = 2e-5, .defect = 2e-4 };
  for (int a = GR_LAYOUT_DENSE; a <= GR_LAYOUT_TRANSPOSED; a += GR_LAYOUT_TRANSPOSED) {
    gr_case_in b = { .ne = { 3, t }, .layout = (gr_layout)a };
    gr_case_add(s,
                &(gr_case){ .name = "long", .flags = flags, .tolerance = tolerance, .in = { { .dtype = GR_Q4_K, .ne = { 256, t } }, b } });
    gr_case_add(s,
                &(gr_case){ .name = "long", .flags = flags, .tolerance = tolerance, .in = { { .dtype = GR_Q8_0, .ne = { 32, t } }, b } });
  }
}

static void perf_cases(gr_case_sink *s)
{
  static const struct {
    gr_dtype type;
    int64_t i, t, j;
    gr_layout layout;
  } shapes[] = { { GR_Q4_K, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED }, { GR_Q8_0, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },
                 { GR_Q6_K, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED }, { GR_Q5_K, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },
                 { GR_Q4_0, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED }, { GR_Q4_1, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },
                 { GR_Q3_K, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED }, { GR_Q2_K, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },
                 { GR_F16, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },  { GR_BF16, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },
                 { GR_F32, 5120, 5120, 512, GR_LAYOUT_TRANSPOSED },  { GR_Q4_1, 576, 1536, 512, GR_LAYOUT_TRANSPOSED },
                 { GR_Q4_1, 1536, 576, 512, GR_LAYOUT_TRANSPOSED },  { GR_F32, 5120, 512, 16, GR_LAYOUT_DENSE },
                 { GR_F32, 16, 512, 5120, GR_LAYOUT_DENSE },         { GR_F32, 576, 512, 16, GR_LAYOUT_DENSE } };
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF,
                               .in = { { .dtype = shapes[i].type, .ne = { shapes[i].i, shapes[i].t } },
                                       { .ne = { shapes[i].j, shapes[i].t }, .layout = shapes[i].layout } } });
}

static void cases(gr_case_sink *s)
{
  gr_dtype type;
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 1e-6, .defect = 2e-4 };
  for (int i = 0; gr_case_weight_type(i, &type); i++) typed_cases(s, type);
  long_cases(s, 5000, 0);
  long_cases(s, 600000, GR_CASE_FULL);
  gr_case_add(s,
              &(gr_case){ .name = "dA: a sum over tokens",
                          .in = { { .ne = { 67, 33 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 16, 33 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s,
              &(gr_case){ .name = "dB: a sum over tokens",
                          .in = { { .ne = { 16, 33 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 67, 33 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .name = "rows apart",
                             .in = { { .ne = { 67, 9 }, .layout = GR_LAYOUT_OFFSET }, { .ne = { 5, 9 }, .layout = GR_LAYOUT_ROWS } } });
  gr_case_add(s, &(gr_case){ .name = "large", .in = { { .ne = { 513, 515 } }, { .ne = { 3, 515 }, .layout = GR_LAYOUT_TRANSPOSED } } });
  perf_cases(s);
  gr_case_in a = { .ne = { 64, 7 } }, b = { .ne = { 5, 7 } };
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 64, 8 } }, b }, .refuse = GR_ERR_MISMATCH, .says = "length of the sum" });
  gr_case_add(
      s,
      &(gr_case){ .in = { { .ne = { 64, 7, 2 } }, { .ne = { 5, 7, 2 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "no batch dimensions" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 64, 7 }, .layout = GR_LAYOUT_TRANSPOSED }, b },
                             .refuse = GR_ERR_UNSUPPORTED,
                             .says = "must be dense" });
  gr_case_add(s,
              &(gr_case){ .in = { { .dtype = GR_I32, .ne = { 64, 7 } }, b }, .refuse = GR_ERR_UNSUPPORTED, .says = "not a weight type" });
  gr_case_add(s, &(gr_case){ .in = { a, { .dtype = GR_BF16, .ne = { 5, 7 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
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
  .cases = cases,
};
