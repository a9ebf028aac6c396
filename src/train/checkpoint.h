/* Checkpoints: everything a run needs to go on as if it had never stopped, in one GGUF file written all or nothing.
 *
 * Beside an output DIR/NAME.gguf they are DIR/NAME.step-000120.checkpoint. */
#ifndef GR_TRAIN_CHECKPOINT_H
#define GR_TRAIN_CHECKPOINT_H
#include "model/lora.h"
#include "train/options.h"

typedef struct gr_run_state {
  uint64_t step;              /* optimizer steps done */
  uint64_t evaluations_worse; /* in a row, for early stopping */
  double best_loss;           /* of an evaluation; infinite: none yet */
  uint64_t best_step;
  double loss_first; /* of step 1 */
  float *m, *v;      /* moments, [parameters] */
  float *best;       /* values at best_step, [parameters], or NULL */
  double *baseline;  /* held-out losses before training, or NULL */
  size_t n_baseline;
} gr_run_state;

/* What a run is bound to: a checkpoint of other ones is refused, saying what differs. */
typedef struct gr_run_identity {
  char base_hash[40];
  uint64_t data_hash, steps_total;
  const char *geometry; /* the options that change results, as "key: value" lines */
} gr_run_identity;

gr_status gr_checkpoint_save(const char *path, gr_lora *lora, const gr_run_state *s, const gr_run_identity *id, gr_error *e);
/* Fills the adapter's values and *s (m, v, best, baseline must be as large as the run needs). */
gr_status gr_checkpoint_load(const char *path, gr_lora *lora, gr_run_state *s, const gr_run_identity *id, gr_error *e);

/* Path of the checkpoint after `step`; caller frees. */
char *gr_checkpoint_path(const char *output, uint64_t step);
/* Steps of the checkpoints beside output, ascending; *steps is freed by the caller. Unfinished files are not among them. */
gr_status gr_checkpoint_list(const char *output, uint64_t **steps, size_t *n, gr_error *e);

#endif
