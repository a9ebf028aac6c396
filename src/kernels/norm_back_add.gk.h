/* dx = g + the gradient through rms_norm(x) * w of dy: rms_norm_back of dy * w on top of g, one group a row, its sums as there. dx may be
 * g. */
#include "kernels/gk/index.h"

GK_KERNEL(norm_back_add_f32, gk_norm_add_args, const GK_GLOBAL float *g, const GK_GLOBAL float *x, const GK_GLOBAL float *dy,
          const GK_GLOBAL float *w, GK_GLOBAL float *dx)
{
  GK_ENTER(t);
  GK_SHARED(float, scratch, GK_SUM_SCRATCH);
  uint32_t i[4] = { 0, 0, 0, 0 };
  gk_row_split(gk_group(t), a.ne, i);
  const GK_GLOBAL float *base = g + gk_offset(i, a.g_stride), *in = x + gk_offset(i, a.x_stride), *d = dy + gk_offset(i, a.d_stride);
  GK_GLOBAL float *out = dx + gk_offset(i, a.y_stride);
  float squares = 0.0f, products = 0.0f;
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) {
    const float v = in[c * a.x_stride[0]];
    squares = gk_fma(v, v, squares);
    products = gk_fma(v, d[c * a.d_stride[0]] * w[c * a.w_stride], products);
  }
  const float xx = gk_group_sum(t, squares, scratch), xdz = gk_group_sum(t, products, scratch), n = (float)a.ne[0];
  const float factor = 1.0f / gk_sqrt(xx / n + a.eps), along = xdz == 0.0f ? 0.0f : -xdz / (xx + n * a.eps);
  for (uint32_t c = gk_tid(t); c < a.ne[0]; c += gk_size(t)) {
    const float through = gk_fma(in[c * a.x_stride[0]], along, d[c * a.d_stride[0]] * w[c * a.w_stride]) * factor;
    out[c] = GK_MUTANT(emu_norm_back_add_no_base) ? through : base[c * a.g_stride[0]] + through;
  }
}
