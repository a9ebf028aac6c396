/* Launches of what decides and applies routing: route and its gradient, the grouping of pairs by expert, the weighted sum of what they
 * give. */
#include "backend/gpu/pack.h"
#include "ops/params.h"

enum { EXPERTS_MAX = 2048, USED_MAX = 64 }; /* gk/route.h's */

_Static_assert((int)GK_GATE_SOFTMAX == (int)GR_GATE_SOFTMAX && (int)GK_GATE_SIGMOID == (int)GR_GATE_SIGMOID &&
                   (int)GK_GATE_SELECTED == (int)GR_GATE_SELECTED,
               "kinds of gates");

/* The first two strides, in elements of four bytes. */
static void two_strides(const gr_array *a, int64_t stride[2])
{
  for (int i = 0; i < 2; i++) stride[i] = a->nb[i] / (int64_t)sizeof(float);
}

static gk_route_args route_args(const gr_op_call *c, const gr_array *ids)
{
  const struct gr_route_params *p = c->params;
  gk_route_args args = { .experts = (uint32_t)c->in[0].ne[0],
                         .used = (uint32_t)ids->ne[0],
                         .gating = p->gating,
                         .renormalise = p->renormalise,
                         .clamp = p->clamp,
                         .scale = p->scale };
  two_strides(&c->in[0], args.logit_stride);
  two_strides(ids, args.id_stride);
  two_strides(&c->out[0], args.y_stride);
  return args;
}

static bool has_bias(const gr_op_call *c) { return c->n_in > 1 && c->in[1].ne[0] > 0; }

static bool admits_logits(const gr_op_call *c)
{
  const struct gr_route_params *p = c->params;
  return gr_gpu_plain_f32(&c->in[0]) && gr_gpu_launchable(&c->in[0]) && c->in[0].ne[0] <= EXPERTS_MAX && p->used <= USED_MAX;
}

bool gr_gpu_admits_route(const gr_op_call *c)
{
  return admits_logits(c) && (!has_bias(c) || gr_gpu_plain_f32(&c->in[1])) && gr_gpu_plain_f32(&c->out[0]) && gr_gpu_plain_i32(&c->out[1]);
}

gr_status gr_gpu_run_route(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *bias = has_bias(c) ? &c->in[1] : &c->in[0]; /* bound, but not read, where there is none */
  gk_route_args args = route_args(c, &c->out[1]);
  args.biased = has_bias(c);
  args.bias_stride = bias->nb[0] / (int64_t)sizeof(float);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_route_f32, (uint64_t)c->in[0].ne[1], &args, sizeof args);
  gr_gpu_bind(&l, 0, &c->in[0]);
  gr_gpu_bind(&l, 1, bias);
  gr_gpu_bind(&l, 2, &c->out[0]);
  gr_gpu_bind(&l, 3, &c->out[1]);
  return gr_gpu_submit(b, &l, e);
}

bool gr_gpu_admits_route_back(const gr_op_call *c)
{
  return admits_logits(c) && gr_gpu_plain_i32(&c->in[1]) && gr_gpu_plain_f32(&c->in[2]) && gr_gpu_plain_f32(&c->out[0]);
}

gr_status gr_gpu_run_route_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  gk_route_args args = route_args(c, &c->in[1]);
  two_strides(&c->in[2], args.w_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_route_back_f32, (uint64_t)c->in[0].ne[1], &args, sizeof args);
  for (int i = 0; i < 3; i++) gr_gpu_bind(&l, i, &c->in[i]);
  gr_gpu_bind(&l, 3, &c->out[0]);
  return gr_gpu_submit(b, &l, e);
}

/* ---- group_experts ---- */

bool gr_gpu_admits_group_experts(const gr_op_call *c)
{
  return gr_gpu_plain_i32(&c->in[0]) && gr_gpu_plain_i32(&c->out[0]) && gr_gpu_plain_i32(&c->out[1]);
}

gr_status gr_gpu_run_group_experts(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *ids = &c->in[0], *offsets = &c->out[1];
  gk_group_args args = { .offset_stride = offsets->nb[0] / (int64_t)sizeof(int32_t),
                         .used = (uint32_t)ids->ne[0],
                         .pairs = (uint32_t)(ids->ne[0] * ids->ne[1]),
                         .experts = (uint32_t)(offsets->ne[0] - 1) };
  two_strides(ids, args.id_stride);
  two_strides(&c->out[0], args.perm_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_group_experts_i32, (uint64_t)args.experts + 1, &args, sizeof args);
  gr_gpu_bind(&l, 0, ids);
  gr_gpu_bind(&l, 1, &c->out[0]);
  gr_gpu_bind(&l, 2, offsets);
  return gr_gpu_submit(b, &l, e);
}

/* ---- combine ---- */

bool gr_gpu_admits_combine(const gr_op_call *c)
{
  return gr_gpu_plain_f32(&c->in[0]) && gr_gpu_plain_f32(&c->in[1]) && gr_gpu_plain_f32(&c->out[0]) && gr_gpu_launchable(&c->in[0]);
}

gr_status gr_gpu_run_combine(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *y = &c->in[0], *weights = &c->in[1], *z = &c->out[0];
  gk_combine_args args = { .length = (uint32_t)y->ne[0],
                           .slots = (uint32_t)y->ne[1],
                           .blocks = gr_gpu_blocks(GR_GPU_combine_f32, y->ne[0]) };
  for (int i = 0; i < 3; i++) args.y_stride[i] = y->nb[i] / (int64_t)sizeof(float);
  two_strides(weights, args.w_stride);
  two_strides(z, args.z_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_combine_f32, args.blocks * (uint64_t)z->ne[1], &args, sizeof args);
  gr_gpu_bind(&l, 0, y);
  gr_gpu_bind(&l, 1, weights);
  gr_gpu_bind(&l, 2, z);
  return gr_gpu_submit(b, &l, e);
}

bool gr_gpu_admits_combine_back(const gr_op_call *c)
{
  for (int i = 0; i < c->n_in; i++)
    if (c->in[i].ne[0] && !gr_gpu_plain_f32(&c->in[i])) return false;
  return gr_gpu_plain_f32(&c->out[0]) && gr_array_rows_dense(&c->out[0]) && gr_gpu_launchable(&c->out[0]);
}

gr_status gr_gpu_run_combine_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *weights = &c->in[0], *dout = &c->in[1], *y = &c->in[2], *dy = &c->out[0];
  bool both = c->n_out > 1;
  gk_combine_args args = { .length = (uint32_t)dy->ne[0], .slots = (uint32_t)dy->ne[1] };
  two_strides(weights, args.w_stride);
  two_strides(dout, args.z_stride);
  for (int i = 0; i < 2; i++) args.dy_stride[i] = dy->nb[i + 1] / (int64_t)sizeof(float);
  for (int i = 0; both && i < 3; i++) args.y_stride[i] = y->nb[i] / (int64_t)sizeof(float);
  if (both) args.dw_stride = c->out[1].nb[1] / (int64_t)sizeof(float);
  gr_gpu_launch l = gr_gpu_launch_make(both ? GR_GPU_combine_back_f32_both : GR_GPU_combine_back_f32, (uint64_t)(dy->ne[1] * dy->ne[2]),
                                       &args, sizeof args);
  gr_gpu_bind(&l, 0, weights);
  gr_gpu_bind(&l, 1, dout);
  if (both) gr_gpu_bind(&l, 2, y);
  gr_gpu_bind(&l, 2 + both, dy);
  if (both) gr_gpu_bind(&l, 4, &c->out[1]);
  return gr_gpu_submit(b, &l, e);
}
