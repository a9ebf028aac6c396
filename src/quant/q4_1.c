/* Q4_1: 32 elements, 20 bytes. Element j is lo(qs[j]), element 16 + j is hi(qs[j]); y = d * code + m. */
#include "quant/codecs.h"
#include "quant/fit.h"

void gr_q4_1_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q4_1 *block = x;
  for (int64_t i = 0; i < n; i += GR_QK, block++, y += GR_QK) {
    const float d = gr_load_f16(block->d), m = gr_load_f16(block->m);
    for (int j = 0; j < 16; j++) y[j] = d * (float)(block->qs[j] & 15) + m;
    for (int j = 0; j < 16; j++) y[j + 16] = d * (float)(block->qs[j] >> 4) + m;
  }
}

void gr_q4_1_encode(const float *restrict x, void *restrict y, int64_t n)
{
  gr_block_q4_1 *block = y;
  for (int64_t i = 0; i < n; i += GR_QK, block++) {
    float clean[GR_QK];
    uint16_t d = 0, m = 0;
    int8_t code[GR_QK] = { 0 };
    gr_fit_load(x + i, GR_QK, clean);
    gr_fit_halves(clean, GR_QK, (gr_codes){ 0, 15 }, GR_OFFSET_ANY, &d, &m, code);
    gr_store_u16(block->d, d);
    gr_store_u16(block->m, m);
    for (int j = 0; j < 16; j++) block->qs[j] = (uint8_t)(code[j] | code[j + 16] << 4);
  }
}
