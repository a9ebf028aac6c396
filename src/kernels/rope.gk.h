/* Rotates pairs of the first 2 * half elements of each row by its token's angles; the rest passes through. A thread has a pair, or an
 * element of the rest. */
#include "kernels/gk/index.h"

GK_KERNEL(rope_f32, gk_rope_args, const GK_GLOBAL float *x, const GK_GLOBAL float *cosines, const GK_GLOBAL float *sines,
          GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  const uint32_t p = i[0];
  i[0] = 0;
  const GK_GLOBAL float *in = x + gk_offset(i, a.x_stride);
  GK_GLOBAL float *out = y + gk_offset(i, a.y_stride);
  if (p >= a.half) {
    const uint32_t rest = p + a.half;
    if (rest < a.ne[0]) out[rest * a.y_stride[0]] = in[rest * a.x_stride[0]];
    return;
  }
  const uint32_t first = a.neox ? p : 2 * p, second = a.neox ? p + a.half : 2 * p + 1;
  const float x0 = in[first * a.x_stride[0]], x1 = in[second * a.x_stride[0]];
  const float c = cosines[p * a.cos_stride[0] + i[2] * a.cos_stride[1]], s = sines[p * a.sin_stride[0] + i[2] * a.sin_stride[1]];
  const float turn = a.inverse && !GK_MUTANT(emu_rope_same_sign) ? -s : s;
  out[first * a.y_stride[0]] = x0 * c - x1 * turn;
  out[second * a.y_stride[0]] = x0 * turn + x1 * c;
}
