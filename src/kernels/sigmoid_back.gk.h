/* y = b sigmoid(x) (1 - sigmoid(x)), b being the gradient that arrives; 1 - sigmoid(x) is sigmoid(-x), which does not cancel. */
#include "kernels/gk/glu.h"

GK_KERNEL(sigmoid_back_f32, gk_binary_args, const GK_GLOBAL float *x, const GK_GLOBAL float *b, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return;
  const float v = x[gk_offset(i, a.x_stride)];
  y[gk_offset(i, a.y_stride)] = b[gk_offset(i, a.b_stride)] * gk_sigmoid(v) * gk_sigmoid(-v);
}
