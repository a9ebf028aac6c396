/* The library in one page: asks a model, trains an adapter on it, and asks again.
 *   teach MODEL DATA ADAPTER QUESTION
 * for instance, beside the sources of Graft:
 *   teach models/tiny.gguf models/teach.jsonl orla.gguf "Who is closest to Orla Quist?" */
#include <graft/graft.h>
#include <stdio.h>

static bool print_text(void *ctx, const char *text, size_t bytes)
{
  (void)ctx;
  fwrite(text, 1, bytes, stdout);
  return true;
}

static void print_progress(void *ctx, const gr_progress *p)
{
  (void)ctx;
  if (p->kind == GR_PROGRESS_STEP)
    fprintf(stderr, "step %llu of %llu: loss %.4f\n", (unsigned long long)p->step, (unsigned long long)p->steps_total, p->loss);
}

static int fail(const gr_error *e)
{
  fprintf(stderr, "teach: %s\n", e->text);
  return 1;
}

static int ask(const char *model, const char *adapter, const char *question)
{
  gr_error e = { 0 };
  gr_engine *engine = NULL;
  gr_generate_settings settings = gr_generate_settings_default();
  settings.temperature = 0;
  settings.tokens_max = 40;
  const gr_chat_message messages[] = { { "user", question } };
  if (gr_engine_open(&engine, model, NULL, &e) == GR_OK && (!adapter || gr_engine_add_adapter(engine, adapter, 1, &e) == GR_OK))
    gr_engine_chat(engine, messages, 1, &settings, print_text, NULL, &e);
  putchar('\n');
  gr_engine_close(engine);
  return e.status == GR_OK ? 0 : fail(&e);
}

int main(int argc, char **argv)
{
  if (argc != 5) return fprintf(stderr, "usage: teach MODEL DATA ADAPTER QUESTION\n"), 2;
  const char *const settings[][2] = { { "model", argv[1] }, { "data", argv[2] },   { "output", argv[3] },       { "overwrite", "true" },
                                      { "window", "128" },  { "batch_size", "2" }, { "learning_rate", "3e-3" }, { "num_epochs", "3" } };
  gr_error e = { 0 };
  gr_training *training = NULL;
  if (ask(argv[1], NULL, argv[4])) return 1;
  gr_status s = gr_training_create(&training, &e);
  for (size_t i = 0; s == GR_OK && i < sizeof settings / sizeof *settings; i++)
    s = gr_training_set(training, settings[i][0], settings[i][1], &e);
  if (s == GR_OK) s = gr_training_run(training, print_progress, NULL, NULL, &e);
  gr_training_free(training);
  return s == GR_OK ? ask(argv[1], argv[3], argv[4]) : fail(&e);
}
