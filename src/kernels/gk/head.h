/* Logits of the head, a tile of 32 rows of it by 32 tokens at a time: never stored, but for what a step of the gradient needs. */
#ifndef GK_HEAD_H
#define GK_HEAD_H
#include "kernels/gk/product.h"

GK_FN bool gk_head_trained(const GK_CONST_AS gk_head_args &a, const GK_GLOBAL int32_t *labels, uint32_t token)
{
  if (token >= a.w.n) return false;
  const int32_t label = labels[token * a.label_stride];
  return label >= 0 && (uint32_t)label < a.vocab;
}

/* Whether any of the tile's tokens is trained. The same in every thread. */
GK_FN bool gk_head_any(const GK_CONST_AS gk_head_args &a, const GK_GLOBAL int32_t *labels, uint32_t n0)
{
  bool any = false;
  for (uint32_t n = 0; n < GK_TILE; n++) any = any || gk_head_trained(a, labels, n0 + n);
  return any;
}

/* The thread's 16 logits; slope: of each to what it was made of. bias and u: anything where there are none. */
template <class Format>
GK_FN void gk_head_logits(gk_thread t, const GK_CONST_AS gk_head_args &a, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *h,
                          const GK_GLOBAL float *bias, const GK_GLOBAL uint8_t *b, const GK_GLOBAL float *u, uint32_t m0, uint32_t n0,
                          GK_SHARED_AS float *tile_w, GK_SHARED_AS float *tile_b, GK_PRIVATE float *z, GK_PRIVATE float *slope)
{
  float low[16];
  gk_tile_product<Format, false>(t, a.w, w, h, m0, n0, tile_w, tile_b, z);
  gk_tile_product<gk_f32, false>(t, a.b, b, u, m0, n0, tile_w, tile_b, low);
  GK_UNROLL for (uint32_t i = 0; i < 16; i++)
  {
    const uint32_t m = m0 + i % 4 * 8 + gk_thread_m(t);
    z[i] = a.scale * (z[i] + low[i] + (a.biased && m < a.w.m ? bias[m * a.bias_stride] : 0.0f));
    slope[i] = a.scale;
    if (!(a.softcap > 0.0f)) continue;
    const float s = gk_tanh(z[i] / a.softcap);
    z[i] = a.softcap * s;
    if (!GK_MUTANT(emu_head_loss_back_no_softcap)) slope[i] *= 1.0f - s * s;
  }
}

#endif
