/* lint: names no address space */
#include "kernels/gk/index.h"

GK_FN void twice(float &v) { v = v + v; }

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  float v = x[0] * a.s;
  twice(v);
  y[gk_tid(t)] = v;
}
