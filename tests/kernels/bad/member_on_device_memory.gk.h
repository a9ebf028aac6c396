/* lint: 'this' argument to member function */
#include "kernels/gk/index.h"

struct pair {
  float a, b;
  float sum() const { return a + b; }
};

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  const GK_GLOBAL pair *p = (const GK_GLOBAL pair *)x;
  y[gk_tid(t)] = a.s * p->sum();
}
