/* What `graft train`, `graft plan` and `graft ops record` share: options from flags and config, and the view of a run's events. */
#ifndef GR_CLI_TRAIN_RUN_H
#define GR_CLI_TRAIN_RUN_H
#include "cli/cli.h"
#include "train/trainer.h"

typedef struct gr_train_command {
  gr_train_options o;
  gr_cli_model m;
  const char *config;
  bool json, help;
} gr_train_command;

/* Defaults, then the config (wherever --config stands on the line), then the flags: a flag wins, a list of flags replaces one of the
 * config's. */
gr_status gr_train_command_parse(gr_train_command *c, int argc, char **argv, gr_error *e);
void gr_train_command_help(const char *usage);
/* Opens the model that the options name. */
gr_status gr_train_command_open(gr_train_command *c, gr_error *e);
/* What a trainer needs of an opened command; events, ctx and all else are for the caller to set. */
gr_trainer_setup gr_train_command_setup(const gr_train_command *c);
void gr_train_command_free(gr_train_command *c);

/* ---- view ---- */

enum { GR_SPARKS = 24 };

typedef struct gr_train_view {
  bool json, terminal, line_open; /* line_open: a progress line stands on the terminal, not ended */
  int64_t logging_steps;
  double started, held;
  bool has_held;
  double losses[GR_SPARKS];
  size_t n_losses; /* seen so far */
} gr_train_view;

void gr_train_view_open(gr_train_view *v, const gr_train_command *c);
/* ctx is the view. */
void gr_train_view_event(void *ctx, const gr_train_event *event);
void gr_train_view_close(gr_train_view *v); /* ends an open line */
void gr_train_view_plan(FILE *out, const gr_run_plan *plan);

#endif
