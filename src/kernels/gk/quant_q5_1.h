/* Q5_1: y = d * code + m. */
#ifndef GK_QUANT_Q5_1_H
#define GK_QUANT_Q5_1_H
#include "kernels/gk/quant_bits.h"

struct gk_q5_1 {
};

GK_FN void gk_decode8(gk_q5_1, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 24;
  const float d = gk_load_half(block), m = gk_load_half(block + 2);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * (float)gk_plain_five(block + 4, block + 8, i, e) + m;
}

#endif
