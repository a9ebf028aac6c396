/* graft ops: proves, compares and measures the ops; the work is src/optest's. Recording a training step is done here: harness and trainer
 * know nothing of each other. */
#include <string.h>

#include "base/file.h"
#include "cli/train_run.h"
#include "optest/optest.h"

static const size_t record_bytes_most = (size_t)1 << 30;

static void on_event(void *ctx, const gr_train_event *event)
{
  if (event->kind != GR_EVENT_PLAN) gr_train_view_event(ctx, event);
}

static gr_status record_step(gr_train_command *c, gr_recorder *r, gr_error *e)
{
  gr_train_view view;
  gr_train_view_open(&view, c);
  GR_TRY(gr_train_command_open(c, e));
  gr_trainer_setup setup = gr_train_command_setup(c);
  setup.plan_only = true;
  setup.on_event = on_event;
  setup.ctx = &view;
  gr_trainer *t = NULL;
  GR_TRY(gr_trainer_open(&t, &setup, e));
  gr_plan_watch(gr_trainer_plan_of(t), gr_recorder_watch, r);
  gr_status s = gr_trainer_run_once(t, e);
  gr_trainer_close(t);
  return s;
}

static gr_status record(gr_train_command *c, const char *path, gr_error *e)
{
  gr_recorder *r;
  size_t seen, kept, left_out;
  GR_TRY(gr_file_check_folder(path, "name another file", e));
  GR_TRY(gr_recorder_create(&r, record_bytes_most, e));
  gr_status s = record_step(c, r, e);
  gr_recorder_counts(r, &seen, &kept, &left_out);
  if (s == GR_OK && !kept) s = gr_fail(e, GR_ERR_UNSUPPORTED, "nothing of this step is computed in host memory: record it with -b cpu");
  if (s == GR_OK) s = gr_recorder_save(r, path, e);
  if (s == GR_OK && c->json)
    gr_cli_json(json_pack("{s:s,s:s,s:I,s:I,s:I}", "event", "record", "file", path, "calls", (json_int_t)seen, "kept", (json_int_t)kept,
                          "left_out", (json_int_t)left_out));
  else if (s == GR_OK) printf("%s: %zu of %zu calls, one of each kind; %zu too large to keep\n", path, kept, seen, left_out);
  gr_recorder_free(r);
  return s;
}

static int record_command(int argc, char **argv)
{
  gr_train_command c;
  gr_error e = { 0 };
  const char *path = argc && argv[0][0] != '-' ? argv[0] : NULL;
  gr_status s = gr_train_command_parse(&c, path ? argc - 1 : argc, path ? argv + 1 : argv, &e);
  if (s == GR_OK && c.help) gr_train_command_help("usage: graft ops record FILE -m MODEL -d DATA [train's options]");
  else if (s == GR_OK && !path) s = gr_fail(&e, GR_ERR_USAGE, "give the file to write: graft ops record FILE -m MODEL -d DATA");
  else if (s == GR_OK) s = record(&c, path, &e);
  gr_train_command_free(&c);
  return s == GR_OK ? 0 : gr_cli_fail(&e);
}

int gr_cmd_ops(int argc, char **argv)
{
  if (argc && strcmp(argv[0], "record") == 0) return record_command(argc - 1, argv + 1);
  return gr_optest_main(argc, argv, stdout, stderr);
}
