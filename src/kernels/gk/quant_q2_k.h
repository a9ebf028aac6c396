/* Q2_K: y = (d * scale) * code - (dmin * min). */
#ifndef GK_QUANT_Q2_K_H
#define GK_QUANT_Q2_K_H
#include "kernels/gk/quant_bits.h"

struct gk_q2_k {
};

GK_FN void gk_decode8(gk_q2_k, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK_K) * 84;
  const uint32_t at = i % GK_QK_K, pair = block[at / 16], shift = at / 32 % 4 * 2;
  const GK_GLOBAL uint8_t *qs = block + 16 + at / 128 * 32 + at % 32;
  const float scale = gk_load_half(block + 80) * (float)(pair & 15u), min = gk_load_half(block + 82) * (float)(pair >> 4);
  for (uint32_t e = 0; e < 8; e++) v[e] = scale * (float)(qs[e] >> shift & 3u) - min;
}

#endif
