/* IQ4_XS: 256 elements, 136 bytes; 8 sub-blocks of 32 laid out as IQ4_NL's, each with a six-bit scale, stored with 32 added.
 * Sub-block b has the four low bits of its scale in lo (b even) or hi (b odd) of scales_l[b / 2] and the two high ones at bits 2b, 2b + 1
 * of scales_h; y = (d * scale) * gr_iq4_values[code]. */
#include "quant/codecs.h"

void gr_iq4_xs_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_iq4_xs *block = x;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    const float d = gr_load_f16(block->d);
    const int high = gr_load_u16(block->scales_h);
    for (int b = 0; b < 8; b++, y += 32) {
      const int scale = (block->scales_l[b >> 1] >> 4 * (b & 1) & 15) | (high >> 2 * b & 3) << 4;
      const float s = d * (float)(scale - 32);
      const uint8_t *qs = block->qs + 16 * b;
      float value[16];
      for (int k = 0; k < 16; k++) value[k] = s * (float)gr_iq4_values[k];
      for (int j = 0; j < 16; j++) {
        y[j] = value[qs[j] & 15];
        y[j + 16] = value[qs[j] >> 4];
      }
    }
  }
}
