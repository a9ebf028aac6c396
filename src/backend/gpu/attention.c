/* Launches of attention and its gradients. Both first find which keys each query sees, which is a range of them. */
#include "ops/attention.h"
#include "backend/gpu/pack.h"

enum { ROWS = 16, CHANNELS_MAX = 256 }; /* gk/attention.h's */

static int64_t tiles_of(int64_t n) { return (n + ROWS - 1) / ROWS; }

static void three_strides(const gr_array *a, int64_t stride[3])
{
  for (int i = 0; i < 3; i++) stride[i] = a->nb[i] / (int64_t)sizeof(float);
}

static bool has_sinks(const gr_op_call *c) { return c->op == GR_OP_attention && c->n_in > GR_ATTN_SINKS && c->in[GR_ATTN_SINKS].ne[0] > 0; }

static bool admits(const gr_op_call *c)
{
  const gr_array *q = &c->in[GR_ATTN_Q], *k = &c->in[GR_ATTN_K], *v = &c->in[GR_ATTN_V];
  for (int i = GR_ATTN_POS_Q; i <= GR_ATTN_SEG_K; i++)
    if (!gr_gpu_plain_i32(&c->in[i])) return false;
  for (int i = 0; i < c->n_in; i++)
    if ((i < GR_ATTN_POS_Q || i > GR_ATTN_SEG_K) && c->in[i].ne[0] && !gr_gpu_plain_f32(&c->in[i])) return false;
  return q->ne[0] <= CHANNELS_MAX && v->ne[0] <= CHANNELS_MAX && gr_gpu_launchable(q) && gr_gpu_launchable(k);
}

static gk_attention_args attention_args(const gr_op_call *c)
{
  const struct gr_attention_params *p = c->params;
  const gr_array *q = &c->in[GR_ATTN_Q], *k = &c->in[GR_ATTN_K], *v = &c->in[GR_ATTN_V];
  gk_attention_args args = { .n = (uint32_t)q->ne[2],
                             .m = (uint32_t)k->ne[2],
                             .heads = (uint32_t)q->ne[1],
                             .kv_heads = (uint32_t)k->ne[1],
                             .length = (uint32_t)q->ne[0],
                             .width = (uint32_t)v->ne[0],
                             .window = p->window,
                             .scale = p->scale,
                             .softcap = p->softcap };
  three_strides(q, args.q_stride);
  three_strides(k, args.k_stride);
  three_strides(v, args.v_stride);
  for (int i = 0; i < 4; i++) args.index_stride[i] = c->in[GR_ATTN_POS_Q + i].nb[0] / (int64_t)sizeof(int32_t);
  return args;
}

static gr_array plain(void *data, gr_dtype dtype, int64_t ne0, int64_t ne1)
{
  gr_array a = { .data = data, .dtype = dtype, .ne = { ne0, ne1, 1, 1 } };
  gr_strides_contiguous(dtype, a.ne, a.nb);
  return a;
}

static gr_array find_ranges(const gr_op_call *c) { return plain(c->scratch, GR_I32, 2, c->in[GR_ATTN_Q].ne[2]); }

static gr_status run_ranges(gr_backend *b, const gr_op_call *c, const gk_attention_args *args, const gr_array *ranges, gr_error *e)
{
  gr_gpu_kernel k = GR_GPU_attention_ranges_i32;
  gr_gpu_launch l = gr_gpu_launch_make(k, gr_gpu_blocks(k, args->n), args, sizeof *args);
  for (int i = 0; i < 4; i++) gr_gpu_bind(&l, i, &c->in[GR_ATTN_POS_Q + i]);
  gr_gpu_bind(&l, 4, ranges);
  return gr_gpu_submit(b, &l, e);
}

static void bind_inputs(gr_gpu_launch *l, const gr_op_call *c, const gr_array *ranges)
{
  for (int i = 0; i < 3; i++) gr_gpu_bind(l, i, &c->in[i]);
  gr_gpu_bind(l, 3, ranges);
}

/* ---- forward ---- */

bool gr_gpu_admits_attention(const gr_op_call *c) { return admits(c); }

size_t gr_gpu_scratch_attention(const gr_op_call *c, int threads)
{
  (void)threads;
  return (size_t)c->in[GR_ATTN_Q].ne[2] * 2 * sizeof(int32_t);
}

gr_status gr_gpu_run_attention(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *sinks = has_sinks(c) ? &c->in[GR_ATTN_SINKS] : &c->in[GR_ATTN_Q]; /* bound, but not read, where there are none */
  gr_array ranges = find_ranges(c);
  gk_attention_args args = attention_args(c);
  args.sinks = has_sinks(c);
  args.sink_stride = sinks->nb[0] / (int64_t)sizeof(float);
  GR_TRY(run_ranges(b, c, &args, &ranges, e));
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_attention_f32, (uint64_t)(tiles_of(args.n) * args.heads), &args, sizeof args);
  bind_inputs(&l, c, &ranges);
  gr_gpu_bind(&l, 4, sinks);
  gr_gpu_bind(&l, 5, &c->out[0]);
  gr_gpu_bind(&l, 6, &c->out[1]);
  return gr_gpu_submit(b, &l, e);
}

/* ---- backward ---- */

bool gr_gpu_admits_attention_back(const gr_op_call *c) { return admits(c) && gr_array_contiguous(&c->in[GR_ATTN_OUT]); }

/* The ranges, and then stats. */
size_t gr_gpu_scratch_attention_back(const gr_op_call *c, int threads)
{
  (void)threads;
  return (size_t)(c->in[GR_ATTN_Q].ne[2] * (2 + 2 * c->in[GR_ATTN_Q].ne[1])) * sizeof(float);
}

static gr_status run_flow(gr_backend *b, const gr_op_call *c, const gk_attention_args *args, const gr_array *stats, gr_error *e)
{
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_attention_flow_f32, (uint64_t)args->n * args->heads, args, sizeof *args);
  gr_gpu_bind(&l, 0, &c->in[GR_ATTN_OUT]);
  gr_gpu_bind(&l, 1, &c->in[GR_ATTN_DOUT]);
  gr_gpu_bind(&l, 2, &c->in[GR_ATTN_LSE]);
  gr_gpu_bind(&l, 3, stats);
  return gr_gpu_submit(b, &l, e);
}

gr_status gr_gpu_run_attention_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  gr_array ranges = find_ranges(c);
  gk_attention_args args = attention_args(c);
  gr_array stats = plain((int32_t *)c->scratch + 2 * (int64_t)args.n, GR_F32, (int64_t)args.heads * args.n, 2);
  three_strides(&c->in[GR_ATTN_DOUT], args.dout_stride);
  for (int i = 0; i < 2; i++) args.lse_stride[i] = c->in[GR_ATTN_LSE].nb[i] / (int64_t)sizeof(float);
  GR_TRY(run_ranges(b, c, &args, &ranges, e));
  GR_TRY(run_flow(b, c, &args, &stats, e));
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_attention_back_f32_q, (uint64_t)(tiles_of(args.n) * args.heads), &args, sizeof args);
  bind_inputs(&l, c, &ranges);
  gr_gpu_bind(&l, 4, &stats);
  gr_gpu_bind(&l, 5, &c->in[GR_ATTN_DOUT]);
  gr_gpu_bind(&l, 6, &c->out[0]);
  GR_TRY(gr_gpu_submit(b, &l, e));
  l = gr_gpu_launch_make(GR_GPU_attention_back_f32_kv, (uint64_t)(tiles_of(args.m) * args.kv_heads), &args, sizeof args);
  bind_inputs(&l, c, &ranges);
  gr_gpu_bind(&l, 4, &stats);
  gr_gpu_bind(&l, 5, &c->in[GR_ATTN_DOUT]);
  gr_gpu_bind(&l, 6, &c->out[1]);
  gr_gpu_bind(&l, 7, &c->out[2]);
  return gr_gpu_submit(b, &l, e);
}
