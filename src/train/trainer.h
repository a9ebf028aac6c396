/* A training run: data, split, plan, loop, evaluation, checkpoints, the adapter. Prints nothing: everything that happens is an event. */
#ifndef GR_TRAIN_TRAINER_H
#define GR_TRAIN_TRAINER_H
#include <jansson.h>

#include "train/checkpoint.h"
#include "train/heldout.h"
#include "train/options.h"
#include "train/step.h"

/* Predicted bytes of anonymous memory, and of what. */
typedef struct gr_memory_plan {
  size_t peak;       /* the sum of the following */
  size_t program;    /* resident before training: tokenizer, data, graphs and their plans */
  size_t adapter;    /* values, moments, gradient, best values */
  size_t training;   /* activations and scratch of a training step, its inputs */
  size_t evaluation; /* the same of an evaluation */
  size_t limit;      /* what the run was held against */
  size_t base;       /* mapped, not anonymous: the model's file */
} gr_memory_plan;

/* What was decided before the first step. */
typedef struct gr_run_plan {
  uint64_t steps, first_step; /* optimizer steps in all; those already done when resuming */
  uint64_t warmup;
  size_t samples, heldout;              /* of the training data; held out */
  size_t windows;                       /* of the first epoch */
  double epochs, fill;                  /* share of the windows' tokens that samples fill */
  size_t tokens;                        /* of the first epoch, trained or not */
  size_t parameters, pairs, stacks;     /* of the adapter: values, adapted tensors, those of them that are stacks of experts */
  int32_t experts, experts_used;        /* of the model; 0: a dense one */
  int32_t window, longest, micro_batch; /* longest: tokens in the fullest window */
  bool recompute;
  gr_memory_plan memory;
} gr_run_plan;

typedef enum gr_event_kind {
  GR_EVENT_NOTE, /* text: something the user should know */
  GR_EVENT_PLAN,
  GR_EVENT_STEP,
  GR_EVENT_EVAL,
  GR_EVENT_CHECKPOINT, /* text: its path */
  GR_EVENT_DONE
} gr_event_kind;

typedef struct gr_train_event {
  gr_event_kind kind;
  const char *text;
  const gr_run_plan *plan; /* plan */
  uint64_t step, steps_total;
  double epoch, loss, lr, grad_norm;
  size_t tokens, tokens_total; /* trained ones: of this step, or of the held-out data; since the run began */
  double tok_s;                /* tokens run a second, trained or not */
  size_t memory_bytes;         /* anonymous memory: the most there will be (plan), is now (step), was (done) */
  /* eval and done; has_eval false: there is no held-out data */
  bool has_eval;
  double eval_loss, improvement, standard_error; /* mean of the per-sample differences from before training, and its error */
  uint64_t best_step;
  /* done */
  double loss_first, loss_last, loss_mean, seconds; /* loss_mean: of the last tenth of the steps */
  const char *adapter;
} gr_train_event;

/* The event as --json prints it and as metrics are written: {"event": "step", ...}. NULL when out of memory. */
json_t *gr_train_event_json(const gr_train_event *event);

typedef struct gr_trainer_setup {
  const gr_train_options *options;
  const gr_model *model;
  gr_backend *const *backends;
  size_t n_backends;
  gr_pool *pool;
  bool plan_only; /* neither an output is needed, nor is anything written */
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

/* For `graft plan`. The training step's launches, for placement. */
gr_plan *gr_trainer_plan_of(gr_trainer *t);

typedef struct gr_run_time {
  double epoch, run;   /* seconds, evaluation aside; NaN when there was no room to measure */
  size_t needed, room; /* bytes that measuring takes, and that this process may still take */
} gr_run_time;

/* How long an epoch and the whole run will take, by running part of a small step for about `seconds`. The planned step is not allocated:
 * it need not fit this machine. */
gr_status gr_trainer_time(gr_trainer *t, double seconds, gr_run_time *time, gr_error *e);
/* Runs the first windows through the training step as it is planned, for a watch of its launches. */
gr_status gr_trainer_run_once(gr_trainer *t, gr_error *e);

#endif
