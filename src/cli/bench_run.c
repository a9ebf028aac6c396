#include "cli/bench_run.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "infer/sample.h"
#include "infer/session.h"
#include "train/step.h"

enum { READ_BYTES = 256 << 20, BATCH_MOST = 512 };

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure_limits(gr_bench *b, const unsigned char *memory)
{
  gr_cpu_limits_raise(&b->limits, b->m->backends[b->m->n_backends - 1], b->m->pool, memory, READ_BYTES);
}

/* ---- profiles ---- */

const char *gr_bench_class_name(gr_bench_class c)
{
  static const char *const names[] = { "products", "experts", "attention", "head", "norms, rope, gates", "rows and copies", "optimizer" };
  return names[c];
}

static gr_bench_class class_of(const gr_launch_info *info)
{
  switch (info->node ? info->node->op : GR_OP_NONE) {
  case GR_OP_matmul:
  case GR_OP_matmul_add:
  case GR_OP_matmul_lora: return info->node->layer < 0 ? GR_BENCH_HEAD : GR_BENCH_PRODUCTS;
  case GR_OP_out_prod:
  case GR_OP_out_prod_add:
  case GR_OP_matmul_lora_back: return GR_BENCH_PRODUCTS;
  case GR_OP_head_loss:
  case GR_OP_head_loss_back:
  case GR_OP_head_loss_dh: return GR_BENCH_HEAD;
  case GR_OP_attention:
  case GR_OP_attention_back: return GR_BENCH_ATTENTION;
  case GR_OP_route:
  case GR_OP_route_back:
  case GR_OP_group_experts:
  case GR_OP_matmul_id:
  case GR_OP_matmul_id_lora:
  case GR_OP_matmul_id_lora_back:
  case GR_OP_matmul_id_back:
  case GR_OP_out_prod_id:
  case GR_OP_combine:
  case GR_OP_combine_back: return GR_BENCH_EXPERTS;
  case GR_OP_NONE:
  case GR_OP_get_rows:
  case GR_OP_get_rows_back:
  case GR_OP_store_rows:
  case GR_OP_cont: return GR_BENCH_MOVES;
  default: return GR_BENCH_SMALL;
  }
}

/* Adds what each launch took since it was last looked at; to nothing when use is NULL. seen: [launches]. */
static void look(const gr_plan *plan, double *seen, gr_bench_use *use)
{
  for (size_t i = 0; i < gr_plan_launches(plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(plan, i, &info);
    double took = info.seconds - seen[i];
    seen[i] = info.seconds;
    if (!use) continue;
    gr_bench_work *w = &use->work[class_of(&info)][info.node && info.node->phase != GR_PHASE_FORWARD];
    w->seconds += took;
    w->flops[info.bf16] += info.cost.flops;
    w->bytes += info.cost.bytes_read + info.cost.bytes_written;
    w->launches++;
  }
}

/* A run may be timed in parts: -1 begins one, 1 ends it. */
static void part(const gr_bench *b, gr_bench_use *use, int sign)
{
  use->seconds[use->runs] += sign * now();
  use->processor[use->runs] += sign * gr_pool_seconds(b->m->pool);
}

static gr_status seen_of(const gr_plan *plan, double **seen, gr_error *e)
{
  *seen = gr_calloc(gr_plan_launches(plan) + 1, sizeof **seen);
  return *seen ? GR_OK : gr_fail_memory(e, gr_plan_launches(plan) * sizeof **seen);
}

/* ---- tokens ---- */

/* The data's tokens, one sample after the other, again from the start when there are too few. */
static gr_status read_ids(const gr_bench *b, int32_t *ids, size_t n, gr_error *e)
{
  gr_template *chat = NULL;
  gr_dataset *d = NULL;
  bool builtin = false;
  gr_status s = gr_template_from_gguf(&chat, gr_model_file(b->m->model), NULL, &builtin, e);
  const gr_data_options o = {
    .tokenizer = gr_model_tokenizer(b->m->model), .chat_template = chat, .window = 1 << 24, .overlong = GR_OVERLONG_TRUNCATE
  };
  if (s == GR_OK) s = gr_dataset_add(&d, b->data, &o, e);
  for (size_t at = 0, i = 0; s == GR_OK && at < n; i++) {
    const gr_sample *x = gr_dataset_at(d, i % gr_dataset_count(d));
    for (int32_t k = 0; k < x->n && at < n; k++) ids[at++] = x->ids[k];
  }
  gr_dataset_free(d);
  gr_template_free(chat);
  return s;
}

static gr_status make_ids(const gr_bench *b, int32_t **ids, size_t n, gr_error *e)
{
  *ids = gr_calloc(n + 1, sizeof **ids);
  if (!*ids) return gr_fail_memory(e, n * sizeof **ids);
  if (b->data) return read_ids(b, *ids, n, e);
  for (size_t i = 0; i < n; i++) (*ids)[i] = (int32_t)gr_random_below(1, 2, i, (uint64_t)gr_model_hparams(b->m->model)->vocab);
  return GR_OK;
}

/* ---- prefill and generation ---- */

struct talk {
  gr_bench *b;
  gr_session *session;
  const int32_t *ids;
  float *logits;
  double *wide, *single; /* what was seen of each plan */
};

static gr_status prefill(struct talk *t, gr_bench_use *use, gr_error *e)
{
  gr_session_truncate(t->session, 0);
  if (use) part(t->b, use, -1);
  gr_status s = gr_session_run(t->session, t->ids, (int32_t)t->b->prompt_tokens, t->logits, 1, e);
  if (use) part(t->b, use, 1);
  look(gr_session_plan_of(t->session, t->b->prompt_tokens == 1), t->b->prompt_tokens == 1 ? t->single : t->wide, use);
  if (use) use->runs++;
  return s;
}

/* The profile is read between tokens, whose costs grow; that is not timed. */
static gr_status generate(struct talk *t, gr_bench_use *use, gr_error *e)
{
  int32_t vocab = gr_model_hparams(t->b->m->model)->vocab;
  gr_session_truncate(t->session, (int32_t)t->b->prompt_tokens);
  for (int64_t i = 0; i < t->b->gen_tokens; i++) {
    if (use) part(t->b, use, -1);
    int32_t id = gr_argmax(t->logits, vocab);
    gr_status s = gr_session_run(t->session, &id, 1, t->logits, 1, e);
    if (use) part(t->b, use, 1);
    look(gr_session_plan_of(t->session, true), t->single, use);
    if (s != GR_OK) return s;
  }
  if (use) use->runs++;
  return GR_OK;
}

static gr_status talk_runs(struct talk *t, const unsigned char *memory, gr_error *e)
{
  gr_bench *b = t->b;
  for (int64_t i = -1; i < b->runs; i++) { /* the first run of each warms up */
    if (i >= 0) measure_limits(b, memory);
    GR_TRY(prefill(t, i >= 0 ? &b->prefill : NULL, e));
    if (b->gen_tokens) GR_TRY(generate(t, i >= 0 ? &b->generation : NULL, e));
  }
  return GR_OK;
}

static gr_status measure_talk(gr_bench *b, const int32_t *ids, const unsigned char *memory, gr_error *e)
{
  struct talk t = { .b = b, .ids = ids };
  int64_t batch = b->prompt_tokens < BATCH_MOST ? b->prompt_tokens : BATCH_MOST;
  const gr_session_options o = { .context = (int32_t)(b->prompt_tokens + b->gen_tokens),
                                 .batch = (int32_t)batch,
                                 .adapters = b->m->adapters,
                                 .n_adapters = b->m->n_adapters,
                                 .backends = b->m->backends,
                                 .n_backends = b->m->n_backends,
                                 .allow_ref = b->m->allow_ref,
                                 .profile = true };
  gr_status s = gr_session_open(&t.session, b->m->model, &o, e);
  if (s == GR_OK) s = seen_of(gr_session_plan_of(t.session, false), &t.wide, e);
  if (s == GR_OK) s = seen_of(gr_session_plan_of(t.session, true), &t.single, e);
  t.logits = gr_alloc((size_t)gr_model_hparams(b->m->model)->vocab * sizeof(float));
  if (s == GR_OK && !t.logits) s = gr_fail_memory(e, 0);
  b->prefill.tokens = b->prompt_tokens, b->generation.tokens = b->gen_tokens;
  if (s == GR_OK) s = talk_runs(&t, memory, e);
  gr_free(t.logits);
  gr_free(t.wide);
  gr_free(t.single);
  gr_session_close(t.session);
  return s;
}

/* ---- training ---- */

struct school {
  gr_bench *b;
  gr_lora *lora;
  gr_step *step;
  gr_dataset *data;
  float *m, *v;
  double *seen;
};

/* What one optimizer step over one window takes: forward, backward, norm of the gradient, AdamW. */
static gr_status train_once(struct school *c, uint64_t step, gr_bench_use *use, gr_error *e)
{
  const size_t first = 0, n = gr_lora_parameters(c->lora);
  const gr_adamw adam = gr_adamw_defaults();
  gr_pool *pool = c->b->m->pool;
  if (use) part(c->b, use, -1);
  gr_step_clear(c->step);
  GR_TRY(gr_step_run(c->step, c->data, &first, 1, step, NULL, NULL, NULL, e));
  double start = now(), scale = 1 / gr_step_sums_of(c->step)->weight;
  const float *g = gr_step_gradient(c->step);
  double norm = gr_norm(g, n, scale, pool);
  gr_adamw_update(&adam, gr_lora_values(c->lora), g, c->m, c->v, n, norm > 1 ? scale / norm : scale, 1e-4, step + 1, pool);
  double took = now() - start;
  if (use) part(c->b, use, 1);
  look(gr_step_plan_of(c->step), c->seen, use);
  if (!use) return GR_OK;
  gr_bench_work *w = &use->work[GR_BENCH_OPTIMIZER][GR_BENCH_BACKWARD];
  w->seconds += took;
  w->bytes += 8.0 * (double)(n * sizeof(float)); /* the gradient twice; values and moments in and out */
  w->launches++;
  use->runs++;
  return GR_OK;
}

static gr_status open_school(struct school *c, const int32_t *ids, gr_error *e)
{
  gr_bench *b = c->b;
  int32_t window = (int32_t)b->window;
  const gr_lora_options lo = { .rank = b->rank, .alpha = 2.0 * (double)b->rank, .seed = 1 };
  GR_TRY(gr_lora_create(&c->lora, b->m->model, &lo, e));
  float *weights = gr_alloc((size_t)window * sizeof *weights);
  if (!weights) return gr_fail_memory(e, (size_t)window * sizeof *weights);
  for (int32_t i = 0; i < window; i++) weights[i] = i > 0;
  gr_status s = gr_dataset_add_ids(&c->data, ids, weights, window, e);
  gr_free(weights);
  const gr_step_options o = { .tokens = window,
                              .train = true,
                              .backends = b->m->backends,
                              .n_backends = b->m->n_backends,
                              .allow_ref = b->m->allow_ref,
                              .profile = true };
  if (s == GR_OK) s = gr_step_plan(&c->step, b->m->model, c->lora, &o, e);
  if (s == GR_OK) s = gr_step_allocate(c->step, e);
  if (s == GR_OK) s = seen_of(gr_step_plan_of(c->step), &c->seen, e);
  size_t n = gr_lora_parameters(c->lora);
  c->m = gr_calloc(2 * n + 1, sizeof *c->m);
  c->v = c->m ? c->m + n : NULL;
  return s == GR_OK && !c->m ? gr_fail_memory(e, 2 * n * sizeof *c->m) : s;
}

static gr_status measure_training(gr_bench *b, const int32_t *ids, const unsigned char *memory, gr_error *e)
{
  struct school c = { .b = b };
  gr_status s = open_school(&c, ids, e);
  b->training.tokens = b->window;
  for (int64_t i = -1; s == GR_OK && i < b->runs; i++) {
    if (i >= 0) measure_limits(b, memory);
    s = train_once(&c, (uint64_t)(i + 1), i >= 0 ? &b->training : NULL, e);
  }
  gr_free(c.seen);
  gr_free(c.m);
  gr_step_free(c.step);
  gr_dataset_free(c.data);
  gr_lora_free(c.lora);
  return s;
}

gr_status gr_bench_run(gr_bench *b, gr_error *e)
{
  b->prefill.name = "prefill", b->generation.name = "generation", b->training.name = "training";
  int32_t *ids = NULL;
  int64_t most = b->prompt_tokens > b->window ? b->prompt_tokens : b->window;
  unsigned char *memory = gr_alloc_aligned(READ_BYTES, 64);
  if (!memory) return gr_fail_memory(e, READ_BYTES);
  memset(memory, 1, READ_BYTES); /* else every page would be the one of zeros */
  gr_status s = make_ids(b, &ids, (size_t)most, e);
  if (s == GR_OK && b->prompt_tokens) s = measure_talk(b, ids, memory, e);
  if (s == GR_OK && b->window) s = measure_training(b, ids, memory, e);
  gr_free(ids);
  gr_free(memory);
  return s;
}
