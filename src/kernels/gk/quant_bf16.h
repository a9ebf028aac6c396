/* BF16: the upper half of a float. */
#ifndef GK_QUANT_BF16_H
#define GK_QUANT_BF16_H
#include "kernels/gk/quant_bits.h"

struct gk_bf16 {
};

GK_FN void gk_decode8(gk_bf16, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t n, GK_PRIVATE float *v)
{
  for (uint32_t e = 0; e < 8; e++) v[e] = i + e < n ? gk_bits_float(gk_load_u16(row + 2 * (int64_t)(i + e)) << 16) : 0.0f;
}

#endif
