/* F32. */
#ifndef GK_QUANT_F32_H
#define GK_QUANT_F32_H
#include "kernels/gk/quant_bits.h"

struct gk_f32 {
};

GK_FN void gk_decode8(gk_f32, const GK_GLOBAL uint8_t *row, uint32_t i, uint32_t n, GK_PRIVATE float *v)
{
  for (uint32_t e = 0; e < 8; e++) v[e] = i + e < n ? ((const GK_GLOBAL float *)row)[i + e] : 0.0f;
}

#endif
