/* A training run: data, split, plan, loop, evaluation, checkpoints, the adapter. Prints nothing: everything that happens is an event. */
#ifndef GR_TRAIN_TRAINER_H
#define GR_TRAIN_TRAINER_H
#include "train/checkpoint.h"
#include "train/heldout.h"
#include "train/options.h"
#include "train/step.h"

typedef enum gr_event_kind {
  GR_EVENT_NOTE, /* text: something the user should know */
  GR_EVENT_PLAN, /* what will run and what it takes */
  GR_EVENT_STEP,
  GR_EVENT_EVAL,
  GR_EVENT_CHECKPOINT, /* text: its path */
  GR_EVENT_DONE
} gr_event_kind;

typedef struct gr_train_event {
  gr_event_kind kind;
  const char *text;
  uint64_t step, steps_total;
  double epoch, loss, lr, grad_norm;
  size_t tokens, tokens_total; /* trained ones, of this step (of the held-out data); since the run began */
  double tok_s;                /* tokens run a second, trained or not */
  size_t memory_bytes;         /* plan: predicted peak of anonymous memory; step: now */
  /* plan */
  size_t samples, heldout, windows, parameters;
  int32_t window, micro_batch;
  bool recompute;
  double fill;
  /* eval and done; has_eval false: there is no held-out data */
  bool has_eval;
  double eval_loss, improvement, standard_error; /* mean of the per-sample differences from before training, and its error */
  uint64_t best_step;
  /* done */
  double loss_first, loss_last, seconds;
  const char *adapter;
} gr_train_event;

typedef struct gr_trainer_setup {
  const gr_train_options *options;
  const gr_model *model;
  gr_backend *const *backends;
  size_t n_backends;
  gr_pool *pool;
  void (*on_event)(void *ctx, const gr_train_event *event);
  bool (*stop)(void *ctx); /* polled between launches: true saves a checkpoint and ends the run with GR_ERR_CANCELLED */
  void *ctx;
} gr_trainer_setup;

typedef struct gr_trainer gr_trainer;

/* Everything before the first step: checks the output, reads the data, splits it, chooses and checks memory, makes or resumes the
 * adapter. Nothing large is allocated before the plan is known to fit. */
gr_status gr_trainer_open(gr_trainer **t, const gr_trainer_setup *setup, gr_error *e);
gr_status gr_trainer_run(gr_trainer *t, gr_error *e);
void gr_trainer_close(gr_trainer *t); /* NULL is fine */

#endif
