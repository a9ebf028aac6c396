/* Attention of a single query over many keys (kernels/attention_one.c): scores by pieces of keys, values by chunks and columns, then the
 * chunks one after the other. Pieces and chunks are counted from the first key of the segment. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

enum { SMALL = 20000 }; /* floats of keys and values that are not worth waking threads for */

typedef struct one_jobs {
  const gr_cpu_attention *a;
  const gr_cpu_isa *isa;
  gr_cpu_one one;
  int64_t pieces, chunks, strips;
  bool forward; /* pieces as gr_forward has them */
  float *scratch;
} one_jobs;

static int64_t up(int64_t n) { return gr_ceil_div(n, GR_CPU_STRIP) * GR_CPU_STRIP; }

bool gr_cpu_attention_is_one(const gr_cpu_attention *a)
{
  return a->q.ne[2] == 1 && !a->rounds && a->v.ne[0] % 16 == 0 && a->group <= GR_CPU_ONE_HEADS;
}

int64_t gr_cpu_attention_one_floats(const gr_cpu_attention *a, int threads)
{
  int64_t heads = a->q.ne[1], m = a->k.ne[2], chunks = m / GR_CPU_KEYS + 2, pieces = m / GR_CPU_PIECE_KEYS + 2;
  return up(heads * up(a->q.ne[0])) + up(heads * up(m)) + up(pieces * heads) + up(chunks * heads) + up(2 * chunks * heads) +
         up(chunks * heads * a->v.ne[0]) + threads * gr_min(a->group, GR_CPU_ONE_HEADS) * GR_CPU_KEYS;
}

static float *take(float **scratch, int64_t floats)
{
  float *at = *scratch;
  *scratch += up(floats);
  return at;
}

static void lay_out(one_jobs *w, float *scratch)
{
  const gr_cpu_attention *a = w->a;
  gr_cpu_one *o = &w->one;
  int64_t heads = a->q.ne[1], keys = o->see.to - o->see.from;
  w->pieces = gr_ceil_div(o->see.to - gr_cpu_one_first(o, GR_CPU_PIECE_KEYS), GR_CPU_PIECE_KEYS);
  w->chunks = gr_ceil_div(o->see.to - gr_cpu_one_first(o, GR_CPU_KEYS), GR_CPU_KEYS);
  w->strips = gr_ceil_div(a->v.ne[0], GR_CPU_STRIP);
  o->q_row = up(a->q.ne[0]), o->score_row = up(keys);
  o->q = take(&scratch, heads * o->q_row);
  o->scores = take(&scratch, heads * o->score_row);
  o->tops = take(&scratch, w->pieces * heads);
  o->chunk_tops = take(&scratch, w->chunks * heads);
  o->sums = (double *)(void *)take(&scratch, 2 * w->chunks * heads);
  o->parts = take(&scratch, w->chunks * heads * a->v.ne[0]);
  w->scratch = scratch;
}

static void score_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const one_jobs *w = ctx;
  w->isa->attention_one_scores(w->a, &w->one, w->forward ? gr_forward((int64_t)job, w->pieces) : (int64_t)job);
}

static void value_job(void *ctx, size_t job, int thread)
{
  const one_jobs *w = ctx;
  int64_t heads = w->a->k.ne[1], strip = (int64_t)job % w->strips, head = (int64_t)job / w->strips % heads;
  w->isa->attention_one_values(w->a, &w->one, head, (int64_t)job / w->strips / heads, strip * GR_CPU_STRIP,
                               w->scratch + thread * w->a->group * GR_CPU_KEYS);
}

static float sink_of(const one_jobs *w, int64_t head) { return w->a->sinks ? w->a->sinks[head] : -INFINITY; }

/* The largest score up to the end of each chunk. */
static void find_tops(one_jobs *w)
{
  const gr_cpu_one *o = &w->one;
  const int64_t heads = w->a->q.ne[1], origin = gr_cpu_one_first(o, GR_CPU_PIECE_KEYS), first = gr_cpu_one_first(o, GR_CPU_KEYS);
  for (int64_t head = 0; head < heads; head++) {
    float top = sink_of(w, head);
    for (int64_t p = 0; p < w->pieces; p++) {
      if (o->tops[p * heads + head] > top) top = o->tops[p * heads + head];
      o->chunk_tops[(origin + p * GR_CPU_PIECE_KEYS - first) / GR_CPU_KEYS * heads + head] = top;
    }
  }
}

static void finish(const one_jobs *w, int64_t head)
{
  const gr_cpu_attention *a = w->a;
  const int64_t heads = a->q.ne[1], width = a->v.ne[0];
  float *out = (float *)gr_array_at(&a->out, 0, head, 0, 0), before = sink_of(w, head);
  double total = a->sinks ? 1 : 0;
  memset(out, 0, (size_t)width * sizeof *out);
  for (int64_t c = 0; c < w->chunks; c++) {
    float top = w->one.chunk_tops[c * heads + head], shrink = before - (top > -INFINITY ? top : 0);
    const float *part = w->one.parts + (c * heads + head) * width;
    w->isa->exp(&shrink, &shrink, 1);
    if (GR_MUTANT(attention_one_no_shrink)) shrink = 1;
    total = total * (double)shrink + w->one.sums[c * heads + head];
    if (c) w->isa->scale(out, out, shrink, width), w->isa->add(out, out, part, width);
    else memcpy(out, part, (size_t)width * sizeof *out);
    before = top;
  }
  bool any = total != 0; /* NaN counts */
  if (any) w->isa->scale(out, out, (float)(1 / total), width);
  else memset(out, 0, (size_t)width * sizeof *out);
  *(float *)gr_array_at(&a->lse, head, 0, 0, 0) = any ? (float)((double)before + log(total)) : -INFINITY;
}

void gr_cpu_attention_one(const gr_cpu_attention *a, const gr_cpu_isa *isa, gr_pool *pool, float *scratch)
{
  one_jobs w = { .a = a, .isa = isa, .one = { .see = a->visible[0] } };
  if (w.one.see.to < w.one.see.from) w.one.see.to = w.one.see.from;
  if (w.one.see.to == w.one.see.from) w.one.see = (gr_cpu_visible){ 0, 0, 0 };
  lay_out(&w, scratch);
  for (int64_t h = 0; h < a->q.ne[1]; h++)
    isa->scale(w.one.q + h * w.one.q_row, (const float *)gr_array_at(&a->q, 0, h, 0, 0), a->params.scale, a->q.ne[0]);
  if ((w.one.see.to - w.one.see.from) * a->k.ne[1] * (a->k.ne[0] + a->v.ne[0]) < SMALL) pool = NULL;
  w.forward = gr_pool_threads(pool) > 1;
  gr_pool_run(pool, (size_t)w.pieces, score_job, &w);
  find_tops(&w);
  gr_pool_run(pool, (size_t)(w.chunks * w.strips * a->k.ne[1]), value_job, &w);
  for (int64_t h = 0; h < a->q.ne[1]; h++) finish(&w, h);
}
