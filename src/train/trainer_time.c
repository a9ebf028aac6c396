/* For plans: how long a run will take, by running a part of a small step; and one whole step, for who wants to see its launches. */
#include <math.h>

#include "base/alloc.h"
#include "train/trainer_impl.h"

enum { PROBE_TOKENS = 512 }; /* the products reach their speed from about here */

gr_plan *gr_trainer_plan_of(gr_trainer *t) { return gr_step_plan_of(t->step); }

/* What an epoch takes at these rates: its samples, whatever windows they are packed into. */
static double epoch_seconds(const gr_trainer *t, const gr_step_rates *r)
{
  double tokens = 0, pairs = 0, trained = 0;
  for (size_t i = 0; i < t->n_train; i++) {
    const gr_sample *x = gr_dataset_at(t->data, t->train[i]);
    tokens += x->n;
    pairs += (double)x->n * x->n;
    for (int32_t k = 1; k < x->n; k++) trained += x->weights[k] > 0;
  }
  return tokens * r->token + pairs * r->pair + trained * r->trained;
}

/* Passes over the data that the run's steps make. */
static double passes(const gr_trainer *t)
{
  double all = 0;
  for (size_t i = 0; i < t->n_epochs; i++) {
    double share = (double)t->epochs[i].steps * (double)gr_trainer_batch(t) / (double)t->epochs[i].windows;
    all += share < 1 ? share : 1;
  }
  return all;
}

/* The planned step may be larger than this machine; its launches at a size that is not tell how long it would take elsewhere too. */
gr_status gr_trainer_time(gr_trainer *t, double seconds, gr_run_time *time, gr_error *e)
{
  gr_step *probe = NULL;
  gr_step_rates rates;
  *time = (gr_run_time){ .epoch = NAN, .run = NAN };
  gr_step_options o = { .tokens = t->fullest < PROBE_TOKENS ? t->fullest : PROBE_TOKENS,
                        .train = true,
                        .dropout = (float)t->o.lora_dropout,
                        .seed = (uint64_t)t->o.seed,
                        .recompute = t->recompute,
                        .backends = t->setup.backends,
                        .n_backends = t->setup.n_backends,
                        .allow_ref = t->o.allow_ref };
  GR_TRY(gr_step_plan(&probe, t->model, t->lora, &o, e));
  size_t limit = gr_memory_limit(), held = gr_memory_anonymous();
  time->needed = gr_step_bytes(probe);
  time->room = limit > held ? limit - held : 0;
  gr_status s = GR_OK;
  if (time->needed <= time->room) {
    s = gr_step_time(probe, t->data, t->train, t->n_train, seconds, &rates, e);
    if (s == GR_OK) {
      time->epoch = epoch_seconds(t, &rates);
      time->run = time->epoch * passes(t);
    }
  }
  gr_step_free(probe);
  return s;
}

gr_status gr_trainer_run_once(gr_trainer *t, gr_error *e)
{
  gr_packing p = { 0 };
  GR_TRY(gr_trainer_pack_epoch(t, 0, &p, e));
  size_t samples = 0;
  for (size_t i = 0; i < p.n_windows && i < (size_t)t->micro_batch; i++) samples += p.windows[i].n;
  gr_step_clear(t->step);
  gr_status s = gr_step_run(t->step, t->data, p.order, samples, 0, NULL, NULL, NULL, e);
  gr_packing_free(&p);
  return s;
}
