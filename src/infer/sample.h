/* Choosing the next token from logits. */
#ifndef GR_INFER_SAMPLE_H
#define GR_INFER_SAMPLE_H
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct gr_sampling {
  double temperature;    /* 0: the most likely token; the rest is then ignored, but for the penalty */
  int32_t top_k;         /* keep the k most likely; 0: all */
  double top_p;          /* keep the smallest set of at least this probability; 1: all */
  double min_p;          /* keep those with at least this share of the best one's probability; 0: all */
  double repeat_penalty; /* divides positive logits, multiplies negative ones, of tokens seen lately; 1: none */
  int32_t repeat_last;   /* how many tokens back it looks */
  uint64_t seed;
} gr_sampling;

/* 0.8, 40, 0.95, 0.05, 1, 64, 42: what llama.cpp users expect. */
gr_sampling gr_sampling_defaults(void);
gr_status gr_sampling_check(const gr_sampling *p, gr_error *e);

typedef struct gr_sampler gr_sampler;
gr_status gr_sampler_create(gr_sampler **s, const gr_sampling *p, int32_t vocab, gr_error *e);
void gr_sampler_free(gr_sampler *s);

/* The next id for logits [vocab] after `recent` (newest last). A function of (parameters, seed, index, logits, recent): the same
 * call always gives the same token. Ties go to the lower id. GR_ERR_NUMERIC when a logit is NaN. */
gr_status gr_sampler_next(gr_sampler *s, const float *logits, const int32_t *recent, size_t n_recent, uint64_t index, int32_t *id,
                          gr_error *e);

/* Most likely id, the lower one on ties; NaN counts as least. */
int32_t gr_argmax(const float *logits, int32_t n);

#endif
