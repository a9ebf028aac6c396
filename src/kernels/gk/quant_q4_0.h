/* Q4_0: y = d * (code - 8). */
#ifndef GK_QUANT_Q4_0_H
#define GK_QUANT_Q4_0_H
#include "kernels/gk/quant_bits.h"

struct gk_q4_0 {
};

GK_FN void gk_decode8(gk_q4_0, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 18;
  const float d = gk_load_half(block);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * (float)((int32_t)gk_plain_nibble(block + 2, i, e) - 8);
}

#endif
