/* The gradients g [rows,n] of a chunk of logits, from the saved log-sum-exp: dnll (exp(z - lse) - [the label's]) times the logit's slope, 0
 * for masked tokens. Products (gk/product.h) make the rest of head_loss_back of them, a chunk after another. */
#include "kernels/gk/head.h"

/* stats: lse of every token, then dnll. */
template <class Format>
GK_FN void gk_head_back(gk_thread t, const GK_CONST_AS gk_head_args &a, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *h,
                        const GK_GLOBAL int32_t *labels, const GK_GLOBAL float *bias, const GK_GLOBAL uint8_t *b, const GK_GLOBAL float *u,
                        const GK_GLOBAL float *stats, GK_GLOBAL float *g, GK_SHARED_AS float *tile_w, GK_SHARED_AS float *tile_b)
{
  const uint32_t m0 = gk_group(t) % a.chunks * GK_TILE, n0 = gk_group(t) / a.chunks * GK_TILE;
  const bool any = gk_head_any(a, labels, n0);
  float z[16], slope[16];
  if (any) gk_head_logits<Format>(t, a, w, h, bias, b, u, m0, n0, tile_w, tile_b, z, slope);
  GK_UNROLL for (uint32_t i = 0; i < 16; i++)
  {
    const uint32_t m = m0 + i % 4 * 8 + gk_thread_m(t), n = n0 + i / 4 * 8 + gk_thread_n(t);
    if (m >= a.w.m || n >= a.w.n) continue;
    float v = 0.0f;
    if (any && gk_head_trained(a, labels, n)) {
      const float p = gk_exp(z[i] - stats[n]), dnll = stats[a.w.n + n];
      const float hit = (uint32_t)labels[n * a.label_stride] == a.first + m ? 1.0f : 0.0f;
      v = (GK_MUTANT(emu_head_loss_back_no_weight) ? p - dnll * hit : dnll * (p - hit)) * slope[i];
    }
    g[m + (int64_t)n * a.w.m] = v;
  }
}

#define GK_FORMAT(format, dtype)                                                                                                           \
  GK_KERNEL(head_loss_back_##format##_f32, gk_head_args, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *h,                             \
            const GK_GLOBAL int32_t *labels, const GK_GLOBAL float *bias, const GK_GLOBAL uint8_t *b, const GK_GLOBAL float *u,            \
            const GK_GLOBAL float *stats, GK_GLOBAL float *g)                                                                              \
  {                                                                                                                                        \
    GK_ENTER(t);                                                                                                                           \
    GK_SHARED(float, tile_w, GK_TILE_FLOATS);                                                                                              \
    GK_SHARED(float, tile_b, GK_TILE_FLOATS);                                                                                              \
    gk_head_back<gk_##format>(t, a, w, h, labels, bias, b, u, stats, g, tile_w, tile_b);                                                   \
  }
#include "kernels/formats.def"
#undef GK_FORMAT
