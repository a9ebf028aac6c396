/* y = 0, then y[:,ids[t,b],b] += x[:,t,b]: the adjoint of get_rows. A thread has a column of y, of every row, and adds in ascending t: one
 * writer for each element. Right for tables of biases; a large one would want its rows dealt out too. */
#include "kernels/gk/index.h"

GK_KERNEL(get_rows_back_f32, gk_rows_back_args, const GK_GLOBAL float *x, const GK_GLOBAL int32_t *ids, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t j[4], i[4];
  gk_element(t, a.walk, a.blocks, j);
  if (j[0] >= a.walk[0]) return;
  GK_GLOBAL float *column = y + gk_offset(j, a.y_stride);
  for (uint32_t v = 0; v < a.rows; v++) column[v * a.y_stride[1]] = 0.0f;
  i[0] = j[0];
  for (i[3] = j[3]; i[3] < a.x_ne[3]; i[3] += a.walk[3])
    for (i[2] = j[2]; i[2] < a.x_ne[2]; i[2] += a.walk[2])
      for (i[1] = 0; i[1] < a.x_ne[1]; i[1]++) {
        const int64_t id = ids[i[1] * a.id_stride[0] + i[2] * a.id_stride[1] + i[3] * a.id_stride[2]];
        if (id < 0 || id >= a.rows) continue;
        const float before = GK_MUTANT(emu_get_rows_back_overwrites) ? 0.0f : column[id * a.y_stride[1]];
        column[id * a.y_stride[1]] = before + x[gk_offset(i, a.x_stride)];
      }
}
