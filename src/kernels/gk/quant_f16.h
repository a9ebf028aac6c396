/* F16. */
#ifndef GK_QUANT_F16_H
#define GK_QUANT_F16_H
#include "kernels/gk/quant_bits.h"

struct gk_f16 {
};

GK_FN void gk_decode8(gk_f16, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t n, GK_PRIVATE float *v)
{
  for (uint32_t e = 0; e < 8; e++) v[e] = i + e < n ? gk_load_half(row + 2 * (int64_t)(i + e)) : 0.0f;
}

#endif
