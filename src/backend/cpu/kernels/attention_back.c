/* Gradients of attention for the queries of one run and head, in blocks of up to GR_CPU_QUERIES of them; probabilities are recomputed
 * from the saved log-sum-exp. By chunks of keys, P and G (the gradient of scores) being [key][GR_CPU_QUERIES]:
 *   P = exp(K Q^T - lse),  G = P (V dO^T - D),  D = dO . O
 *   dQ += G^T K            rows are queries
 *   dK += G Q, dV += P dO  rows are keys; sums of this head alone, added up over its group by the driver */
#include "backend/cpu/kernels/micro.h"
#include "backend/cpu/kernels/vmath.h"
#include "base/mutant.h"

enum { STRIPS = GR_CPU_QUERIES / GR_COLS };

typedef struct back_block {
  int64_t first, count; /* queries */
  int64_t head, kv;
  int64_t start;                  /* first key of the segment */
  int64_t dk, dv, dk_row, dv_row; /* widths, and widths of padded rows */
  float *qt, *dot;                /* [dk][GR_CPU_QUERIES] scale q, [dv][GR_CPU_QUERIES] dout */
  float *q, *dout;                /* the same by query: [GR_CPU_QUERIES][dk_row], [..][dv_row] */
  float *p, *g;                   /* [keys][GR_CPU_QUERIES] */
  float lse[GR_CPU_QUERIES], flow[GR_CPU_QUERIES];
  int32_t from[GR_CPU_QUERIES], to[GR_CPU_QUERIES];
  int64_t strips;
  int32_t lo[STRIPS], hi[STRIPS]; /* keys that a query of the strip sees */
} back_block;

static inline const float *row_at(const gr_array *a, int64_t head, int64_t token)
{
  return (const float *)gr_array_at(a, 0, head, token, 0);
}

static void transpose_block(float *dst, const float *rows, int64_t row, int64_t count, int64_t n)
{
  for (int64_t lane = 0; lane < gr_ceil_div(count, GR_COLS) * GR_COLS; lane += GR_LANES) {
    const float *src[GR_LANES];
    for (int64_t r = 0; r < GR_LANES; r++) src[r] = rows + gr_min(lane + r, count - 1) * row;
    transpose_rows(dst + lane, GR_CPU_QUERIES, src, n);
  }
}

static void begin_block(const gr_cpu_attention *a, back_block *b)
{
  for (int64_t i = 0; i < b->count; i++) {
    int64_t query = b->first + i;
    float *q = b->q + i * b->dk_row, *dout = b->dout + i * b->dv_row;
    GR_ISA_FN(scale)(q, row_at(&a->q, b->head, query), a->params.scale, b->dk);
    memset(q + b->dk, 0, (size_t)(b->dk_row - b->dk) * sizeof *q);
    memcpy(dout, row_at(&a->dout, b->head, query), (size_t)b->dv * sizeof *dout);
    memset(dout + b->dv, 0, (size_t)(b->dv_row - b->dv) * sizeof *dout);
    b->flow[i] = (float)GR_ISA_FN(dot)(dout, row_at(&a->out, b->head, query), b->dv);
    b->lse[i] = *(const float *)gr_array_at(&a->lse, b->head, query, 0, 0);
    memset(gr_array_at(&a->dq, 0, b->head, query, 0), 0, (size_t)b->dk * sizeof(float));
  }
  transpose_block(b->qt, b->q, b->dk_row, b->count, b->dk);
  transpose_block(b->dot, b->dout, b->dv_row, b->count, b->dv);
  b->strips = gr_ceil_div(b->count, GR_COLS);
  for (int64_t i = 0; i < b->strips * GR_COLS; i++) {
    bool live = i < b->count;
    const gr_cpu_visible *see = &a->visible[b->first + (live ? i : 0)];
    int64_t s = i / GR_COLS;
    if (i % GR_COLS == 0) b->lo[s] = INT32_MAX, b->hi[s] = 0;
    b->from[i] = live ? see->from : 0, b->to[i] = live ? see->to : 0;
    if (!live) b->lse[i] = b->flow[i] = 0;
    if (b->from[i] >= b->to[i]) continue;
    if (see->from < b->lo[s]) b->lo[s] = see->from;
    if (see->to > b->hi[s]) b->hi[s] = see->to;
  }
}

/* rows [from, to) of c = packed rows times the strip's columns of qt. */
static void by_key(const gr_cpu_attention *a, const back_block *b, float *blocks, int64_t width, const float *qt, int64_t from, int64_t to,
                   float *c)
{
  int64_t first = from / GR_ROWS, m = a->k.ne[2];
  for (int64_t i = first; i * GR_ROWS < to; i++) {
    int64_t rows = gr_min(GR_ROWS, m - i * GR_ROWS);
    const float *packed = blocks + (b->kv * a->blocks + i) * (GR_ROWS * width + GR_CPU_SPARE);
    GR_ISA_FN(micro)
    [GR_A_PACKED][rows - 1][1](packed, rows, qt, GR_CPU_QUERIES, width, c + (i * GR_ROWS - from) * GR_CPU_QUERIES, GR_CPU_QUERIES, NULL, 0,
                               NULL);
  }
}

/* Scores to probabilities in p, gradients of probabilities to gradients of scores in g; what is not visible becomes 0. */
static void gradients(const gr_cpu_attention *a, const back_block *b, int64_t lane, int64_t from, int64_t to, float *p, float *g)
{
  vi see_from, see_to;
  memcpy(&see_from, b->from + lane, sizeof see_from);
  memcpy(&see_to, b->to + lane, sizeof see_to);
  vf lse = vload(b->lse + lane), flow = vload(b->flow + lane);
  const float cap = a->params.softcap;
  for (int64_t j = from; j < to; j++, p += GR_CPU_QUERIES, g += GR_CPU_QUERIES) {
    vf s = vload(p), slope = vset(1);
    if (cap > 0) {
      vf t = vtanh(s / cap);
      s = cap * t;
      slope = 1.0f - t * t;
    }
    vf prob = vif_within((int32_t)j, see_from, see_to, vexp(s - lse), vset(0));
    vf grad = prob * (vload(g) - (GR_MUTANT(attention_back_no_flow) ? vset(0) : flow));
    if (cap > 0 && !GR_MUTANT(attention_back_no_softcap)) grad *= slope;
    vstore(p, prob);
    vstore(g, vif_within((int32_t)j, see_from, see_to, grad, vset(0)));
  }
}

static void clear_keys(float *p, int64_t keys)
{
  for (int64_t j = 0; j < keys; j++, p += GR_CPU_QUERIES)
    for (int v = 0; v < 2; v++) vstore(p + v * GR_LANES, vset(0));
}

/* P and G of one strip for keys [from, to), which p and g begin with; zeros where the strip sees nothing. */
static void strip_gradients(const gr_cpu_attention *a, const back_block *b, int64_t strip, int64_t from, int64_t to, float *p, float *g)
{
  int64_t lane = strip * GR_COLS, lo = gr_min(to, gr_max(from, b->lo[strip])), hi = gr_max(lo, gr_min(to, b->hi[strip]));
  float *p_at = p + lane + (lo - from) * GR_CPU_QUERIES, *g_at = g + lane + (lo - from) * GR_CPU_QUERIES;
  if (lo < hi) {
    by_key(a, b, a->k_blocks, b->dk, b->qt + lane, lo, hi, p_at);
    by_key(a, b, a->v_blocks, b->dv, b->dot + lane, lo, hi, g_at);
    gradients(a, b, lane, lo, hi, p_at, g_at);
    gradients(a, b, lane + GR_LANES, lo, hi, p_at + GR_LANES, g_at + GR_LANES);
  }
  clear_keys(p + lane, lo - from), clear_keys(g + lane, lo - from);
  clear_keys(p + lane + (hi - from) * GR_CPU_QUERIES, to - hi), clear_keys(g + lane + (hi - from) * GR_CPU_QUERIES, to - hi);
  if (lo >= hi) return;
  int64_t count = gr_min(GR_COLS, b->count - lane), blocks = gr_ceil_div(count, GR_ROWS), row = a->dq.nb[2] / (int64_t)sizeof(float);
  for (int64_t i = 0; i < blocks; i++) {
    int64_t r = gr_block_begin(count, blocks, i);
    float *dq = (float *)gr_array_at(&a->dq, 0, b->head, b->first + lane + r, 0);
    gr_micro_block m = { .a = g_at + r,
                         .a_step = GR_CPU_QUERIES,
                         .b = a->k_rows.data + b->kv * a->k_rows.head + lo * a->k_rows.row,
                         .b_step = a->k_rows.row,
                         .b_strip = GR_COLS,
                         .c = dq,
                         .c_row = row,
                         .base = dq,
                         .base_row = row,
                         .rows = gr_block_begin(count, blocks, i + 1) - r,
                         .cols = b->dk,
                         .steps = hi - lo };
    micro_block(GR_A_PACKED, &m);
  }
}

/* sums[key, :] += x[key, queries] rows, for keys [from, to). */
static void add_by_key(const back_block *b, const gr_cpu_heads *sums, const float *x, const float *rows, int64_t row, int64_t width,
                       int64_t from, int64_t to)
{
  for (int64_t j = from, n; j < to; j += n) {
    n = gr_min(GR_ROWS, to - j);
    int64_t first = b->strips, last = 0;
    for (int64_t s = 0; s < b->strips; s++) {
      if (b->lo[s] >= j + n || b->hi[s] <= j) continue;
      first = gr_min(first, s);
      last = s + 1;
    }
    if (first >= last) continue;
    int64_t lane = first * GR_COLS;
    float *c = sums->data + b->head * sums->head + j * sums->row;
    gr_micro_block m = { .a = x + (j - from) * GR_CPU_QUERIES + lane,
                         .b = rows + lane * row,
                         .b_step = row,
                         .b_strip = GR_COLS,
                         .c = c,
                         .c_row = sums->row,
                         .base = c,
                         .base_row = sums->row,
                         .rows = n,
                         .cols = width,
                         .steps = gr_min(last * GR_COLS, b->count) - lane };
    micro_block(GR_A_BY_KEY, &m);
  }
}

static void one_block(const gr_cpu_attention *a, back_block *b)
{
  int64_t lo = INT32_MAX, hi = 0;
  begin_block(a, b);
  for (int64_t s = 0; s < b->strips; s++) lo = gr_min(lo, b->lo[s]), hi = gr_max(hi, b->hi[s]);
  for (int64_t from = lo, to; from < hi; from = to) {
    to = gr_min(hi, b->start + ((from - b->start) / GR_CPU_BACK_KEYS + 1) * GR_CPU_BACK_KEYS);
    float *p = b->p + GR_ROWS * GR_CPU_QUERIES, *g = b->g + GR_ROWS * GR_CPU_QUERIES; /* blocks of keys may begin before from */
    for (int64_t s = 0; s < b->strips; s++) strip_gradients(a, b, s, from, to, p, g);
    add_by_key(b, &a->dv_sums, p, b->dout, b->dv_row, b->dv, from, to);
    add_by_key(b, &a->dk_sums, g, b->q, b->dk_row, b->dk, from, to);
  }
  for (int64_t i = 0; i < b->count; i++) {
    float *dq = (float *)gr_array_at(&a->dq, 0, b->head, b->first + i, 0);
    GR_ISA_FN(scale)(dq, dq, a->params.scale, b->dk);
  }
}

void GR_ISA_FN(attention_back)(const gr_cpu_attention *a, int64_t head, gr_cpu_run run, float *scratch)
{
  back_block b = { .head = head, .kv = head / a->group, .start = a->visible[run.first].start, .dk = a->q.ne[0], .dv = a->v.ne[0] };
  b.dk_row = gr_ceil_div(b.dk, GR_CPU_STRIP) * GR_CPU_STRIP, b.dv_row = gr_ceil_div(b.dv, GR_CPU_STRIP) * GR_CPU_STRIP;
  const int64_t keys = GR_CPU_BACK_KEYS + 2 * 16;
  b.qt = scratch, b.dot = b.qt + b.dk * GR_CPU_QUERIES;
  b.q = b.dot + b.dv * GR_CPU_QUERIES, b.dout = b.q + b.dk_row * GR_CPU_QUERIES;
  b.p = b.dout + b.dv_row * GR_CPU_QUERIES, b.g = b.p + keys * GR_CPU_QUERIES;
  for (b.first = run.first; b.first < run.first + run.count; b.first += GR_CPU_QUERIES) {
    b.count = gr_min(GR_CPU_QUERIES, run.first + run.count - b.first);
    one_block(a, &b);
  }
}
