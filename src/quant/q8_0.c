/* Q8_0: 32 elements, 34 bytes. y[j] = d * qs[j], qs signed. */
#include "quant/codecs.h"

void gr_q8_0_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q8_0 *block = x;
  for (int64_t i = 0; i < n; i += GR_QK, block++, y += GR_QK) {
    const float d = gr_load_f16(block->d);
    for (int j = 0; j < GR_QK; j++) y[j] = d * (float)(int8_t)block->qs[j];
  }
}
