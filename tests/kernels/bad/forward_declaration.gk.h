/* lint: declared without a body */
#include "kernels/gk/index.h"

GK_FN uint32_t odd(uint32_t n);
GK_FN uint32_t even(uint32_t n) { return n == 0 ? 1 : odd(n - 1); }
GK_FN uint32_t odd(uint32_t n) { return n == 0 ? 0 : even(n - 1); }

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  y[gk_tid(t)] = a.s * x[0] * (float)even(gk_tid(t));
}
