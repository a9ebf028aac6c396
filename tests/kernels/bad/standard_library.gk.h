/* lint: kernels include only */
#include "kernels/gk/index.h"

#include <math.h>

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  y[gk_tid(t)] = a.s * sqrtf(x[0]);
}
