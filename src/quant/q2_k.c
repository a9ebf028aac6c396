/* Q2_K: 256 elements, 84 bytes; 16 sub-blocks of 16, each with a four-bit scale and minimum.
 * Element 128h + 32j + l is bits 2j, 2j + 1 of qs[32h + l]; its sub-block is s = 8h + 2j + l / 16;
 * y = (d * lo(scales[s])) * code - (dmin * hi(scales[s])). */
#include "quant/codecs.h"
#include "quant/ksearch.h"

void gr_q2_k_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q2_k *block = x;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    const float d = gr_load_f16(block->d), dmin = gr_load_f16(block->dmin);
    for (int s = 0; s < 16; s++, y += 16) {
      const uint8_t *qs = block->qs + 32 * (s >> 3) + 16 * (s & 1);
      const int shift = s & 6;
      const float scale = d * (float)(block->scales[s] & 15), min = dmin * (float)(block->scales[s] >> 4);
      for (int l = 0; l < 16; l++) y[l] = scale * (float)(qs[l] >> shift & 3) - min;
    }
  }
}

void gr_q2_k_encode(const float *restrict x, void *restrict y, int64_t n)
{
  static const gr_k_shape shape = { .subs = 16, .len = 16, .codes = { 0, 3 }, .scales = { 0, 15 }, .min_hi = 15 };
  gr_block_q2_k *block = y;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    float clean[GR_QK_K];
    gr_k_fit fit;
    gr_fit_load(x + i, GR_QK_K, clean);
    gr_k_search(clean, &shape, &fit);
    memset(block, 0, sizeof *block);
    gr_store_u16(block->d, fit.d);
    gr_store_u16(block->dmin, fit.dmin);
    for (int s = 0; s < 16; s++) {
      uint8_t *qs = block->qs + 32 * (s >> 3) + 16 * (s & 1);
      block->scales[s] = (uint8_t)(fit.scale[s] | fit.min[s] << 4);
      for (int l = 0; l < 16; l++) qs[l] |= (uint8_t)(fit.code[16 * s + l] << (s & 6));
    }
  }
}
