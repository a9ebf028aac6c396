/* Launches of the products with stacks of experts. A launch has as many tiles of pairs as there can be, whoever the tokens chose: one more
 * than full ones for each expert; groups that find no pairs end at once. */
#include "ops/experts.h"
#include "backend/gpu/pack.h"

enum { TILE = 32 }; /* gk/product.h's */

static int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }

/* Tiles of pairs that all experts can make together. */
static int64_t pair_tiles(int64_t pairs, int64_t experts) { return pairs / TILE + (experts < pairs ? experts : pairs); }

static void three_strides(const gr_array *a, int64_t stride[3])
{
  for (int i = 0; i < 3; i++) stride[i] = a->nb[i] / (int64_t)sizeof(float);
}

static bool admits_grouping(const gr_op_call *c)
{
  for (int i = GR_EXPERTS_IDS; i <= GR_EXPERTS_OFFSETS; i++)
    if (!gr_gpu_plain_i32(&c->in[i])) return false;
  return gr_array_contiguous(&c->in[GR_EXPERTS_PERM]);
}

/* Whether a launch of so many tiles is one that a device takes, and a stack of this type is read. */
static bool admits_stack(const gr_op_call *c, gr_dtype dtype)
{
  const gr_array *w = &c->in[0], *b = &c->in[1], *y = &c->out[0], *ids = &c->in[GR_EXPERTS_IDS];
  const gr_dtype_info *info = gr_dtype_get(w->dtype);
  int64_t element = dtype == GR_F32 ? (int64_t)sizeof(float) : 1, pairs = ids->ne[0] * ids->ne[1];
  if (w->dtype != dtype || w->nb[0] != info->block_bytes) return false;
  for (int i = 0; i < 3; i++)
    if (w->ne[i] > INT32_MAX || (i && (w->nb[i] < 0 || w->nb[i] % element))) return false;
  if (!admits_grouping(c) || !gr_gpu_plain_f32(b) || !gr_gpu_plain_f32(y) || y->nb[0] != sizeof(float)) return false;
  return pairs <= INT32_MAX / 2 && tiles_of(y->ne[0]) <= INT32_MAX / (2 * pair_tiles(pairs, w->ne[2]) + 2);
}

static gk_experts_args stack_args(const gr_op_call *c, bool transposed)
{
  const gr_array *w = &c->in[0], *b = &c->in[1], *ids = &c->in[GR_EXPERTS_IDS], *offsets = &c->in[GR_EXPERTS_OFFSETS];
  gk_experts_args args = { .product = { .w_row_bytes = w->nb[1],
                                        .m = (uint32_t)w->ne[!transposed],
                                        .k = (uint32_t)w->ne[transposed],
                                        .m_tiles = (uint32_t)tiles_of(w->ne[!transposed]) },
                           .w_expert_bytes = w->nb[2],
                           .offset_stride = offsets->nb[0] / (int64_t)sizeof(int32_t),
                           .used = (uint32_t)ids->ne[0],
                           .pairs = (uint32_t)(ids->ne[0] * ids->ne[1]),
                           .experts = (uint32_t)w->ne[2],
                           .b_rows = (uint32_t)b->ne[1] };
  args.tiles = (uint32_t)pair_tiles(args.pairs, args.experts);
  three_strides(b, args.b_stride);
  for (int i = 0; i < 2; i++) args.id_stride[i] = ids->nb[i] / (int64_t)sizeof(int32_t);
  return args;
}

/* y: rows by slot and token, of as many slots as ids have. */
static gr_status run_stack(gr_backend *backend, gr_gpu_kernel k, const gr_op_call *c, bool transposed, const gr_array *y, gr_error *e)
{
  gk_experts_args args = stack_args(c, transposed);
  three_strides(y, args.y_stride);
  uint64_t groups = (uint64_t)args.product.m_tiles * (args.tiles + (uint64_t)tiles_of(args.pairs));
  gr_gpu_launch l = gr_gpu_launch_make(k, groups, &args, sizeof args);
  for (int i = 0; i < 5; i++) gr_gpu_bind(&l, i, &c->in[i]);
  gr_gpu_bind(&l, 5, y);
  return gr_gpu_submit(backend, &l, e);
}

/* ---- the gradient to x ---- */

/* Slots that share a row of x are summed from a row for each pair. */
static bool shared_rows(const gr_op_call *c) { return c->out[0].ne[1] != c->in[GR_EXPERTS_IDS].ne[0]; }

static size_t back_scratch(const gr_op_call *c)
{
  return shared_rows(c) ? (size_t)(c->in[0].ne[0] * gr_array_count(&c->in[GR_EXPERTS_IDS])) * sizeof(float) : 0;
}

static gr_status run_back(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, gr_error *e)
{
  const gr_array *ids = &c->in[GR_EXPERTS_IDS], *y = &c->out[0];
  if (!shared_rows(c)) return run_stack(b, k, c, true, y, e);
  gr_array pairs = { .data = c->scratch, .dtype = GR_F32, .ne = { y->ne[0], ids->ne[0], ids->ne[1], 1 } };
  gr_strides_contiguous(GR_F32, pairs.ne, pairs.nb);
  GR_TRY(run_stack(b, k, c, true, &pairs, e));
  gk_slots_args args = { .y_stride = { y->nb[1] / (int64_t)sizeof(float), y->nb[2] / (int64_t)sizeof(float) },
                         .length = (uint32_t)y->ne[0],
                         .used = (uint32_t)ids->ne[0],
                         .slots = (uint32_t)y->ne[1],
                         .blocks = gr_gpu_blocks(GR_GPU_matmul_id_back_sum, y->ne[0]) };
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_matmul_id_back_sum, args.blocks * (uint64_t)(y->ne[1] * y->ne[2]), &args, sizeof args);
  gr_gpu_bind(&l, 0, &pairs);
  gr_gpu_bind(&l, 1, y);
  return gr_gpu_submit(b, &l, e);
}

#define GK_FORMAT(format, dtype)                                                                                                           \
  bool gr_gpu_admits_matmul_id_##format(const gr_op_call *c) { return admits_stack(c, GR_##dtype); }                                       \
  gr_status gr_gpu_run_matmul_id_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                                 \
  {                                                                                                                                        \
    return run_stack(b, GR_GPU_matmul_id_##format##_f32, c, false, &c->out[0], e);                                                         \
  }                                                                                                                                        \
  bool gr_gpu_admits_matmul_id_back_##format(const gr_op_call *c) { return admits_stack(c, GR_##dtype); }                                  \
  size_t gr_gpu_scratch_matmul_id_back_##format(const gr_op_call *c, int threads)                                                          \
  {                                                                                                                                        \
    (void)threads;                                                                                                                         \
    return back_scratch(c);                                                                                                                \
  }                                                                                                                                        \
  gr_status gr_gpu_run_matmul_id_back_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                            \
  {                                                                                                                                        \
    return run_back(b, GR_GPU_matmul_id_back_##format##_f32, c, e);                                                                        \
  }
#include "kernels/formats.def"
#undef GK_FORMAT

/* ---- the gradient to a stack ---- */

bool gr_gpu_admits_out_prod_id(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *dy = &c->in[1], *dw = &c->out[0];
  return admits_grouping(c) && gr_gpu_plain_f32(x) && gr_gpu_plain_f32(dy) && gr_gpu_plain_f32(dw) && dw->nb[0] == sizeof(float) &&
         gr_array_count(&c->in[GR_EXPERTS_IDS]) <= INT32_MAX / 2 &&
         tiles_of(dw->ne[0]) <= INT32_MAX / (tiles_of(dw->ne[1]) * dw->ne[2] + 1);
}

gr_status gr_gpu_run_out_prod_id(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *x = &c->in[0], *dy = &c->in[1], *offsets = &c->in[GR_EXPERTS_OFFSETS], *dw = &c->out[0];
  gk_experts_args args = { .product = { .y_n_stride = dw->nb[1] / (int64_t)sizeof(float),
                                        .m = (uint32_t)dw->ne[0],
                                        .n = (uint32_t)dw->ne[1],
                                        .m_tiles = (uint32_t)tiles_of(dw->ne[0]) },
                           .w_expert_bytes = dw->nb[2] / (int64_t)sizeof(float),
                           .offset_stride = offsets->nb[0] / (int64_t)sizeof(int32_t),
                           .used = (uint32_t)c->in[GR_EXPERTS_IDS].ne[0],
                           .tiles = (uint32_t)tiles_of(dw->ne[1]),
                           .b_rows = (uint32_t)dy->ne[1],
                           .y_rows = (uint32_t)x->ne[1] };
  three_strides(x, args.y_stride);
  three_strides(dy, args.b_stride);
  uint64_t groups = (uint64_t)args.product.m_tiles * args.tiles * (uint64_t)dw->ne[2];
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_out_prod_id_f32, groups, &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, dy);
  gr_gpu_bind(&l, 2, &c->in[GR_EXPERTS_PERM]);
  gr_gpu_bind(&l, 3, offsets);
  gr_gpu_bind(&l, 4, dw);
  return gr_gpu_submit(b, &l, e);
}
