/* lint: poisoned */
#include "kernels/gk/index.h"

struct base {
  virtual float get() const { return 1.0f; }
};

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  const base v;
  y[gk_tid(t)] = a.s * x[0] * v.get();
}
