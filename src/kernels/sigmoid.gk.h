/* y = 1 / (1 + exp(-x)). */
#include "kernels/gk/glu.h"

GK_KERNEL(sigmoid_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return;
  y[gk_offset(i, a.y_stride)] = gk_sigmoid(x[gk_offset(i, a.x_stride)]);
}
