/* How far a result is from the truth (C4), and what no tolerance excuses: NaN, an infinity, a value where the truth is exactly 0. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
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

static void compare_one(gr_diff *d, sums *s, const gr_array *got, const gr_array *want, const int64_t at[GR_DIMS], const gr_tolerance *t)
{
  double g = gr_array_get(got, at[0], at[1], at[2], at[3]), w = gr_array_get(want, at[0], at[1], at[2], at[3]);
  const char *fault = fault_of(g, w, t->floor);
  double difference = isinf(w) ? 0 : fabs(g - w), counted = difference <= t->share * fabs(w) ? 0 : difference;
  if (!isinf(w)) {
    s->difference += difference * difference;
    s->truth += w * w;
    s->n++;
  }
  d->zero = d->zero && (w == 0 || isinf(w)); /* a log-sum-exp over nothing is -inf */
  if ((fault && !d->fault) || (!d->fault && counted > s->worst)) {
    d->got = g, d->want = w;
    memcpy(d->at, at, sizeof d->at);
  }
  if (fault && !d->fault) d->fault = fault;
  if (counted > s->worst) s->worst = counted;
}

/* The errors that sums amount to, relative to the truth or the floor. */
static void finish(gr_diff *d, const sums *s, double floor)
{
  double rms = s->n ? sqrt(s->truth / (double)s->n) : 0;
  if (rms < floor) rms = floor;
  if (rms > 0 && s->n) {
    d->norm = sqrt(s->difference / (double)s->n) / rms;
    d->max = s->worst / rms;
  }
}

/* Goes through the elements in order:  for (at = { 0 }, more = not empty; more; more = next_element(at, ne)) */
static bool next_element(int64_t at[GR_DIMS], const int64_t ne[GR_DIMS])
{
  for (int i = 0; i < GR_DIMS; i++) {
    if (++at[i] < ne[i]) return true;
    at[i] = 0;
  }
  return false;
}

gr_diff gr_compare(const gr_array *got, const gr_array *want, const gr_tolerance *t)
{
  gr_diff d = { .zero = true, .elements = gr_array_count(want) };
  sums s = { 0 };
  int64_t at[GR_DIMS] = { 0 };
  for (bool more = d.elements > 0; more; more = next_element(at, want->ne)) compare_one(&d, &s, got, want, at, t);
  finish(&d, &s, t->floor);
  return d;
}

typedef struct slice_sums {
  gr_diff diff;
  sums sums;
} slice_sums;

/* One past the highest slice that any element is in. */
static int64_t count_slices(const gr_op_call *call, gr_case_slice *slice, int out, const gr_array *want)
{
  int64_t count = 0, at[GR_DIMS] = { 0 };
  for (bool more = gr_array_count(want) > 0; more; more = next_element(at, want->ne)) {
    int64_t n = slice(call, out, at);
    if (n >= count) count = n + 1;
  }
  return count;
}

gr_status gr_compare_slices(const gr_op_call *call, gr_case_slice *slice, int out, const gr_array *got, const gr_array *want,
                            const gr_tolerance *t, gr_diff *worst, int64_t *number, gr_error *e)
{
  int64_t count = count_slices(call, slice, out, want), at[GR_DIMS] = { 0 };
  *worst = (gr_diff){ .zero = true };
  *number = -1;
  if (!count) return GR_OK;
  slice_sums *s = gr_calloc((size_t)count, sizeof *s);
  if (!s) return gr_fail_memory(e, (size_t)count * sizeof *s);
  for (int64_t i = 0; i < count; i++) s[i].diff.zero = true;
  for (bool more = true; more; more = next_element(at, want->ne)) {
    int64_t n = slice(call, out, at);
    if (n >= 0) compare_one(&s[n].diff, &s[n].sums, got, want, at, t);
  }
  for (int64_t i = 0; i < count; i++) {
    gr_diff *d = &s[i].diff;
    if (!s[i].sums.n) continue;
    finish(d, &s[i].sums, t->floor);
    if (d->zero && s[i].sums.worst > 0 && !d->fault) d->fault = "of a slice that must be exactly 0";
    double max = fmax(worst->max, d->max);
    bool farther = *number < 0 || (d->fault && !worst->fault) || (!worst->fault && d->norm > worst->norm);
    if (farther) {
      *worst = *d;
      *number = i;
    }
    worst->max = max;
  }
  gr_free(s);
  return GR_OK;
}

/* Two rounded operands of random signs are off by 2.5 in a thousand, up to 9 in a slice of few sums that nearly cancel; operands with four
 * bits less, the next format there is, by 16 times that, and a lost tail by more. That nothing but the rounding differs is held to far
 * less by tests/unit/test_bf16.c and test_bf16_attention.c. Sums of rounded operands that meet only up to rounding meet half as well.
 * Behind a softmax what a logit is off by is what its probability is off by, relative: gradients of the head by twice as much (1.9e-2 in
 * one token's slice over the seeds 1 to 5). */
gr_tolerance gr_optest_allowed(const gr_case *c, const gr_kernel_row *row)
{
  if (!row->bf16) return c->tolerance;
  double n = row->op == GR_OP_head_loss_back || row->op == GR_OP_head_loss_dh ? 2 : 1;
  return (gr_tolerance){
    .norm = n * 1.2e-2, .max = n * 0.1, .seen = n * 9.5e-3, .defect = n * 3.5e-2, .floor = 2 * c->tolerance.floor, .share = n * 1.2e-2
  };
}
