/* dropout: the mask of ops/dropout.h. */
#include "ops/dropout.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa.h"
#include "base/mutant.h"

typedef struct mask {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  gr_cpu_mask of;
  int64_t per_job;
} mask;

static int32_t integer_at(const gr_array *a, int64_t i0, int64_t i1)
{
  int32_t v;
  memcpy(&v, gr_array_at(a, i0, i1, 0, 0), sizeof v);
  return v;
}

static void mask_row(const mask *m, int64_t t)
{
  const gr_array *x = &m->call->in[0], *keys = &m->call->in[1], *y = &m->call->out[0];
  int32_t sample = GR_MUTANT(dropout_no_sample) ? 0 : integer_at(keys, 0, t), token = integer_at(keys, 1, t);
  float *out = (float *)gr_array_at(y, 0, t, 0, 0), buffer[GR_CPU_PIECE];
  for (int64_t i = 0; i < y->ne[0]; i += GR_CPU_PIECE) {
    int64_t n = gr_min(GR_CPU_PIECE, y->ne[0] - i);
    const float *in = gr_cpu_piece(x, i, n, (gr_row_at){ t, 0, 0 }, buffer);
    m->isa->dropout(out + i, in, &m->of, sample, token, i, n);
  }
}

static void mask_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const mask *m = ctx;
  int64_t end = gr_min(((int64_t)job + 1) * m->per_job, m->call->out[0].ne[1]);
  for (int64_t t = (int64_t)job * m->per_job; t < end; t++) mask_row(m, t);
}

gr_status gr_cpu_run_dropout(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  const struct gr_dropout_params *p = call->params;
  int32_t run[4];
  for (int i = 0; i < 4; i++) run[i] = integer_at(&call->in[2], i, 0);
  mask m = { .call = call, .isa = gr_cpu_isa_of(b), .per_job = gr_cpu_rows_per_job(call->out[0].ne[0]) };
  m.of = (gr_cpu_mask){ gr_dropout_key(run, GR_MUTANT(dropout_no_adapter) ? 0 : p->adapter), gr_dropout_threshold(p->rate),
                        GR_MUTANT(dropout_no_scale) ? 1 : (float)gr_dropout_scale(p->rate) };
  gr_pool_run(call->pool, (size_t)gr_ceil_div(call->out[0].ne[1], m.per_job), mask_job, &m);
  return GR_OK;
}
