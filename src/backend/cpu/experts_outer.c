/* out_prod_id: the gradient of stacked factors, for each expert a contraction over its pairs in ascending order, which are read where they
 * stand. Results with more rows than columns are computed turned, so that vectors run along the longer side; the bits are the same. */
#include <string.h>

#include "backend/cpu/pairs.h"
#include "base/mutant.h"

enum {
  X,
  DY,
  IDS,
  PERM,
  OFFSETS,
  ROWS = 64, /* of a job, of the result or of it turned */
  COLS = 512
};

typedef struct outer {
  gr_cpu_pairs pairs;
  gr_array a, b; /* rows and columns of what is computed: dy and x, or turned x and dy */
  const gr_array *out;
  const gr_cpu_isa *isa;
  bool turned;
  int64_t rows, cols, row_jobs, col_jobs;
  gr_cpu_part *parts;
  float *threads; /* turned: [ROWS, COLS] of each thread */
} outer;

/* a itself when its rows are dense, or a copy in scratch, which `at` moves through (base NULL: only measured). */
static gr_array dense(const gr_array *a, char *base, size_t *at)
{
  if (a->nb[0] == sizeof(float)) return *a;
  gr_array copy = *a;
  gr_strides_contiguous(GR_F32, copy.ne, copy.nb);
  copy.data = base ? base + *at : NULL;
  *at += (size_t)gr_cpu_align(gr_array_count(a) * (int64_t)sizeof(float));
  for (int64_t r = 0; base && r < gr_array_rows(a); r++) {
    gr_row_at row = gr_row_index(a, r);
    gr_cpu_gather(a, row, (float *)gr_array_at(&copy, 0, row.i1, row.i2, row.i3));
  }
  return copy;
}

/* A part is a whole expert. */
static size_t lay_out(outer *o, const gr_op_call *call, int threads, char *base)
{
  size_t at = 0;
  const gr_array x = dense(&call->in[X], base, &at), dy = dense(&call->in[DY], base, &at);
  *o = (outer){ .pairs = gr_cpu_pairs_of(&call->in[IDS], &call->in[PERM], &call->in[OFFSETS]), .out = &call->out[0] };
  o->turned = dy.ne[0] > x.ne[0];
  o->a = o->turned ? x : dy, o->b = o->turned ? dy : x;
  o->rows = o->a.ne[0], o->cols = o->b.ne[0];
  o->row_jobs = gr_ceil_div(o->rows, ROWS), o->col_jobs = gr_ceil_div(o->cols, COLS);
  if (base) o->parts = (gr_cpu_part *)(base + at);
  at += (size_t)gr_cpu_align(gr_cpu_parts_most(&o->pairs, INT32_MAX) * (int64_t)sizeof *o->parts);
  if (base) o->threads = (float *)(base + at);
  return at + (o->turned ? (size_t)threads * ROWS * COLS * sizeof(float) : 0);
}

size_t gr_cpu_scratch_out_prod_id(const gr_op_call *call, int threads)
{
  outer o;
  return lay_out(&o, call, threads, NULL);
}

/* Addresses of the `count` pairs from perm[first] on, and of those fetched ahead. */
static void find_rows(const outer *o, int64_t first, int64_t count, gr_cpu_outer *k)
{
  const int64_t f = sizeof(float);
  k->pairs = count;
  for (int64_t s = 0; s < count; s++) {
    uint32_t pair = gr_cpu_pair(&o->pairs, first + s);
    k->a_at[s] = gr_cpu_pair_row(&o->pairs, &o->a, GR_MUTANT(out_prod_id_grad_row_0) ? 0 : pair) / f;
    k->b_at[s] = gr_cpu_pair_row(&o->pairs, &o->b, pair) / f;
  }
  for (int64_t s = count; s < count + GR_CPU_AHEAD; s++) k->a_at[s] = k->a_at[count - 1], k->b_at[s] = k->b_at[count - 1];
}

/* out[j, i] = z[i, j] for the block of z at (row, col). */
static void turn(const outer *o, const float *z, int64_t row, int64_t rows, int64_t col, int64_t cols, float *y)
{
  int64_t whole = rows - rows % o->isa->lanes;
  y += col * o->rows + row;
  if (whole) o->isa->transpose(y, o->rows, z, COLS, whole, cols);
  for (int64_t c = 0; c < cols; c++)
    for (int64_t r = whole; r < rows; r++) y[c * o->rows + r] = z[r * COLS + c];
}

static void outer_job(void *ctx, size_t job, int thread)
{
  const outer *o = ctx;
  const gr_cpu_part *part = &o->parts[(int64_t)job / (o->row_jobs * o->col_jobs)];
  int64_t row = gr_block_begin(o->rows, o->row_jobs, (int64_t)job / o->col_jobs % o->row_jobs), col = (int64_t)job % o->col_jobs * COLS;
  int64_t next = gr_block_begin(o->rows, o->row_jobs, (int64_t)job / o->col_jobs % o->row_jobs + 1);
  float *expert = (float *)gr_array_at(o->out, 0, 0, part->expert, 0), *z = o->threads + (int64_t)thread * ROWS * COLS;
  gr_cpu_outer k = { .a = (const float *)o->a.data + row,
                     .b = (const float *)o->b.data + col,
                     .rows = next - row,
                     .cols = gr_min(COLS, o->cols - col),
                     .y_row = o->turned ? COLS : o->cols };
  for (int64_t s = 0; s < part->count; s += GR_CPU_PAIRS) {
    find_rows(o, part->first + s, gr_min(GR_CPU_PAIRS, part->count - s), &k);
    o->isa->outer(&k, o->turned ? z : expert + row * o->cols + col, s > 0 && !GR_MUTANT(out_prod_id_chunk_overwrites));
  }
  if (o->turned) turn(o, z, row, k.rows, col, k.cols, expert);
}

static void zero_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const outer *o = ctx;
  if (gr_cpu_pairs_begin(&o->pairs, (int64_t)job) < gr_cpu_pairs_begin(&o->pairs, (int64_t)job + 1)) return;
  memset(gr_array_at(o->out, 0, 0, (int64_t)job, 0), 0, (size_t)(o->out->ne[0] * o->out->ne[1]) * sizeof(float));
}

gr_status gr_cpu_run_out_prod_id(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  outer o;
  lay_out(&o, call, gr_pool_threads(call->pool), call->scratch);
  o.isa = gr_cpu_isa_of(b);
  int64_t parts = gr_cpu_parts_make(&o.pairs, 0, o.pairs.tokens, INT32_MAX, o.parts);
  if (!GR_MUTANT(out_prod_id_idle_left)) gr_pool_run(call->pool, (size_t)o.pairs.experts, zero_job, &o);
  gr_pool_run(call->pool, (size_t)(parts * o.row_jobs * o.col_jobs), outer_job, &o);
  return GR_OK;
}
