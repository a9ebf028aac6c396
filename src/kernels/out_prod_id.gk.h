/* dw[c,j,e] = sum over expert e's pairs of dy[j,i,t] x[c, i mod nb, t]: a group makes a tile of 32 x 32 of one expert's matrix, the pairs
 * in steps of 32, in their order; an expert without pairs gets zeros. */
#include "kernels/gk/experts.h"

/* 32 of the step's rows: tile[k][m], element m0 + m of the row of pair k. */
GK_FN void gk_experts_load_rows(gk_thread t, const GK_CONST_AS gk_experts_args &a, const GK_GLOBAL float *x, uint32_t length, uint32_t rows,
                                const GK_CONST_AS int64_t *stride, uint32_t m0, uint32_t count, const GK_SHARED_AS uint32_t *pair,
                                GK_SHARED_AS float *tile)
{
  for (uint32_t q = gk_tid(t); q < GK_TILE * GK_TILE; q += GK_PRODUCT_THREADS) {
    const uint32_t m = q % GK_TILE, k = q / GK_TILE;
    const bool inside = m0 + m < length && k < count;
    const uint32_t p = inside ? pair[GK_MUTANT(emu_out_prod_id_grad_row_0) ? 0 : k] : 0;
    tile[k * GK_PITCH + m] = inside ? x[(m0 + m) * stride[0] + gk_experts_row(a, p, rows, stride)] : 0.0f;
  }
}

/* w of the arguments is the result; b the gradient, y the input. */
GK_KERNEL(out_prod_id_f32, gk_experts_args, const GK_GLOBAL float *x, const GK_GLOBAL float *dy, const GK_GLOBAL int32_t *perm,
          const GK_GLOBAL int32_t *offsets, GK_GLOBAL float *dw)
{
  GK_ENTER(t);
  GK_SHARED(float, tile_x, GK_TILE_FLOATS);
  GK_SHARED(float, tile_dy, GK_TILE_FLOATS);
  GK_SHARED(uint32_t, pair, GK_TILE);
  const uint32_t c0 = gk_group(t) % a.product.m_tiles * GK_TILE, j0 = gk_group(t) / a.product.m_tiles % a.tiles * GK_TILE;
  const uint32_t expert = gk_group(t) / a.product.m_tiles / a.tiles;
  const uint32_t from = (uint32_t)offsets[expert * a.offset_stride], pairs = (uint32_t)offsets[(expert + 1) * a.offset_stride] - from;
  float total[16], run[16];
  GK_UNROLL for (uint32_t i = 0; i < 16; i++) total[i] = run[i] = 0.0f;
  for (uint32_t k0 = 0; k0 < pairs; k0 += GK_TILE) {
    const uint32_t count = pairs - k0 < GK_TILE ? pairs - k0 : (uint32_t)GK_TILE;
    if (gk_tid(t) < count) pair[gk_tid(t)] = (uint32_t)perm[from + k0 + gk_tid(t)];
    gk_barrier(t);
    gk_experts_load_rows(t, a, x, a.product.m, a.y_rows, a.y_stride, c0, count, pair, tile_x);
    gk_experts_load_rows(t, a, dy, a.product.n, a.b_rows, a.b_stride, j0, count, pair, tile_dy);
    gk_barrier(t);
    gk_tile_add(t, tile_x, tile_dy, run);
    gk_barrier(t); /* the tiles and the pairs are about to be overwritten */
    if ((k0 + GK_TILE) % GK_RUN == 0 || k0 + GK_TILE >= pairs) {
      GK_UNROLL for (uint32_t i = 0; i < 16; i++)
      {
        total[i] = GK_MUTANT(emu_out_prod_id_run_overwrites) ? run[i] : total[i] + run[i];
        run[i] = 0.0f;
      }
    }
  }
  GK_UNROLL for (uint32_t i = 0; i < 16; i++)
  {
    const uint32_t c = c0 + i % 4 * 8 + gk_thread_m(t), j = j0 + i / 4 * 8 + gk_thread_n(t);
    if (c < a.product.m && j < a.product.n) dw[c + j * a.product.y_n_stride + expert * a.w_expert_bytes] = total[i];
  }
}
