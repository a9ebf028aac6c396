/* Launches of ops that are told by integers: get_rows and its adjoint, store_rows (ids), dropout (keys). */
#include "backend/gpu/pack.h"
#include "ops/dropout.h"
#include "ops/params.h"

static void id_strides(const gr_array *ids, int64_t stride[3])
{
  for (int i = 0; i < 3; i++) stride[i] = ids->nb[i] / (int64_t)sizeof(int32_t);
}

/* y's rows, of so many pieces each. */
static void walk_rows(const gr_array *y, int64_t pieces, uint32_t walk[GR_DIMS])
{
  gr_gpu_shape(y, walk);
  walk[0] = (uint32_t)pieces;
}

/* ---- get_rows ---- */

static bool admits_rows(const gr_op_call *c, gr_dtype dtype)
{
  const gr_array *table = &c->in[0];
  const gr_dtype_info *info = gr_dtype_get(dtype);
  if (table->dtype != dtype || table->nb[0] != info->block_bytes || (info->block_elems == 1 && table->nb[1] % info->block_bytes))
    return false;
  for (int i = 0; i < GR_DIMS; i++)
    if (table->nb[i] < 0 || table->ne[i] > INT32_MAX) return false;
  return gr_gpu_plain_i32(&c->in[1]) && gr_gpu_plain_f32(&c->out[0]) && gr_gpu_launchable(&c->out[0]);
}

static gr_status run_rows(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, gr_error *e)
{
  const gr_array *table = &c->in[0], *ids = &c->in[1], *y = &c->out[0];
  int64_t pieces = (y->ne[0] + 7) / 8;
  gk_rows_args args = { .length = (uint32_t)y->ne[0], .blocks = gr_gpu_blocks(k, pieces) };
  for (int i = 0; i < 3; i++) {
    args.table_bytes[i] = table->nb[i + 1];
    args.table_ne[i] = (uint32_t)table->ne[i + 1];
  }
  id_strides(ids, args.id_stride);
  gr_gpu_strides(y, args.y_stride);
  walk_rows(y, pieces, args.walk);
  gr_gpu_launch l = gr_gpu_launch_make(k, args.blocks * (uint64_t)gr_array_rows(y), &args, sizeof args);
  gr_gpu_bind(&l, 0, table);
  gr_gpu_bind(&l, 1, ids);
  gr_gpu_bind(&l, 2, y);
  return gr_gpu_submit(b, &l, e);
}

#define GK_FORMAT(format, dtype)                                                                                                           \
  bool gr_gpu_admits_get_rows_##format(const gr_op_call *c) { return admits_rows(c, GR_##dtype); }                                         \
  gr_status gr_gpu_run_get_rows_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                                  \
  {                                                                                                                                        \
    return run_rows(b, GR_GPU_get_rows_##format##_f32, c, e);                                                                              \
  }
#include "kernels/formats.def"
#undef GK_FORMAT

bool gr_gpu_admits_get_rows_back(const gr_op_call *c)
{
  return gr_gpu_plain_f32(&c->in[0]) && gr_gpu_plain_i32(&c->in[1]) && gr_gpu_plain_f32(&c->out[0]) && gr_gpu_launchable(&c->out[0]);
}

gr_status gr_gpu_run_get_rows_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *x = &c->in[0], *ids = &c->in[1], *y = &c->out[0];
  gk_rows_back_args args = { .rows = (uint32_t)y->ne[1], .blocks = gr_gpu_blocks(GR_GPU_get_rows_back_f32, y->ne[0]) };
  gr_gpu_shape(x, args.x_ne);
  gr_gpu_shape(y, args.walk);
  args.walk[1] = 1;
  gr_gpu_strides(x, args.x_stride);
  gr_gpu_strides(y, args.y_stride);
  id_strides(ids, args.id_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_get_rows_back_f32, args.blocks * (uint64_t)(y->ne[2] * y->ne[3]), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, ids);
  gr_gpu_bind(&l, 2, y);
  return gr_gpu_submit(b, &l, e);
}

/* ---- store_rows ---- */

static bool admits_store(const gr_op_call *c, gr_dtype dtype)
{
  const gr_array *cache = &c->out[0], *x = &c->in[1];
  int64_t element = (int64_t)gr_dtype_get(dtype)->block_bytes;
  if (cache->dtype != dtype || cache->ne[2] > INT32_MAX) return false;
  for (int i = 0; i < GR_DIMS; i++)
    if (cache->nb[i] < 0 || cache->nb[i] % element) return false;
  return gr_gpu_plain_f32(x) && gr_gpu_plain_i32(&c->in[2]) && gr_gpu_launchable(x);
}

/* What the cache holds elsewhere stays: its buffer counts as one with gaps. */
static gr_status run_store(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, gr_error *e)
{
  const gr_array *cache = &c->out[0], *x = &c->in[1], *ids = &c->in[2];
  int64_t element = (int64_t)gr_dtype_get(cache->dtype)->block_bytes;
  gk_store_args args = { .id_stride = ids->nb[0] / (int64_t)sizeof(int32_t),
                         .rows = (uint32_t)cache->ne[2],
                         .blocks = gr_gpu_blocks(k, x->ne[0]) };
  gr_gpu_shape(x, args.ne);
  gr_gpu_strides(x, args.x_stride);
  for (int i = 0; i < 3; i++) args.cache_stride[i] = cache->nb[i] / element;
  gr_gpu_launch l = gr_gpu_launch_make(k, args.blocks * (uint64_t)gr_array_rows(x), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, ids);
  gr_gpu_bind(&l, 2, cache);
  l.buffer[2].gaps = true;
  return gr_gpu_submit(b, &l, e);
}

#define STORE(format, dtype)                                                                                                               \
  bool gr_gpu_admits_store_rows_##format(const gr_op_call *c) { return admits_store(c, GR_##dtype); }                                      \
  gr_status gr_gpu_run_store_rows_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                                \
  {                                                                                                                                        \
    return run_store(b, GR_GPU_store_rows_##format, c, e);                                                                                 \
  }
STORE(f32, F32)
STORE(f16, F16)
STORE(bf16, BF16)

/* ---- dropout ---- */

bool gr_gpu_admits_dropout(const gr_op_call *c)
{
  return gr_gpu_plain_f32(&c->in[0]) && gr_gpu_plain_i32(&c->in[1]) && gr_gpu_plain_i32(&c->in[2]) && gr_gpu_plain_f32(&c->out[0]) &&
         gr_gpu_launchable(&c->out[0]);
}

gr_status gr_gpu_run_dropout(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const struct gr_dropout_params *p = c->params;
  const gr_array *x = &c->in[0], *keys = &c->in[1], *run = &c->in[2], *y = &c->out[0];
  int64_t element = sizeof(float), pieces = (y->ne[0] + 3) / 4;
  gk_dropout_args args = { .run_stride = run->nb[0] / element,
                           .length = (uint32_t)y->ne[0],
                           .blocks = gr_gpu_blocks(GR_GPU_dropout_f32, pieces),
                           .threshold = gr_dropout_threshold(p->rate),
                           .adapter = (uint32_t)p->adapter,
                           .scale = (float)gr_dropout_scale(p->rate) };
  for (int i = 0; i < 2; i++) {
    args.x_stride[i] = x->nb[i] / element;
    args.y_stride[i] = y->nb[i] / element;
    args.key_stride[i] = keys->nb[i] / element;
  }
  walk_rows(y, pieces, args.walk);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_dropout_f32, args.blocks * (uint64_t)gr_array_rows(y), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, keys);
  gr_gpu_bind(&l, 2, run);
  gr_gpu_bind(&l, 3, y);
  return gr_gpu_submit(b, &l, e);
}
