/* IQ4_NL: 32 elements, 18 bytes. As Q4_0, the code naming a value of a fixed alphabet: y = d * gr_iq4_values[code]. */
#include "quant/codecs.h"

/* Denser near zero, as weights are. */
const int8_t gr_iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

void gr_iq4_nl_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_iq4_nl *block = x;
  for (int64_t i = 0; i < n; i += GR_QK, block++, y += GR_QK) {
    const float d = gr_load_f16(block->d);
    float value[16];
    for (int k = 0; k < 16; k++) value[k] = d * (float)gr_iq4_values[k];
    for (int j = 0; j < 16; j++) {
      y[j] = value[block->qs[j] & 15];
      y[j + 16] = value[block->qs[j] >> 4];
    }
  }
}
