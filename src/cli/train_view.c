/* A run on the terminal: one line that is rewritten, as wide as the terminal; in a file or pipe, a line a step. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli/train_run.h"

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void gr_train_view_open(gr_train_view *v, const gr_train_command *c)
{
  *v = (gr_train_view){ .json = c->json, .terminal = isatty(2), .logging_steps = c->o.logging_steps, .started = seconds_now() };
}

void gr_train_view_close(gr_train_view *v)
{
  if (v->line_open) fputc('\n', stderr);
  v->line_open = false;
}

/* ---- the progress line ---- */

static void put_sparks(const gr_train_view *v, gr_buf *out)
{
  static const char *const bars[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
  double low = HUGE_VAL, high = -HUGE_VAL;
  size_t n = v->n_losses < GR_SPARKS ? v->n_losses : GR_SPARKS;
  for (size_t i = 0; i < n; i++) {
    low = fmin(low, v->losses[i]);
    high = fmax(high, v->losses[i]);
  }
  for (size_t i = 0; i < n; i++) {
    double x = v->losses[(v->n_losses - n + i) % GR_SPARKS];
    gr_buf_puts(out, bars[high > low ? (int)((x - low) / (high - low) * 7.999) : 0]);
  }
}

static void put_duration(gr_buf *out, double seconds)
{
  unsigned long long s = seconds > 0 && seconds < 1e15 ? (unsigned long long)seconds : 0;
  if (s >= 3600) gr_buf_printf(out, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
  else gr_buf_printf(out, "%llu:%02llu", s / 60, s % 60);
}

static size_t terminal_width(void)
{
  struct winsize w;
  return ioctl(2, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

/* Parts go in by importance while they fit; the sparkline, if there is room for it. */
static void put_progress(const gr_train_view *v, const gr_train_event *s, size_t width, gr_buf *out)
{
  gr_buf part = { 0 };
  double left = (seconds_now() - v->started) / (double)v->n_losses * (double)(s->steps_total - s->step);
  size_t used = 0;
  for (int i = 0; i < 9; i++) {
    gr_buf_clear(&part);
    switch (i) {
    case 0: gr_buf_printf(&part, "step %llu/%llu", (unsigned long long)s->step, (unsigned long long)s->steps_total); break;
    case 1: gr_buf_printf(&part, "  loss %.4f", s->loss); break;
    case 2:
      if (v->has_held) gr_buf_printf(&part, "  held-out %.4f", v->held);
      break;
    case 3: gr_buf_puts(&part, "  ETA "), put_duration(&part, left); break;
    case 4: gr_buf_printf(&part, "  lr %.2e", s->lr); break;
    case 5: gr_buf_printf(&part, "  %.0f tok/s", s->tok_s); break;
    case 6: gr_buf_printf(&part, "  %.0f MB", (double)s->memory_bytes / 1e6); break;
    case 7: gr_buf_printf(&part, "  |g| %.3g  epoch %.2f", s->grad_norm, s->epoch); break;
    case 8: gr_buf_puts(&part, "  "), put_sparks(v, &part); break;
    }
    size_t columns = i == 8 ? 2 + (v->n_losses < GR_SPARKS ? v->n_losses : GR_SPARKS) : part.len;
    if (!part.len || used + columns >= width) continue;
    gr_buf_append(out, part.data, part.len);
    used += columns;
  }
  gr_buf_free(&part);
}

static void show_step(gr_train_view *v, const gr_train_event *s)
{
  v->losses[v->n_losses++ % GR_SPARKS] = s->loss;
  bool last = s->step == s->steps_total;
  if (s->step % (uint64_t)v->logging_steps && !last) return;
  gr_buf line = { 0 };
  put_progress(v, s, v->terminal ? terminal_width() : SIZE_MAX, &line);
  fprintf(stderr, "%s%s%s", v->terminal ? "\r\033[K" : "", line.data ? line.data : "", v->terminal ? "" : "\n");
  fflush(stderr);
  v->line_open = v->terminal;
  gr_buf_free(&line);
}

/* ---- the other events ---- */

void gr_train_view_plan(FILE *out, const gr_run_plan *p)
{
  const gr_memory_plan *m = &p->memory;
  size_t at_once = (size_t)p->micro_batch < p->windows ? (size_t)p->micro_batch : p->windows;
  fprintf(out, "data     %zu samples, %zu held out; an epoch is %zu window%s of up to %d tokens, %.0f %% full\n", p->samples, p->heldout,
          p->windows, p->windows == 1 ? "" : "s", p->window, 100 * p->fill);
  fprintf(out, "adapter  %.2f million parameters on %zu tensors", (double)p->parameters / 1e6, p->pairs);
  if (p->experts) fprintf(out, ", %zu of them stacks of %d experts (%d are used for each token)", p->stacks, p->experts, p->experts_used);
  fputc('\n', out);
  fprintf(out, "run      %llu optimizer step%s in %.3g epoch%s, %llu of them warmup; %zu window%s at a time%s\n",
          (unsigned long long)p->steps, p->steps == 1 ? "" : "s", p->epochs, p->epochs > 1 ? "s" : "", (unsigned long long)p->warmup,
          at_once, at_once == 1 ? "" : "s", p->recompute ? "; layers are computed again for backward" : "");
  fprintf(
      out,
      "memory   %.0f MB at most: adapter and moments %.0f, training %.0f, evaluation %.0f, program and data %.0f; the base's %.0f MB are "
      "mapped\n",
      (double)m->peak / 1e6, (double)m->adapter / 1e6, (double)m->training / 1e6, (double)m->evaluation / 1e6, (double)m->program / 1e6,
      (double)m->base / 1e6);
}

static void show_eval(gr_train_view *v, const gr_train_event *s)
{
  v->held = s->loss;
  v->has_held = true;
  fprintf(stderr, "held-out loss %.4f over %zu tokens", s->loss, s->tokens);
  if (s->step && s->standard_error > 0)
    fprintf(stderr, ": samples are %.4f better than before training, standard error %.4f", s->improvement, s->standard_error);
  fputc('\n', stderr);
}

static void show_done(const gr_train_event *s)
{
  fprintf(stderr, "done     %llu steps in ", (unsigned long long)s->step);
  gr_buf time = { 0 };
  put_duration(&time, s->seconds);
  fprintf(stderr, "%s; loss %.4f over the last tenth of them, %.4f at first; %.0f MB at most\n", time.data ? time.data : "?", s->loss_mean,
          s->loss_first, (double)s->memory_bytes / 1e6);
  gr_buf_free(&time);
  if (!s->has_eval) fprintf(stderr, "held out nothing: give --val-file or --val-split to know more\n");
  else if (s->standard_error > 0)
    fprintf(stderr, "held out loss %.4f after step %llu: better by %.4f a sample, which is %.1f standard errors (%.4f)\n", s->eval_loss,
            (unsigned long long)s->best_step, s->improvement, s->improvement / s->standard_error, s->standard_error);
  else fprintf(stderr, "held out loss %.4f after step %llu\n", s->eval_loss, (unsigned long long)s->best_step);
  fprintf(stderr, "adapter  %s\n", s->adapter);
}

void gr_train_view_event(void *ctx, const gr_train_event *event)
{
  gr_train_view *v = ctx;
  if (v->json) gr_cli_json(gr_train_event_json(event));
  if (event->kind != GR_EVENT_STEP) gr_train_view_close(v);
  switch (event->kind) {
  case GR_EVENT_NOTE: fprintf(stderr, "note     %s\n", event->text); break;
  case GR_EVENT_PLAN: gr_train_view_plan(stderr, event->plan); break;
  case GR_EVENT_STEP: show_step(v, event); break;
  case GR_EVENT_EVAL: show_eval(v, event); break;
  case GR_EVENT_CHECKPOINT: fprintf(stderr, "saved    %s\n", event->text); break;
  case GR_EVENT_DONE: show_done(event); break;
  }
}
