/* graft train: options to a run. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/interrupt.h"
#include "cli/train_run.h"
#include "train/checkpoint.h"

static bool stop_asked(void *ctx)
{
  (void)ctx;
  return gr_interrupted();
}

/* A word as a shell takes it. */
static void print_quoted(const char *word)
{
  if (*word && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%") == strlen(word)) {
    fputs(word, stderr);
    return;
  }
  fputc('\'', stderr);
  for (const char *p = word; *p; p++) {
    if (*p == '\'') fputs("'\\''", stderr);
    else fputc(*p, stderr);
  }
  fputc('\'', stderr);
}

/* An argument that sets this flag, under any of its names. */
static bool is_flag(const char *typed, const char *field)
{
  char name[64];
  size_t hyphens = strspn(typed, "-");
  if (!hyphens) return false;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(typed + hyphens, "="), typed + hyphens);
  const gr_option_info *info = gr_train_option_find(name);
  return info && strcmp(info->field, field) == 0;
}

static void print_how_to_go_on(const char *output, int argc, char **argv)
{
  uint64_t *steps = NULL;
  size_t n = 0;
  gr_error ignored = { 0 };
  bool saved = gr_checkpoint_list(output, &steps, &n, &ignored) == GR_OK && n > 0, resumes = !saved; /* else it begins anew */
  gr_free(steps);
  fputs("go on    graft train", stderr);
  for (int i = 0; i < argc; i++) {
    if (saved && is_flag(argv[i], "overwrite")) continue;
    fputc(' ', stderr);
    print_quoted(argv[i]);
    resumes |= is_flag(argv[i], "resume");
  }
  fputs(resumes ? "\n" : " --resume\n", stderr);
}

static gr_status run(gr_train_command *c, gr_error *e)
{
  gr_train_view view;
  gr_train_view_open(&view, c);
  GR_TRY(gr_train_command_open(c, e));
  gr_trainer_setup setup = gr_train_command_setup(c);
  setup.on_event = gr_train_view_event;
  setup.stop = stop_asked;
  setup.ctx = &view;
  gr_trainer *t = NULL;
  GR_TRY(gr_trainer_open(&t, &setup, e));
  gr_status s = gr_trainer_run(t, e);
  gr_trainer_close(t);
  gr_train_view_close(&view);
  return s;
}

int gr_cmd_train(int argc, char **argv)
{
  gr_train_command c;
  gr_error e = { 0 };
  int status = 0;
  gr_status s = gr_train_command_parse(&c, argc, argv, &e);
  if (s == GR_OK && c.help) {
    gr_train_command_help("usage: graft train -m MODEL -d DATA -o ADAPTER [options], or --config RUN.yaml");
  } else if (s == GR_OK) {
    gr_interrupt_catch(true); /* what it may be writing at the second one is written whole or not */
    signal(SIGPIPE, SIG_IGN); /* nobody reads any more: no reason to lose a run */
    s = run(&c, &e);
  }
  if (s != GR_OK) status = gr_cli_fail(&e);
  if (s == GR_ERR_CANCELLED) print_how_to_go_on(c.o.output, argc, argv);
  gr_train_command_free(&c);
  return status;
}
