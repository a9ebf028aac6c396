/* The loop: windows to a gradient, clip, update; evaluations and checkpoints when they are due. */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/trainer_impl.h"

enum { UNTOUCHED_AFTER = 5 }; /* promise 2: steps after which a tensor without any gradient is named */

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool stop_asked(const gr_trainer *t) { return t->setup.stop && t->setup.stop(t->setup.ctx); }

/* ---- saving ---- */

static gr_status write_config(const gr_trainer *t, gr_error *e)
{
  gr_buf path = { 0 }, text = { 0 };
  gr_file *f = NULL;
  gr_buf_printf(&path, "%s.yaml", t->o->output);
  gr_train_options_dump(t->o, &text);
  gr_status s = path.failed || text.failed ? gr_fail_memory(e, text.len) : gr_file_create(&f, path.data, e);
  if (s == GR_OK) {
    s = gr_file_write(f, text.data, text.len, e);
    if (s == GR_OK) s = gr_file_commit(f, e);
    else gr_file_abandon(f);
  }
  gr_buf_free(&path);
  gr_buf_free(&text);
  return s;
}

/* The oldest beyond the limit go once the newest is safely on disk. */
static void drop_old_checkpoints(const gr_trainer *t, size_t keep)
{
  uint64_t *steps = NULL;
  size_t n = 0;
  gr_error ignored = { 0 };
  if (gr_checkpoint_list(t->o->output, &steps, &n, &ignored) != GR_OK) return;
  for (size_t i = 0; i + keep < n; i++) {
    char *path = gr_checkpoint_path(t->o->output, steps[i]);
    if (path) unlink(path);
    gr_free(path);
  }
  gr_free(steps);
}

static gr_status save_checkpoint(gr_trainer *t, gr_error *e)
{
  char *path = gr_checkpoint_path(t->o->output, t->state.step);
  if (!path) return gr_fail_memory(e, strlen(t->o->output));
  t->state.baseline = t->heldout.baseline;
  gr_status s = gr_checkpoint_save(path, t->lora, &t->state, &t->identity, e);
  if (s == GR_OK) {
    drop_old_checkpoints(t, (size_t)t->o->save_total_limit);
    gr_train_event event = { .kind = GR_EVENT_CHECKPOINT, .text = path, .step = t->state.step };
    gr_trainer_emit(t, &event);
  }
  gr_free(path);
  return s;
}

/* ---- evaluation ---- */

static gr_status evaluate(gr_trainer *t, double epoch, gr_error *e)
{
  if (t->n_held == 0) return GR_OK;
  gr_step_clear(t->eval_step);
  GR_TRY(gr_heldout_run(&t->heldout, t->eval_step, t->setup.stop, t->setup.ctx, e));
  gr_train_event event = { .kind = GR_EVENT_EVAL,
                           .step = t->state.step,
                           .steps_total = t->steps_total,
                           .epoch = epoch,
                           .loss = t->heldout.loss,
                           .tokens = t->heldout.tokens,
                           .has_eval = true,
                           .eval_loss = t->heldout.loss };
  gr_heldout_compare(&t->heldout, &event.improvement, &event.standard_error);
  if (t->state.step > 0) {
    if (t->heldout.loss < t->state.best_loss) {
      t->state.best_loss = t->heldout.loss;
      t->state.best_step = t->state.step;
      t->state.evaluations_worse = 0;
      memcpy(t->state.best, gr_lora_values(t->lora), gr_lora_parameters(t->lora) * sizeof(float));
    } else {
      t->state.evaluations_worse++;
    }
  }
  event.best_step = t->state.best_step;
  gr_trainer_emit(t, &event);
  return GR_OK;
}

/* ---- one step ---- */

/* Names the samples behind a loss that is not a number, and what can be gone back to. */
static gr_status numeric_failure(gr_trainer *t, const char *what, gr_error *e)
{
  uint64_t *steps = NULL;
  size_t n = 0;
  gr_error ignored = { 0 };
  char place[300] = "", back[300] = "there is no checkpoint to go back to";
  ptrdiff_t bad = gr_step_bad_sample(t->step);
  if (bad >= 0) {
    const gr_sample *x = gr_dataset_at(t->data, (size_t)bad);
    snprintf(place, sizeof place, " (first in the sample of %.200s:%u)", gr_dataset_path(t->data, x->file), x->line);
  }
  if (gr_checkpoint_list(t->o->output, &steps, &n, &ignored) == GR_OK && n) {
    char *path = gr_checkpoint_path(t->o->output, steps[n - 1]);
    if (path) snprintf(back, sizeof back, "the last good checkpoint is %.250s", path);
    gr_free(path);
  }
  gr_free(steps);
  return gr_fail(e, GR_ERR_NUMERIC, "step %llu: %s is not a finite number%s; lower --learning-rate, or look at the data; %s",
                 (unsigned long long)t->state.step + 1, what, place, back);
}

/* Windows first..last-1 of the epoch, micro_batch of them at a time; fewer when they do not fit side by side. */
static gr_status run_windows(gr_trainer *t, size_t first, size_t last, gr_error *e)
{
  gr_step_clear(t->step);
  for (size_t i = first; i < last;) {
    const gr_window *w = &t->packing.windows[i];
    size_t samples = 0, k = i;
    int64_t tokens = 0;
    for (; k < last && k < i + (size_t)t->micro_batch && tokens + t->packing.windows[k].tokens <= (int64_t)t->window * t->micro_batch;
         k++) {
      tokens += t->packing.windows[k].tokens;
      samples += t->packing.windows[k].n;
    }
    gr_status s = gr_step_run(t->step, t->data, t->packing.order + w->first, samples, t->state.step, NULL, t->setup.stop, t->setup.ctx, e);
    if (s == GR_ERR_NUMERIC) return numeric_failure(t, "the loss", e);
    if (s != GR_OK) return s;
    i = k;
  }
  return GR_OK;
}

static void mark_touched(gr_trainer *t)
{
  const float *g = gr_step_gradient(t->step);
  for (size_t i = 0; i < gr_lora_pair_count(t->lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(t->lora, i);
    size_t sizes[2] = { (size_t)(p->rank * p->in), (size_t)(p->rank * p->out) };
    for (size_t k = 0; k < 2; k++) {
      for (size_t j = 0; j < sizes[k] && !t->touched[2 * i + k]; j++) t->touched[2 * i + k] = g[j] < 0 || g[j] > 0;
      g += sizes[k];
    }
  }
  if (t->state.step + 1 != UNTOUCHED_AFTER) return;
  for (size_t i = 0; i < 2 * gr_lora_pair_count(t->lora); i++)
    if (!t->touched[i])
      gr_trainer_note(t, "%s.%s has had no gradient in %d steps: it is not being trained", gr_lora_pair_at(t->lora, i / 2)->name,
                      i % 2 ? "lora_b" : "lora_a", UNTOUCHED_AFTER);
}

static gr_status update(gr_trainer *t, double *lr, double *norm, gr_error *e)
{
  const gr_step_sums *sums = gr_step_sums_of(t->step);
  size_t n = gr_lora_parameters(t->lora);
  double scale = sums->weight > 0 ? 1 / sums->weight : 0;
  *norm = gr_norm(gr_step_gradient(t->step), n, scale, t->setup.pool);
  if (!isfinite(*norm)) return numeric_failure(t, "the gradient", e);
  double clip = t->o->max_grad_norm;
  if (clip > 0 && *norm > clip) scale *= clip / (*norm + 1e-6); /* as PyTorch's clip_grad_norm_ */
  *lr = gr_schedule_rate(t->schedule, t->o->learning_rate, t->o->lr_min, t->warmup, t->steps_total, t->state.step);
  mark_touched(t);
  gr_adamw_update(&t->adamw, gr_lora_values(t->lora), gr_step_gradient(t->step), t->state.m, t->state.v, n, scale, *lr, t->state.step + 1,
                  t->setup.pool);
  return gr_lora_check_finite(t->lora, e);
}

static gr_status one_step(gr_trainer *t, size_t first, size_t last, double epoch, gr_error *e)
{
  double start = seconds_now(), lr = 0, norm = 0;
  GR_TRY(run_windows(t, first, last, e));
  GR_TRY(update(t, &lr, &norm, e));
  const gr_step_sums *sums = gr_step_sums_of(t->step);
  t->state.step++;
  t->loss_last = sums->weight > 0 ? sums->loss / sums->weight : 0;
  if (t->state.step == 1) t->state.loss_first = t->loss_last;
  t->tokens_total += sums->tokens_trained;
  double elapsed = seconds_now() - start;
  gr_train_event event = { .kind = GR_EVENT_STEP,
                           .step = t->state.step,
                           .steps_total = t->steps_total,
                           .epoch = epoch,
                           .loss = t->loss_last,
                           .lr = lr,
                           .grad_norm = norm,
                           .tokens = sums->tokens_trained,
                           .tokens_total = t->tokens_total,
                           .tok_s = elapsed > 0 ? (double)sums->tokens / elapsed : 0,
                           .seconds = elapsed };
  gr_trainer_emit(t, &event);
  return GR_OK;
}

/* ---- the run ---- */

/* Which epoch holds optimizer step `step`, and which of its steps that is. */
static size_t epoch_of(const gr_trainer *t, uint64_t step, uint64_t *within)
{
  size_t epoch = 0;
  for (*within = step; epoch < t->epochs && *within >= t->epoch_steps[epoch]; epoch++) *within -= t->epoch_steps[epoch];
  return epoch;
}

static gr_status enter_epoch(gr_trainer *t, size_t epoch, gr_error *e)
{
  if (t->packed_epoch == epoch) return GR_OK;
  gr_packing_free(&t->packing);
  t->packed_epoch = SIZE_MAX;
  GR_TRY(gr_trainer_pack_epoch(t, epoch, &t->packing, e));
  t->packed_epoch = epoch;
  return GR_OK;
}

static bool due(int64_t every, uint64_t step) { return every > 0 && step % (uint64_t)every == 0; }

static gr_status loop(gr_trainer *t, gr_error *e)
{
  size_t batch = gr_trainer_batch(t);
  if (t->state.step == 0) GR_TRY(evaluate(t, 0, e));
  while (t->state.step < t->steps_total) {
    uint64_t within;
    size_t epoch = epoch_of(t, t->state.step, &within);
    GR_TRY(enter_epoch(t, epoch, e));
    size_t first = (size_t)within * batch, last = first + batch < t->packing.n_windows ? first + batch : t->packing.n_windows;
    double progress = (double)epoch + (double)last / (double)t->packing.n_windows;
    GR_TRY(one_step(t, first, last, progress, e));
    bool epoch_ends = within + 1 == t->epoch_steps[epoch], ends = t->state.step == t->steps_total;
    if (due(t->o->eval_steps, t->state.step) || epoch_ends || ends) GR_TRY(evaluate(t, progress, e));
    if (due(t->o->save_steps, t->state.step) && !ends) GR_TRY(save_checkpoint(t, e));
    if (t->o->early_stopping_patience > 0 && t->state.evaluations_worse >= (uint64_t)t->o->early_stopping_patience && !ends) {
      gr_trainer_note(t, "stopped early: %llu evaluations in a row without a better held-out loss",
                      (unsigned long long)t->state.evaluations_worse);
      break;
    }
    if (stop_asked(t) && !ends) return gr_fail(e, GR_ERR_CANCELLED, "stopped");
  }
  return GR_OK;
}

/* The adapter of the best evaluation; the last values when there was none. */
static gr_status finish(gr_trainer *t, double started, gr_error *e)
{
  bool best = t->state.best && t->state.best_step > 0 && t->state.best_step < t->state.step;
  if (best) {
    memcpy(gr_lora_values(t->lora), t->state.best, gr_lora_parameters(t->lora) * sizeof(float));
    gr_trainer_note(t, "the adapter is that of step %llu, which had the best held-out loss", (unsigned long long)t->state.best_step);
  }
  GR_TRY(gr_lora_save(t->lora, t->model, t->o->output, t->identity.base_hash, e));
  GR_TRY(write_config(t, e));
  drop_old_checkpoints(t, 0);
  gr_train_event event = { .kind = GR_EVENT_DONE,
                           .step = t->state.step,
                           .steps_total = t->steps_total,
                           .loss_first = t->state.loss_first,
                           .loss_last = t->loss_last,
                           .has_eval = t->n_held > 0,
                           .seconds = seconds_now() - started,
                           .adapter = t->o->output,
                           .tokens_total = t->tokens_total,
                           .best_step = t->state.best_step };
  if (t->n_held) {
    event.eval_loss = t->state.best_step ? t->state.best_loss : t->heldout.loss;
    gr_heldout_compare(&t->heldout, &event.improvement, &event.standard_error);
  }
  gr_trainer_emit(t, &event);
  return GR_OK;
}

gr_status gr_trainer_run(gr_trainer *t, gr_error *e)
{
  double started = seconds_now();
  GR_TRY(gr_step_allocate(t->step, e));
  gr_status s = loop(t, e);
  if (s != GR_ERR_CANCELLED) return s == GR_OK ? finish(t, started, e) : s;
  gr_error saving = { 0 };
  if (save_checkpoint(t, &saving) != GR_OK)
    return gr_fail(e, saving.status, "stopped at step %llu, and the checkpoint could not be written: %s", (unsigned long long)t->state.step,
                   saving.text);
  return gr_fail(e, GR_ERR_CANCELLED, "stopped after step %llu of %llu; go on with the same command and --resume",
                 (unsigned long long)t->state.step, (unsigned long long)t->steps_total);
}
