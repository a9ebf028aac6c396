/* Rows moved by id: get_rows, get_rows_back, store_rows. Ids outside the table are padding: zeros, nothing added, nothing written. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

typedef struct move {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  int64_t rows, per_job, pieces;
} move;

static int64_t id_at(const gr_array *ids, int64_t i0, int64_t i1, int64_t i2)
{
  int32_t id;
  memcpy(&id, gr_array_at(ids, i0, i1, i2, 0), sizeof id);
  return id;
}

static void get_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const move *m = ctx;
  const gr_array *table = &m->call->in[0], *y = &m->call->out[0];
  for (int64_t r = (int64_t)job * m->per_job; r < gr_min(((int64_t)job + 1) * m->per_job, m->rows); r++) {
    gr_row_at at = gr_row_index(y, r);
    int64_t id = id_at(&m->call->in[1], at.i1, at.i2, at.i3);
    float *out = (float *)gr_array_at(y, 0, at.i1, at.i2, at.i3);
    if (id < 0 || id >= table->ne[1]) memset(out, 0, (size_t)y->ne[0] * sizeof *out);
    else
      m->isa->decode[table->dtype](gr_array_at(table, 0, id, GR_MUTANT(get_rows_no_batch) ? 0 : at.i2 % table->ne[2], at.i3 % table->ne[3]),
                                   out, table->ne[0]);
  }
}

gr_status gr_cpu_run_get_rows(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  move m = { .call = call, .isa = gr_cpu_isa_of(b), .rows = gr_array_rows(&call->out[0]) };
  m.per_job = gr_cpu_rows_per_job(call->out[0].ne[0]);
  gr_pool_run(call->pool, (size_t)gr_ceil_div(m.rows, m.per_job), get_job, &m);
  return GR_OK;
}

/* One job a piece of columns: it alone writes them, in the order of the ids. */
static void get_back_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const move *m = ctx;
  const gr_array *dy = &m->call->in[0], *out = &m->call->out[0];
  int64_t i0 = (int64_t)job * GR_CPU_PIECE, n = gr_min(GR_CPU_PIECE, out->ne[0] - i0);
  float buffer[GR_CPU_PIECE];
  for (int64_t r = 0; r < gr_array_rows(out); r++) {
    gr_row_at at = gr_row_index(out, r);
    memset(gr_array_at(out, i0, at.i1, at.i2, at.i3), 0, (size_t)n * sizeof(float));
  }
  for (int64_t r = 0; r < gr_array_rows(dy); r++) {
    gr_row_at at = gr_row_index(dy, r);
    int64_t id = id_at(&m->call->in[1], at.i1, at.i2, at.i3);
    if (id < 0 || id >= out->ne[1]) continue;
    float *y = (float *)gr_array_at(out, i0, id, GR_MUTANT(get_rows_back_no_batch) ? 0 : at.i2 % out->ne[2], at.i3 % out->ne[3]);
    if (GR_MUTANT(get_rows_back_overwrites)) memset(y, 0, (size_t)n * sizeof *y);
    m->isa->add(y, y, gr_cpu_piece(dy, i0, n, at, buffer), n);
  }
}

gr_status gr_cpu_run_get_rows_back(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  move m = { .call = call, .isa = gr_cpu_isa_of(b) };
  gr_pool_run(call->pool, (size_t)gr_ceil_div(call->out[0].ne[0], GR_CPU_PIECE), get_back_job, &m);
  return GR_OK;
}

static void store_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const move *m = ctx;
  const gr_array *cache = &m->call->out[0], *x = &m->call->in[1];
  int64_t id = id_at(&m->call->in[2], (int64_t)job, 0, 0);
  if (id < 0 || id >= cache->ne[2]) return;
  if (GR_MUTANT(store_rows_slot_0)) id = 0;
  for (int64_t j = 0; j < x->ne[1]; j++) {
    if (cache->dtype == GR_F32 && cache->nb[0] == sizeof(float) && x->nb[0] == sizeof(float))
      memcpy(gr_array_at(cache, 0, j, id, 0), gr_array_at(x, 0, j, (int64_t)job, 0), (size_t)x->ne[0] * sizeof(float));
    else
      for (int64_t i = 0; i < x->ne[0]; i++) gr_array_set(cache, i, j, id, 0, gr_array_get(x, i, j, (int64_t)job, 0));
  }
}

gr_status gr_cpu_run_store_rows(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  move m = { .call = call, .isa = gr_cpu_isa_of(b) };
  gr_pool_run(call->pool, (size_t)call->in[1].ne[2], store_job, &m);
  return GR_OK;
}
