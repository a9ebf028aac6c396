/* Attention in tiles of 16 rows by 32 columns, a group of 128 threads, 8 for each row: scores of queries by keys, or of keys by queries.
 * What a score is made of, and what it weighs, goes through shared memory 32 channels at a time; sums have an order that depends on shapes
 * and segments alone. Which keys a query sees is a range, for those of a segment stand next to each other in ascending position. */
#ifndef GK_ATTENTION_H
#define GK_ATTENTION_H
#include "kernels/gk/gk.h"

enum {
  GK_ATTN_ROWS = 16,
  GK_ATTN_COLS = 32, /* and channels at a time */
  GK_ATTN_PITCH = GK_ATTN_COLS + 1,
  GK_ATTN_THREADS = 128,
  GK_ATTN_PIECES = 8, /* of 32 channels: the most that a head has */
  GK_ATTN_ROWS_FLOATS = GK_ATTN_ROWS * GK_ATTN_PITCH,
  GK_ATTN_COLS_FLOATS = GK_ATTN_COLS * GK_ATTN_PITCH
};

/* The thread's row of the tile, and the first of its four columns, which are 8 apart. */
GK_FN uint32_t gk_attn_row(gk_thread t) { return gk_tid(t) / 8; }
GK_FN uint32_t gk_attn_col(gk_thread t) { return gk_tid(t) % 8; }

/* tile[i][d] = channel d0 + d of vector i0 + i, 0 beyond the last of either. x starts at the head's. */
GK_FN void gk_attn_load(gk_thread t, const GK_GLOBAL float *x, const GK_CONST_AS int64_t *stride, uint32_t i0, uint32_t count, uint32_t d0,
                        uint32_t length, uint32_t rows, GK_SHARED_AS float *tile)
{
  for (uint32_t q = gk_tid(t); q < rows * GK_ATTN_COLS; q += GK_ATTN_THREADS) {
    const uint32_t i = i0 + q / GK_ATTN_COLS, d = d0 + q % GK_ATTN_COLS;
    tile[q / GK_ATTN_COLS * GK_ATTN_PITCH + q % GK_ATTN_COLS] = i < count && d < length ? x[d * stride[0] + i * stride[2]] : 0.0f;
  }
}

/* The four products of the thread's row of x with its columns of y, over all channels. Ends with a barrier. */
GK_FN void gk_attn_dots(gk_thread t, const GK_GLOBAL float *x, const GK_CONST_AS int64_t *x_stride, uint32_t i0, uint32_t rows,
                        const GK_GLOBAL float *y, const GK_CONST_AS int64_t *y_stride, uint32_t j0, uint32_t cols, uint32_t length,
                        GK_SHARED_AS float *tile_x, GK_SHARED_AS float *tile_y, GK_PRIVATE float *dot)
{
  GK_UNROLL for (uint32_t e = 0; e < 4; e++) dot[e] = 0.0f;
  for (uint32_t d0 = 0; d0 < length; d0 += GK_ATTN_COLS) {
    gk_attn_load(t, x, x_stride, i0, rows, d0, length, GK_ATTN_ROWS, tile_x);
    gk_attn_load(t, y, y_stride, j0, cols, d0, length, GK_ATTN_COLS, tile_y);
    gk_barrier(t);
    for (uint32_t d = 0; d < GK_ATTN_COLS; d++) {
      const float v = tile_x[gk_attn_row(t) * GK_ATTN_PITCH + d];
      GK_UNROLL for (uint32_t e = 0; e < 4; e++) dot[e] = gk_fma(v, tile_y[(gk_attn_col(t) + 8 * e) * GK_ATTN_PITCH + d], dot[e]);
    }
    gk_barrier(t); /* the tiles are about to be overwritten */
  }
}

/* sum[] += the thread's row of weights times y's 32 columns: channel 32 piece + 8 u + col is sum[4 piece + u]. Begins and ends with a
 * barrier, so that the weights are there and may then be overwritten. */
GK_FN void gk_attn_weigh(gk_thread t, const GK_SHARED_AS float *weights, const GK_GLOBAL float *y, const GK_CONST_AS int64_t *stride,
                         uint32_t j0, uint32_t cols, uint32_t length, GK_SHARED_AS float *tile, GK_PRIVATE float *sum)
{
  GK_UNROLL for (uint32_t piece = 0; piece < GK_ATTN_PIECES; piece++)
  {
    if (piece * GK_ATTN_COLS >= length) continue;
    gk_attn_load(t, y, stride, j0, cols, piece * GK_ATTN_COLS, length, GK_ATTN_COLS, tile);
    gk_barrier(t);
    for (uint32_t j = 0; j < GK_ATTN_COLS; j++) {
      const float w = weights[gk_attn_row(t) * GK_ATTN_PITCH + j];
      GK_UNROLL for (uint32_t u = 0; u < 4; u++) sum[4 * piece + u] =
          gk_fma(w, tile[j * GK_ATTN_PITCH + 8 * u + gk_attn_col(t)], sum[4 * piece + u]);
    }
    gk_barrier(t);
  }
}

/* Stores the thread's channels of vector i of a head, times `factor`, into y [length,heads,count]. */
GK_FN void gk_attn_store(gk_thread t, GK_GLOBAL float *y, uint32_t head, uint32_t heads, uint32_t i, uint32_t count, uint32_t length,
                         float factor, const GK_PRIVATE float *sum)
{
  GK_UNROLL for (uint32_t e = 0; e < 4 * GK_ATTN_PIECES; e++)
  {
    const uint32_t d = e / 4 * GK_ATTN_COLS + e % 4 * 8 + gk_attn_col(t);
    if (i < count && d < length) y[d + ((int64_t)i * heads + head) * length] = sum[e] * factor;
  }
}

/* The score that a product gives, and how it grows with it. */
GK_FN float gk_attn_score(const GK_CONST_AS gk_attention_args &a, float dot, GK_PRIVATE float *slope)
{
  const float z = a.scale * dot;
  *slope = a.scale;
  if (!(a.softcap > 0.0f) || GK_MUTANT(emu_attention_no_softcap)) return z;
  const float s = gk_tanh(z / a.softcap);
  if (!GK_MUTANT(emu_attention_back_no_softcap)) *slope *= 1.0f - s * s;
  return a.softcap * s;
}

/* From the first key that any of the tile's queries sees to one past the last. The same in every thread. */
GK_FN void gk_attn_span(const GK_CONST_AS gk_attention_args &a, const GK_GLOBAL int32_t *ranges, uint32_t i0, uint32_t rows,
                        GK_PRIVATE uint32_t *from, GK_PRIVATE uint32_t *end)
{
  *from = a.m;
  *end = 0;
  for (uint32_t i = i0; i < i0 + rows && i < a.n; i++) {
    const uint32_t lo = (uint32_t)ranges[2 * i], hi = (uint32_t)ranges[2 * i + 1];
    if (lo >= hi) continue;
    *from = lo < *from ? lo : *from;
    *end = hi > *end ? hi : *end;
  }
}

#endif
