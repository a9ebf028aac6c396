/* Attention a query, or a key, at a time; scores of a block of keys are on the stack. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/vmath.h"

enum { KEYS = 64 };

static inline const float *row(const gr_array *a, int64_t i1, int64_t i2) { return (const float *)gr_array_at(a, 0, i1, i2, 0); }

/* A chain of multiply-adds a lane, lanes added in pairs. */
static inline float dot(const float *a, const float *b, int64_t n)
{
  vf sum = { 0 };
  int64_t i = 0;
  for (; i + GR_LANES <= n; i += GR_LANES) sum = madd(vload(a + i), vload(b + i), sum);
  if (i < n) sum = madd(vload_part(a + i, n - i), vload_part(b + i, n - i), sum);
  float s[GR_LANES];
  vstore(s, sum);
  for (int w = GR_LANES / 2; w > 0; w /= 2)
    for (int j = 0; j < w; j++) s[j] += s[j + w];
  return s[0];
}

static inline void add_scaled(float *y, const float *x, float s, int64_t n)
{
  int64_t i = 0;
  for (; i + GR_LANES <= n; i += GR_LANES) vstore(y + i, madd(vload(x + i), vset(s), vload(y + i)));
  if (i < n) vstore_part(y + i, madd(vload_part(x + i, n - i), vset(s), vload_part(y + i, n - i)), n - i);
}

static inline float soften(const gr_cpu_attention *a, float s)
{
  s *= a->params.scale;
  if (a->params.softcap <= 0) return s;
  return a->params.softcap * vtanh(vset(s / a->params.softcap))[0];
}

void GR_ISA_FN(attention_row)(const gr_cpu_attention *a, int64_t query, int64_t head)
{
  const gr_cpu_visible *see = &a->visible[query];
  const float *q = row(&a->q, head, query);
  int64_t dk = a->q.ne[0], dv = a->v.ne[0], kv = head / a->group;
  float *out = (float *)gr_array_at(&a->out, 0, head, query, 0), *lse = (float *)gr_array_at(&a->lse, head, query, 0, 0);
  float most = a->sinks ? a->sinks[head] : -INFINITY;
  double sum = a->sinks ? 1 : 0;
  for (int64_t i = 0; i < dv; i++) out[i] = 0;
  for (int64_t from = see->from, to; from < see->to; from = to) {
    to = gr_min(see->to, see->start + ((from - see->start) / KEYS + 1) * KEYS);
    float s[KEYS], top = most;
    for (int64_t j = from; j < to; j++) {
      s[j - from] = soften(a, dot(q, row(&a->k, kv, j), dk));
      top = s[j - from] > top ? s[j - from] : top;
    }
    if (top > most) {
      float shrink = most == -INFINITY ? 0 : vexp(vset(most - top))[0];
      for (int64_t i = 0; i < dv; i++) out[i] *= shrink;
      sum *= (double)shrink;
      most = top;
    }
    for (int64_t j = from; j < to; j++) {
      float p = vexp(vset(s[j - from] - most))[0];
      sum += (double)p;
      add_scaled(out, row(&a->v, kv, j), p, dv);
    }
  }
  *lse = sum > 0 ? (float)((double)most + log(sum)) : -INFINITY;
  for (int64_t i = 0; i < dv; i++) out[i] = sum > 0 ? (float)((double)out[i] / sum) : 0;
}

/* The probability of a key, and the gradient of its score before scale; `flow` is dout . out. */
static inline float score_gradient(const gr_cpu_attention *a, int64_t query, int64_t head, int64_t key, double flow, float *p)
{
  int64_t kv = head / a->group;
  float lse = *(const float *)gr_array_at(&a->lse, head, query, 0, 0);
  float s = soften(a, dot(row(&a->q, head, query), row(&a->k, kv, key), a->q.ne[0]));
  *p = vexp(vset(s - lse))[0];
  float ds = *p * (float)((double)dot(row(&a->dout, head, query), row(&a->v, kv, key), a->v.ne[0]) - flow);
  if (a->params.softcap > 0) ds *= 1 - s / a->params.softcap * (s / a->params.softcap);
  return ds * a->params.scale;
}

static inline double flow_of(const gr_cpu_attention *a, int64_t query, int64_t head)
{
  return GR_ISA_FN(dot)(row(&a->dout, head, query), row(&a->out, head, query), a->v.ne[0]);
}

void GR_ISA_FN(attention_back_row)(const gr_cpu_attention *a, int64_t query, int64_t head)
{
  const gr_cpu_visible *see = &a->visible[query];
  float *dq = (float *)gr_array_at(&a->dq, 0, head, query, 0);
  for (int64_t i = 0; i < a->q.ne[0]; i++) dq[i] = 0;
  double flow = flow_of(a, query, head);
  for (int64_t j = see->from; j < see->to; j++) {
    float p, ds = score_gradient(a, query, head, j, flow, &p);
    add_scaled(dq, row(&a->k, head / a->group, j), ds, a->q.ne[0]);
  }
}

void GR_ISA_FN(attention_back_key)(const gr_cpu_attention *a, int64_t key, int64_t head)
{
  float *dk = (float *)gr_array_at(&a->dk, 0, head, key, 0), *dv = (float *)gr_array_at(&a->dv, 0, head, key, 0);
  for (int64_t i = 0; i < a->k.ne[0]; i++) dk[i] = 0;
  for (int64_t i = 0; i < a->v.ne[0]; i++) dv[i] = 0;
  for (int64_t query = 0; query < a->q.ne[2]; query++) {
    if (key < a->visible[query].from || key >= a->visible[query].to) continue;
    for (int64_t h = head * a->group; h < (head + 1) * a->group; h++) {
      float p, ds = score_gradient(a, query, h, key, flow_of(a, query, h), &p);
      add_scaled(dk, row(&a->q, h, query), ds, a->k.ne[0]);
      add_scaled(dv, row(&a->dout, h, query), p, a->v.ne[0]);
    }
  }
}
