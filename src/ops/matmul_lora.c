/* Fused: a linear and its adapter, y = W x + B h and h = s A x: w [k,m] of any type, x [k,n], a [k,r], b [r,m] F32; y [m,n] and h [r,n],
 * which the gradient of B reads. Made by the fusion pass; the nodes it replaces (two products, a scale, a fused sum) are its oracle. */
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

#include "base/alloc.h"

enum { W, X, A, B };

static gr_status infer(gr_infer *c, gr_error *e)
{
  char text[160];
  GR_TRY(gr_infer_need_f32(c, "matmul_lora", 1u << X | 1u << A | 1u << B, e));
  gr_infer base = { .n_in = 2, .n_out = 1, .in = (gr_tensor *[]){ c->in[W], c->in[X] }, .out = { c->out[0] } };
  gr_infer low = { .n_in = 2, .n_out = 1, .in = (gr_tensor *[]){ c->in[A], c->in[X] }, .out = { c->out[1] } };
  GR_TRY(gr_op_get(GR_OP_matmul)->infer(&base, e));
  GR_TRY(gr_op_get(GR_OP_matmul)->infer(&low, e));
  const gr_tensor *b = c->in[B];
  if (b->ne[0] != c->in[A]->ne[1] || b->ne[1] != c->in[W]->ne[1] || b->ne[2] != 1 || b->ne[3] != 1 || b->nb[0] != sizeof(float))
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_lora: B %s must be [%lld, %lld], its rows dense", gr_tensor_describe(b, text, sizeof text),
                   (long long)c->in[A]->ne[1], (long long)c->in[W]->ne[1]);
  c->out[0] = base.out[0];
  c->out[1] = low.out[0];
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_scale_params *p = c->params;
  const gr_array *b = &c->in[B], *y = &c->out[0];
  int64_t rank = b->ne[0], n = y->ne[1];
  gr_array low = { .dtype = GR_F64, .ne = { rank, n, 1, 1 } };
  gr_strides_contiguous(GR_F64, low.ne, low.nb);
  if (!(low.data = gr_reference_scratch(c, rank * n))) return;
  gr_op_call product = { .op = GR_OP_matmul, .n_in = 2, .n_out = 1, .in = { c->in[A], c->in[X] }, .out = { low } };
  gr_op_get(GR_OP_matmul)->reference(&product);
  product.in[0] = c->in[W], product.out[0] = *y;
  gr_op_get(GR_OP_matmul)->reference(&product);
  for (int64_t t = 0; t < n; t++)
    for (int64_t r = 0; r < rank; r++) {
      double h = (double)p->s * gr_array_get(&low, r, t, 0, 0);
      gr_array_set(&low, r, t, 0, 0, h);
      gr_array_set(&c->out[1], r, t, 0, 0, h);
    }
  for (int64_t t = 0; t < n; t++)
    for (int64_t j = 0; j < y->ne[0]; j++) {
      double sum = gr_array_get(y, j, t, 0, 0);
      for (int64_t r = 0; r < rank; r++) sum += gr_array_get(b, r, j, 0, 0) * gr_array_get(&low, r, t, 0, 0);
      gr_array_set(y, j, t, 0, 0, sum);
    }
  gr_free(low.data);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[W], *x = &c->in[X], *a = &c->in[A];
  double width = (double)(w->ne[0] + w->ne[1]), rank = (double)a->ne[1], n = (double)x->ne[1];
  *k = (gr_cost){ .flops = 2 * n * (double)(w->ne[0] * w->ne[1]) + 2 * n * rank * width,
                  .bytes_read =
                      (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] + 4 * rank * width + 4 * (double)gr_array_count(x),
                  .bytes_written = 4 * n * ((double)w->ne[1] + rank) };
}

/* ---- cases ---- */

static gr_case case_of(gr_dtype type, int64_t k, int64_t m, int64_t n, int64_t rank, const struct gr_scale_params *p)
{
  return (gr_case){ .params = p,
                    .in = { { .dtype = type, .ne = { k, m } },
                            { .ne = { k, n }, .dim = { 0, GR_DIM_TOKENS } },
                            { .ne = { k, rank } },
                            { .ne = { rank, m } } } };
}

static void cases(gr_case_sink *s)
{
  static const struct gr_scale_params half = { 0.5f }, two = { 2 };
  gr_dtype type;
  gr_case c;
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 1.1e-6, .defect = 2e-4 };
  for (int i = 0; gr_case_weight_type(i, &type); i++) {
    int elems = gr_dtype_get(type)->block_elems;
    int64_t k = elems == 1 ? 67 : elems == 32 ? 96 : 512;
    c = case_of(type, k, 19, 5, 3, &half), gr_case_add(s, &c);
    c = case_of(type, k, 67, 35, 16, &two), c.name = "tails of every tile", gr_case_add(s, &c);
    c = case_of(type, k, 67, 3, 4, &two), c.name = "few tokens", gr_case_add(s, &c);
    c = case_of(type, k, 67, 1, 4, &half), c.name = "one token", gr_case_add(s, &c);
  }
  c = case_of(GR_Q4_1, 576, 192, 150, 16, &two), c.name = "many tokens", gr_case_add(s, &c);
  c = case_of(GR_F32, 600, 520, 33, 70, &half), c.name = "a large rank", gr_case_add(s, &c);
  c = case_of(GR_F32, 1024, 65, 17, 8, &half), c.name = "rows of a page", gr_case_add(s, &c);
  c = case_of(GR_Q8_0, 5120, 40, 20, 8, &half), c.name = "several chunks", gr_case_add(s, &c);
  c = case_of(GR_F32, 67, 33, 9, 5, &half);
  c.in[W].layout = c.in[A].layout = GR_LAYOUT_ROWS, c.in[B].layout = c.in[X].layout = GR_LAYOUT_OFFSET;
  gr_case_add(s, &c);
  c.in[X].layout = GR_LAYOUT_TRANSPOSED, gr_case_add(s, &c);
  c = case_of(GR_Q4_1, 576, 1536, 512, 16, &two), c.flags = GR_CASE_PERF, gr_case_add(s, &c);
  c = case_of(GR_Q4_K, 5120, 5120, 512, 16, &two), c.flags = GR_CASE_PERF, gr_case_add(s, &c);
  c = case_of(GR_F32, 67, 19, 5, 3, &half), c.in[B].ne[0] = 4, c.refuse = GR_ERR_MISMATCH, c.says = "must be [3, 19]", gr_case_add(s, &c);
  c = case_of(GR_F32, 67, 19, 5, 3, &half), c.in[A].ne[0] = 66, c.refuse = GR_ERR_MISMATCH, c.says = "differ in length", gr_case_add(s, &c);
}

gr_tensor *gr_matmul_lora(gr_graph *g, gr_tensor *w, gr_tensor *x, gr_tensor *a, gr_tensor *b, float scale)
{
  struct gr_scale_params p = { scale };
  return gr_graph_node(g, GR_OP_matmul_lora, (gr_tensor *[]){ w, x, a, b }, 4, &p);
}

const gr_op gr_op_matmul_lora = {
  .inputs_min = 4,
  .inputs_max = 4,
  .outputs = 2,
  .flags = GR_OP_FUSED,
  .params_bytes = sizeof(struct gr_scale_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
