/* y = W x: w [k,m], x [k,n] -> y [m,n]; y[j,t] = sum over i of w[i,j] x[i,t]. W may be any float or quantized type.
 * Batch dimensions are refused by name (B5).
 * Gradient: dx[i,t] = sum over j of w[i,j] dy[j,t] = out_prod(w, dy^T); dw = out_prod(x, dy) for an F32 w only: a frozen or
 * quantized weight has no gradient (A5), asking for one is an error in words. */
#include "base/alloc.h"
#include "ops/cases.h"
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
    b->din[0] = gr_out_prod(b->graph, x->nb[0] == 4 ? x : gr_cont(b->graph, x), dy);
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

/* ---- cases ---- */

/* A row length that holds a few blocks of the type and is no multiple of a tile. */
static int64_t odd_width(gr_dtype type)
{
  int elems = gr_dtype_get(type)->block_elems;
  return elems == 1 ? 67 : elems == 32 ? 96 : 512;
}

static void typed_cases(gr_case_sink *s, gr_dtype type)
{
  int64_t k = odd_width(type);
  bool trained = type == GR_F32;
  gr_case_add(s, &(gr_case){ .in = { { .dtype = type, .ne = { k, 7 }, .grad = trained },
                                     { .ne = { k, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(
      s, &(gr_case){ .name = "one token", .in = { { .dtype = type, .ne = { k, 9 }, .grad = trained }, { .ne = { k, 1 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "few tokens",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .dtype = type, .ne = { k, 67 } }, { .ne = { k, 3 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .name = "tails of every tile",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .dtype = type, .ne = { k, 67 } }, { .ne = { k, 35 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_NO_GRAD,
                             .in = { { .dtype = type, .ne = { k, 19 }, .layout = GR_LAYOUT_ROWS },
                                     { .ne = { k, 3 }, .layout = GR_LAYOUT_OFFSET } } });
  if (!trained)
    gr_case_add(s, &(gr_case){ .in = { { .dtype = type, .ne = { k, 7 } }, { .ne = { k, 5 } } },
                               .wants = 1,
                               .refuse = GR_ERR_UNSUPPORTED,
                               .says = "packed and frozen" });
}

static void perf_cases(gr_case_sink *s)
{
  static const struct {
    gr_dtype type;
    int64_t k, m, n;
  } shapes[] = { { GR_Q4_K, 5120, 5120, 512 }, { GR_Q8_0, 5120, 5120, 512 }, { GR_Q6_K, 5120, 5120, 512 }, { GR_Q5_K, 5120, 5120, 512 },
                 { GR_Q4_0, 5120, 5120, 512 }, { GR_Q4_1, 5120, 5120, 512 }, { GR_Q3_K, 5120, 5120, 512 }, { GR_Q2_K, 5120, 5120, 512 },
                 { GR_F16, 5120, 5120, 512 },  { GR_BF16, 5120, 5120, 512 }, { GR_F32, 5120, 5120, 512 },  { GR_Q4_1, 576, 1536, 512 },
                 { GR_Q4_1, 1536, 576, 512 },  { GR_F32, 576, 16, 512 },     { GR_F32, 16, 576, 512 },     { GR_Q4_K, 5120, 5120, 1 },
                 { GR_Q8_0, 5120, 5120, 1 },   { GR_Q4_1, 576, 1536, 1 } };
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    gr_case_add(
        s, &(gr_case){ .flags = GR_CASE_PERF,
                       .in = { { .dtype = shapes[i].type, .ne = { shapes[i].k, shapes[i].m } }, { .ne = { shapes[i].k, shapes[i].n } } } });
}

static void cases(gr_case_sink *s)
{
  gr_dtype type;
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 1.1e-6, .defect = 2e-4 };
  for (int i = 0; gr_case_weight_type(i, &type); i++) typed_cases(s, type);
  gr_case_add(s, &(gr_case){ .name = "large", .flags = GR_CASE_NO_GRAD, .in = { { .ne = { 515, 513 } }, { .ne = { 515, 3 } } } });
  gr_case_add(s, &(gr_case){ .name = "several chunks, of bf16 as it stands",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .dtype = GR_BF16, .ne = { 6002, 19 } }, { .ne = { 6002, 6 } } } });
  gr_case_in w = { .ne = { 67, 7 }, .grad = true }, x = { .ne = { 67, 5 }, .grad = true };
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++) {
    gr_case_in other = x;
    other.layout = (gr_layout)a;
    gr_case_add(s, &(gr_case){ .in = { w, other } });
  }
  gr_case_add(s, &(gr_case){ .name = "a number", .in = { { .ne = { 1, 1 }, .grad = true }, { .ne = { 1, 1 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "rank 16",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .ne = { 16, 576 } }, { .ne = { 16, 33 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .name = "long rows",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .dtype = GR_Q4_K, .ne = { 16384, 9 } }, { .ne = { 16384, 5 } } } });
  gr_case_add(s, &(gr_case){ .name = "large activations",
                             .flags = GR_CASE_NO_GRAD,
                             .in = { { .dtype = GR_Q8_0, .ne = { 96, 9 } }, { .ne = { 96, 5 }, .fill = gr_fill_normal(1.5e5) } } });
  gr_case_add(
      s, &(gr_case){ .name = "many directions", .in = { { .dtype = GR_Q4_K, .ne = { 512, 6 } }, { .ne = { 512, 9 }, .grad = true } } });
  perf_cases(s);
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 64, 7 } }, x }, .refuse = GR_ERR_MISMATCH, .says = "differ in length" });
  gr_case_add(
      s,
      &(gr_case){ .in = { { .ne = { 67, 7, 2 } }, { .ne = { 67, 5, 2 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "no batch dimensions" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 67, 7 }, .layout = GR_LAYOUT_TRANSPOSED }, x },
                             .refuse = GR_ERR_UNSUPPORTED,
                             .says = "must be dense" });
  gr_case_add(s,
              &(gr_case){ .in = { { .dtype = GR_I32, .ne = { 67, 7 } }, x }, .refuse = GR_ERR_UNSUPPORTED, .says = "not a weight type" });
  gr_case_add(s, &(gr_case){ .in = { w, { .dtype = GR_F16, .ne = { 67, 5 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "must be F32" });
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
  .cases = cases,
};
