/* A run that does not fit is refused with settings that do: a smaller window, micro-batch 1, recompute, at last a smaller rank.
 *
 * What is suggested must not only fit but run, and learn: a window that cuts no sample is preferred to a higher rank, and one that
 * leaves nothing to learn is never suggested. A resumed run is bound to all of these but recompute. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "train/trainer_impl.h"

enum {
  WINDOW_STEP = 16, /* grain of the windows */
  RANKS_MAX = 24,   /* halvings of the largest rank */
  SLACK = 2 << 20,
  SLACK_SHARE = 64 /* suggestions leave this much, and a 64th: another run's program is not the same to the byte */
};

struct suggestion {
  int64_t rank;
  int32_t window;    /* 0: none fits */
  size_t bytes, cut; /* samples that do not go into the window whole */
};

static bool within(const gr_trainer *t, const gr_memory_plan *m) { return m->peak + SLACK + t->memory.limit / SLACK_SHARE <= m->limit; }

/* ---- what the data needs ---- */

/* Plain text and split samples go on in the next window: nothing is lost. */
static bool any_window_will_do(const gr_trainer *t)
{
  return gr_dataset_format(t->data) == GR_DATA_PLAIN || strcmp(t->o.overlong, "split") == 0;
}

static size_t count_cut(const gr_trainer *t, int32_t window)
{
  size_t n = 0;
  for (size_t i = 0; i < t->n_train && !any_window_will_do(t); i++) n += gr_dataset_at(t->data, t->train[i])->n > window;
  return n;
}

/* The least window into which a sample of every file goes whole: shorter ones may leave a file with nothing to learn, or without a
 * trained end of turn, and such runs are refused. */
static int32_t least_window(const gr_trainer *t)
{
  const gr_dataset *const sets[] = { t->data, t->heldout_data };
  int32_t least = 2;
  for (size_t k = 0; k < 2 && !any_window_will_do(t); k++) {
    int32_t shortest = 0;
    for (size_t i = 0; sets[k] && i < gr_dataset_count(sets[k]); i++) {
      const gr_sample *x = gr_dataset_at(sets[k], i);
      bool another = i == 0 || x->file != gr_dataset_at(sets[k], i - 1)->file;
      if (another && shortest > least) least = shortest;
      if (another || x->n < shortest) shortest = x->n;
    }
    if (shortest > least) least = shortest;
  }
  return least;
}

/* ---- what fits ---- */

/* The largest window, in steps of WINDOW_STEP, that fits with this adapter; m of it, or of the smallest when none does. */
static gr_status largest_window(gr_trainer *t, gr_lora *lora, int32_t *window, gr_memory_plan *m, gr_error *e)
{
  int32_t low = 0, high = (t->window + WINDOW_STEP - 1) / WINDOW_STEP; /* low fits, or is 0; beyond high there is no need */
  *window = 0;
  while (low < high) {
    int32_t middle = low ? (low + high + 1) / 2 : 1, tokens = middle * WINDOW_STEP < t->window ? middle * WINDOW_STEP : t->window;
    gr_memory_plan at;
    GR_TRY(gr_trainer_predict(t, lora, tokens, t->n_held ? tokens : 0, true, &at, e));
    bool ok = within(t, &at);
    if (ok || low == 0) *m = at;
    if (ok) {
      low = middle;
      *window = tokens;
    } else if (low == 0) {
      return GR_OK;
    } else {
      high = middle - 1;
    }
  }
  return GR_OK;
}

static gr_status try_rank(gr_trainer *t, int64_t rank, struct suggestion *s, gr_error *e)
{
  gr_lora *lora = NULL;
  gr_memory_plan m = t->memory;
  *s = (struct suggestion){ .rank = rank };
  gr_status status = gr_trainer_make_lora(t, rank, &lora, e);
  if (status == GR_OK) status = largest_window(t, lora, &s->window, &m, e);
  gr_step_free(t->step); /* they point into the adapter */
  gr_step_free(t->eval_step);
  t->step = t->eval_step = NULL;
  gr_lora_free(lora);
  s->bytes = m.peak;
  s->cut = count_cut(t, s->window);
  return status;
}

/* The highest rank whose window cuts nothing; failing that, at most half of the samples; failing that, the lowest rank that leaves
 * something to learn. */
static const struct suggestion *choose(const gr_trainer *t, const struct suggestion *all, size_t n)
{
  const struct suggestion *last = NULL;
  int32_t least = least_window(t);
  for (size_t i = 0; i < n; i++)
    if (all[i].window && all[i].cut == 0) return &all[i];
  for (size_t i = 0; i < n; i++) {
    if (all[i].window < least) continue;
    last = &all[i];
    if (2 * last->cut <= t->n_train) break;
  }
  return last;
}

static gr_status refuse_new(gr_trainer *t, double needed, const char *allowed, gr_error *e)
{
  struct suggestion all[RANKS_MAX];
  size_t n = 0;
  for (int64_t rank = t->o.lora_r; rank >= 1 && n < RANKS_MAX; rank = t->o.init_adapter ? 0 : rank / 2) {
    GR_TRY(try_rank(t, rank, &all[n], e));
    bool whole = all[n].window && all[n].cut == 0;
    n++;
    if (whole) break;
  }
  const struct suggestion *s = choose(t, all, n);
  if (!s)
    return gr_fail(e, GR_ERR_MEMORY,
                   "this run needs %.0f MB and %s; even a window of %d with the lowest rank takes %.0f MB%s: allow more "
                   "with --max-memory, or use a smaller model",
                   needed, allowed, all[n - 1].window ? all[n - 1].window : WINDOW_STEP, (double)all[n - 1].bytes / 1e6,
                   all[n - 1].window ? ", and leaves nothing to learn" : "");
  char rank[32] = "", cut[64] = "";
  if (s->rank != t->o.lora_r) snprintf(rank, sizeof rank, " --lora-r %lld", (long long)s->rank);
  if (s->cut) snprintf(cut, sizeof cut, " and with %zu of %zu samples cut or left out", s->cut, t->n_train);
  return gr_fail(e, GR_ERR_MEMORY,
                 "this run needs %.0f MB and %s; it fits, in %.0f MB%s, with: -c %d --micro-batch-size 1 "
                 "--gradient-checkpointing on%s",
                 needed, allowed, (double)s->bytes / 1e6, cut, s->window, rank);
}

static gr_status refuse_resumed(gr_trainer *t, double needed, const char *allowed, gr_error *e)
{
  gr_memory_plan m;
  GR_TRY(gr_trainer_predict(t, t->lora, t->fullest, t->heldout.longest, true, &m, e));
  if (within(t, &m))
    return gr_fail(e, GR_ERR_MEMORY, "going on with this run needs %.0f MB and %s; it fits, in %.0f MB, with: --gradient-checkpointing on",
                   needed, allowed, (double)m.peak / 1e6);
  return gr_fail(e, GR_ERR_MEMORY,
                 "going on with this run needs %.0f MB and %s, and its checkpoint is bound to its window, micro-batch and "
                 "rank: allow more with --max-memory, or begin anew with --overwrite and smaller ones",
                 needed, allowed);
}

gr_status gr_trainer_refuse(gr_trainer *t, gr_error *e)
{
  double needed = (double)t->memory.peak / 1e6, limit = (double)t->memory.limit / 1e6;
  char allowed[120];
  if (t->o.max_memory) snprintf(allowed, sizeof allowed, "--max-memory %.60s allows %.1f MB", t->o.max_memory, limit);
  else snprintf(allowed, sizeof allowed, "%.0f MB are allowed", limit);
  return t->resuming ? refuse_resumed(t, needed, allowed, e) : refuse_new(t, needed, allowed, e);
}
