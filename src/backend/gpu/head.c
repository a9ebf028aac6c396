/* Launches of head and loss. Forward: logits by chunks of the head's rows, never stored, then the chunks joined. Backward: of each chunk of
 * rows the logits' gradients, then the products that they are wanted for. The adapter's A h is made first, in the dense product's kernel,
 * and scaled, so that both go on with B of that. */
#include "backend/gpu/pack.h"
#include "base/mutant.h"
#include "ops/head_loss.h"

enum {
  TILE = 32,        /* gk/product.h's */
  CHUNK_TILES = 8,  /* of the head's rows that a group of the forward goes through */
  CHUNK_ROWS = 4096 /* of the head whose gradients are kept at a time */
};

static int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }

static gr_array plain(void *data, int64_t ne0, int64_t ne1)
{
  gr_array a = { .data = data, .dtype = GR_F32, .ne = { ne0, ne1, 1, 1 } };
  gr_strides_contiguous(GR_F32, a.ne, a.nb);
  return a;
}

/* Rows first to first + count of a matrix. */
static gr_array rows_of(const gr_array *a, int64_t first, int64_t count)
{
  gr_array part = *a;
  part.data = (char *)a->data + first * a->nb[1];
  part.ne[1] = count;
  return part;
}

/* y [m,n] = sum over k of w and b, plus y itself with `add`. transposed: w's rows run along m and b's elements of one n lie b->nb[0] apart
 * along k, as in out_prod with b transposed. */
static gr_status product(gr_backend *backend, gr_gpu_kernel kernel, const gr_array *w, const gr_array *b, bool b_by_rows, bool transposed,
                         bool add, const gr_array *y, gr_error *e)
{
  int64_t element = sizeof(float), m_tiles = tiles_of(y->ne[0]);
  gk_product_args args = { .w_row_bytes = w->nb[1],
                           .b_k_stride = b->nb[!b_by_rows] / element,
                           .b_n_stride = b->nb[b_by_rows] / element,
                           .y_n_stride = y->nb[1] / element,
                           .z_m_stride = 1,
                           .z_n_stride = y->nb[1] / element,
                           .m = (uint32_t)y->ne[0],
                           .n = (uint32_t)y->ne[1],
                           .k = (uint32_t)w->ne[transposed],
                           .m_tiles = (uint32_t)m_tiles };
  gr_gpu_launch l = gr_gpu_launch_make(kernel, (uint64_t)(m_tiles * tiles_of(y->ne[1])), &args, sizeof args);
  if (add) gr_gpu_bind(&l, 0, y);
  gr_gpu_bind(&l, add, w);
  gr_gpu_bind(&l, add + 1, b);
  gr_gpu_bind(&l, add + 2, y);
  return gr_gpu_submit(backend, &l, e);
}

static int64_t rank_of(const gr_op_call *c, gr_head_at at) { return gr_head_has(c, at.a) ? c->in[at.a].ne[1] : 0; }

/* u [rank,n] = lora_scale A h. */
static gr_status adapt(gr_backend *b, const gr_op_call *c, gr_head_at at, const gr_array *u, gr_error *e)
{
  if (!u->ne[0]) return GR_OK;
  GR_TRY(product(b, GR_GPU_matmul_f32_f32, &c->in[at.a], &c->in[GR_HEAD_H], true, false, false, u, e));
  return gr_gpu_scale(b, u, ((const struct gr_head_params *)c->params)->lora_scale, u, e);
}

/* Of rows first to first + count of the head. */
static gk_head_args head_args(const gr_op_call *c, gr_head_at at, int64_t first, int64_t count)
{
  const struct gr_head_params *p = c->params;
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H];
  int64_t element = sizeof(float), rank = rank_of(c, at);
  gk_head_args args = { .w = { .w_row_bytes = w->nb[1],
                               .b_k_stride = h->nb[0] / element,
                               .b_n_stride = h->nb[1] / element,
                               .m = (uint32_t)count,
                               .n = (uint32_t)h->ne[1],
                               .k = (uint32_t)w->ne[0] },
                        .label_stride = c->in[GR_HEAD_LABELS].nb[0] / (int64_t)sizeof(int32_t),
                        .chunk = CHUNK_TILES,
                        .first = (uint32_t)first,
                        .vocab = (uint32_t)w->ne[1],
                        .biased = gr_head_has(c, at.bias),
                        .scale = p->scale,
                        .softcap = p->softcap };
  if (args.biased) args.bias_stride = c->in[at.bias].nb[0] / element;
  args.b = (gk_product_args){ .b_k_stride = 1, .b_n_stride = rank, .m = args.w.m, .n = args.w.n, .k = (uint32_t)rank };
  if (rank) args.b.w_row_bytes = c->in[at.b].nb[1];
  return args;
}

/* Buffers 0 to 5: the head's rows, h, labels, bias, B's rows, u; h stands in for what there is not. */
static void bind_head(gr_gpu_launch *l, const gr_op_call *c, gr_head_at at, int64_t first, int64_t count, const gr_array *u)
{
  const gr_array *h = &c->in[GR_HEAD_H];
  gr_array w = rows_of(&c->in[GR_HEAD_W], first, count), bias = *h, b = *h;
  if (gr_head_has(c, at.bias)) {
    bias = c->in[at.bias];
    bias.data = (char *)bias.data + first * bias.nb[0];
    bias.ne[0] = count;
  }
  if (u->ne[0]) b = rows_of(&c->in[at.b], first, count);
  gr_gpu_bind(l, 0, &w);
  gr_gpu_bind(l, 1, h);
  gr_gpu_bind(l, 2, &c->in[GR_HEAD_LABELS]);
  gr_gpu_bind(l, 3, &bias);
  gr_gpu_bind(l, 4, &b);
  gr_gpu_bind(l, 5, u->ne[0] ? u : h);
}

/* A matrix of F32 whose rows are dense, so that products read it as a packed one. */
static bool dense_rows(const gr_array *a) { return gr_gpu_plain_f32(a) && a->nb[0] == sizeof(float) && a->ne[2] == 1 && a->ne[3] == 1; }

static bool admits(const gr_op_call *c, gr_head_at at, gr_dtype dtype)
{
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H];
  if (w->dtype != dtype || w->nb[1] < 0 || (dtype == GR_F32 && w->nb[1] % (int64_t)sizeof(float))) return false;
  if (w->ne[0] > INT32_MAX || w->ne[1] > INT32_MAX || tiles_of(w->ne[1]) > INT32_MAX / (tiles_of(h->ne[1]) + 1)) return false;
  if (!dense_rows(h) || !gr_gpu_plain_i32(&c->in[GR_HEAD_LABELS])) return false;
  if (gr_head_has(c, at.bias) && !gr_gpu_plain_f32(&c->in[at.bias])) return false;
  return !gr_head_has(c, at.a) || (dense_rows(&c->in[at.a]) && dense_rows(&c->in[at.b]));
}

/* ---- forward ---- */

static int64_t chunks_of(int64_t vocab) { return (tiles_of(vocab) + CHUNK_TILES - 1) / CHUNK_TILES; }

/* u, then each chunk's maxima and sums, then the labels' logits. */
static size_t forward_scratch(const gr_op_call *c)
{
  int64_t n = c->in[GR_HEAD_H].ne[1];
  return (size_t)(n * (rank_of(c, gr_head_forward_at) + 2 * chunks_of(c->in[GR_HEAD_W].ne[1]) + 1)) * sizeof(float);
}

static gr_status run(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, gr_error *e)
{
  gr_head_at at = gr_head_forward_at;
  int64_t n = c->in[GR_HEAD_H].ne[1], vocab = c->in[GR_HEAD_W].ne[1], chunks = chunks_of(vocab), rank = rank_of(c, at);
  float *room = c->scratch;
  gr_array u = plain(room, rank, n), parts = plain(room + rank * n, n, 2 * chunks), hits = plain(room + (rank + 2 * chunks) * n, n, 1);
  GR_TRY(adapt(b, c, at, &u, e));
  gk_head_args args = head_args(c, at, 0, vocab);
  args.chunks = (uint32_t)chunks;
  gr_gpu_launch l = gr_gpu_launch_make(k, (uint64_t)(chunks * tiles_of(n)), &args, sizeof args);
  bind_head(&l, c, at, 0, vocab, &u);
  gr_gpu_bind(&l, 6, &parts);
  gr_gpu_bind(&l, 7, &hits);
  GR_TRY(gr_gpu_submit(b, &l, e));
  l = gr_gpu_launch_make(GR_GPU_head_loss_sum, gr_gpu_blocks(GR_GPU_head_loss_sum, n), &args, sizeof args);
  gr_gpu_bind(&l, 0, &c->in[GR_HEAD_LABELS]);
  gr_gpu_bind(&l, 1, &parts);
  gr_gpu_bind(&l, 2, &hits);
  gr_gpu_bind(&l, 3, &c->out[0]);
  gr_gpu_bind(&l, 4, &c->out[1]);
  return gr_gpu_submit(b, &l, e);
}

/* ---- backward ---- */

static int64_t rows_at_once(int64_t vocab) { return vocab < CHUNK_ROWS ? vocab : CHUNK_ROWS; }

/* u and q, lse and dnll, a chunk's gradients. */
static size_t back_scratch(const gr_op_call *c)
{
  int64_t n = c->in[GR_HEAD_H].ne[1];
  return (size_t)(n * (2 * rank_of(c, gr_head_back_at) + 2 + rows_at_once(c->in[GR_HEAD_W].ne[1]))) * sizeof(float);
}

typedef struct back_kernels {
  gr_gpu_kernel gradient, outer, outer_add;
} back_kernels;

/* What a chunk's gradients g give: dh, q = B^T g, and dB's rows. */
static gr_status back_chunk(gr_backend *b, const back_kernels *k, const gr_op_call *c, int64_t first, const gr_array *g, const gr_array *u,
                            const gr_array *q, gr_error *e)
{
  gr_head_at at = gr_head_back_at;
  gr_array w = rows_of(&c->in[GR_HEAD_W], first, g->ne[0]);
  bool add = first > 0 && !GR_MUTANT(emu_head_loss_back_chunk_overwrites);
  GR_TRY(product(b, add ? k->outer_add : k->outer, &w, g, true, true, add, &c->out[0], e));
  if (!u->ne[0]) return GR_OK;
  gr_array rows = rows_of(&c->in[at.b], first, g->ne[0]), db = rows_of(&c->out[2], first, g->ne[0]);
  GR_TRY(product(b, add ? GR_GPU_out_prod_add_f32_f32 : GR_GPU_out_prod_f32_f32, &rows, g, true, true, add, q, e));
  return product(b, GR_GPU_out_prod_f32_f32, u, g, false, true, false, &db, e);
}

static gr_status run_back(gr_backend *b, const back_kernels *k, const gr_op_call *c, gr_error *e)
{
  const struct gr_head_params *p = c->params;
  gr_head_at at = gr_head_back_at;
  const gr_array *h = &c->in[GR_HEAD_H];
  int64_t n = h->ne[1], vocab = c->in[GR_HEAD_W].ne[1], rank = rank_of(c, at);
  float *room = c->scratch, *kept = room + (2 * rank + 2) * n;
  gr_array u = plain(room, rank, n), q = plain(room + rank * n, rank, n), stats = plain(room + 2 * rank * n, n, 2);
  gr_array lse = rows_of(&stats, 0, 1), dnll = rows_of(&stats, 1, 1);
  GR_TRY(adapt(b, c, at, &u, e));
  GR_TRY(gr_gpu_scale(b, &c->in[GR_HEAD_BACK_LSE], 1, &lse, e));
  GR_TRY(gr_gpu_scale(b, &c->in[GR_HEAD_BACK_DNLL], 1, &dnll, e));
  for (int64_t first = 0; first < vocab; first += CHUNK_ROWS) {
    int64_t rows = rows_at_once(vocab - first);
    gr_array g = plain(kept, rows, n);
    gk_head_args args = head_args(c, at, first, rows);
    args.chunks = (uint32_t)tiles_of(rows);
    gr_gpu_launch l = gr_gpu_launch_make(k->gradient, (uint64_t)(tiles_of(rows) * tiles_of(n)), &args, sizeof args);
    bind_head(&l, c, at, first, rows, &u);
    gr_gpu_bind(&l, 6, &stats);
    gr_gpu_bind(&l, 7, &g);
    GR_TRY(gr_gpu_submit(b, &l, e));
    GR_TRY(back_chunk(b, k, c, first, &g, &u, &q, e));
  }
  if (!rank) return GR_OK;
  GR_TRY(gr_gpu_scale(b, &q, p->lora_scale, &q, e));
  GR_TRY(product(b, GR_GPU_out_prod_add_f32_f32, &c->in[at.a], &q, true, true, true, &c->out[0], e));
  return product(b, GR_GPU_out_prod_f32_f32, h, &q, false, true, false, &c->out[1], e);
}

/* ---- both at once: the two nodes, one after the other ---- */

enum { BOTH_DNLL = 3, BOTH_BIAS = 4 };

/* Floats in front of the calls' scratch, where lse is kept. */
static int64_t lse_room(const gr_op_call *c) { return (c->in[GR_HEAD_H].ne[1] + 15) / 16 * 16; }

/* The calls of which head_loss_dh is made. */
static void take_apart(const gr_op_call *c, gr_op_call *forward, gr_op_call *back)
{
  float *room = c->scratch;
  gr_array lse = plain(room, c->in[GR_HEAD_H].ne[1], 1);
  *forward = (gr_op_call){ .op = GR_OP_head_loss, .params = c->params, .n_in = 4, .n_out = 2, .out = { c->out[0], lse } };
  *back = (gr_op_call){ .op = GR_OP_head_loss_back, .params = c->params, .n_in = 6, .n_out = 1, .out = { c->out[1] } };
  for (int i = GR_HEAD_W; i <= GR_HEAD_LABELS; i++) forward->in[i] = back->in[i] = c->in[i];
  if (c->n_in > BOTH_BIAS) forward->in[gr_head_forward_at.bias] = back->in[gr_head_back_at.bias] = c->in[BOTH_BIAS];
  back->in[GR_HEAD_BACK_LSE] = lse;
  back->in[GR_HEAD_BACK_DNLL] = c->in[BOTH_DNLL];
  forward->scratch = back->scratch = room ? room + lse_room(c) : NULL;
}

static bool admits_both(const gr_op_call *c, gr_dtype dtype)
{
  gr_op_call forward, back;
  take_apart(c, &forward, &back);
  return gr_gpu_plain_f32(&c->in[BOTH_DNLL]) && admits(&forward, gr_head_forward_at, dtype) && admits(&back, gr_head_back_at, dtype);
}

static size_t both_scratch(const gr_op_call *c)
{
  gr_op_call forward, back;
  take_apart(c, &forward, &back);
  size_t first = forward_scratch(&forward), second = back_scratch(&back);
  return (size_t)lse_room(c) * sizeof(float) + (first > second ? first : second);
}

static gr_status run_both(gr_backend *b, gr_gpu_kernel forward_kernel, const back_kernels *k, const gr_op_call *c, gr_error *e)
{
  gr_op_call forward, back;
  take_apart(c, &forward, &back);
  GR_TRY(run(b, forward_kernel, &forward, e));
  return run_back(b, k, &back, e);
}

#define GK_FORMAT(format, dtype)                                                                                                           \
  static const back_kernels back_##format = { GR_GPU_head_loss_back_##format##_f32, GR_GPU_out_prod_##format##_f32,                        \
                                              GR_GPU_out_prod_add_##format##_f32 };                                                        \
  bool gr_gpu_admits_head_loss_##format(const gr_op_call *c) { return admits(c, gr_head_forward_at, GR_##dtype); }                         \
  size_t gr_gpu_scratch_head_loss_##format(const gr_op_call *c, int threads)                                                               \
  {                                                                                                                                        \
    (void)threads;                                                                                                                         \
    return forward_scratch(c);                                                                                                             \
  }                                                                                                                                        \
  gr_status gr_gpu_run_head_loss_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                                 \
  {                                                                                                                                        \
    return run(b, GR_GPU_head_loss_##format##_f32, c, e);                                                                                  \
  }                                                                                                                                        \
  bool gr_gpu_admits_head_loss_back_##format(const gr_op_call *c) { return admits(c, gr_head_back_at, GR_##dtype); }                       \
  size_t gr_gpu_scratch_head_loss_back_##format(const gr_op_call *c, int threads)                                                          \
  {                                                                                                                                        \
    (void)threads;                                                                                                                         \
    return back_scratch(c);                                                                                                                \
  }                                                                                                                                        \
  gr_status gr_gpu_run_head_loss_back_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                            \
  {                                                                                                                                        \
    return run_back(b, &back_##format, c, e);                                                                                              \
  }                                                                                                                                        \
  bool gr_gpu_admits_head_loss_dh_##format(const gr_op_call *c) { return admits_both(c, GR_##dtype); }                                     \
  size_t gr_gpu_scratch_head_loss_dh_##format(const gr_op_call *c, int threads)                                                            \
  {                                                                                                                                        \
    (void)threads;                                                                                                                         \
    return both_scratch(c);                                                                                                                \
  }                                                                                                                                        \
  gr_status gr_gpu_run_head_loss_dh_##format(gr_backend *b, const gr_op_call *c, gr_error *e)                                              \
  {                                                                                                                                        \
    return run_both(b, GR_GPU_head_loss_##format##_f32, &back_##format, c, e);                                                             \
  }
#include "kernels/formats.def"
#undef GK_FORMAT
