/* y = x / sqrt(mean(x^2) + eps), one group a row; and that times z, one weight for each element of a row. */
#include "kernels/gk/index.h"

/* The factor of the group's row, whose elements start at in. */
GK_FN float rms_norm_factor(gk_thread t, const GK_CONST_AS gk_norm_args &a, const GK_GLOBAL float *in, GK_SHARED_AS float *scratch)
{
  float squares = 0.0f;
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) {
    const float v = in[c * a.x_stride[0]];
    squares = gk_fma(v, v, squares);
  }
  return 1.0f / gk_sqrt(gk_group_sum(t, squares, scratch) / (float)a.ne[0] + a.eps);
}

GK_KERNEL(rms_norm_f32, gk_norm_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, scratch, GK_SUM_SCRATCH);
  uint32_t i[4] = { 0, 0, 0, 0 };
  gk_row_split(gk_group(t), a.ne, i);
  const GK_GLOBAL float *in = x + gk_offset(i, a.x_stride);
  GK_GLOBAL float *out = y + gk_offset(i, a.y_stride);
  const float factor = rms_norm_factor(t, a, in, scratch);
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) out[c] = in[c * a.x_stride[0]] * factor;
}

GK_KERNEL(rms_norm_mul_f32, gk_norm_args, const GK_GLOBAL float *x, const GK_GLOBAL float *z, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, scratch, GK_SUM_SCRATCH);
  uint32_t i[4] = { 0, 0, 0, 0 };
  gk_row_split(gk_group(t), a.ne, i);
  const GK_GLOBAL float *in = x + gk_offset(i, a.x_stride);
  GK_GLOBAL float *out = y + gk_offset(i, a.y_stride);
  const float factor = rms_norm_factor(t, a, in, scratch);
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) out[c] = in[c * a.x_stride[0]] * factor * z[c * a.z_stride[0]];
}
