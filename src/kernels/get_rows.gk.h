/* y[:,t,b] = row ids[t,b] of the table, decoded, for every weight type: a thread has 8 elements. An id outside the table gives zeros. */
#include "kernels/gk/index.h"
#include "kernels/gk/quant.h"

template <class Format>
GK_FN void gk_get_row(gk_thread t, const GK_CONST_AS gk_rows_args &a, const GK_GLOBAL uint8_t *table, const GK_GLOBAL int32_t *ids,
                      GK_GLOBAL float *y)
{
  uint32_t i[4];
  gk_element(t, a.walk, a.blocks, i);
  const uint32_t first = 8 * i[0];
  if (first >= a.length) return;
  const int64_t id = ids[i[1] * a.id_stride[0] + i[2] * a.id_stride[1] + i[3] * a.id_stride[2]];
  const int64_t batch =
      (GK_MUTANT(emu_get_rows_no_batch) ? 0 : i[2] % a.table_ne[1]) * a.table_bytes[1] + i[3] % a.table_ne[2] * a.table_bytes[2];
  float v[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
  if (id >= 0 && id < a.table_ne[0]) gk_decode8(Format(), table + (id * a.table_bytes[0] + batch), first, a.length, v);
  i[0] = 0;
  GK_GLOBAL float *out = y + gk_offset(i, a.y_stride);
  for (uint32_t e = 0; e < 8; e++)
    if (first + e < a.length) out[(first + e) * a.y_stride[0]] = v[e];
}

#define GK_FORMAT(format, dtype)                                                                                                           \
  GK_KERNEL(get_rows_##format##_f32, gk_rows_args, const GK_GLOBAL uint8_t *table, const GK_GLOBAL int32_t *ids, GK_GLOBAL float *y)       \
  {                                                                                                                                        \
    GK_ENTER(t);                                                                                                                           \
    gk_get_row<gk_##format>(t, a, table, ids, y);                                                                                          \
  }
#include "kernels/formats.def"
#undef GK_FORMAT
