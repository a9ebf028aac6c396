/* lint: unused parameter */
#include "kernels/gk/index.h"

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  y[gk_tid(t)] = x[0];
}
