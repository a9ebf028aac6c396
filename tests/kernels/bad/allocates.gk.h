/* lint: poisoned */
#include "kernels/gk/index.h"

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_PRIVATE float *p = new float[2];
  p[0] = x[0];
  y[gk_tid(t)] = a.s * p[0];
}
