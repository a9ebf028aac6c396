/* Memory: what a run will take, before it takes it.
 *
 * The prediction is what the process holds already (measured: program, tokenizer, data, graphs and plans) plus what is planned to
 * the byte (activations, scratch, adapter, moments, the packing of an epoch). Nothing else is allocated once a run has begun. */
#include <string.h>

#include "base/alloc.h"
#include "train/trainer_impl.h"

enum {
  TOKENS_AT_ONCE = 512,      /* the products reach their speed from about here: shorter windows run side by side */
  PROGRAM_UNKNOWN = 48 << 20 /* where the system does not say what is resident */
};

gr_status gr_trainer_make_lora(gr_trainer *t, int64_t rank, gr_lora **lora, gr_error *e)
{
  if (t->o.init_adapter) return gr_lora_load(lora, t->model, t->o.init_adapter, e);
  const gr_lora_options options = { .rank = rank,
                                    .alpha = t->o.lora_alpha,
                                    .rslora = t->o.use_rslora,
                                    .targets = t->o.target_modules.items,
                                    .n_targets = t->o.target_modules.n,
                                    .seed = (uint64_t)t->o.seed };
  return gr_lora_create(lora, t->model, &options, e);
}

/* ---- planning ---- */

static gr_status plan_steps(gr_trainer *t, gr_lora *lora, int32_t tokens, int32_t held_tokens, bool recompute, gr_error *e)
{
  gr_step_free(t->step);
  gr_step_free(t->eval_step);
  t->step = t->eval_step = NULL;
  size_t layers = (size_t)gr_model_hparams(t->model)->layers;
  memset(t->recompute, recompute, layers);
  gr_step_options so = { .tokens = tokens,
                         .train = true,
                         .dropout = (float)t->o.lora_dropout,
                         .seed = (uint64_t)t->o.seed,
                         .recompute = t->recompute,
                         .backends = t->setup.backends,
                         .n_backends = t->setup.n_backends,
                         .allow_ref = t->o.allow_ref };
  GR_TRY(gr_step_plan(&t->step, t->model, lora, &so, e));
  if (held_tokens == 0) return GR_OK;
  so.tokens = held_tokens;
  so.train = false;
  so.recompute = NULL;
  return gr_step_plan(&t->eval_step, t->model, lora, &so, e);
}

/* Fills the sizes of the plans as they stand; `program` was measured before. */
static void predict(const gr_trainer *t, const gr_lora *lora, gr_memory_plan *m)
{
  size_t values = gr_lora_parameters(lora) * sizeof(float);
  m->adapter = values * (t->n_held ? 4 : 3); /* values, two moments, the best values */
  m->training = gr_step_bytes(t->step);
  m->evaluation = t->eval_step ? gr_step_bytes(t->eval_step) + gr_heldout_bytes(&t->heldout) : 0;
  m->peak = m->program + m->adapter + m->training + m->evaluation;
}

gr_status gr_trainer_predict(gr_trainer *t, gr_lora *lora, int32_t tokens, int32_t held_tokens, bool recompute, gr_memory_plan *m,
                             gr_error *e)
{
  GR_TRY(plan_steps(t, lora, tokens, held_tokens, recompute, e));
  *m = t->memory;
  predict(t, lora, m);
  return GR_OK;
}

/* Once graphs and plans are there. The adapter's own bytes are counted in full elsewhere. */
static void measure_program(gr_trainer *t)
{
  gr_memory_give_back();
  size_t now = gr_memory_anonymous(), data = gr_dataset_bytes(t->data) + (t->heldout_data ? gr_dataset_bytes(t->heldout_data) : 0);
  if (!now) t->memory.program = PROGRAM_UNKNOWN + data;
  else t->memory.program = now > t->lora_resident ? now - t->lora_resident : now;
  t->memory.program += gr_trainer_packing_bytes(t);
}

static gr_status open_heldout(gr_trainer *t, gr_error *e)
{
  gr_heldout_close(&t->heldout);
  if (t->n_held == 0) return GR_OK;
  const gr_dataset *d = t->heldout_data ? t->heldout_data : t->data;
  return gr_heldout_open(&t->heldout, d, t->held, t->n_held, t->window * t->micro_batch, e);
}

static gr_status try_settings(gr_trainer *t, int32_t micro_batch, bool recompute, gr_error *e)
{
  if (micro_batch != t->micro_batch) {
    t->micro_batch = micro_batch;
    GR_TRY(open_heldout(t, e));
    t->fullest = t->longest;
    if (micro_batch > 1) GR_TRY(gr_trainer_fullest_run(t, micro_batch, &t->fullest, e));
  }
  GR_TRY(plan_steps(t, t->lora, t->fullest, t->heldout.longest, recompute, e));
  if (!t->memory.program) measure_program(t);
  predict(t, t->lora, &t->memory);
  return GR_OK;
}

/* ---- choosing ---- */

void gr_trainer_note_fallen(gr_trainer *t)
{
  gr_buf ops = { 0 };
  const gr_plan *plan = gr_step_plan_of(t->step);
  size_t fallen = gr_plan_fallen(plan, &ops);
  if (fallen && !ops.failed)
    gr_trainer_note(t, "%zu of %zu launches of a step have no kernel on %s and run on %s: %s", fallen, gr_plan_launches(plan),
                    t->setup.backends[0]->ops->name, t->setup.backends[t->setup.n_backends - 1]->ops->name, ops.data);
  gr_buf_free(&ops);
}

gr_status gr_trainer_fit(gr_trainer *t, int64_t micro_batch_before, gr_error *e)
{
  size_t layers = (size_t)gr_model_hparams(t->model)->layers;
  t->recompute = gr_calloc(layers, 1);
  if (!t->recompute) return gr_fail_memory(e, layers);
  gr_memory_plan *m = &t->memory;
  m->limit = gr_memory_limit();
  m->base = (size_t)gr_gguf_file_bytes(gr_model_file(t->model));
  if (t->o.max_memory) GR_TRY(gr_memory_parse(t->o.max_memory, &m->limit, e));

  bool given = t->o.micro_batch_size > 0, on = strcmp(t->o.gradient_checkpointing, "on") == 0;
  int64_t batch = (int64_t)gr_trainer_batch(t), micro = (TOKENS_AT_ONCE + t->longest - 1) / t->longest;
  if (micro_batch_before > 0) micro = micro_batch_before;
  if (given) micro = t->o.micro_batch_size;
  if (micro > batch) micro = batch;
  if (micro * t->window > INT32_MAX / 64) micro = INT32_MAX / 64 / t->window;
  GR_TRY(try_settings(t, (int32_t)micro, on, e));
  if (m->peak > m->limit && strcmp(t->o.gradient_checkpointing, "fit") == 0) GR_TRY(try_settings(t, (int32_t)micro, on = true, e));
  if (m->peak > m->limit && micro > 1 && !given && micro_batch_before <= 0) GR_TRY(try_settings(t, 1, on, e));
  if (m->peak > m->limit) return gr_trainer_refuse(t, e);
  t->o.micro_batch_size = t->micro_batch;
  t->o.gradient_checkpointing = on ? "on" : "off";
  return GR_OK;
}
