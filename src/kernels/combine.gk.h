/* z[:,t] = sum over slots i of weights[i,t] y[:,i,t], slots in ascending order: a thread has an element of z. */
#include "kernels/gk/index.h"

GK_KERNEL(combine_f32, gk_combine_args, const GK_GLOBAL float *y, const GK_GLOBAL float *weights, GK_GLOBAL float *z)
{
  GK_ENTER(t);
  const uint32_t d = gk_group(t) % a.blocks * gk_size(t) + gk_tid(t), token = gk_group(t) / a.blocks;
  if (d >= a.length) return;
  float sum = 0.0f;
  for (uint32_t i = 0; i < a.slots; i++) {
    const float w = weights[(GK_MUTANT(emu_combine_weight_0) ? 0 : i) * a.w_stride[0] + token * a.w_stride[1]];
    sum = gk_fma(w, y[d * a.y_stride[0] + i * a.y_stride[1] + token * a.y_stride[2]], sum);
  }
  z[d * a.z_stride[0] + token * a.z_stride[1]] = sum;
}
