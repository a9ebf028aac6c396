/* Losses of a set of samples, each on its own: what evaluation compares before and after. */
#ifndef GR_TRAIN_HELDOUT_H
#define GR_TRAIN_HELDOUT_H
#include "train/step.h"

typedef struct gr_heldout {
  const gr_dataset *data;
  gr_packing packing; /* of the held-out samples into the step's budget */
  double *losses;     /* [n] mean weighted nll of each sample, in the order of the packing */
  double *baseline;   /* [n] the first ones, or NULL */
  size_t n;
  float *nll;      /* [longest] */
  int32_t longest; /* tokens of the fullest window: what the step must have room for */
  double loss;     /* weighted mean over all tokens */
  size_t tokens;   /* trained ones */
} gr_heldout;

/* indices: which samples of d are held out; packed into runs of at most `budget` tokens. */
gr_status gr_heldout_open(gr_heldout *h, const gr_dataset *d, const size_t *indices, size_t n, int32_t budget, gr_error *e);
void gr_heldout_close(gr_heldout *h);
size_t gr_heldout_bytes(const gr_heldout *h);

/* Runs them all through a step planned without train; keeps the first losses as the baseline. */
gr_status gr_heldout_run(gr_heldout *h, gr_step *step, bool (*stop)(void *ctx), void *ctx, gr_error *e);

/* Paired differences baseline - now over the samples: their mean, and its standard error (0 with fewer than 2 samples). */
void gr_heldout_compare(const gr_heldout *h, double *mean, double *standard_error);

/* Standard error of the mean of the samples' losses as they stand (0 with fewer than 2 samples). */
double gr_heldout_standard_error(const gr_heldout *h);

#endif
