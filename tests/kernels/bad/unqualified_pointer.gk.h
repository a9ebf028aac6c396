/* lint: names no address space */
#include "kernels/gk/index.h"

GK_FN float first(float *p) { return p[0]; }

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  float v[2] = { x[0], a.s };
  y[gk_tid(t)] = first(v);
}
