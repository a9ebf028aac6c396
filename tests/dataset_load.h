/* Data written to a file and read as a dataset, with the vocabulary and the ChatML template of the embedded model. */
#ifndef GR_TESTS_DATASET_LOAD_H
#define GR_TESTS_DATASET_LOAD_H
#include "scratch.h"

#include "text/dataset.h"

enum { WINDOW = 4096 };

static struct {
  gr_gguf *file;
  gr_tokenizer *tokenizer;
  gr_template *chatml;
  scratch dir;
  gr_dataset *d;
  gr_error e;
} at;

static inline int set_up(void **state)
{
  (void)state;
  bool builtin;
  gr_error e = { 0 };
  assert_ok(gr_gguf_open(&at.file, GR_SOURCE_DIR "/models/tiny.gguf", &e), &e);
  assert_ok(gr_tokenizer_create(&at.tokenizer, at.file, &e), &e);
  assert_ok(gr_template_from_gguf(&at.chatml, at.file, NULL, &builtin, &e), &e);
  assert_false(builtin);
  scratch_open(&at.dir);
  return 0;
}

static inline int tear_down(void **state)
{
  (void)state;
  scratch_close(&at.dir);
  gr_template_free(at.chatml);
  gr_tokenizer_free(at.tokenizer);
  gr_gguf_close(at.file);
  return 0;
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  fclose(f);
}

static inline gr_data_options options(void)
{
  return (gr_data_options){ .tokenizer = at.tokenizer, .chat_template = at.chatml, .window = WINDOW };
}

/* Reads bytes as a file of that name; the dataset of the last call is at.d. */
static inline gr_status load_bytes(const char *name, const void *bytes, size_t n, const gr_data_options *o)
{
  const char *path = scratch_path(&at.dir, name);
  write_file(path, bytes, n);
  gr_dataset_free(at.d);
  at.d = NULL;
  at.e = (gr_error){ 0 };
  return gr_dataset_add(&at.d, path, o, &at.e);
}

static inline gr_status load(const char *name, const char *text, const gr_data_options *o)
{
  return load_bytes(name, text, strlen(text), o);
}

static inline void load_ok(const char *name, const char *text, const gr_data_options *o) { assert_ok(load(name, text, o), &at.e); }

static inline size_t count(gr_data_event v) { return gr_dataset_counts(at.d)->events[v]; }

static inline int end_load(void **state)
{
  (void)state;
  gr_dataset_free(at.d);
  at.d = NULL;
  return 0;
}

/* The tokens of sample i as text: trained ones in [], each run of them with its weight unless that is 1. */
static inline const char *marked(size_t i)
{
  static gr_buf out;
  gr_error e = { 0 };
  const gr_sample *x = gr_dataset_at(at.d, i);
  float open = 0;
  gr_buf_clear(&out);
  for (int32_t k = 0; k < x->n; k++) {
    if (x->weights[k] != open && open > 0) gr_buf_putc(&out, ']');
    if (x->weights[k] != open && x->weights[k] > 0) gr_buf_putc(&out, '[');
    if (x->weights[k] != open && x->weights[k] > 0 && x->weights[k] != 1) gr_buf_printf(&out, "%g:", (double)x->weights[k]);
    open = x->weights[k];
    assert_ok(gr_tokenizer_decode(at.tokenizer, x->ids + k, 1, GR_DECODE_CONTROL, &out, &e), &e);
  }
  if (open > 0) gr_buf_putc(&out, ']');
  assert_false(out.failed);
  static char room[20000];
  snprintf(room, sizeof room, "%s", out.data ? out.data : "");
  gr_buf_free(&out);
  return room;
}

#define U(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define S(text) "<|im_start|>system\n" text "<|im_end|>\n"
#define A(text) "<|im_start|>assistant\n[" text "<|im_end|>]\n"

#endif
