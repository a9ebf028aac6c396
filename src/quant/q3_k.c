/* Q3_K: 256 elements, 110 bytes; 16 sub-blocks of 16, each with a signed six-bit scale.
 * Element 128h + 32j + l has its two low bits at bits 2j, 2j + 1 of qs[32h + l] and its third at bit 4h + j of hmask[l];
 * its sub-block is s = 8h + 2j + l / 16; y = (d * scale[s]) * (code - 4). */
#include "quant/codecs.h"
#include "quant/kquant.h"
#include "quant/ksearch.h"

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

void gr_q3_k_encode(const float *restrict x, void *restrict y, int64_t n)
{
  static const gr_k_shape shape = { .subs = 16, .len = 16, .codes = { -4, 3 }, .scales = { -32, 31 }, .min_hi = 0 };
  gr_block_q3_k *block = y;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    float clean[GR_QK_K];
    gr_k_fit fit;
    gr_fit_load(x + i, GR_QK_K, clean);
    gr_k_search(clean, &shape, &fit);
    memset(block, 0, sizeof *block);
    gr_store_u16(block->d, fit.d);
    gr_k_pack_q3_scales(fit.scale, block->scales);
    for (int s = 0; s < 16; s++) {
      uint8_t *qs = block->qs + 32 * (s >> 3) + 16 * (s & 1), *mask = block->hmask + 16 * (s & 1);
      for (int l = 0; l < 16; l++) {
        const int code = fit.code[16 * s + l] + 4;
        qs[l] |= (uint8_t)((code & 3) << (s & 6));
        mask[l] |= (uint8_t)(code >> 2 << (s >> 1));
      }
    }
  }
}
