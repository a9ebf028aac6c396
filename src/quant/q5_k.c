/* Q5_K: 256 elements, 176 bytes; as Q4_K, with the fifth bit of an element of sub-block s at bit s of qh[l]. */
#include "quant/codecs.h"
#include "quant/kquant.h"
#include "quant/ksearch.h"

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

void gr_q5_k_encode(const float *restrict x, void *restrict y, int64_t n)
{
  static const gr_k_shape shape = { .subs = 8, .len = 32, .codes = { 0, 31 }, .scales = { 0, 63 }, .min_hi = 63 };
  gr_block_q5_k *block = y;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    float clean[GR_QK_K];
    gr_k_fit fit;
    gr_fit_load(x + i, GR_QK_K, clean);
    gr_k_search(clean, &shape, &fit);
    memset(block, 0, sizeof *block);
    gr_store_u16(block->d, fit.d);
    gr_store_u16(block->dmin, fit.dmin);
    gr_k_pack_pairs(fit.scale, fit.min, block->scales);
    for (int s = 0; s < 8; s++)
      for (int l = 0; l < 32; l++) {
        const int code = fit.code[32 * s + l];
        block->qs[32 * (s >> 1) + l] |= (uint8_t)((code & 15) << 4 * (s & 1));
        block->qh[l] |= (uint8_t)(code >> 4 << s);
      }
  }
}
