/* lint: calls itself */
#include "kernels/gk/index.h"

GK_FN uint32_t factorial(uint32_t n)
{
  if (n < 2) return 1;
  return n * factorial(n - 1);
}

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  y[gk_tid(t)] = a.s * x[0] * (float)factorial(gk_tid(t));
}
