#include <sys/stat.h>

#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/pool.h"
#include "base/rng.h"

static void half_round_trips_every_value(void **state)
{
  (void)state;
  for (uint32_t h = 0; h < 0x10000; h++) {
    float f = gr_f16_to_f32((uint16_t)h);
    uint16_t back = gr_f32_to_f16(f);
    if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) assert_int_equal(back & 0x7e00, 0x7e00 & (0x7c00 | 0x200));
    else assert_int_equal(back, h);
    uint16_t b = gr_f32_to_bf16(gr_bf16_to_f32((uint16_t)h));
    if ((h & 0x7f80) == 0x7f80 && (h & 0x7f)) assert_true((b & 0x7f80) == 0x7f80 && (b & 0x7f));
    else assert_int_equal(b, h);
  }
}

static void half_rounds_to_nearest_even(void **state)
{
  (void)state;
  assert_int_equal(gr_f32_to_f16(65519.99f), 0x7bff);
  assert_int_equal(gr_f32_to_f16(65520.0f), 0x7c00);
  assert_int_equal(gr_f32_to_f16(0x1p-25f), 0);
  assert_int_equal(gr_f32_to_f16(0x1.000002p-25f), 1);
  assert_int_equal(gr_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
  assert_int_equal(gr_f32_to_f16(1.0f + 0x1.8p-10f), 0x3c02);
  assert_int_equal(gr_f32_to_f16(-0.0f), 0x8000);
}

/* Known answers of Philox4x32-10 from the authors' Random123 distribution (kat_vectors). */
static void philox_known_answers(void **state)
{
  (void)state;
  uint32_t out[4];
  gr_philox(0, (const uint32_t[4]){ 0 }, out);
  const uint32_t zero[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
  assert_memory_equal(out, zero, sizeof zero);
  gr_philox(UINT64_MAX, (const uint32_t[4]){ ~0u, ~0u, ~0u, ~0u }, out);
  const uint32_t ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
  assert_memory_equal(out, ones, sizeof ones);
}

static void count_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  ((unsigned char *)ctx)[job]++;
}

static void pool_runs_every_job_once(void **state)
{
  (void)state;
  gr_error e = { 0 };
  for (int threads = 1; threads <= 7; threads += 3) {
    gr_pool *pool = NULL;
    assert_ok(gr_pool_create(&pool, threads, &e), &e);
    for (int round = 0; round < 300; round++) {
      unsigned char seen[97] = { 0 };
      gr_pool_run(pool, sizeof seen, count_job, seen);
      for (size_t i = 0; i < sizeof seen; i++) assert_int_equal(seen[i], 1);
    }
    gr_pool_free(pool);
  }
}

static void file_commit_is_all_or_nothing(void **state)
{
  (void)state;
  gr_error e = { 0 };
  char path[] = "/tmp/graft-test-base-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0 && write(fd, "old", 3) == 3);
  close(fd);
  gr_file *f = NULL;
  char *text = NULL;
  size_t size = 0;
  assert_ok(gr_file_create(&f, path, &e), &e);
  assert_ok(gr_file_write(f, "new content", 11, &e), &e);
  assert_ok(gr_file_read(path, 100, &text, &size, &e), &e);
  assert_string_equal(text, "old");
  gr_free(text);
  assert_ok(gr_file_commit(f, &e), &e);
  assert_ok(gr_file_read(path, 100, &text, &size, &e), &e);
  assert_string_equal(text, "new content");
  gr_free(text);
  assert_int_equal(gr_file_create(&f, "/nonexistent-folder/x", &e), GR_ERR_IO);
  unlink(path);
}

static void only_files_are_written_over(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_file *f = NULL;
  char folder[] = "/tmp/graft-test-base-XXXXXX", path[64], link[64], pipe[64];
  char *text = NULL;
  size_t size = 0;
  struct stat st;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/file", folder);
  snprintf(link, sizeof link, "%s/link", folder);
  snprintf(pipe, sizeof pipe, "%s/pipe", folder);
  assert_int_equal(gr_file_create(&f, folder, &e), GR_ERR_IO);
  assert_non_null(strstr(e.text, "it is a folder"));
  assert_int_equal(mkfifo(pipe, 0600), 0);
  assert_int_equal(gr_file_create(&f, pipe, &e), GR_ERR_IO);
  assert_non_null(strstr(e.text, "a device or pipe, not a file"));
  assert_int_equal(symlink("file", link), 0);
  assert_false(gr_file_same(path, link)); /* neither is there yet */
  for (int i = 0; i < 2; i++) {
    assert_ok(gr_file_create(&f, i ? link : path, &e), &e);
    assert_ok(gr_file_write(f, i ? "new" : "old", 3, &e), &e);
    assert_ok(gr_file_commit(f, &e), &e);
  }
  assert_true(gr_file_same(path, link));
  assert_false(gr_file_same(path, pipe));
  assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
  assert_ok(gr_file_read(path, 100, &text, &size, &e), &e);
  assert_string_equal(text, "new");
  gr_free(text);
  unlink(path), unlink(link), unlink(pipe);
  assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(half_round_trips_every_value),  cmocka_unit_test(half_rounds_to_nearest_even),
    cmocka_unit_test(philox_known_answers),          cmocka_unit_test(pool_runs_every_job_once),
    cmocka_unit_test(file_commit_is_all_or_nothing), cmocka_unit_test(only_files_are_written_over),
  };
  return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
