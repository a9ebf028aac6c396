/* cache[:,:,ids[t]] = x[:,:,t]: a thread has an element of x; slices whose id lies outside the cache write nothing. Ids inside it differ
 * from each other, so every element has one writer. Elements are rounded to the cache's type as src/base/half.h does it. */
#include "kernels/gk/index.h"

/* Where in the cache the thread's element goes, and its value. False: nowhere. */
GK_FN bool gk_store_element(gk_thread t, const GK_CONST_AS gk_store_args &a, const GK_GLOBAL float *x, const GK_GLOBAL int32_t *ids,
                            GK_PRIVATE int64_t *at, GK_PRIVATE float *value)
{
  uint32_t i[4];
  gk_element(t, a.ne, a.blocks, i);
  if (i[0] >= a.ne[0]) return false;
  const int64_t id = GK_MUTANT(emu_store_rows_slot_0) ? 0 : ids[i[2] * a.id_stride];
  if (id < 0 || id >= a.rows) return false;
  *value = x[gk_offset(i, a.x_stride)];
  *at = i[0] * a.cache_stride[0] + i[1] * a.cache_stride[1] + id * a.cache_stride[2];
  return true;
}

GK_KERNEL(store_rows_f32, gk_store_args, const GK_GLOBAL float *x, const GK_GLOBAL int32_t *ids, GK_GLOBAL float *cache)
{
  GK_ENTER(t);
  int64_t at;
  float v;
  if (gk_store_element(t, a, x, ids, &at, &v)) cache[at] = v;
}

GK_FN uint16_t gk_to_f16(float v)
{
  const uint32_t bits = gk_float_bits(v), sign = bits >> 16 & 0x8000u, mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
  if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or is larger */
  if (mag < 0x38800000u) {                                   /* below 2^-14: a multiple of 2^-24 */
    const float scaled = gk_bits_float(mag) * 16777216.0f;
    uint32_t q = (uint32_t)scaled;
    const float rest = scaled - (float)q;
    if (rest > 0.5f || (rest == 0.5f && (q & 1u))) q++;
    return (uint16_t)(sign | q);
  }
  const uint32_t rounded = mag + 0xfffu + (mag >> 13 & 1u);
  return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

GK_KERNEL(store_rows_f16, gk_store_args, const GK_GLOBAL float *x, const GK_GLOBAL int32_t *ids, GK_GLOBAL uint16_t *cache)
{
  GK_ENTER(t);
  int64_t at;
  float v;
  if (gk_store_element(t, a, x, ids, &at, &v)) cache[at] = gk_to_f16(v);
}

GK_KERNEL(store_rows_bf16, gk_store_args, const GK_GLOBAL float *x, const GK_GLOBAL int32_t *ids, GK_GLOBAL uint16_t *cache)
{
  GK_ENTER(t);
  int64_t at;
  float v;
  if (!gk_store_element(t, a, x, ids, &at, &v)) return;
  const uint32_t bits = gk_float_bits(v);
  cache[at] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
