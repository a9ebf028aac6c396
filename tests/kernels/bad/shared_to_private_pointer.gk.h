/* lint: cannot initialize a variable of type */
#include "kernels/gk/index.h"

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, 64);
  share[gk_tid(t)] = x[0] * a.s;
  gk_barrier(t);
  GK_PRIVATE float *p = share;
  y[gk_tid(t)] = p[0];
}
