/* IQ4_NL: y = d * value[code]. */
#ifndef GK_QUANT_IQ4_NL_H
#define GK_QUANT_IQ4_NL_H
#include "kernels/gk/quant_bits.h"

struct gk_iq4_nl {
};

GK_FN void gk_decode8(gk_iq4_nl, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 18;
  const float d = gk_load_half(block);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * gk_iq4_value(gk_plain_nibble(block + 2, i, e));
}

#endif
