#include "infer/session.h"

#include <string.h>

#include "base/alloc.h"
#include "base/numa.h"

/* A graph planned for up to `tokens` at once. Two of them share the cache: a wide one for prompts, a narrow one for single tokens. */
typedef struct lane {
  gr_model_graph mg;
  gr_plan *plan;
  int32_t tokens, outputs;
} lane;

enum { PROMPT, SINGLE, LANES };

struct gr_session {
  const gr_model *model;
  lane lanes[LANES];
  int32_t context, length, outputs;
  float *cache; /* K and V of all layers */
  size_t cache_floats;
  int32_t *key_positions, *key_segments;        /* [context] */
  int32_t *positions, *segments, *slots, *rows; /* [batch] */
  float *tables;                                /* room for what is made of positions */
  size_t bytes;
};

static gr_status open_lane(gr_session *s, lane *l, const gr_session_options *o, int32_t tokens, int32_t outputs, gr_error *e)
{
  l->tokens = tokens;
  l->outputs = outputs;
  const gr_build build = { .tokens = tokens, .keys = s->context, .outputs = outputs, .adapters = o->adapters, .n_adapters = o->n_adapters };
  GR_TRY(gr_model_build(s->model, &build, &l->mg, e));
  const gr_hparams *hp = gr_model_hparams(s->model);
  float *at = s->cache;
  for (int32_t i = 0; i < hp->layers; i++) {
    l->mg.k_cache[i]->data = at;
    at += (size_t)s->context * (size_t)hp->heads_kv * (size_t)hp->head_k;
    l->mg.v_cache[i]->data = at;
    at += (size_t)s->context * (size_t)hp->heads_kv * (size_t)hp->head_v;
  }
  const gr_plan_options plan = { .backends = o->backends, .n_backends = o->n_backends, .allow_ref = o->allow_ref, .profile = o->profile };
  GR_TRY(gr_plan_create(&l->plan, l->mg.graph, &l->mg.logits, 1, &plan, e));
  for (size_t i = 0; i < o->n_backends; i++) s->bytes += gr_plan_bytes(l->plan, i);
  return gr_plan_allocate(l->plan, e);
}

static gr_status open_buffers(gr_session *s, const gr_session_options *o, int32_t batch, gr_error *e)
{
  const gr_hparams *hp = gr_model_hparams(s->model);
  size_t n = (size_t)batch, context = (size_t)s->context;
  s->cache_floats = context * (size_t)hp->layers * (size_t)hp->heads_kv * (size_t)(hp->head_k + hp->head_v);
  /* Zeroed: pages of slots that are never used are never touched, unless there are several nodes to spread them over. */
  s->cache = gr_calloc(s->cache_floats, sizeof(float));
  s->key_positions = gr_calloc(2 * context + 4 * n, sizeof(int32_t));
  s->tables = gr_calloc(gr_model_position_floats(s->model) * n, sizeof(float));
  if (!s->cache || !s->key_positions || !s->tables) return gr_fail_memory(e, s->cache_floats * sizeof(float));
  if (o->n_backends) gr_numa_spread(o->backends[o->n_backends - 1]->pool, s->cache, s->cache_floats * sizeof(float));
  s->key_segments = s->key_positions + context;
  s->positions = s->key_segments + context;
  s->segments = s->positions + n;
  s->slots = s->segments + n;
  s->rows = s->slots + n;
  s->bytes += s->cache_floats * sizeof(float);
  return GR_OK;
}

gr_status gr_session_open(gr_session **out, const gr_model *m, const gr_session_options *o, gr_error *e)
{
  *out = NULL;
  if (o->context < 1) return gr_fail(e, GR_ERR_USAGE, "a context of %d tokens holds nothing: give at least 1 with -c", o->context);
  gr_session *s = gr_calloc(1, sizeof *s);
  if (!s) return gr_fail_memory(e, sizeof *s);
  s->model = m;
  s->context = o->context;
  s->outputs = o->outputs > 0 ? o->outputs : 1;
  int32_t batch = o->batch > 0 ? o->batch : 512;
  if (batch > s->context) batch = s->context;
  if (s->outputs > batch) s->outputs = batch;
  gr_status status = open_buffers(s, o, batch, e);
  if (status == GR_OK) status = open_lane(s, &s->lanes[PROMPT], o, batch, s->outputs, e);
  if (status == GR_OK) status = open_lane(s, &s->lanes[SINGLE], o, 1, 1, e);
  if (status != GR_OK) {
    if (status == GR_ERR_MEMORY)
      status = gr_fail(
          e, status,
          "out of memory: a context of %d tokens, of which keys and values alone are %.1f MB, could not be allocated: give a shorter one",
          s->context, 1e-6 * (double)s->cache_floats * sizeof(float));
    gr_session_close(s);
    return status;
  }
  *out = s;
  return GR_OK;
}

void gr_session_close(gr_session *s)
{
  if (!s) return;
  for (int i = 0; i < LANES; i++) {
    gr_plan_free(s->lanes[i].plan);
    gr_model_graph_free(&s->lanes[i].mg);
  }
  gr_free(s->cache);
  gr_free(s->key_positions);
  gr_free(s->tables);
  gr_free(s);
}

int32_t gr_session_length(const gr_session *s) { return s->length; }
int32_t gr_session_context(const gr_session *s) { return s->context; }
size_t gr_session_bytes(const gr_session *s) { return s->bytes; }
const gr_plan *gr_session_plan_of(const gr_session *s, bool single) { return s->lanes[single ? SINGLE : PROMPT].plan; }

void gr_session_truncate(gr_session *s, int32_t n)
{
  if (n >= 0 && n < s->length) s->length = n;
}

static gr_status write_inputs(gr_session *s, lane *l, const int32_t *ids, int32_t n, int32_t rows, gr_error *e)
{
  size_t words = (size_t)n * sizeof(int32_t), keys = (size_t)(s->length + n);
  for (int32_t i = 0; i < n; i++) {
    s->positions[i] = s->slots[i] = s->length + i;
    s->segments[i] = 0;
    s->key_positions[s->length + i] = s->length + i;
    s->key_segments[s->length + i] = 0;
  }
  for (int32_t i = 0; i < rows; i++) s->rows[i] = n - rows + i;
  if (rows == 0) s->rows[0] = n - 1; /* the graph always yields at least one */
  const gr_model_graph *g = &l->mg;
  GR_TRY(gr_plan_set_dim(l->plan, GR_DIM_TOKENS, n, e));
  GR_TRY(gr_plan_set_dim(l->plan, GR_DIM_KEYS, (int64_t)keys, e));
  GR_TRY(gr_plan_set_dim(l->plan, GR_DIM_OUTPUTS, rows ? rows : 1, e));
  GR_TRY(gr_plan_write(l->plan, g->ids, ids, words, e));
  GR_TRY(gr_model_write_positions(s->model, g, l->plan, s->positions, (size_t)n, s->tables, e));
  GR_TRY(gr_plan_write(l->plan, g->segments, s->segments, words, e));
  GR_TRY(gr_plan_write(l->plan, g->slots, s->slots, words, e));
  GR_TRY(gr_plan_write(l->plan, g->key_positions, s->key_positions, keys * sizeof(int32_t), e));
  GR_TRY(gr_plan_write(l->plan, g->key_segments, s->key_segments, keys * sizeof(int32_t), e));
  return gr_plan_write(l->plan, g->output_rows, s->rows, (size_t)(rows ? rows : 1) * sizeof(int32_t), e);
}

static gr_status run_batch(gr_session *s, const int32_t *ids, int32_t n, float *logits, int32_t rows, gr_error *e)
{
  lane *l = &s->lanes[n == 1 ? SINGLE : PROMPT];
  GR_TRY(write_inputs(s, l, ids, n, rows, e));
  GR_TRY(gr_plan_run_all(l->plan, e));
  s->length += n;
  size_t bytes = (size_t)rows * (size_t)gr_model_hparams(s->model)->vocab * sizeof(float);
  return rows ? gr_plan_read(l->plan, l->mg.logits, logits, bytes, e) : GR_OK;
}

static gr_status check_run(const gr_session *s, const int32_t *ids, int32_t n, int32_t rows, gr_error *e)
{
  if (n < 1 || rows < 0 || rows > n || rows > s->outputs)
    return gr_fail(e, GR_ERR_USAGE, "cannot run %d tokens with logits of %d: this session gives at most %d rows", n, rows, s->outputs);
  if (n > s->context - s->length)
    return gr_fail(e, GR_ERR_USAGE, "the context of %d tokens is full: %d are used and %d more do not fit; raise it with -c", s->context,
                   s->length, n);
  for (int32_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= gr_model_hparams(s->model)->vocab)
      return gr_fail(e, GR_ERR_USAGE, "token id %d is outside the vocabulary of %d", ids[i], gr_model_hparams(s->model)->vocab);
  return GR_OK;
}

gr_status gr_session_run(gr_session *s, const int32_t *ids, int32_t n, float *logits, int32_t rows, gr_error *e)
{
  GR_TRY(check_run(s, ids, n, rows, e));
  int32_t batch = s->lanes[PROMPT].tokens, start = s->length;
  size_t vocab = (size_t)gr_model_hparams(s->model)->vocab;
  for (int32_t at = 0; at < n;) {
    /* The wanted rows are the last of all, and one batch holds at most `outputs` of them: cut so that they fall together. */
    int32_t left = n - at, take = left < batch ? left : batch, quiet = n - rows - at;
    if (quiet > 0 && take > quiet && take < left) take = quiet;
    int32_t from = at + take - (n - rows), here = from <= 0 ? 0 : from < take ? from : take;
    gr_status status = run_batch(s, ids + at, take, logits, here, e);
    if (status != GR_OK) {
      s->length = start;
      return status;
    }
    if (logits) logits += (size_t)here * vocab;
    at += take;
  }
  return GR_OK;
}
