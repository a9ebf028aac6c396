/* attention, attention_back: which keys each query sees, and jobs for the kernels. */
#include <string.h>

#include "backend/cpu/cpu.h"

enum { Q, K, V, POS_Q, SEG_Q, POS_K, SEG_K, SINKS, OUT = 7, LSE, DOUT };

static int32_t integer_at(const gr_array *a, int64_t i)
{
  int32_t v;
  memcpy(&v, gr_array_at(a, i, 0, 0, 0), sizeof v);
  return v;
}

/* The first key from `from` on, before `to`, whose position is at least `pos`: positions ascend within a segment. */
static int32_t first_at(const gr_array *pos_k, int32_t from, int32_t to, int64_t pos)
{
  while (from < to) {
    int32_t mid = from + (to - from) / 2;
    if (integer_at(pos_k, mid) < pos) from = mid + 1;
    else to = mid;
  }
  return from;
}

static bool same_segment(const gr_array *seg_k, int64_t j, int32_t seg) { return j < seg_k->ne[0] && integer_at(seg_k, j) == seg; }

/* Segments of keys come in runs; a query's is mostly that of the query before it, or the next. */
static void find_visible(const gr_op_call *call, gr_cpu_visible *visible)
{
  const struct gr_attention_params *p = call->params;
  const gr_array *seg_q = &call->in[SEG_Q], *seg_k = &call->in[SEG_K], *pos_k = &call->in[POS_K];
  int32_t start = 0, end = 0;
  for (int64_t i = 0; i < seg_q->ne[0]; i++) {
    int32_t seg = integer_at(seg_q, i);
    visible[i] = (gr_cpu_visible){ 0, 0, 0 };
    if (seg < 0) continue;
    if (start == end || integer_at(seg_k, start) != seg) {
      start = same_segment(seg_k, end, seg) ? end : 0;
      while (start < seg_k->ne[0] && integer_at(seg_k, start) != seg) start++;
      for (end = start; same_segment(seg_k, end, seg); end++) {
      }
    }
    if (start == end) continue;
    int64_t pos = integer_at(&call->in[POS_Q], i);
    visible[i].start = start;
    visible[i].from = p->window ? first_at(pos_k, start, end, pos - p->window + 1) : start;
    visible[i].to = first_at(pos_k, start, end, pos + 1);
  }
}

static size_t dense_bytes(const gr_array *a)
{
  return a->nb[0] == sizeof(float) ? 0 : (size_t)gr_cpu_align(gr_array_count(a) * (int64_t)sizeof(float));
}

/* An array whose rows are dense: a itself, or a copy in scratch. */
static gr_array dense(const gr_array *a, char **scratch)
{
  if (!dense_bytes(a)) return *a;
  gr_array copy = *a;
  copy.data = *scratch;
  gr_strides_contiguous(GR_F32, copy.ne, copy.nb);
  *scratch += dense_bytes(a);
  for (int64_t r = 0; r < gr_array_rows(a); r++) {
    gr_row_at at = gr_row_index(a, r);
    gr_cpu_gather(a, at, (float *)gr_array_at(&copy, 0, at.i1, at.i2, at.i3));
  }
  return copy;
}

static gr_cpu_attention prepare(const gr_op_call *call, bool back)
{
  char *scratch = call->scratch;
  gr_cpu_visible *visible = call->scratch;
  scratch += gr_cpu_align(call->in[Q].ne[2] * (int64_t)sizeof *visible);
  find_visible(call, visible);
  gr_cpu_attention a = { .params = *(const struct gr_attention_params *)call->params,
                         .visible = visible,
                         .q = dense(&call->in[Q], &scratch),
                         .k = dense(&call->in[K], &scratch),
                         .v = dense(&call->in[V], &scratch),
                         .group = call->in[Q].ne[1] / call->in[K].ne[1] };
  if (back) {
    a.out = dense(&call->in[OUT], &scratch);
    a.lse = call->in[LSE];
    a.dout = dense(&call->in[DOUT], &scratch);
    a.dq = call->out[0], a.dk = call->out[1], a.dv = call->out[2];
  } else {
    a.out = call->out[0];
    a.lse = call->out[1];
    if (call->n_in > SINKS && call->in[SINKS].ne[0] > 0) {
      gr_array sinks = dense(&call->in[SINKS], &scratch);
      a.sinks = sinks.data;
    }
  }
  return a;
}

size_t gr_cpu_scratch_attention(const gr_op_call *call, int threads)
{
  (void)threads;
  size_t bytes = (size_t)gr_cpu_align(call->in[Q].ne[2] * (int64_t)sizeof(gr_cpu_visible));
  for (int i = 0; i < call->n_in; i++)
    if (call->in[i].dtype == GR_F32) bytes += dense_bytes(&call->in[i]);
  return bytes;
}

size_t gr_cpu_scratch_attention_back(const gr_op_call *call, int threads) { return gr_cpu_scratch_attention(call, threads); }

typedef struct attention_jobs {
  gr_cpu_attention a;
  const gr_cpu_isa *isa;
} attention_jobs;

static void query_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const attention_jobs *w = ctx;
  for (int64_t h = 0; h < w->a.q.ne[1]; h++) w->isa->attention_row(&w->a, (int64_t)job, h);
}

static void back_query_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const attention_jobs *w = ctx;
  for (int64_t h = 0; h < w->a.q.ne[1]; h++) w->isa->attention_back_row(&w->a, (int64_t)job, h);
}

static void back_key_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const attention_jobs *w = ctx;
  for (int64_t h = 0; h < w->a.k.ne[1]; h++) w->isa->attention_back_key(&w->a, (int64_t)job, h);
}

gr_status gr_cpu_run_attention(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  attention_jobs w = { prepare(call, false), gr_cpu_isa_of(b) };
  gr_pool_run(call->pool, (size_t)call->in[Q].ne[2], query_job, &w);
  return GR_OK;
}

gr_status gr_cpu_run_attention_back(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  attention_jobs w = { prepare(call, true), gr_cpu_isa_of(b) };
  gr_pool_run(call->pool, (size_t)call->in[Q].ne[2], back_query_job, &w);
  gr_pool_run(call->pool, (size_t)call->in[K].ne[2], back_key_job, &w);
  return GR_OK;
}
