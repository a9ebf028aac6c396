/* dx = (dz + x * (-(x.dz) / (x.x + n eps))) / sqrt(x.x / n + eps), n elements a row, one group a row. Both sums are two-level: a
 * thread's share, then the group's. */
#include "kernels/gk/index.h"

GK_KERNEL(rms_norm_back_f32, gk_norm_args, const GK_GLOBAL float *x, const GK_GLOBAL float *z, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, scratch, GK_SUM_SCRATCH);
  uint32_t i[4] = { 0, 0, 0, 0 };
  gk_row_split(gk_group(t), a.ne, i);
  const GK_GLOBAL float *in = x + gk_offset(i, a.x_stride), *dz = z + gk_offset(i, a.z_stride);
  GK_GLOBAL float *dx = y + gk_offset(i, a.y_stride);
  float squares = 0.0f, products = 0.0f;
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) {
    const float v = in[c * a.x_stride[0]];
    squares = gk_fma(v, v, squares);
    products = gk_fma(v, dz[c * a.z_stride[0]], products);
  }
  const float xx = gk_group_sum(t, squares, scratch), xdz = gk_group_sum(t, products, scratch), n = (float)a.ne[0];
  const float factor = 1.0f / gk_sqrt(xx / n + a.eps),
              along = xdz == 0.0f || GK_MUTANT(emu_rms_norm_back_no_mean) ? 0.0f : -xdz / (xx + n * a.eps);
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) dx[c] = gk_fma(in[c * a.x_stride[0]], along, dz[c * a.z_stride[0]]) * factor;
}
