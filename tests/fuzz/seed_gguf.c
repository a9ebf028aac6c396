/* Writes the seeds of fuzz_gguf into the folder named on the command line: files of our own writer. */
#include <stdio.h>

#include "gguf_sample.h"

static gr_status save_empty(const char *path, gr_error *e)
{
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

int main(int argc, char **argv)
{
  static const char *const names[] = { "model", "model-64", "adapter", "base", "empty" };
  for (int i = 0; argc == 2 && i < 5; i++) {
    char path[4096];
    gr_error e = { 0 };
    snprintf(path, sizeof path, "%s/%s.gguf", argv[1], names[i]);
    gr_status s = i < 2    ? sample_model_save(path, i ? 64 : 32, &e)
                  : i == 2 ? sample_adapter_save(path, &e)
                  : i == 3 ? sample_base_save(path, "llama", 3, &e)
                           : save_empty(path, &e);
    if (s != GR_OK) {
      fprintf(stderr, "%s\n", e.text);
      return 1;
    }
  }
  if (argc != 2) fprintf(stderr, "usage: seed_gguf FOLDER\n");
  return argc == 2 ? 0 : 2;
}
