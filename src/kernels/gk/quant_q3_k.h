/* Q3_K: y = (d * scale) * (code - 4). */
#ifndef GK_QUANT_Q3_K_H
#define GK_QUANT_Q3_K_H
#include "kernels/gk/quant_bits.h"

struct gk_q3_k {
};

GK_FN void gk_decode8(gk_q3_k, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK_K) * 110;
  const uint32_t at = i % GK_QK_K, s = at / 16, bit = at / 32;
  const GK_GLOBAL uint8_t *mask = block + at % 32, *qs = block + 32 + at / 128 * 32 + at % 32, *packed = block + 96;
  const uint32_t low = s < 8u ? packed[s] & 15u : packed[s - 8u] >> 4, high = packed[8u + s % 4u] >> 2u * (s / 4u) & 3u;
  const float scale = gk_load_half(block + 108) * (float)((int32_t)(low | high << 4) - 32);
  for (uint32_t e = 0; e < 8; e++) v[e] = scale * (float)((int32_t)((qs[e] >> 2u * (bit % 4u) & 3u) | (mask[e] >> bit & 1u) << 2) - 4);
}

#endif
