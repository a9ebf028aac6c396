/* lint: no matching function */
#include "kernels/gk/index.h"

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  float scratch[GK_SUM_SCRATCH];
  y[gk_tid(t)] = gk_group_sum(t, x[0] * a.s, scratch);
}
