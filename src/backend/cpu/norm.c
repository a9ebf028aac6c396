/* rms_norm, rms_norm_mul, rms_norm_back, norm_back_add, rope: one row (or head) at a time, sums in double. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

typedef struct rows_of {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  int64_t rows, per_job;
  void (*one)(const struct rows_of *w, gr_row_at at, float *buffer);
  float *buffers; /* three rows a thread, for inputs that are not dense and results on the way */
  int64_t buffer_floats;
} rows_of;

static int64_t buffer_floats(const gr_op_call *call) { return (3 * call->out[0].ne[0] + 15) & ~(int64_t)15; }

static size_t row_scratch(const gr_op_call *call, int threads) { return (size_t)(buffer_floats(call) * threads) * sizeof(float); }

static void rows_job(void *ctx, size_t job, int thread)
{
  const rows_of *w = ctx;
  int64_t first = (int64_t)job * w->per_job, last = gr_min(first + w->per_job, w->rows);
  gr_row_at at = gr_row_index(&w->call->out[0], first);
  for (int64_t r = first; r < last; r++, gr_row_step(&w->call->out[0], &at)) w->one(w, at, w->buffers + w->buffer_floats * thread);
}

static gr_status run_rows(gr_backend *b, const gr_op_call *call, void (*one)(const rows_of *w, gr_row_at at, float *buffer))
{
  rows_of w = { call, gr_cpu_isa_of(b), gr_array_rows(&call->out[0]), gr_cpu_rows_per_job(call->out[0].ne[0]),
                one,  call->scratch,    buffer_floats(call) };
  gr_pool_run(call->pool, (size_t)gr_ceil_div(w.rows, w.per_job), rows_job, &w);
  return GR_OK;
}

static float *out_row(const rows_of *w, gr_row_at at) { return (float *)gr_array_at(&w->call->out[0], 0, at.i1, at.i2, at.i3); }

static double eps_of(const rows_of *w)
{
  return GR_MUTANT(rms_norm_no_eps) ? 0 : (double)((const struct gr_norm_params *)w->call->params)->eps;
}

static void norm_one(const rows_of *w, gr_row_at at, float *buffer)
{
  int64_t n = w->call->out[0].ne[0];
  const float *x = gr_cpu_row(&w->call->in[0], at, buffer);
  w->isa->scale(out_row(w, at), x, (float)(1 / sqrt(w->isa->dot(x, x, n) / (double)n + eps_of(w))), n);
}

static void norm_mul_one(const rows_of *w, gr_row_at at, float *buffer)
{
  int64_t n = w->call->out[0].ne[0];
  const gr_array *weight = &w->call->in[1];
  const float *x = gr_cpu_row(&w->call->in[0], at, buffer);
  float scale = (float)(1 / sqrt(w->isa->dot(x, x, n) / (double)n + eps_of(w)));
  float *y = out_row(w, at), piece[GR_CPU_PIECE];
  for (int64_t i = 0; i < n; i += GR_CPU_PIECE) {
    int64_t live = gr_min(GR_CPU_PIECE, n - i);
    w->isa->scale_mul(y + i, x + i, scale, gr_cpu_piece(weight, i, live, at, piece), live);
  }
}

/* dx = (dz - x (x.dz) / (x.x + n eps)) / sqrt(x.x / n + eps) (requirements B8). */
static void norm_back_row(const rows_of *w, float *dx, const float *x, const float *dz)
{
  int64_t n = w->call->out[0].ne[0];
  double square = w->isa->dot(x, x, n), eps = eps_of(w);
  double along = -w->isa->dot(x, dz, n) / (square + (double)n * eps), scale = 1 / sqrt(square / (double)n + eps);
  w->isa->rms_norm_back(dx, x, dz, GR_MUTANT(rms_norm_back_no_mean) ? 0 : (float)along, (float)scale, n);
}

static void norm_back_one(const rows_of *w, gr_row_at at, float *buffer)
{
  const float *x = gr_cpu_row(&w->call->in[0], at, buffer), *dz = gr_cpu_row(&w->call->in[1], at, buffer + w->call->out[0].ne[0]);
  norm_back_row(w, out_row(w, at), x, dz);
}

/* The same of dz = dy w, added to what is there. The sum may stand where g does. */
static void norm_back_add_one(const rows_of *w, gr_row_at at, float *buffer)
{
  int64_t n = w->call->out[0].ne[0];
  float piece[GR_CPU_PIECE], *dz = buffer, *dx = buffer + n, *y = out_row(w, at);
  const float *dy = gr_cpu_row(&w->call->in[2], at, dz);
  for (int64_t i = 0; i < n; i += GR_CPU_PIECE) {
    int64_t live = gr_min(GR_CPU_PIECE, n - i);
    w->isa->mul(dz + i, dy + i, gr_cpu_piece(&w->call->in[3], i, live, at, piece), live);
  }
  norm_back_row(w, dx, gr_cpu_row(&w->call->in[1], at, buffer + 2 * n), dz);
  const float *g = gr_cpu_row(&w->call->in[0], at, dz);
  if (GR_MUTANT(norm_back_add_no_sum)) memcpy(y, dx, (size_t)n * sizeof *y);
  else w->isa->add(y, g, dx, n);
}

static void rope_one(const rows_of *w, gr_row_at at, float *buffer)
{
  const struct gr_rope_params *p = w->call->params;
  const gr_array *cosines = &w->call->in[1], *sines = &w->call->in[2];
  int64_t n = w->call->out[0].ne[0], half = cosines->ne[0];
  gr_row_at token = { at.i2, 0, 0 };
  const float *x = gr_cpu_row(&w->call->in[0], at, buffer);
  float *y = out_row(w, at);
  w->isa->rotate(y, x, gr_cpu_row(cosines, token, buffer + n), gr_cpu_row(sines, token, buffer + n + half), half,
                 GR_MUTANT(rope_other_pairs) ? p->mode != GR_ROPE_NEOX : p->mode == GR_ROPE_NEOX,
                 p->inverse && !GR_MUTANT(rope_same_sign) ? -1 : 1);
  if (n > 2 * half && y != x) memcpy(y + 2 * half, x + 2 * half, (size_t)(n - 2 * half) * sizeof *y);
}

#define ROWS(name, one)                                                                                                                    \
  gr_status gr_cpu_run_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                          \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return run_rows(b, call, one);                                                                                                         \
  }                                                                                                                                        \
  size_t gr_cpu_scratch_##name(const gr_op_call *call, int threads) { return row_scratch(call, threads); }
ROWS(rms_norm, norm_one)
ROWS(rms_norm_mul, norm_mul_one)
ROWS(rms_norm_back, norm_back_one)
ROWS(norm_back_add, norm_back_add_one)
ROWS(rope, rope_one)
