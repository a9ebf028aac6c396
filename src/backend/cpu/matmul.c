/* matmul, out_prod and their fused sums: calls of the product engine. */
#include "backend/cpu/cpu.h"
#include "base/mutant.h"

/* y = W x: x [k,n] has a token a row. */
static gr_cpu_term along(const gr_array *w, const gr_array *x)
{
  return (gr_cpu_term){ .w = w->data,
                        .w_row = w->nb[1],
                        .w_step = w->nb[0],
                        .dtype = w->dtype,
                        .across = false,
                        .x = x->data,
                        .x_row = x->nb[1],
                        .x_step = x->nb[0],
                        .depth = w->ne[0] };
}

/* y[i,j] = sum over t of a[i,t] b[j,t]. */
static gr_cpu_term across(const gr_array *a, const gr_array *b)
{
  gr_array dense = *b;
  gr_strides_contiguous(GR_F32, dense.ne, dense.nb);
  if (b->nb[1] == sizeof(float) && GR_MUTANT(out_prod_swapped_strides)) b = &dense;
  return (gr_cpu_term){ .w = a->data,
                        .w_row = a->nb[1],
                        .w_step = a->nb[0],
                        .dtype = a->dtype,
                        .across = true,
                        .x = b->data,
                        .x_row = GR_MUTANT(out_prod_grad_row_0) ? 0 : b->nb[0],
                        .x_step = b->nb[1],
                        .depth = a->ne[1] };
}

static size_t scratch_of(const gr_op_call *call, int64_t depth, int threads)
{
  return gr_cpu_product_scratch(call->out[0].ne[1], call->out[0].ne[0], depth, 0, true, threads);
}

static gr_cpu_product product_of(gr_cpu_term term, const gr_array *y)
{
  return (gr_cpu_product){
    .term = { term }, .terms = 1, .rows = y->ne[1], .cols = y->ne[0], .y = y->data, .y_row = y->nb[1] / (int64_t)sizeof(float)
  };
}

/* base NULL: nothing. A view that has no dense rows: the sum starts from a copy. */
static void add_to(gr_cpu_product *p, const gr_array *base)
{
  if (base && base->nb[0] == sizeof(float)) {
    p->base = base->data;
    p->base_row = base->nb[1] / (int64_t)sizeof(float);
  } else if (base) {
    for (int64_t r = 0; r < p->rows; r++) gr_cpu_gather(base, (gr_row_at){ r, 0, 0 }, p->y + r * p->y_row);
    p->base = p->y;
    p->base_row = p->y_row;
  }
}

static gr_status run(gr_backend *b, const gr_op_call *call, gr_cpu_term term, bool bf16, const gr_array *base)
{
  term.bf16 = bf16;
  gr_cpu_product p = product_of(term, &call->out[0]);
  add_to(&p, base);
  if (GR_MUTANT(matmul_add_no_base)) p.base = NULL;
  gr_cpu_product_run(&p, gr_cpu_isa_of(b), call->pool, call->scratch);
  return GR_OK;
}

/* The gradient of a factor is a product of two activations over tokens, one of which may look like a large weight: it is not rounded. */
static bool rounds(const gr_array *w, gr_cpu_term t)
{
  return gr_cpu_rounds(w) && !(t.across && w->dtype == GR_F32 && t.x_row == sizeof(float));
}

#define PRODUCT(name, term, w, x, base)                                                                                                    \
  gr_status gr_cpu_run_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                          \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return run(b, call, term(&call->in[w], &call->in[x]), false, base);                                                                    \
  }                                                                                                                                        \
  gr_status gr_cpu_run_bf16_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                     \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return run(b, call, term(&call->in[w], &call->in[x]), true, base);                                                                     \
  }                                                                                                                                        \
  bool gr_cpu_admits_bf16_##name(const gr_op_call *call) { return rounds(&call->in[w], term(&call->in[w], &call->in[x])); }                \
  size_t gr_cpu_scratch_##name(const gr_op_call *call, int threads)                                                                        \
  {                                                                                                                                        \
    return scratch_of(call, term(&call->in[w], &call->in[x]).depth, threads);                                                              \
  }
PRODUCT(matmul, along, 0, 1, NULL)
PRODUCT(matmul_add, along, 1, 2, &call->in[0])
PRODUCT(out_prod, across, 0, 1, NULL)
PRODUCT(out_prod_add, across, 1, 2, &call->in[0])

/* ---- a linear and its adapter ---- */

/* Of matmul or matmul_lora. */
static gr_cpu_linear linear_of(const gr_op_call *call, bool bf16)
{
  const gr_array *x = &call->in[1];
  gr_cpu_linear l = { .p = product_of(along(&call->in[0], x), &call->out[0]), .lowers = call->op == GR_OP_matmul_lora };
  l.p.term[0].bf16 = bf16;
  if (!l.lowers) return l;
  l.low = product_of(along(&call->in[2], x), &call->out[1]);
  l.p.term[l.p.terms++] = along(&call->in[3], &call->out[1]);
  l.scale = ((const struct gr_scale_params *)call->params)->s;
  return l;
}

static gr_status run_lora(gr_backend *b, const gr_op_call *call, bool bf16)
{
  gr_cpu_linear l = linear_of(call, bf16);
  gr_cpu_linears_run(&l, 1, gr_cpu_isa_of(b), call->pool, call->scratch);
  return GR_OK;
}

/* y and h of one depth, that of y's second term being h's rank. */
static size_t lora_scratch(const gr_array *y, const gr_array *h, int64_t depth, int threads)
{
  int64_t rank = h->ne[0];
  return (size_t)gr_cpu_align((int64_t)gr_cpu_product_scratch(h->ne[1], rank, depth, 0, true, threads)) +
         gr_cpu_product_scratch(y->ne[1], y->ne[0], depth, rank, true, threads);
}

size_t gr_cpu_scratch_matmul_lora(const gr_op_call *call, int threads)
{
  return lora_scratch(&call->out[0], &call->out[1], call->in[0].ne[0], threads);
}

GR_CPU_BOTH_PRECISIONS(matmul_lora, run_lora)

gr_status gr_cpu_run_together(gr_backend *b, const gr_kernel_row *const *rows, const gr_op_call *calls, int n, gr_error *e)
{
  gr_cpu_linear l[GR_TOGETHER_MAX];
  (void)e;
  for (int i = 0; i < n; i++) {
    l[i] = linear_of(&calls[i], rows[i]->bf16);
    l[i].scratch = (size_t)gr_cpu_align((int64_t)rows[i]->scratch(&calls[i], gr_pool_threads(calls[i].pool)));
  }
  gr_cpu_linears_run(l, n, gr_cpu_isa_of(b), calls[0].pool, calls[0].scratch);
  return GR_OK;
}

/* The same of the way back: W and B are met across their rows. */
static gr_status run_lora_back(gr_backend *b, const gr_op_call *call, bool bf16)
{
  const gr_array *dx = &call->out[0], *h = &call->out[1], *sum = call->n_in > 4 && call->in[4].ne[0] > 0 ? &call->in[4] : NULL;
  const gr_array dy_t = gr_array_transposed(&call->in[1]), h_t = gr_array_transposed(h);
  gr_cpu_product low = product_of(across(&call->in[3], &dy_t), h), p = product_of(across(&call->in[0], &dy_t), dx);
  p.term[p.terms++] = across(&call->in[2], &h_t);
  p.term[0].bf16 = bf16;
  add_to(&p, sum);
  if (GR_MUTANT(matmul_lora_back_no_sum)) p.base = NULL;
  const struct gr_scale_params *s = call->params;
  gr_cpu_product_run_lora(&p, &low, s->s, gr_cpu_isa_of(b), call->pool, call->scratch);
  return GR_OK;
}

size_t gr_cpu_scratch_matmul_lora_back(const gr_op_call *call, int threads)
{
  const gr_array *dx = &call->out[0], *h = &call->out[1];
  return lora_scratch(dx, h, call->in[0].ne[1], threads);
}

GR_CPU_BOTH_PRECISIONS(matmul_lora_back, run_lora_back)
