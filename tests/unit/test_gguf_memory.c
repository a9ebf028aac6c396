/* Every allocation of the GGUF room made to fail, one after the other: a sentence, nothing leaked, nothing left on disk. */
#include "check.h"

#include "failing_alloc.h"
#include "gguf_sample.h"
#include "gguf_walk.h"
#include "scratch.h"

typedef gr_status run_fn(scratch *dir, gr_error *e);

static gr_status open_one(const char *path, gr_error *e)
{
  gr_gguf *g;
  GR_TRY(gr_gguf_open(&g, path, e));
  gr_status s = gr_gguf_check_types(g, e);
  if (s == GR_OK) s = gr_gguf_check_finite(g, NULL, e);
  gr_gguf_close(g);
  return s;
}

static gr_status run_open(scratch *dir, gr_error *e) { return open_one(scratch_path(dir, "model.gguf"), e); }
static gr_status run_many(scratch *dir, gr_error *e) { return open_one(scratch_path(dir, "many.gguf"), e); }

static gr_status run_split(scratch *dir, gr_error *e)
{
  gr_gguf *g;
  GR_TRY(gr_gguf_open(&g, scratch_path(dir, "p-00001-of-00002.gguf"), e));
  gr_gguf_close(g);
  return GR_OK;
}

static gr_status run_adapter(scratch *dir, gr_error *e)
{
  gr_adapter *a;
  GR_TRY(gr_adapter_open(&a, scratch_path(dir, "adapter.gguf"), e));
  gr_adapter_close(a);
  return GR_OK;
}

static gr_status run_save(scratch *dir, gr_error *e) { return sample_model_save(scratch_path(dir, "out.gguf"), 64, e); }
static gr_status run_save_adapter(scratch *dir, gr_error *e) { return sample_adapter_save(scratch_path(dir, "out-adapter.gguf"), e); }

static gr_status run_encode(scratch *dir, gr_error *e)
{
  (void)dir;
  gr_gguf_writer *w;
  gr_buf bytes = { 0 };
  GR_TRY(gr_gguf_writer_create(&w, e));
  sample_put_arrays(w);
  sample_add_tensors(w);
  gr_status s = gr_gguf_writer_encode(w, &bytes, e);
  gr_gguf_writer_free(w);
  gr_buf_free(&bytes);
  return s;
}

/* Enough names that keeping them takes more than one allocation. */
static gr_status save_many(const char *path, gr_error *e)
{
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  char name[64];
  for (int i = 0; i < 4000; i++) {
    snprintf(name, sizeof name, "a.long.name.that.is.one.of.very.many.%d", i);
    if (i % 2) gr_gguf_put_bool(w, name, true);
    else gr_gguf_add_data(w, name, GR_I8, 0, NULL, sample_bytes);
  }
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

static gr_status save_part(const char *path, uint32_t part, gr_error *e)
{
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  gr_gguf_put_u32(w, "split.no", part);
  gr_gguf_put_u32(w, "split.count", 2);
  gr_gguf_put_u32(w, "split.tensors.count", 1);
  if (part) gr_gguf_add_data(w, "x", GR_F32, 1, (int64_t[]){ 8 }, sample_floats);
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

/* Returns how many allocations the run makes. `benign`: failures that may pass unnoticed. */
static size_t fail_each(scratch *dir, const char *what, run_fn *run, bool rest, size_t benign)
{
  size_t files = scratch_count(dir), unnoticed = 0;
  for (size_t n = 1;; n++) {
    gr_error e = { 0 };
    allocations_fail(n, rest);
    gr_status s = run(dir, &e);
    size_t failed = allocations.failed, live = (size_t)allocations.live;
    allocations_fail(0, false);
    if (live) fail_msg("%s: %zu allocations are leaked when number %zu fails", what, live, n);
    if (!failed) {
      assert_ok(s, &e);
      return n - 1;
    }
    if (s == GR_OK) unnoticed++;
    else if (s != GR_ERR_MEMORY || !strstr(e.text, "out of memory"))
      fail_msg("%s: allocation %zu: %s, '%s'", what, n, gr_status_name(s), e.text);
    if (unnoticed > benign) fail_msg("%s: the failure of allocation %zu went unnoticed", what, n);
    if (s != GR_OK) assert_int_equal(scratch_count(dir), files);
    else files = scratch_count(dir);
  }
}

static void failing_allocations_are_survived(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  assert_ok(sample_model_save(scratch_path(&dir, "model.gguf"), 32, &e), &e);
  assert_ok(sample_adapter_save(scratch_path(&dir, "adapter.gguf"), &e), &e);
  assert_ok(save_many(scratch_path(&dir, "many.gguf"), &e), &e);
  assert_ok(save_part(scratch_path(&dir, "p-00001-of-00002.gguf"), 0, &e), &e);
  assert_ok(save_part(scratch_path(&dir, "p-00002-of-00002.gguf"), 1, &e), &e);
  for (int rest = 0; rest < 2; rest++) {
    assert_true(fail_each(&dir, "open", run_open, rest, 0) >= 8);
    assert_true(fail_each(&dir, "many", run_many, rest, 0) > fail_each(&dir, "open", run_open, rest, 0));
    assert_true(fail_each(&dir, "split", run_split, rest, 0) >= 12);
    assert_true(fail_each(&dir, "adapter", run_adapter, rest, 0) >= 10);
    assert_true(fail_each(&dir, "encode", run_encode, rest, 0) >= 10);
    /* Flushing the folder after the rename does without the memory for its name: the file is whole and in place by then. */
    assert_true(fail_each(&dir, "save", run_save, rest, 1) >= 10);
    assert_true(fail_each(&dir, "save adapter", run_save_adapter, rest, 1) >= 10);
  }
  scratch_close(&dir);
}

/* What opening costs is in proportion to the file, whatever stands in it: thousands of the smallest tensors and pairs, one long
 * array, one long string; and a file that announces much and holds little costs next to nothing. */
static void memory_stays_in_proportion_to_the_file(void **state)
{
  (void)state;
  enum { N = 20000 };
  for (int shape = 0; shape < 5; shape++) {
    gr_error e = { 0 };
    gr_gguf_writer *w = NULL;
    gr_gguf *g = NULL;
    gr_buf bytes = { 0 };
    gr_gguf_str *strings = gr_calloc(N, sizeof *strings);
    char name[16];
    assert_true(strings && gr_gguf_writer_create(&w, &e) == GR_OK);
    for (int i = 0; i < N && shape < 2; i++) {
      snprintf(name, sizeof name, "%d", i);
      if (shape == 0) gr_gguf_add_data(w, name, GR_I8, 0, NULL, sample_bytes);
      else gr_gguf_put_bool(w, name, true);
    }
    if (shape == 2) gr_gguf_put_strs(w, "a", strings, N);
    if (shape >= 3) gr_gguf_put_array(w, "a", GR_GGUF_U8, strings, N);
    assert_ok(gr_gguf_writer_encode(w, &bytes, &e), &e);
    gr_gguf_writer_free(w);
    gr_free(strings);
    if (shape == 4) { /* announces as many pairs as the file could hold */
      uint64_t pairs = bytes.len / 14 - 2;
      memcpy(bytes.data + 16, &pairs, sizeof pairs);
    }
    allocations_fail(0, false);
    gr_status s = gr_gguf_open_memory(&g, bytes.data, bytes.len, "proportion", &e);
    size_t asked = allocations.bytes;
    if (shape < 4) assert_ok(s, &e);
    else assert_int_equal(s, GR_ERR_FORMAT);
    if (asked > 8 * bytes.len + 65536) fail_msg("shape %d: %zu bytes are allocated for a file of %zu", shape, asked, bytes.len);
    gr_gguf_close(g);
    gr_buf_free(&bytes);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(failing_allocations_are_survived),
    cmocka_unit_test(memory_stays_in_proportion_to_the_file),
  };
  return cmocka_run_group_tests_name("gguf memory", tests, NULL, NULL);
}
