/* Launches of ops that work on rows: norms (one group a row) and rotation (one thread a pair). */
#include "backend/gpu/pack.h"
#include "ops/params.h"

/* z: NULL, or the second operand. */
static gr_status run_norm(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, const gr_array *z, gr_error *e)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  gk_norm_args args = { .eps = ((const struct gr_norm_params *)c->params)->eps };
  gr_gpu_shape(x, args.ne);
  gr_gpu_strides(x, args.x_stride);
  gr_gpu_strides(y, args.y_stride);
  if (z) gr_gpu_strides(z, args.z_stride);
  gr_gpu_launch l = gr_gpu_launch_make(k, x->ne[0] ? (uint64_t)gr_array_rows(y) : 0, &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  if (z) gr_gpu_bind(&l, 1, z);
  gr_gpu_bind(&l, z ? 2 : 1, y);
  return gr_gpu_submit(b, &l, e);
}

static bool admits_norm(const gr_op_call *c)
{
  const gr_array *y = &c->out[0];
  return gr_gpu_plain_f32(&c->in[0]) && gr_gpu_plain_f32(y) && gr_array_rows_dense(y) && gr_gpu_launchable(y);
}

bool gr_gpu_admits_rms_norm(const gr_op_call *c) { return admits_norm(c); }
gr_status gr_gpu_run_rms_norm(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_norm(b, GR_GPU_rms_norm_f32, c, NULL, e); }

bool gr_gpu_admits_rms_norm_mul(const gr_op_call *c) { return admits_norm(c) && gr_gpu_plain_f32(&c->in[1]); }
gr_status gr_gpu_run_rms_norm_mul(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  return run_norm(b, GR_GPU_rms_norm_mul_f32, c, &c->in[1], e);
}

bool gr_gpu_admits_rms_norm_back(const gr_op_call *c) { return admits_norm(c) && gr_gpu_plain_f32(&c->in[1]); }
gr_status gr_gpu_run_rms_norm_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  return run_norm(b, GR_GPU_rms_norm_back_f32, c, &c->in[1], e);
}

bool gr_gpu_admits_norm_back_add(const gr_op_call *c)
{
  for (int i = 0; i < c->n_in; i++)
    if (!gr_gpu_plain_f32(&c->in[i])) return false;
  return gr_gpu_plain_f32(&c->out[0]) && gr_array_rows_dense(&c->out[0]) && gr_gpu_launchable(&c->out[0]);
}

gr_status gr_gpu_run_norm_back_add(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *y = &c->out[0];
  gk_norm_add_args args = { .w_stride = c->in[3].nb[0] / (int64_t)sizeof(float), .eps = ((const struct gr_norm_params *)c->params)->eps };
  gr_gpu_shape(y, args.ne);
  gr_gpu_strides(&c->in[0], args.g_stride);
  gr_gpu_strides(&c->in[1], args.x_stride);
  gr_gpu_strides(&c->in[2], args.d_stride);
  gr_gpu_strides(y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_norm_back_add_f32, y->ne[0] ? (uint64_t)gr_array_rows(y) : 0, &args, sizeof args);
  for (int i = 0; i < 4; i++) gr_gpu_bind(&l, i, &c->in[i]);
  gr_gpu_bind(&l, 4, y);
  return gr_gpu_submit(b, &l, e);
}

bool gr_gpu_admits_rope(const gr_op_call *c)
{
  for (int i = 0; i < 3; i++)
    if (!gr_gpu_plain_f32(&c->in[i])) return false;
  return gr_gpu_plain_f32(&c->out[0]) && gr_gpu_launchable(&c->out[0]);
}

gr_status gr_gpu_run_rope(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const struct gr_rope_params *p = c->params;
  const gr_array *x = &c->in[0], *cosines = &c->in[1], *sines = &c->in[2], *y = &c->out[0];
  int64_t half = cosines->ne[0];
  gk_rope_args args = { .half = (uint32_t)half, .neox = p->mode == GR_ROPE_NEOX, .inverse = p->inverse };
  args.blocks = gr_gpu_blocks(GR_GPU_rope_f32, x->ne[0] - half);
  gr_gpu_shape(x, args.ne);
  gr_gpu_strides(x, args.x_stride);
  gr_gpu_strides(y, args.y_stride);
  for (int i = 0; i < 2; i++) {
    args.cos_stride[i] = cosines->nb[i] / (int64_t)sizeof(float);
    args.sin_stride[i] = sines->nb[i] / (int64_t)sizeof(float);
  }
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_rope_f32, args.blocks * (uint64_t)gr_array_rows(y), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, cosines);
  gr_gpu_bind(&l, 2, sines);
  gr_gpu_bind(&l, 3, y);
  return gr_gpu_submit(b, &l, e);
}
