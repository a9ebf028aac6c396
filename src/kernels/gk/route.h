/* What the routing kernels share: one group a token, its gate values in shared memory. Formulas: struct gr_route_params. */
#ifndef GK_ROUTE_H
#define GK_ROUTE_H
#include "kernels/gk/gk.h"

enum { GK_ROUTE_THREADS = 64, GK_ROUTE_USED_MAX = 64, GK_ROUTE_EXPERTS_MAX = 2048 };

/* Of both tails: neither loses what is small. */
GK_FN float gk_gate_sigmoid(float x)
{
  const float e = gk_exp(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* The largest v of the group. */
GK_FN float gk_group_max(gk_thread t, float v, GK_SHARED_AS float *room)
{
  room[gk_tid(t)] = v;
  gk_barrier(t);
  float most = room[0];
  for (uint32_t i = 1; i < gk_size(t); i++) most = room[i] > most ? room[i] : most;
  gk_barrier(t); /* room may be reused */
  return most;
}

/* exp(x - max), 0 for a logit of -infinity whatever max is. */
GK_FN float gk_gate_exp(float x, float max) { return x == -gk_bits_float(0x7f800000u) ? 0.0f : gk_exp(x - max); }

/* gate [E] of the token whose logits start at `logits`: softmax or sigmoid over all experts. Ends with a barrier. */
GK_FN void gk_route_gates(gk_thread t, const GK_CONST_AS gk_route_args &a, const GK_GLOBAL float *logits, GK_SHARED_AS float *gate,
                          GK_SHARED_AS float *room)
{
  float max = -gk_bits_float(0x7f800000u), sum = 0.0f;
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) {
    const float l = logits[x * a.logit_stride[0]];
    max = l > max ? l : max;
  }
  max = gk_group_max(t, max, room);
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) {
    const float l = logits[x * a.logit_stride[0]];
    gate[x] = a.gating == GK_GATE_SIGMOID ? gk_gate_sigmoid(l) : gk_gate_exp(l, max);
    sum += gate[x];
  }
  sum = gk_group_sum(t, sum, room);
  for (uint32_t x = gk_tid(t); a.gating != GK_GATE_SIGMOID && x < a.experts; x += gk_size(t)) gate[x] /= sum;
  gk_barrier(t);
}

#endif
