#include "infer/score.h"

#include <math.h>

#include "base/alloc.h"
#include "infer/sample.h"

static double surprise(const float *logits, int32_t n, int32_t id)
{
  double top = (double)logits[0], sum = 0;
  for (int32_t i = 1; i < n; i++) top = fmax(top, (double)logits[i]);
  for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - top);
  return top + log(sum) - (double)logits[id];
}

static gr_status score_rows(const float *logits, int32_t vocab, const int32_t *ids, int32_t n, int32_t at, int32_t rows, float *nll,
                            int32_t *greedy, gr_error *e)
{
  for (int32_t i = at; i < at + rows; i++, logits += vocab) {
    double x = i + 1 < n ? surprise(logits, vocab, ids[i + 1]) : 0;
    if (isnan(x)) return gr_fail(e, GR_ERR_NUMERIC, "after token %d of %d the logits are not numbers", i + 1, n);
    if (nll && i + 1 < n) nll[i] = (float)x;
    if (greedy) greedy[i] = gr_argmax(logits, vocab);
  }
  return GR_OK;
}

gr_status gr_score(gr_session *s, int32_t vocab, const int32_t *ids, int32_t n, float *nll, int32_t *greedy, gr_error *e)
{
  if (n < 1) return gr_fail(e, GR_ERR_USAGE, "there is no token to score");
  /* The last token is only predicted, never run, unless what follows it is asked for: it is checked here. */
  if (ids[n - 1] < 0 || ids[n - 1] >= vocab)
    return gr_fail(e, GR_ERR_USAGE, "token id %d is outside the vocabulary of %d", ids[n - 1], vocab);
  int32_t run = greedy ? n : n - 1;
  float *logits = gr_calloc((size_t)vocab * GR_SCORE_ROWS, sizeof(float));
  if (!logits) return gr_fail_memory(e, (size_t)vocab * GR_SCORE_ROWS * sizeof(float));
  gr_session_truncate(s, 0);
  gr_status status = GR_OK;
  for (int32_t at = 0; at < run && status == GR_OK; at += GR_SCORE_ROWS) {
    int32_t rows = run - at < GR_SCORE_ROWS ? run - at : GR_SCORE_ROWS;
    status = gr_session_run(s, ids + at, rows, logits, rows, e);
    if (status == GR_OK) status = score_rows(logits, vocab, ids, n, at, rows, nll, greedy, e);
  }
  gr_free(logits);
  return status;
}
