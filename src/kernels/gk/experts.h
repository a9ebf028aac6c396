/* Products with stacks of experts, in the tiles of gk/product.h: a tile of columns is up to 32 pairs (slot, token) of one expert, found
 * through the grouping (src/ops/experts.h), so that only experts that were chosen cost anything. Sums have the same order and so the same
 * bits as the dense products'. */
#ifndef GK_EXPERTS_H
#define GK_EXPERTS_H
#include "kernels/gk/product.h"

/* Finds what expert's pairs tile `tile` is made of: *first of perm, *count of them. False: past the last expert's. The same walk in every
 * thread of the group. */
GK_FN bool gk_experts_tile(const GK_CONST_AS gk_experts_args &a, const GK_GLOBAL int32_t *offsets, uint32_t tile,
                           GK_PRIVATE uint32_t *expert, GK_PRIVATE uint32_t *first, GK_PRIVATE uint32_t *count)
{
  uint32_t before = 0;
  for (uint32_t x = 0; x < a.experts; x++) {
    const uint32_t from = (uint32_t)offsets[x * a.offset_stride], pairs = (uint32_t)offsets[(x + 1) * a.offset_stride] - from;
    const uint32_t tiles = (pairs + GK_TILE - 1) / GK_TILE;
    if (tile < before + tiles) {
      *expert = x;
      *first = from + (tile - before) * GK_TILE;
      *count = pairs - (tile - before) * GK_TILE;
      if (*count > GK_TILE) *count = GK_TILE;
      return true;
    }
    before += tiles;
  }
  return false;
}

/* Where the row of pair p starts in an array of `rows` rows a token. */
GK_FN int64_t gk_experts_row(const GK_CONST_AS gk_experts_args &a, uint32_t p, uint32_t rows, const GK_CONST_AS int64_t *stride)
{
  return p % a.used % rows * stride[1] + p / a.used * stride[2];
}

/* The tile's rows of b, by pair: tile_b[k][n]. */
GK_FN void gk_experts_load_b(gk_thread t, const GK_CONST_AS gk_experts_args &a, const GK_GLOBAL float *b, uint32_t k0, uint32_t count,
                             const GK_SHARED_AS uint32_t *pair, GK_SHARED_AS float *tile_b)
{
  for (uint32_t q = gk_tid(t); q < GK_TILE * GK_TILE; q += GK_PRODUCT_THREADS) {
    const uint32_t k = q % GK_TILE, n = q / GK_TILE;
    float v = 0.0f;
    if (k0 + k < a.product.k && n < count)
      v = b[(k0 + k) * a.b_stride[0] + gk_experts_row(a, GK_MUTANT(emu_matmul_id_pair_0) ? pair[0] : pair[n], a.b_rows, a.b_stride)];
    tile_b[k * GK_PITCH + n] = GK_MUTANT_HALF(emu_matmul_id_half, v);
  }
}

/* The whole of a kernel: y's rows of the tile's pairs. Groups past the experts' tiles clear the rows of pairs that go nowhere. */
template <class Format, bool transposed>
GK_FN void gk_experts_product(gk_thread t, const GK_CONST_AS gk_experts_args &a, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *b,
                              const GK_GLOBAL int32_t *ids, const GK_GLOBAL int32_t *perm, const GK_GLOBAL int32_t *offsets,
                              GK_GLOBAL float *y, GK_SHARED_AS float *tile_w, GK_SHARED_AS float *tile_b, GK_SHARED_AS uint32_t *pair)
{
  const uint32_t m0 = gk_group(t) % a.product.m_tiles * GK_TILE, tile = gk_group(t) / a.product.m_tiles;
  uint32_t expert = 0, first = 0, count = 0;
  if (tile >= a.tiles) { /* 32 pairs, whoever they go to */
    for (uint32_t q = gk_tid(t); q < GK_TILE * GK_TILE; q += GK_PRODUCT_THREADS) {
      const uint32_t m = m0 + q % GK_TILE, p = (tile - a.tiles) * GK_TILE + q / GK_TILE;
      if (m >= a.product.m || p >= a.pairs) continue;
      const int32_t id = ids[p % a.used * a.id_stride[0] + p / a.used * a.id_stride[1]];
      if ((id < 0 || (uint32_t)id >= a.experts) && !GK_MUTANT(emu_matmul_id_unrouted_left))
        y[m + gk_experts_row(a, p, a.used, a.y_stride)] = 0.0f;
    }
    return;
  }
  if (!gk_experts_tile(a, offsets, tile, &expert, &first, &count)) return;
  if (gk_tid(t) < count) pair[gk_tid(t)] = (uint32_t)perm[first + gk_tid(t)];
  gk_barrier(t);
  const GK_GLOBAL uint8_t *matrix = w + (GK_MUTANT(emu_matmul_id_expert_0) ? 0 : expert) * a.w_expert_bytes;
  float total[16], run[16];
  GK_UNROLL for (uint32_t i = 0; i < 16; i++) total[i] = run[i] = 0.0f;
  for (uint32_t k0 = 0; k0 < a.product.k; k0 += GK_TILE) {
    if (transposed) gk_load_w_transposed<Format>(t, a.product, matrix, k0, m0, tile_w);
    else gk_load_w<Format>(t, a.product, matrix, k0, m0, tile_w);
    gk_experts_load_b(t, a, b, k0, count, pair, tile_b);
    gk_barrier(t);
    gk_tile_add(t, tile_w, tile_b, run);
    gk_barrier(t); /* the tiles are about to be overwritten */
    if ((k0 + GK_TILE) % GK_RUN == 0 || k0 + GK_TILE >= a.product.k) {
      GK_UNROLL for (uint32_t i = 0; i < 16; i++)
      {
        total[i] += run[i];
        run[i] = 0.0f;
      }
    }
  }
  GK_UNROLL for (uint32_t i = 0; i < 16; i++)
  {
    const uint32_t m = m0 + i % 4 * 8 + gk_thread_m(t), n = i / 4 * 8 + gk_thread_n(t);
    if (m < a.product.m && n < count) y[m + gk_experts_row(a, pair[n], a.used, a.y_stride)] = total[i];
  }
}

#define GK_EXPERTS_KERNEL(op, format, transposed)                                                                                          \
  GK_KERNEL(op##_##format##_f32, gk_experts_args, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *b, const GK_GLOBAL int32_t *ids,      \
            const GK_GLOBAL int32_t *perm, const GK_GLOBAL int32_t *offsets, GK_GLOBAL float *y)                                           \
  {                                                                                                                                        \
    GK_ENTER(t);                                                                                                                           \
    GK_SHARED(float, tile_w, GK_TILE_FLOATS);                                                                                              \
    GK_SHARED(float, tile_b, GK_TILE_FLOATS);                                                                                              \
    GK_SHARED(uint32_t, pair, GK_TILE);                                                                                                    \
    gk_experts_product<gk_##format, transposed>(t, a, w, b, ids, perm, offsets, y, tile_w, tile_b, pair);                                  \
  }

#endif
