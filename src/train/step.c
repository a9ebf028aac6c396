#include "train/step.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/mutant.h"
#include "base/numa.h"

enum { BAD_MAX = 8 };

/* Values of the gradient that one launch has made. */
typedef struct gradient_part {
  float *to;
  const float *from;
  size_t n;
} gradient_part;

struct gr_step {
  const gr_model *model;
  gr_lora *lora;
  gr_step_options o;
  gr_model_graph mg;
  gr_tensor *seed;      /* [n] weights: the gradient of the weighted sum to nll */
  gr_tensor **grads;    /* [2 * pairs] a0, b0, a1, b1, ... */
  gradient_part *parts; /* [2 * pairs] */
  gr_plan *plan;
  gr_step_sums sums;
  size_t bad[BAD_MAX], n_bad; /* samples of the last run whose nll is not finite; n_bad counts beyond BAD_MAX */
  /* Host side of the inputs, for one run. */
  int32_t *ids, *positions, *segments, *labels, *keys;
  float *weights, *tables, *nll; /* tables: room for what is made of positions */
  float *gradient;               /* [parameters of the adapter] */
  float *piece;                  /* the largest single gradient, when it must be read from a device */
  size_t input_bytes, gradient_floats, piece_floats;
  size_t used; /* tokens of the present run */
};

/* ---- planning ---- */

static gr_status build_backward(gr_step *s, gr_error *e)
{
  size_t n = s->mg.n_pairs;
  gr_tensor **wrt = gr_calloc(2 * n, sizeof(gr_tensor *));
  s->grads = gr_calloc(2 * n, sizeof(gr_tensor *));
  s->parts = gr_calloc(2 * n, sizeof *s->parts);
  if (!wrt || !s->grads || !s->parts) {
    gr_free(wrt);
    return gr_fail_memory(e, 2 * n * sizeof(gr_tensor *));
  }
  for (size_t i = 0; i < n; i++) {
    wrt[2 * i] = s->mg.a[i];
    wrt[2 * i + 1] = s->mg.b[i];
  }
  s->seed = gr_graph_leaf(s->mg.graph, GR_LEAF_INPUT, GR_F32, s->mg.nll->ne, s->mg.nll->dim, NULL, "weights");
  gr_status status =
      s->seed ? gr_graph_backward(s->mg.graph, s->mg.nll, s->seed, wrt, 2 * n, s->grads, e) : gr_graph_status(s->mg.graph, e);
  for (size_t i = 0; i < 2 * n && status == GR_OK; i++)
    if (!s->grads[i])
      status = gr_fail(e, GR_ERR_MISMATCH, "the loss does not reach %s: it would never be trained; leave it out of the target modules",
                       wrt[i]->name);
  gr_free(wrt);
  return status;
}

static gr_status make_plan(gr_step *s, gr_error *e)
{
  size_t n = s->o.train ? 2 * s->mg.n_pairs : 0;
  gr_tensor **outputs = gr_calloc(n + 1, sizeof(gr_tensor *));
  if (!outputs) return gr_fail_memory(e, n * sizeof(gr_tensor *));
  outputs[0] = s->mg.nll;
  if (n) memcpy(outputs + 1, s->grads, n * sizeof(gr_tensor *));
  const gr_plan_options options = {
    .backends = s->o.backends,
    .n_backends = s->o.n_backends,
    .prefer = s->o.prefer,
    .prefer_ctx = s->o.prefer_ctx,
    .recompute = s->o.recompute,
    .n_layers = (size_t)gr_model_hparams(s->model)->layers,
    .no_fusion = s->o.no_fusion,
    .allow_ref = s->o.allow_ref,
    .poison = s->o.poison,
    .profile = s->o.profile,
  };
  gr_status status = gr_plan_create(&s->plan, s->mg.graph, outputs, n + 1, &options, e);
  gr_free(outputs);
  return status;
}

static size_t values_of(const gr_tensor *t) { return (size_t)(t->ne[0] * t->ne[1] * t->ne[2]); }

static void size_buffers(gr_step *s)
{
  size_t n = (size_t)s->o.tokens;
  s->input_bytes = n * (6 * sizeof(int32_t) + (2 + gr_model_position_floats(s->model)) * sizeof(float));
  if (!s->o.train) return;
  s->gradient_floats = gr_lora_parameters(s->lora);
  for (size_t i = 0; i < 2 * s->mg.n_pairs; i++) {
    size_t count = values_of(s->grads[i]);
    if (count > s->piece_floats) s->piece_floats = count;
  }
}

gr_status gr_step_plan(gr_step **out, const gr_model *m, gr_lora *lora, const gr_step_options *o, gr_error *e)
{
  *out = NULL;
  gr_step *s = gr_calloc(1, sizeof *s);
  if (!s) return gr_fail_memory(e, sizeof *s);
  s->model = m;
  s->lora = lora;
  s->o = *o;
  if (!o->train) s->o.dropout = 0;
  const gr_adapter_use use = { .lora = lora, .scale = 1, .train = o->train };
  const gr_build build = { .tokens = o->tokens,
                           .loss = true,
                           .adapters = lora ? &use : o->adapters,
                           .n_adapters = lora ? 1 : o->n_adapters,
                           .dropout = s->o.dropout };
  gr_status status = gr_model_build(m, &build, &s->mg, e);
  if (status == GR_OK && o->train) status = build_backward(s, e);
  if (status == GR_OK) status = make_plan(s, e);
  if (status != GR_OK) {
    gr_step_free(s);
    return status;
  }
  size_buffers(s);
  *out = s;
  return GR_OK;
}

size_t gr_step_bytes(const gr_step *s)
{
  size_t bytes = s->input_bytes + (s->gradient_floats + s->piece_floats) * sizeof(float);
  for (size_t i = 0; i < s->o.n_backends; i++) bytes += gr_plan_bytes(s->plan, i);
  return bytes;
}

gr_status gr_step_allocate(gr_step *s, gr_error *e)
{
  if (s->ids) return GR_OK;
  size_t n = (size_t)s->o.tokens;
  int32_t *words = gr_calloc(s->input_bytes, 1);
  if (s->gradient_floats) {
    s->gradient = gr_calloc(s->gradient_floats, sizeof(float));
    s->piece = gr_calloc(s->piece_floats, sizeof(float));
  }
  if (!words || (s->gradient_floats && (!s->gradient || !s->piece))) {
    gr_free(words);
    return gr_fail_memory(e, s->input_bytes + s->gradient_floats * sizeof(float));
  }
  if (s->gradient) gr_numa_spread(s->o.backends[s->o.n_backends - 1]->pool, s->gradient, s->gradient_floats * sizeof(float));
  s->ids = words;
  s->positions = s->ids + n;
  s->segments = s->positions + n;
  s->labels = s->segments + n;
  s->keys = s->labels + n;
  s->weights = (float *)(s->keys + 2 * n);
  s->nll = s->weights + n;
  s->tables = s->nll + n;
  return gr_plan_allocate(s->plan, e);
}

void gr_step_free(gr_step *s)
{
  if (!s) return;
  gr_plan_free(s->plan);
  gr_model_graph_free(&s->mg);
  gr_free(s->grads);
  gr_free(s->parts);
  gr_free(s->ids);
  gr_free(s->gradient);
  gr_free(s->piece);
  gr_free(s);
}

gr_plan *gr_step_plan_of(gr_step *s) { return s->plan; }
const gr_step_sums *gr_step_sums_of(const gr_step *s) { return &s->sums; }
const float *gr_step_gradient(const gr_step *s) { return s->gradient; }

size_t gr_step_bad_samples(const gr_step *s, size_t *bad, size_t most)
{
  for (size_t i = 0; i < most && i < s->n_bad && i < BAD_MAX; i++) bad[i] = s->bad[i];
  return s->n_bad;
}

enum { PIECE = 1 << 16 };

static void clear_piece(void *ctx, size_t job, int thread)
{
  (void)thread;
  const gr_step *s = ctx;
  size_t begin = job * PIECE, n = s->gradient_floats - begin < PIECE ? s->gradient_floats - begin : PIECE;
  memset(s->gradient + begin, 0, n * sizeof(float));
}

/* The gradient is as large as the adapter: one thread would pass over it at half of what memory gives. */
static gr_pool *pool_of(const gr_step *s) { return s->o.backends[s->o.n_backends - 1]->pool; }

void gr_step_clear(gr_step *s)
{
  s->sums = (gr_step_sums){ 0 };
  if (s->gradient && !GR_MUTANT(step_no_clear)) gr_pool_run(pool_of(s), (s->gradient_floats + PIECE - 1) / PIECE, clear_piece, s);
}

/* ---- running ---- */

/* Row t of a sample predicts token t + 1; its last row predicts nothing. */
static void fill_sample(gr_step *s, const gr_sample *x, size_t index, int32_t segment)
{
  for (int32_t t = 0; t < x->n; t++) {
    size_t at = s->used++;
    bool last = t + 1 == x->n, trained = !last && x->weights[t + 1] > 0;
    s->ids[at] = x->ids[t];
    s->positions[at] = GR_MUTANT(step_positions_go_on) ? (int32_t)at : t;
    s->segments[at] = GR_MUTANT(step_one_segment) ? 0 : segment;
    s->labels[at] = trained ? x->ids[t + !GR_MUTANT(step_labels_not_shifted)] : -1;
    s->weights[at] = trained ? x->weights[t + 1] : 0;
    s->keys[2 * at] = (int32_t)index;
    s->keys[2 * at + 1] = t;
  }
}

static gr_status fill(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, bool score, gr_error *e)
{
  s->used = 0;
  for (size_t i = 0; i < n; i++) {
    const gr_sample *x = gr_dataset_at(d, indices[i]);
    if (s->used + (size_t)x->n > (size_t)s->o.tokens)
      return gr_fail(e, GR_ERR_MISMATCH, "samples of more than %d tokens do not fit one run", s->o.tokens);
    size_t from = s->used;
    fill_sample(s, x, indices[i], (int32_t)i);
    for (int32_t t = 0; score && t + 1 < x->n; t++) s->labels[from + (size_t)t] = x->ids[t + 1];
  }
  if (s->used == 0) return gr_fail(e, GR_ERR_USAGE, "a run needs at least one token");
  return GR_OK;
}

static gr_status write_inputs(gr_step *s, uint64_t step, gr_error *e)
{
  size_t words = s->used * sizeof(int32_t);
  const gr_model_graph *g = &s->mg;
  GR_TRY(gr_plan_set_dim(s->plan, GR_DIM_TOKENS, (int64_t)s->used, e));
  GR_TRY(gr_plan_write(s->plan, g->ids, s->ids, words, e));
  GR_TRY(gr_model_write_positions(s->model, g, s->plan, s->positions, s->used, s->tables, e));
  GR_TRY(gr_plan_write(s->plan, g->segments, s->segments, words, e));
  GR_TRY(gr_plan_write(s->plan, g->labels, s->labels, words, e));
  if (s->seed) GR_TRY(gr_plan_write(s->plan, s->seed, s->weights, words, e));
  if (!g->dropout_keys) return GR_OK;
  const int32_t run[4] = { (int32_t)(uint32_t)s->o.seed, (int32_t)(uint32_t)(s->o.seed >> 32), (int32_t)(uint32_t)step,
                           (int32_t)(uint32_t)(step >> 32) };
  GR_TRY(gr_plan_write(s->plan, g->dropout_run, run, sizeof run, e));
  return gr_plan_write(s->plan, g->dropout_keys, s->keys, 2 * words, e);
}

static gr_status launch(gr_step *s, bool (*stop)(void *), void *ctx, gr_error *e)
{
  size_t cursor = 0, n = gr_plan_launches(s->plan);
  while (cursor < n) {
    if (stop && stop(ctx)) return gr_fail(e, GR_ERR_CANCELLED, "stopped");
    GR_TRY(gr_plan_run(s->plan, &cursor, stop ? 1 : SIZE_MAX, e));
  }
  return GR_OK;
}

static void find_bad(gr_step *s, const size_t *indices)
{
  int32_t last = -1;
  s->n_bad = 0;
  for (size_t t = 0; t < s->used; t++) {
    if (isfinite(s->nll[t]) || s->segments[t] == last) continue;
    last = s->segments[t];
    if (s->n_bad < BAD_MAX) s->bad[s->n_bad] = indices[last];
    s->n_bad++;
  }
}

static gr_status add_sums(gr_step *s, const size_t *indices, gr_error *e)
{
  GR_TRY(gr_plan_read(s->plan, s->mg.nll, s->nll, s->used * sizeof(float), e));
  find_bad(s, indices);
  if (s->n_bad) return gr_fail(e, GR_ERR_NUMERIC, "the loss is not a finite number");
  for (size_t t = 0; t < s->used; t++) {
    if (GR_MUTANT(step_averages_all_rows)) s->sums.weight += s->weights[t] <= 0;
    if (s->weights[t] <= 0) continue;
    s->sums.loss += (double)s->weights[t] * (double)s->nll[t];
    s->sums.weight += (double)s->weights[t];
    s->sums.tokens_trained++;
  }
  s->sums.tokens += s->used;
  return GR_OK;
}

static void add_part(void *ctx, size_t job, int thread)
{
  (void)thread;
  const gr_step *s = ctx;
  const gradient_part *part = &s->parts[job];
  float *to = part->to;
  const float *from = part->from;
  for (size_t k = 0; k < part->n; k++) to[k] += GR_MUTANT(step_divides_each_run) ? from[k] / (float)s->used : from[k];
}

/* The gradient of pair i stands at the place of its values in the adapter: A, then B. One that is not seen in place is added alone. */
static gr_status add_gradient(gr_step *s, gr_error *e)
{
  float *to = s->gradient;
  size_t parts = 0;
  for (size_t i = 0; i < 2 * s->mg.n_pairs; i++) {
    const gr_tensor *g = s->grads[i];
    size_t n = values_of(g);
    const float *from = gr_tensor_contiguous(g) ? gr_plan_host(s->plan, g) : NULL;
    s->parts[parts] = (gradient_part){ to, from ? from : s->piece, n };
    if (from) parts++;
    else {
      GR_TRY(gr_plan_read(s->plan, g, s->piece, n * sizeof(float), e));
      add_part(s, parts, 0);
    }
    to += n;
  }
  gr_pool_run(pool_of(s), parts, add_part, s);
  return GR_OK;
}

/* Entry t + 1 of a sample predicts its token t + 1, which row t of the graph computed. */
static void copy_nll(const gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, float *nll)
{
  size_t at = 0;
  for (size_t i = 0; i < n; i++) {
    int32_t length = gr_dataset_at(d, indices[i])->n;
    nll[at] = 0;
    for (int32_t t = 1; t < length; t++) nll[at + (size_t)t] = s->nll[at + (size_t)t - 1];
    at += (size_t)length;
  }
}

gr_status gr_step_run(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, uint64_t step, float *nll, bool (*stop)(void *ctx),
                      void *stop_ctx, gr_error *e)
{
  GR_TRY(gr_step_allocate(s, e));
  GR_TRY(fill(s, d, indices, n, nll && !s->o.train, e));
  GR_TRY(write_inputs(s, step, e));
  GR_TRY(launch(s, stop, stop_ctx, e));
  GR_TRY(add_sums(s, indices, e));
  if (nll) copy_nll(s, d, indices, n, nll);
  return s->o.train ? add_gradient(s, e) : GR_OK;
}

/* ---- timing ---- */

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What the time of a launch grows with. */
enum { BY_TOKEN, BY_PAIR, BY_TRAINED, GROWTHS };

static int growth_of(const gr_launch_info *info)
{
  if (!info->node) return BY_TOKEN;
  switch (info->node->op) {
  case GR_OP_attention:
  case GR_OP_attention_back: return BY_PAIR;
  case GR_OP_head_loss:
  case GR_OP_head_loss_back:
  case GR_OP_head_loss_dh: return BY_TRAINED;
  default: return BY_TOKEN;
  }
}

/* Launches that compute nothing take time too. */
static double work_of(const gr_cost *c) { return c->flops + c->bytes_read + c->bytes_written; }

struct timing {
  double units[GROWTHS], counted[GROWTHS]; /* what the run has, and what the ops' costs were reckoned for */
  double all[GROWTHS], done[GROWTHS], seconds[GROWTHS];
};

/* Samples from the first on until the budget is full: the last one is cut. */
static void fill_budget(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, struct timing *t)
{
  s->used = 0;
  for (size_t i = 0; i < n && s->used < (size_t)s->o.tokens; i++) {
    gr_sample x = *gr_dataset_at(d, indices[i]);
    int32_t left = s->o.tokens - (int32_t)s->used;
    if (x.n > left) x.n = left;
    fill_sample(s, &x, indices[i], (int32_t)i);
    t->units[BY_PAIR] += (double)x.n * x.n;
  }
  double used = (double)s->used;
  for (size_t i = 0; i < s->used; i++) t->units[BY_TRAINED] += s->labels[i] >= 0;
  t->units[BY_TOKEN] = t->counted[BY_TOKEN] = t->counted[BY_TRAINED] = used;
  t->counted[BY_PAIR] = used * used;
}

static gr_status time_pass(gr_step *s, double seconds, struct timing *t, gr_error *e)
{
  size_t cursor = 0, launches = gr_plan_launches(s->plan);
  double start = seconds_now(), before = start;
  memset(t->done, 0, sizeof t->done);
  memset(t->seconds, 0, sizeof t->seconds);
  GR_TRY(write_inputs(s, 0, e));
  while (cursor < launches && (cursor == 0 || before - start < seconds)) {
    gr_launch_info info;
    gr_plan_launch_info(s->plan, cursor, &info);
    GR_TRY(gr_plan_run(s->plan, &cursor, 1, e));
    int g = growth_of(&info);
    double now = seconds_now();
    t->done[g] += work_of(&info.cost);
    t->seconds[g] += now - before;
    before = now;
  }
  return GR_OK;
}

/* A kind of launch that was not come to, or had nothing to do, is taken to run as fast as the others. */
static double rate(const struct timing *t, int g)
{
  double seconds = 0, work = 0;
  if (t->done[g] > 0 && t->units[g] > 0) return t->seconds[g] * t->all[g] / t->done[g] / t->units[g];
  for (int i = 0; i < GROWTHS; i++) {
    seconds += t->seconds[i];
    work += t->done[i] * t->units[i] / t->counted[i];
  }
  return work > 0 ? seconds * t->all[g] / work / t->counted[g] : 0;
}

gr_status gr_step_time(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, double seconds, gr_step_rates *rates, gr_error *e)
{
  struct timing t = { 0 };
  GR_TRY(gr_step_allocate(s, e));
  fill_budget(s, d, indices, n, &t);
  if (s->used == 0) return gr_fail(e, GR_ERR_USAGE, "a run needs at least one token");
  GR_TRY(gr_plan_set_dim(s->plan, GR_DIM_TOKENS, (int64_t)s->used, e));
  for (size_t i = 0; i < gr_plan_launches(s->plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(s->plan, i, &info);
    t.all[growth_of(&info)] += work_of(&info.cost);
  }
  double start = seconds_now(), first;
  GR_TRY(time_pass(s, seconds, &t, e));
  first = seconds_now() - start;
  if (2 * first < seconds) GR_TRY(time_pass(s, seconds - first, &t, e)); /* the first one read the weights from the disk */
  *rates = (gr_step_rates){ .token = rate(&t, BY_TOKEN), .pair = rate(&t, BY_PAIR), .trained = rate(&t, BY_TRAINED) };
  return GR_OK;
}
