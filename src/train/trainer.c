/* The loop: windows to a gradient, clip, update; evaluations and checkpoints when they are due. */
#include "train/trainer.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/trainer_impl.h"

enum { UNTOUCHED_AFTER = 5 }; /* promise 2: steps with a rate above 0 after which a tensor without any gradient is named */
enum { LISTED = 4 };          /* samples that a sentence names */

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool stop_asked(const gr_trainer *t) { return t->setup.stop && t->setup.stop(t->setup.ctx); }

/* ---- where the run stands ---- */

static bool due(int64_t every, uint64_t step) { return every > 0 && step > 0 && step % (uint64_t)every == 0; }

static bool epoch_ends(const gr_trainer *t)
{
  uint64_t within;
  if (t->state.step == 0) return false;
  size_t epoch = gr_trainer_epoch_of(t, t->state.step - 1, &within);
  return within + 1 == t->epochs[epoch].steps;
}

/* Passes over the data after `step` steps. */
static double progress(const gr_trainer *t, uint64_t step)
{
  uint64_t within;
  if (step == 0) return 0;
  size_t epoch = gr_trainer_epoch_of(t, step - 1, &within), last = ((size_t)within + 1) * gr_trainer_batch(t);
  size_t windows = t->epochs[epoch].windows;
  return (double)epoch + (double)(last < windows ? last : windows) / (double)windows;
}

/* ---- evaluation ---- */

static bool evaluation_due(const gr_trainer *t)
{
  if (t->n_held == 0 || t->state.evaluations == t->state.step + 1) return false;
  return t->state.step == 0 || t->state.step == t->steps_total || epoch_ends(t) || due(t->o.eval_steps, t->state.step);
}

static void judge(gr_trainer *t, double improvement, double standard_error)
{
  gr_run_state *s = &t->state;
  if (s->step == 0) return;
  if (!(t->heldout.loss < s->best_loss)) {
    s->evaluations_worse++;
    return;
  }
  s->best_loss = t->heldout.loss;
  s->best_gain = improvement;
  s->best_se = standard_error;
  s->best_step = s->step;
  s->evaluations_worse = 0;
  memcpy(s->best, gr_lora_values(t->lora), gr_lora_parameters(t->lora) * sizeof(float));
}

static gr_status evaluate(gr_trainer *t, gr_error *e)
{
  gr_step_clear(t->eval_step);
  gr_status s = gr_heldout_run(&t->heldout, t->eval_step, t->setup.stop, t->setup.ctx, e);
  if (s == GR_ERR_NUMERIC) {
    size_t bad[LISTED], n = gr_step_bad_samples(t->eval_step, bad, LISTED);
    const gr_dataset *d = t->heldout_data ? t->heldout_data : t->data;
    return gr_trainer_numeric_failure(t, "the held-out loss", d, bad, n < LISTED ? n : LISTED, n, e);
  }
  if (s != GR_OK) return s;
  gr_train_event event = { .kind = GR_EVENT_EVAL,
                           .step = t->state.step,
                           .steps_total = t->steps_total,
                           .epoch = progress(t, t->state.step),
                           .loss = t->heldout.loss,
                           .tokens = t->heldout.tokens,
                           .has_eval = true,
                           .eval_loss = t->heldout.loss };
  gr_heldout_compare(&t->heldout, &event.improvement, &event.standard_error);
  judge(t, event.improvement, event.standard_error);
  t->state.evaluations = t->state.step + 1;
  event.best_step = t->state.best_step;
  gr_trainer_watch_memory(t);
  gr_trainer_emit(t, &event);
  return GR_OK;
}

/* ---- one step ---- */

static gr_status step_failure(gr_trainer *t, const char *what, size_t first, size_t last, gr_error *e)
{
  const gr_window *from = &t->packing.windows[first], *to = &t->packing.windows[last - 1];
  size_t n = to->first + to->n - from->first;
  return gr_trainer_numeric_failure(t, what, t->data, t->packing.order + from->first, n < LISTED ? n : LISTED, n, e);
}

/* Windows first..last-1 of the epoch, as many side by side as were planned for. */
static gr_status run_windows(gr_trainer *t, size_t first, size_t last, gr_error *e)
{
  gr_step_clear(t->step);
  for (size_t i = first; i < last;) {
    size_t samples = 0, k = i, from = t->packing.windows[i].first;
    for (; k < last && k < i + (size_t)t->micro_batch; k++) samples += t->packing.windows[k].n;
    gr_status s = gr_step_run(t->step, t->data, t->packing.order + from, samples, t->state.step, NULL, t->setup.stop, t->setup.ctx, e);
    if (s == GR_ERR_NUMERIC) {
      size_t bad[LISTED], n = gr_step_bad_samples(t->step, bad, LISTED);
      return gr_trainer_numeric_failure(t, "the loss", t->data, bad, n < LISTED ? n : LISTED, n, e);
    }
    if (s != GR_OK) return s;
    i = k;
  }
  return GR_OK;
}

/* With a rate of 0 B stays 0, and A gets no gradient through it: that is no news. */
static void mark_touched(gr_trainer *t, double lr)
{
  if (!(lr > 0)) return;
  const float *g = gr_step_gradient(t->step);
  size_t pairs = gr_lora_pair_count(t->lora);
  for (size_t i = 0; i < pairs; i++) {
    const gr_lora_pair *p = gr_lora_pair_at(t->lora, i);
    const size_t sizes[2] = { gr_lora_pair_a(p), gr_lora_pair_b(p) };
    for (size_t k = 0; k < 2; k++) {
      for (size_t j = 0; j < sizes[k] && !t->touched[2 * i + k]; j++) t->touched[2 * i + k] = g[j] < 0 || g[j] > 0;
      g += sizes[k];
    }
  }
  if (++t->watched != UNTOUCHED_AFTER) return;
  for (size_t i = 0; i < 2 * pairs; i++)
    if (!t->touched[i])
      gr_trainer_note(t, "%s.%s has had no gradient in %d steps: it is not being trained", gr_lora_pair_at(t->lora, i / 2)->name,
                      i % 2 ? "lora_b" : "lora_a", UNTOUCHED_AFTER);
}

static gr_status update(gr_trainer *t, size_t first, size_t last, double *lr, double *norm, gr_error *e)
{
  const gr_step_sums *sums = gr_step_sums_of(t->step);
  size_t n = gr_lora_parameters(t->lora);
  double scale = sums->weight > 0 ? 1 / sums->weight : 0;
  *norm = gr_norm(gr_step_gradient(t->step), n, scale, t->setup.pool);
  if (!isfinite(*norm)) return step_failure(t, "the gradient", first, last, e);
  double clip = t->o.max_grad_norm;
  if (clip > 0 && *norm > clip) scale *= clip / (*norm + 1e-6); /* as PyTorch's clip_grad_norm_ */
  *lr = gr_schedule_rate(t->schedule, t->o.learning_rate, t->o.lr_min, t->warmup, t->steps_total, t->state.step);
  mark_touched(t, *lr);
  gr_adamw_update(&t->adamw, gr_lora_values(t->lora), gr_step_gradient(t->step), t->state.m, t->state.v, n, scale, *lr, t->state.step + 1,
                  t->setup.pool);
  if (gr_lora_check_finite(t->lora, NULL) != GR_OK) return step_failure(t, "the adapter after the update", first, last, e);
  return GR_OK;
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

/* ---- the loss of many steps ---- */

/* Whether a tenth of the run's steps ends with this one; the last of them ends with the run. */
static bool tenth_ends(const gr_trainer *t, uint64_t step) { return (t->steps_total - step) % ((t->steps_total + 9) / 10) == 0; }

static void count_loss(gr_trainer *t)
{
  double *x = t->state.tenth;
  if (tenth_ends(t, t->state.step - 1)) {
    x[2] = x[0], x[3] = x[1];
    x[0] = x[1] = 0;
  }
  x[0] += t->state.loss_last;
  x[1]++;
}

/* Of the last tenth; a run that stopped within one has the one before in it too. */
static double mean_loss(const gr_trainer *t)
{
  const double *x = t->state.tenth;
  double before = tenth_ends(t, t->state.step) ? 0 : 1, n = x[1] + before * x[3];
  return n > 0 ? (x[0] + before * x[2]) / n : t->state.loss_last;
}

static gr_status one_step(gr_trainer *t, gr_error *e)
{
  double start = seconds_now(), lr = 0, norm = 0;
  uint64_t within;
  size_t epoch = gr_trainer_epoch_of(t, t->state.step, &within), batch = gr_trainer_batch(t), first = (size_t)within * batch;
  GR_TRY(enter_epoch(t, epoch, e));
  size_t last = first + batch < t->packing.n_windows ? first + batch : t->packing.n_windows;
  GR_TRY(run_windows(t, first, last, e));
  GR_TRY(update(t, first, last, &lr, &norm, e));
  const gr_step_sums *sums = gr_step_sums_of(t->step);
  gr_run_state *s = &t->state;
  s->step++;
  s->loss_last = sums->weight > 0 ? sums->loss / sums->weight : 0;
  if (s->step == 1) s->loss_first = s->loss_last;
  count_loss(t);
  s->tokens_total += sums->tokens_trained;
  gr_trainer_watch_memory(t);
  gr_train_event event = { .kind = GR_EVENT_STEP,
                           .step = s->step,
                           .steps_total = t->steps_total,
                           .epoch = progress(t, s->step),
                           .loss = s->loss_last,
                           .lr = lr,
                           .grad_norm = norm,
                           .tokens = sums->tokens_trained,
                           .tokens_total = (size_t)s->tokens_total,
                           .tok_s = (double)sums->tokens / fmax(seconds_now() - start, 1e-9),
                           .memory_bytes = gr_memory_anonymous() };
  gr_trainer_emit(t, &event);
  return GR_OK;
}

/* ---- the run ---- */

/* A checkpoint says whether its evaluation was done: one that was interrupted is made up for on resuming. */
static gr_status loop(gr_trainer *t, gr_error *e)
{
  for (;;) {
    bool ends = t->state.step == t->steps_total;
    if (evaluation_due(t)) GR_TRY(evaluate(t, e));
    if (due(t->o.save_steps, t->state.step) && !ends) GR_TRY(gr_trainer_save_checkpoint(t, e));
    if (ends) return GR_OK;
    if (t->o.early_stopping_patience > 0 && t->state.evaluations_worse >= (uint64_t)t->o.early_stopping_patience) {
      gr_trainer_note(t, "stopped early: %llu evaluations in a row without a better held-out loss",
                      (unsigned long long)t->state.evaluations_worse);
      return GR_OK;
    }
    if (stop_asked(t)) return gr_fail(e, GR_ERR_CANCELLED, "stopped");
    GR_TRY(one_step(t, e));
  }
}

/* Old files go only once nothing can keep the run from starting. */
static gr_status begin(gr_trainer *t, gr_error *e)
{
  bool tensorboard = false;
  for (size_t i = 0; i < t->o.report_to.n; i++) tensorboard |= strcmp(t->o.report_to.items[i], "tensorboard") == 0;
  GR_TRY(gr_step_allocate(t->step, e));
  if (t->eval_step) GR_TRY(gr_step_allocate(t->eval_step, e));
  if (!t->resuming) gr_checkpoint_drop(t->o.output, 0);
  GR_TRY(gr_trainer_write_config(t, false, e));
  return gr_metrics_open(&t->metrics, t->o.output, tensorboard, t->resuming, t->state.step, e);
}

static void emit_done(gr_trainer *t)
{
  const gr_run_state *s = &t->state;
  gr_trainer_watch_memory(t);
  gr_train_event event = { .kind = GR_EVENT_DONE,
                           .step = s->step,
                           .steps_total = t->steps_total,
                           .loss_first = s->loss_first,
                           .loss_last = s->loss_last,
                           .loss_mean = mean_loss(t),
                           .has_eval = t->n_held > 0,
                           .eval_loss = s->best_loss,
                           .improvement = s->best_gain,
                           .standard_error = s->best_se,
                           .best_step = s->best_step,
                           .seconds = seconds_now() - t->started,
                           .adapter = t->o.output,
                           .memory_bytes = t->peak,
                           .tokens_total = (size_t)s->tokens_total };
  gr_trainer_emit(t, &event);
}

static void swap(float *a, float *b, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    float x = a[i];
    a[i] = b[i];
    b[i] = x;
  }
}

/* Writes the adapter of the best evaluation, or the last one when nothing is held out. When it cannot be written, what was learned
 * is not lost if a checkpoint can take it. */
static gr_status write_adapter(gr_trainer *t, gr_error *e)
{
  const gr_run_state *s = &t->state;
  size_t n = gr_lora_parameters(t->lora);
  bool earlier = s->best && s->best_step > 0 && s->best_step < s->step;
  if (earlier) swap(gr_lora_values(t->lora), s->best, n);
  gr_status status = gr_lora_save(t->lora, t->model, t->o.output, t->identity.base_hash, e);
  if (earlier) swap(gr_lora_values(t->lora), s->best, n);
  gr_error ignored = { 0 };
  if (status != GR_OK && gr_trainer_save_checkpoint(t, &ignored) == GR_OK)
    gr_error_context(e, "the adapter could not be written, but a checkpoint keeps it; make room, then --resume");
  if (status == GR_OK && earlier)
    gr_trainer_note(t, "the adapter is that of step %llu, which had the best held-out loss", (unsigned long long)s->best_step);
  if (status == GR_OK && s->best_step > 0 && !(s->best_gain > 0))
    gr_trainer_note(t, "the held-out loss never became better than before training: the adapter is likely to do harm");
  return status;
}

static gr_status finish(gr_trainer *t, gr_error *e)
{
  gr_error ignored = { 0 };
  GR_TRY(write_adapter(t, e));
  if (gr_trainer_write_config(t, true, &ignored) != GR_OK)
    gr_trainer_note(t, "the adapter is written, but not that the run is finished: %s", ignored.text);
  gr_checkpoint_drop(t->o.output, 0);
  emit_done(t);
  return GR_OK;
}

static gr_status stopped(gr_trainer *t, gr_error *e)
{
  gr_error saving = { 0 };
  unsigned long long step = t->state.step, total = t->steps_total;
  if (step == 0 && t->state.evaluations == 0)
    return gr_fail(e, GR_ERR_CANCELLED, "stopped before the first step: there was nothing to save yet");
  if (gr_trainer_save_checkpoint(t, &saving) != GR_OK)
    return gr_fail(e, saving.status, "stopped after step %llu of %llu, and the checkpoint could not be written: %s", step, total,
                   saving.text);
  return gr_fail(e, GR_ERR_CANCELLED, "stopped after step %llu of %llu and saved; the same command with --resume goes on", step, total);
}

gr_status gr_trainer_run(gr_trainer *t, gr_error *e)
{
  if (t->finished) return GR_OK;
  t->started = seconds_now();
  GR_TRY(begin(t, e));
  gr_status s = loop(t, e);
  if (s == GR_OK) return finish(t, e);
  return s == GR_ERR_CANCELLED ? stopped(t, e) : s;
}
