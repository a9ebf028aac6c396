/* The inside of training: windows of samples in, the sum of weighted losses and the gradient of that sum out.
 *
 * The loss of an optimizer step is sum(weight x nll) / sum(weight) over all its trained tokens (promise 7): each window adds to
 * the sums, and gr_step_apply divides once. A window is one run of a planned graph over a fixed budget of tokens; windows may
 * also be run several at a time, side by side as more segments, which gives the same sums to rounding. */
#ifndef GR_TRAIN_STEP_H
#define GR_TRAIN_STEP_H
#include "graph/graph.h"
#include "model/model.h"
#include "text/dataset.h"
#include "train/optim.h"

typedef struct gr_step gr_step;

typedef struct gr_step_options {
  int32_t tokens;           /* budget of one run: window * windows at a time */
  bool train;               /* false: losses only (evaluation) */
  float dropout;            /* of the trained adapter; training only */
  uint64_t seed;            /* of dropout */
  const uint8_t *recompute; /* [layers], see gr_plan_options; NULL: none */
  gr_backend *const *backends;
  size_t n_backends;
  const gr_adapter_use *adapters; /* evaluation with several adapters, or scaled ones; copied. Then lora is NULL */
  size_t n_adapters;
  bool allow_ref, profile, poison, no_fusion;
  size_t (*prefer)(void *ctx, const gr_node *node); /* see gr_plan_options */
  void *prefer_ctx;
} gr_step_options;

/* Builds and plans; allocates nothing large yet. With train, proves on the graph that the loss reaches A and B of every pair
 * (promise 2): GR_ERR_MISMATCH names one it does not. lora may be NULL when not training. */
gr_status gr_step_plan(gr_step **s, const gr_model *m, gr_lora *lora, const gr_step_options *o, gr_error *e);
void gr_step_free(gr_step *s); /* NULL is fine */

/* Anonymous memory that the step takes: arenas, scratch, inputs, gradients (not the adapter, moments, or the data). */
size_t gr_step_bytes(const gr_step *s);
gr_status gr_step_allocate(gr_step *s, gr_error *e);
gr_plan *gr_step_plan_of(gr_step *s); /* for placement reports and profiles */

/* Sums since the last gr_step_clear. */
typedef struct gr_step_sums {
  double loss;           /* sum of weight * nll */
  double weight;         /* sum of weights */
  size_t tokens;         /* run, trained or not */
  size_t tokens_trained; /* weight not 0 */
} gr_step_sums;
void gr_step_clear(gr_step *s);
const gr_step_sums *gr_step_sums_of(const gr_step *s);

/* Runs samples indices[0..n) of d side by side, their lengths together at most the budget; adds to the sums and, with train, to
 * the gradient. step numbers the optimizer step (for dropout). nll: NULL, or room for `budget` floats: the nll of each token's
 * prediction in the order of the samples (entry i of a sample predicts its token i; entry 0 is 0).
 * stop: NULL, or polled between launches; when it turns true GR_ERR_CANCELLED, and the sums are as before the call. */
gr_status gr_step_run(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, uint64_t step, float *nll, bool (*stop)(void *ctx),
                      void *stop_ctx, gr_error *e);

/* Gradient of the sum so far, in the layout of the adapter's values (A then B, pair after pair). */
const float *gr_step_gradient(const gr_step *s);

/* The samples of the last run whose nll was not finite: at most `most` of their indices into bad; returns how many there were. */
size_t gr_step_bad_samples(const gr_step *s, size_t *bad, size_t most);

/* Seconds that a run takes for each token; for each pair of tokens of one sample (attention: a sample of n tokens has n * n); for each
 * trained token (the head). */
typedef struct gr_step_rates {
  double token, pair, trained;
} gr_step_rates;

/* Fills the budget with samples, the last one cut, and runs as many launches as fit into `seconds` (at least one): what a plan's time is
 * judged by. Changes no sums. */
gr_status gr_step_time(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, double seconds, gr_step_rates *rates, gr_error *e);

#endif
