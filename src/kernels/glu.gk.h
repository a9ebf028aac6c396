/* y = act(gate) * up. */
#include "kernels/gk/glu.h"

GK_KERNEL(glu_f32, gk_glu_args, const GK_GLOBAL float *gate, const GK_GLOBAL float *up, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return;
  y[gk_offset(i, a.y_stride)] = gk_glu(a.kind, gate[gk_offset(i, a.gate_stride)], up[gk_offset(i, a.up_stride)]).y;
}
