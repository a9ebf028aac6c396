/* MXFP4: y = 2^(e - 128) * value[code]; the two smallest powers are denormal. */
#ifndef GK_QUANT_MXFP4_H
#define GK_QUANT_MXFP4_H
#include "kernels/gk/quant_bits.h"

struct gk_mxfp4 {
};

GK_FN void gk_decode8(gk_mxfp4, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t, GK_PRIVATE float *v)
{
  const GK_GLOBAL uint8_t *block = row + (int64_t)(i / GK_QK) * 17;
  const uint32_t x = block[0];
  const float d = gk_bits_float(x < 2u ? 0x00200000u << x : (x - 1u) << 23);
  for (uint32_t e = 0; e < 8; e++) v[e] = d * gk_mxfp4_value(gk_plain_nibble(block + 1, i, e));
}

#endif
