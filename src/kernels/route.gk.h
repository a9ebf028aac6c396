/* The experts of each token and their weights (struct gr_route_params), one group a token. The choice goes by slots: every thread looks
 * through its share of the scores for the best that is left, and the group's best of those is taken: equal scores by the lower expert. */
#include "kernels/gk/route.h"

/* Whether expert x with score s goes before expert y with score r. NaN: taken, or nobody. */
GK_FN bool gk_route_before(float s, uint32_t x, float r, uint32_t y)
{
  if (s != s) return false;
  if (r != r) return true;
  return s > r || (s == r && (GK_MUTANT(emu_route_ties_reversed) ? x > y : x < y));
}

/* Takes the best expert out of score; the same in every thread. */
GK_FN uint32_t gk_route_take(gk_thread t, uint32_t experts, GK_SHARED_AS float *score, GK_SHARED_AS float *room, GK_SHARED_AS uint32_t *who)
{
  const float taken = gk_bits_float(0x7fc00000u);
  float best = taken;
  uint32_t expert = experts;
  for (uint32_t x = gk_tid(t); x < experts; x += gk_size(t))
    if (gk_route_before(score[x], x, best, expert)) best = score[x], expert = x;
  room[gk_tid(t)] = best;
  who[gk_tid(t)] = expert;
  gk_barrier(t);
  for (uint32_t i = 0; i < gk_size(t); i++)
    if (gk_route_before(room[i], who[i], best, expert)) best = room[i], expert = who[i];
  if (expert % gk_size(t) == gk_tid(t)) score[expert] = taken;
  gk_barrier(t);
  return expert;
}

/* bias: anything where there is none. */
GK_KERNEL(route_f32, gk_route_args, const GK_GLOBAL float *logits, const GK_GLOBAL float *bias, GK_GLOBAL float *weights,
          GK_GLOBAL int32_t *ids)
{
  GK_ENTER(t);
  GK_SHARED(float, gate, GK_ROUTE_EXPERTS_MAX);
  GK_SHARED(float, score, GK_ROUTE_EXPERTS_MAX);
  GK_SHARED(float, room, GK_ROUTE_THREADS);
  GK_SHARED(uint32_t, who, GK_ROUTE_THREADS);
  GK_SHARED(uint32_t, chosen, GK_ROUTE_USED_MAX);
  const uint32_t token = gk_group(t);
  const GK_GLOBAL float *l = logits + token * a.logit_stride[1];
  if (a.gating != GK_GATE_SELECTED) gk_route_gates(t, a, l, gate, room);
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) {
    float s = a.biased && a.gating != GK_GATE_SELECTED ? gate[x] : l[x * a.logit_stride[0]];
    if (a.biased && !GK_MUTANT(emu_route_no_bias)) s += bias[x * a.bias_stride];
    score[x] = s != s ? -gk_bits_float(0x7f800000u) : s;
  }
  gk_barrier(t);
  for (uint32_t i = 0; i < a.used; i++) {
    const uint32_t expert = gk_route_take(t, a.experts, score, room, who);
    if (gk_tid(t) == 0) chosen[i] = expert;
  }
  gk_barrier(t);
  if (gk_tid(t) >= a.used) return;
  ids[gk_tid(t) * a.id_stride[0] + token * a.id_stride[1]] = (int32_t)chosen[gk_tid(t)];
  const bool selected = a.gating == GK_GATE_SELECTED;
  float max = -gk_bits_float(0x7f800000u), sum = 0.0f;
  for (uint32_t i = 0; i < a.used && selected; i++) {
    const float v = l[chosen[i] * a.logit_stride[0]];
    max = v > max ? v : max;
  }
  for (uint32_t i = 0; i < a.used; i++) sum += selected ? gk_gate_exp(l[chosen[i] * a.logit_stride[0]], max) : gate[chosen[i]];
  const uint32_t mine = chosen[gk_tid(t)];
  const float g = selected ? gk_gate_exp(l[mine * a.logit_stride[0]], max) / sum : gate[mine], of_all = selected ? 1.0f : sum;
  const float divisor = !a.renormalise ? 1.0f : of_all < a.clamp && !GK_MUTANT(emu_route_no_clamp) ? a.clamp : of_all;
  weights[gk_tid(t) * a.y_stride[0] + token * a.y_stride[1]] = a.scale * g / divisor;
}
