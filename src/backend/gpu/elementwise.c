/* Launches of ops that treat each element by itself. Dimensions are joined first, so that the usual contiguous case is one long row. */
#include "backend/gpu/pack.h"
#include "ops/params.h"

/* One thread an element of `walked`. */
static uint64_t groups_of(const gr_array *walked, uint32_t blocks) { return blocks * (uint64_t)gr_array_rows(walked); }

static bool admits(const gr_op_call *c)
{
  for (int i = 0; i < c->n_in; i++)
    if (!gr_gpu_plain_f32(&c->in[i])) return false;
  for (int i = 0; i < c->n_out; i++)
    if (!gr_gpu_plain_f32(&c->out[i])) return false;
  return gr_gpu_launchable(&c->out[0]);
}

static gr_status run_unary(gr_backend *backend, gr_gpu_kernel k, const gr_op_call *c, float s, gr_error *e)
{
  gr_array y = c->out[0], x = c->in[0];
  gr_gpu_collapse((gr_array *[]){ &y, &x }, 2);
  gk_unary_args args = { .blocks = gr_gpu_blocks(k, y.ne[0]), .s = s };
  gr_gpu_shape(&y, args.ne);
  gr_gpu_strides(&x, args.x_stride);
  gr_gpu_strides(&y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(k, groups_of(&y, args.blocks), &args, sizeof args);
  gr_gpu_bind(&l, 0, &x);
  gr_gpu_bind(&l, 1, &y);
  return gr_gpu_submit(backend, &l, e);
}

bool gr_gpu_admits_scale(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_scale(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  return run_unary(b, GR_GPU_scale_f32, c, ((const struct gr_scale_params *)c->params)->s, e);
}

bool gr_gpu_admits_cont(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_cont(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_unary(b, GR_GPU_cont_f32, c, 1, e); }

bool gr_gpu_admits_sigmoid(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_sigmoid(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_unary(b, GR_GPU_sigmoid_f32, c, 1, e); }

bool gr_gpu_admits_tanh(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_tanh(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_unary(b, GR_GPU_tanh_f32, c, 1, e); }

static gr_status run_binary(gr_backend *backend, gr_gpu_kernel k, const gr_op_call *c, gr_error *e)
{
  gr_array y = c->out[0], x = c->in[0], b = c->in[1];
  gr_gpu_collapse((gr_array *[]){ &y, &x, &b }, 3);
  gk_binary_args args = { .blocks = gr_gpu_blocks(k, y.ne[0]) };
  gr_gpu_shape(&y, args.ne);
  gr_gpu_shape(&b, args.b_ne);
  gr_gpu_strides(&x, args.x_stride);
  gr_gpu_strides(&b, args.b_stride);
  gr_gpu_strides(&y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(k, groups_of(&y, args.blocks), &args, sizeof args);
  gr_gpu_bind(&l, 0, &x);
  gr_gpu_bind(&l, 1, &b);
  gr_gpu_bind(&l, 2, &y);
  return gr_gpu_submit(backend, &l, e);
}

bool gr_gpu_admits_add(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_add(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_binary(b, GR_GPU_add_f32, c, e); }

bool gr_gpu_admits_mul(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_mul(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_binary(b, GR_GPU_mul_f32, c, e); }

bool gr_gpu_admits_sigmoid_back(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_sigmoid_back(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_binary(b, GR_GPU_sigmoid_back_f32, c, e); }

/* ---- repeats; of the second input (`like`) only the shape is read, and that is the output's ---- */

static gr_status run_repeat(gr_backend *b, gr_gpu_kernel k, gr_array *x, gr_array *y, gr_error *e)
{
  gk_repeat_args args = { .blocks = gr_gpu_blocks(k, y->ne[0]) };
  gr_gpu_shape(x, args.x_ne);
  gr_gpu_shape(y, args.y_ne);
  gr_gpu_strides(x, args.x_stride);
  gr_gpu_strides(y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(k, groups_of(y, args.blocks), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, y);
  return gr_gpu_submit(b, &l, e);
}

static bool admits_repeat(const gr_op_call *c)
{
  return gr_gpu_plain_f32(&c->in[0]) && gr_gpu_plain_f32(&c->out[0]) && gr_gpu_launchable(&c->out[0]);
}

bool gr_gpu_admits_repeat(const gr_op_call *c) { return admits_repeat(c); }
gr_status gr_gpu_run_repeat(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  gr_array y = c->out[0], x = c->in[0];
  gr_gpu_collapse((gr_array *[]){ &y, &x }, 2);
  return run_repeat(b, GR_GPU_repeat_f32, &x, &y, e);
}

bool gr_gpu_admits_repeat_back(const gr_op_call *c) { return admits_repeat(c); }
gr_status gr_gpu_run_repeat_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  gr_array y = c->out[0], x = c->in[0];
  gr_gpu_collapse((gr_array *[]){ &x, &y }, 2);
  return run_repeat(b, GR_GPU_repeat_back_f32, &x, &y, e);
}

/* ---- slices ---- */

bool gr_gpu_admits_slice_back(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_slice_back(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  gk_slice_args args = { .blocks = gr_gpu_blocks(GR_GPU_slice_back_f32, y->ne[0]),
                         .first = (uint32_t)((const struct gr_slice_params *)c->params)->first,
                         .length = (uint32_t)x->ne[0] };
  gr_gpu_shape(y, args.ne);
  gr_gpu_strides(x, args.x_stride);
  gr_gpu_strides(y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_slice_back_f32, groups_of(y, args.blocks), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, y);
  return gr_gpu_submit(b, &l, e);
}

/* ---- gated units ---- */

_Static_assert((int)GK_GLU_SWIGLU == (int)GR_GLU_SWIGLU && (int)GK_GLU_GEGLU == (int)GR_GLU_GEGLU &&
                   (int)GK_GLU_SWIGLU_OAI == (int)GR_GLU_SWIGLU_OAI,
               "kinds of glu");

/* Forward has one output, backward two of the same layout; where forward has no third input or second output, another stands in for it. */
static gr_status run_glu(gr_backend *b, gr_gpu_kernel k, const gr_op_call *c, bool back, gr_error *e)
{
  gr_array y = c->out[0], up_gradient = c->out[back], gate = c->in[0], up = c->in[1], d = c->in[back ? 2 : 0];
  gr_gpu_collapse((gr_array *[]){ &y, &up_gradient, &gate, &up, &d }, 5);
  gk_glu_args args = { .blocks = gr_gpu_blocks(k, y.ne[0]), .kind = ((const struct gr_glu_params *)c->params)->kind };
  gr_gpu_shape(&y, args.ne);
  gr_gpu_strides(&gate, args.gate_stride);
  gr_gpu_strides(&up, args.up_stride);
  gr_gpu_strides(&d, args.d_stride);
  gr_gpu_strides(&y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(k, groups_of(&y, args.blocks), &args, sizeof args);
  gr_gpu_bind(&l, 0, &gate);
  gr_gpu_bind(&l, 1, &up);
  if (back) gr_gpu_bind(&l, 2, &d);
  if (back) gr_gpu_bind(&l, 4, &up_gradient);
  gr_gpu_bind(&l, back ? 3 : 2, &y);
  return gr_gpu_submit(b, &l, e);
}

bool gr_gpu_admits_glu(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_glu(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_glu(b, GR_GPU_glu_f32, c, false, e); }

bool gr_gpu_admits_glu_back(const gr_op_call *c) { return admits(c); }
gr_status gr_gpu_run_glu_back(gr_backend *b, const gr_op_call *c, gr_error *e) { return run_glu(b, GR_GPU_glu_back_f32, c, true, e); }
