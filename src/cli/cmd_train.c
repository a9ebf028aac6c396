/* graft train: options to a run, events to lines. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "train/trainer.h"

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal_number)
{
  (void)signal_number;
  if (interrupted) signal(SIGINT, SIG_DFL); /* a second Ctrl-C is meant */
  interrupted = 1;
}

static bool stop_asked(void *ctx)
{
  (void)ctx;
  return interrupted != 0;
}

enum { SPARKS = 24 };

struct view {
  bool json, quiet, terminal;
  int64_t logging_steps;
  double started, held;
  bool has_held;
  double losses[SPARKS];
  size_t n_losses;
};

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- JSON ---- */

static json_t *event_json(const gr_train_event *v)
{
  switch (v->kind) {
  case GR_EVENT_NOTE: return json_pack("{s:s,s:s}", "event", "note", "text", v->text);
  case GR_EVENT_PLAN:
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:i,s:i,s:b,s:f,s:I,s:I}", "event", "plan", "samples", (json_int_t)v->samples, "heldout",
                     (json_int_t)v->heldout, "windows", (json_int_t)v->windows, "steps", (json_int_t)v->steps_total, "window", v->window,
                     "micro_batch", v->micro_batch, "recompute", v->recompute, "fill", v->fill, "parameters", (json_int_t)v->parameters,
                     "peak_bytes", (json_int_t)v->memory_bytes);
  case GR_EVENT_STEP:
    return json_pack("{s:s,s:I,s:f,s:f,s:f,s:f,s:I,s:I,s:f}", "event", "step", "step", (json_int_t)v->step, "epoch", v->epoch, "loss",
                     v->loss, "lr", v->lr, "grad_norm", v->grad_norm, "tokens", (json_int_t)v->tokens, "tokens_total",
                     (json_int_t)v->tokens_total, "tok_s", v->tok_s);
  case GR_EVENT_EVAL:
    return json_pack("{s:s,s:I,s:f,s:f,s:I,s:f,s:f}", "event", "eval", "step", (json_int_t)v->step, "epoch", v->epoch, "loss", v->loss,
                     "tokens", (json_int_t)v->tokens, "improvement", v->improvement, "standard_error", v->standard_error);
  case GR_EVENT_CHECKPOINT: return json_pack("{s:s,s:I,s:s}", "event", "checkpoint", "step", (json_int_t)v->step, "path", v->text);
  case GR_EVENT_DONE: break;
  }
  json_t *done =
      json_pack("{s:s,s:I,s:f,s:f,s:s,s:f,s:I}", "event", "done", "steps", (json_int_t)v->step, "loss_first", v->loss_first, "loss_last",
                v->loss_last, "adapter", v->adapter, "seconds", v->seconds, "peak_bytes", (json_int_t)v->memory_bytes);
  json_object_set_new(done, "eval_loss", v->has_eval ? json_real(v->eval_loss) : json_null());
  if (v->has_eval) {
    json_object_set_new(done, "improvement", json_real(v->improvement));
    json_object_set_new(done, "standard_error", json_real(v->standard_error));
  }
  return done;
}

/* ---- text ---- */

static void print_sparks(const struct view *w)
{
  static const char *const bars[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
  double low = HUGE_VAL, high = -HUGE_VAL;
  size_t n = w->n_losses < SPARKS ? w->n_losses : SPARKS;
  for (size_t i = 0; i < n; i++) {
    low = fmin(low, w->losses[i]);
    high = fmax(high, w->losses[i]);
  }
  for (size_t i = 0; i < n; i++) {
    double x = w->losses[(w->n_losses < SPARKS ? i : (w->n_losses + i) % SPARKS)];
    int level = high > low ? (int)((x - low) / (high - low) * 7.999) : 0;
    fputs(bars[level], stderr);
  }
}

static void print_step(struct view *w, const gr_train_event *v)
{
  w->losses[w->n_losses++ % SPARKS] = v->loss;
  bool last = v->step == v->steps_total;
  if (v->step % (uint64_t)w->logging_steps && !last) return;
  double rate = (seconds_now() - w->started) / (double)w->n_losses, eta = rate * (double)(v->steps_total - v->step);
  fprintf(stderr, "%sstep %llu/%llu  epoch %.2f  loss %.4f", w->terminal ? "\r\033[K" : "", (unsigned long long)v->step,
          (unsigned long long)v->steps_total, v->epoch, v->loss);
  if (w->has_held) fprintf(stderr, "  held-out %.4f", w->held);
  fprintf(stderr, "  lr %.2e  |g| %.3f  %.0f tok/s  ETA %d:%02d  %.0f MB ", v->lr, v->grad_norm, v->tok_s, (int)(eta / 60), (int)eta % 60,
          (double)v->memory_bytes / 1e6);
  print_sparks(w);
  if (!w->terminal || last) fputc('\n', stderr);
  fflush(stderr);
}

static void print_plan(const gr_train_event *v)
{
  fprintf(stderr,
          "%zu samples in %zu windows of %d tokens (%.0f %% full), %zu held out; %llu steps; %.2f million trained parameters; about %.0f "
          "MB%s\n",
          v->samples, v->windows, v->window, 100 * v->fill, v->heldout, (unsigned long long)v->steps_total, (double)v->parameters / 1e6,
          (double)v->memory_bytes / 1e6, v->recompute ? ", layers recomputed" : "");
}

static void print_done(const gr_train_event *v)
{
  fprintf(stderr, "loss %.4f -> %.4f in %llu steps, %.0f s\n", v->loss_first, v->loss_last, (unsigned long long)v->step, v->seconds);
  if (v->has_eval && v->standard_error > 0)
    fprintf(stderr, "held-out loss %.4f; samples improved by %.4f on average, standard error %.4f: %.1f standard errors\n", v->eval_loss,
            v->improvement, v->standard_error, v->improvement / v->standard_error);
  else if (v->has_eval) fprintf(stderr, "held-out loss %.4f\n", v->eval_loss);
  else fprintf(stderr, "there is no held-out data\n");
  fprintf(stderr, "adapter: %s\n", v->adapter);
}

static void on_event(void *ctx, const gr_train_event *v)
{
  struct view *w = ctx;
  if (w->json) gr_cli_json(event_json(v));
  const char *line = w->terminal && w->n_losses ? "\n" : "";
  switch (v->kind) {
  case GR_EVENT_NOTE: fprintf(stderr, "%snote: %s\n", line, v->text); break;
  case GR_EVENT_PLAN: print_plan(v); break;
  case GR_EVENT_STEP: print_step(w, v); break;
  case GR_EVENT_EVAL:
    w->held = v->loss;
    w->has_held = true;
    fprintf(stderr, "%sheld-out loss %.4f over %zu tokens", line, v->loss, v->tokens);
    if (v->step && v->standard_error > 0)
      fprintf(stderr, " (%.4f better than before training, standard error %.4f)", v->improvement, v->standard_error);
    fputc('\n', stderr);
    break;
  case GR_EVENT_CHECKPOINT: fprintf(stderr, "%ssaved %s\n", line, v->text); break;
  case GR_EVENT_DONE: print_done(v); break;
  }
}

/* ---- the command ---- */

static void print_help(void)
{
  printf("usage: graft train -m MODEL -d DATA -o ADAPTER [options], or --config RUN.yaml\n\n");
  printf("%-36s %s\n%-36s %s\n", "  --config FILE", "options from YAML; flags win over it", "  --json", "one JSON object a line on stdout");
  for (const gr_option_info *i = gr_train_option_infos(); i->field; i++) {
    char left[200];
    snprintf(left, sizeof left, "  %s%s%s", i->names, i->value ? " " : "", i->value ? i->value : "");
    bool shown = strcmp(i->preset, "NULL") != 0 && strcmp(i->preset, "-1") != 0 && strcmp(i->preset, "false") != 0;
    if (strlen(left) < 36) printf("%-36s %s", left, i->help);
    else printf("%s\n%37s%s", left, "", i->help);
    if (shown && !strstr(i->help, "default")) printf(" (default %s)", i->preset);
    putchar('\n');
  }
}

struct command {
  gr_train_options o;
  const char *config;
  bool json, help;
};

/* A flag of the table, with or without a value; false when there is no such flag. */
static gr_status take_flag(struct command *c, int argc, char **argv, int *i, gr_error *e)
{
  char name[64];
  size_t n = strcspn(argv[*i], "="), hyphens = strspn(argv[*i], "-");
  snprintf(name, sizeof name, "%.*s", (int)(n - hyphens), argv[*i] + hyphens);
  const gr_option_info *info = gr_train_option_find(name);
  bool negative = false;
  if (!info && strncmp(name, "no-", 3) == 0) {
    info = gr_train_option_find(name + 3);
    negative = info && info->kind == GR_OPTION_FLAG;
    if (!negative) info = NULL;
  }
  if (!info) {
    gr_train_option_nearest(name, e);
    return GR_ERR_USAGE;
  }
  if (info->kind == GR_OPTION_FLAG && argv[*i][n] != '=') return gr_train_options_set(&c->o, info, negative ? "false" : "true", "", e);
  const char *value = argv[*i][n] == '=' ? argv[*i] + n + 1 : *i + 1 < argc ? argv[++*i] : NULL;
  if (!value) return gr_fail(e, GR_ERR_USAGE, "%s needs a value: %s", argv[*i], info->value);
  return gr_train_options_set(&c->o, info, value, "", e);
}

/* The config first, wherever it stands on the line: flags win over it. A list given as flags replaces the config's. */
static gr_status parse(struct command *c, int argc, char **argv, gr_error *e)
{
  for (int i = 0; i < argc; i++) {
    if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
      c->help = true;
      return GR_OK;
    }
    if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) c->config = argv[i + 1];
    else if (strncmp(argv[i], "--config=", 9) == 0) c->config = argv[i] + 9;
  }
  if (c->config) GR_TRY(gr_train_options_load(&c->o, c->config, e));
  gr_train_options_lists_from_flags(&c->o);
  for (int i = 0; i < argc; i++) {
    if (strcmp(argv[i], "--json") == 0) c->json = true;
    else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) i++;
    else if (strncmp(argv[i], "--config=", 9) == 0) continue;
    else if (argv[i][0] != '-') return gr_fail(e, GR_ERR_USAGE, "'%s' is one argument too many", argv[i]);
    else GR_TRY(take_flag(c, argc, argv, &i, e));
  }
  return GR_OK;
}

static gr_status run(struct command *c, gr_error *e)
{
  struct view view = { .json = c->json, .terminal = isatty(2), .logging_steps = c->o.logging_steps, .started = seconds_now() };
  gr_cli_model m = { .path = c->o.model, .backend = c->o.backend, .threads = c->o.threads, .allow_ref = c->o.allow_ref };
  gr_trainer *t = NULL;
  gr_status s = gr_train_options_check(&c->o, e);
  if (s == GR_OK) s = gr_cli_model_open(&m, e);
  const gr_trainer_setup setup = { .options = &c->o,
                                   .model = m.model,
                                   .backends = m.backends,
                                   .n_backends = m.n_backends,
                                   .pool = m.pool,
                                   .on_event = on_event,
                                   .stop = stop_asked,
                                   .ctx = &view };
  if (s == GR_OK) s = gr_trainer_open(&t, &setup, e);
  view.started = seconds_now();
  if (s == GR_OK) s = gr_trainer_run(t, e);
  gr_trainer_close(t);
  gr_cli_model_close(&m);
  return s;
}

int gr_cmd_train(int argc, char **argv)
{
  struct command c = { 0 };
  gr_error e = { 0 };
  int status = 0;
  gr_train_options_init(&c.o);
  if (parse(&c, argc, argv, &e) != GR_OK) status = gr_cli_fail(&e);
  else if (c.help) print_help();
  else {
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
    if (run(&c, &e) != GR_OK) status = gr_cli_fail(&e);
  }
  gr_train_options_free(&c.o);
  return status;
}
