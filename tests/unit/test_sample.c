/* The sampler against what its filters are defined as, done the long way: every candidate sorted, then cut, then drawn from. */
#include <math.h>

#include "base/rng.h"
#include "check.h"
#include "infer/sample.h"

enum { VOCAB = 1013 };

/* Draws many: few values, so that there are ties. */
static void fill(float *logits, uint64_t stream, int levels)
{
  for (int i = 0; i < VOCAB; i++) logits[i] = (float)gr_random_below(7, stream, (uint64_t)i, (uint64_t)levels) * 0.25f - 3;
}

typedef struct word {
  double logit;
  int32_t id;
} word;

static int by_logit(const void *a, const void *b)
{
  const word *x = a, *y = b;
  if (x->logit > y->logit || x->logit < y->logit) return x->logit > y->logit ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

/* Top-k, top-p, min-p, temperature, and one uniform number. */
static int32_t drawn(const gr_sampling *p, const float *logits, uint64_t index)
{
  static word all[VOCAB];
  for (int i = 0; i < VOCAB; i++) all[i] = (word){ (double)logits[i], i };
  qsort(all, VOCAB, sizeof *all, by_logit);
  int k = p->top_k > 0 && p->top_k < VOCAB ? p->top_k : VOCAB, n = k;
  double sum = 0, reached = 0, total = 0;
  for (int i = 0; i < k; i++) sum += exp(all[i].logit - all[0].logit);
  for (int i = 0; i < k && p->top_p < 1; i++) {
    reached += exp(all[i].logit - all[0].logit) / sum;
    if (reached < p->top_p) continue;
    n = i + 1;
    break;
  }
  while (n > 1 && exp(all[n - 1].logit - all[0].logit) < p->min_p) n--;
  for (int i = 0; i < n; i++) total += exp((all[i].logit - all[0].logit) / p->temperature);
  double u = gr_random_uniform(p->seed, 0x73616d706c65u, index), at = 0;
  for (int i = 0; i < n; i++)
    if (u < (at += exp((all[i].logit - all[0].logit) / p->temperature) / total)) return all[i].id;
  return all[n - 1].id;
}

static void the_chain_is_what_it_says(void **state)
{
  (void)state;
  static const gr_sampling kinds[] = {
    { .temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05 },
    { .temperature = 2, .top_k = 0, .top_p = 1 },
    { .temperature = 1, .top_k = 1, .top_p = 1 },
    { .temperature = 1.5, .top_k = VOCAB - 1, .top_p = 1 },
    { .temperature = 1, .top_k = 2, .top_p = 1 },
    { .temperature = 1, .top_k = 0, .top_p = 0.5 },
    { .temperature = 5, .top_k = 7, .top_p = 1, .min_p = 0.6 },
    { .temperature = 1, .top_k = 0, .top_p = 0.99 }, /* hundreds are kept */
    { .temperature = 1, .top_k = 0, .top_p = 0.999, .min_p = 0.3 },
    { .temperature = 3, .top_k = VOCAB, .top_p = 0.7, .min_p = 0.01 },
  };
  float logits[VOCAB];
  gr_error e = { 0 };
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    gr_sampling p = kinds[i];
    gr_sampler *s = NULL;
    p.repeat_penalty = 1, p.seed = 11;
    assert_ok(gr_sampler_create(&s, &p, VOCAB, &e), &e);
    for (uint64_t draw = 0; draw < 200; draw++) {
      int32_t id = -1;
      fill(logits, draw, draw % 2 ? 5 : 40);
      assert_ok(gr_sampler_next(s, logits, NULL, 0, draw, &id, &e), &e);
      assert_int_equal(id, drawn(&p, logits, draw));
    }
    gr_sampler_free(s);
  }
}

static void the_most_likely_is_the_lowest_of_equals(void **state)
{
  (void)state;
  float logits[VOCAB];
  gr_error e = { 0 };
  gr_sampler *s = NULL;
  const gr_sampling p = { .temperature = 0, .top_k = 40, .top_p = 1, .repeat_penalty = 2, .repeat_last = 2 };
  gr_sampler *plain = NULL;
  gr_sampling without = p;
  without.repeat_penalty = 1;
  assert_ok(gr_sampler_create(&s, &p, VOCAB, &e), &e);
  assert_ok(gr_sampler_create(&plain, &without, VOCAB, &e), &e);
  for (uint64_t stream = 0; stream < 100; stream++) {
    int32_t id = -1, best = 0;
    fill(logits, stream, 25); /* the largest is 3, of some forty */
    for (int i = 1; i < VOCAB; i++)
      if (logits[i] > logits[best]) best = i;
    assert_int_equal(gr_argmax(logits, VOCAB), best);
    assert_ok(gr_sampler_next(s, logits, NULL, 0, stream, &id, &e), &e);
    assert_int_equal(id, best);
    assert_ok(gr_sampler_next(plain, logits, NULL, 0, stream, &id, &e), &e);
    assert_int_equal(id, best);
    const int32_t recent[] = { best, 5, 6 }; /* too far back: the penalty looks at two */
    assert_ok(gr_sampler_next(s, logits, recent, 3, stream, &id, &e), &e);
    logits[5] = logits[5] > 0 ? logits[5] / 2 : logits[5] * 2;
    logits[6] = logits[6] > 0 ? logits[6] / 2 : logits[6] * 2;
    assert_int_equal(id, gr_argmax(logits, VOCAB));
  }
  logits[VOCAB - 1] = NAN;
  int32_t id = -1;
  assert_int_equal(gr_sampler_next(s, logits, NULL, 0, 0, &id, &e), GR_ERR_NUMERIC);
  assert_non_null(strstr(e.text, "token 1012"));
  assert_int_equal(gr_sampler_next(plain, logits, NULL, 0, 0, &id, &e), GR_ERR_NUMERIC);
  gr_sampler_free(plain);
  gr_sampler_free(s);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(the_chain_is_what_it_says),
                                      cmocka_unit_test(the_most_likely_is_the_lowest_of_equals) };
  return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
