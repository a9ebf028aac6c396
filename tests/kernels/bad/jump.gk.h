/* lint: poisoned */
#include "kernels/gk/index.h"

GK_KERNEL(bad_f32, gk_unary_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  if (gk_tid(t) > 3) goto end;
  y[gk_tid(t)] = a.s * x[0];
end:
  return;
}
