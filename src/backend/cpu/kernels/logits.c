/* Rows of logits: the tail of head and loss. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/vmath.h"

void GR_ISA_FN(soften)(float *z, float scale, float cap, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf v = vload_part(z + i, live) * scale;
    vstore_part(z + i, cap > 0 ? cap * vtanh(v / cap) : v, live);
  }
}

double GR_ISA_FN(log_sum_exp)(const float *z, int64_t n)
{
  vf top = vset(-INFINITY);
  for (int64_t i = 0; i + GR_LANES <= n; i += GR_LANES) top = vmax(top, vload(z + i));
  float most = vmax_lanes(top);
  for (int64_t i = n - n % GR_LANES; i < n; i++) most = z[i] > most ? z[i] : most;
  if (most == -INFINITY) return -HUGE_VAL;
  vdouble low = { 0 }, high = { 0 };
  for (int64_t i = 0; i + GR_LANES <= n; i += GR_LANES) {
    vf e = vexp(vload(z + i) - most);
    low += vwiden_low(e);
    high += vwiden_high(e);
  }
  double sum = vsum(low + high);
  if (n % GR_LANES) {
    float e[GR_LANES];
    vstore(e, vexp(vload_part(z + n - n % GR_LANES, n % GR_LANES) - most));
    for (int64_t i = 0; i < n % GR_LANES; i++) sum += (double)e[i];
  }
  return (double)most + log(sum);
}

void GR_ISA_FN(loss_gradient)(float *z, double lse, int64_t label, float dnll, float scale, float cap, int64_t n)
{
  /* exp(z - lse) with lse in two floats: its rounding would shift every probability of the row alike. */
  float high = (float)lse, low = (float)(lse - (double)high), weight = dnll * scale;
  float at_label = cap > 0 ? 1 - z[label] / cap * (z[label] / cap) : 1;
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf v = vload_part(z + i, live), g = vexp(v - high - low) * weight;
    if (cap > 0) g *= 1.0f - v / cap * (v / cap);
    vstore_part(z + i, g, live);
  }
  z[label] -= weight * at_label;
}
