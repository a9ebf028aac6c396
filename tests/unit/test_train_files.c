/* The train room's files and words: checkpoints, what stands beside an output, options, event files, memory. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "golden.h"
#include "io/identity.h"
#include "scratch.h"
#include "train/checkpoint.h"
#include "train/memory.h"
#include "train/options.h"
#include "train/output.h"
#include "train/tensorboard.h"
#include "watched.h"

/* ---- checkpoints ---- */

struct saved {
  gr_run_state state;
  gr_run_identity id;
};

static void make_saved(struct saved *s, size_t n)
{
  *s = (struct saved){ .state = { .step = 12,
                                  .evaluations = 11,
                                  .evaluations_worse = 2,
                                  .best_step = 8,
                                  .best_loss = 1.25,
                                  .best_gain = -0.5,
                                  .best_se = 0.125,
                                  .loss_first = 3,
                                  .loss_last = 2,
                                  .tenth = { 4.5, 2, 6.25, 3 },
                                  .tokens_total = 1234,
                                  .n_baseline = 3 },
                       .id = { .base_hash = "0123456789abcdef0123456789abcdef",
                               .data_hash = UINT64_MAX,
                               .adapter_hash = 5,
                               .steps_total = 40,
                               .warmup = 3,
                               .data_samples = 9,
                               .data_tokens = 99,
                               .geometry = "lora_r: 4\nlearning_rate: 0.1\nmicro_batch_size: 3\n" } };
  s->state.m = gr_calloc(3 * n, sizeof(float));
  s->state.v = s->state.m + n;
  s->state.best = s->state.v + n;
  s->state.baseline = gr_calloc(3, sizeof(double));
  assert_true(s->state.m && s->state.baseline);
  for (size_t i = 0; i < 3 * n; i++) s->state.m[i] = (float)i * 0.5f - 3;
  for (size_t i = 0; i < 3; i++) s->state.baseline[i] = (double)i + 0.25;
}

static void free_saved(struct saved *s)
{
  gr_free(s->state.m);
  gr_free(s->state.baseline);
}

static void checkpoints_hold_everything(void **state)
{
  (void)state;
  golden g;
  scratch dir;
  gr_error e = { 0 };
  golden_open(&g, "qwen2");
  scratch_open(&dir);
  size_t n = gr_lora_parameters(g.lora);
  struct saved a, b;
  make_saved(&a, n);
  make_saved(&b, n);
  memset(b.state.m, 0, 3 * n * sizeof(float));
  memset(b.state.baseline, 0, 3 * sizeof(double));
  float *m = b.state.m, *v = b.state.v, *best = b.state.best;
  double *baseline = b.state.baseline;
  b.state = (gr_run_state){ .m = m, .v = v, .best = best, .baseline = baseline, .n_baseline = 3 };
  float *values = gr_alloc(n * sizeof *values);
  memcpy(values, gr_lora_values(g.lora), n * sizeof *values);
  const char *path = scratch_path(&dir, "x.checkpoint");
  assert_ok(gr_checkpoint_save(path, g.lora, &a.state, &a.id, &e), &e);
  memset(gr_lora_values(g.lora), 0, n * sizeof *values);
  assert_ok(gr_checkpoint_load(path, g.lora, &b.state, &b.id, &e), &e);
  assert_memory_equal(values, gr_lora_values(g.lora), n * sizeof *values);
  assert_memory_equal(a.state.m, b.state.m, 3 * n * sizeof(float));
  assert_memory_equal(a.state.baseline, b.state.baseline, 3 * sizeof(double));
  float *written = a.state.m; /* the pointers are made alike, to compare the rest at once */
  a.state.m = b.state.m, a.state.v = b.state.v, a.state.best = b.state.best;
  baseline = a.state.baseline;
  a.state.baseline = b.state.baseline;
  assert_memory_equal(&a.state, &b.state, sizeof a.state);
  a.state.baseline = baseline;
  a.state.m = NULL;
  gr_free(written);
  assert_int_equal(gr_checkpoint_peek(path, "micro_batch_size", 0), 3);
  assert_int_equal(gr_checkpoint_peek(path, "batch", -7), -7);
  free_saved(&b);
  gr_free(baseline);
  gr_free(values);
  scratch_close(&dir);
  golden_close(&g);
}

static void flip_byte(const char *path, long at)
{
  FILE *f = fopen(path, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, at, SEEK_SET), 0);
  int byte = fgetc(f);
  assert_int_equal(fseek(f, at, SEEK_SET), 0);
  fputc(byte ^ 1, f);
  fclose(f);
}

static void a_foreign_or_damaged_checkpoint_is_refused_in_words(void **state)
{
  (void)state;
  golden g;
  scratch dir;
  golden_open(&g, "qwen2");
  scratch_open(&dir);
  gr_error e = { 0 };
  struct saved s;
  make_saved(&s, gr_lora_parameters(g.lora));
  const char *path = scratch_path(&dir, "x.checkpoint");
  assert_ok(gr_checkpoint_save(path, g.lora, &s.state, &s.id, &e), &e);
  static const char *const says[] = { "another base model",
                                      "9 samples of 99 tokens then, 8 samples",
                                      "give the same --init-adapter",
                                      "run of 40 steps, and this one has 41",
                                      "'learning_rate: 0.1', and this one has 'learning_rate: 0.2'",
                                      "another version",
                                      "over 3 steps, and this one does over 4" };
  for (int fault = 0; fault < 7; fault++) {
    gr_run_identity id = s.id;
    if (fault == 0) id.base_hash[3] = 'x';
    if (fault == 1) id.data_hash = 1, id.data_samples = 8;
    if (fault == 2) id.adapter_hash = 6;
    if (fault == 3) id.steps_total = 41;
    if (fault == 4) id.geometry = "lora_r: 4\nlearning_rate: 0.2\nmicro_batch_size: 3\n";
    if (fault == 5) id.geometry = "lora_r: 4\n";
    if (fault == 6) id.warmup = 4;
    gr_status status = gr_checkpoint_load(path, g.lora, &s.state, &id, &e);
    if (status != GR_ERR_MISMATCH || !strstr(e.text, says[fault])) fail_msg("fault %d: %s", fault, e.text);
  }
  /* A byte of each tensor, turned over on the disk. */
  static const char *const tensors[] = { "values", "m", "v", "best", "baseline" };
  for (size_t i = 0; i < 5; i++) {
    gr_gguf *file = NULL;
    assert_ok(gr_gguf_open(&file, path, &e), &e);
    const gr_gguf_tensor *t = gr_gguf_tensor_find(file, tensors[i]), *first = gr_gguf_tensor_find(file, "values");
    long size = (long)gr_gguf_file_bytes(file), from_first = (long)((const char *)t->data - (const char *)first->data);
    const gr_gguf_tensor *last = gr_gguf_tensor_find(file, "baseline");
    long end = (long)((const char *)last->data - (const char *)first->data) + 32; /* data ends padded to 32 */
    gr_gguf_close(file);
    flip_byte(path, size - end + from_first + 9);
    assert_int_equal(gr_checkpoint_load(path, g.lora, &s.state, &s.id, &e), GR_ERR_FORMAT);
    assert_non_null(strstr(e.text, "damaged"));
    flip_byte(path, size - end + from_first + 9);
    assert_ok(gr_checkpoint_load(path, g.lora, &s.state, &s.id, &e), &e);
  }
  free_saved(&s);
  scratch_close(&dir);
  golden_close(&g);
}

static void checkpoints_beside_an_output_are_found_and_dropped(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  static const char *const names[] = { "a.step-000002.checkpoint",       "a.step-1000000.checkpoint",  "a.step-000010.checkpoint",
                                       "a.step-000011.checkpoint.tmp-1", "ab.step-000099.checkpoint",  "a.step-.checkpoint",
                                       "a.step--0003.checkpoint",        "a.step-000077.checkpointer", "a.gguf" };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    FILE *f = fopen(scratch_path(&dir, names[i]), "wb");
    assert_non_null(f);
    fclose(f);
  }
  const char *output = scratch_path(&dir, "a.gguf");
  uint64_t *steps = NULL;
  size_t n = 0;
  assert_ok(gr_checkpoint_list(output, &steps, &n, &e), &e);
  assert_true(n == 3 && steps[0] == 2 && steps[1] == 10 && steps[2] == 1000000);
  gr_free(steps);
  gr_checkpoint_drop(output, 1);
  assert_ok(gr_checkpoint_list(output, &steps, &n, &e), &e);
  assert_true(n == 1 && steps[0] == 1000000);
  gr_free(steps);
  assert_int_equal(scratch_count(&dir), sizeof names / sizeof *names - 2);
  assert_int_equal(gr_checkpoint_list("/nowhere/at/all/a.gguf", &steps, &n, &e), GR_ERR_IO);
  scratch_close(&dir);
}

static void a_run_names_what_it_writes(void **state)
{
  (void)state;
  static const char *const names[] = { "a/run.gguf", "a/run.yaml", "a/run.metrics.jsonl", "a/run.metrics.csv" };
  char *path = NULL;
  size_t n = 0;
  for (; gr_output_file("a/run.gguf", n, &path); n++) {
    assert_true(n < 4);
    assert_string_equal(path, names[n]);
    gr_free(path);
  }
  assert_int_equal(n, 4);
}

static void leftovers_of_the_dead_are_swept(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  char mine[64];
  snprintf(mine, sizeof mine, "a.step-000001.checkpoint.tmp-%ld-0", (long)getpid());
  const char *names[] = { "a.step-000001.checkpoint.tmp-999999999-0", "a.gguf.tmp-999999999-3", mine, "ab.gguf.tmp-999999999-0", "a.gguf" };
  for (size_t i = 0; i < 5; i++) {
    FILE *f = fopen(scratch_path(&dir, names[i]), "wb");
    assert_non_null(f);
    fclose(f);
  }
  gr_output_sweep(scratch_path(&dir, "a.gguf"));
  assert_int_equal(scratch_count(&dir), 3);
  assert_int_equal(access(scratch_path(&dir, mine), F_OK), 0);
  assert_int_equal(access(scratch_path(&dir, "ab.gguf.tmp-999999999-0"), F_OK), 0);
  scratch_close(&dir);
}

/* ---- options ---- */

static void set(gr_train_options *o, const char *key, const char *text)
{
  gr_error e = { 0 };
  const gr_option_info *info = gr_train_option_find(key);
  if (!info) fail_msg("no option %s", key);
  assert_ok(gr_train_options_set(o, info, text, "", &e), &e);
}

static void a_dumped_config_reads_back_the_same(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_train_options a, b;
  gr_train_options_init(&a);
  gr_train_options_init(&b);
  set(&a, "data", "it's one: #file.jsonl");
  set(&a, "train-file", "two.jsonl");
  set(&a, "lr", "0.1");
  set(&a, "adam_beta2", "0.98999999999999999");
  set(&a, "target-modules", "attn_q,re:blk\\.[0-3]\\.(ffn_up|ffn_down),x");
  set(&a, "packing", "no");
  set(&a, "seed", "-9223372036854775807");
  gr_buf text = { 0 }, again = { 0 };
  gr_train_options_dump(&a, false, &text);
  assert_false(text.failed);
  FILE *f = fopen(scratch_path(&dir, "c.yaml"), "wb");
  assert_non_null(f);
  fwrite(text.data, 1, text.len, f);
  fclose(f);
  assert_ok(gr_train_options_load(&b, scratch_path(&dir, "c.yaml"), &e), &e);
  gr_train_options_dump(&b, false, &again);
  assert_string_equal(text.data, again.data);
  assert_int_equal(b.data.n, 2);
  assert_int_equal(b.target_modules.n, 2);
  gr_buf_clear(&again);
  gr_train_options_dump(&b, true, &again);
  assert_non_null(strstr(again.data, "learning_rate: 0.1\n"));
  assert_null(strstr(again.data, "data:"));
  assert_null(strstr(again.data, "threads:"));
  gr_buf_free(&text);
  gr_buf_free(&again);
  gr_train_options_free(&a);
  gr_train_options_free(&b);
  scratch_close(&dir);
}

static void values_out_of_range_are_refused(void **state)
{
  (void)state;
  static const char *const wrong[][3] = {
    { "lora_r", "0", "at least 1, not 0" },
    { "lora_alpha", "0", "lora_alpha must be at least" },
    { "lora_dropout", "1", "at most 0.999" },
    { "learning_rate", "-1", "at least 0" },
    { "lr_min", "1", "at most 0.0002" },
    { "max_steps", "0", "at least 1" },
    { "micro_batch_size", "0", "at least 1" },
    { "window", "1", "at least 2" },
    { "val_split", "0.95", "at most 0.9" },
    { "save_total_limit", "0", "at least 1" },
    { "lr_scheduler_type", "wavy", "cosine, linear, constant" },
    { "gradient_checkpointing", "maybe", "on, off, fit" },
    { "report_to", "wandb", "tensorboard" },
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    gr_error e = { 0 };
    gr_train_options o;
    gr_train_options_init(&o);
    assert_ok(gr_train_options_check(&o, &e), &e);
    set(&o, wrong[i][0], wrong[i][1]);
    if (gr_train_options_check(&o, &e) != GR_ERR_USAGE || !strstr(e.text, wrong[i][2])) fail_msg("%s: '%s'", wrong[i][0], e.text);
    gr_train_options_free(&o);
  }
}

static void sizes_are_read_as_people_write_them(void **state)
{
  (void)state;
  static const struct {
    const char *text;
    size_t bytes;
  } good[] = { { "123456789", 123456789 },
               { "900M", (size_t)900 << 20 },
               { "6G", (size_t)6 << 30 },
               { "6GiB", (size_t)6 << 30 },
               { "1.5 gb", 3u << 29 },
               { "2kB", 2048 },
               { "64B", 64 },
               { "1T", (size_t)1 << 40 } };
  static const char *const bad[] = { "", "G", "0", "-1G", "1X", "1GG", "1 G x", "nan", "12MiBs", "6", "123" };
  gr_error e = { 0 };
  size_t bytes;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_ok(gr_memory_parse(good[i].text, &bytes, &e), &e);
    assert_int_equal(bytes, good[i].bytes);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (gr_memory_parse(bad[i], &bytes, &e) != GR_ERR_USAGE) fail_msg("'%s' was taken", bad[i]);
}

/* ---- event files ---- */

/* Known answers of RFC 3720, appendix B.4. */
static void crc32c_is_castagnolis(void **state)
{
  (void)state;
  unsigned char bytes[32] = { 0 };
  assert_int_equal(gr_crc32c(bytes, 32), 0x8a9136aau);
  memset(bytes, 0xff, 32);
  assert_int_equal(gr_crc32c(bytes, 32), 0x62a8ab43u);
  for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
  assert_int_equal(gr_crc32c(bytes, 32), 0x46dd794eu);
  assert_int_equal(gr_crc32c("123456789", 9), 0xe3069283u);
}

static void every_bit_changes_both_halves_of_a_hash(void **state)
{
  (void)state;
  unsigned char bytes[200];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37);
  for (size_t n = 1; n <= sizeof bytes; n += 1 + n / 3) {
    uint64_t whole[2], h[2];
    gr_hash_bytes(bytes, n, whole);
    for (size_t bit = 0; bit < 8 * n; bit++) {
      bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
      gr_hash_bytes(bytes, n, h);
      bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
      if (h[0] == whole[0] || h[1] == whole[1]) fail_msg("bit %zu of %zu bytes is not hashed", bit, n);
    }
    gr_hash_bytes(bytes, n - 1, h);
    assert_true(h[0] != whole[0] && h[1] != whole[1]);
  }
}

static void memory_is_measured(void **state)
{
  (void)state;
  size_t before = gr_memory_anonymous(), n = (size_t)64 << 20;
  if (!before) skip();
#ifdef WATCHED /* ThreadSanitizer keeps shadows of what is touched: as much again and more */
  skip();
#endif
  char *p = gr_alloc(n);
  assert_non_null(p);
  memset(p, 1, n);
  size_t after = gr_memory_anonymous();
  assert_true(after >= before + n - n / 16 && after <= before + n + n / 16);
  assert_true(gr_memory_limit() >= after);
  gr_free(p);
}

/* ulimit -v, in a process of its own: it cannot be raised again. */
static void a_limit_of_addresses_counts(void **state)
{
  (void)state;
#ifdef WATCHED /* its shadows take addresses without end */
  skip();
#endif
  const size_t room = (size_t)3 << 30;
  pid_t child = fork();
  if (child == 0) {
    const struct rlimit r = { room, room };
    _exit(setrlimit(RLIMIT_AS, &r) != 0 || gr_memory_limit() > room);
  }
  int status = 1;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(checkpoints_hold_everything),
    cmocka_unit_test(a_foreign_or_damaged_checkpoint_is_refused_in_words),
    cmocka_unit_test(checkpoints_beside_an_output_are_found_and_dropped),
    cmocka_unit_test(a_run_names_what_it_writes),
    cmocka_unit_test(leftovers_of_the_dead_are_swept),
    cmocka_unit_test(a_dumped_config_reads_back_the_same),
    cmocka_unit_test(values_out_of_range_are_refused),
    cmocka_unit_test(sizes_are_read_as_people_write_them),
    cmocka_unit_test(crc32c_is_castagnolis),
    cmocka_unit_test(every_bit_changes_both_halves_of_a_hash),
    cmocka_unit_test(memory_is_measured),
    cmocka_unit_test(a_limit_of_addresses_counts),
  };
  return cmocka_run_group_tests_name("train files", tests, NULL, NULL);
}
