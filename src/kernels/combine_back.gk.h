/* Gradients of combine from dout [D,n]: dy[:,i,t] = weights[i,t] dout[:,t], and dweights[i,t] = y[:,i,t] . dout[:,t], one group a slot of a
 * token. Strides: y's are of y and of dy, which is contiguous when y is not read; z's of dout. */
#include "kernels/gk/index.h"

GK_FN float gk_combine_weight(const GK_CONST_AS gk_combine_args &a, const GK_GLOBAL float *weights, uint32_t i, uint32_t token)
{
  return GK_MUTANT(emu_combine_back_no_weight) ? 1.0f : weights[i * a.w_stride[0] + token * a.w_stride[1]];
}

GK_KERNEL(combine_back_f32, gk_combine_args, const GK_GLOBAL float *weights, const GK_GLOBAL float *dout, GK_GLOBAL float *dy)
{
  GK_ENTER(t);
  const uint32_t i = gk_group(t) % a.slots, token = gk_group(t) / a.slots;
  const float w = gk_combine_weight(a, weights, i, token);
  for (uint32_t d = gk_tid(t); d < a.length; d += gk_size(t))
    dy[d + i * a.dy_stride[0] + token * a.dy_stride[1]] = w * dout[d * a.z_stride[0] + token * a.z_stride[1]];
}

GK_KERNEL(combine_back_f32_both, gk_combine_args, const GK_GLOBAL float *weights, const GK_GLOBAL float *dout, const GK_GLOBAL float *y,
          GK_GLOBAL float *dy, GK_GLOBAL float *dweights)
{
  GK_ENTER(t);
  GK_SHARED(float, scratch, GK_SUM_SCRATCH);
  const uint32_t i = gk_group(t) % a.slots, token = gk_group(t) / a.slots;
  const float w = gk_combine_weight(a, weights, i, token);
  float sum = 0.0f;
  for (uint32_t d = gk_tid(t); d < a.length; d += gk_size(t)) {
    const float g = dout[d * a.z_stride[0] + token * a.z_stride[1]];
    dy[d + i * a.dy_stride[0] + token * a.dy_stride[1]] = w * g;
    sum = gk_fma(g, y[d * a.y_stride[0] + i * a.y_stride[1] + token * a.y_stride[2]], sum);
  }
  sum = gk_group_sum(t, sum, scratch);
  if (gk_tid(t) == 0) dweights[i + token * a.dw_stride] = sum;
}
