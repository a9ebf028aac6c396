/* The public API over the trainer: options by name, events as progress. */
#include <string.h>

#include "base/alloc.h"
#include "graft/graft.h"
#include "train/trainer.h"

struct gr_training {
  gr_train_options options;
};

gr_status gr_training_create(gr_training **out, gr_error *e)
{
  *out = gr_calloc(1, sizeof **out);
  if (!*out) return gr_fail_memory(e, sizeof **out);
  gr_train_options_init(&(*out)->options);
  return GR_OK;
}

void gr_training_free(gr_training *t)
{
  if (!t) return;
  gr_train_options_free(&t->options);
  gr_free(t);
}

gr_status gr_training_set(gr_training *t, const char *name, const char *value, gr_error *e)
{
  const gr_option_info *info = gr_train_option_find(name);
  if (!info) return gr_train_option_nearest(name, e);
  return gr_train_options_set(&t->options, info, value, "", e);
}

gr_status gr_training_load(gr_training *t, const char *yaml, gr_error *e) { return gr_train_options_load(&t->options, yaml, e); }

struct listener {
  void (*on_progress)(void *ctx, const gr_progress *progress);
  bool (*stop)(void *ctx);
  void *ctx;
};

static void forward_event(void *ctx, const gr_train_event *v)
{
  static const gr_progress_kind kinds[] = {
    [GR_EVENT_NOTE] = GR_PROGRESS_NOTE,
    [GR_EVENT_PLAN] = GR_PROGRESS_PLAN,
    [GR_EVENT_STEP] = GR_PROGRESS_STEP,
    [GR_EVENT_EVAL] = GR_PROGRESS_EVAL,
    [GR_EVENT_CHECKPOINT] = GR_PROGRESS_CHECKPOINT,
    [GR_EVENT_DONE] = GR_PROGRESS_DONE,
  };
  const struct listener *l = ctx;
  if (!l->on_progress || (size_t)v->kind >= sizeof kinds / sizeof *kinds) return;
  const gr_progress p = { .kind = kinds[v->kind],
                          .text = v->kind == GR_EVENT_DONE ? v->adapter : v->text,
                          .step = v->step,
                          .steps_total = v->steps_total,
                          .epoch = v->epoch,
                          .loss = v->kind == GR_EVENT_DONE ? v->loss_last : v->loss,
                          .learning_rate = v->lr,
                          .gradient_norm = v->grad_norm,
                          .tokens_per_second = v->tok_s,
                          .has_heldout = v->has_eval,
                          .heldout_loss = v->eval_loss,
                          .memory_bytes = v->memory_bytes };
  l->on_progress(l->ctx, &p);
}

static bool forward_stop(void *ctx)
{
  const struct listener *l = ctx;
  return l->stop && l->stop(l->ctx);
}

struct machine {
  gr_pool *pool;
  gr_backend *backends[2];
  size_t n;
  gr_model *model;
};

static gr_status open_machine(struct machine *m, const gr_train_options *o, gr_error *e)
{
  if (!o->model) return gr_fail(e, GR_ERR_USAGE, "set the option model");
  GR_TRY(gr_pool_create(&m->pool, (int)o->threads, e));
  gr_precision precision;
  GR_TRY(gr_precision_parse(o->precision, &precision, e));
  GR_TRY(gr_backend_open(&m->backends[0], o->backend, m->pool, e));
  m->n = 1;
  GR_TRY(gr_backend_use_precision(m->backends[0], precision, e));
  if (strcmp(o->backend, "cpu") != 0) {
    GR_TRY(gr_backend_open(&m->backends[1], "cpu", m->pool, e));
    m->n = 2;
  }
  return gr_model_open(&m->model, o->model, e);
}

gr_status gr_training_run(gr_training *t, void (*on_progress)(void *ctx, const gr_progress *progress), bool (*stop)(void *ctx), void *ctx,
                          gr_error *e)
{
  struct listener listener = { on_progress, stop, ctx };
  struct machine m = { 0 };
  gr_trainer *trainer = NULL;
  gr_status s = gr_train_options_check(&t->options, e);
  if (s == GR_OK) s = open_machine(&m, &t->options, e);
  const gr_trainer_setup setup = { .options = &t->options,
                                   .model = m.model,
                                   .backends = m.backends,
                                   .n_backends = m.n,
                                   .pool = m.pool,
                                   .on_event = forward_event,
                                   .stop = forward_stop,
                                   .ctx = &listener };
  if (s == GR_OK) s = gr_trainer_open(&trainer, &setup, e);
  if (s == GR_OK) s = gr_trainer_run(trainer, e);
  gr_trainer_close(trainer);
  gr_model_close(m.model);
  for (size_t i = 0; i < m.n; i++) gr_backend_close(m.backends[i]);
  gr_pool_free(m.pool);
  return s;
}
