/* Attention, one group for 16 queries of a head: a pass over the keys that any of them sees, the running maximum, sum and weighted values
 * of each query scaled down when a larger score comes. A sink is where the maximum and the sum start. */
#include "kernels/gk/attention.h"

/* ranges[2 i], ranges[2 i + 1]: the first key that query i sees, and one past the last. A thread has a query. */
GK_KERNEL(attention_ranges_i32, gk_attention_args, const GK_GLOBAL int32_t *pos_q, const GK_GLOBAL int32_t *seg_q,
          const GK_GLOBAL int32_t *pos_k, const GK_GLOBAL int32_t *seg_k, GK_GLOBAL int32_t *ranges)
{
  GK_ENTER(t);
  const uint32_t i = gk_group(t) * gk_size(t) + gk_tid(t);
  if (i >= a.n) return;
  const int32_t at = pos_q[i * a.index_stride[0]], segment = seg_q[i * a.index_stride[1]];
  uint32_t lo = 0, hi = 0;
  for (uint32_t j = 0; j < a.m; j++) {
    const int32_t ahead = at - pos_k[j * a.index_stride[2]] + (GK_MUTANT(emu_attention_looks_ahead) ? 1 : 0);
    const bool same = seg_k[j * a.index_stride[3]] == segment || GK_MUTANT(emu_attention_no_segment_start);
    const int32_t window = a.window + (GK_MUTANT(emu_attention_window_off_by_one) ? 1 : 0);
    if (segment < 0 || !same || ahead < 0 || (a.window > 0 && ahead >= window)) continue;
    if (lo == hi) lo = j;
    hi = j + 1;
  }
  ranges[2 * i] = (int32_t)lo;
  ranges[2 * i + 1] = (int32_t)hi;
}

/* sinks: anything where there are none. */
GK_KERNEL(attention_f32, gk_attention_args, const GK_GLOBAL float *q, const GK_GLOBAL float *k, const GK_GLOBAL float *v,
          const GK_GLOBAL int32_t *ranges, const GK_GLOBAL float *sinks, GK_GLOBAL float *out, GK_GLOBAL float *lse)
{
  GK_ENTER(t);
  GK_SHARED(float, tile_q, GK_ATTN_ROWS_FLOATS);
  GK_SHARED(float, tile_k, GK_ATTN_COLS_FLOATS);
  GK_SHARED(float, weights, GK_ATTN_ROWS_FLOATS);
  const float nothing = -gk_bits_float(0x7f800000u);
  const uint32_t head = gk_group(t) % a.heads, i0 = gk_group(t) / a.heads * GK_ATTN_ROWS, i = i0 + gk_attn_row(t);
  const uint32_t group = GK_MUTANT(emu_attention_head_0) ? 0 : head / (a.heads / a.kv_heads);
  const GK_GLOBAL float *queries = q + head * a.q_stride[1], *keys = k + group * a.k_stride[1], *values = v + group * a.v_stride[1];
  const uint32_t lo = i < a.n ? (uint32_t)ranges[2 * i] : 0, hi = i < a.n ? (uint32_t)ranges[2 * i + 1] : 0;
  const bool sink = a.sinks && !GK_MUTANT(emu_attention_no_sink);
  float max = sink ? sinks[head * a.sink_stride] : nothing, sum = sink ? 1.0f : 0.0f, total[4 * GK_ATTN_PIECES], s[4], slope;
  uint32_t from, end;
  GK_UNROLL for (uint32_t e = 0; e < 4 * GK_ATTN_PIECES; e++) total[e] = 0.0f;
  gk_attn_span(a, ranges, i0, GK_ATTN_ROWS, &from, &end);
  for (uint32_t j0 = from; j0 < end; j0 += GK_ATTN_COLS) {
    gk_attn_dots(t, queries, a.q_stride, i0, a.n, keys, a.k_stride, j0, a.m, a.length, tile_q, tile_k, s);
    GK_UNROLL for (uint32_t e = 0; e < 4; e++)
    {
      const uint32_t j = j0 + gk_attn_col(t) + 8 * e;
      s[e] = j >= lo && j < hi ? gk_attn_score(a, s[e], &slope) : nothing;
      weights[gk_attn_row(t) * GK_ATTN_PITCH + gk_attn_col(t) + 8 * e] = s[e];
    }
    gk_barrier(t);
    float most = max;
    for (uint32_t j = 0; j < GK_ATTN_COLS; j++) {
      const float other = weights[gk_attn_row(t) * GK_ATTN_PITCH + j];
      most = other > most ? other : most;
    }
    gk_barrier(t);
    GK_UNROLL for (uint32_t e = 0; e < 4; e++) weights[gk_attn_row(t) * GK_ATTN_PITCH + gk_attn_col(t) + 8 * e] =
        s[e] == nothing ? 0.0f : gk_exp(s[e] - most);
    gk_barrier(t);
    const float factor = most == max ? 1.0f : gk_exp(max - most);
    max = most;
    sum *= factor;
    for (uint32_t j = 0; j < GK_ATTN_COLS; j++) sum += weights[gk_attn_row(t) * GK_ATTN_PITCH + j];
    GK_UNROLL for (uint32_t e = 0; e < 4 * GK_ATTN_PIECES; e++) total[e] *= factor;
    gk_attn_weigh(t, weights, values, a.v_stride, j0, a.m, a.width, tile_k, total);
  }
  gk_attn_store(t, out, head, a.heads, i, a.n, a.width, sum > 0.0f ? 1.0f / sum : 0.0f, total);
  if (i < a.n && gk_attn_col(t) == 0) lse[head + i * a.heads] = sum > 0.0f ? max + gk_log(sum) : nothing;
}
