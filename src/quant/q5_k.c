/* Q5_K: 256 elements, 176 bytes; as Q4_K, with the fifth bit of an element of sub-block s at bit s of qh[l]. */
#include "quant/codecs.h"
#include "quant/kquant.h"

void gr_q5_k_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q5_k *block = x;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    const float d = gr_load_f16(block->d), dmin = gr_load_f16(block->dmin);
    uint8_t scales[8], mins[8];
    gr_k_unpack_pairs(block->scales, scales, mins);
    for (int s = 0; s < 8; s++, y += 32) {
      const uint8_t *qs = block->qs + 32 * (s >> 1), *qh = block->qh;
      const int shift = 4 * (s & 1);
      const float scale = d * (float)scales[s], min = dmin * (float)mins[s];
      for (int l = 0; l < 32; l++) y[l] = scale * (float)((qs[l] >> shift & 15) | (qh[l] >> s & 1) << 4) - min;
    }
  }
}
