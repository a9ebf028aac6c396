/* matmul_id, matmul_id_back: one product for each expert that has pairs (pairs.h), of rows read and written where they stand. Where every
 * pair has a row of its own, a job is a part of an expert's pairs times a panel of columns: it packs its own rows and decodes its own
 * tiles. Where slots share a row, a job sums a panel of columns of some tokens, expert by expert, into the result: nothing lies between.
 *
 * With an adapter on the stack (matmul_id_lora, matmul_id_lora_back) a part's rows go down to the rank by the first job that meets them,
 * and what comes of them is the second term of the part's product. */
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/pairs.h"
#include "base/mutant.h"

enum {
  JOBS = 128,       /* wanted of a product: panels are narrow where there are few groups */
  PANEL = 128,      /* columns of a panel, at least; of one that is summed, at most, */
  FLOATS = 64,      /* and where tiles cost next to nothing */
  BLOCK = 256,      /* columns of a block, at most, of all types */
  SUMS = 64 * 1024, /* sums of a job, where tiles cost next to nothing: a quarter of the L2 cache */
  FEW = 16,         /* tokens that are not split among jobs */
  ZEROS = 64        /* pairs of a job that has only zeros to write */
};

/* ---- parts ---- */

/* Pairs that are wanted of a part, so that slots of a token can join it. */
static int64_t part_pairs(const gr_cpu_pairs *p, int64_t most) { return p->used < most / 2 ? most - p->used : most; }

int64_t gr_cpu_parts_most(const gr_cpu_pairs *p, int64_t most)
{
  int64_t n = gr_cpu_pairs_count(p);
  return gr_min(n, p->experts) + n / part_pairs(p, most);
}

/* The first of perm[first .. end) that is not before token t. */
static int64_t first_of(const gr_cpu_pairs *p, int64_t first, int64_t end, int64_t t)
{
  while (first < end) {
    int64_t middle = first + (end - first) / 2;
    if (gr_cpu_pair(p, middle) < (uint64_t)(t * p->used)) first = middle + 1;
    else end = middle;
  }
  return first;
}

/* Where piece i of the pairs perm[first .. first + count) begins. */
static int64_t piece_begin(const gr_cpu_pairs *p, int64_t most, int64_t first, int64_t count, int64_t pieces, int64_t i)
{
  int64_t at = first + gr_block_begin(count, pieces, i), last = part_pairs(p, most) < most && i < pieces ? p->used : 0;
  while (last-- > 0 && at > first && gr_cpu_pair(p, at) / p->used == gr_cpu_pair(p, at - 1) / p->used) at--;
  return at;
}

int64_t gr_cpu_parts_make(const gr_cpu_pairs *p, int64_t from, int64_t to, int64_t most, gr_cpu_part *parts)
{
  int64_t n = 0;
  for (int64_t e = 0; e < p->experts; e++) {
    int64_t first = gr_cpu_pairs_begin(p, e), end = gr_cpu_pairs_begin(p, e + 1);
    if (GR_MUTANT(matmul_id_every_expert) && first < end && gr_cpu_pairs_begin(p, p->experts) <= most)
      first = 0, end = gr_cpu_pairs_begin(p, p->experts);
    if (from > 0) first = first_of(p, first, end, from);
    if (to < p->tokens) end = first_of(p, first, end, to);
    int64_t count = end - first, pieces = gr_ceil_div(count, part_pairs(p, most));
    for (int64_t i = 0; i < pieces; i++) {
      int64_t at = piece_begin(p, most, first, count, pieces, i),
              next = piece_begin(p, most, first, count, pieces, i + 1 - (i > 0 && GR_MUTANT(matmul_id_lost_part)));
      if (next > at) parts[n++] = (gr_cpu_part){ (int32_t)e, (int32_t)at, (int32_t)(next - at) };
    }
  }
  return n;
}

/* ---- products of groups ---- */

/* y of a pair, y_row floats apart, = x W, W being slice e of w; with an adapter, + h U and h = scale x D, U and D being slices of up and
 * down. */
typedef struct grouped {
  gr_cpu_product p, low; /* without the rows of a group */
  gr_cpu_pairs pairs;
  const gr_array *w, *x, *down, *up; /* down NULL: no adapter */
  const gr_array *sum;               /* what y is added to, or NULL */
  float scale;
  int64_t panels;
  gr_cpu_part *parts;
  int64_t n_parts;
  atomic_int_fast64_t next; /* job that no thread has taken */
  float *threads;
  int64_t thread_floats;
} grouped;

static gr_cpu_term term_of(const gr_array *w, const gr_array *x, bool across)
{
  return (gr_cpu_term){ .w_row = w->nb[1],
                        .w_step = w->nb[0],
                        .dtype = w->dtype,
                        .across = across,
                        .x = x->data,
                        .x_step = x->nb[0],
                        .depth = w->ne[across ? 1 : 0] };
}

static grouped grouped_of(const gr_array *w, const gr_array *x, gr_cpu_pairs pairs, bool across)
{
  grouped g = { .pairs = pairs, .w = w, .x = x };
  g.p = (gr_cpu_product){ .terms = 1, .cols = w->ne[across ? 0 : 1], .term = { term_of(w, x, across) } };
  g.thread_floats = gr_cpu_group_floats(g.p.cols, g.p.term[0].depth, 0);
  return g;
}

/* h: a row a pair. */
static void adapt(grouped *g, const gr_array *down, const gr_array *up, const gr_array *h, float scale)
{
  const bool across = g->p.term[0].across;
  g->down = down;
  g->up = up;
  g->scale = GR_MUTANT(matmul_id_lora_no_scale) || GR_MUTANT(matmul_id_lora_back_no_scale) ? 1 : scale;
  g->low = (gr_cpu_product){ .terms = 1, .cols = h->ne[0], .y = h->data, .term = { term_of(down, g->x, across) } };
  g->p.term[1] = term_of(up, h, across);
  g->p.terms = GR_MUTANT(matmul_id_lora_no_adapter) ? 1 : 2;
  g->thread_floats =
      gr_max(gr_cpu_group_floats(g->p.cols, g->p.term[0].depth, h->ne[0]), gr_cpu_group_floats(h->ne[0], g->low.term[0].depth, 0));
}

/* Lays out the scratch that begins at base; returns its size, so that with NULL it measures. */
static size_t lay_out(grouped *g, int threads, char *base)
{
  int64_t parts = gr_cpu_align(gr_cpu_parts_most(&g->pairs, GR_CPU_PART) * (int64_t)sizeof *g->parts);
  if (base) g->parts = (gr_cpu_part *)base, g->threads = (float *)(base + parts);
  return (size_t)(parts + gr_cpu_align(g->thread_floats * (int64_t)sizeof(float)) * threads);
}

static const char *slice_of(const gr_array *w, const gr_cpu_part *part)
{
  return (const char *)w->data + (GR_MUTANT(matmul_id_expert_0) ? 0 : part->expert) * w->nb[2];
}

static void plan(grouped *g, const gr_cpu_isa *isa)
{
  gr_cpu_group_plan(&g->p, isa);
  if (g->down) gr_cpu_group_plan(&g->low, isa);
}

/* Columns of a panel. */
static void panel_of(const grouped *g, int64_t panel, int64_t *from, int64_t *to)
{
  int64_t units = gr_ceil_div(g->p.cols, g->p.unit);
  *from = gr_block_begin(units, g->panels, panel) * g->p.unit;
  *to = gr_min(gr_block_begin(units, g->panels, panel + 1) * g->p.unit, g->p.cols);
}

/* Where the rows of a part's pairs stand: x and h in bytes, y in floats. */
typedef struct part_rows {
  int64_t x[GR_CPU_PART], y[GR_CPU_PART], h[GR_CPU_PART];
} part_rows;

static void rows_of(const grouped *g, const gr_cpu_part *part, part_rows *at)
{
  for (int64_t r = 0; r < part->count; r++) {
    uint32_t pair = gr_cpu_pair(&g->pairs, part->first + r);
    at->x[r] = gr_cpu_pair_row(&g->pairs, g->x, pair);
    at->y[r] = (GR_MUTANT(matmul_id_slot_0) ? pair - pair % g->pairs.used : pair) * g->p.y_row;
    at->h[r] = pair * g->low.cols * (int64_t)sizeof(float);
  }
}

/* h of a part's pairs. */
static void lower(const grouped *g, const gr_cpu_part *part, const part_rows *at, int thread)
{
  int64_t h_at[GR_CPU_PART];
  gr_cpu_product low = g->low;
  for (int64_t r = 0; r < part->count; r++) h_at[r] = at->h[r] / (int64_t)sizeof(float);
  low.rows = part->count;
  low.y_at = h_at;
  low.term[0].x_at = at->x;
  low.term[0].w = slice_of(g->down, part);
  low.isa->group(&low, 0, low.cols, g->threads + g->thread_floats * thread);
  for (int64_t r = 0; r < part->count; r++) low.isa->scale(low.y + h_at[r], low.y + h_at[r], g->scale, low.cols);
}

static void lower_job(void *ctx, size_t job, int thread)
{
  const grouped *g = ctx;
  part_rows at;
  if (job > 0 && GR_MUTANT(matmul_id_lora_first_part)) return;
  rows_of(g, &g->parts[job], &at);
  lower(g, &g->parts[job], &at, thread);
}

static void group_job(const grouped *g, int64_t job, int64_t following, int thread)
{
  const gr_cpu_part *part = &g->parts[job / g->panels];
  part_rows at;
  int64_t from, to;
  rows_of(g, part, &at);
  if (g->down && g->panels == 1) lower(g, part, &at, thread);
  gr_cpu_product p = g->p;
  p.rows = part->count;
  p.y_at = at.y;
  p.term[0].x_at = at.x;
  p.term[0].w = slice_of(g->w, part);
  p.term[1].x_at = at.h;
  p.term[1].w = g->up ? slice_of(g->up, part) : NULL;
  if (following < g->n_parts * g->panels) {
    p.then = slice_of(g->w, &g->parts[following / g->panels]);
    panel_of(g, following % g->panels, &p.then_from, &p.then_to);
  }
  panel_of(g, job % g->panels, &from, &to);
  p.isa->group(&p, from, to, g->threads + g->thread_floats * thread);
}

/* Each thread takes its next job before the present one is done, so that its weights can be fetched meanwhile. */
static void groups_of_thread(void *ctx, size_t share, int thread)
{
  (void)share;
  grouped *g = ctx;
  int64_t jobs = g->n_parts * g->panels;
  for (int64_t job = atomic_fetch_add(&g->next, 1), following; job < jobs; job = following) {
    following = atomic_fetch_add(&g->next, 1);
    group_job(g, job, following, thread);
  }
}

/* ---- a row a pair ---- */

enum { W, X, IDS, PERM, OFFSETS, A, B, SUM };

static gr_cpu_pairs pairs_of(const gr_op_call *call, int first)
{
  return gr_cpu_pairs_of(&call->in[first], &call->in[first + 1], &call->in[first + 2]);
}

/* What rows begin with: those of pairs that no expert has are zeros, and stay so; or all are what they are added to. Rows of y that are
 * sums over slots are begun by the job that sums them. */
static void begin_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const grouped *g = ctx;
  const int64_t used = g->pairs.used, end = gr_min(((int64_t)job + 1) * ZEROS, gr_cpu_pairs_count(&g->pairs));
  for (int64_t p = (int64_t)job * ZEROS; p < end; p++) {
    const bool routed = gr_cpu_routed(&g->pairs, p % used, p / used);
    float *y = g->p.y + p * g->p.y_row;
    if (!routed && g->down) memset(g->low.y + p * g->low.cols, 0, (size_t)g->low.cols * sizeof(float));
    if (g->p.y_row == 0) continue;
    if (!g->sum && !routed) memset(y, 0, (size_t)g->p.cols * sizeof(float));
    else if (g->sum && g->sum->data != g->p.y) gr_cpu_gather(g->sum, (gr_row_at){ p % used, p / used, 0 }, y);
  }
}

static void begin_rows(grouped *g, gr_pool *pool)
{
  const int64_t n = gr_cpu_pairs_count(&g->pairs);
  const bool all = gr_cpu_pairs_begin(&g->pairs, g->pairs.experts) == n;
  if ((!all && !GR_MUTANT(matmul_id_unrouted_left)) || (g->sum && g->p.y_row > 0 && g->sum->data != g->p.y))
    gr_pool_run(pool, (size_t)gr_ceil_div(n, ZEROS), begin_job, g);
}

static void run_pairs(grouped *g, gr_backend *b, const gr_op_call *call)
{
  g->p.y = call->out[0].data;
  g->p.y_row = g->p.cols;
  lay_out(g, gr_pool_threads(call->pool), call->scratch);
  plan(g, gr_cpu_isa_of(b));
  g->n_parts = gr_cpu_parts_make(&g->pairs, 0, g->pairs.tokens, GR_CPU_PART, g->parts);
  int64_t most = gr_max(1, g->p.cols / gr_max(PANEL, g->p.unit));
  begin_rows(g, call->pool);
  g->p.add = g->sum != NULL;
  g->panels = gr_min(most, gr_ceil_div(JOBS, gr_max(1, g->n_parts)));
  g->next = 0;
  if (g->down && g->panels > 1) gr_pool_run(call->pool, (size_t)g->n_parts, lower_job, g);
  gr_pool_run(call->pool, (size_t)gr_min(gr_pool_threads(call->pool), g->n_parts * g->panels), groups_of_thread, g);
}

static grouped along(const gr_op_call *call)
{
  grouped g = grouped_of(&call->in[W], &call->in[X], pairs_of(call, IDS), false);
  const struct gr_scale_params *s = call->params;
  if (call->n_in > A) adapt(&g, &call->in[A], &call->in[B], &call->out[1], s->s);
  return g;
}

static gr_status run_along(gr_backend *b, const gr_op_call *call, bool bf16)
{
  grouped g = along(call);
  g.p.term[0].bf16 = bf16;
  run_pairs(&g, b, call);
  return GR_OK;
}

size_t gr_cpu_scratch_matmul_id(const gr_op_call *call, int threads)
{
  grouped g = along(call);
  return lay_out(&g, threads, NULL);
}

size_t gr_cpu_scratch_matmul_id_lora(const gr_op_call *call, int threads) { return gr_cpu_scratch_matmul_id(call, threads); }

/* ---- a row for several slots: sums ---- */

typedef struct sums {
  grouped g;
  const gr_array *out;
  int64_t ranges; /* of tokens */
  int64_t *begin; /* [ranges + 1]: parts of each, */
  int64_t *at;    /* [parts]: and where their rows are packed, in floats */
  int64_t *y_at;  /* [pairs], in the order of perm: floats from y */
  float *packed;
  int64_t *low_at; /* the same of an adapter's term */
  float *low_packed;
} sums;

static int64_t range_begin(const sums *s, int64_t i) { return gr_block_begin(s->g.pairs.tokens, s->ranges, i); }

/* As many ranges as keep sums in a cache where tiles cost next to nothing, and as give every thread a panel. */
static void deal(sums *s, int threads)
{
  const gr_array *out = s->out;
  bool floats = s->g.w->dtype == GR_F32;
  int64_t panels = gr_ceil_div(s->g.p.cols, floats ? FLOATS : BLOCK);
  s->ranges = floats ? gr_ceil_div(out->ne[1] * out->ne[2] * FLOATS, SUMS) : 1;
  s->ranges = gr_max(s->ranges, gr_ceil_div(threads, gr_max(1, panels)));
  s->ranges = gr_max(1, gr_min(s->ranges, s->g.pairs.tokens / FEW));
}

static size_t lay_out_sums(sums *s, int threads, char *base)
{
  grouped *g = &s->g;
  int64_t n = gr_cpu_pairs_count(&g->pairs), depth = g->p.term[0].depth;
  deal(s, threads);
  int64_t parts = gr_min(n, g->pairs.experts * s->ranges) + gr_cpu_parts_most(&g->pairs, GR_CPU_PART), at = 0;
  g->parts = (gr_cpu_part *)base, at += gr_cpu_align(parts * (int64_t)sizeof *g->parts);
  s->begin = (int64_t *)(base ? base + at : NULL), at += gr_cpu_align((s->ranges + 1) * (int64_t)sizeof *s->begin);
  s->at = (int64_t *)(base ? base + at : NULL), at += gr_cpu_align(parts * (int64_t)sizeof *s->at);
  s->y_at = (int64_t *)(base ? base + at : NULL), at += gr_cpu_align(n * (int64_t)sizeof *s->y_at);
  s->packed = (float *)(base ? base + at : NULL);
  at += gr_cpu_align(gr_cpu_group_packed(n, parts, depth) * (int64_t)sizeof *s->packed);
  if (g->down) {
    s->low_at = (int64_t *)(base ? base + at : NULL), at += gr_cpu_align(parts * (int64_t)sizeof *s->low_at);
    s->low_packed = (float *)(base ? base + at : NULL);
    at += gr_cpu_align(gr_cpu_group_packed(n, parts, g->low.cols) * (int64_t)sizeof *s->low_packed);
  }
  g->threads = (float *)(base ? base + at : NULL);
  return (size_t)(at + gr_cpu_align(g->thread_floats * (int64_t)sizeof(float)) * threads);
}

static gr_cpu_product part_of(const sums *s, int64_t i)
{
  const gr_cpu_part *part = &s->g.parts[i];
  gr_cpu_product p = s->g.p;
  p.rows = part->count;
  p.y_at = s->y_at + part->first;
  p.term[0].w = slice_of(s->g.w, part);
  p.term[0].packed = s->packed + s->at[i];
  if (s->g.down) {
    p.term[1].w = slice_of(s->g.up, part);
    p.term[1].packed = s->low_packed + s->low_at[i];
  }
  return p;
}

static void pack_job(void *ctx, size_t job, int thread)
{
  const sums *s = ctx;
  const gr_cpu_part *part = &s->g.parts[job];
  part_rows at;
  rows_of(&s->g, part, &at);
  for (int64_t r = 0; r < part->count; r++)
    s->y_at[part->first + r] = gr_cpu_pair_row(&s->g.pairs, s->out, gr_cpu_pair(&s->g.pairs, part->first + r)) / (int64_t)sizeof(float);
  if (s->g.down) lower(&s->g, part, &at, thread);
  gr_cpu_product p = part_of(s, (int64_t)job);
  p.term[0].x_at = at.x;
  p.term[1].x_at = at.h;
  gr_cpu_group_pack(&p);
}

/* Columns [from, to) of a row of the result, before anything is added: zeros, or what it is added to. */
static void begin_columns(const sums *s, int64_t slot, int64_t t, int64_t from, int64_t to)
{
  const gr_array *sum = s->g.sum;
  float *y = (float *)gr_array_at(s->out, from, slot, t, 0);
  if (!sum) memset(y, 0, (size_t)(to - from) * sizeof(float));
  else if (sum->data == s->out->data) return;
  else if (sum->nb[0] == sizeof(float)) memcpy(y, gr_array_at(sum, from, slot, t, 0), (size_t)(to - from) * sizeof(float));
  else
    for (int64_t i = from; i < to; i++) memcpy(y + i - from, gr_array_at(sum, i, slot, t, 0), sizeof *y);
}

/* A panel of columns of a range of tokens. */
static void sum_job(void *ctx, size_t job, int thread)
{
  const sums *s = ctx;
  const grouped *g = &s->g;
  int64_t range = (int64_t)job % s->ranges, from, to;
  panel_of(g, (int64_t)job / s->ranges, &from, &to);
  for (int64_t t = range_begin(s, range); t < range_begin(s, range + 1); t++)
    for (int64_t slot = 0; slot < s->out->ne[1]; slot++) begin_columns(s, slot, t, from, to);
  for (int64_t i = s->begin[range]; i < s->begin[range + 1]; i++) {
    gr_cpu_product p = part_of(s, i);
    p.blocks = gr_ceil_div(p.rows, p.isa->block_rows);
    p.add = !GR_MUTANT(matmul_id_back_last_slot);
    if (GR_MUTANT(matmul_id_lora_back_last_term)) p.terms = 1;
    if (i + 1 < s->begin[range + 1]) p.then = slice_of(g->w, &g->parts[i + 1]), p.then_from = from, p.then_to = to;
    p.isa->group(&p, from, to, g->threads + g->thread_floats * thread);
  }
}

static void run_sums(sums *s, gr_backend *b, const gr_op_call *call)
{
  grouped *g = &s->g;
  lay_out_sums(s, gr_pool_threads(call->pool), call->scratch);
  plan(g, gr_cpu_isa_of(b));
  g->p.term[0].x_read = g->p.term[1].x_read = GR_CPU_X_PACK;
  g->p.y = s->out->data;
  if (g->down) begin_rows(g, call->pool);
  s->begin[0] = 0;
  for (int64_t i = 0; i < s->ranges; i++)
    s->begin[i + 1] =
        s->begin[i] + gr_cpu_parts_make(&g->pairs, range_begin(s, i), range_begin(s, i + 1), GR_CPU_PART, g->parts + s->begin[i]);
  g->n_parts = s->begin[s->ranges];
  for (int64_t i = 0, at = 0, low = 0; i < g->n_parts; i++) {
    s->at[i] = at, at += gr_cpu_group_packed(g->parts[i].count, 0, g->p.term[0].depth);
    if (g->down) s->low_at[i] = low, low += gr_cpu_group_packed(g->parts[i].count, 0, g->low.cols);
  }
  gr_pool_run(call->pool, (size_t)g->n_parts, pack_job, s);
  int64_t wide = gr_max(g->p.unit, g->w->dtype == GR_F32 ? FLOATS : PANEL);
  g->panels = gr_ceil_div(g->p.cols, wide);
  gr_pool_run(call->pool, (size_t)(g->panels * s->ranges), sum_job, s);
}

static sums across(const gr_op_call *call)
{
  sums s = { .g = grouped_of(&call->in[W], &call->in[X], pairs_of(call, IDS), true), .out = &call->out[0] };
  const struct gr_slots_lora_params *p = call->params;
  if (call->n_in > A) adapt(&s.g, &call->in[B], &call->in[A], &call->out[1], p->s);
  if (call->n_in > SUM && call->in[SUM].ne[0] > 0 && !GR_MUTANT(matmul_id_lora_back_no_sum)) s.g.sum = &call->in[SUM];
  return s;
}

static gr_status run_across(gr_backend *b, const gr_op_call *call, bool bf16)
{
  sums s = across(call);
  s.g.p.term[0].bf16 = bf16;
  if (s.out->ne[1] == s.g.pairs.used) run_pairs(&s.g, b, call);
  else run_sums(&s, b, call);
  return GR_OK;
}

size_t gr_cpu_scratch_matmul_id_back(const gr_op_call *call, int threads)
{
  sums s = across(call);
  return s.out->ne[1] == s.g.pairs.used ? lay_out(&s.g, threads, NULL) : lay_out_sums(&s, threads, NULL);
}

size_t gr_cpu_scratch_matmul_id_lora_back(const gr_op_call *call, int threads) { return gr_cpu_scratch_matmul_id_back(call, threads); }

GR_CPU_BOTH_PRECISIONS(matmul_id, run_along)
GR_CPU_BOTH_PRECISIONS(matmul_id_lora, run_along)
GR_CPU_BOTH_PRECISIONS(matmul_id_back, run_across)
GR_CPU_BOTH_PRECISIONS(matmul_id_lora_back, run_across)
