/* Golden models with something changed: keys and tensors left out or put in, in memory. */
#ifndef GR_TESTS_ALTERED_H
#define GR_TESTS_ALTERED_H
#include "base/buf.h"
#include "check.h"
#include "io/gguf_write.h"
#include "model/model.h"

typedef struct altered {
  gr_gguf *original;
  gr_gguf_writer *writer;
  const char *without[24]; /* keys and tensors that are not copied */
  const char *architecture;
  gr_buf bytes;
} altered;

static inline void altered_open(altered *a, const char *name)
{
  gr_error e = { 0 };
  char path[512];
  *a = (altered){ 0 };
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", name);
  assert_ok(gr_gguf_open(&a->original, path, &e), &e);
  assert_ok(gr_gguf_writer_create(&a->writer, &e), &e);
}

static inline void altered_without(altered *a, const char *name)
{
  size_t i = 0;
  while (a->without[i]) i++;
  assert_true(i + 1 < sizeof a->without / sizeof *a->without);
  a->without[i] = name;
}

static inline bool altered_keeps(const altered *a, const char *name)
{
  for (size_t i = 0; a->without[i]; i++)
    if (strcmp(a->without[i], name) == 0) return false;
  return true;
}

/* A pair of the original, its key's architecture replaced where another was asked for. */
static inline void altered_copy_kv(altered *a, const gr_gguf_kv *kv)
{
  gr_error e = { 0 };
  gr_gguf_str old = { "", 0 };
  char key[128];
  gr_gguf_kv changed = *kv;
  assert_ok(gr_gguf_string(a->original, "general.architecture", GR_GGUF_REQUIRED, &old, &e), &e);
  if (a->architecture && strcmp(kv->key, "general.architecture") == 0) {
    gr_gguf_put_string(a->writer, kv->key, a->architecture);
    return;
  }
  if (a->architecture && strncmp(kv->key, old.data, old.len) == 0 && kv->key[old.len] == '.') {
    snprintf(key, sizeof key, "%s%s", a->architecture, kv->key + old.len);
    changed.key = key;
  }
  if (altered_keeps(a, changed.key)) gr_gguf_put_kv(a->writer, &changed);
}

/* What was put into the writer before stands first. The model owns nothing of a: altered_close after it. */
static inline gr_status altered_model(altered *a, gr_model **m, gr_error *e)
{
  gr_gguf *g = NULL;
  for (size_t i = 0; i < gr_gguf_kv_count(a->original); i++) altered_copy_kv(a, gr_gguf_kv_at(a->original, i));
  for (size_t i = 0; i < gr_gguf_tensor_count(a->original); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(a->original, i);
    if (altered_keeps(a, t->name)) gr_gguf_add_copy(a->writer, t);
  }
  assert_ok(gr_gguf_writer_encode(a->writer, &a->bytes, e), e);
  assert_ok(gr_gguf_open_memory(&g, a->bytes.data, a->bytes.len, "altered.gguf", e), e);
  return gr_model_open_gguf(m, g, e);
}

static inline void altered_close(altered *a)
{
  gr_gguf_writer_free(a->writer);
  gr_gguf_close(a->original);
  gr_buf_free(&a->bytes);
}

#endif
