/* y[i] = x[i mod n], n being x's shape. */
#include "kernels/gk/index.h"

GK_KERNEL(repeat_f32, gk_repeat_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.y_ne, a.blocks, i);
  if (i[0] >= a.y_ne[0]) return;
  y[gk_offset(i, a.y_stride)] = x[gk_offset_repeat(i, a.x_stride, a.x_ne)];
}
