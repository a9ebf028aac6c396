/* Gradients of attention for a part of a run's queries and one key head, in blocks of up to GR_CPU_BACK_ROWS rows: row r is head r % group
 * of the key head's group, of query r / group. Probabilities are recomputed from the saved log-sum-exp. By chunks of keys, P and G (the
 * gradient of scores) being [key][row]:
 *   P = exp(K Q^T - lse),  G = P (V dO^T - D),  D = dO . O
 *   dQ += G^T K
 *   dK += G Q, dV += P dO  sums of this part alone, added up over parts by the driver
 * Rounded to bf16 are the operands of all but K Q^T: V, dO, P, G, and K and scale Q where they meet G. D is of the rounded dO, as V dO^T
 * is: what all keys share must cancel. Words pair what is summed over: elements of heads, keys counted from the segment's first, rows of a
 * block. */
#include "backend/cpu/kernels/keys.h"
#include "backend/cpu/kernels/vmath.h"
#include "base/mutant.h"

enum { STRIPS = GR_CPU_BACK_ROWS / GR_COLS, WORD_ROW = GR_CPU_BACK_ROWS / 2 };

typedef struct back_block {
  int64_t first, count; /* rows */
  int64_t kv, part;
  int64_t start;                  /* first key of the segment */
  int64_t dk, dv, dk_row, dv_row; /* widths, and widths of padded rows */
  float *qt, *dot;                /* [dk][GR_CPU_BACK_ROWS] scale q, [dv][GR_CPU_BACK_ROWS] dout */
  float *q, *dout;                /* the same by row: [GR_CPU_BACK_ROWS][dk_row], [..][dv_row] */
  float *dq;                      /* [GR_CPU_BACK_ROWS][dk_row] */
  float *p, *g;                   /* [keys][GR_CPU_BACK_ROWS]; words: [keys][WORD_ROW] of two rows */
  float *s, *ds, *pairs;          /* words: scores and dout v of a strip, [keys][GR_COLS], and G [keys / 2][GR_COLS] of two keys */
  float lse[GR_CPU_BACK_ROWS], flow[GR_CPU_BACK_ROWS];
  int32_t from[GR_CPU_BACK_ROWS], to[GR_CPU_BACK_ROWS];
  int64_t strips;
  int32_t lo[STRIPS], hi[STRIPS];           /* keys that a row of the strip sees, */
  int32_t all_from[STRIPS], all_to[STRIPS]; /* and that all of them see */
  bool begun[STRIPS];                       /* whether dq holds anything */
} back_block;

static void transpose_block(float *dst, const float *rows, int64_t row, int64_t count, int64_t n, bool words)
{
  for (int64_t lane = 0; lane < gr_ceil_div(count, GR_COLS) * GR_COLS; lane += GR_LANES) {
    const float *src[GR_LANES];
    for (int64_t r = 0; r < GR_LANES; r++) src[r] = rows + gr_min(lane + r, count - 1) * row;
#if GR_WORDS
    if (words) {
      transpose_words(dst + lane, GR_CPU_BACK_ROWS, src, n);
      continue;
    }
#endif
    transpose_rows(dst + lane, GR_CPU_BACK_ROWS, src, n);
  }
  (void)words;
}

/* Rows as the right operand of a sum over rows: in place. */
static void pair_rows(const gr_cpu_attention *a, float *rows, int64_t row, int64_t count)
{
#if GR_WORDS
  for (int64_t r = 0; a->words && r < count; r += 2)
    pair_words(rows + r / 2 * row, rows + r * row, r + 1 < count ? rows + (r + 1) * row : NULL, row, row);
#endif
  (void)a, (void)rows, (void)row, (void)count;
}

/* Which keys rows see. Rows past the last see none. */
static void find_keys(const gr_cpu_attention *a, back_block *b)
{
  b->strips = gr_ceil_div(b->count, GR_COLS);
  for (int64_t i = 0; i < b->strips * GR_COLS; i++) {
    bool live = i < b->count && !(GR_MUTANT(attention_back_two_heads) && (b->first + i) % a->group >= 2);
    const gr_cpu_visible *see = &a->visible[(b->first + (live ? i : 0)) / a->group];
    int64_t s = i / GR_COLS;
    if (i % GR_COLS == 0) b->lo[s] = INT32_MAX, b->hi[s] = 0, b->all_from[s] = 0, b->all_to[s] = INT32_MAX, b->begun[s] = false;
    b->from[i] = live ? see->from : 0, b->to[i] = live ? see->to : 0;
    b->all_from[s] = (int32_t)gr_max(b->all_from[s], b->from[i]), b->all_to[s] = (int32_t)gr_min(b->all_to[s], b->to[i]);
    if (!live) b->lse[i] = b->flow[i] = 0;
    if (b->from[i] >= b->to[i]) continue;
    if (see->from < b->lo[s]) b->lo[s] = see->from;
    if (see->to > b->hi[s]) b->hi[s] = see->to;
  }
}

static void begin_block(const gr_cpu_attention *a, back_block *b)
{
  for (int64_t i = 0; i < b->count; i++) {
    int64_t query = (b->first + i) / a->group, head = b->kv * a->group + (b->first + i) % a->group;
    float *q = b->q + i * b->dk_row, *dout = b->dout + i * b->dv_row;
    GR_ISA_FN(scale)(q, row_at(&a->q, head, query), a->params.scale, b->dk);
    memset(q + b->dk, 0, (size_t)(b->dk_row - b->dk) * sizeof *q);
    memcpy(dout, row_at(&a->dout, head, query), (size_t)b->dv * sizeof *dout);
    memset(dout + b->dv, 0, (size_t)(b->dv_row - b->dv) * sizeof *dout);
    if (a->rounds) round_floats(dout, b->dv);
    b->flow[i] = (float)GR_ISA_FN(dot)(dout, row_at(&a->out, head, query), b->dv);
    b->lse[i] = *(const float *)gr_array_at(&a->lse, head, query, 0, 0);
  }
  transpose_block(b->qt, b->q, b->dk_row, b->count, b->dk, false);
  transpose_block(b->dot, b->dout, b->dv_row, b->count, b->dv, a->words);
  if (a->rounds && !a->words) round_floats(b->q, b->count * b->dk_row);
  pair_rows(a, b->q, b->dk_row, b->count);
  pair_rows(a, b->dout, b->dv_row, b->count);
  find_keys(a, b);
}

/* ---- P and G ---- */

typedef struct lane_state {
  vi from, to;
  vf lse, flow;
} lane_state;

static inline lane_state lanes_at(const back_block *b, int64_t lane)
{
  lane_state l;
  memcpy(&l.from, b->from + lane, sizeof l.from);
  memcpy(&l.to, b->to + lane, sizeof l.to);
  l.lse = vload(b->lse + lane), l.flow = vload(b->flow + lane);
  return l;
}

/* A score to its probability, the gradient of the probability to that of the score; what is not visible becomes 0. cap and masked are
 * constants where this is called. */
static inline __attribute__((always_inline)) void gradient(const lane_state *l, float cap, bool masked, int64_t key, vf *score, vf *grad)
{
  vf s = *score, slope = vset(1);
  if (cap > 0) {
    vf t = vtanh(s / cap);
    s = cap * t;
    slope = 1.0f - t * t;
  }
  vf prob = vexp(s - l->lse);
  if (masked) prob = vif_within((int32_t)key, l->from, l->to, prob, vset(0));
  vf g = prob * (*grad - (GR_MUTANT(attention_back_no_flow) ? vset(0) : l->flow));
  if (cap > 0 && !GR_MUTANT(attention_back_no_softcap)) g *= slope;
  *score = prob;
  *grad = masked ? vif_within((int32_t)key, l->from, l->to, g, vset(0)) : g;
}

/* Where keys of a strip are read, and what they become. */
typedef struct key_walk {
  const float *s, *ds;
  float *p, *g, *pairs;
} key_walk;

static inline __attribute__((always_inline)) void some_gradients(const gr_cpu_attention *a, const lane_state *l, float cap, bool masked,
                                                                 int64_t from, int64_t to, key_walk *w)
{
  for (int64_t j = from; j < to; j++, w->p += GR_CPU_BACK_ROWS, w->g += GR_CPU_BACK_ROWS) {
    vf prob = vload(w->p), grad = vload(w->g);
    gradient(l, cap, masked, j, &prob, &grad);
    vstore(w->p, a->rounds ? vround_bf16(prob) : prob);
    vstore(w->g, a->rounds ? vround_bf16(grad) : grad);
  }
}

/* [inner, end): keys of [from, to) that all rows of the strip see, from an even number of keys after `from` on, an even number of them. */
static void find_inner(const back_block *b, int64_t strip, int64_t from, int64_t to, int64_t *inner, int64_t *end)
{
  *inner = gr_max(from, gr_min(to, b->all_from[strip]));
  *inner = gr_min(to, *inner + (*inner - from) % 2);
  *end = gr_max(*inner, gr_min(to, b->all_to[strip]));
  *end -= (*end - *inner) % 2;
  if (GR_MUTANT(attention_back_no_mask)) *inner = from, *end = to - (to - from) % 2;
}

static void gradients(const gr_cpu_attention *a, const back_block *b, int64_t lane, int64_t from, int64_t to, float *p, float *g)
{
  const lane_state l = lanes_at(b, lane);
  const float cap = a->params.softcap;
  key_walk w = { .p = p, .g = g };
  int64_t inner, end;
  find_inner(b, lane / GR_COLS, from, to, &inner, &end);
  if (cap > 0) {
    some_gradients(a, &l, cap, true, from, to, &w);
    return;
  }
  some_gradients(a, &l, 0, true, from, inner, &w);
  some_gradients(a, &l, 0, false, inner, end, &w);
  some_gradients(a, &l, 0, true, end, to, &w);
}

#if GR_WORDS
/* Two keys at a time; the last may be one, and stands beside zeros. */
static inline __attribute__((always_inline)) void some_words(const lane_state l[2], float cap, bool masked, int64_t from, int64_t to,
                                                             key_walk *w)
{
  for (int64_t j = from; j < to; j += 2, w->pairs += GR_COLS) {
    vf grad[2][2] = { { { 0 } } };
    GR_UNROLL
    for (int k = 0; k < 2; k++) {
      if (k == 1 && j + 1 == to) break;
      vf prob[2];
      GR_UNROLL
      for (int v = 0; v < 2; v++) {
        prob[v] = vload(w->s + v * GR_LANES), grad[k][v] = vload(w->ds + v * GR_LANES);
        gradient(&l[v], cap, masked, j + k, &prob[v], &grad[k][v]);
      }
      vstore(w->p, vwords(prob[0], prob[1]));
      vstore(w->g, vwords(grad[k][0], grad[k][1]));
      w->s += GR_COLS, w->ds += GR_COLS, w->p += WORD_ROW, w->g += WORD_ROW;
    }
    GR_UNROLL
    for (int v = 0; v < 2; v++) vstore(w->pairs + v * GR_LANES, vpair(grad[0][v], grad[1][v]));
  }
}

/* From b->s and b->ds, which begin with key `from`, an even number of keys after the segment's first, to words of rows at p and g and words
 * of keys in b->pairs. */
static void gradients_in_words(const gr_cpu_attention *a, const back_block *b, int64_t lane, int64_t from, int64_t to, float *p, float *g)
{
  const lane_state l[2] = { lanes_at(b, lane), lanes_at(b, lane + GR_LANES) };
  const float cap = a->params.softcap;
  key_walk w = { b->s, b->ds, p, g, b->pairs };
  int64_t inner, end;
  find_inner(b, lane / GR_COLS, from, to, &inner, &end);
  if (cap > 0) {
    some_words(l, cap, true, from, to, &w);
    return;
  }
  some_words(l, 0, true, from, inner, &w);
  some_words(l, 0, false, inner, end, &w);
  some_words(l, 0, true, end, to, &w);
}
#endif

/* Zeros for keys [from, to), which x begins with, of a strip that sees none of them. */
static void clear_keys(float *x, int64_t row, int64_t from, int64_t to, int64_t columns)
{
  for (int64_t j = from; j < to; j++, x += row)
    for (int64_t i = 0; i < columns; i += GR_LANES) vstore(x + i, vset(0));
}

/* dq of the strip's rows += G^T K over keys [lo, hi). */
static void add_queries(const gr_cpu_attention *a, back_block *b, int64_t strip, const float *g, int64_t g_row, int64_t lo, int64_t hi)
{
  int64_t lane = strip * GR_COLS, count = gr_min(GR_COLS, b->count - lane), blocks = gr_ceil_div(count, GR_ROWS);
  for (int64_t i = 0; i < blocks; i++) {
    int64_t r = gr_block_begin(count, blocks, i);
    float *dq = b->dq + (lane + r) * b->dk_row;
    gr_micro_block m = { .a = g + r,
                         .a_step = g_row,
                         .b = key_row(a, &a->k_rows, b->kv, b->start, lo),
                         .b_step = a->k_rows.row,
                         .b_strip = GR_COLS,
                         .c = dq,
                         .c_row = b->dk_row,
                         .base = b->begun[strip] ? dq : NULL,
                         .base_row = b->dk_row,
                         .rows = gr_block_begin(count, blocks, i + 1) - r,
                         .cols = b->dk_row,
                         .steps = gr_cpu_attention_words(a, hi - lo) };
    micro_block(packed_by(a->words), &m);
  }
  b->begun[strip] = true;
}

/* P and G of one strip for keys [from, to), which b->p and b->g begin with; zeros where the strip sees nothing but a block of keys reaches.
 */
static void strip_gradients(const gr_cpu_attention *a, back_block *b, int64_t strip, int64_t from, int64_t to)
{
  const int64_t row = a->words ? WORD_ROW : GR_CPU_BACK_ROWS, columns = a->words ? GR_LANES : GR_COLS, lane = strip * GR_COLS;
  float *p = b->p + strip * columns, *g = b->g + strip * columns;
  int64_t lo = gr_min(to, gr_max(from, b->lo[strip])), hi = gr_max(lo, gr_min(to, b->hi[strip]));
  if (lo >= hi) {
    clear_keys(p, row, from, to, columns), clear_keys(g, row, from, to, columns);
    return;
  }
  if (a->words) lo -= (lo - b->start) % 2;
  int64_t before = gr_max(from, lo - GR_ROWS), after = gr_min(to, hi + GR_ROWS), at = (lo - from) * row;
  clear_keys(p + (before - from) * row, row, before, lo, columns), clear_keys(g + (before - from) * row, row, before, lo, columns);
  clear_keys(p + (hi - from) * row, row, hi, after, columns), clear_keys(g + (hi - from) * row, row, hi, after, columns);
#if GR_WORDS
  if (a->words) {
    times_keys(a, a->k_blocks, b->dk, false, b->kv, 2, b->qt + lane, GR_CPU_BACK_ROWS, lo, hi, b->s, GR_COLS);
    times_keys(a, a->v_blocks, gr_cpu_attention_words(a, b->dv), true, b->kv, 2, b->dot + lane, GR_CPU_BACK_ROWS, lo, hi, b->ds, GR_COLS);
    gradients_in_words(a, b, lane, lo, hi, p + at, g + at);
    add_queries(a, b, strip, b->pairs, GR_COLS, lo, hi);
    return;
  }
#endif
  times_keys(a, a->k_blocks, b->dk, false, b->kv, 2, b->qt + lane, GR_CPU_BACK_ROWS, lo, hi, p + at, GR_CPU_BACK_ROWS);
  times_keys(a, a->v_blocks, b->dv, false, b->kv, 2, b->dot + lane, GR_CPU_BACK_ROWS, lo, hi, g + at, GR_CPU_BACK_ROWS);
  for (int64_t v = 0; v < GR_COLS; v += GR_LANES) gradients(a, b, lane + v, lo, hi, p + at + v, g + at + v);
  add_queries(a, b, strip, g + at, GR_CPU_BACK_ROWS, lo, hi);
}

/* ---- dK and dV ---- */

/* sums[key, :] += x[key, rows] rows, for keys [from, to). Rows that see none of a block of keys are left out. */
static void add_by_key(const gr_cpu_attention *a, const back_block *b, const gr_cpu_heads *sums, const float *x, const float *rows,
                       int64_t row, int64_t width, int64_t from, int64_t to)
{
  int layout = GR_A_BY_KEY;
#if GR_WORDS
  if (a->words) layout = GR_A_KEY_WORDS;
#endif
  const int64_t x_row = a->words ? WORD_ROW : GR_CPU_BACK_ROWS;
  for (int64_t j = from, n, first = 0; j < to; j += n) {
    n = gr_min(GR_ROWS, to - j);
    int64_t last = b->count;
    while (first < last && b->to[first] <= j) first++;
    while (first < last && (b->from[last - 1] >= j + n || b->to[last - 1] <= j)) last--;
    if (first >= last) continue;
    int64_t skipped = a->words ? first / 2 : first;
    float *c = sums->data + (b->part * a->k.ne[1] + b->kv) * sums->head + j * sums->row;
    gr_micro_block m = { .a = x + (j - from) * x_row + skipped,
                         .b = rows + skipped * row,
                         .b_step = row,
                         .b_strip = GR_COLS,
                         .c = c,
                         .c_row = sums->row,
                         .base = c,
                         .base_row = sums->row,
                         .rows = n,
                         .cols = width,
                         .steps = gr_cpu_attention_words(a, last) - skipped };
    micro_block(layout, &m);
  }
}

/* ---- one part ---- */

static void finish_block(const gr_cpu_attention *a, const back_block *b)
{
  for (int64_t i = 0; i < b->count; i++) {
    int64_t query = (b->first + i) / a->group, head = b->kv * a->group + (b->first + i) % a->group;
    float *dq = (float *)gr_array_at(&a->dq, 0, head, query, 0);
    if (b->begun[i / GR_COLS]) GR_ISA_FN(scale)(dq, b->dq + i * b->dk_row, a->params.scale, b->dk);
    else memset(dq, 0, (size_t)b->dk * sizeof *dq);
  }
}

static void one_block(const gr_cpu_attention *a, back_block *b)
{
  int64_t lo = INT32_MAX, hi = 0;
  begin_block(a, b);
  for (int64_t s = 0; s < b->strips; s++) lo = gr_min(lo, b->lo[s]), hi = gr_max(hi, b->hi[s]);
  if (a->words && lo < hi) lo -= (lo - b->start) % 2;
  for (int64_t from = lo, to; from < hi; from = to) {
    to = gr_min(hi, b->start + ((from - b->start) / GR_CPU_BACK_KEYS + 1) * GR_CPU_BACK_KEYS);
    for (int64_t s = 0; s < b->strips; s++) strip_gradients(a, b, s, from, to);
    add_by_key(a, b, &a->dv_sums, b->p, b->dout, b->dv_row, b->dv, from, to);
    add_by_key(a, b, &a->dk_sums, b->g, b->q, b->dk_row, b->dk, from, to);
  }
  finish_block(a, b);
}

void GR_ISA_FN(attention_back)(const gr_cpu_attention *a, int64_t head, gr_cpu_run run, float *scratch)
{
  back_block b = { .kv = head, .part = run.part, .start = a->visible[run.first].start, .dk = a->q.ne[0], .dv = a->v.ne[0] };
  b.dk_row = gr_ceil_div(b.dk, GR_CPU_STRIP) * GR_CPU_STRIP, b.dv_row = gr_ceil_div(b.dv, GR_CPU_STRIP) * GR_CPU_STRIP;
  b.qt = scratch, b.dot = b.qt + b.dk * GR_CPU_BACK_ROWS;
  b.q = b.dot + b.dv * GR_CPU_BACK_ROWS, b.dout = b.q + b.dk_row * GR_CPU_BACK_ROWS;
  b.dq = b.dout + b.dv_row * GR_CPU_BACK_ROWS;
  b.p = b.dq + b.dk_row * GR_CPU_BACK_ROWS;
  b.g = b.p + GR_CPU_BACK_KEYS * (a->words ? WORD_ROW : GR_CPU_BACK_ROWS);
  b.s = b.g + GR_CPU_BACK_KEYS * WORD_ROW, b.ds = b.s + GR_CPU_BACK_KEYS * GR_COLS, b.pairs = b.ds + GR_CPU_BACK_KEYS * GR_COLS;
  int64_t rows = run.count * a->group, blocks = gr_ceil_div(rows, GR_CPU_BACK_ROWS);
  for (int64_t i = 0; i < blocks; i++) {
    b.first = run.first * a->group + gr_block_begin(rows, blocks, i);
    b.count = run.first * a->group + gr_block_begin(rows, blocks, i + 1) - b.first;
    one_block(a, &b);
  }
}
