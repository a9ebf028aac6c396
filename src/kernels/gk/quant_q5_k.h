/* Q5_K: y = (d * scale) * code - (dmin * min). */
#ifndef GK_QUANT_Q5_K_H
#define GK_QUANT_Q5_K_H
#include "kernels/gk/quant_bits.h"

struct gk_q5_k {
};

GK_FN void gk_decode8(gk_q5_k, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK_K) * 176;
  const uint32_t at = i % GK_QK_K, s = at / 32, shift = 4u * (s & 1u);
  const GK_GLOBAL uint8_t *qh = block + 16 + at % 32, *qs = block + 48 + s / 2 * 32 + at % 32;
  const float scale = gk_load_half(block) * gk_k_pair(block + 4, s, 0), min = gk_load_half(block + 2) * gk_k_pair(block + 4, s, 1);
  for (uint32_t e = 0; e < 8; e++) v[e] = scale * (float)((qs[e] >> shift & 15u) | (qh[e] >> s & 1u) << 4) - min;
}

#endif
