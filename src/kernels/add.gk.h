/* y = x + b, b repeated to x's shape. */
#include "kernels/gk/index.h"

GK_KERNEL(add_f32, gk_binary_args, const GK_GLOBAL float *x, const GK_GLOBAL float *b, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return;
  y[gk_offset(i, a.y_stride)] = x[gk_offset(i, a.x_stride)] + b[gk_offset_repeat(i, a.b_stride, a.b_ne)];
}
