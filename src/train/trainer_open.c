/* Before the first step. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/numa.h"
#include "text/utf8.h"
#include "train/trainer_impl.h"

void gr_trainer_emit(gr_trainer *t, gr_train_event *event)
{
  gr_error e = { 0 };
  if (t->metrics && gr_metrics_add(t->metrics, event, &e) != GR_OK) {
    gr_metrics_close(t->metrics); /* hours of training are worth more than their log */
    t->metrics = NULL;
    gr_trainer_note(t, "metrics are no longer written: %s", e.text);
  }
  if (t->setup.on_event) t->setup.on_event(t->setup.ctx, event);
}

void gr_trainer_note(gr_trainer *t, const char *fmt, ...)
{
  char text[1400];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  gr_train_event event = { .kind = GR_EVENT_NOTE, .text = text };
  if (t->setup.on_event) t->setup.on_event(t->setup.ctx, &event);
}

void gr_trainer_watch_memory(gr_trainer *t)
{
  size_t now = gr_memory_anonymous();
  if (now > t->peak) t->peak = now;
}

/* ---- output ---- */

/* Which of the run's inputs a path is; NULL: none. */
static const char *input_at(const gr_trainer *t, const char *path)
{
  const gr_gguf *g = gr_model_file(t->model);
  for (int i = 0; i < gr_gguf_part_count(g); i++)
    if (gr_file_same(path, gr_gguf_part_path(g, i))) return "model";
  if (t->o.config && gr_file_same(path, t->o.config)) return "config";
  for (size_t i = 0; i < t->o.data.n; i++)
    if (gr_file_same(path, t->o.data.items[i])) return "training data";
  for (size_t i = 0; i < t->o.val_file.n; i++)
    if (gr_file_same(path, t->o.val_file.items[i])) return "held-out data";
  if (t->o.init_adapter && gr_file_same(path, t->o.init_adapter)) return "initial adapter";
  return NULL;
}

/* What would be written over: never an input, and what else is there only when told so. */
static gr_status check_files(const gr_trainer *t, bool checkpoints, gr_error *e)
{
  char *path;
  bool keep = !t->o.overwrite && !t->o.resume && !checkpoints;
  for (size_t i = 0; gr_output_file(t->o.output, i, &path); i++) {
    if (!path) return gr_fail_memory(e, strlen(t->o.output));
    const char *input = input_at(t, path);
    gr_status s = GR_OK;
    if (input) s = gr_fail(e, GR_ERR_USAGE, "%s is the %s of this run and would be written over: give another -o", path, input);
    else if (keep && gr_file_exists(path))
      s = gr_fail(e, GR_ERR_USAGE, "%s exists already: give another -o, --resume to go on with it, or --overwrite to replace it", path);
    gr_free(path);
    if (s != GR_OK) return s;
  }
  return GR_OK;
}

/* What an output and its checkpoints mean for this run: refused, begun anew, or gone on with. */
static gr_status check_output(gr_trainer *t, uint64_t *newest, gr_error *e)
{
  const gr_train_options *o = &t->o;
  if (!o->output || !*o->output) return gr_fail(e, GR_ERR_USAGE, "give the adapter to write with -o FILE");
  if (!gr_utf8_valid(o->output, strlen(o->output)))
    return gr_fail(e, GR_ERR_USAGE, "the name of the output, %s, is not UTF-8: give another -o", o->output);
  GR_TRY(gr_output_check(o->output, e));
  uint64_t *steps = NULL;
  size_t n = 0;
  GR_TRY(gr_checkpoint_list(o->output, &steps, &n, e));
  *newest = n ? steps[n - 1] : 0;
  gr_free(steps);
  t->resuming = o->resume && n;
  GR_TRY(check_files(t, n > 0, e));
  if (n && !o->resume && !o->overwrite)
    return gr_fail(
        e, GR_ERR_USAGE,
        "a run into %s was stopped after step %llu: --resume goes on with it, --overwrite begins anew and removes its checkpoints",
        o->output, (unsigned long long)*newest);
  GR_TRY(gr_output_lock_take(&t->lock, o->output, e));
  gr_output_sweep(o->output);
  return gr_output_probe(o->output, e);
}

static void check_room(gr_trainer *t)
{
  size_t values = gr_lora_parameters(t->lora) * sizeof(float), each = values * (t->n_held ? 4 : 3);
  size_t kept = t->o.save_steps > 0 ? (size_t)t->o.save_total_limit + 1 : 1, room = gr_output_room(t->o.output);
  if (room / (kept + 1) < each)
    gr_trainer_note(t, "the disk has room for %.0f MB: the adapter takes %.0f MB, and each of %zu checkpoints %.0f MB", (double)room / 1e6,
                    (double)values / 1e6, kept, (double)each / 1e6);
}

/* ---- identity ---- */

static uint64_t hash_adapter(gr_lora *lora)
{
  uint64_t all[4] = { 0 };
  for (size_t i = 0; i < gr_lora_pair_count(lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(lora, i);
    gr_hash_bytes(p->name, strlen(p->name), all + 2);
    all[1] ^= (uint64_t)p->rank;
    gr_hash_bytes(all, sizeof all, all);
  }
  double alpha = gr_lora_alpha(lora);
  memcpy(&all[1], &alpha, sizeof alpha);
  gr_hash_bytes(gr_lora_values(lora), gr_lora_parameters(lora) * sizeof(float), all + 2);
  gr_hash_bytes(all, sizeof all, all);
  return all[0];
}

/* Of another base than this: refused when strict. */
static gr_status check_base(gr_trainer *t, gr_error *e)
{
  gr_error other = { 0 };
  gr_status s = gr_lora_check_base(t->lora, t->model, t->identity.base_hash, &other);
  if (s == GR_OK) return GR_OK;
  if (s != GR_ERR_MISMATCH || t->o.strict) return gr_fail(e, s, "%s", other.text);
  gr_trainer_note(t, "%s", other.text);
  return GR_OK;
}

static gr_status identify(gr_trainer *t, gr_error *e)
{
  gr_run_identity *id = &t->identity;
  const gr_data_counts *counts = gr_dataset_counts(t->data), *held = t->heldout_data ? gr_dataset_counts(t->heldout_data) : NULL;
  GR_TRY(gr_base_hash(gr_model_file(t->model), t->setup.pool, id->base_hash, e));
  GR_TRY(check_base(t, e));
  gr_train_options_dump(&t->o, true, &t->geometry);
  if (t->geometry.failed) return gr_fail_memory(e, t->geometry.len);
  id->geometry = t->geometry.data;
  id->data_hash = gr_dataset_hash(t->data) ^ (t->heldout_data ? gr_dataset_hash(t->heldout_data) * 3 : 0);
  id->data_samples = counts->samples + (held ? held->samples : 0);
  id->data_tokens = counts->tokens + (held ? held->tokens : 0);
  id->adapter_hash = hash_adapter(t->lora);
  id->steps_total = t->steps_total;
  id->warmup = t->warmup;
  return GR_OK;
}

/* ---- state ---- */

static gr_status make_state(gr_trainer *t, gr_error *e)
{
  size_t n = gr_lora_parameters(t->lora);
  t->state.m = gr_calloc(n, sizeof(float));
  t->state.v = gr_calloc(n, sizeof(float));
  t->state.best = t->n_held ? gr_calloc(n, sizeof(float)) : NULL;
  t->state.best_loss = HUGE_VAL;
  t->touched = gr_calloc(2 * gr_lora_pair_count(t->lora), 1);
  if (!t->state.m || !t->state.v || !t->touched || (t->n_held && !t->state.best)) return gr_fail_memory(e, 3 * n * sizeof(float));
  gr_numa_spread(t->setup.pool, t->state.m, n * sizeof(float));
  gr_numa_spread(t->setup.pool, t->state.v, n * sizeof(float));
  return GR_OK;
}

/* What to do about a checkpoint that cannot be read: the one before it, if there is one, is whole. */
static void explain_damage(const gr_trainer *t, const char *path, gr_error *e)
{
  char why[sizeof e->text];
  uint64_t *steps = NULL;
  size_t n = 0;
  gr_error ignored = { 0 };
  memcpy(why, e->text, sizeof why);
  if (gr_checkpoint_list(t->o.output, &steps, &n, &ignored) != GR_OK) return;
  if (n > 1)
    gr_fail(e, GR_ERR_FORMAT, "%s; delete %s, and --resume goes on from the checkpoint of step %llu", why, path,
            (unsigned long long)steps[n - 2]);
  else gr_fail(e, GR_ERR_FORMAT, "%s; there is no other checkpoint: --overwrite begins the run anew", why);
  gr_free(steps);
}

static gr_status resume(gr_trainer *t, uint64_t newest, gr_error *e)
{
  if (t->n_held) {
    t->heldout.baseline = gr_calloc(t->n_held, sizeof(double));
    if (!t->heldout.baseline) return gr_fail_memory(e, t->n_held * sizeof(double));
    t->state.baseline = t->heldout.baseline;
    t->state.n_baseline = t->n_held;
  }
  char *path = gr_checkpoint_path(t->o.output, newest);
  if (!path) return gr_fail_memory(e, strlen(t->o.output));
  gr_status s = gr_checkpoint_load(path, t->lora, &t->state, &t->identity, e);
  if (s == GR_ERR_FORMAT) explain_damage(t, path, e);
  if (s == GR_OK && t->state.evaluations == 0) {
    gr_free(t->heldout.baseline); /* stopped before there was one */
    t->heldout.baseline = NULL;
  }
  if (s == GR_OK) {
    t->saved = t->state.step + 1;
    gr_trainer_note(t, "resumed from %s, after step %llu of %llu", path, (unsigned long long)t->state.step,
                    (unsigned long long)t->steps_total);
  }
  gr_free(path);
  return s;
}

/* --resume without a checkpoint: a run that had not come to one begins; one that is finished has nothing left to do. */
static gr_status resume_nothing(gr_trainer *t, gr_error *e)
{
  t->finished = gr_trainer_was_finished(t);
  if (t->finished) gr_trainer_note(t, "this run is finished: %s is its adapter", t->o.output);
  else if (gr_file_exists(t->o.output)) return gr_trainer_refuse_other(t, e);
  else gr_trainer_note(t, "there is no checkpoint beside %s: the run begins at the beginning", t->o.output);
  return GR_OK;
}

/* ---- all of it ---- */

static void emit_plan(gr_trainer *t)
{
  const gr_hparams *hp = gr_model_hparams(t->model);
  gr_run_plan plan = { .steps = t->steps_total,
                       .first_step = t->state.step,
                       .warmup = t->warmup,
                       .samples = t->n_train,
                       .heldout = t->n_held,
                       .windows = t->epochs[0].windows,
                       .epochs = t->o.max_steps > 0 ? (double)t->n_epochs : t->o.num_epochs,
                       .parameters = gr_lora_parameters(t->lora),
                       .pairs = gr_lora_pair_count(t->lora),
                       .experts = hp->experts,
                       .experts_used = hp->experts_used,
                       .window = t->window,
                       .longest = t->longest,
                       .micro_batch = t->micro_batch,
                       .recompute = t->recompute[0],
                       .memory = t->memory };
  for (size_t i = 0; i < t->n_train; i++) plan.tokens += (size_t)gr_dataset_at(t->data, t->train[i])->n;
  for (size_t i = 0; i < plan.pairs; i++) plan.stacks += gr_lora_pair_at(t->lora, i)->experts > 1;
  plan.fill = (double)plan.tokens / ((double)plan.windows * t->window);
  gr_train_event event = {
    .kind = GR_EVENT_PLAN, .plan = &plan, .step = t->state.step, .steps_total = t->steps_total, .memory_bytes = t->memory.peak
  };
  gr_trainer_emit(t, &event);
}

static int64_t most_rank(const gr_lora_pair *p) { return p->in < p->out ? p->in : p->out; }

static void note_ranks(gr_trainer *t)
{
  const gr_lora_pair *first = NULL;
  size_t n = 0;
  for (size_t i = 0; i < gr_lora_pair_count(t->lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(t->lora, i);
    if (p->rank >= t->o.lora_r) continue;
    if (!first) first = p;
    n++;
  }
  if (first)
    gr_trainer_note(t, "rank %lld is more than %zu of the tensors allow: %s, which is %lld x %lld, has rank %lld, and counts alpha / %lld",
                    (long long)t->o.lora_r, n, first->name, (long long)first->in, (long long)first->out, (long long)first->rank,
                    (long long)first->rank);
}

/* The ranks of a file, which are what they are, judged as those of a fresh adapter: what none of its tensors allows is refused. */
static gr_status check_ranks(gr_trainer *t, gr_error *e)
{
  const gr_lora_pair *first = NULL;
  size_t n = 0, pairs = gr_lora_pair_count(t->lora);
  for (size_t i = 0; i < pairs; i++) {
    const gr_lora_pair *p = gr_lora_pair_at(t->lora, i);
    if (p->rank <= most_rank(p)) continue;
    if (!first) first = p;
    n++;
  }
  if (!first) return GR_OK;
  if (n == pairs)
    return gr_fail(
        e, GR_ERR_MISMATCH,
        "%s has rank %lld on %s, which is %lld x %lld and allows %lld, and no tensor of it allows what it has: begin with a fresh "
        "adapter, --lora-r %lld or less",
        t->o.init_adapter, (long long)first->rank, first->name, (long long)first->in, (long long)first->out, (long long)most_rank(first),
        (long long)most_rank(first));
  gr_trainer_note(t, "the rank is more than %zu of the tensors allow: %s, which is %lld x %lld, has rank %lld, where %lld would do as much",
                  n, first->name, (long long)first->in, (long long)first->out, (long long)first->rank, (long long)most_rank(first));
  return GR_OK;
}

static gr_status open_adapter(gr_trainer *t, gr_error *e)
{
  gr_memory_give_back();
  size_t before = gr_memory_anonymous();
  GR_TRY(gr_trainer_make_lora(t, t->o.lora_r, &t->lora, e));
  size_t after = gr_memory_anonymous();
  t->lora_resident = after > before ? after - before : 0;
  if (!t->o.init_adapter) {
    note_ranks(t);
    return GR_OK;
  }
  gr_trainer_note(t, "going on with %s: its %zu tensors, ranks and alpha, whatever the options say", t->o.init_adapter,
                  gr_lora_pair_count(t->lora));
  return check_ranks(t, e);
}

static gr_status open_all(gr_trainer *t, gr_error *e)
{
  const gr_train_options *o = &t->o;
  uint64_t newest = 0;
  int64_t micro_batch = 0;
  GR_TRY(gr_train_options_check(o, e));
  if (!t->setup.plan_only) GR_TRY(check_output(t, &newest, e));
  else if (o->output && *o->output) GR_TRY(gr_output_check(o->output, e));
  GR_TRY(gr_trainer_choose_window(t, e));
  GR_TRY(open_adapter(t, e));
  GR_TRY(gr_trainer_open_data(t, e));
  GR_TRY(gr_trainer_count_steps(t, e));
  if (t->resuming) {
    char *path = gr_checkpoint_path(o->output, newest);
    if (!path) return gr_fail_memory(e, strlen(o->output));
    micro_batch = gr_checkpoint_peek(path, "micro_batch_size", 0);
    gr_free(path);
  }
  GR_TRY(gr_trainer_fit(t, micro_batch, e));
  t->adamw = (gr_adamw){ .beta1 = o->adam_beta1, .beta2 = o->adam_beta2, .eps = o->adam_epsilon, .weight_decay = o->weight_decay };
  gr_schedule_from_name(o->lr_scheduler_type, &t->schedule);
  if (!t->setup.plan_only) {
    GR_TRY(identify(t, e));
    GR_TRY(make_state(t, e));
    if (t->resuming) GR_TRY(resume(t, newest, e));
    else if (o->resume) GR_TRY(resume_nothing(t, e));
    gr_trainer_note_fallen(t);
    check_room(t);
  }
  emit_plan(t);
  return GR_OK;
}

gr_status gr_trainer_open(gr_trainer **out, const gr_trainer_setup *setup, gr_error *e)
{
  *out = NULL;
  gr_trainer *t = gr_calloc(1, sizeof *t);
  if (!t) return gr_fail_memory(e, sizeof *t);
  t->setup = *setup;
  t->o = *setup->options;
  t->model = setup->model;
  t->packed_epoch = SIZE_MAX;
  gr_status s = open_all(t, e);
  if (s != GR_OK) {
    gr_trainer_close(t);
    return s;
  }
  *out = t;
  return GR_OK;
}

void gr_trainer_close(gr_trainer *t)
{
  if (!t) return;
  gr_metrics_close(t->metrics);
  gr_heldout_close(&t->heldout);
  gr_step_free(t->step);
  gr_step_free(t->eval_step);
  gr_lora_free(t->lora);
  gr_dataset_free(t->data);
  gr_dataset_free(t->heldout_data);
  gr_template_free(t->chat_template);
  gr_packing_free(&t->packing);
  gr_buf_free(&t->geometry);
  gr_free(t->train);
  gr_free(t->held);
  gr_free(t->epochs);
  gr_free(t->recompute);
  gr_free(t->state.m);
  gr_free(t->state.v);
  gr_free(t->state.best);
  gr_free(t->touched);
  gr_output_lock_free(t->lock);
  gr_free(t);
}
