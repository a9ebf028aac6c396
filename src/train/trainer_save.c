/* What a run writes, besides the adapter: the resolved config, checkpoints; and what it says when its numbers fail. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/trainer_impl.h"

/* ---- the resolved config ---- */

/* Names this very run: base, data, first adapter, options, length. */
static uint64_t run_hash(const gr_trainer *t)
{
  const gr_run_identity *id = &t->identity;
  uint64_t all[5][2] = { { id->data_hash, id->adapter_hash }, { id->steps_total, id->warmup } }, out[2];
  gr_hash_bytes(id->base_hash, strlen(id->base_hash), all[2]);
  gr_hash_bytes(id->geometry, strlen(id->geometry), all[3]);
  gr_hash_bytes(all, sizeof all, out);
  return out[0];
}

static void first_line(const gr_trainer *t, bool finished, gr_buf *out)
{
  gr_buf_printf(out, "# run %016" PRIx64 ", %s\n", run_hash(t), finished ? "finished" : "not finished yet");
}

gr_status gr_trainer_write_config(gr_trainer *t, bool finished, gr_error *e)
{
  gr_buf text = { 0 };
  gr_file *f = NULL;
  char *path = gr_output_beside(t->o.output, ".yaml");
  first_line(t, finished, &text);
  gr_buf_printf(&text, "# of Graft, on a base with hash %s; to repeat it: graft train --config FILE -o ANOTHER\n", t->identity.base_hash);
  gr_train_options o = t->o; /* what became of the output is this run's matter, not that of one like it */
  o.overwrite = o.resume = false;
  gr_train_options_dump(&o, false, &text);
  gr_status s = path && !text.failed ? gr_file_create(&f, path, e) : gr_fail_memory(e, text.len);
  if (s == GR_OK) {
    s = gr_file_write(f, text.data, text.len, e);
    if (s == GR_OK) s = gr_file_commit(f, e);
    else gr_file_abandon(f);
  }
  gr_free(path);
  gr_buf_free(&text);
  return s;
}

bool gr_trainer_was_finished(const gr_trainer *t)
{
  gr_buf want = { 0 };
  char *path = gr_output_beside(t->o.output, ".yaml"), *text = NULL;
  size_t n = 0;
  gr_error ignored = { 0 };
  first_line(t, true, &want);
  bool is = path && !want.failed && gr_file_exists(t->o.output) && gr_file_read(path, 1 << 20, &text, &n, &ignored) == GR_OK &&
            n >= want.len && memcmp(text, want.data, want.len) == 0;
  gr_free(text);
  gr_free(path);
  gr_buf_free(&want);
  return is;
}

/* A line "key: value" of options that makes a run another one, whatever else was decided from them. */
static bool makes_another(const char *line)
{
  static const char *const length[] = { "model", "data", "init_adapter", "warmup_ratio", "num_epochs", "max_steps", "val_file" };
  char key[64];
  snprintf(key, sizeof key, "%.*s", (int)strcspn(line, ":"), line);
  const gr_option_info *info = gr_train_option_find(key);
  if (!info || strcmp(key, "micro_batch_size") == 0) return false;
  for (size_t i = 0; i < sizeof length / sizeof *length; i++)
    if (strcmp(key, length[i]) == 0) return true;
  return info->role == GR_OPTION_BOUND;
}

/* "num_epochs: 3 there, 8 here", of the first option that differs between two dumps, which have the same keys in the same order. */
static void first_difference(const char *there, const char *here, gr_buf *out)
{
  while (*there && *here && !out->len) {
    int n = (int)strcspn(there, "\n"), m = (int)strcspn(here, "\n"), key = (int)strcspn(here, ":") + 2;
    if ((n != m || memcmp(there, here, (size_t)n) != 0) && makes_another(here))
      gr_buf_printf(out, " (%.*s there, %.*s here)", n, there, m - key, here + key);
    there += n + (there[n] == '\n');
    here += m + (here[m] == '\n');
  }
}

gr_status gr_trainer_refuse_other(const gr_trainer *t, gr_error *e)
{
  gr_train_options old;
  gr_buf there = { 0 }, here = { 0 }, which = { 0 };
  gr_error ignored = { 0 };
  char *path = gr_output_beside(t->o.output, ".yaml");
  gr_train_options_init(&old);
  if (path && gr_train_options_load(&old, path, &ignored) == GR_OK) {
    gr_train_options_dump(&old, false, &there);
    gr_train_options_dump(&t->o, false, &here);
    if (there.data && here.data && !there.failed && !here.failed) first_difference(there.data, here.data, &which);
  }
  gr_fail(
      e, GR_ERR_MISMATCH,
      "%s is the adapter of another run%s, and there is no checkpoint to go on from: give another -o, with --init-adapter %s to begin from "
      "what it learned, or --overwrite",
      t->o.output, which.data && !which.failed ? which.data : "", t->o.output);
  gr_train_options_free(&old);
  gr_free(path);
  gr_buf_free(&there);
  gr_buf_free(&here);
  gr_buf_free(&which);
  return e->status;
}

/* ---- checkpoints ---- */

gr_status gr_trainer_save_checkpoint(gr_trainer *t, gr_error *e)
{
  if (t->saved == t->state.step + 1) return GR_OK;
  char *path = gr_checkpoint_path(t->o.output, t->state.step);
  if (!path) return gr_fail_memory(e, strlen(t->o.output));
  t->state.baseline = t->heldout.baseline;
  t->state.n_baseline = t->heldout.baseline ? t->n_held : 0;
  gr_status s = gr_checkpoint_save(path, t->lora, &t->state, &t->identity, e);
  if (s == GR_OK) {
    t->saved = t->state.step + 1;
    gr_checkpoint_drop(t->o.output, (size_t)t->o.save_total_limit);
    gr_trainer_watch_memory(t);
    gr_train_event event = { .kind = GR_EVENT_CHECKPOINT, .text = path, .step = t->state.step };
    gr_trainer_emit(t, &event);
  }
  gr_free(path);
  return s;
}

/* ---- numbers that are none ---- */

static void list_samples(const gr_dataset *d, const size_t *samples, size_t listed, size_t n, gr_buf *out)
{
  gr_buf_puts(out, n == 1 ? "sample " : "samples ");
  for (size_t i = 0; i < listed; i++) {
    const gr_sample *x = gr_dataset_at(d, samples[i]);
    gr_buf_printf(out, "%s%s:%u", i ? ", " : "", gr_dataset_path(d, x->file), x->line);
  }
  if (n > listed) gr_buf_printf(out, " and %zu more", n - listed);
}

gr_status gr_trainer_numeric_failure(gr_trainer *t, const char *what, const gr_dataset *d, const size_t *samples, size_t listed, size_t n,
                                     gr_error *e)
{
  uint64_t *steps = NULL;
  size_t saved = 0;
  gr_error ignored = { 0 };
  gr_buf text = { 0 };
  gr_buf_printf(&text, "step %llu: %s is not a finite number (", (unsigned long long)t->state.step + 1, what);
  list_samples(d, samples, listed, n, &text);
  gr_error weights = { 0 };
  if (gr_gguf_check_finite(gr_model_file(t->model), t->setup.pool, &weights) == GR_ERR_NUMERIC)
    gr_buf_printf(&text, "): %s; ", weights.text);
  else gr_buf_puts(&text, "); lower --learning-rate, or look at the data; ");
  if (gr_checkpoint_list(t->o.output, &steps, &saved, &ignored) == GR_OK && saved) {
    char *path = gr_checkpoint_path(t->o.output, steps[saved - 1]);
    gr_buf_printf(&text, "the last good checkpoint is %s", path ? path : "beside the output");
    gr_free(path);
  } else {
    gr_buf_puts(&text, "there is no checkpoint to go back to (--save-steps makes them)");
  }
  gr_free(steps);
  gr_status s = text.failed
                    ? gr_fail(e, GR_ERR_NUMERIC, "step %llu: %s is not a finite number", (unsigned long long)t->state.step + 1, what)
                    : gr_fail(e, GR_ERR_NUMERIC, "%s", text.data);
  gr_buf_free(&text);
  return s;
}
