/* lint: no matching function */
#include "kernels/gk/index.h"

GK_FN float first(const GK_GLOBAL float *p) { return p[0]; }

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, 64);
  share[gk_tid(t)] = x[0] * a.s;
  gk_barrier(t);
  y[gk_tid(t)] = first(share);
}
