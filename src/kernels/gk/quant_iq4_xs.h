/* IQ4_XS: y = (d * (scale - 32)) * value[code]. */
#ifndef GK_QUANT_IQ4_XS_H
#define GK_QUANT_IQ4_XS_H
#include "kernels/gk/quant_bits.h"

struct gk_iq4_xs {
};

GK_FN void gk_decode8(gk_iq4_xs, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK_K) * 136;
  const uint32_t at = i % GK_QK_K, s = at / 32;
  const uint32_t low = block[4 + s / 2] >> 4u * (s & 1u) & 15u, high = gk_load_u16(block + 2) >> 2u * s & 3u;
  const float d = gk_load_half(block) * (float)((int32_t)(low | high << 4) - 32);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * gk_iq4_value(gk_plain_nibble(block + 8 + 16 * s, at, e));
}

#endif
