/* Attention of a single query, as generation has it: what it costs is reading keys and values, so each is read once for all heads of a
 * group, and pieces of keys, chunks and columns are jobs of their own. The bits are those of a strip (attention.c): a score is a chain
 * along the head, a sum one along the keys of a chunk, and chunks are added up in order. */
#include "backend/cpu/kernels/keys.h"
#include "backend/cpu/kernels/vmath.h"
#include "base/mutant.h"

enum {
  ROWS = 4,
  AHEAD = 2 * GR_LANES, /* keys that are asked for while others are multiplied, */
  VALUES_AHEAD = 48     /* and values */
};

/* Scores of GR_LANES keys, which stand side by side in lanes, for `rows` heads. */
static inline __attribute__((always_inline)) void multiply(int rows, const float *q, int64_t q_row, const float *const src[GR_LANES],
                                                           int64_t ahead, int64_t n, vf sum[ROWS])
{
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r] = (vf){ 0 };
  for (int64_t i = 0; i < n; i += GR_LANES) {
    vf v[GR_LANES];
    if (n - i >= GR_LANES) {
      GR_UNROLL
      for (int k = 0; k < GR_LANES; k++) {
        v[k] = vload(src[k] + i);
        __builtin_prefetch(src[k] + i + ahead);
      }
      vtranspose(v);
      GR_UNROLL
      for (int e = 0; e < GR_LANES; e++) {
        GR_UNROLL
        for (int r = 0; r < rows; r++) sum[r] = madd(vset(q[r * q_row + i + e]), v[e], sum[r]);
      }
      continue;
    }
    for (int k = 0; k < GR_LANES; k++) v[k] = vload_part(src[k] + i, n - i);
    vtranspose(v);
    for (int e = 0; e < n - i; e++) {
      GR_UNROLL
      for (int r = 0; r < rows; r++) sum[r] = madd(vset(q[r * q_row + i + e]), v[e], sum[r]);
    }
  }
}

typedef void multiply_fn(const float *q, int64_t q_row, const float *const src[GR_LANES], int64_t ahead, int64_t n, vf sum[ROWS]);
#define MULTIPLY(R)                                                                                                                        \
  static void multiply_##R(const float *q, int64_t q_row, const float *const src[GR_LANES], int64_t ahead, int64_t n, vf sum[ROWS])        \
  {                                                                                                                                        \
    multiply(R, q, q_row, src, ahead, n, sum);                                                                                             \
  }
MULTIPLY(1)
MULTIPLY(2)
MULTIPLY(3)
MULTIPLY(4)
static multiply_fn *const multiplies[ROWS] = { multiply_1, multiply_2, multiply_3, multiply_4 };

/* Scores of up to GR_LANES keys from j on, for all heads of one key head. */
static void head_scores(const gr_cpu_attention *a, const gr_cpu_one *o, int64_t kv, int64_t j, int64_t live)
{
  const float cap = a->params.softcap;
  const int64_t ahead = AHEAD * a->k.nb[2] / (int64_t)sizeof(float);
  const float *src[GR_LANES];
  for (int64_t i = 0; i < GR_LANES; i++) src[i] = row_at(&a->k, GR_MUTANT(attention_one_head_0) ? 0 : kv, j + gr_min(i, live - 1));
  for (int64_t r = 0, rows; r < a->group; r += rows) {
    rows = gr_min(ROWS, a->group - r);
    int64_t head = kv * a->group + r;
    vf sum[ROWS];
    multiplies[rows - 1](o->q + (GR_MUTANT(attention_one_first_heads) ? kv * a->group : head) * o->q_row, o->q_row, src, ahead, a->k.ne[0],
                         sum);
    for (int64_t i = 0; i < rows; i++) {
      float *scores = o->scores + (head + i) * o->score_row + (j - o->see.from);
      vf x = cap > 0 ? cap * vtanh(sum[i] / cap) : sum[i];
      if (live == GR_LANES) vstore(scores, x);
      else vstore_part(scores, x, live);
    }
  }
}

static float largest(const float *scores, int64_t n)
{
  vf top = vset(-INFINITY);
  int64_t j = 0;
  for (; j + GR_LANES <= n; j += GR_LANES) top = vmax(vload(scores + j), top);
  float most = vmax_lanes(top);
  for (; j < n; j++) most = scores[j] > most ? scores[j] : most;
  return most;
}

/* Keys are walked in the order of memory, all heads of each before the next. */
void GR_ISA_FN(attention_one_scores)(const gr_cpu_attention *a, const gr_cpu_one *o, int64_t piece)
{
  int64_t begin = gr_cpu_one_first(o, GR_CPU_PIECE_KEYS) + piece * GR_CPU_PIECE_KEYS, heads = a->q.ne[1];
  int64_t from = gr_max(o->see.from, begin), to = gr_min(o->see.to, begin + GR_CPU_PIECE_KEYS);
  for (int64_t j = from; j < to; j += GR_LANES)
    for (int64_t kv = 0; kv < a->k.ne[1]; kv++) head_scores(a, o, kv, j, gr_min(GR_LANES, to - j));
  for (int64_t h = 0; h < heads; h++) o->tops[piece * heads + h] = largest(o->scores + h * o->score_row + (from - o->see.from), to - from);
}

/* Exponentials of a chunk's scores for one head; returns their sum when it is asked for. */
static void exponentials(const float *scores, float top, int64_t n, float *p)
{
  const vf t = vset(top);
  for (int64_t j = 0; j < n; j += GR_LANES) {
    vf s = n - j >= GR_LANES ? vload(scores + j) : vload_part(scores + j, n - j);
    vstore(p + j, vexp(s - t));
  }
}

/* y[r] = sum over j of p[r, j] v[j], in ascending order, for one vector of columns or two. */
static inline __attribute__((always_inline)) void mix(int rows, int vectors, const float *p, const float *v, int64_t v_row, int64_t n,
                                                      float *y, int64_t y_row)
{
  vf sum[ROWS][2];
  GR_UNROLL
  for (int r = 0; r < rows; r++) {
    GR_UNROLL
    for (int i = 0; i < vectors; i++) sum[r][i] = (vf){ 0 };
  }
  for (int64_t j = 0; j < n; j++, v += v_row) {
    GR_UNROLL
    for (int i = 0; i < vectors; i++) {
      __builtin_prefetch(v + i * GR_LANES + VALUES_AHEAD * v_row);
      vf x = vload(v + i * GR_LANES);
      GR_UNROLL
      for (int r = 0; r < rows; r++) sum[r][i] = madd(vset(p[r * GR_CPU_KEYS + j]), x, sum[r][i]);
    }
  }
  GR_UNROLL
  for (int r = 0; r < rows; r++) {
    GR_UNROLL
    for (int i = 0; i < vectors; i++) vstore(y + r * y_row + i * GR_LANES, sum[r][i]);
  }
}

typedef void mix_fn(const float *p, const float *v, int64_t v_row, int64_t n, float *y, int64_t y_row);
#define MIX(R, V)                                                                                                                          \
  static void mix_##R##_##V(const float *p, const float *v, int64_t v_row, int64_t n, float *y, int64_t y_row)                             \
  {                                                                                                                                        \
    mix(R, V, p, v, v_row, n, y, y_row);                                                                                                   \
  }
MIX(1, 1)
MIX(2, 1)
MIX(3, 1)
MIX(4, 1)
MIX(1, 2)
MIX(2, 2)
MIX(3, 2)
MIX(4, 2)
static mix_fn *const mixes[ROWS][2] = { { mix_1_1, mix_1_2 }, { mix_2_1, mix_2_2 }, { mix_3_1, mix_3_2 }, { mix_4_1, mix_4_2 } };

void GR_ISA_FN(attention_one_values)(const gr_cpu_attention *a, const gr_cpu_one *o, int64_t kv, int64_t chunk, int64_t col, float *p)
{
  int64_t begin = gr_cpu_one_first(o, GR_CPU_KEYS) + chunk * GR_CPU_KEYS, heads = a->q.ne[1], width = a->v.ne[0];
  int64_t from = gr_max(o->see.from, begin), to = gr_min(o->see.to, begin + GR_CPU_KEYS), first = kv * a->group;
  double sums[GR_CPU_ONE_HEADS] = { 0 };
  for (int64_t r = 0; r < a->group; r++) {
    float top = o->chunk_tops[chunk * heads + first + r];
    exponentials(o->scores + (first + r) * o->score_row + (from - o->see.from), top > -INFINITY ? top : 0, to - from, p + r * GR_CPU_KEYS);
  }
  if (col == 0) { /* one of the jobs adds up; chains of several heads hide each other's latency */
    for (int64_t j = 0; j < to - from; j++)
      for (int64_t r = 0; r < a->group; r++) sums[r] += (double)p[r * GR_CPU_KEYS + j];
    memcpy(o->sums + chunk * heads + first, sums, (size_t)a->group * sizeof *sums);
  }
  for (int64_t r = 0, rows; r < a->group; r += rows) {
    rows = gr_min(ROWS, a->group - r);
    const float *v = row_at(&a->v, kv, from);
    float *y = o->parts + (chunk * heads + first + r) * width;
    for (int64_t c = col; c < gr_min(col + GR_CPU_STRIP, width); c += 2 * GR_LANES)
      mixes[rows - 1][width - c > GR_LANES](p + r * GR_CPU_KEYS, v + c, a->v.nb[2] / (int64_t)sizeof(float), to - from, y + c, width);
  }
}
