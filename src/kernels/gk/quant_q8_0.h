/* Q8_0: y = d * code, signed bytes. */
#ifndef GK_QUANT_Q8_0_H
#define GK_QUANT_Q8_0_H
#include "kernels/gk/quant_bits.h"

struct gk_q8_0 {
};

GK_FN void gk_decode8(gk_q8_0, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 34;
  const float d = gk_load_half(block);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * (float)gk_signed(block[2 + i % GK_QK + e]);
}

#endif
