/* Q6_K: 256 elements, 210 bytes; 16 sub-blocks of 16, each with a signed eight-bit scale.
 * Element 128h + 32t + l, t = 0..3: its four low bits are lo (t < 2) or hi (t >= 2) of ql[64h + 32(t & 1) + l], its two high bits are bits
 * 2t, 2t + 1 of qh[32h + l]; its sub-block is s = 8h + 2t + l / 16; y = (d * scales[s]) * (code - 32). */
#include "quant/codecs.h"
#include "quant/ksearch.h"

void gr_q6_k_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const gr_block_q6_k *block = x;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    const float d = gr_load_f16(block->d);
    for (int s = 0; s < 16; s++, y += 16) {
      const int h = s >> 3, t = s >> 1 & 3, side = 16 * (s & 1);
      const uint8_t *ql = block->ql + 64 * h + 32 * (t & 1) + side, *qh = block->qh + 32 * h + side;
      const int low = 4 * (t >> 1), high = 2 * t;
      const float scale = d * (float)(int8_t)block->scales[s];
      for (int l = 0; l < 16; l++) y[l] = scale * (float)(((ql[l] >> low & 15) | (qh[l] >> high & 3) << 4) - 32);
    }
  }
}

void gr_q6_k_encode(const float *restrict x, void *restrict y, int64_t n)
{
  static const gr_k_shape shape = { .subs = 16, .len = 16, .codes = { -32, 31 }, .scales = { -128, 127 }, .min_hi = 0 };
  gr_block_q6_k *block = y;
  for (int64_t i = 0; i < n; i += GR_QK_K, block++) {
    float clean[GR_QK_K];
    gr_k_fit fit;
    gr_fit_load(x + i, GR_QK_K, clean);
    gr_k_search(clean, &shape, &fit);
    memset(block, 0, sizeof *block);
    gr_store_u16(block->d, fit.d);
    for (int s = 0; s < 16; s++) {
      const int h = s >> 3, t = s >> 1 & 3, side = 16 * (s & 1);
      uint8_t *ql = block->ql + 64 * h + 32 * (t & 1) + side, *qh = block->qh + 32 * h + side;
      block->scales[s] = (uint8_t)fit.scale[s];
      for (int l = 0; l < 16; l++) {
        const int code = fit.code[16 * s + l] + 32;
        ql[l] |= (uint8_t)((code & 15) << 4 * (t >> 1));
        qh[l] |= (uint8_t)(code >> 4 << 2 * t);
      }
    }
  }
}
