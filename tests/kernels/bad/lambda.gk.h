/* lint: a lambda */
#include "kernels/gk/index.h"

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  const float s = a.s;
  auto f = [=](float v) { return v * s; };
  y[gk_tid(t)] = f(x[0]);
}
