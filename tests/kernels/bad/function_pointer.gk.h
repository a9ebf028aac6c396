/* lint: a function pointer */
#include "kernels/gk/index.h"

GK_FN float twice(float v) { return v + v; }

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  float (*f)(float) = twice;
  y[gk_tid(t)] = a.s * f(x[0]);
}
