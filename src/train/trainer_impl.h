/* The trainer's insides: trainer_data.c (samples, windows, steps), trainer_fit.c (memory), trainer_refuse.c (what would
 * fit), trainer_open.c (the rest before the first step), trainer_time.c (how long it takes), trainer_save.c (what is written),
 * trainer.c (the loop). */
#ifndef GR_TRAIN_TRAINER_IMPL_H
#define GR_TRAIN_TRAINER_IMPL_H
#include "io/identity.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/output.h"
#include "train/trainer.h"

typedef struct gr_epoch {
  size_t steps, windows; /* optimizer steps of it; windows it has (the last epoch may use only some) */
} gr_epoch;

struct gr_trainer {
  gr_trainer_setup setup;
  gr_train_options o; /* resolved: decisions filled in; its texts and lists are the setup's */
  const gr_model *model;
  bool resuming, finished; /* from a checkpoint; nothing is left to do */
  gr_output_lock *lock;
  gr_metrics *metrics; /* NULL: not opened yet, or given up */

  gr_template *chat_template;
  gr_dataset *data, *heldout_data; /* heldout_data: of --val-file; NULL when split from data */
  size_t *train, *held;            /* sample indices */
  size_t n_train, n_held;
  gr_epoch *epochs;
  size_t n_epochs;
  uint64_t steps_total, warmup;
  int32_t window, longest, micro_batch; /* longest: tokens in the fullest window of any step */
  int32_t fullest;                      /* tokens of the fullest run: micro_batch windows side by side */
  gr_packing packing;                   /* of the present epoch */
  size_t packed_epoch;                  /* which it is; SIZE_MAX: none */

  gr_lora *lora;
  size_t lora_resident; /* bytes of it that were resident once it was made */
  uint8_t *recompute;   /* [layers] */
  gr_step *step, *eval_step;
  gr_memory_plan memory;
  size_t peak; /* most anonymous memory seen */

  gr_heldout heldout;
  gr_adamw adamw;
  gr_schedule schedule;
  gr_run_state state;
  gr_run_identity identity;
  gr_buf geometry;
  uint64_t saved; /* step of the newest checkpoint plus 1; 0: none */
  double started;
  uint8_t *touched; /* [2 * pairs] had a gradient that is not 0 */
  uint64_t watched; /* steps with a rate above 0 since this process began or resumed the run */
};

void gr_trainer_emit(gr_trainer *t, gr_train_event *event);
void gr_trainer_note(gr_trainer *t, const char *fmt, ...) GR_PRINTF(2, 3);
void gr_trainer_watch_memory(gr_trainer *t); /* raises peak */

/* trainer_data.c */
gr_status gr_trainer_choose_window(gr_trainer *t, gr_error *e);
gr_status gr_trainer_open_data(gr_trainer *t, gr_error *e);
gr_status gr_trainer_count_steps(gr_trainer *t, gr_error *e);
/* Packs epoch i: a function of (seed, epoch) and the data alone. */
gr_status gr_trainer_pack_epoch(const gr_trainer *t, size_t epoch, gr_packing *p, gr_error *e);
size_t gr_trainer_batch(const gr_trainer *t); /* windows an optimizer step */
/* Tokens of the fullest run of any step when micro_batch windows run side by side: what a training step must have room for. */
gr_status gr_trainer_fullest_run(const gr_trainer *t, int32_t micro_batch, int32_t *tokens, gr_error *e);
/* What packing an epoch takes while it is made: keys, order, chains, windows. */
size_t gr_trainer_packing_bytes(const gr_trainer *t);
/* Which epoch holds optimizer step `step` (from 0), and which of its steps that is. */
size_t gr_trainer_epoch_of(const gr_trainer *t, uint64_t step, uint64_t *within);

/* trainer_fit.c: chooses micro-batch and recompute, opens the held-out set, plans both steps, and refuses what cannot fit. */
gr_status gr_trainer_make_lora(gr_trainer *t, int64_t rank, gr_lora **lora, gr_error *e);
/* Plans both steps anew, for runs of so many tokens (held_tokens 0: no evaluation), and fills *m. */
gr_status gr_trainer_predict(gr_trainer *t, gr_lora *lora, int32_t tokens, int32_t held_tokens, bool recompute, gr_memory_plan *m,
                             gr_error *e);
gr_status gr_trainer_fit(gr_trainer *t, int64_t micro_batch_before, gr_error *e);
/* Which operations of a step the wanted backend has no kernel for. */
void gr_trainer_note_fallen(gr_trainer *t);

/* trainer_refuse.c: GR_ERR_MEMORY, with settings that fit, or saying that none do. The plans are gone afterwards. */
gr_status gr_trainer_refuse(gr_trainer *t, gr_error *e);

/* trainer_save.c */
gr_status gr_trainer_write_config(gr_trainer *t, bool finished, gr_error *e);
/* True when the output is what this very run wrote when it finished. */
bool gr_trainer_was_finished(const gr_trainer *t);
/* Refuses an output that is another run's, saying which option differs where that is known. */
gr_status gr_trainer_refuse_other(const gr_trainer *t, gr_error *e);
gr_status gr_trainer_save_checkpoint(gr_trainer *t, gr_error *e);
/* The sentence for a loss or gradient that is not a number: step, samples (of d), the model's weight that is none either, if there is
 * one, and what can be gone back to. */
gr_status gr_trainer_numeric_failure(gr_trainer *t, const char *what, const gr_dataset *d, const size_t *samples, size_t listed, size_t n,
                                     gr_error *e);

#endif
