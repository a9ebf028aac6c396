/* matmul_id, matmul_id_back, out_prod_id: one product for each expert that has pairs (pairs.h), of rows read and written where they stand.
 * Jobs are cut by shape: a part of an expert's pairs times a panel of columns; each packs its own rows and decodes its own tiles. */
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/pairs.h"
#include "base/mutant.h"

enum {
  JOBS = 128,   /* wanted of a product: panels are narrow where there are few groups */
  PANEL = 128,  /* columns of a panel, at least */
  BAND = 512,   /* columns of matmul_id_back that are summed over slots at a time: results of all pairs stay in a cache, */
  FLOATS = 128, /* the narrower the better where tiles cost next to nothing */
  ZEROS = 64    /* pairs of a job that has only zeros to write */
};

int64_t gr_cpu_parts_most(const gr_cpu_pairs *p, int64_t most)
{
  int64_t n = gr_cpu_pairs_count(p);
  return gr_min(n, p->experts) + n / most;
}

int64_t gr_cpu_parts_make(const gr_cpu_pairs *p, int64_t most, gr_cpu_part *parts)
{
  int64_t n = 0;
  for (int64_t e = 0; e < p->experts; e++) {
    int64_t first = gr_cpu_pairs_begin(p, e), count = gr_cpu_pairs_begin(p, e + 1) - first;
    if (GR_MUTANT(matmul_id_every_expert) && count && gr_cpu_pairs_begin(p, p->experts) <= most)
      first = 0, count = gr_cpu_pairs_begin(p, p->experts);
    int64_t pieces = gr_ceil_div(count, most);
    for (int64_t i = 0; i < pieces; i++) {
      int64_t from = gr_block_begin(count, pieces, i),
              to = gr_block_begin(count, pieces, i + 1 - (i > 0 && GR_MUTANT(matmul_id_lost_part)));
      parts[n++] = (gr_cpu_part){ (int32_t)e, (int32_t)(first + from), (int32_t)(to - from) };
    }
  }
  return n;
}

/* ---- products of groups ---- */

/* y of a pair [y_row floats apart] = base + x W, W being slice e of w. */
typedef struct grouped {
  gr_cpu_product p; /* without the rows of a group */
  gr_cpu_pairs pairs;
  const gr_array *w, *x, *base; /* base NULL: nothing */
  int64_t y_row;                /* floats from one pair's result to the next, and from p.y to column 0: negative for a band */
  int64_t y_first;
  int64_t first_col, panels; /* of this run: all columns, or a band */
  gr_cpu_part *parts;
  int64_t n_parts;
  atomic_int_fast64_t next; /* job that no thread has taken */
  float *threads;
  int64_t thread_floats;
} grouped;

static grouped grouped_of(const gr_array *w, const gr_array *x, gr_cpu_pairs pairs, bool across)
{
  grouped g = { .pairs = pairs, .w = w, .x = x };
  g.p = (gr_cpu_product){ .terms = 1, .cols = w->ne[across ? 0 : 1] };
  g.p.term[0] = (gr_cpu_term){ .w_row = w->nb[1],
                               .w_step = w->nb[0],
                               .dtype = w->dtype,
                               .across = across,
                               .x = x->data,
                               .x_step = x->nb[0],
                               .depth = w->ne[across ? 1 : 0] };
  g.thread_floats = gr_cpu_group_floats(g.p.cols, g.p.term[0].depth);
  return g;
}

/* Lays out the scratch that begins at base; returns its size, so that with NULL it measures. */
static size_t lay_out(grouped *g, int threads, char *base)
{
  int64_t parts = gr_cpu_align(gr_cpu_parts_most(&g->pairs, GR_CPU_PART) * (int64_t)sizeof *g->parts);
  if (base) g->parts = (gr_cpu_part *)base, g->threads = (float *)(base + parts);
  return (size_t)(parts + gr_cpu_align(g->thread_floats * (int64_t)sizeof(float)) * threads);
}

/* The weight and the columns of a job. */
static const char *job_weight(const grouped *g, int64_t job, int64_t *from, int64_t *to)
{
  int64_t panel = job % g->panels, units = gr_ceil_div(g->p.cols - g->first_col, g->p.unit);
  *from = g->first_col + gr_block_begin(units, g->panels, panel) * g->p.unit;
  *to = gr_min(g->first_col + gr_block_begin(units, g->panels, panel + 1) * g->p.unit, g->p.cols);
  return (const char *)g->w->data + (GR_MUTANT(matmul_id_expert_0) ? 0 : g->parts[job / g->panels].expert) * g->w->nb[2];
}

static void group_job(const grouped *g, int64_t job, int64_t following, int thread)
{
  const gr_cpu_part *part = &g->parts[job / g->panels];
  int64_t x_at[GR_CPU_PART], y_at[GR_CPU_PART], base_at[GR_CPU_PART];
  for (int64_t r = 0; r < part->count; r++) {
    uint32_t pair = gr_cpu_pair(&g->pairs, part->first + r);
    x_at[r] = gr_cpu_pair_row(&g->pairs, g->x, pair);
    y_at[r] = (GR_MUTANT(matmul_id_slot_0) ? pair - pair % g->pairs.used : pair) * g->y_row + g->y_first;
    if (g->base) base_at[r] = gr_cpu_pair_row(&g->pairs, g->base, pair) / (int64_t)sizeof(float);
  }
  gr_cpu_product p = g->p;
  p.rows = part->count;
  p.y_at = y_at, p.base_at = base_at;
  p.term[0].x_at = x_at;
  int64_t from, to;
  p.term[0].w = job_weight(g, job, &from, &to);
  if (following < g->n_parts * g->panels) p.then = job_weight(g, following, &p.then_from, &p.then_to);
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

/* Columns [first, first + cols) of the products of all groups. */
static void run_groups(grouped *g, int64_t first, int64_t cols, gr_pool *pool)
{
  grouped band = *g;
  band.first_col = first;
  band.p.cols = first + cols;
  int64_t most = gr_max(1, cols / gr_max(PANEL, g->p.unit));
  band.panels = gr_min(most, gr_ceil_div(JOBS, gr_max(1, g->n_parts)));
  band.next = 0;
  gr_pool_run(pool, (size_t)gr_min(gr_pool_threads(pool), g->n_parts * band.panels), groups_of_thread, &band);
}

/* ---- matmul_id ---- */

enum { W, X, IDS, PERM, OFFSETS };

static gr_cpu_pairs pairs_of(const gr_op_call *call, int first)
{
  return gr_cpu_pairs_of(&call->in[first], &call->in[first + 1], &call->in[first + 2]);
}

/* Rows of pairs that no expert has are zeros. */
static void zero_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const grouped *g = ctx;
  int64_t end = gr_min(((int64_t)job + 1) * ZEROS, gr_cpu_pairs_count(&g->pairs));
  for (int64_t p = (int64_t)job * ZEROS; p < end; p++)
    if (!gr_cpu_routed(&g->pairs, p % g->pairs.used, p / g->pairs.used))
      memset(g->p.y + p * g->y_row, 0, (size_t)g->p.cols * sizeof(float));
}

/* Into y, a row a pair. */
static void run_pairs(grouped *g, gr_backend *b, const gr_op_call *call)
{
  g->p.y = call->out[0].data;
  g->y_row = g->p.cols;
  lay_out(g, gr_pool_threads(call->pool), call->scratch);
  gr_cpu_group_plan(&g->p, gr_cpu_isa_of(b));
  g->n_parts = gr_cpu_parts_make(&g->pairs, GR_CPU_PART, g->parts);
  int64_t n = gr_cpu_pairs_count(&g->pairs);
  if (gr_cpu_pairs_begin(&g->pairs, g->pairs.experts) < n && !GR_MUTANT(matmul_id_unrouted_left))
    gr_pool_run(call->pool, (size_t)gr_ceil_div(n, ZEROS), zero_job, g);
  run_groups(g, 0, g->p.cols, call->pool);
}

static gr_status run_along(gr_backend *b, const gr_op_call *call, bool bf16)
{
  grouped g = grouped_of(&call->in[W], &call->in[X], pairs_of(call, IDS), false);
  g.p.term[0].bf16 = bf16;
  run_pairs(&g, b, call);
  return GR_OK;
}

size_t gr_cpu_scratch_matmul_id(const gr_op_call *call, int threads)
{
  grouped g = grouped_of(&call->in[W], &call->in[X], pairs_of(call, IDS), false);
  return lay_out(&g, threads, NULL);
}

/* ---- matmul_id_back ---- */

static int64_t band_of(const grouped *g) { return gr_min(g->w->dtype == GR_F32 ? FLOATS : BAND, g->p.cols); }

typedef struct slots {
  grouped g;
  const gr_array *out;
  float *z; /* [band, pairs] */
  int64_t col, cols;
} slots;

static size_t lay_out_slots(slots *s, const gr_op_call *call, int threads, char *base)
{
  int64_t band = band_of(&s->g), n = gr_cpu_pairs_count(&s->g.pairs);
  int64_t z = call->out[0].ne[1] == s->g.pairs.used ? 0 : gr_cpu_align(n * band * (int64_t)sizeof *s->z);
  s->z = (float *)base;
  return (size_t)z + lay_out(&s->g, threads, base ? base + z : NULL);
}

/* Sums a band over the slots that read the same row, in ascending order. */
static void slots_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const slots *s = ctx;
  const gr_cpu_pairs *pairs = &s->g.pairs;
  int64_t token = (int64_t)job / s->out->ne[1], slot = (int64_t)job % s->out->ne[1];
  float *y = (float *)gr_array_at(s->out, s->col, slot, token, 0);
  bool begun = false;
  for (int64_t i = slot; i < pairs->used; i += s->out->ne[1]) {
    if (!gr_cpu_routed(pairs, i, token)) continue;
    const float *z = s->z + (token * pairs->used + i) * s->g.y_row;
    if (begun && !GR_MUTANT(matmul_id_back_last_slot)) s->g.p.isa->add(y, y, z, s->cols);
    else memcpy(y, z, (size_t)s->cols * sizeof *y);
    begun = true;
  }
  if (!begun) memset(y, 0, (size_t)s->cols * sizeof *y);
}

static gr_status run_across(gr_backend *b, const gr_op_call *call, bool bf16)
{
  slots s = { .g = grouped_of(&call->in[W], &call->in[X], pairs_of(call, IDS), true), .out = &call->out[0] };
  grouped *g = &s.g;
  g->p.term[0].bf16 = bf16;
  if (s.out->ne[1] == g->pairs.used) {
    run_pairs(g, b, call);
    return GR_OK;
  }
  lay_out_slots(&s, call, gr_pool_threads(call->pool), call->scratch);
  gr_cpu_group_plan(&g->p, gr_cpu_isa_of(b));
  g->n_parts = gr_cpu_parts_make(&g->pairs, GR_CPU_PART, g->parts);
  g->p.y = s.z;
  g->y_row = band_of(g);
  for (s.col = 0; s.col < g->p.cols; s.col += s.cols) {
    s.cols = gr_min(g->y_row, g->p.cols - s.col);
    g->y_first = -s.col;
    run_groups(g, s.col, s.cols, call->pool);
    gr_pool_run(call->pool, (size_t)(s.out->ne[1] * s.out->ne[2]), slots_job, &s);
  }
  return GR_OK;
}

size_t gr_cpu_scratch_matmul_id_back(const gr_op_call *call, int threads)
{
  slots s = { .g = grouped_of(&call->in[W], &call->in[X], pairs_of(call, IDS), true) };
  return lay_out_slots(&s, call, threads, NULL);
}

GR_CPU_BOTH_PRECISIONS(matmul_id, run_along)
GR_CPU_BOTH_PRECISIONS(matmul_id_back, run_across)
