/* Before the first step. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "train/trainer_impl.h"

enum { STREAM_SPLIT = 1, STREAM_SHUFFLE = 2 }; /* uses of the seed */

void gr_trainer_emit(gr_trainer *t, gr_train_event *event)
{
  if (t->setup.on_event) t->setup.on_event(t->setup.ctx, event);
}

void gr_trainer_note(gr_trainer *t, const char *fmt, ...)
{
  char text[600];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  gr_train_event event = { .kind = GR_EVENT_NOTE, .text = text };
  gr_trainer_emit(t, &event);
}

size_t gr_trainer_batch(const gr_trainer *t) { return (size_t)(t->o->batch_size * t->o->gradient_accumulation_steps); }

/* ---- output ---- */

/* Tried before hours of work: can a file be made where the adapter will go? */
static gr_status check_output(const gr_train_options *o, gr_error *e)
{
  if (!o->output) return gr_fail(e, GR_ERR_USAGE, "give the adapter to write with -o FILE");
  if (gr_file_exists(o->output) && !o->overwrite && !o->resume)
    return gr_fail(e, GR_ERR_USAGE, "%s exists already: give another -o, --resume to go on with it, or --overwrite to replace it",
                   o->output);
  gr_file *probe = NULL;
  GR_TRY(gr_file_create(&probe, o->output, e));
  gr_file_abandon(probe);
  return GR_OK;
}

/* ---- data ---- */

static gr_status open_template(gr_trainer *t, gr_error *e)
{
  bool builtin = false;
  GR_TRY(gr_template_from_gguf(&t->chat_template, gr_model_file(t->model), NULL, &builtin, e));
  if (builtin) gr_trainer_note(t, "the model has no chat template: conversations are written as ChatML");
  return GR_OK;
}

static gr_status choose_window(gr_trainer *t, gr_error *e)
{
  int32_t context = gr_model_hparams(t->model)->context;
  int64_t window = t->o->window > 0 ? t->o->window : context < 2048 ? context : 2048;
  if (t->o->window == 0 || t->o->window < -1 || window < 2 || window > (1 << 24))
    return gr_fail(e, GR_ERR_USAGE, "a window of %lld tokens is not possible: give at least 2 with -c", (long long)t->o->window);
  if (window > context && t->o->strict)
    return gr_fail(e, GR_ERR_USAGE, "the window of %lld tokens is longer than the model's context of %d", (long long)window, context);
  if (window > context)
    gr_trainer_note(t, "the window of %lld tokens is longer than the model's context of %d: positions beyond it are new to the model",
                    (long long)window, context);
  t->window = (int32_t)window;
  return GR_OK;
}

static gr_status read_data(gr_trainer *t, const gr_string_list *paths, gr_dataset **d, gr_error *e)
{
  gr_data_options o = { .tokenizer = gr_model_tokenizer(t->model),
                        .chat_template = t->chat_template,
                        .train_on_inputs = t->o->train_on_inputs,
                        .window = t->window };
  if (!gr_data_format_from_name(t->o->format, &o.format))
    return gr_fail(e, GR_ERR_USAGE, "there is no data format '%s'; graft data --help lists them", t->o->format);
  static const char *const policies[] = { [GR_OVERLONG_TRUNCATE] = "truncate", [GR_OVERLONG_DROP] = "drop", [GR_OVERLONG_SPLIT] = "split" };
  int policy = -1;
  for (int i = 0; i <= GR_OVERLONG_SPLIT; i++)
    if (strcmp(policies[i], t->o->overlong) == 0) policy = i;
  if (policy < 0) return gr_fail(e, GR_ERR_USAGE, "overlong '%s' is not one of truncate, drop, split", t->o->overlong);
  o.overlong = (gr_overlong)policy;
  for (size_t i = 0; i < paths->n; i++) GR_TRY(gr_dataset_add(d, paths->items[i], &o, e));
  const char *notes = gr_dataset_notes(*d);
  while (*notes) {
    int n = (int)strcspn(notes, "\n");
    gr_trainer_note(t, "%.*s", n, notes);
    notes += n + (notes[n] == '\n');
  }
  return gr_dataset_check(*d, e);
}

struct keyed {
  uint64_t key;
  size_t index;
};

static int by_key(const void *a, const void *b)
{
  const struct keyed *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

/* Records in an order of their own; all pieces of one stay on its side. */
static gr_status split(gr_trainer *t, gr_error *e)
{
  size_t n = gr_dataset_count(t->data), records = 0;
  for (size_t i = 0; i < n; i++)
    if (gr_dataset_at(t->data, i)->record >= records) records = (size_t)gr_dataset_at(t->data, i)->record + 1;
  struct keyed *order = gr_calloc(records, sizeof *order);
  uint8_t *held = gr_calloc(records, 1);
  t->train = gr_calloc(n, sizeof *t->train);
  t->held = gr_calloc(n, sizeof *t->held);
  gr_status s = order && held && t->train && t->held ? GR_OK : gr_fail_memory(e, n * sizeof *t->train);
  if (s == GR_OK) {
    for (size_t i = 0; i < records; i++) order[i] = (struct keyed){ gr_random_u64((uint64_t)t->o->seed, STREAM_SPLIT, i), i };
    qsort(order, records, sizeof *order, by_key);
    size_t want = t->heldout_data ? 0 : (size_t)floor(t->o->val_split * (double)records + 0.5);
    if (want >= records) want = records - 1;
    for (size_t i = 0; i < want; i++) held[order[i].index] = 1;
    for (size_t i = 0; i < n; i++) {
      if (held[gr_dataset_at(t->data, i)->record]) t->held[t->n_held++] = i;
      else t->train[t->n_train++] = i;
    }
    if (t->n_train == 0) s = gr_fail(e, GR_ERR_FORMAT, "no sample is left to train on: lower --val-split, or give more data");
  }
  gr_free(order);
  gr_free(held);
  return s;
}

static gr_status open_data(gr_trainer *t, gr_error *e)
{
  if (t->o->data.n == 0) return gr_fail(e, GR_ERR_USAGE, "give the training data with -d FILE");
  GR_TRY(open_template(t, e));
  GR_TRY(read_data(t, &t->o->data, &t->data, e));
  if (t->o->val_file.n) GR_TRY(read_data(t, &t->o->val_file, &t->heldout_data, e));
  GR_TRY(split(t, e));
  if (!t->heldout_data) return GR_OK;
  t->n_held = gr_dataset_count(t->heldout_data);
  gr_free(t->held);
  t->held = gr_calloc(t->n_held, sizeof *t->held);
  if (!t->held) return gr_fail_memory(e, t->n_held * sizeof *t->held);
  for (size_t i = 0; i < t->n_held; i++) t->held[i] = i;
  return GR_OK;
}

/* ---- steps ---- */

gr_status gr_trainer_pack_epoch(gr_trainer *t, size_t epoch, gr_packing *p, gr_error *e)
{
  struct keyed *order = gr_calloc(t->n_train, sizeof *order);
  size_t *indices = gr_calloc(t->n_train, sizeof *indices);
  gr_status s = order && indices ? GR_OK : gr_fail_memory(e, t->n_train * sizeof *order);
  if (s == GR_OK) {
    for (size_t i = 0; i < t->n_train; i++)
      order[i] = (struct keyed){ gr_random_u64((uint64_t)t->o->seed, STREAM_SHUFFLE + ((uint64_t)epoch << 8), t->train[i]), t->train[i] };
    qsort(order, t->n_train, sizeof *order, by_key);
    for (size_t i = 0; i < t->n_train; i++) indices[i] = order[i].index;
    s = gr_pack(p, t->data, indices, t->n_train, t->window, t->o->packing, e);
  }
  gr_free(order);
  gr_free(indices);
  return s;
}

/* The schedule needs the whole length of the run; packing is a matter of lengths, so every epoch is packed once here. */
static gr_status count_steps(gr_trainer *t, gr_error *e)
{
  double epochs = t->o->max_steps > 0 ? 1e9 : t->o->num_epochs;
  size_t batch = gr_trainer_batch(t), cap = 0;
  for (size_t i = 0; (double)i < epochs && (t->o->max_steps <= 0 || t->steps_total < (uint64_t)t->o->max_steps); i++) {
    gr_packing p = { 0 };
    GR_TRY(gr_trainer_pack_epoch(t, i, &p, e));
    double share = epochs - (double)i < 1 ? epochs - (double)i : 1;
    size_t windows = (size_t)ceil(share * (double)p.n_windows - 1e-9), steps = (windows + batch - 1) / batch;
    gr_packing_free(&p);
    if (steps == 0) steps = 1;
    if (t->o->max_steps > 0 && t->steps_total + steps > (uint64_t)t->o->max_steps)
      steps = (size_t)((uint64_t)t->o->max_steps - t->steps_total);
    if (!gr_grow((void **)&t->epoch_steps, &cap, i + 1, sizeof *t->epoch_steps)) return gr_fail_memory(e, cap * sizeof *t->epoch_steps);
    t->epoch_steps[i] = steps;
    t->epochs = i + 1;
    t->steps_total += steps;
  }
  t->warmup = t->o->warmup_steps >= 0 ? (uint64_t)t->o->warmup_steps : (uint64_t)ceil(t->o->warmup_ratio * (double)t->steps_total);
  return GR_OK;
}

/* ---- adapter ---- */

static gr_status make_lora(gr_trainer *t, gr_error *e)
{
  const gr_train_options *o = t->o;
  if (o->init_adapter) return gr_lora_load(&t->lora, t->model, o->init_adapter, e);
  const gr_lora_options lo = { .rank = o->lora_r,
                               .alpha = o->lora_alpha,
                               .rslora = o->use_rslora,
                               .targets = o->target_modules.items,
                               .n_targets = o->target_modules.n,
                               .seed = (uint64_t)o->seed };
  return gr_lora_create(&t->lora, t->model, &lo, e);
}

/* ---- memory ---- */

static gr_status plan_steps(gr_trainer *t, bool recompute, gr_error *e)
{
  size_t layers = (size_t)gr_model_hparams(t->model)->layers;
  gr_step_free(t->step);
  t->step = NULL;
  if (!t->recompute) t->recompute = gr_alloc(layers);
  if (!t->recompute) return gr_fail_memory(e, layers);
  memset(t->recompute, recompute, layers);
  const gr_step_options so = { .tokens = t->window * t->micro_batch,
                               .train = true,
                               .dropout = (float)t->o->lora_dropout,
                               .seed = (uint64_t)t->o->seed,
                               .recompute = t->recompute,
                               .backends = t->setup.backends,
                               .n_backends = t->setup.n_backends,
                               .allow_ref = t->o->allow_ref };
  return gr_step_plan(&t->step, t->model, t->lora, &so, e);
}

static gr_status plan_eval(gr_trainer *t, gr_error *e)
{
  if (t->n_held == 0) return GR_OK;
  const gr_step_options so = {
    .tokens = t->window, .backends = t->setup.backends, .n_backends = t->setup.n_backends, .allow_ref = t->o->allow_ref
  };
  return gr_step_plan(&t->eval_step, t->model, t->lora, &so, e);
}

/* "900M", "6G", "123456" */
static gr_status parse_size(const char *text, size_t *bytes, gr_error *e)
{
  static const char units[] = "KMGT";
  char *end;
  double v = strtod(text, &end);
  const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
  if (end == text || !(v > 0) || (*end && !unit) || (unit && end[1] && strcmp(end + 1, "B") != 0 && strcmp(end + 1, "iB") != 0))
    return gr_fail(e, GR_ERR_USAGE, "a size is a number with K, M, G or T, not '%s'", text);
  for (const char *u = units; unit && u <= unit; u++) v *= 1024;
  *bytes = v < 1e18 ? (size_t)v : (size_t)1e18;
  return GR_OK;
}

/* What stays resident besides the plans: adapter, moments, best values; the data; the program itself. */
static size_t other_bytes(const gr_trainer *t)
{
  size_t values = gr_lora_parameters(t->lora) * sizeof(float), fixed = (size_t)8 << 20;
  size_t data = gr_dataset_bytes(t->data) + (t->heldout_data ? gr_dataset_bytes(t->heldout_data) : 0);
  return values * (t->n_held ? 4 : 3) + data + fixed;
}

static size_t total_bytes(const gr_trainer *t)
{
  return other_bytes(t) + gr_step_bytes(t->step) + (t->eval_step ? gr_step_bytes(t->eval_step) : 0);
}

static size_t machine_bytes(void)
{
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : SIZE_MAX;
}

/* Halves the window until recompute fits, to name settings that do. */
static gr_status refuse(gr_trainer *t, size_t limit, gr_error *e)
{
  size_t wanted = t->predicted_bytes;
  int32_t window = t->window;
  for (t->micro_batch = 1; t->window >= 16; t->window /= 2) {
    GR_TRY(plan_steps(t, true, e));
    gr_step_free(t->eval_step);
    t->eval_step = NULL;
    GR_TRY(plan_eval(t, e));
    if (total_bytes(t) > limit) continue;
    return gr_fail(e, GR_ERR_MEMORY,
                   "this run needs %.0f MB and %.0f MB are allowed: use --gradient-checkpointing on --micro-batch-size 1%s (%.0f MB)",
                   (double)wanted / 1e6, (double)limit / 1e6, t->window < window ? " and a window of" : "", (double)total_bytes(t) / 1e6);
  }
  return gr_fail(e, GR_ERR_MEMORY,
                 "this run needs %.0f MB and %.0f MB are allowed; no window fits: lower --lora-r or choose fewer target modules",
                 (double)wanted / 1e6, (double)limit / 1e6);
}

static gr_status fit_memory(gr_trainer *t, gr_error *e)
{
  size_t limit = machine_bytes();
  if (t->o->max_memory) GR_TRY(parse_size(t->o->max_memory, &limit, e));
  const char *mode = t->o->gradient_checkpointing;
  bool on = strcmp(mode, "on") == 0, fit = strcmp(mode, "fit") == 0;
  if (!on && !fit && strcmp(mode, "off") != 0)
    return gr_fail(e, GR_ERR_USAGE, "gradient_checkpointing '%s' is not one of on, off, fit", mode);
  t->micro_batch = t->o->micro_batch_size > 0 ? (int32_t)t->o->micro_batch_size : 1;
  GR_TRY(plan_eval(t, e));
  GR_TRY(plan_steps(t, on, e));
  t->predicted_bytes = total_bytes(t);
  if (t->predicted_bytes > limit && fit) {
    GR_TRY(plan_steps(t, true, e));
    t->predicted_bytes = total_bytes(t);
    on = t->predicted_bytes <= limit;
  }
  return t->predicted_bytes <= limit ? GR_OK : refuse(t, limit, e);
}

/* ---- identity, resume ---- */

/* The options that change results. Where the run happens and what it reports may differ between a run and its resumption. */
static gr_status describe_geometry(gr_trainer *t, gr_error *e)
{
  static const char *const free_options[] = { "model",      "data",         "output",           "overwrite",
                                              "resume",     "init_adapter", "micro_batch_size", "val_file",
                                              "strict",     "save_steps",   "save_total_limit", "gradient_checkpointing",
                                              "max_memory", "threads",      "logging_steps",    "report_to",
                                              "window",     "num_epochs",   "max_steps" };
  gr_buf all = { 0 };
  gr_train_options_dump(t->o, &all);
  for (char *p = all.data; p && *p;) {
    size_t n = strcspn(p, "\n"), key = strcspn(p, ":");
    bool skip = false;
    for (size_t i = 0; i < sizeof free_options / sizeof *free_options; i++)
      skip |= strlen(free_options[i]) == key && strncmp(p, free_options[i], key) == 0;
    if (!skip) gr_buf_append(&t->geometry, p, n + 1);
    p += n + (p[n] == '\n');
  }
  gr_buf_printf(&t->geometry, "window: %d\nmicro_batch: %d\nparameters: %zu\n", t->window, t->micro_batch, gr_lora_parameters(t->lora));
  bool failed = all.failed || t->geometry.failed;
  gr_buf_free(&all);
  return failed ? gr_fail_memory(e, t->geometry.len) : GR_OK;
}

static gr_status make_state(gr_trainer *t, gr_error *e)
{
  size_t n = gr_lora_parameters(t->lora);
  t->state.m = gr_calloc(n, sizeof(float));
  t->state.v = gr_calloc(n, sizeof(float));
  t->state.best = t->n_held ? gr_calloc(n, sizeof(float)) : NULL;
  t->state.best_loss = HUGE_VAL;
  t->touched = gr_calloc(2 * gr_lora_pair_count(t->lora), 1);
  if (!t->state.m || !t->state.v || !t->touched || (t->n_held && !t->state.best)) return gr_fail_memory(e, n * sizeof(float));
  if (t->n_held == 0) return GR_OK;
  GR_TRY(gr_heldout_open(&t->heldout, t->heldout_data ? t->heldout_data : t->data, t->held, t->n_held, t->window, e));
  t->state.n_baseline = t->n_held;
  return GR_OK;
}

static gr_status resume(gr_trainer *t, gr_error *e)
{
  uint64_t *steps = NULL;
  size_t n = 0;
  GR_TRY(gr_checkpoint_list(t->o->output, &steps, &n, e));
  uint64_t last = n ? steps[n - 1] : 0;
  gr_free(steps);
  if (n == 0) {
    gr_trainer_note(t, "there is no checkpoint beside %s: the run begins at the beginning", t->o->output);
    return GR_OK;
  }
  if (t->n_held) {
    t->heldout.baseline = gr_calloc(t->n_held, sizeof(double));
    if (!t->heldout.baseline) return gr_fail_memory(e, t->n_held * sizeof(double));
    t->state.baseline = t->heldout.baseline;
  }
  char *path = gr_checkpoint_path(t->o->output, last);
  if (!path) return gr_fail_memory(e, strlen(t->o->output));
  gr_status s = gr_checkpoint_load(path, t->lora, &t->state, &t->identity, e);
  if (s == GR_OK)
    gr_trainer_note(t, "resumed from %s, after step %llu of %llu", path, (unsigned long long)t->state.step,
                    (unsigned long long)t->steps_total);
  gr_free(path);
  return s;
}

/* ---- all of it ---- */

static void emit_plan(gr_trainer *t)
{
  bool recompute = t->recompute && t->recompute[0];
  gr_train_event event = { .kind = GR_EVENT_PLAN,
                           .steps_total = t->steps_total,
                           .step = t->state.step,
                           .samples = t->n_train,
                           .heldout = t->n_held,
                           .parameters = gr_lora_parameters(t->lora),
                           .window = t->window,
                           .micro_batch = t->micro_batch,
                           .recompute = recompute,
                           .memory_bytes = t->predicted_bytes };
  gr_packing p = { 0 };
  gr_error ignored = { 0 };
  if (gr_trainer_pack_epoch(t, 0, &p, &ignored) == GR_OK) {
    event.windows = p.n_windows;
    event.fill = p.fill;
  }
  gr_packing_free(&p);
  gr_trainer_emit(t, &event);
}

static gr_status open_all(gr_trainer *t, gr_error *e)
{
  const gr_train_options *o = t->o;
  GR_TRY(gr_train_options_check(o, e));
  GR_TRY(check_output(o, e));
  GR_TRY(choose_window(t, e));
  GR_TRY(make_lora(t, e));
  GR_TRY(open_data(t, e));
  GR_TRY(count_steps(t, e));
  GR_TRY(fit_memory(t, e));
  t->adamw = (gr_adamw){ .beta1 = o->adam_beta1, .beta2 = o->adam_beta2, .eps = o->adam_epsilon, .weight_decay = o->weight_decay };
  gr_schedule_from_name(o->lr_scheduler_type, &t->schedule);
  GR_TRY(gr_base_hash(gr_model_file(t->model), t->setup.pool, t->identity.base_hash, e));
  GR_TRY(describe_geometry(t, e));
  t->identity.geometry = t->geometry.data;
  t->identity.data_hash = gr_dataset_hash(t->data) ^ (t->heldout_data ? gr_dataset_hash(t->heldout_data) * 3 : 0);
  t->identity.steps_total = t->steps_total;
  GR_TRY(make_state(t, e));
  if (o->resume) GR_TRY(resume(t, e));
  emit_plan(t);
  return GR_OK;
}

gr_status gr_trainer_open(gr_trainer **out, const gr_trainer_setup *setup, gr_error *e)
{
  *out = NULL;
  gr_trainer *t = gr_calloc(1, sizeof *t);
  if (!t) return gr_fail_memory(e, sizeof *t);
  t->setup = *setup;
  t->o = setup->options;
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
  gr_free(t->recompute);
  gr_free(t->state.m);
  gr_free(t->state.v);
  gr_free(t->state.best);
  gr_free(t->epoch_steps);
  gr_free(t->touched);
  gr_free(t);
}
