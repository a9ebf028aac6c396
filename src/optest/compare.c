/* How far a result is from the truth (C4), and what no tolerance excuses: NaN, an infinity, a value where the truth is exactly 0. */
#include <math.h>
#include <string.h>

#include "optest/internal.h"

static const char *fault_of(double got, double want, double floor)
{
  if (isnan(want)) return "the reference is NaN";
  if (isnan(got)) return "NaN";
  if (isinf(want) && got != want) return "not the infinity it should be";
  if (isinf(got) && got != want) return "infinite";
  if (want == 0 && got != 0 && floor == 0) return "not exactly 0";
  return NULL;
}

typedef struct sums {
  double difference, truth, worst;
  int64_t n;
} sums;

static void compare_one(gr_diff *d, sums *s, const gr_array *got, const gr_array *want, const int64_t at[GR_DIMS], double floor)
{
  double g = gr_array_get(got, at[0], at[1], at[2], at[3]), w = gr_array_get(want, at[0], at[1], at[2], at[3]);
  const char *fault = fault_of(g, w, floor);
  double difference = isinf(w) ? 0 : fabs(g - w);
  if (!isinf(w)) {
    s->difference += difference * difference;
    s->truth += w * w;
    s->n++;
  }
  d->zero = d->zero && (w == 0 || isinf(w)); /* a log-sum-exp over nothing is -inf */
  if ((fault && !d->fault) || (!d->fault && difference > s->worst)) {
    d->got = g, d->want = w;
    memcpy(d->at, at, sizeof d->at);
  }
  if (fault && !d->fault) d->fault = fault;
  if (difference > s->worst) s->worst = difference;
}

gr_diff gr_compare(const gr_array *got, const gr_array *want, double floor)
{
  gr_diff d = { .zero = true, .elements = gr_array_count(want) };
  sums s = { 0 };
  int64_t at[GR_DIMS];
  for (at[3] = 0; at[3] < want->ne[3]; at[3]++)
    for (at[2] = 0; at[2] < want->ne[2]; at[2]++)
      for (at[1] = 0; at[1] < want->ne[1]; at[1]++)
        for (at[0] = 0; at[0] < want->ne[0]; at[0]++) compare_one(&d, &s, got, want, at, floor);
  double rms = s.n ? sqrt(s.truth / (double)s.n) : 0;
  if (rms < floor) rms = floor;
  if (rms > 0 && s.n) {
    d.norm = sqrt(s.difference / (double)s.n) / rms;
    d.max = s.worst / rms;
  }
  return d;
}
