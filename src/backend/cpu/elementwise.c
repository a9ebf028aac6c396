/* Ops that walk rows piece by piece: add, mul, scale, repeat, repeat_back, cont, glu, glu_back, sigmoid, sigmoid_back, tanh,
 * slice_back. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

typedef struct walk walk;
typedef void piece_fn(const walk *w, gr_row_at at, int64_t i0, int64_t n);

struct walk {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  piece_fn *piece;
  int64_t rows, per_job;
};

enum { JOB = 8 * GR_CPU_PIECE }; /* elements of one job of arrays that are one row */

static void piece_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const walk *w = ctx;
  int64_t first = (int64_t)job * JOB, last = gr_min(first + JOB, w->call->out[0].ne[0]);
  for (int64_t i = first; i < last; i += GR_CPU_PIECE) w->piece(w, (gr_row_at){ 0, 0, 0 }, i, gr_min(GR_CPU_PIECE, last - i));
}

static void walk_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const walk *w = ctx;
  const gr_array *y = &w->call->out[0];
  int64_t first = (int64_t)job * w->per_job, last = gr_min(first + w->per_job, w->rows);
  gr_row_at at = gr_row_index(y, first);
  for (int64_t r = first; r < last; r++, gr_row_step(y, &at))
    for (int64_t i = 0; i < y->ne[0]; i += GR_CPU_PIECE) w->piece(w, at, i, gr_min(GR_CPU_PIECE, y->ne[0] - i));
}

/* Whether every array stands in one stretch and has the output's shape. */
static bool one_stretch(const gr_op_call *call)
{
  const gr_array *y = &call->out[0];
  bool all = true;
  for (int i = 0; i < call->n_out; i++) all = all && gr_array_contiguous(&call->out[i]) && gr_shape_equal(call->out[i].ne, y->ne);
  for (int i = 0; i < call->n_in; i++) all = all && gr_array_contiguous(&call->in[i]) && gr_shape_equal(call->in[i].ne, y->ne);
  return all;
}

/* The same arrays as one row each: short rows cost more to find than to compute. */
static void flatten(gr_array *a)
{
  const int64_t count = gr_array_count(a), ne[GR_DIMS] = { count, 1, 1, 1 };
  memcpy(a->ne, ne, sizeof ne);
  gr_strides_contiguous(a->dtype, a->ne, a->nb);
}

/* Runs `piece` over every piece of every row of the first output. */
static gr_status walk_rows(gr_backend *b, const gr_op_call *call, piece_fn *piece)
{
  if (one_stretch(call)) {
    gr_op_call flat = *call;
    for (int i = 0; i < call->n_out; i++) flatten(&flat.out[i]);
    for (int i = 0; i < call->n_in; i++) flatten(&flat.in[i]);
    walk w = { &flat, gr_cpu_isa_of(b), piece, 1, 1 };
    gr_pool_run(call->pool, (size_t)gr_ceil_div(flat.out[0].ne[0], JOB), piece_job, &w);
    return GR_OK;
  }
  walk w = { call, gr_cpu_isa_of(b), piece, gr_array_rows(&call->out[0]), gr_cpu_rows_per_job(call->out[0].ne[0]) };
  gr_pool_run(call->pool, (size_t)gr_ceil_div(w.rows, w.per_job), walk_job, &w);
  return GR_OK;
}

static float *out_at(const walk *w, int i, gr_row_at at, int64_t i0)
{
  return (float *)gr_array_at(&w->call->out[i], i0, at.i1, at.i2, at.i3);
}

static const float *in_at(const walk *w, int i, gr_row_at at, int64_t i0, int64_t n, float *buffer)
{
  return gr_cpu_piece(&w->call->in[i], i0, n, at, buffer);
}

static void add_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float a[GR_CPU_PIECE], b[GR_CPU_PIECE];
  w->isa->add(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, a), in_at(w, 1, at, i0, n, b), n);
}

static void mul_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float a[GR_CPU_PIECE], b[GR_CPU_PIECE];
  w->isa->mul(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, a), in_at(w, 1, at, i0, n, b), n);
}

static void scale_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float x[GR_CPU_PIECE];
  const struct gr_scale_params *p = w->call->params;
  w->isa->scale(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, x), p->s, n);
}

/* repeat, and cont, which repeats nothing. */
static void copy_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float x[GR_CPU_PIECE];
  memcpy(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, x), (size_t)n * sizeof(float));
}

static void repeat_back_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  const gr_array *x = &w->call->in[0], *y = &w->call->out[0];
  float buffer[GR_CPU_PIECE];
  double sum[GR_CPU_PIECE] = { 0 };
  for (int64_t i3 = at.i3; i3 < x->ne[3]; i3 += y->ne[3])
    for (int64_t i2 = at.i2; i2 < x->ne[2]; i2 += y->ne[2])
      for (int64_t i1 = at.i1; i1 < (GR_MUTANT(repeat_back_first_row) ? at.i1 + 1 : x->ne[1]); i1 += y->ne[1])
        for (int64_t i = i0; i < x->ne[0]; i += y->ne[0])
          w->isa->accumulate(sum, gr_cpu_piece(x, i, n, (gr_row_at){ i1, i2, i3 }, buffer), n);
  float *out = out_at(w, 0, at, i0);
  for (int64_t i = 0; i < n; i++) out[i] = (float)sum[i];
}

static void glu_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float gate[GR_CPU_PIECE], up[GR_CPU_PIECE];
  const struct gr_glu_params *p = w->call->params;
  w->isa->glu(p->kind, out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, gate), in_at(w, 1, at, i0, n, up), n);
}

static void glu_back_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float gate[GR_CPU_PIECE], up[GR_CPU_PIECE], dy[GR_CPU_PIECE];
  const struct gr_glu_params *p = w->call->params;
  w->isa->glu_back(p->kind, out_at(w, 0, at, i0), out_at(w, 1, at, i0), in_at(w, 0, at, i0, n, gate), in_at(w, 1, at, i0, n, up),
                   in_at(w, 2, at, i0, n, dy), n);
}

static void tanh_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float x[GR_CPU_PIECE];
  w->isa->tanh(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, x), n);
}

static void sigmoid_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float x[GR_CPU_PIECE];
  w->isa->sigmoid(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, x), n);
}

static void sigmoid_back_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float x[GR_CPU_PIECE], dy[GR_CPU_PIECE];
  w->isa->sigmoid_back(out_at(w, 0, at, i0), in_at(w, 0, at, i0, n, x), in_at(w, 1, at, i0, n, dy), n);
}

/* The part of dy that falls into this piece, zeros around it. */
static void slice_back_piece(const walk *w, gr_row_at at, int64_t i0, int64_t n)
{
  float buffer[GR_CPU_PIECE], *y = out_at(w, 0, at, i0);
  const struct gr_slice_params *p = w->call->params;
  int64_t from = gr_max(i0, p->first), to = gr_min(i0 + n, p->first + w->call->in[0].ne[0]);
  memset(y, 0, (size_t)n * sizeof *y);
  if (from < to) memcpy(y + from - i0, in_at(w, 0, at, from - p->first, to - from, buffer), (size_t)(to - from) * sizeof *y);
}

#define WALK(name, piece)                                                                                                                  \
  gr_status gr_cpu_run_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                          \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return walk_rows(b, call, piece);                                                                                                      \
  }
WALK(add, add_piece)
WALK(mul, mul_piece)
WALK(scale, scale_piece)
WALK(repeat, copy_piece)
WALK(cont, copy_piece)
WALK(repeat_back, repeat_back_piece)
WALK(glu, glu_piece)
WALK(glu_back, glu_back_piece)
WALK(tanh, tanh_piece)
WALK(sigmoid, sigmoid_piece)
WALK(sigmoid_back, sigmoid_back_piece)
WALK(slice_back, slice_back_piece)
