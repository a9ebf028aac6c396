/* Checkpoints: everything a run needs to go on as if it had never stopped, in one GGUF file written all or nothing.
 *
 * Beside an output DIR/NAME.gguf they are DIR/NAME.step-000120.checkpoint. */
#ifndef GR_TRAIN_CHECKPOINT_H
#define GR_TRAIN_CHECKPOINT_H
#include "model/lora.h"
#include "train/options.h"

/* Where a run stands. */
typedef struct gr_run_state {
  uint64_t step;                        /* optimizer steps done */
  uint64_t evaluations;                 /* step of the last evaluation plus 1; 0: none yet */
  uint64_t evaluations_worse;           /* in a row, for early stopping */
  uint64_t best_step;                   /* 0: no evaluation after a step yet */
  double best_loss, best_gain, best_se; /* of that evaluation; gain over the baseline and its standard error */
  double loss_first, loss_last;         /* of steps 1 and `step` */
  double tenth[4];                      /* sum and number of losses in this tenth of the run's steps, and in the one before it */
  uint64_t tokens_total;                /* trained ones so far */
  float *m, *v;                         /* moments, [parameters] */
  float *best;                          /* values at best_step, [parameters]; NULL: nothing is held out */
  double *baseline;                     /* [n_baseline] held-out losses before training, or NULL */
  size_t n_baseline;
} gr_run_state;

/* What a run is bound to: a checkpoint of another one is refused, saying what differs. */
typedef struct gr_run_identity {
  char base_hash[40];
  uint64_t data_hash, adapter_hash, steps_total, warmup; /* adapter: names, ranks and first values */
  uint64_t data_samples, data_tokens;                    /* for the sentence */
  const char *geometry;                                  /* the options that change results, as "key: value" lines */
} gr_run_identity;

gr_status gr_checkpoint_save(const char *path, gr_lora *lora, const gr_run_state *s, const gr_run_identity *id, gr_error *e);
/* Fills the adapter's values and *s (m, v, best, baseline must be as large as the run needs). On failure they hold anything. */
gr_status gr_checkpoint_load(const char *path, gr_lora *lora, gr_run_state *s, const gr_run_identity *id, gr_error *e);

/* The value of a line "key: value" of a checkpoint's geometry as a whole number, or `otherwise` when there is none. */
int64_t gr_checkpoint_peek(const char *path, const char *key, int64_t otherwise);

/* Path of the checkpoint after `step`; caller frees. */
char *gr_checkpoint_path(const char *output, uint64_t step);
/* Steps of the checkpoints beside output, ascending; *steps is freed by the caller. Unfinished files are not among them. */
gr_status gr_checkpoint_list(const char *output, uint64_t **steps, size_t *n, gr_error *e);
/* Removes the oldest checkpoints but `keep` of them. */
void gr_checkpoint_drop(const char *output, size_t keep);

#endif
