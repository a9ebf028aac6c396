/* Whole runs inside the process: numbers that are none, tensors that get no gradient, memory that is not there. */
#include "golden.h"
#include "io/adapter.h"
#include "scratch.h"
#include "train/trainer.h"

/* ---- models, some with a fault ---- */

typedef void change(float *weights, size_t n);
static void one_nan(float *w, size_t n) { w[n / 2] = NAN; }
static void one_infinite(float *w, size_t n) { w[n / 2] = HUGE_VALF; }
static void all_zero(float *w, size_t n) { memset(w, 0, n * sizeof *w); }
static void vast(float *w, size_t n)
{
  for (size_t i = 0; i < n; i++) w[i] *= 1e33f;
}

/* The golden llama with one of its tensors (F32) changed; tensor NULL: as it is. */
static gr_model *changed_model(const char *path, const char *tensor, change *make)
{
  gr_error e = { 0 };
  gr_gguf *g = NULL;
  gr_gguf_writer *w = NULL;
  gr_model *m = NULL;
  float *values = NULL;
  assert_ok(gr_gguf_open(&g, GR_SOURCE_DIR "/tests/golden/llama.gguf", &e), &e);
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  for (size_t i = 0; i < gr_gguf_kv_count(g); i++) gr_gguf_put_kv(w, gr_gguf_kv_at(g, i));
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    if (!tensor || strcmp(t->name, tensor) != 0) {
      gr_gguf_add_copy(w, t);
      continue;
    }
    assert_int_equal(t->dtype, GR_F32);
    values = gr_alloc(t->bytes);
    assert_non_null(values);
    memcpy(values, t->data, t->bytes);
    make(values, t->bytes / sizeof *values);
    gr_gguf_add_data(w, t->name, GR_F32, t->n_dims, t->ne, values);
  }
  assert_true(!tensor || values);
  assert_ok(gr_gguf_writer_save(w, path, &e), &e);
  assert_ok(gr_model_open(&m, path, &e), &e);
  gr_gguf_writer_free(w);
  gr_gguf_close(g);
  gr_free(values);
  return m;
}

/* ---- a run ---- */

struct run {
  scratch dir;
  gr_train_options o;
  gr_model *model;
  gr_pool *pool;
  gr_backend *backend;
  gr_trainer *trainer;
  gr_error e;
  gr_memory_plan memory; /* of the last plan event */
  char notes[8192];
  double losses[16], norms[16]; /* of the steps */
  uint64_t steps, stop_after;   /* step events seen; 0: never */
};

static void on_event(void *ctx, const gr_train_event *v)
{
  struct run *r = ctx;
  size_t used = strlen(r->notes);
  if (v->kind == GR_EVENT_NOTE) snprintf(r->notes + used, sizeof r->notes - used, "%s\n", v->text);
  if (v->kind == GR_EVENT_STEP) r->steps = v->step;
  if (v->kind == GR_EVENT_STEP && v->step <= 16) r->losses[v->step - 1] = v->loss, r->norms[v->step - 1] = v->grad_norm;
  if (v->kind == GR_EVENT_PLAN) r->memory = v->plan->memory;
}

static bool stop_asked(void *ctx)
{
  const struct run *r = ctx;
  return r->stop_after && r->steps >= r->stop_after;
}

static void set(struct run *r, const char *key, const char *text)
{
  gr_error e = { 0 };
  const gr_option_info *info = gr_train_option_find(key);
  if (!info) fail_msg("no option %s", key);
  assert_ok(gr_train_options_set(&r->o, info, text, "", &e), &e);
}

static void write_text(const char *path, const char *text)
{
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  fputs(text, f);
  assert_int_equal(fclose(f), 0);
}

static const char sentences[] = "{\"text\": \"the cat sat on the mat and then it ran away\"}\n"
                                "{\"text\": \"a dog barks at the moon in the middle of the night\"}\n"
                                "{\"text\": \"one two three four five six seven eight nine ten\"}\n"
                                "{\"text\": \"rain falls on hills and on houses\"}\n";

/* Four short samples, none held out. */
static void run_open(struct run *r, const char *tensor, change *make)
{
  gr_error e = { 0 };
  *r = (struct run){ 0 };
  scratch_open(&r->dir);
  gr_train_options_init(&r->o);
  assert_ok(gr_pool_create(&r->pool, 2, &e), &e);
  assert_ok(gr_backend_open(&r->backend, "cpu", r->pool, &e), &e);
  r->model = changed_model(scratch_path(&r->dir, "m.gguf"), tensor, make);
  write_text(scratch_path(&r->dir, "data.jsonl"), sentences);
  set(r, "data", scratch_path(&r->dir, "data.jsonl"));
  set(r, "output", scratch_path(&r->dir, "a.gguf"));
  set(r, "window", "64");
  set(r, "batch_size", "2");
  set(r, "lora_r", "4");
  set(r, "val_split", "0");
  set(r, "max_steps", "6");
}

static gr_status go(struct run *r)
{
  const gr_trainer_setup setup = { .options = &r->o,
                                   .model = r->model,
                                   .backends = &r->backend,
                                   .n_backends = 1,
                                   .pool = r->pool,
                                   .on_event = on_event,
                                   .stop = stop_asked,
                                   .ctx = r };
  gr_trainer *t = NULL;
  r->notes[0] = 0;
  r->steps = 0;
  r->e = (gr_error){ 0 };
  gr_status s = gr_trainer_open(&t, &setup, &r->e);
  if (s == GR_OK) s = gr_trainer_run(t, &r->e);
  gr_trainer_close(t);
  return s;
}

static void run_close(struct run *r)
{
  gr_train_options_free(&r->o);
  gr_model_close(r->model);
  gr_backend_close(r->backend);
  gr_pool_free(r->pool);
  scratch_close(&r->dir);
}

static bool same_files(const char *a, const char *b)
{
  FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
  assert_true(x && y);
  int c, d;
  do {
    c = fgetc(x);
    d = fgetc(y);
  } while (c == d && c != EOF);
  fclose(x);
  fclose(y);
  return c == d;
}

static void expect(const struct run *r, gr_status got, gr_status want, const char *words)
{
  if (got != want || !strstr(r->e.text, words)) fail_msg("status %d, '%s'; wanted %d and '%s'", (int)got, r->e.text, (int)want, words);
}

/* ---- numbers that are none ---- */

static void a_weight_that_is_no_number_stops_the_first_step(void **state)
{
  (void)state;
  change *const faults[] = { one_nan, one_infinite };
  for (int i = 0; i < 4; i++) {
    struct run r;
    run_open(&r, i % 2 ? "output_norm.weight" : "blk.1.ffn_up.weight", faults[i / 2]);
    set(&r, "save_steps", "1");
    expect(&r, go(&r), GR_ERR_NUMERIC, "step 1: the loss is not a finite number (samples ");
    assert_non_null(strstr(r.e.text, "data.jsonl:"));
    assert_non_null(strstr(r.e.text, i % 2 ? "'output_norm.weight' holds NaN or infinity" : "'blk.1.ffn_up.weight' holds NaN or infinity"));
    assert_null(strstr(r.e.text, "--learning-rate"));
    assert_non_null(strstr(r.e.text, "there is no checkpoint to go back to"));
    set(&r, "val_split", "0.5");
    set(&r, "overwrite", "true");
    expect(&r, go(&r), GR_ERR_NUMERIC, "step 1: the held-out loss is not a finite number (samples ");
    assert_int_equal(r.steps, 0);
    assert_int_not_equal(access(scratch_path(&r.dir, "a.gguf"), F_OK), 0);
    run_close(&r);
  }
}

/* Logits of 1e33 have a finite loss; what flows back from them, weighed a million times, has not. */
static void a_gradient_that_is_no_number_stops_the_step(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, "output_norm.weight", vast);
  write_text(scratch_path(&r.dir, "data.jsonl"), "{\"text\": \"rain falls on hills and on houses\", \"weight\": 1000000}\n");
  expect(&r, go(&r), GR_ERR_NUMERIC, "step 1: the gradient is not a finite number (sample ");
  assert_non_null(strstr(r.e.text, "data.jsonl:1"));
  assert_int_not_equal(access(scratch_path(&r.dir, "a.gguf"), F_OK), 0);
  run_close(&r);
}

/* A rate of a million wrecks the model within a few steps: the run says where, and the last checkpoint still resumes. */
static void a_loss_that_runs_away_leaves_a_good_checkpoint(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, NULL, NULL);
  set(&r, "learning_rate", "1e6");
  set(&r, "max_grad_norm", "0");
  set(&r, "lr_scheduler_type", "constant");
  set(&r, "max_steps", "40");
  set(&r, "save_steps", "1");
  expect(&r, go(&r), GR_ERR_NUMERIC, "is not a finite number (sample");
  uint64_t steps = r.steps;
  assert_true(steps >= 1 && steps < 40);
  char step[64], checkpoint[160];
  snprintf(step, sizeof step, "step %d: the ", (int)steps + 1);
  snprintf(checkpoint, sizeof checkpoint, "the last good checkpoint is %s/a.step-%06d.checkpoint", r.dir.folder, (int)steps);
  assert_non_null(strstr(r.e.text, step));
  assert_non_null(strstr(r.e.text, checkpoint));
  set(&r, "resume", "true");
  expect(&r, go(&r), GR_ERR_NUMERIC, step);
  assert_non_null(strstr(r.notes, "resumed from"));
  run_close(&r);
}

/* ---- tensors without a gradient ---- */

/* Nothing of layer 1's attention comes through an output of zeros: its query gets no gradient, and is the only one to be named. */
static void a_tensor_without_gradient_is_named_after_five_steps(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, "blk.1.attn_output.weight", all_zero);
  set(&r, "target_modules", "attn_q,ffn_down");
  set(&r, "max_steps", "4");
  assert_ok(go(&r), &r.e);
  assert_null(strstr(r.notes, "no gradient"));
  set(&r, "overwrite", "true");
  set(&r, "max_steps", "5");
  assert_ok(go(&r), &r.e);
  assert_non_null(strstr(r.notes, "blk.1.attn_q.weight.lora_a has had no gradient in 5 steps"));
  const char *b = strstr(r.notes, "blk.1.attn_q.weight.lora_b has had no gradient in 5 steps");
  assert_non_null(b);
  assert_null(strstr(b, "\nblk"));
  assert_null(strstr(r.notes, "blk.0"));
  assert_null(strstr(r.notes, "ffn_down"));
  run_close(&r);
}

/* An adapter on that output carries a gradient from its first step on; so does every tensor of a sound model. */
static void tensors_that_are_trained_are_not_named(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    struct run r;
    run_open(&r, i ? "blk.1.attn_output.weight" : NULL, all_zero);
    assert_ok(go(&r), &r.e);
    assert_null(strstr(r.notes, "no gradient"));
    run_close(&r);
  }
}

/* With a rate of 0 B stays 0 and A never gets a gradient: that is what was asked for, not a fault. */
static void a_rate_of_zero_names_no_tensor(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, NULL, NULL);
  set(&r, "learning_rate", "0");
  assert_ok(go(&r), &r.e);
  assert_int_equal(r.steps, 6);
  assert_null(strstr(r.notes, "no gradient"));
  run_close(&r);
}

/* Steps are counted from where the run goes on. */
static void a_resumed_run_names_it_too(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, "blk.1.attn_output.weight", all_zero);
  set(&r, "target_modules", "attn_q");
  set(&r, "max_steps", "12");
  r.stop_after = 6;
  expect(&r, go(&r), GR_ERR_CANCELLED, "stopped after step 6 of 12");
  assert_non_null(strstr(r.notes, "blk.1.attn_q.weight.lora_b has had no gradient"));
  r.stop_after = 0;
  set(&r, "resume", "true");
  assert_ok(go(&r), &r.e);
  assert_non_null(strstr(r.notes, "blk.1.attn_q.weight.lora_b has had no gradient"));
  run_close(&r);
}

/* ---- the mean is a mean ---- */

/* Promise 7 through whole runs: eight samples a step, run as eight windows at once, one after the other, three at once, as two
 * accumulated batches of four, and as one packed row. Six updates on, losses and norms are still
 * the same to rounding. */
static void however_a_step_is_cut_it_is_the_same_step(void **state)
{
  (void)state;
  static const char *const ways[][5] = { /* batch, micro-batch, accumulation, packing, window */
                                         { "8", "8", "1", "false", "64" },
                                         { "8", "1", "1", "false", "64" },
                                         { "8", "3", "1", "false", "64" },
                                         { "4", "2", "2", "false", "64" },
                                         { "1", "1", "1", "true", "512" }
  };
  static const char *const names[5] = { "batch_size", "micro_batch_size", "gradient_accumulation_steps", "packing", "window" };
  double losses[6] = { 0 }, norms[6] = { 0 };
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    struct run r;
    run_open(&r, NULL, NULL);
    char twice[sizeof sentences * 2];
    snprintf(twice, sizeof twice, "%s%s", sentences, sentences);
    write_text(scratch_path(&r.dir, "data.jsonl"), twice);
    for (int k = 0; k < 5; k++) set(&r, names[k], ways[i][k]);
    set(&r, "learning_rate", "1e-3");
    assert_ok(go(&r), &r.e);
    assert_int_equal(r.steps, 6);
    for (int k = 0; k < 6; k++) {
      if (i == 0) losses[k] = r.losses[k], norms[k] = r.norms[k];
      double off = fmax(fabs(r.losses[k] / losses[k] - 1), fabs(r.norms[k] / norms[k] - 1));
      if (!(off <= 1e-5)) fail_msg("way %zu: loss and gradient of step %d are off by %.1e", i, k + 1, off);
    }
    run_close(&r);
  }
  assert_true(losses[5] < losses[0]);
}

/* ---- memory that is not there ---- */

/* Forty samples of some 200 tokens. */
static void write_long_data(const char *path)
{
  char text[40 * 240] = "";
  size_t used = 0;
  for (int i = 0; i < 40; i++) {
    used += (size_t)snprintf(text + used, sizeof text - used, "{\"text\": \"");
    for (int k = 0; k < 200; k++) text[used++] = "abcdefghijklmnopqrstuvwxyz "[(i * 7 + k * (i + 3)) % 27];
    used += (size_t)snprintf(text + used, sizeof text - used, "\"}\n");
  }
  write_text(path, text);
}

static void allow(struct run *r, size_t bytes)
{
  char text[32];
  snprintf(text, sizeof text, "%zu", bytes);
  set(r, "max_memory", text);
}

/* What a resumed run is told must not be what its checkpoint then refuses: only recompute is free to change. */
static void a_resumed_run_is_told_only_what_its_checkpoint_allows(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, NULL, NULL);
  write_long_data(scratch_path(&r.dir, "data.jsonl"));
  set(&r, "window", "256");
  set(&r, "batch_size", "16");
  set(&r, "micro_batch_size", "16");
  set(&r, "max_steps", "3");
  set(&r, "gradient_checkpointing", "on");
  set(&r, "output", scratch_path(&r.dir, "whole.gguf"));
  assert_ok(go(&r), &r.e);
  size_t on = r.memory.peak;
  set(&r, "output", scratch_path(&r.dir, "a.gguf"));
  set(&r, "gradient_checkpointing", "off");
  r.stop_after = 1;
  expect(&r, go(&r), GR_ERR_CANCELLED, "stopped after step 1 of 3");
  size_t off = r.memory.peak;
  if (off < on + ((size_t)6 << 20)) fail_msg("recompute saves too little here: %zu and %zu bytes", off, on);
  r.stop_after = 0;
  set(&r, "resume", "true");
  allow(&r, on - ((size_t)4 << 20));
  expect(&r, go(&r), GR_ERR_MEMORY, "its checkpoint is bound to its window, micro-batch and rank: allow more with --max-memory");
  assert_null(strstr(r.e.text, "it fits"));
  allow(&r, on + (off - on) * 3 / 4);
  expect(&r, go(&r), GR_ERR_MEMORY, "with: --gradient-checkpointing on");
  assert_null(strstr(r.e.text, " -c "));
  assert_null(strstr(r.e.text, "--micro-batch-size"));
  assert_null(strstr(r.e.text, "--lora-r"));
  set(&r, "gradient_checkpointing", "on");
  assert_ok(go(&r), &r.e);
  assert_non_null(strstr(r.notes, "resumed from"));
  assert_true(same_files(scratch_path(&r.dir, "a.gguf"), scratch_path(&r.dir, "whole.gguf")));
  run_close(&r);
}

/* ---- adapters to begin from ---- */

static void save_adapter(const char *path, int64_t rank_q, int64_t rank_k)
{
  static const float zeros[64 * 80];
  gr_error e = { 0 };
  const gr_adapter_out pairs[] = { { "blk.0.attn_q.weight", 64, 64, 1, rank_q, zeros, zeros },
                                   { "blk.0.attn_k.weight", 64, 32, 1, rank_k, zeros, zeros } };
  const gr_adapter_info info = { .architecture = "llama", .alpha = 8, .pairs = pairs, .pair_count = 2 };
  assert_ok(gr_adapter_save(path, &info, &e), &e);
}

static void ranks_of_a_file_are_judged_as_those_of_a_fresh_adapter(void **state)
{
  (void)state;
  struct run r;
  run_open(&r, NULL, NULL);
  set(&r, "max_steps", "1");
  set(&r, "init_adapter", scratch_path(&r.dir, "b.gguf"));
  save_adapter(scratch_path(&r.dir, "b.gguf"), 65, 33); /* none of them may */
  expect(&r, go(&r), GR_ERR_MISMATCH, "b.gguf has rank 65 on blk.0.attn_q.weight, which is 64 x 64 and allows 64");
  assert_non_null(strstr(r.e.text, "--lora-r 64 or less"));
  save_adapter(scratch_path(&r.dir, "b.gguf"), 64, 33); /* one may not: its file is what it is, and this is said */
  expect(&r, go(&r), GR_OK, "");
  assert_non_null(strstr(r.notes, "the rank is more than 1 of the tensors allow: blk.0.attn_k.weight, which is 64 x 32, has rank 33"));
  set(&r, "overwrite", "true");
  save_adapter(scratch_path(&r.dir, "b.gguf"), 64, 32);
  expect(&r, go(&r), GR_OK, "");
  assert_null(strstr(r.notes, "more than"));
  run_close(&r);
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__)
  (void)a_resumed_run_is_told_only_what_its_checkpoint_allows; /* a sanitizer's own memory would be measured */
#endif
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_weight_that_is_no_number_stops_the_first_step),
    cmocka_unit_test(a_gradient_that_is_no_number_stops_the_step),
    cmocka_unit_test(a_loss_that_runs_away_leaves_a_good_checkpoint),
    cmocka_unit_test(a_tensor_without_gradient_is_named_after_five_steps),
    cmocka_unit_test(tensors_that_are_trained_are_not_named),
    cmocka_unit_test(a_rate_of_zero_names_no_tensor),
    cmocka_unit_test(a_resumed_run_names_it_too),
    cmocka_unit_test(however_a_step_is_cut_it_is_the_same_step),
    cmocka_unit_test(ranks_of_a_file_are_judged_as_those_of_a_fresh_adapter),
#if !defined(__SANITIZE_ADDRESS__)
    cmocka_unit_test(a_resumed_run_is_told_only_what_its_checkpoint_allows),
#endif
  };
  return cmocka_run_group_tests_name("trainer", tests, NULL, NULL);
}
