/* Q4_1: y = d * code + m. */
#ifndef GK_QUANT_Q4_1_H
#define GK_QUANT_Q4_1_H
#include "kernels/gk/quant_bits.h"

struct gk_q4_1 {
};

GK_FN void gk_decode8(gk_q4_1, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 20;
  const float d = gk_load_half(block), m = gk_load_half(block + 2);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * (float)gk_plain_nibble(block + 4, i, e) + m;
}

#endif
