/* Fused: the gradient of a linear and its adapter to x, dx = (sum +) W^T dy + A^T h and h = s B^T dy: w [k,m] of any type, dy [m,n], a
 * [k,r], b [r,m], and sum [k,n] or NULL, what x has of gradient already; dx [k,n] and h [r,n], which the gradient of A reads. Made by the
 * fusion pass; the nodes it replaces (three products, a scale, up to two sums) are its oracle. */
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

#include "base/alloc.h"

enum { W, DY, A, B, SUM };

static gr_status infer(gr_infer *c, gr_error *e)
{
  char one[160], two[160];
  GR_TRY(gr_infer_need_f32(c, "matmul_lora_back", 1u << DY | 1u << A | 1u << B | 1u << SUM, e));
  const gr_tensor *w = c->in[W], *dy = c->in[DY], *a = c->in[A], *b = c->in[B], *sum = c->n_in > SUM ? c->in[SUM] : NULL;
  if (gr_dtype_get(w->dtype)->kind == GR_KIND_INT || w->nb[0] != gr_dtype_get(w->dtype)->block_bytes)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "matmul_lora_back: %s must be a weight with dense rows", gr_tensor_describe(w, one, sizeof one));
  if (w->ne[1] != dy->ne[0] || w->ne[2] * w->ne[3] * dy->ne[2] * dy->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_lora_back: %s does not give rows of %s", gr_tensor_describe(w, one, sizeof one),
                   gr_tensor_describe(dy, two, sizeof two));
  if (a->ne[0] != w->ne[0] || a->nb[0] != sizeof(float) || a->ne[2] * a->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_lora_back: A %s must have rows of %lld, dense", gr_tensor_describe(a, one, sizeof one),
                   (long long)w->ne[0]);
  if (b->ne[0] != a->ne[1] || b->ne[1] != w->ne[1] || b->ne[2] * b->ne[3] != 1 || b->nb[0] != sizeof(float))
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_lora_back: B %s must be [%lld, %lld], its rows dense",
                   gr_tensor_describe(b, one, sizeof one), (long long)a->ne[1], (long long)w->ne[1]);
  gr_infer_dim(&c->out[0], 0, w, 0);
  gr_infer_dim(&c->out[0], 1, dy, 1);
  gr_infer_dim(&c->out[1], 0, a, 1);
  gr_infer_dim(&c->out[1], 1, dy, 1);
  for (int i = 0; sum && i < GR_DIMS; i++)
    if (sum->ne[i] != c->out[0].ne[i] || sum->dim[i] != c->out[0].dim[i])
      return gr_fail(e, GR_ERR_MISMATCH, "matmul_lora_back: %s has not the shape of the gradient",
                     gr_tensor_describe(sum, one, sizeof one));
  return GR_OK;
}

/* y[i, t] += s times the sum over j of w[i, j] x[j, t]; y is dense, in double. */
static bool add_product(const gr_op_call *c, const gr_array *w, const gr_array *x, double s, double *y)
{
  double *row = gr_reference_scratch(c, w->ne[0]);
  if (!row) return false;
  for (int64_t j = 0; j < w->ne[1]; j++) {
    gr_reference_row(w, j, 0, 0, row);
    for (int64_t t = 0; t < x->ne[1]; t++) {
      double v = s * gr_array_get(x, j, t, 0, 0);
      for (int64_t i = 0; i < w->ne[0]; i++) y[t * w->ne[0] + i] += row[i] * v;
    }
  }
  gr_free(row);
  return true;
}

static void reference(const gr_op_call *c)
{
  const struct gr_scale_params *p = c->params;
  const gr_array *dx = &c->out[0], *sum = &c->in[SUM];
  int64_t rank = c->in[A].ne[1], k = dx->ne[0], n = dx->ne[1];
  double *y = gr_reference_scratch(c, (k + rank) * n), *h = y ? y + k * n : NULL;
  if (!y) return;
  gr_array low = { .dtype = GR_F64, .data = h, .ne = { rank, n, 1, 1 } };
  gr_strides_contiguous(GR_F64, low.ne, low.nb);
  if (add_product(c, &c->in[B], &c->in[DY], (double)p->s, h) && add_product(c, &c->in[W], &c->in[DY], 1, y) &&
      add_product(c, &c->in[A], &low, 1, y))
    for (int64_t t = 0; t < n; t++) {
      for (int64_t r = 0; r < rank; r++) gr_array_set(&c->out[1], r, t, 0, 0, h[t * rank + r]);
      for (int64_t i = 0; i < k; i++)
        gr_array_set(dx, i, t, 0, 0, y[t * k + i] + (c->n_in > SUM && sum->ne[0] ? gr_array_get(sum, i, t, 0, 0) : 0));
    }
  gr_free(y);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[W], *dy = &c->in[DY];
  double width = (double)(w->ne[0] + w->ne[1]), rank = (double)c->in[A].ne[1], n = (double)dy->ne[1];
  double added = c->n_in > SUM && c->in[SUM].ne[0] ? n * (double)w->ne[0] : 0;
  *k = (gr_cost){ .flops = 2 * n * (double)(w->ne[0] * w->ne[1]) + 2 * n * rank * width + added,
                  .bytes_read = (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] + 4 * rank * width +
                                4 * (double)gr_array_count(dy) + 4 * added,
                  .bytes_written = 4 * n * ((double)w->ne[0] + rank) };
}

/* ---- cases ---- */

static gr_case case_of(gr_dtype type, int64_t k, int64_t m, int64_t n, int64_t rank, bool sum, const struct gr_scale_params *p)
{
  gr_case c = { .params = p,
                .in = { { .dtype = type, .ne = { k, m } },
                        { .ne = { m, n }, .dim = { 0, GR_DIM_TOKENS } },
                        { .ne = { k, rank } },
                        { .ne = { rank, m } } } };
  if (sum) c.in[SUM] = (gr_case_in){ .ne = { k, n }, .dim = { 0, GR_DIM_TOKENS } };
  return c;
}

static void refused(gr_case_sink *s, const struct gr_scale_params *p)
{
  gr_case c = case_of(GR_F32, 67, 19, 5, 3, true, p);
  c.refuse = GR_ERR_MISMATCH;
  c.in[B].ne[0] = 4, c.says = "must be [3, 19]", gr_case_add(s, &c);
  c.in[B].ne[0] = 3, c.in[A].ne[0] = 66, c.says = "must have rows of 67", gr_case_add(s, &c);
  c.in[A].ne[0] = 67, c.in[SUM].ne[0] = 66, c.says = "shape of the gradient", gr_case_add(s, &c);
  c.in[SUM].ne[0] = 67, c.in[DY].ne[0] = 18, c.says = "does not give rows", gr_case_add(s, &c);
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
    c = case_of(type, k, 19, 5, 3, true, &half), gr_case_add(s, &c);
    c = case_of(type, k, 131, 35, 16, false, &two), c.name = "tails of every tile", gr_case_add(s, &c);
    c = case_of(type, k, 67, 1, 4, true, &half), c.name = "one token", gr_case_add(s, &c);
  }
  c = case_of(GR_Q4_1, 576, 192, 150, 16, true, &two), c.name = "many tokens", gr_case_add(s, &c);
  c = case_of(GR_F32, 520, 600, 33, 70, false, &half), c.name = "a large rank", gr_case_add(s, &c);
  c = case_of(GR_F32, 65, 1024, 17, 8, true, &half), c.name = "rows of a page", gr_case_add(s, &c);
  c = case_of(GR_Q8_0, 32, 2600, 20, 8, true, &half), c.name = "several chunks", gr_case_add(s, &c);
  c = case_of(GR_F32, 67, 33, 9, 5, true, &half);
  c.in[W].layout = c.in[A].layout = GR_LAYOUT_ROWS, c.in[B].layout = c.in[DY].layout = c.in[SUM].layout = GR_LAYOUT_OFFSET;
  gr_case_add(s, &c);
  c.in[DY].layout = c.in[SUM].layout = GR_LAYOUT_TRANSPOSED, gr_case_add(s, &c);
  c = case_of(GR_Q4_1, 576, 1536, 512, 16, true, &two), c.flags = GR_CASE_PERF, gr_case_add(s, &c);
  c = case_of(GR_Q4_K, 5120, 5120, 512, 16, false, &two), c.flags = GR_CASE_PERF, gr_case_add(s, &c);
  refused(s, &half);
}

gr_tensor *gr_matmul_lora_back(gr_graph *g, gr_tensor *w, gr_tensor *dy, gr_tensor *a, gr_tensor *b, gr_tensor *sum, float scale)
{
  struct gr_scale_params p = { scale };
  return gr_graph_node(g, GR_OP_matmul_lora_back, (gr_tensor *[]){ w, dy, a, b, sum }, sum ? 5 : 4, &p);
}

const gr_op gr_op_matmul_lora_back = {
  .inputs_min = 4,
  .inputs_max = 5,
  .outputs = 2,
  .flags = GR_OP_FUSED | GR_OP_ALIAS_LAST,
  .params_bytes = sizeof(struct gr_scale_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
