/* Dense products with a packed matrix, in tiles: y[m,n] = sum over k of W(m,k) b(k,n), plus z[m,n].
 *
 * A group of 64 threads makes a tile of 32 x 32, 4 x 4 elements a thread. It goes through k in steps of 32: the step's part of W is decoded
 * into shared memory, b's part is put beside it, and every thread adds up its 16 products. An element's terms are added in ascending k,
 * with one rounding each, in runs of GK_RUN that are then added to the total: so a sum of 600,000 terms is as good as one of a few
 * thousand, and its bits depend neither on the tile nor on n. Everything is F32 from the decoder on (nothing is ever staged in half). */
#ifndef GK_PRODUCT_H
#define GK_PRODUCT_H
#include "kernels/gk/quant.h"

enum {
  GK_TILE = 32,
  GK_PITCH = GK_TILE + 1, /* of a step's line in shared memory: one more, for the banks */
  GK_RUN = 256,           /* terms */
  GK_PRODUCT_THREADS = 64,
  GK_TILE_FLOATS = GK_TILE * GK_PITCH
};

/* Where a thread's 4 x 4 elements lie in the tile: rows 8i + m, columns 8j + n. */
GK_FN uint32_t gk_thread_m(gk_thread t) { return gk_tid(t) % 8; }
GK_FN uint32_t gk_thread_n(gk_thread t) { return gk_tid(t) / 8; }

/* b's part: tile_b[k][n]. Neighbouring threads read along whichever direction is dense. */
GK_FN void gk_load_b(gk_thread t, const GK_CONST_AS gk_product_args &a, const GK_GLOBAL float *b, uint32_t k0, uint32_t n0,
                     GK_SHARED_AS float *tile_b)
{
  const bool along_k = a.b_k_stride == 1;
  for (uint32_t q = gk_tid(t); q < GK_TILE * GK_TILE; q += GK_PRODUCT_THREADS) {
    const uint32_t k = along_k ? q % GK_TILE : q / GK_TILE, n = along_k ? q / GK_TILE : q % GK_TILE;
    const bool inside = k0 + k < a.k && n0 + n < a.n;
    int64_t at = (k0 + k) * a.b_k_stride + (GK_MUTANT(emu_out_prod_grad_row_0) ? 0 : n0 + n) * a.b_n_stride;
    if (along_k && a.b_n_stride == a.k && GK_MUTANT(emu_out_prod_swapped_strides)) at = (k0 + k) * (int64_t)a.n + n0 + n;
    tile_b[k * GK_PITCH + n] = GK_MUTANT_HALF(emu_out_prod_half, inside ? b[at] : 0.0f);
  }
}

/* W's part: tile_w[k][m]. W's rows run along k (matmul)... */
template <class Format>
GK_FN void gk_load_w(gk_thread t, const GK_CONST_AS gk_product_args &a, const GK_GLOBAL uint8_t *w, uint32_t k0, uint32_t m0,
                     GK_SHARED_AS float *tile_w)
{
  for (uint32_t q = gk_tid(t); q < GK_TILE * GK_TILE / 8; q += GK_PRODUCT_THREADS) {
    const uint32_t m = q % GK_TILE, k = q / GK_TILE * 8;
    float v[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
    if (m0 + m < a.m && k0 + k < a.k)
      gk_decode8(Format(), w + (GK_MUTANT(emu_matmul_no_tile_offset) ? m : m0 + m) * a.w_row_bytes, k0 + k, a.k, v);
    for (uint32_t e = 0; e < 8; e++) tile_w[(k + e) * GK_PITCH + m] = v[e];
  }
}

/* ... or along m (out_prod). */
template <class Format>
GK_FN void gk_load_w_transposed(gk_thread t, const GK_CONST_AS gk_product_args &a, const GK_GLOBAL uint8_t *w, uint32_t k0, uint32_t m0,
                                GK_SHARED_AS float *tile_w)
{
  for (uint32_t q = gk_tid(t); q < GK_TILE * GK_TILE / 8; q += GK_PRODUCT_THREADS) {
    const uint32_t k = q / (GK_TILE / 8), m = q % (GK_TILE / 8) * 8;
    float v[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
    if (m0 + m < a.m && k0 + k < a.k)
      gk_decode8(Format(), w + (k0 + k) * a.w_row_bytes, GK_MUTANT(emu_out_prod_no_tile_offset) ? m : m0 + m, a.m, v);
    for (uint32_t e = 0; e < 8; e++) tile_w[k * GK_PITCH + m + e] = v[e];
  }
}

/* Adds a step's products to the thread's 16 sums. */
GK_FN void gk_tile_add(gk_thread t, const GK_SHARED_AS float *tile_w, const GK_SHARED_AS float *tile_b, GK_PRIVATE float *sum)
{
  for (uint32_t k = 0; k < GK_TILE; k++) {
    float w[4], b[4];
    GK_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
      w[i] = tile_w[k * GK_PITCH + 8 * i + gk_thread_m(t)];
      b[i] = tile_b[k * GK_PITCH + 8 * i + gk_thread_n(t)];
    }
    GK_UNROLL for (uint32_t i = 0; i < 16; i++) sum[i] = gk_fma(w[i % 4], b[i / 4], sum[i]);
  }
}

/* The thread's 16 sums over all of k. transposed: W's rows run along m. */
template <class Format, bool transposed>
GK_FN void gk_tile_product(gk_thread t, const GK_CONST_AS gk_product_args &a, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *b,
                           uint32_t m0, uint32_t n0, GK_SHARED_AS float *tile_w, GK_SHARED_AS float *tile_b, GK_PRIVATE float *total)
{
  float run[16];
  GK_UNROLL for (uint32_t i = 0; i < 16; i++) total[i] = run[i] = 0.0f;
  for (uint32_t k0 = 0; k0 + (GK_MUTANT(emu_matmul_last_partial_tile) ? GK_TILE - 1 : 0) < a.k; k0 += GK_TILE) {
    if (transposed) gk_load_w_transposed<Format>(t, a, w, k0, m0, tile_w);
    else gk_load_w<Format>(t, a, w, k0, m0, tile_w);
    gk_load_b(t, a, b, k0, n0, tile_b);
    gk_barrier(t);
    gk_tile_add(t, tile_w, tile_b, run);
    if (!GK_MUTANT(emu_matmul_no_barrier)) gk_barrier(t); /* the tiles are about to be overwritten */
    if ((k0 + GK_TILE) % GK_RUN == 0 || k0 + GK_TILE >= a.k) {
      GK_UNROLL for (uint32_t i = 0; i < 16; i++)
      {
        total[i] += run[i];
        run[i] = GK_MUTANT(emu_matmul_no_reset) ? run[i] : 0.0f;
      }
    }
  }
}

/* The whole of a kernel. z is read only when it is to be added. */
template <class Format, bool transposed, bool add>
GK_FN void gk_product(gk_thread t, const GK_CONST_AS gk_product_args &a, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *b,
                      const GK_GLOBAL float *z, GK_GLOBAL float *y, GK_SHARED_AS float *tile_w, GK_SHARED_AS float *tile_b)
{
  const uint32_t m0 = gk_group(t) % a.m_tiles * GK_TILE, n0 = gk_group(t) / a.m_tiles * GK_TILE;
  float total[16];
  gk_tile_product<Format, transposed>(t, a, w, b, m0, n0, tile_w, tile_b, total);
  GK_UNROLL for (uint32_t i = 0; i < 16; i++)
  {
    const uint32_t m = m0 + i % 4 * 8 + gk_thread_m(t), n = n0 + i / 4 * 8 + gk_thread_n(t);
    if (m >= a.m || n >= a.n) continue;
    y[m + (GK_MUTANT(emu_matmul_slot_0) ? n - n0 : n) * a.y_n_stride] =
        add && !GK_MUTANT(emu_matmul_add_no_base) ? z[m * a.z_m_stride + n * a.z_n_stride] + total[i] : total[i];
  }
}

/* The two kernels of one format: the product, and the product added to z. */
#define GK_PRODUCT_KERNELS(op, format, transposed)                                                                                         \
  GK_KERNEL(op##_##format##_f32, gk_product_args, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *b, GK_GLOBAL float *y)                \
  {                                                                                                                                        \
    GK_ENTER(t);                                                                                                                           \
    GK_SHARED(float, tile_w, GK_TILE_FLOATS);                                                                                              \
    GK_SHARED(float, tile_b, GK_TILE_FLOATS);                                                                                              \
    gk_product<gk_##format, transposed, false>(t, a, w, b, b, y, tile_w, tile_b);                                                          \
  }                                                                                                                                        \
  GK_KERNEL(op##_add_##format##_f32, gk_product_args, const GK_GLOBAL float *z, const GK_GLOBAL uint8_t *w, const GK_GLOBAL float *b,      \
            GK_GLOBAL float *y)                                                                                                            \
  {                                                                                                                                        \
    GK_ENTER(t);                                                                                                                           \
    GK_SHARED(float, tile_w, GK_TILE_FLOATS);                                                                                              \
    GK_SHARED(float, tile_b, GK_TILE_FLOATS);                                                                                              \
    gk_product<gk_##format, transposed, true>(t, a, w, b, z, y, tile_w, tile_b);                                                           \
  }

#endif
