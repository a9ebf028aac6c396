/* Q3_K: 256 elements, 110 bytes; 16 sub-blocks of 16, each with a signed six-bit scale.
 * Element 128h + 32j + l has its two low bits at bits 2j, 2j + 1 of qs[32h + l] and its third at bit 4h + j of hmask[l];
 * its sub-block is s = 8h + 2j + l / 16; y = (d * scale[s]) * (code - 4). */
#include "quant/codecs.h"
#include "quant/kquant.h"

void gr_q3_k_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q3_k *block = x;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    const float d = gr_load_f16(block->d);
    int8_t scales[16];
    gr_k_unpack_q3_scales(block->scales, scales);
    for (int s = 0; s < 16; s++, y += 16) {
      const uint8_t *qs = block->qs + 32 * (s >> 3) + 16 * (s & 1), *mask = block->hmask + 16 * (s & 1);
      const int shift = s & 6, bit = s >> 1;
      const float scale = d * (float)scales[s];
      for (int l = 0; l < 16; l++) y[l] = scale * (float)(((qs[l] >> shift & 3) | (mask[l] >> bit & 1) << 2) - 4);
    }
  }
}
