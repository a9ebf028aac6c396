/* Vectors of floats, one pass each. The compiler vectorises the plain loops; those with exp are written in vectors. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/vmath.h"

void GR_ISA_FN(add)(float *y, const float *a, const float *b, int64_t n)
{
  for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void GR_ISA_FN(mul)(float *y, const float *a, const float *b, int64_t n)
{
  for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

void GR_ISA_FN(scale)(float *y, const float *x, float s, int64_t n)
{
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * s;
}

void GR_ISA_FN(scale_mul)(float *y, const float *x, float s, const float *w, int64_t n)
{
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * s * w[i];
}

void GR_ISA_FN(add_scaled)(float *y, const float *x, float s, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    if (live == GR_LANES) vstore(y + i, madd(vload(x + i), vset(s), vload(y + i)));
    else vstore_part(y + i, madd(vload_part(x + i, live), vset(s), vload_part(y + i, live)), live);
  }
}

/* Rows come from memory: a piece of all of them, some lines long, is taken at a time. */
void GR_ISA_FN(mix)(float *y, const float *x, int64_t x_slot, const float *weights, int64_t slots, int64_t n)
{
  enum { VECTORS = 4, AHEAD = 512 };
  int64_t i = 0;
  for (; i + VECTORS * GR_LANES <= n; i += VECTORS * GR_LANES) {
    const float *from = x + i;
    vf sum[VECTORS];
    GR_UNROLL
    for (int v = 0; v < VECTORS; v++) sum[v] = vload(from + v * GR_LANES) * vset(weights[0]);
    for (int64_t s = 1; s < slots; s++) {
      from += x_slot;
      GR_UNROLL
      for (int v = 0; v < VECTORS; v++) {
        __builtin_prefetch(from + AHEAD + v * GR_LANES);
        sum[v] = madd(vload(from + v * GR_LANES), vset(weights[s]), sum[v]);
      }
    }
    GR_UNROLL
    for (int v = 0; v < VECTORS; v++) vstore(y + i + v * GR_LANES, sum[v]);
  }
  for (; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf sum = vload_part(x + i, live) * vset(weights[0]);
    for (int64_t s = 1; s < slots; s++) sum = madd(vload_part(x + s * x_slot + i, live), vset(weights[s]), sum);
    vstore_part(y + i, sum, live);
  }
}

void GR_ISA_FN(accumulate)(double *sum, const float *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) sum[i] += (double)x[i];
}

double GR_ISA_FN(dot)(const float *a, const float *b, int64_t n)
{
  vdouble low = { 0 }, high = { 0 };
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf x = live == GR_LANES ? vload(a + i) : vload_part(a + i, live), y = live == GR_LANES ? vload(b + i) : vload_part(b + i, live);
    low += vwiden_low(x) * vwiden_low(y);
    high += vwiden_high(x) * vwiden_high(y);
  }
  return vsum(low + high);
}

void GR_ISA_FN(rms_norm_back)(float *dx, const float *x, const float *dz, float xs, float scale, int64_t n)
{
  for (int64_t i = 0; i < n; i++) dx[i] = (dz[i] + x[i] * xs) * scale;
}

void GR_ISA_FN(rotate)(float *y, const float *x, const float *cosines, const float *sines, int64_t half, bool neox, float sign)
{
  if (neox) {
    for (int64_t p = 0; p < half; p += GR_LANES) {
      int64_t live = gr_min(half - p, GR_LANES);
      vf c = vload_part(cosines + p, live), s = vload_part(sines + p, live) * sign;
      vf x0 = vload_part(x + p, live), x1 = vload_part(x + p + half, live);
      vstore_part(y + p, x0 * c - x1 * s, live);
      vstore_part(y + p + half, x0 * s + x1 * c, live);
    }
    return;
  }
  for (int64_t p = 0; p < half; p++) {
    float s = sines[p] * sign, x0 = x[2 * p], x1 = x[2 * p + 1];
    y[2 * p] = x0 * cosines[p] - x1 * s;
    y[2 * p + 1] = x0 * s + x1 * cosines[p];
  }
}

void GR_ISA_FN(exp)(float *y, const float *x, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vstore_part(y + i, vexp(vload_part(x + i, live)), live);
  }
}

void GR_ISA_FN(tanh)(float *y, const float *x, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vstore_part(y + i, vtanh(vload_part(x + i, live)), live);
  }
}
