/* Rows of logits: the tail of head and loss. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/vmath.h"
#include "base/mutant.h"

void GR_ISA_FN(soften)(float *z, float scale, float cap, int64_t n)
{
  if (!(cap > 0)) {
    if (scale < 1 || scale > 1) GR_ISA_FN(scale)(z, z, scale, n);
    return;
  }
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vstore_part(z + i, cap * vtanh(vload_part(z + i, live) * scale / cap), live);
  }
}

/* The last vector of a row, filled up with -inf. */
static inline vf load_end(const float *z, int64_t n)
{
  float end[GR_LANES];
  vstore(end, vset(-INFINITY));
  memcpy(end, z, (size_t)n * sizeof *z);
  return vload(end);
}

double GR_ISA_FN(sum_exp)(const float *z, int64_t n, float *largest)
{
  int64_t whole = n - n % GR_LANES;
  vf top = vset(-INFINITY), end = load_end(z + whole, n - whole);
  for (int64_t i = 0; i < whole; i += GR_LANES) top = vmax(vload(z + i), top);
  *largest = vmax_lanes(vmax(end, top));
  float base = *largest > -INFINITY ? *largest : 0;
  vdouble low = { 0 }, high = { 0 };
  for (int64_t i = 0; i < whole; i += GR_LANES) {
    vf e = vexp(vload(z + i) - base);
    low += vwiden_low(e);
    high += vwiden_high(e);
  }
  end = vexp(end - base);
  return vsum(low + vwiden_low(end) + (high + vwiden_high(end)));
}

void GR_ISA_FN(loss_gradient)(float *z, float lse, int64_t label, float dnll, float scale, float cap, int64_t n)
{
  bool here = label >= 0 && label < n;
  float weight = dnll * scale, at_label = here && cap > 0 ? 1 - z[label] / cap * (z[label] / cap) : 1;
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf v = vload_part(z + i, live), g = vexp(v - lse) * (GR_MUTANT(head_loss_back_no_weight) ? scale : weight);
    if (cap > 0 && !GR_MUTANT(head_loss_back_no_softcap)) g *= 1.0f - v / cap * (v / cap);
    vstore_part(z + i, g, live);
  }
  if (here) z[label] -= weight * at_label;
}

double GR_ISA_FN(exp_from)(float *z, int64_t n, float cap, float *largest)
{
  int64_t whole = n - n % GR_LANES;
  vf top = vset(*largest), end = load_end(z + whole, n - whole);
  for (int64_t i = 0; i < whole; i += GR_LANES) top = vmax(vload(z + i), top);
  *largest = vmax_lanes(vmax(end, top));
  float base = *largest > -INFINITY ? *largest : 0;
  vdouble low = { 0 }, high = { 0 };
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf v = live == GR_LANES ? vload(z + i) : end, e = vexp(v - base);
    low += vwiden_low(e);
    high += vwiden_high(e);
    if (cap > 0 && !GR_MUTANT(head_loss_dh_no_softcap)) e *= 1.0f - v / cap * (v / cap);
    vstore_part(z + i, e, live);
  }
  return vsum(low + high);
}
