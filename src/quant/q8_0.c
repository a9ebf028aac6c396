/* Q8_0: 32 elements, 34 bytes. y[j] = d * qs[j], qs signed. */
#include "quant/codecs.h"
#include "quant/fit.h"

void gr_q8_0_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q8_0 *block = x;
  for (int64_t i = 0; i < n; i += GR_QK, block++, y += GR_QK) {
    const float d = gr_load_f16(block->d);
    for (int j = 0; j < GR_QK; j++) y[j] = d * (float)(int8_t)block->qs[j];
  }
}

void gr_q8_0_encode(const float *restrict x, void *restrict y, int64_t n)
{
  gr_block_q8_0 *block = y;
  for (int64_t i = 0; i < n; i += GR_QK, block++) {
    float clean[GR_QK];
    uint16_t d = 0, m = 0;
    int8_t code[GR_QK] = { 0 };
    gr_fit_load(x + i, GR_QK, clean);
    gr_fit_halves(clean, GR_QK, (gr_codes){ -127, 127 }, GR_OFFSET_NONE, &d, &m, code);
    gr_store_u16(block->d, d);
    for (int j = 0; j < GR_QK; j++) block->qs[j] = (uint8_t)code[j];
  }
}
