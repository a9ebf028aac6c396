/* combine, combine_back: experts' results weighted and summed over the slots of a token, in ascending order. One job some tokens. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

typedef struct mix {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  int64_t tokens, per_job;
} mix;

static mix mix_of(gr_backend *b, const gr_op_call *call, const gr_array *y)
{
  return (mix){ call, gr_cpu_isa_of(b), y->ne[2], gr_cpu_rows_per_job(y->ne[0] * y->ne[1]) };
}

static void run(const gr_op_call *call, mix *m, gr_pool_work *job)
{
  gr_pool_run(call->pool, (size_t)gr_ceil_div(m->tokens, m->per_job), job, m);
}

static float weight_at(const gr_array *weights, int64_t slot, int64_t token)
{
  float v;
  memcpy(&v, gr_array_at(weights, slot, token, 0, 0), sizeof v);
  return v;
}

enum { SLOTS = 64 }; /* that are summed at once */

static void combine_token(const mix *m, int64_t t)
{
  const gr_array *y = &m->call->in[0], *weights = &m->call->in[1];
  float buffer[GR_CPU_PIECE], w[SLOTS];
  if (y->nb[0] == sizeof(float) && y->nb[1] % (int64_t)sizeof(float) == 0 && y->ne[1] <= SLOTS) {
    for (int64_t slot = 0; slot < y->ne[1]; slot++) w[slot] = weight_at(weights, GR_MUTANT(combine_weight_0) ? 0 : slot, t);
    m->isa->mix((float *)gr_array_at(&m->call->out[0], 0, t, 0, 0), (const float *)gr_array_at(y, 0, 0, t, 0),
                y->nb[1] / (int64_t)sizeof(float), w, y->ne[1], y->ne[0]);
    return;
  }
  for (int64_t i = 0; i < y->ne[0]; i += GR_CPU_PIECE) {
    int64_t n = gr_min(GR_CPU_PIECE, y->ne[0] - i);
    float *out = (float *)gr_array_at(&m->call->out[0], i, t, 0, 0);
    m->isa->scale(out, gr_cpu_piece(y, i, n, (gr_row_at){ 0, t, 0 }, buffer), weight_at(weights, 0, t), n);
    for (int64_t slot = 1; slot < y->ne[1]; slot++)
      m->isa->add_scaled(out, gr_cpu_piece(y, i, n, (gr_row_at){ slot, t, 0 }, buffer),
                         weight_at(weights, GR_MUTANT(combine_weight_0) ? 0 : slot, t), n);
  }
}

static void combine_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const mix *m = ctx;
  for (int64_t t = (int64_t)job * m->per_job; t < gr_min(((int64_t)job + 1) * m->per_job, m->tokens); t++) combine_token(m, t);
}

gr_status gr_cpu_run_combine(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  mix m = mix_of(b, call, &call->in[0]);
  run(call, &m, combine_job);
  return GR_OK;
}

/* Inputs weights, dout and, where their gradient is wanted too, y. */
static void back_token(const mix *m, int64_t t)
{
  const gr_array *weights = &m->call->in[0], *dout = &m->call->in[1], *y = &m->call->in[2], *dy = &m->call->out[0];
  float grads[GR_CPU_PIECE], buffer[GR_CPU_PIECE];
  for (int64_t slot = 0; slot < dy->ne[1]; slot++) {
    float weight = GR_MUTANT(combine_back_no_weight) ? 1 : weight_at(weights, slot, t);
    double sum = 0;
    for (int64_t i = 0; i < dy->ne[0]; i += GR_CPU_PIECE) {
      int64_t n = gr_min(GR_CPU_PIECE, dy->ne[0] - i);
      const float *g = gr_cpu_piece(dout, i, n, (gr_row_at){ t, 0, 0 }, grads);
      m->isa->scale((float *)gr_array_at(dy, i, slot, t, 0), g, weight, n);
      if (m->call->n_out > 1) sum += m->isa->dot(g, gr_cpu_piece(y, i, n, (gr_row_at){ slot, t, 0 }, buffer), n);
    }
    if (m->call->n_out > 1) *(float *)gr_array_at(&m->call->out[1], slot, t, 0, 0) = (float)sum;
  }
}

static void back_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const mix *m = ctx;
  for (int64_t t = (int64_t)job * m->per_job; t < gr_min(((int64_t)job + 1) * m->per_job, m->tokens); t++) back_token(m, t);
}

gr_status gr_cpu_run_combine_back(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  mix m = mix_of(b, call, &call->out[0]);
  run(call, &m, back_job);
  return GR_OK;
}
