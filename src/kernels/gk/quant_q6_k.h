/* Q6_K: y = (d * scale) * (code - 32), scales signed. */
#ifndef GK_QUANT_Q6_K_H
#define GK_QUANT_Q6_K_H
#include "kernels/gk/quant_bits.h"

struct gk_q6_k {
};

GK_FN void gk_decode8(gk_q6_k, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK_K) * 210;
  const uint32_t at = i % GK_QK_K, part = at / 32 % 4;
  const GK_GLOBAL uint8_t *ql = block + at / 128 * 64 + part % 2 * 32 + at % 32, *qh = block + 128 + at / 128 * 32 + at % 32;
  const float scale = gk_load_half(block + 208) * (float)gk_signed(block[192 + at / 16]);
  for (uint32_t e = 0; e < 8; e++)
    v[e] = scale * (float)((int32_t)((ql[e] >> 4u * (part / 2u) & 15u) | (qh[e] >> 2u * part & 3u) << 4) - 32);
}

#endif
