/* nll and log-sum-exp of each trained token. A group goes through a chunk of the head's rows for 32 tokens and keeps, of each token, the
 * largest logit, the sum of exponentials relative to it, and the label's logit if it meets that; then a thread a token joins the chunks, in
 * their order. Masked tokens get 0, and 32 of them in a row cost nothing. */
#include "kernels/gk/head.h"

/* A token's running maximum and sum take in a tile's logits of it: column n of tile[m][n]. */
GK_FN void gk_head_take(const GK_SHARED_AS float *tile, uint32_t n, uint32_t rows, GK_PRIVATE float *max, GK_PRIVATE float *sum)
{
  float most = *max;
  for (uint32_t m = 0; m < rows; m++) most = tile[m * GK_PITCH + n] > most ? tile[m * GK_PITCH + n] : most;
  *sum = most > *max ? *sum * gk_exp(*max - most) : *sum;
  *max = most;
  for (uint32_t m = 0; m < rows; m++) *sum += gk_exp(tile[m * GK_PITCH + n] - most);
}

/* parts: of each chunk the maxima of all tokens, then their sums; hits: the label's logits. */
template <class Format>
GK_FN void gk_head_loss(gk_thread t, const GK_CONST_AS gk_head_args &a, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *h,
                        const GK_GLOBAL int32_t *labels, const GK_GLOBAL float *bias, const GK_GLOBAL uint8_t *b, const GK_GLOBAL float *u,
                        GK_GLOBAL float *parts, GK_GLOBAL float *hits, GK_SHARED_AS float *tile_w, GK_SHARED_AS float *tile_b)
{
  const uint32_t chunk = gk_group(t) % a.chunks, n0 = gk_group(t) / a.chunks * GK_TILE, token = n0 + gk_tid(t);
  if (!gk_head_any(a, labels, n0)) return;
  const bool mine = gk_tid(t) < GK_TILE && gk_head_trained(a, labels, token);
  const uint32_t label = mine ? (uint32_t)labels[token * a.label_stride] : 0;
  float max = -gk_bits_float(0x7f800000u), sum = 0.0f, z[16], slope[16];
  for (uint32_t k = 0; k < a.chunk; k++) {
    const uint32_t m0 = (chunk * a.chunk + k) * GK_TILE;
    if (m0 >= a.w.m) break;
    gk_head_logits<Format>(t, a, w, h, bias, b, u, m0, n0, tile_w, tile_b, z, slope);
    GK_UNROLL for (uint32_t i = 0; i < 16; i++) tile_w[(i % 4 * 8 + gk_thread_m(t)) * GK_PITCH + i / 4 * 8 + gk_thread_n(t)] = z[i];
    gk_barrier(t);
    const uint32_t rows = a.w.m - m0 < GK_TILE ? a.w.m - m0 : (uint32_t)GK_TILE;
    if (mine) {
      gk_head_take(tile_w, gk_tid(t), rows, &max, &sum);
      if (label >= m0 && label - m0 < rows) hits[token] = tile_w[(label - m0) * GK_PITCH + gk_tid(t)];
    }
    gk_barrier(t); /* the tile is about to be overwritten */
  }
  if (!mine) return;
  parts[chunk * 2 * a.w.n + token] = max;
  parts[(chunk * 2 + 1) * a.w.n + token] = sum;
}

GK_KERNEL(head_loss_sum, gk_head_args, const GK_GLOBAL int32_t *labels, const GK_GLOBAL float *parts, const GK_GLOBAL float *hits,
          GK_GLOBAL float *nll, GK_GLOBAL float *lse)
{
  GK_ENTER(t);
  const uint32_t token = gk_group(t) * gk_size(t) + gk_tid(t);
  if (token >= a.w.n) return;
  nll[token] = lse[token] = 0.0f;
  if (!gk_head_trained(a, labels, token)) return;
  float max = -gk_bits_float(0x7f800000u), sum = 0.0f;
  for (uint32_t k = 0; k < a.chunks; k++) max = parts[k * 2 * a.w.n + token] > max ? parts[k * 2 * a.w.n + token] : max;
  for (uint32_t k = 0; k < a.chunks; k++) {
    const float part = parts[(k * 2 + 1) * a.w.n + token];
    sum += GK_MUTANT(emu_head_loss_no_rescale) ? part : part * gk_exp(parts[k * 2 * a.w.n + token] - max);
  }
  lse[token] = max + gk_log(sum);
  nll[token] = lse[token] - hits[token];
}

#define GK_FORMAT(format, dtype)                                                                                                           \
  GK_KERNEL(head_loss_##format##_f32, gk_head_args, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *h, const GK_GLOBAL int32_t *labels, \
            const GK_GLOBAL float *bias, const GK_GLOBAL uint8_t *b, const GK_GLOBAL float *u, GK_GLOBAL float *parts,                     \
            GK_GLOBAL float *hits)                                                                                                         \
  {                                                                                                                                        \
    GK_ENTER(t);                                                                                                                           \
    GK_SHARED(float, tile_w, GK_TILE_FLOATS);                                                                                              \
    GK_SHARED(float, tile_b, GK_TILE_FLOATS);                                                                                              \
    gk_head_loss<gk_##format>(t, a, w, h, labels, bias, b, u, parts, hits, tile_w, tile_b);                                                \
  }
#include "kernels/formats.def"
#undef GK_FORMAT
