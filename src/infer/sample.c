/* Order of the filters: penalty, top-k, top-p, min-p, temperature, draw: llama.cpp's chain. */
#include "infer/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"

typedef struct candidate {
  double logit, p;
  int32_t id;
} candidate;

struct gr_sampler {
  gr_sampling p;
  int32_t vocab;
  candidate *items; /* [vocab] */
};

gr_sampling gr_sampling_defaults(void)
{
  return (gr_sampling){ .temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05, .repeat_penalty = 1, .repeat_last = 64, .seed = 42 };
}

gr_status gr_sampling_check(const gr_sampling *p, gr_error *e)
{
  if (!(p->temperature >= 0) || isinf(p->temperature)) return gr_fail(e, GR_ERR_USAGE, "--temp must be 0 or more, not %g", p->temperature);
  if (p->top_k < 0) return gr_fail(e, GR_ERR_USAGE, "--top-k must be 0 (all) or more, not %d", p->top_k);
  if (!(p->top_p > 0 && p->top_p <= 1)) return gr_fail(e, GR_ERR_USAGE, "--top-p must be above 0 and at most 1, not %g", p->top_p);
  if (!(p->min_p >= 0 && p->min_p < 1)) return gr_fail(e, GR_ERR_USAGE, "--min-p must be at least 0 and below 1, not %g", p->min_p);
  if (!(p->repeat_penalty > 0) || isinf(p->repeat_penalty))
    return gr_fail(e, GR_ERR_USAGE, "--repeat-penalty must be above 0, not %g", p->repeat_penalty);
  if (p->repeat_last < 0) return gr_fail(e, GR_ERR_USAGE, "--repeat-last-n must be 0 or more, not %d", p->repeat_last);
  return GR_OK;
}

gr_status gr_sampler_create(gr_sampler **out, const gr_sampling *p, int32_t vocab, gr_error *e)
{
  *out = NULL;
  GR_TRY(gr_sampling_check(p, e));
  gr_sampler *s = gr_calloc(1, sizeof *s);
  candidate *items = gr_calloc((size_t)vocab, sizeof *items);
  if (!s || !items) {
    gr_free(s);
    gr_free(items);
    return gr_fail_memory(e, (size_t)vocab * sizeof *items);
  }
  *s = (gr_sampler){ *p, vocab, items };
  *out = s;
  return GR_OK;
}

void gr_sampler_free(gr_sampler *s)
{
  if (!s) return;
  gr_free(s->items);
  gr_free(s);
}

/* The index of the first NaN, -1: none. A whole block is looked at before anything is decided: the compiler makes vectors of that. */
static int32_t find_nan(const float *logits, int32_t n)
{
  enum { BLOCK = 1024 };
  for (int32_t at = 0; at < n; at += BLOCK) {
    const int32_t end = n - at < BLOCK ? n : at + BLOCK;
    int any = 0;
    for (int32_t i = at; i < end; i++) any |= isnan(logits[i]) != 0;
    for (int32_t i = at; any && i < end; i++)
      if (isnan(logits[i])) return i;
  }
  return -1;
}

int32_t gr_argmax(const float *logits, int32_t n)
{
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (logits[i] > logits[best] || isnan(logits[best])) best = i;
  return best;
}

static bool likelier(const candidate *x, const candidate *y) { return x->logit > y->logit || (!(x->logit < y->logit) && x->id < y->id); }

static int likelier_first(const void *a, const void *b) { return likelier(a, b) ? -1 : 1; }

static void swap(candidate *a, candidate *b)
{
  candidate t = *a;
  *a = *b;
  *b = t;
}

/* The first k become a heap with the least likely on top again, after the one at `i` has changed. */
static void sift(candidate *heap, size_t k, size_t i)
{
  for (size_t child; (child = 2 * i + 1) < k; i = child) {
    if (child + 1 < k && likelier(&heap[child], &heap[child + 1])) child++;
    if (!likelier(&heap[i], &heap[child])) return;
    swap(&heap[i], &heap[child]);
  }
}

/* The same as choose for the logits of ids 0 to n - 1, none of which has been changed: only k candidates are written. */
static void choose_of(candidate *items, const float *logits, size_t n, size_t k)
{
  for (size_t i = 0; i < k; i++) items[i] = (candidate){ .logit = (double)logits[i], .id = (int32_t)i };
  for (size_t i = k / 2; i-- > 0;) sift(items, k, i);
  for (size_t i = k; i < n; i++) {
    if (!((double)logits[i] > items[0].logit)) continue; /* of equal ones the first is likelier */
    items[0] = (candidate){ .logit = (double)logits[i], .id = (int32_t)i };
    sift(items, k, 0);
  }
  qsort(items, k, sizeof *items, likelier_first);
}

/* The k most likely of n, 0 < k <= n, come first, in order; a vocabulary is not sorted for the few at its top. */
static void choose(candidate *items, size_t n, size_t k)
{
  for (size_t i = k / 2; i-- > 0;) sift(items, k, i);
  for (size_t i = k; i < n; i++) {
    if (!likelier(&items[i], &items[0])) continue;
    swap(&items[i], &items[0]);
    sift(items, k, 0);
  }
  qsort(items, k, sizeof *items, likelier_first);
}

static void penalise(const gr_sampler *s, const int32_t *recent, size_t n)
{
  size_t first = n > (size_t)s->p.repeat_last ? n - (size_t)s->p.repeat_last : 0;
  for (size_t i = first; i < n; i++) {
    bool counted = recent[i] < 0 || recent[i] >= s->vocab;
    for (size_t k = first; k < i && !counted; k++) counted = recent[k] == recent[i];
    if (counted) continue;
    candidate *c = &s->items[recent[i]]; /* items are still in order of id */
    c->logit = c->logit > 0 ? c->logit / s->p.repeat_penalty : c->logit * s->p.repeat_penalty;
  }
}

/* Probabilities of the n first items at a temperature, most likely first. */
static void softmax(candidate *items, size_t n, double temperature)
{
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += items[i].p = exp((items[i].logit - items[0].logit) / temperature);
  for (size_t i = 0; i < n; i++) items[i].p /= sum;
}

/* How many of the k first items, which are in order and have their probabilities, are kept; k when that depends on what comes behind them.
 */
static size_t keep_likely(const gr_sampler *s, size_t k)
{
  const candidate *items = s->items;
  size_t kept = k;
  double sum = 0;
  for (size_t i = 0; i < k && s->p.top_p < 1; i++) {
    sum += items[i].p;
    if (sum < s->p.top_p) continue;
    kept = i + 1;
    break;
  }
  while (kept > 1 && items[kept - 1].p < s->p.min_p * items[0].p) kept--;
  return kept;
}

/* Every candidate counts, and yet few are kept: those at the top are put in order, and more of them where that was not enough. */
static size_t keep_of_all(gr_sampler *s)
{
  enum { FIRST = 256, MORE = 8 };
  const size_t n = (size_t)s->vocab;
  candidate *items = s->items;
  double top = items[0].logit, sum = 0;
  for (size_t i = 1; i < n; i++) top = items[i].logit > top ? items[i].logit : top;
  for (size_t i = 0; i < n; i++) sum += exp(items[i].logit - top);
  for (size_t k = FIRST;; k *= MORE) {
    if (k > n) k = n;
    choose(items, n, k);
    for (size_t i = 0; i < k; i++) items[i].p = exp(items[i].logit - top) / sum;
    size_t kept = keep_likely(s, k);
    if (kept < k || k == n) return kept;
  }
}

/* The candidates that are drawn from, in order; returns how many. */
static size_t choose_candidates(gr_sampler *s, const float *logits, const int32_t *recent, size_t n_recent)
{
  const size_t vocab = (size_t)s->vocab;
  const bool all = s->p.temperature > 0 && (s->p.top_k == 0 || s->p.top_k >= s->vocab);
  const bool changed = s->p.repeat_penalty < 1 || s->p.repeat_penalty > 1;
  const size_t k = s->p.temperature <= 0 ? 1 : (size_t)s->p.top_k;
  for (int32_t i = 0; i < s->vocab && (all || changed); i++) s->items[i] = (candidate){ .logit = (double)logits[i], .id = i };
  if (changed) penalise(s, recent, n_recent);
  if (all) return keep_of_all(s);
  if (changed) choose(s->items, vocab, k);
  else choose_of(s->items, logits, vocab, k);
  softmax(s->items, k, 1);
  return keep_likely(s, k);
}

gr_status gr_sampler_next(gr_sampler *s, const float *logits, const int32_t *recent, size_t n_recent, uint64_t index, int32_t *id,
                          gr_error *e)
{
  const int32_t bad = find_nan(logits, s->vocab);
  if (bad >= 0)
    return gr_fail(e, GR_ERR_NUMERIC, "the model's logits hold NaN (token %d): check the model and the adapter with graft inspect", bad);
  const size_t n = choose_candidates(s, logits, recent, n_recent);
  *id = s->items[0].id;
  if (s->p.temperature <= 0) return GR_OK;
  softmax(s->items, n, s->p.temperature);
  double u = gr_random_uniform(s->p.seed, 0x73616d706c65u, index), sum = 0;
  *id = s->items[n - 1].id;
  for (size_t i = 0; i < n; i++) {
    sum += s->items[i].p;
    if (u >= sum) continue;
    *id = s->items[i].id;
    break;
  }
  return GR_OK;
}
