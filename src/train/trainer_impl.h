/* The trainer's insides, shared by trainer_open.c (before the first step) and trainer.c (the loop). */
#ifndef GR_TRAIN_TRAINER_IMPL_H
#define GR_TRAIN_TRAINER_IMPL_H
#include "train/identity.h"
#include "train/trainer.h"

struct gr_trainer {
  gr_trainer_setup setup;
  const gr_train_options *o;
  const gr_model *model;
  gr_template *chat_template;
  gr_dataset *data, *heldout_data; /* heldout_data: of --val-file; NULL when split from data */
  size_t *train, *held;            /* sample indices */
  size_t n_train, n_held;
  int32_t window, micro_batch;
  uint8_t *recompute; /* [layers] or NULL */
  gr_lora *lora;
  gr_step *step, *eval_step;
  gr_heldout heldout;
  gr_adamw adamw;
  gr_schedule schedule;
  gr_run_state state;
  gr_run_identity identity;
  gr_buf geometry;
  uint64_t steps_total, warmup;
  uint64_t *epoch_steps; /* [epochs] optimizer steps of each epoch */
  size_t epochs;
  gr_packing packing;  /* of the present epoch */
  size_t packed_epoch; /* which it is; SIZE_MAX: none */
  size_t predicted_bytes;
  size_t tokens_total;
  double loss_last, seconds;
  uint8_t *touched; /* [2 * pairs] had a gradient that is not 0 */
};

/* Packs epoch i: a function of (seed, epoch) and the data alone. */
gr_status gr_trainer_pack_epoch(gr_trainer *t, size_t epoch, gr_packing *p, gr_error *e);
size_t gr_trainer_batch(const gr_trainer *t); /* windows an optimizer step */
void gr_trainer_emit(gr_trainer *t, gr_train_event *event);
void gr_trainer_note(gr_trainer *t, const char *fmt, ...) GR_PRINTF(2, 3);

#endif
