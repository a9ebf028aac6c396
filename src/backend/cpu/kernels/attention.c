/* Attention of a strip of queries, which stand side by side in the lanes of vectors (backend/cpu/attention.h). By chunks of keys:
 *   scores[key, query] = K[key, :] . q     micro-kernel, rows are keys
 *   softmax down the columns               running maximum, sums in double
 *   out[query, :] += p[:, query] V         micro-kernel, rows are queries
 * Rounded to bf16 are p and V. Scores are not: what one is off by, its exponential is off by as a share of itself. */
#include "backend/cpu/kernels/keys.h"
#include "backend/cpu/kernels/vmath.h"
#include "base/mutant.h"

typedef struct strip_state {
  int64_t rows;
  int vectors;              /* 1 when one holds all rows */
  vi from[2], to[2];        /* visible keys of each query */
  int32_t lo, hi;           /* keys that any of them sees, */
  int32_t all_from, all_to; /* and that all of them see */
  vf top[2];                /* largest score so far */
  vdouble low[2], high[2];  /* sums of exp(score - top): lower and upper half of the lanes */
  float *q, *qt;            /* [GR_COLS][q_row], [dk][GR_COLS]: scale q */
  float *scores, *out;      /* [keys][GR_COLS], [GR_COLS][out_row] */
  int64_t out_row;
  int64_t start; /* first key of the segment */
} strip_state;

/* ---- packing ---- */

static void pack_rows(float *dst, const gr_array *x, int64_t head, int64_t first, int64_t rows, bool rounds, bool words)
{
  const float *src[GR_ROWS_UP];
  for (int64_t r = 0; r < GR_ROWS_UP; r++) src[r] = row_at(x, head, first + gr_min(r, rows - 1));
#if GR_WORDS
  if (words) {
    transpose_words_packed(dst, rows, src, x->ne[0]);
    return;
  }
#endif
  (void)words;
  transpose_packed(dst, rows, src, x->ne[0]);
  if (rounds) round_floats(dst, rows * x->ne[0]);
}

static void copy_rows(const gr_cpu_attention *a, const gr_cpu_heads *to, const gr_array *x, int64_t head, int64_t first, int64_t rows)
{
  for (int64_t r = first; r < first + rows; r++) {
    float *dst = to->data + head * to->head + r * to->row;
#if GR_WORDS
    if (a->words) {
      int64_t start = a->key_start[r];
      bool two = r + 1 < x->ne[2] && a->key_start[r + 1] == start && !GR_MUTANT(attention_bf16_pair_second);
      dst = to->data + head * to->head + (start + (r - start) / 2) * to->row;
      if ((r - start) % 2 == 0) pair_words(dst, row_at(x, head, r), two ? row_at(x, head, r + 1) : NULL, x->ne[0], to->row);
      continue;
    }
#endif
    memcpy(dst, row_at(x, head, r), (size_t)x->ne[0] * sizeof *dst);
    memset(dst + x->ne[0], 0, (size_t)(to->row - x->ne[0]) * sizeof *dst);
    if (a->rounds) round_floats(dst, x->ne[0]);
  }
}

void GR_ISA_FN(attention_pack)(const gr_cpu_attention *a, int64_t head, int64_t block)
{
  int64_t first = block * GR_ROWS, rows = gr_min(GR_ROWS, a->k.ne[2] - first);
  const int64_t v_steps = gr_cpu_attention_words(a, a->v.ne[0]);
  pack_rows(key_block(a, a->k_blocks, a->k.ne[0], head, block), &a->k, head, first, rows, false, false);
  if (a->v_blocks) pack_rows(key_block(a, a->v_blocks, v_steps, head, block), &a->v, head, first, rows, a->rounds, a->words);
  if (a->copy_k) copy_rows(a, &a->k_rows, &a->k, head, first, rows);
  if (a->copy_v) copy_rows(a, &a->v_rows, &a->v, head, first, rows);
}

/* ---- one strip ---- */

static void begin_strip(const gr_cpu_attention *a, int64_t head, gr_cpu_strip strip, strip_state *s)
{
  int32_t from[GR_COLS] = { 0 }, to[GR_COLS] = { 0 };
  float top[GR_COLS];
  s->rows = strip.rows;
  s->vectors = strip.rows > GR_LANES ? 2 : 1;
  s->lo = INT32_MAX, s->hi = 0, s->all_from = 0, s->all_to = INT32_MAX;
  const float *src[GR_COLS];
  const int64_t width = a->q.ne[0], q_row = gr_ceil_div(width, GR_LANES) * GR_LANES;
  for (int64_t r = 0; r < s->vectors * GR_LANES; r++) {
    int64_t at = strip.first + gr_min(r, strip.rows - 1), query = at / a->group, h = head * a->group + at % a->group;
    const gr_cpu_visible *see = &a->visible[query];
    src[r] = s->q + r * q_row;
    GR_ISA_FN(scale)(s->q + r * q_row, row_at(&a->q, h, query), a->params.scale, width);
    if (GR_MUTANT(attention_bf16_scores) && a->rounds) round_floats(s->q + r * q_row, width);
    top[r] = a->sinks ? a->sinks[h] : -INFINITY;
    if (r >= strip.rows) continue;
    from[r] = see->from, to[r] = see->to;
    if (see->from < see->to && see->from < s->lo) s->lo = see->from;
    if (see->to > s->hi) s->hi = see->to;
    if (see->from > s->all_from) s->all_from = see->from;
    if (see->to < s->all_to) s->all_to = see->to;
  }
  for (int v = 0; v < s->vectors; v++) {
    memcpy(&s->from[v], from + v * GR_LANES, sizeof(vi));
    memcpy(&s->to[v], to + v * GR_LANES, sizeof(vi));
    s->top[v] = vload(top + v * GR_LANES);
    s->low[v] = s->high[v] = (vdouble){ 0 } + (a->sinks ? 1 : 0);
    transpose_rows(s->qt + v * GR_LANES, GR_COLS, src + v * GR_LANES, width);
  }
}

/* Scores of keys [from, to). */
static void score(const gr_cpu_attention *a, int64_t head, const strip_state *s, int64_t from, int64_t to)
{
  if (GR_MUTANT(attention_head_0)) head = 0;
  if (a->k_blocks) {
    times_keys(a, a->k_blocks, a->k.ne[0], false, head, s->vectors, s->qt, GR_COLS, from, to, s->scores, GR_COLS);
    return;
  }
  for (int64_t j = from, rows; j < to; j += rows) {
    rows = gr_min(GR_ROWS, to - j);
    GR_ISA_FN(micro)
    [GR_A_BY_ROW][rows - 1][s->vectors - 1](row_at(&a->k, head, j), a->k.nb[2] / (int64_t)sizeof(float), s->qt, GR_COLS, a->k.ne[0],
                                            s->scores + (j - from) * GR_COLS, GR_COLS, NULL, 0, NULL);
  }
}

/* Softcap and mask, and the largest score of each query. masked and capped are constants where this is called. */
static inline __attribute__((always_inline)) void find_top(strip_state *s, int v, float *scores, int64_t from, int64_t to, float cap,
                                                           bool masked)
{
  vf top = s->top[v];
  for (int64_t j = from; j < to; j++, scores += GR_COLS) {
    vf x = vload(scores);
    if (cap > 0 && !GR_MUTANT(attention_no_softcap)) x = cap * vtanh(x / cap);
    if (masked) x = vif_within((int32_t)j, s->from[v], s->to[v], x, vset(-INFINITY));
    if (masked || cap > 0) vstore(scores, x);
    top = vmax(x, top); /* a NaN score does not become the top; its exponential below still is NaN */
  }
  s->top[v] = top;
}

/* Scores of keys [from, to) become exponentials, or words of two keys' exponentials; what was summed before is to be multiplied by shrink,
 * which is returned. Sums are of what was not rounded. */
static vf exponentiate(const gr_cpu_attention *a, strip_state *s, int v, float *scores, int64_t from, int64_t to)
{
  const float cap = a->params.softcap;
  int64_t all_from = gr_max(from, gr_min(to, s->all_from)), all_to = gr_max(all_from, gr_min(to, s->all_to));
  vf before = s->top[v];
  find_top(s, v, scores, from, all_from, cap, true);
  float *inner = scores + (all_from - from) * GR_COLS;
  if (cap > 0) find_top(s, v, inner, all_from, all_to, cap, false);
  else find_top(s, v, inner, all_from, all_to, 0, false);
  find_top(s, v, scores + (all_to - from) * GR_COLS, all_to, to, cap, true);
  vf top = vif_less(vset(-INFINITY), s->top[v], s->top[v], vset(0)), shrink = vexp(before - top);
  vdouble low = { 0 }, high = { 0 };
#if GR_WORDS
  float *words = scores;
  for (int64_t j = from; a->words && j < to; j += 2, scores += 2 * GR_COLS, words += GR_COLS) {
    vf even = vexp(vload(scores) - top), odd = j + 1 < to ? vexp(vload(scores + GR_COLS) - top) : (vf){ 0 };
    vstore(words, vpair(even, odd));
    low += vwiden_low(even), high += vwiden_high(even);
    low += vwiden_low(odd), high += vwiden_high(odd);
  }
#endif
  for (int64_t j = from; !a->words && j < to; j++, scores += GR_COLS) {
    vf p = vexp(vload(scores) - top);
    vstore(scores, a->rounds ? vround_bf16(p) : p);
    low += vwiden_low(p), high += vwiden_high(p);
  }
  s->low[v] = s->low[v] * vwiden_low(shrink) + low;
  s->high[v] = s->high[v] * vwiden_high(shrink) + high;
  return shrink;
}

static void add_values(const gr_cpu_attention *a, int64_t head, const strip_state *s, const float *p, int64_t from, int64_t to, bool first)
{
  int64_t blocks = gr_ceil_div(s->rows, GR_ROWS);
  for (int64_t i = 0; i < blocks; i++) {
    int64_t r = gr_block_begin(s->rows, blocks, i);
    float *out = s->out + r * s->out_row;
    gr_micro_block m = { .a = p + r,
                         .a_step = GR_COLS,
                         .b = key_row(a, &a->v_rows, head, s->start, from),
                         .b_step = a->v_rows.row,
                         .b_strip = GR_COLS,
                         .c = out,
                         .c_row = s->out_row,
                         .base = first ? NULL : out,
                         .base_row = s->out_row,
                         .rows = gr_block_begin(s->rows, blocks, i + 1) - r,
                         .cols = s->out_row,
                         .steps = gr_cpu_attention_words(a, to - from) };
    micro_block(packed_by(a->words), &m);
  }
}

static void finish_strip(const gr_cpu_attention *a, int64_t head, gr_cpu_strip strip, const strip_state *s)
{
  for (int64_t r = 0; r < strip.rows; r++) {
    int64_t at = strip.first + r, query = at / a->group, h = head * a->group + at % a->group, lane = r % GR_LANES;
    int v = r >= GR_LANES;
    double sums[GR_LANES];
    memcpy(sums, &s->low[v], sizeof(vdouble));
    memcpy(sums + GR_LANES / 2, &s->high[v], sizeof(vdouble));
    bool any = sums[lane] != 0; /* NaN counts */
    float *out = (float *)gr_array_at(&a->out, 0, h, query, 0);
    if (any) GR_ISA_FN(scale)(out, s->out + r * s->out_row, (float)(1 / sums[lane]), a->v.ne[0]);
    else memset(out, 0, (size_t)a->v.ne[0] * sizeof *out);
    *(float *)gr_array_at(&a->lse, h, query, 0, 0) = any ? (float)((double)s->top[v][lane] + log(sums[lane])) : -INFINITY;
  }
}

void GR_ISA_FN(attention_strip)(const gr_cpu_attention *a, int64_t head, gr_cpu_strip strip, float *scratch)
{
  strip_state s;
  s.out_row = gr_ceil_div(a->v.ne[0], GR_CPU_STRIP) * GR_CPU_STRIP;
  if (!a->copy_v) s.out_row = a->v.ne[0];
  s.q = scratch;
  s.qt = s.q + gr_ceil_div(a->q.ne[0], GR_LANES) * GR_LANES * GR_COLS;
  s.scores = s.qt + a->q.ne[0] * GR_COLS;
  s.out = s.scores + GR_CPU_KEYS * GR_COLS;
  s.start = a->visible[strip.first / a->group].start;
  begin_strip(a, head, strip, &s);
  if (a->words && s.lo < s.hi) s.lo -= (s.lo - s.start) % 2; /* pairs are whole */
  bool first = true;
  for (int64_t from = s.lo, to; from < s.hi; from = to, first = false) {
    to = gr_min(s.hi, s.start + ((from - s.start) / GR_CPU_KEYS + 1) * GR_CPU_KEYS);
    score(a, head, &s, from, to);
    float shrink[GR_COLS];
    for (int v = 0; v < s.vectors; v++) vstore(shrink + v * GR_LANES, exponentiate(a, &s, v, s.scores + v * GR_LANES, from, to));
    for (int64_t r = 0; r < s.rows && !first; r++) GR_ISA_FN(scale)(s.out + r * s.out_row, s.out + r * s.out_row, shrink[r], s.out_row);
    add_values(a, head, &s, s.scores, from, to, first);
  }
  if (first) memset(s.out, 0, (size_t)(s.rows * s.out_row) * sizeof *s.out);
  finish_strip(a, head, strip, &s);
}
