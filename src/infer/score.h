/* What a model makes of tokens that are given: the surprise at each, and what it would have said instead. */
#ifndef GR_INFER_SCORE_H
#define GR_INFER_SCORE_H
#include "infer/session.h"

enum { GR_SCORE_ROWS = 64 }; /* rows of logits held at a time */

/* Runs ids[n], n >= 1, from an empty timeline of s, whose context must hold them and which gives at least GR_SCORE_ROWS outputs (or
 * as many as its context has tokens). nll [n-1], or NULL: nll[i] = -ln p(ids[i+1] | ids[0..i]), summed in double. greedy [n], or
 * NULL: the most likely token after ids[0..i]. GR_ERR_NUMERIC names the first token after which a logit is not a number. */
gr_status gr_score(gr_session *s, int32_t vocab, const int32_t *ids, int32_t n, float *nll, int32_t *greedy, gr_error *e);

#endif
