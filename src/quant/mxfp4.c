/* MXFP4: 32 elements, 17 bytes. Four-bit floats (E2M1) under a shared power of two (E8M0), as in the OCP Microscaling Formats
 * specification 1.0, in the element order of Q4_0: y = 2^(e - 128) * gr_mxfp4_values[code]. The alphabet is doubled, hence 128 and not 127.
 * The specification reserves e = 255 for NaN; GGUF readers take it as the power it spells, 2^127, and so does this one. */
#include "quant/codecs.h"

const int8_t gr_mxfp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* 2^(e - 128), of which the two smallest are denormal. */
static float power(uint8_t e) { return gr_bits_float(e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23); }

void gr_mxfp4_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_mxfp4 *block = x;
  for (int64_t i = 0; i < n; i += GR_QK, block++, y += GR_QK) {
    const float scale = power(block->e);
    float value[16];
    for (int k = 0; k < 16; k++) value[k] = scale * (float)gr_mxfp4_values[k];
    for (int j = 0; j < 16; j++) {
      y[j] = value[block->qs[j] & 15];
      y[j + 16] = value[block->qs[j] >> 4];
    }
  }
}
