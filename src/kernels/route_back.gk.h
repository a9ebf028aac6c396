/* The gradient of route's weights to the logits, one group a token; src/ops/route_back.c has the formula. What renormalising subtracts from
 * a slot's gradient is taken as the weighted sum of its differences from the others, so that nothing
 * cancels, and so is what a softmax subtracts. */
#include "kernels/gk/route.h"

GK_FN bool gk_route_is(const GK_CONST_AS gk_route_args &a, int32_t id) { return id >= 0 && (uint32_t)id < a.experts; }

/* gate [E] of the token: softmax over the chosen ones alone, 0 for the others. Ends with a barrier. */
GK_FN void gk_route_selected(gk_thread t, const GK_CONST_AS gk_route_args &a, const GK_GLOBAL float *l, const GK_GLOBAL int32_t *ids,
                             GK_SHARED_AS float *gate)
{
  float max = -gk_bits_float(0x7f800000u), sum = 0.0f;
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) gate[x] = 0.0f;
  gk_barrier(t);
  for (uint32_t i = 0; i < a.used; i++) {
    const int32_t id = ids[i * a.id_stride[0]];
    if (gk_route_is(a, id) && l[id * a.logit_stride[0]] > max) max = l[id * a.logit_stride[0]];
  }
  for (uint32_t i = 0; i < a.used; i++) {
    const int32_t id = ids[i * a.id_stride[0]];
    sum += gk_route_is(a, id) ? gk_gate_exp(l[id * a.logit_stride[0]], max) : 0.0f;
  }
  if (gk_tid(t) < a.used) {
    const int32_t id = ids[gk_tid(t) * a.id_stride[0]];
    if (gk_route_is(a, id)) gate[id] = gk_gate_exp(l[id * a.logit_stride[0]], max) / sum;
  }
  gk_barrier(t);
}

/* The gradient ds of slot i's gate. divisor: what the chosen gates were divided by; fixed: it passes no gradient. */
GK_FN float gk_route_slope(const GK_CONST_AS gk_route_args &a, const GK_GLOBAL int32_t *ids, const GK_GLOBAL float *dw,
                           const GK_SHARED_AS float *gate, uint32_t i, float divisor, bool fixed)
{
  const float mine = dw[i * a.w_stride[0]];
  float slope = fixed || GK_MUTANT(emu_route_back_no_renormalise) ? mine : 0.0f;
  for (uint32_t j = 0; j < a.used && !fixed && !GK_MUTANT(emu_route_back_no_renormalise); j++) {
    const int32_t id = ids[j * a.id_stride[0]];
    if (gk_route_is(a, id)) slope = gk_fma(gate[id] / divisor, mine - dw[j * a.w_stride[0]], slope);
  }
  return a.scale / divisor * slope;
}

/* The gates of the thread's share of the experts that were not chosen. */
GK_FN float gk_route_rest(gk_thread t, const GK_CONST_AS gk_route_args &a, const GK_GLOBAL int32_t *ids, const GK_SHARED_AS float *gate)
{
  float rest = 0.0f;
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) {
    bool chosen = false;
    for (uint32_t i = 0; i < a.used; i++) chosen = chosen || ids[i * a.id_stride[0]] == (int32_t)x;
    rest += chosen ? 0.0f : gate[x];
  }
  return rest;
}

/* Where the divisor is fixed, softmax gives ds_x - sum of g_j ds_j; as the gates sum to 1, that is rest ds_x + sum of g_j (ds_x - ds_j).
 */
GK_FN float gk_route_softmax_slope(const GK_CONST_AS gk_route_args &a, const GK_GLOBAL int32_t *ids, const GK_SHARED_AS float *gate,
                                   const GK_SHARED_AS float *ds, uint32_t x, float rest)
{
  float slope = rest * ds[x];
  for (uint32_t i = 0; i < a.used; i++) {
    const int32_t id = ids[i * a.id_stride[0]];
    if (gk_route_is(a, id)) slope = gk_fma(gate[id], ds[x] - ds[id], slope);
  }
  return slope;
}

GK_KERNEL(route_back_f32, gk_route_args, const GK_GLOBAL float *logits, const GK_GLOBAL int32_t *ids, const GK_GLOBAL float *dweights,
          GK_GLOBAL float *dlogits)
{
  GK_ENTER(t);
  GK_SHARED(float, gate, GK_ROUTE_EXPERTS_MAX);
  GK_SHARED(float, ds, GK_ROUTE_EXPERTS_MAX);
  GK_SHARED(float, room, GK_ROUTE_THREADS);
  const uint32_t token = gk_group(t);
  const GK_GLOBAL float *l = logits + token * a.logit_stride[1], *dw = dweights + token * a.w_stride[1];
  const GK_GLOBAL int32_t *chosen = ids + token * a.id_stride[1];
  if (a.gating == GK_GATE_SELECTED) gk_route_selected(t, a, l, chosen, gate);
  else gk_route_gates(t, a, l, gate, room);
  float total = 0.0f;
  for (uint32_t i = 0; i < a.used; i++) total += gk_route_is(a, chosen[i * a.id_stride[0]]) ? gate[chosen[i * a.id_stride[0]]] : 0.0f;
  const bool fixed = !a.renormalise || total < a.clamp;
  const float divisor = !a.renormalise ? 1.0f : fixed ? a.clamp : total;
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) ds[x] = 0.0f;
  gk_barrier(t);
  if (gk_tid(t) < a.used && gk_route_is(a, chosen[gk_tid(t) * a.id_stride[0]]))
    ds[chosen[gk_tid(t) * a.id_stride[0]]] = gk_route_slope(a, chosen, dw, gate, gk_tid(t), divisor, fixed);
  gk_barrier(t);
  const float rest = gk_group_sum(t, gk_route_rest(t, a, chosen, gate), room);
  for (uint32_t x = gk_tid(t); x < a.experts; x += gk_size(t)) {
    float slope = ds[x];
    if (a.gating == GK_GATE_SIGMOID) slope *= gk_gate_sigmoid(-l[x * a.logit_stride[0]]);
    else if (fixed) slope = gk_route_softmax_slope(a, chosen, gate, ds, x, rest);
    dlogits[x * a.y_stride[0] + token * a.y_stride[1]] = gate[x] * slope;
  }
}
