/* y[j] = sum of x[i] over all i with i mod n == j, n being y's shape. One writer an element; the sum is compensated (Kahan), for
 * biases get one term a token. */
#include "kernels/gk/index.h"

GK_KERNEL(repeat_back_f32, gk_repeat_args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t j[4], i[4];
  gk_element(t, a.y_ne, a.blocks, j);
  if (j[0] >= a.y_ne[0]) return;
  float sum = 0.0f, lost = 0.0f;
  for (i[3] = j[3]; i[3] < a.x_ne[3]; i[3] += a.y_ne[3])
    for (i[2] = j[2]; i[2] < a.x_ne[2]; i[2] += a.y_ne[2])
      for (i[1] = j[1]; i[1] < (GK_MUTANT(emu_repeat_back_first_row) ? j[1] + 1 : a.x_ne[1]); i[1] += a.y_ne[1])
        for (i[0] = j[0]; i[0] < a.x_ne[0]; i[0] += a.y_ne[0]) {
          const float term = x[gk_offset(i, a.x_stride)] - lost, next = sum + term;
          lost = next - sum - term;
          sum = next;
        }
  y[gk_offset(j, a.y_stride)] = sum;
}
