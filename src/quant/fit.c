#include "quant/fit.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/half.h"

/* Vectors as gcc and clang have them on every target; four floats are the widest that all of them hold in a register. */
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

static inline f4 splat(float v) { return (f4){ v, v, v, v }; }
static inline f4 select4(i4 mask, f4 yes, f4 no) { return (f4)(((i4)yes & mask) | ((i4)no & ~mask)); }

float gr_fit_load(const float *x, int n, float *clean)
{
  float largest = 0;
  for (int i = 0; i < n; i++) {
    float mag = fabsf(x[i]);
    mag = mag >= 0 ? mag : 0; /* NaN */
    mag = mag < 0x1p30f ? mag : 0x1p30f;
    clean[i] = copysignf(mag, x[i]);
    largest = mag > largest ? mag : largest;
  }
  return largest;
}

uint16_t gr_fit_half(double v)
{
  if (v > 65504) v = 65504;
  if (v < -65504) v = -65504;
  uint16_t half = gr_f32_to_f16((float)v);
  return half & 0x7fff ? half : 0;
}

static inline float inverse_of(float scale) { return scale != 0 ? 1 / scale : 0; }

/* Adding and taking away 1.5 * 2^23 rounds a float below 2^22 to the nearest whole number, ties to even. */
#define ROUNDER 0x1.8p23f

/* Inlined twice: the moments are a third of the work, and not everyone asks for them. */
static inline void measure(const float *x, int n, gr_codes codes, gr_fit_lanes *lanes, bool moments)
{
  const f4 lo = splat((float)codes.lo), hi = splat((float)codes.hi), rounder = splat(ROUNDER);
  for (int g = 0; g < GR_FIT_LANES; g += 4) {
    f4 scale, offset, inverse, error = { 0 }, sum_q = { 0 }, sum_qq = { 0 }, sum_xq = { 0 };
    memcpy(&scale, lanes->scale + g, sizeof scale);
    memcpy(&offset, lanes->offset + g, sizeof offset);
    for (int c = 0; c < 4; c++) inverse[c] = inverse_of(scale[c]);
    for (int i = 0; i < n; i++) {
      f4 v = splat(x[i]), q = (v - offset) * inverse;
      q = select4(q > lo, q, lo);
      q = select4(q < hi, q, hi);
      q = q + rounder - rounder;
      f4 miss = v - (scale * q + offset);
      error += miss * miss;
      if (!moments) continue;
      sum_q += q;
      sum_qq += q * q;
      sum_xq += v * q;
    }
    memcpy(lanes->error + g, &error, sizeof error);
    if (!moments) continue;
    memcpy(lanes->sum_q + g, &sum_q, sizeof sum_q);
    memcpy(lanes->sum_qq + g, &sum_qq, sizeof sum_qq);
    memcpy(lanes->sum_xq + g, &sum_xq, sizeof sum_xq);
  }
}

void gr_fit_measure(const float *x, int n, gr_codes codes, gr_fit_lanes *lanes) { measure(x, n, codes, lanes, true); }

void gr_fit_errors(const float *x, int n, gr_codes codes, gr_fit_lanes *lanes) { measure(x, n, codes, lanes, false); }

void gr_fit_round(const float *x, int n, gr_codes codes, float scale, float offset, int8_t *code)
{
  const float inverse = inverse_of(scale), lo = (float)codes.lo, hi = (float)codes.hi;
  for (int i = 0; i < n; i++) {
    float q = (x[i] - offset) * inverse;
    q = q > lo ? q : lo;
    q = q < hi ? q : hi;
    q = q + ROUNDER - ROUNDER;
    code[i] = (int8_t)q;
  }
}

int gr_fit_best_lane(const gr_fit_lanes *lanes, float than)
{
  int best = -1;
  for (int c = 0; c < GR_FIT_LANES; c++)
    if (lanes->error[c] < than) {
      best = c;
      than = lanes->error[c];
    }
  return best;
}

static void keep_best(gr_fit *best, const gr_fit_lanes *lanes)
{
  int c = gr_fit_best_lane(lanes, best->error);
  if (c >= 0) *best = (gr_fit){ lanes->scale[c], lanes->offset[c], lanes->error[c] };
}

static bool allowed(gr_offset kind, double offset)
{
  return kind == GR_OFFSET_ANY || (kind == GR_OFFSET_NEGATIVE && offset <= 0) || (kind == GR_OFFSET_POSITIVE && offset >= 0);
}

/* Every lane moves to the least-squares scale and offset of its codes. A lane whose codes determine none stays where it is. */
static void descend(gr_fit_lanes *lanes, int n, double sum_x, gr_offset kind)
{
  for (int c = 0; c < GR_FIT_LANES; c++) {
    const double q = (double)lanes->sum_q[c], qq = (double)lanes->sum_qq[c], xq = (double)lanes->sum_xq[c];
    const double det = n * qq - q * q;
    if (kind != GR_OFFSET_NONE && det > 0) {
      double scale = (n * xq - sum_x * q) / det, offset = (sum_x - scale * q) / n;
      if (scale > 0 && allowed(kind, offset)) {
        lanes->scale[c] = (float)scale, lanes->offset[c] = (float)offset;
        continue;
      }
    }
    if (kind == GR_OFFSET_ANY || qq == 0 || (kind != GR_OFFSET_NONE && xq <= 0)) continue;
    lanes->scale[c] = (float)(xq / qq), lanes->offset[c] = 0;
  }
}

enum { DESCENTS = 2 };

static void walk(gr_fit *best, const float *x, int n, gr_codes codes, gr_fit_lanes *lanes, double sum_x, gr_offset kind)
{
  for (int k = 0; k < DESCENTS; k++) {
    gr_fit_measure(x, n, codes, lanes);
    keep_best(best, lanes);
    descend(lanes, n, sum_x, kind);
  }
  gr_fit_errors(x, n, codes, lanes);
  keep_best(best, lanes);
}

/* Without offset: the element of largest magnitude falls on either end of the codes, or beyond it by a few steps. */
static void search_scale(gr_fit *best, const float *x, int n, gr_codes codes, float extreme)
{
  const int ends[2] = { codes.lo, codes.hi };
  for (int e = 0; e < 2; e++) {
    gr_fit_lanes lanes = { .offset = { 0 } };
    const float end = (float)ends[e], step = end < 0 ? -0.4f : 0.4f;
    for (int c = 0; c < GR_FIT_LANES; c++) lanes.scale[c] = extreme / (end + step * (float)(c - 2));
    walk(best, x, n, codes, &lanes, 0, GR_OFFSET_NONE);
  }
}

/* With offset: the codes span the weights, somewhat more or somewhat less; what sticks out does so below, above or on both sides. */
static void search_affine(gr_fit *best, const float *x, int n, gr_codes codes, gr_offset kind, float min, float max, double sum_x)
{
  const float steps = (float)(codes.hi - codes.lo);
  for (int side = 0; side < 3; side++) {
    gr_fit_lanes lanes;
    for (int c = 0; c < GR_FIT_LANES; c++) {
      float scale = (max - min) / (steps + 0.4f * (float)(c - 2));
      lanes.scale[c] = scale;
      lanes.offset[c] = min + 0.5f * (float)side * (max - min - steps * scale);
      if (!allowed(kind, (double)lanes.offset[c])) lanes.offset[c] = 0;
    }
    walk(best, x, n, codes, &lanes, sum_x, kind);
  }
}

gr_fit gr_fit_search(const float *x, int n, gr_codes codes, gr_offset kind)
{
  float min = x[0], max = x[0];
  double sum_x = 0, sum_xx = 0;
  for (int i = 0; i < n; i++) {
    min = x[i] < min ? x[i] : min;
    max = x[i] > max ? x[i] : max;
    sum_x += (double)x[i];
    sum_xx += (double)x[i] * (double)x[i];
  }
  gr_fit best = { 0, 0, (float)sum_xx };
  if (kind == GR_OFFSET_NONE) {
    float extreme = max > -min ? max : min;
    if (extreme != 0) search_scale(&best, x, n, codes, extreme);
    return best;
  }
  if (kind == GR_OFFSET_NEGATIVE && min > 0) min = 0;
  if (kind == GR_OFFSET_POSITIVE && min < 0) min = 0;
  if (max > min) search_affine(&best, x, n, codes, kind, min, max, sum_x);
  else best = (gr_fit){ 0, min, 0 };
  return best;
}

uint16_t gr_half_step(uint16_t half, int steps)
{
  int magnitude = (half & 0x7fff) + steps;
  magnitude = magnitude < 0 ? 0 : magnitude > 0x7bff ? 0x7bff : magnitude;
  return (uint16_t)((half & 0x8000) | magnitude);
}

void gr_fit_halves(const float *x, int n, gr_codes codes, gr_offset kind, uint16_t *d, uint16_t *m, int8_t *code)
{
  const gr_fit fit = gr_fit_search(x, n, codes, kind);
  const uint16_t scale = gr_fit_half((double)fit.scale), offset = gr_fit_half((double)fit.offset);
  uint16_t ds[GR_FIT_LANES], ms[GR_FIT_LANES];
  gr_fit_lanes lanes;
  for (int c = 0; c < GR_FIT_LANES; c++) { /* c = 4: the nearest halves; around it their neighbours */
    ds[c] = gr_half_step(scale, c / 3 - 1), ms[c] = gr_half_step(offset, c % 3 - 1);
    lanes.scale[c] = gr_f16_to_f32(ds[c]), lanes.offset[c] = kind == GR_OFFSET_NONE ? 0 : gr_f16_to_f32(ms[c]);
  }
  gr_fit_errors(x, n, codes, &lanes);
  int best = gr_fit_best_lane(&lanes, lanes.error[4]);
  if (best < 0) best = 4;
  *d = ds[best], *m = ms[best];
  gr_fit_round(x, n, codes, lanes.scale[best], lanes.offset[best], code);
}
