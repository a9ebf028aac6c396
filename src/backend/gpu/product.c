/* Launches of the dense products. matmul: y [m,n] = W x, W [k,m], x [k,n]. out_prod: y [m,n], a [m,k], b [n,k]. */
#include "backend/gpu/pack.h"
#include "base/mutant.h"
#include "ops/params.h"

enum { TILE = 32 }; /* gk/product.h's */

static bool admits(const gr_op_call *c, gr_dtype dtype, bool add)
{
  const gr_array *w = &c->in[add], *b = &c->in[add + 1], *y = &c->out[0];
  const gr_dtype_info *info = gr_dtype_get(w->dtype);
  if (w->dtype != dtype || w->nb[0] != info->block_bytes || w->nb[1] < 0 || (dtype == GR_F32 && w->nb[1] % (int64_t)sizeof(float)))
    return false;
  for (int d = 2; d < GR_DIMS; d++)
    if (w->ne[d] != 1 || b->ne[d] != 1) return false;
  if (!gr_gpu_plain_f32(b) || !gr_gpu_plain_f32(y) || y->nb[0] != sizeof(float) || (add && !gr_gpu_plain_f32(&c->in[0]))) return false;
  return w->ne[0] <= INT32_MAX && w->ne[1] <= INT32_MAX && gr_gpu_launchable(y);
}

/* transposed: W's rows run along the result (out_prod), so that the sum is over its dimension 1. */
static gr_status run(gr_backend *backend, gr_gpu_kernel k, const gr_op_call *c, bool transposed, bool add, gr_error *e)
{
  const gr_array *w = &c->in[add], *b = &c->in[add + 1], *y = &c->out[0];
  int64_t element = sizeof(float), m_tiles = (y->ne[0] + TILE - 1) / TILE, n_tiles = (y->ne[1] + TILE - 1) / TILE;
  gk_product_args args = { .w_row_bytes = w->nb[1],
                           .b_k_stride = b->nb[transposed] / element,
                           .b_n_stride = b->nb[!transposed] / element,
                           .y_n_stride = y->nb[1] / element,
                           .m = (uint32_t)y->ne[0],
                           .n = (uint32_t)y->ne[1],
                           .k = (uint32_t)w->ne[transposed],
                           .m_tiles = (uint32_t)m_tiles };
  if (add) {
    args.z_m_stride = c->in[0].nb[0] / element;
    args.z_n_stride = c->in[0].nb[1] / element;
  }
  gr_gpu_launch l = gr_gpu_launch_make(k, (uint64_t)(m_tiles * n_tiles), &args, sizeof args);
  if (add) gr_gpu_bind(&l, 0, &c->in[0]);
  gr_gpu_bind(&l, add, w);
  gr_gpu_bind(&l, add + 1, b);
  gr_gpu_bind(&l, add + 2, y);
  return gr_gpu_submit(backend, &l, e);
}

/* ---- a linear and its adapter: three products, the last on top of the first ---- */

enum { LORA_W, LORA_X, LORA_A, LORA_B };

typedef struct lora_calls {
  gr_op_call base, low, up;
} lora_calls;

static lora_calls lora_parts(const gr_op_call *c)
{
  const gr_array *y = &c->out[0], *h = &c->out[1];
  return (lora_calls){ .base = { .n_in = 2, .n_out = 1, .in = { c->in[LORA_W], c->in[LORA_X] }, .out = { *y } },
                       .low = { .n_in = 2, .n_out = 1, .in = { c->in[LORA_A], c->in[LORA_X] }, .out = { *h } },
                       .up = { .n_in = 3, .n_out = 1, .in = { *y, c->in[LORA_B], *h }, .out = { *y } } };
}

static bool admits_lora(const gr_op_call *c, gr_dtype dtype)
{
  lora_calls parts = lora_parts(c);
  return admits(&parts.base, dtype, false) && admits(&parts.low, GR_F32, false) && admits(&parts.up, GR_F32, true);
}

static gr_status run_lora(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, gr_error *e)
{
  lora_calls parts = lora_parts(c);
  float s = GR_MUTANT(emu_matmul_lora_no_scale) ? 1 : ((const struct gr_scale_params *)c->params)->s;
  GR_TRY(run(b, GR_GPU_matmul_f32_f32, &parts.low, false, false, e));
  GR_TRY(gr_gpu_scale(b, &c->out[1], s, &c->out[1], e));
  GR_TRY(run(b, k, &parts.base, false, false, e));
  return run(b, GR_GPU_matmul_add_f32_f32, &parts.up, false, true, e);
}

/* ---- and its gradient: four, the last on top of the one before ---- */

enum { BACK_W, BACK_DY, BACK_A, BACK_B, BACK_SUM };

typedef struct lora_back_calls {
  gr_op_call base, low, up;
  bool add;
} lora_back_calls;

static lora_back_calls lora_back_parts(const gr_op_call *c)
{
  const gr_array *dx = &c->out[0], *h = &c->out[1], dy_t = gr_array_transposed(&c->in[BACK_DY]);
  lora_back_calls parts = { .base = { .n_in = 2, .n_out = 1, .in = { c->in[BACK_W], dy_t }, .out = { *dx } },
                            .low = { .n_in = 2, .n_out = 1, .in = { c->in[BACK_B], dy_t }, .out = { *h } },
                            .up = { .n_in = 3, .n_out = 1, .in = { *dx, c->in[BACK_A], gr_array_transposed(h) }, .out = { *dx } },
                            .add = c->n_in > BACK_SUM && c->in[BACK_SUM].ne[0] > 0 };
  if (parts.add) parts.base = (gr_op_call){ .n_in = 3, .n_out = 1, .in = { c->in[BACK_SUM], c->in[BACK_W], dy_t }, .out = { *dx } };
  return parts;
}

static bool admits_lora_back(const gr_op_call *c, gr_dtype dtype)
{
  lora_back_calls parts = lora_back_parts(c);
  return admits(&parts.base, dtype, parts.add) && admits(&parts.low, GR_F32, false) && admits(&parts.up, GR_F32, true);
}

static gr_status run_lora_back(gr_backend *b, gr_gpu_kernel alone, gr_gpu_kernel added, const gr_op_call *c, gr_error *e)
{
  lora_back_calls parts = lora_back_parts(c);
  float s = GR_MUTANT(emu_matmul_lora_back_no_scale) ? 1 : ((const struct gr_scale_params *)c->params)->s;
  GR_TRY(run(b, GR_GPU_out_prod_f32_f32, &parts.low, true, false, e));
  GR_TRY(gr_gpu_scale(b, &c->out[1], s, &c->out[1], e));
  GR_TRY(run(b, parts.add ? added : alone, &parts.base, true, parts.add, e));
  return run(b, GR_GPU_out_prod_add_f32_f32, &parts.up, true, true, e);
}

#define ROW(op, format, dtype, transposed, add)                                                                                            \
  bool gr_gpu_admits_##op##_##format(const gr_op_call *c) { return admits(c, GR_##dtype, add); }                                           \
  gr_status gr_gpu_run_##op##_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                                    \
  {                                                                                                                                        \
    return run(b, GR_GPU_##op##_##format##_f32, c, transposed, add, e);                                                                    \
  }
#define GK_FORMAT(format, dtype)                                                                                                           \
  ROW(matmul, format, dtype, false, false)                                                                                                 \
  bool gr_gpu_admits_matmul_lora_##format(const gr_op_call *c) { return admits_lora(c, GR_##dtype); }                                      \
  gr_status gr_gpu_run_matmul_lora_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                               \
  {                                                                                                                                        \
    return run_lora(b, GR_GPU_matmul_##format##_f32, c, e);                                                                                \
  }                                                                                                                                        \
  bool gr_gpu_admits_matmul_lora_back_##format(const gr_op_call *c) { return admits_lora_back(c, GR_##dtype); }                            \
  gr_status gr_gpu_run_matmul_lora_back_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                          \
  {                                                                                                                                        \
    return run_lora_back(b, GR_GPU_out_prod_##format##_f32, GR_GPU_out_prod_add_##format##_f32, c, e);                                     \
  }                                                                                                                                        \
  ROW(matmul_add, format, dtype, false, true)                                                                                              \
  ROW(out_prod, format, dtype, true, false)                                                                                                \
  ROW(out_prod_add, format, dtype, true, true)
#include "kernels/formats.def"
