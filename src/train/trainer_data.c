/* From files to optimizer steps: samples, the split, windows, epochs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "train/trainer_impl.h"

enum { STREAM_SPLIT = 1, STREAM_SHUFFLE = 2 }; /* uses of the seed */
enum { WINDOW_MAX = 2048 };                    /* unless asked for */

size_t gr_trainer_batch(const gr_trainer *t) { return (size_t)(t->o.batch_size * t->o.gradient_accumulation_steps); }

/* ---- samples ---- */

gr_status gr_trainer_choose_window(gr_trainer *t, gr_error *e)
{
  int32_t context = gr_model_hparams(t->model)->context;
  int64_t window = t->o.window > 0 ? t->o.window : context < WINDOW_MAX ? context : WINDOW_MAX;
  if (window < 2) return gr_fail(e, GR_ERR_USAGE, "the model's context of %d tokens is no window to train in: give one with -c", context);
  if (window > context && t->o.strict)
    return gr_fail(e, GR_ERR_USAGE, "the window of %lld tokens is longer than the model's context of %d: give -c %d", (long long)window,
                   context, context);
  if (window > context)
    gr_trainer_note(t, "the window of %lld tokens is longer than the model's context of %d: positions beyond it are new to the model",
                    (long long)window, context);
  t->o.window = t->window = (int32_t)window;
  return GR_OK;
}

static gr_status data_options(const gr_trainer *t, gr_data_options *o, gr_error *e)
{
  static const char *const policies[] = { [GR_OVERLONG_TRUNCATE] = "truncate", [GR_OVERLONG_DROP] = "drop", [GR_OVERLONG_SPLIT] = "split" };
  *o = (gr_data_options){ .tokenizer = gr_model_tokenizer(t->model),
                          .chat_template = t->chat_template,
                          .train_on_inputs = t->o.train_on_inputs,
                          .parse_special = t->o.parse_special,
                          .window = t->window };
  if (!gr_data_format_from_name(t->o.format, &o->format))
    return gr_fail(e, GR_ERR_USAGE, "there is no data format '%s'; graft data --help lists them", t->o.format);
  for (int i = 0; i <= GR_OVERLONG_SPLIT; i++)
    if (strcmp(policies[i], t->o.overlong) == 0) {
      o->overlong = (gr_overlong)i;
      return GR_OK;
    }
  return gr_fail(e, GR_ERR_USAGE, "overlong '%s' is not one of truncate, drop, split", t->o.overlong);
}

static gr_status read_data(gr_trainer *t, const gr_string_list *paths, gr_dataset **d, gr_error *e)
{
  gr_data_options o;
  GR_TRY(data_options(t, &o, e));
  for (size_t i = 0; i < paths->n; i++) GR_TRY(gr_dataset_add(d, paths->items[i], &o, e));
  for (const char *notes = gr_dataset_notes(*d); *notes;) {
    int n = (int)strcspn(notes, "\n");
    gr_trainer_note(t, "%.*s", n, notes);
    notes += n + (notes[n] == '\n');
  }
  GR_TRY(gr_dataset_check(*d, e));
  return t->o.strict ? gr_dataset_check_strict(*d, e) : GR_OK;
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

/* Records that have samples, in an order of the seed's; all pieces of one stay on its side. */
static void split_records(gr_trainer *t, struct keyed *order, uint8_t *held, size_t n)
{
  size_t records = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t record = gr_dataset_at(t->data, i)->record;
    if (i && record == gr_dataset_at(t->data, i - 1)->record) continue;
    order[records++] = (struct keyed){ gr_random_u64((uint64_t)t->o.seed, STREAM_SPLIT, record), i };
  }
  qsort(order, records, sizeof *order, by_key);
  size_t want = t->heldout_data ? 0 : (size_t)floor(t->o.val_split * (double)records + 0.5);
  if (want >= records) want = records - 1;
  for (size_t i = 0; i < want; i++)
    for (size_t k = order[i].index; k < n && gr_dataset_at(t->data, k)->record == gr_dataset_at(t->data, order[i].index)->record; k++)
      held[k] = 1;
  for (size_t i = 0; i < n; i++) {
    if (held[i]) t->held[t->n_held++] = i;
    else t->train[t->n_train++] = i;
  }
}

static gr_status split(gr_trainer *t, gr_error *e)
{
  size_t n = gr_dataset_count(t->data);
  if (n == 0) return gr_fail(e, GR_ERR_FORMAT, "%s holds no sample to train on", t->o.data.items[0]);
  struct keyed *order = gr_calloc(n, sizeof *order);
  uint8_t *held = gr_calloc(n, 1);
  t->train = gr_calloc(n, sizeof *t->train);
  t->held = gr_calloc(n, sizeof *t->held);
  bool ok = order && held && t->train && t->held;
  if (ok) split_records(t, order, held, n);
  gr_free(order);
  gr_free(held);
  return ok ? GR_OK : gr_fail_memory(e, n * sizeof *t->train);
}

/* A held-out loss over what was trained on tells nothing. */
static gr_status note_shared(gr_trainer *t, gr_error *e)
{
  size_t shared;
  const gr_sample_list trained = { t->data, t->train, t->n_train };
  const gr_sample_list held = { t->heldout_data ? t->heldout_data : t->data, t->held, t->n_held };
  GR_TRY(gr_dataset_shared(&trained, &held, &shared, e));
  if (!shared) return GR_OK;
  if (t->o.strict)
    return gr_fail(e, GR_ERR_MISMATCH, "--strict: %zu of the %zu held-out samples are in the training data too", shared, t->n_held);
  gr_trainer_note(
      t,
      "%zu of the %zu held-out samples are in the training data too: of them, the held-out loss tells how well they are learned by "
      "heart",
      shared, t->n_held);
  return GR_OK;
}

gr_status gr_trainer_open_data(gr_trainer *t, gr_error *e)
{
  if (t->o.data.n == 0) return gr_fail(e, GR_ERR_USAGE, "give the training data with -d FILE");
  bool builtin = false;
  GR_TRY(gr_template_from_gguf(&t->chat_template, gr_model_file(t->model), NULL, &builtin, e));
  GR_TRY(read_data(t, &t->o.data, &t->data, e));
  if (t->o.val_file.n) GR_TRY(read_data(t, &t->o.val_file, &t->heldout_data, e));
  gr_data_format format = gr_dataset_format(t->data);
  if (builtin && format != GR_DATA_TEXT && format != GR_DATA_PLAIN)
    gr_trainer_note(t, "the model has no chat template: conversations are written by %s", gr_template_name(t->chat_template));
  GR_TRY(split(t, e));
  if (t->heldout_data) {
    size_t n = gr_dataset_count(t->heldout_data), *all = gr_calloc(n, sizeof *all);
    if (!all) return gr_fail_memory(e, n * sizeof *all);
    for (size_t i = 0; i < n; i++) all[i] = i;
    gr_free(t->held);
    t->held = all;
    t->n_held = n;
  }
  if (!t->n_held && t->o.early_stopping_patience > 0)
    return gr_fail(e, GR_ERR_USAGE, "early stopping needs held-out data: give --val-file, or a larger --val-split");
  if (!t->n_held) gr_trainer_note(t, "there is no held-out data: nothing will tell whether the adapter learns or memorises");
  return t->n_held ? note_shared(t, e) : GR_OK;
}

/* ---- windows and steps ---- */

gr_status gr_trainer_pack_epoch(const gr_trainer *t, size_t epoch, gr_packing *p, gr_error *e)
{
  struct keyed *order = gr_calloc(t->n_train, sizeof *order);
  size_t *indices = gr_calloc(t->n_train, sizeof *indices);
  gr_status s = order && indices ? GR_OK : gr_fail_memory(e, t->n_train * sizeof *order);
  if (s == GR_OK) {
    for (size_t i = 0; i < t->n_train; i++)
      order[i] = (struct keyed){ gr_random_u64((uint64_t)t->o.seed, STREAM_SHUFFLE + ((uint64_t)epoch << 8), t->train[i]), t->train[i] };
    qsort(order, t->n_train, sizeof *order, by_key);
    for (size_t i = 0; i < t->n_train; i++) indices[i] = order[i].index;
    s = gr_pack(p, t->data, indices, t->n_train, t->window, t->o.packing, e);
  }
  gr_free(order);
  gr_free(indices);
  return s;
}

/* Windows that the steps of an epoch take: the last epoch may leave some. */
static size_t windows_used(const gr_trainer *t, const gr_epoch *epoch, size_t windows)
{
  size_t batch = gr_trainer_batch(t);
  return epoch->steps < windows / batch + 1 && epoch->steps * batch < windows ? epoch->steps * batch : windows;
}

/* Adds an epoch of which `share` is used, and no more steps than the run may still take. */
static gr_status add_epoch(gr_trainer *t, double share, size_t *cap, gr_error *e)
{
  gr_packing p = { 0 };
  GR_TRY(gr_trainer_pack_epoch(t, t->n_epochs, &p, e));
  size_t batch = gr_trainer_batch(t), used = (size_t)ceil(share * (double)p.n_windows - 1e-9), steps = (used + batch - 1) / batch;
  if (steps == 0) steps = 1;
  if (t->o.max_steps > 0 && t->steps_total + steps > (uint64_t)t->o.max_steps) steps = (size_t)((uint64_t)t->o.max_steps - t->steps_total);
  const gr_epoch epoch = { steps, p.n_windows };
  used = windows_used(t, &epoch, p.n_windows);
  for (size_t i = 0; i < used; i++)
    if (p.windows[i].tokens > t->longest) t->longest = p.windows[i].tokens;
  gr_packing_free(&p);
  if (!gr_grow((void **)&t->epochs, cap, t->n_epochs + 1, sizeof *t->epochs)) return gr_fail_memory(e, *cap * sizeof *t->epochs);
  t->epochs[t->n_epochs++] = epoch;
  t->steps_total += steps;
  return GR_OK;
}

/* Few steps learn little, however many samples they see: what the user asked for by number is not remarked on. */
static void note_steps(gr_trainer *t, bool warmup_asked)
{
  enum { FEW = 20 };
  unsigned long long steps = t->steps_total, warmup = t->warmup;
  if (steps < FEW && t->o.max_steps <= 0)
    gr_trainer_note(t, "only %llu optimizer step%s in all: lower --batch-size or -c, or raise --num-epochs", steps, steps == 1 ? "" : "s");
  if (warmup_asked && warmup >= steps)
    gr_trainer_note(t, "the rate rises over %llu steps and the run has %llu: it never comes to --learning-rate; lower --warmup-steps",
                    warmup, steps);
  else if (2 * warmup >= steps && steps >= FEW)
    gr_trainer_note(t, "the rate rises for %llu of the %llu steps: lower --warmup-steps or --warmup-ratio", warmup, steps);
}

/* The schedule needs the whole length of the run; packing is a matter of lengths, so every epoch is packed once here. */
gr_status gr_trainer_count_steps(gr_trainer *t, gr_error *e)
{
  size_t cap = 0;
  bool by_steps = t->o.max_steps > 0;
  while (by_steps ? t->steps_total < (uint64_t)t->o.max_steps : (double)t->n_epochs < t->o.num_epochs) {
    double left = by_steps ? 1 : t->o.num_epochs - (double)t->n_epochs;
    GR_TRY(add_epoch(t, left < 1 ? left : 1, &cap, e));
  }
  bool asked = t->o.warmup_steps >= 0;
  t->warmup = t->o.warmup_steps >= 0 ? (uint64_t)t->o.warmup_steps : (uint64_t)ceil(t->o.warmup_ratio * (double)t->steps_total);
  t->o.warmup_steps = (int64_t)t->warmup;
  note_steps(t, asked);
  return GR_OK;
}

gr_status gr_trainer_fullest_run(const gr_trainer *t, int32_t micro_batch, int32_t *tokens, gr_error *e)
{
  size_t batch = gr_trainer_batch(t), at_once = (size_t)micro_batch;
  *tokens = 0;
  for (size_t epoch = 0; epoch < t->n_epochs; epoch++) {
    gr_packing p = { 0 };
    GR_TRY(gr_trainer_pack_epoch(t, epoch, &p, e));
    size_t used = windows_used(t, &t->epochs[epoch], p.n_windows);
    for (size_t first = 0; first < used; first += batch) /* runs end with their step */
      for (size_t i = first; i < used && i < first + batch; i += at_once) {
        int32_t sum = 0;
        for (size_t k = i; k < used && k < first + batch && k < i + at_once; k++) sum += p.windows[k].tokens;
        if (sum > *tokens) *tokens = sum;
      }
    gr_packing_free(&p);
  }
  return GR_OK;
}

size_t gr_trainer_packing_bytes(const gr_trainer *t)
{
  size_t windows = 0;
  for (size_t i = 0; i < t->n_epochs; i++)
    if (t->epochs[i].windows > windows) windows = t->epochs[i].windows;
  return t->n_train * (sizeof(struct keyed) + 3 * sizeof(size_t)) + windows * sizeof(gr_window);
}

size_t gr_trainer_epoch_of(const gr_trainer *t, uint64_t step, uint64_t *within)
{
  size_t epoch = 0;
  for (*within = step; epoch + 1 < t->n_epochs && *within >= t->epochs[epoch].steps; epoch++) *within -= t->epochs[epoch].steps;
  return epoch;
}
