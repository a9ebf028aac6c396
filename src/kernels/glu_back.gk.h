/* Gradients of glu to gate and up, from d, the gradient of its result. */
#include "kernels/gk/glu.h"

GK_KERNEL(glu_back_f32, gk_glu_args, const GK_GLOBAL float *gate, const GK_GLOBAL float *up, const GK_GLOBAL float *d,
          GK_GLOBAL float *dgate, GK_GLOBAL float *dup)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return;
  const gk_glu_value v = gk_glu(a.kind, gate[gk_offset(i, a.gate_stride)], up[gk_offset(i, a.up_stride)]);
  const float dy = GK_MUTANT(emu_glu_back_ignores_grad) ? 1.0f : d[gk_offset(i, a.d_stride)];
  const int64_t at = gk_offset(i, a.y_stride);
  dgate[at] = dy * v.dg;
  dup[at] = dy * v.du;
}
