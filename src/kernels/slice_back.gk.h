/* Rows of zeros with the rows of x placed at element `first`. A thread has an element of y. */
#include "kernels/gk/index.h"

GK_KERNEL(slice_back_f32, gk_slice_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return;
  const uint32_t first = GK_MUTANT(emu_slice_back_at_0) ? 0 : a.first;
  GK_GLOBAL float *out = y + gk_offset(i, a.y_stride);
  const bool inside = i[0] >= first && i[0] - first < a.length;
  i[0] -= inside ? first : i[0];
  *out = inside ? x[gk_offset(i, a.x_stride)] : 0.0f;
}
