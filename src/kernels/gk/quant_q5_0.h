/* Q5_0: y = d * (code - 16). */
#ifndef GK_QUANT_Q5_0_H
#define GK_QUANT_Q5_0_H
#include "kernels/gk/quant_bits.h"

struct gk_q5_0 {
};

GK_FN void gk_decode8(gk_q5_0, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 22;
  const float d = gk_load_half(block);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * (float)((int32_t)gk_plain_five(block + 2, block + 6, i, e) - 16);
}

#endif
