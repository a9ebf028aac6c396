#include "quant/ksearch.h"

#include <math.h>
#include <stdbool.h>

/* What is known of a sub-block on its own. */
typedef struct sub_fit {
  gr_fit best;
  float mean_x, mean_q; /* mean_x = scale * mean_q + offset */
  double sum_qq, sum_xq;
} sub_fit;

typedef struct search {
  const gr_k_shape *shape;
  const float *x;
  gr_offset kind;
  sub_fit sub[GR_K_SUBS_MAX];
} search;

/* Found by trial on Gaussian, heavy-tailed and real rows: more trials or rounds change the error by less than 0.2%. */
#define SHORT_OF 0.02
enum { MIN_TRIALS = 4, ROUNDS = 4 };

static int clamp(double v, int lo, int hi)
{
  if (!(v > lo)) return lo;
  return v < hi ? (int)lrint(v) : hi;
}

static int whole_scale(const search *s, int sub, double d)
{
  return d != 0 ? clamp((double)s->sub[sub].best.scale / d, s->shape->scales.lo, s->shape->scales.hi) : 0;
}

/* The real-valued minimum, in units of dmin, that keeps the mean of the sub-block right under another scale. */
static double ideal_min(const search *s, int sub, double scale, double dmin)
{
  const sub_fit *f = &s->sub[sub];
  return dmin != 0 ? (scale * (double)f->mean_q - (double)f->mean_x) / dmin : 0;
}

static int whole_min(const search *s, int sub, double scale, double dmin)
{
  return clamp(ideal_min(s, sub, scale, dmin), 0, s->shape->min_hi);
}

static void fit_subs(search *s)
{
  const int len = s->shape->len;
  for (int j = 0; j < s->shape->subs; j++) {
    const float *x = s->x + j * len;
    sub_fit *f = &s->sub[j];
    double sum = 0;
    for (int i = 0; i < len; i++) sum += (double)x[i];
    f->best = gr_fit_search(x, len, s->shape->codes, s->kind);
    f->mean_x = (float)(sum / len);
    f->mean_q = f->best.scale != 0 ? (f->mean_x - f->best.offset) / f->best.scale : 0;
  }
}

/* Sets a lane to what a decoder computes from these numbers. */
static void set_lane(gr_fit_lanes *lanes, int c, float d, int scale, float dmin, int min)
{
  lanes->scale[c] = d * (float)scale;
  lanes->offset[c] = -(dmin * (float)min);
}

/* Total error of the super-block for eight (d, dmin); the whole numbers are those of `fit`, or with fit NULL each sub-block's own fit
 * rounded. */
static int best_pair(const search *s, const uint16_t d[GR_FIT_LANES], const uint16_t dmin[GR_FIT_LANES], const gr_k_fit *fit, double *error)
{
  const gr_k_shape *k = s->shape;
  double total[GR_FIT_LANES] = { 0 };
  for (int j = 0; j < k->subs; j++) {
    gr_fit_lanes lanes;
    for (int c = 0; c < GR_FIT_LANES; c++) {
      const float dc = gr_f16_to_f32(d[c]), mc = gr_f16_to_f32(dmin[c]);
      const int scale = fit ? fit->scale[j] : whole_scale(s, j, (double)dc);
      const int min = fit ? fit->min[j] : whole_min(s, j, (double)(dc * (float)scale), (double)mc);
      set_lane(&lanes, c, dc, scale, mc, min);
    }
    gr_fit_errors(s->x + j * k->len, k->len, k->codes, &lanes);
    for (int c = 0; c < GR_FIT_LANES; c++) total[c] += (double)lanes.error[c];
  }
  int best = 0;
  for (int c = 1; c < GR_FIT_LANES; c++)
    if (total[c] < total[best]) best = c;
  *error = total[best];
  return best;
}

/* The first numbers: the widest sub-block's scale, and the lowest minimum, fall on the end of their range or somewhat short of it. */
static void choose_pair(const search *s, gr_k_fit *fit)
{
  const gr_k_shape *k = s->shape;
  float widest = 0, lowest = 0;
  for (int j = 0; j < k->subs; j++) {
    const gr_fit *f = &s->sub[j].best;
    if (fabsf(f->scale) > fabsf(widest)) widest = f->scale;
    if (fabsf(f->offset) > fabsf(lowest)) lowest = f->offset;
  }
  double least = HUGE_VAL;
  fit->d = fit->dmin = 0;
  for (int trial = 0; trial < (k->min_hi ? MIN_TRIALS : 2); trial++) {
    const int top = k->min_hi || trial ? k->scales.hi : k->scales.lo; /* without minima: the trials are the two ends */
    uint16_t d[GR_FIT_LANES], dmin[GR_FIT_LANES];
    for (int c = 0; c < GR_FIT_LANES; c++) {
      d[c] = gr_fit_half((double)widest / (top * (1 - SHORT_OF * c)));
      dmin[c] = k->min_hi ? gr_fit_half(-(double)lowest / (k->min_hi * (1 - SHORT_OF * trial))) : 0;
    }
    double error;
    int c = best_pair(s, d, dmin, NULL, &error);
    if (error < least) least = error, fit->d = d[c], fit->dmin = dmin[c];
  }
  const double d = (double)gr_f16_to_f32(fit->d), dmin = (double)gr_f16_to_f32(fit->dmin);
  for (int j = 0; j < k->subs; j++) {
    fit->scale[j] = (int16_t)whole_scale(s, j, d);
    fit->min[j] = (int16_t)whole_min(s, j, d * fit->scale[j], dmin);
  }
}

typedef struct whole_pair {
  int scale, min;
} whole_pair;

/* Whole numbers worth trying for a sub-block beside the present ones, which are lane 0. With minima: the scale and its two neighbours, each
 * with the two minima around the ideal one; and the present pair with all codes moved by one, which descent does not find. */
static void neighbours(const search *s, int j, int round, const gr_k_fit *fit, whole_pair pair[GR_FIT_LANES])
{
  static const int8_t affine[GR_FIT_LANES] = { 0, 0, 0, 1, 1, -1, -1, 0 }, plain[GR_FIT_LANES] = { 0, 1, -1, 2, -2, 3, -3, 0 };
  const gr_k_shape *k = s->shape;
  const double d = (double)gr_f16_to_f32(fit->d), dmin = (double)gr_f16_to_f32(fit->dmin);
  for (int c = 0; c < GR_FIT_LANES; c++) {
    const int scale = clamp(fit->scale[j] + (k->min_hi ? affine : plain)[c], k->scales.lo, k->scales.hi);
    pair[c] = (whole_pair){ scale, 0 };
    if (k->min_hi) pair[c].min = clamp(floor(ideal_min(s, j, d * scale, dmin)) + (c & 1), 0, k->min_hi);
  }
  if (k->min_hi) {
    const double one_code = dmin != 0 ? d * fit->scale[j] / dmin : 0;
    pair[0].min = fit->min[j];
    pair[GR_FIT_LANES - 1].min = clamp(fit->min[j] + (round & 1 ? one_code : -one_code), 0, k->min_hi);
  } else pair[GR_FIT_LANES - 1].scale = clamp(-fit->scale[j], k->scales.lo, k->scales.hi); /* the codes are not symmetric */
}

/* The best of them under the present d and dmin, and the moments of its codes. */
static void refine_sub(search *s, int j, int round, gr_k_fit *fit)
{
  const gr_k_shape *k = s->shape;
  const float d = gr_f16_to_f32(fit->d), dmin = gr_f16_to_f32(fit->dmin);
  whole_pair pair[GR_FIT_LANES];
  gr_fit_lanes lanes;
  neighbours(s, j, round, fit, pair);
  for (int c = 0; c < GR_FIT_LANES; c++) set_lane(&lanes, c, d, pair[c].scale, dmin, pair[c].min);
  gr_fit_measure(s->x + j * k->len, k->len, k->codes, &lanes);
  int c = gr_fit_best_lane(&lanes, lanes.error[0]);
  if (c < 0) c = 0;
  fit->scale[j] = (int16_t)pair[c].scale, fit->min[j] = (int16_t)pair[c].min;
  s->sub[j].mean_q = lanes.sum_q[c] / (float)k->len;
  s->sub[j].sum_qq = (double)lanes.sum_qq[c], s->sub[j].sum_xq = (double)lanes.sum_xq[c];
}

/* The least-squares d and dmin for the whole numbers and codes found, and the halves around them. True if the error fell. */
static bool refine_pair(const search *s, gr_k_fit *fit, double *error)
{
  const gr_k_shape *k = s->shape;
  /* d A - dmin B = P and d B - dmin C = Q: the derivatives of the squared error in d and dmin, set to zero. */
  double A = 0, B = 0, C = 0, P = 0, Q = 0;
  for (int j = 0; j < k->subs; j++) {
    const sub_fit *f = &s->sub[j];
    const double scale = fit->scale[j], min = fit->min[j], sum_q = (double)f->mean_q * k->len, sum_x = (double)f->mean_x * k->len;
    A += scale * scale * f->sum_qq, B += scale * min * sum_q, C += min * min * k->len;
    P += scale * f->sum_xq, Q += min * sum_x;
  }
  double det = B * B - A * C, d = (double)gr_f16_to_f32(fit->d), dmin = (double)gr_f16_to_f32(fit->dmin);
  if (fabs(det) > 1e-9 * A * C) d = (B * Q - C * P) / det, dmin = (A * Q - B * P) / det;
  else if (A > 0) d = (P + dmin * B) / A;
  uint16_t ds[GR_FIT_LANES], dmins[GR_FIT_LANES];
  for (int c = 0; c < GR_FIT_LANES; c++) {
    ds[c] = gr_half_step(gr_fit_half(d), c / 3 - 1);
    dmins[c] = k->min_hi ? gr_half_step(gr_fit_half(dmin), c % 3 - 1) : 0;
  }
  ds[0] = fit->d, dmins[0] = fit->dmin;
  double before = *error;
  int c = best_pair(s, ds, dmins, fit, error);
  fit->d = ds[c], fit->dmin = dmins[c];
  return *error < before;
}

void gr_k_search(const float *x, const gr_k_shape *shape, gr_k_fit *fit)
{
  search s = { .shape = shape, .x = x, .kind = GR_OFFSET_NONE };
  if (shape->min_hi) {
    float min = x[0];
    for (int i = 1; i < GR_QK_K; i++) min = x[i] < min ? x[i] : min;
    s.kind = min > 0 ? GR_OFFSET_POSITIVE : GR_OFFSET_NEGATIVE; /* the sign of dmin is common to all sub-blocks */
  }
  fit_subs(&s);
  choose_pair(&s, fit);
  double error = HUGE_VAL;
  for (int round = 0; round < ROUNDS; round++) {
    for (int j = 0; j < shape->subs; j++) refine_sub(&s, j, round, fit);
    if (!refine_pair(&s, fit, &error)) break;
  }
  for (int j = 0; j < shape->subs; j++) {
    const float scale = gr_f16_to_f32(fit->d) * (float)fit->scale[j], min = gr_f16_to_f32(fit->dmin) * (float)fit->min[j];
    gr_fit_round(x + j * shape->len, shape->len, shape->codes, scale, -min, fit->code + j * shape->len);
  }
}
