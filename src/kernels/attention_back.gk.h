/* Gradients of attention in the flash form: probabilities are made anew from the saved log-sum-exp. First each query's and head's dout .
 * out; then dq, one group for 16 queries of a head, over the keys that they see; and dk and dv, one group for 16 keys of a head of theirs,
 * over its query heads and the queries that see them, in ascending order. */
#include "kernels/gk/attention.h"

/* stats [2, heads n]: lse, and then dout . out; one group for each query and head. */
GK_KERNEL(attention_flow_f32, gk_attention_args, const GK_GLOBAL float *out, const GK_GLOBAL float *dout, const GK_GLOBAL float *lse,
          GK_GLOBAL float *stats)
{
  GK_ENTER(t);
  GK_SHARED(float, scratch, GK_SUM_SCRATCH);
  const uint32_t head = gk_group(t) % a.heads, i = gk_group(t) / a.heads;
  const GK_GLOBAL float *x = out + (int64_t)gk_group(t) * a.width, *y = dout + (head * a.dout_stride[1] + i * a.dout_stride[2]);
  float sum = 0.0f;
  for (uint32_t d = gk_tid(t); d < a.width; d += gk_size(t)) sum = gk_fma(x[d], y[d * a.dout_stride[0]], sum);
  sum = gk_group_sum(t, sum, scratch);
  if (gk_tid(t) != 0) return;
  stats[gk_group(t)] = lse[head * a.lse_stride[0] + i * a.lse_stride[1]];
  stats[a.heads * a.n + gk_group(t)] = GK_MUTANT(emu_attention_back_no_flow) ? 0.0f : sum;
}

/* Of one pair that is visible: its probability, and the gradient of its product. */
GK_FN float gk_attn_back(const GK_CONST_AS gk_attention_args &a, const GK_GLOBAL float *stats, uint32_t head, uint32_t i, float dot,
                         float dp, GK_PRIVATE float *ds)
{
  float slope;
  const float s = gk_attn_score(a, dot, &slope), p = gk_exp(s - stats[head + i * a.heads]);
  *ds = p * (dp - stats[a.heads * a.n + head + i * a.heads]) * slope;
  return p;
}

GK_KERNEL(attention_back_f32_q, gk_attention_args, const GK_GLOBAL float *q, const GK_GLOBAL float *k, const GK_GLOBAL float *v,
          const GK_GLOBAL int32_t *ranges, const GK_GLOBAL float *stats, const GK_GLOBAL float *dout, GK_GLOBAL float *dq)
{
  GK_ENTER(t);
  GK_SHARED(float, tile_q, GK_ATTN_ROWS_FLOATS);
  GK_SHARED(float, tile_k, GK_ATTN_COLS_FLOATS);
  GK_SHARED(float, weights, GK_ATTN_ROWS_FLOATS);
  const uint32_t head = gk_group(t) % a.heads, i0 = gk_group(t) / a.heads * GK_ATTN_ROWS, i = i0 + gk_attn_row(t);
  const uint32_t group = head / (a.heads / a.kv_heads);
  const GK_GLOBAL float *keys = k + group * a.k_stride[1], *values = v + group * a.v_stride[1];
  const uint32_t lo = i < a.n ? (uint32_t)ranges[2 * i] : 0, hi = i < a.n ? (uint32_t)ranges[2 * i + 1] : 0;
  float total[4 * GK_ATTN_PIECES], s[4], dp[4];
  uint32_t from, end;
  GK_UNROLL for (uint32_t e = 0; e < 4 * GK_ATTN_PIECES; e++) total[e] = 0.0f;
  gk_attn_span(a, ranges, i0, GK_ATTN_ROWS, &from, &end);
  for (uint32_t j0 = from; j0 < end; j0 += GK_ATTN_COLS) {
    gk_attn_dots(t, q + head * a.q_stride[1], a.q_stride, i0, a.n, keys, a.k_stride, j0, a.m, a.length, tile_q, tile_k, s);
    gk_attn_dots(t, dout + head * a.dout_stride[1], a.dout_stride, i0, a.n, values, a.v_stride, j0, a.m, a.width, tile_q, tile_k, dp);
    GK_UNROLL for (uint32_t e = 0; e < 4; e++)
    {
      const uint32_t j = j0 + gk_attn_col(t) + 8 * e;
      float ds = 0.0f;
      if (j >= lo && j < hi) gk_attn_back(a, stats, head, i, s[e], dp[e], &ds);
      weights[gk_attn_row(t) * GK_ATTN_PITCH + gk_attn_col(t) + 8 * e] = ds;
    }
    gk_attn_weigh(t, weights, keys, a.k_stride, j0, a.m, a.length, tile_k, total);
  }
  gk_attn_store(t, dq, head, a.heads, i, a.n, a.length, 1.0f, total);
}

GK_KERNEL(attention_back_f32_kv, gk_attention_args, const GK_GLOBAL float *q, const GK_GLOBAL float *k, const GK_GLOBAL float *v,
          const GK_GLOBAL int32_t *ranges, const GK_GLOBAL float *stats, const GK_GLOBAL float *dout, GK_GLOBAL float *dk,
          GK_GLOBAL float *dv)
{
  GK_ENTER(t);
  GK_SHARED(float, tile_k, GK_ATTN_ROWS_FLOATS);
  GK_SHARED(float, tile_q, GK_ATTN_COLS_FLOATS);
  GK_SHARED(float, weights, GK_ATTN_ROWS_FLOATS);
  const uint32_t group = gk_group(t) % a.kv_heads, j0 = gk_group(t) / a.kv_heads * GK_ATTN_ROWS, j = j0 + gk_attn_row(t);
  const uint32_t heads = a.heads / a.kv_heads;
  const GK_GLOBAL float *keys = k + group * a.k_stride[1], *values = v + group * a.v_stride[1];
  float of_k[4 * GK_ATTN_PIECES], of_v[4 * GK_ATTN_PIECES], s[4], dp[4], p[4], ds[4];
  uint32_t from, end;
  GK_UNROLL for (uint32_t e = 0; e < 4 * GK_ATTN_PIECES; e++) of_k[e] = of_v[e] = 0.0f;
  for (uint32_t head = group * heads; head < (group + 1) * heads; head++) {
    if (GK_MUTANT(emu_attention_back_first_head) && head % heads != 0) continue;
    const GK_GLOBAL float *queries = q + head * a.q_stride[1], *gradients = dout + head * a.dout_stride[1];
    for (uint32_t i0 = 0; i0 < a.n; i0 += GK_ATTN_COLS) {
      gk_attn_span(a, ranges, i0, GK_ATTN_COLS, &from, &end);
      if (from >= j0 + GK_ATTN_ROWS || end <= j0) continue;
      gk_attn_dots(t, keys, a.k_stride, j0, a.m, queries, a.q_stride, i0, a.n, a.length, tile_k, tile_q, s);
      gk_attn_dots(t, values, a.v_stride, j0, a.m, gradients, a.dout_stride, i0, a.n, a.width, tile_k, tile_q, dp);
      GK_UNROLL for (uint32_t e = 0; e < 4; e++)
      {
        const uint32_t i = i0 + gk_attn_col(t) + 8 * e;
        const bool seen = i < a.n && j >= (uint32_t)ranges[2 * i] && j < (uint32_t)ranges[2 * i + 1];
        p[e] = ds[e] = 0.0f;
        if (seen) p[e] = gk_attn_back(a, stats, head, i, s[e], dp[e], &ds[e]);
        weights[gk_attn_row(t) * GK_ATTN_PITCH + gk_attn_col(t) + 8 * e] = p[e];
      }
      gk_attn_weigh(t, weights, gradients, a.dout_stride, i0, a.n, a.width, tile_q, of_v);
      GK_UNROLL for (uint32_t e = 0; e < 4; e++) weights[gk_attn_row(t) * GK_ATTN_PITCH + gk_attn_col(t) + 8 * e] = ds[e];
      gk_attn_weigh(t, weights, queries, a.q_stride, i0, a.n, a.length, tile_q, of_k);
    }
  }
  gk_attn_store(t, dk, group, a.kv_heads, j, a.m, a.length, 1.0f, of_k);
  gk_attn_store(t, dv, group, a.kv_heads, j, a.m, a.width, 1.0f, of_v);
}
