/* Q5_1: 32 elements, 24 bytes. Codes as in Q5_0; y = d * code + m. */
#include "quant/codecs.h"
#include "quant/fit.h"
#include "quant/q5.h"

void gr_q5_1_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q5_1 *block = x;
  for (int64_t i = 0; i < n; i += GR_QK, block++, y += GR_QK) {
    const float d = gr_load_f16(block->d), m = gr_load_f16(block->m);
    uint8_t code[GR_QK];
    gr_q5_unpack(block->qh, block->qs, code);
    for (int j = 0; j < GR_QK; j++) y[j] = d * (float)code[j] + m;
  }
}

void gr_q5_1_encode(const float *restrict x, void *restrict y, int64_t n)
{
  gr_block_q5_1 *block = y;
  for (int64_t i = 0; i < n; i += GR_QK, block++) {
    float clean[GR_QK];
    uint16_t d = 0, m = 0;
    int8_t code[GR_QK] = { 0 };
    gr_fit_load(x + i, GR_QK, clean);
    gr_fit_halves(clean, GR_QK, (gr_codes){ 0, 31 }, GR_OFFSET_ANY, &d, &m, code);
    gr_store_u16(block->d, d);
    gr_store_u16(block->m, m);
    gr_q5_pack(code, 0, block->qh, block->qs);
  }
}
