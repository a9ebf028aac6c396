/* head_loss, head_loss_back, head_loss_dh. The tokens that have a label are taken in chunks, their hidden states gathered: masked tokens
 * cost nothing. Forward, logits live a slice of the vocabulary at a time in the scratch of a thread, and leave behind, for each token and
 * slice, the largest and the sum of exponentials. Backward, a block of the vocabulary at a time becomes gradients and is multiplied back.
 * Where both are one op, a block becomes exponentials below the largest logit so far and is multiplied back so: what was summed below a
 * smaller one is scaled down, and everything is divided by the sum at the end. Each token's bits are its own, whatever chunk it falls into.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

enum {
  TOKENS = 512,       /* of a chunk */
  VOCAB_BLOCK = 2048, /* of the backward: a whole number of the engine's chunks of a contraction */
  MANY = 1 << 17      /* words of a vocabulary for which slices are wide */
};

typedef struct head {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  struct gr_head_params params;
  const gr_array *w, *h, *labels, *bias, *a, *b; /* NULL: absent */
  bool bf16;
  int64_t width, vocab, rank, chunk;
  int64_t slice, slices;
  /* Scratch. */
  int32_t *tokens; /* [chunk] which token each row is */
  float *x;        /* [width, chunk] */
  float *u, *q;    /* [rank, chunk]: lora_scale A h, and lora_scale B^T g */
  float *top;      /* forward: [chunk, slices] */
  double *sum;     /* forward: [chunk, slices] */
  float *at_label; /* forward: [chunk] */
  const gr_array *dnll;
  float *g, *dx; /* backward: [VOCAB_BLOCK, chunk], [width, chunk] */
  char *product; /* the engine's */
  gr_pool *pool; /* of products */
  int64_t rows;  /* live rows of the chunk */
  int64_t first; /* word of the vocabulary that the present block begins with */
} head;

static const gr_array *optional(const gr_op_call *call, int i) { return i < call->n_in && call->in[i].ne[0] > 0 ? &call->in[i] : NULL; }

static head head_of(const gr_op_call *call, int bias, int a, int b)
{
  head s = { .call = call,
             .pool = call->pool,
             .params = *(const struct gr_head_params *)call->params,
             .w = &call->in[0],
             .h = &call->in[1],
             .labels = &call->in[2],
             .bias = optional(call, bias),
             .a = optional(call, a),
             .b = optional(call, b),
             .width = call->in[0].ne[0],
             .vocab = call->in[0].ne[1] };
  s.rank = s.a ? s.a->ne[1] : 0;
  s.chunk = gr_max(1, gr_min(s.h->ne[1], TOKENS));
  s.slice = s.vocab < MANY ? GR_CPU_SLICE / 2 : GR_CPU_SLICE;
  s.slices = gr_ceil_div(s.vocab, s.slice);
  return s;
}

/* ---- scratch ---- */

static void *take(char *base, size_t *at, int64_t bytes)
{
  size_t from = *at;
  *at += (size_t)gr_cpu_align(bytes);
  return base ? base + from : NULL;
}

/* Lays out the scratch that begins at base; returns its size up to the engine's, so that with NULL it measures. */
static size_t lay_out(head *s, bool back, char *base)
{
  const int64_t f = sizeof(float), c = s->chunk;
  size_t at = 0;
  s->tokens = take(base, &at, c * (int64_t)sizeof *s->tokens);
  s->x = take(base, &at, c * s->width * f);
  s->u = take(base, &at, c * s->rank * f);
  if (s->dnll) { /* a largest and a sum of each token */
    s->top = take(base, &at, c * f);
    s->sum = take(base, &at, c * (int64_t)sizeof *s->sum);
    s->at_label = take(base, &at, c * f);
  }
  if (back) {
    s->q = take(base, &at, c * s->rank * f);
    s->g = take(base, &at, c * VOCAB_BLOCK * f);
    s->dx = take(base, &at, c * s->width * f);
  } else {
    s->top = take(base, &at, c * s->slices * f);
    s->sum = take(base, &at, c * s->slices * (int64_t)sizeof *s->sum);
    s->at_label = take(base, &at, c * f);
  }
  s->product = base ? base + at : NULL;
  return at;
}

/* The largest of the products below. */
static size_t scratch_of(head s, bool back, int threads)
{
  const int64_t c = s.chunk, d = s.width, v = back ? VOCAB_BLOCK : s.vocab, r = s.rank;
  const int64_t sizes[][3] = { { c, v, d }, { c, d, v }, { c, r, d }, { v, r, c }, { c, r, v }, { r, d, c }, { c, d, r } };
  size_t most = 0;
  for (size_t i = 0; i < (!back ? 1 : r ? sizeof sizes / sizeof *sizes : 2); i++) {
    size_t bytes = gr_cpu_product_scratch(sizes[i][0], sizes[i][1], sizes[i][2], r, back, threads);
    if (bytes > most) most = bytes;
  }
  return lay_out(&s, back, NULL) + most;
}

size_t gr_cpu_scratch_head_loss(const gr_op_call *call, int threads) { return scratch_of(head_of(call, 3, 4, 5), false, threads); }
size_t gr_cpu_scratch_head_loss_back(const gr_op_call *call, int threads) { return scratch_of(head_of(call, 5, 6, 7), true, threads); }

static head both_of(const gr_op_call *call)
{
  head s = head_of(call, 4, 5, 6);
  s.dnll = &call->in[3];
  return s;
}

/* ---- tokens ---- */

static int64_t label_at(const head *s, int64_t t)
{
  int32_t v;
  memcpy(&v, gr_array_at(s->labels, t, 0, 0, 0), sizeof v);
  return v >= 0 && v < s->vocab ? v : -1;
}

static float float_at(const gr_array *a, int64_t i)
{
  float v;
  memcpy(&v, gr_array_at(a, i, 0, 0, 0), sizeof v);
  return v;
}

/* The next chunk of tokens that have a label, from *next on; false when there is none. */
static bool gather(head *s, int64_t *next)
{
  s->rows = 0;
  for (; *next < s->labels->ne[0] && s->rows < s->chunk; ++*next) {
    if (label_at(s, *next) < 0 && !GR_MUTANT(head_loss_masked_rows)) continue;
    float *x = s->x + s->rows * s->width;
    const float *h = gr_cpu_row(s->h, (gr_row_at){ *next, 0, 0 }, x);
    if (h != x) memcpy(x, h, (size_t)s->width * sizeof *x);
    s->tokens[s->rows++] = (int32_t)*next;
  }
  return s->rows > 0;
}

/* ---- products ---- */

/* Rows of x, dense, through rows [first, first + count) of w: along them, or across. */
static gr_cpu_term term_of(const head *s, const gr_array *w, int64_t first, int64_t count, bool across, const float *x)
{
  int64_t depth = across ? count : w->ne[0];
  return (gr_cpu_term){ .w = (const char *)w->data + first * w->nb[1],
                        .w_row = w->nb[1],
                        .w_step = w->nb[0],
                        .dtype = w->dtype,
                        .across = across,
                        .x = (const char *)x,
                        .x_row = depth * (int64_t)sizeof *x,
                        .x_step = sizeof *x,
                        .depth = depth,
                        .bf16 = s->bf16 && w == s->w };
}

static void run(const head *s, gr_cpu_product *p) { gr_cpu_product_run(p, s->isa, s->pool, s->product); }

/* y[rows, cols] (+)= the term. */
static gr_cpu_product product_of(const head *s, gr_cpu_term t, int64_t cols, float *y, bool add)
{
  gr_cpu_product p = { .term = { t }, .terms = 1, .rows = s->rows, .cols = cols, .y = y, .y_row = cols };
  if (add) p.base = y, p.base_row = cols;
  return p;
}

static void multiply(const head *s, gr_cpu_term t, int64_t cols, float *y, bool add)
{
  gr_cpu_product p = product_of(s, t, cols, y, add);
  run(s, &p);
}

/* y[i, :] += sum over the chunk's rows t of a[t, i] b[t, :]: a gradient of a factor of the adapter. */
static void add_outer(const head *s, const float *a, int64_t a_width, const float *b, int64_t b_width, float *y)
{
  const int64_t f = sizeof(float);
  gr_cpu_term t = { .w = (const char *)b,
                    .w_row = b_width * f,
                    .w_step = f,
                    .dtype = GR_F32,
                    .across = true,
                    .x = (const char *)a,
                    .x_row = f,
                    .x_step = a_width * f,
                    .depth = s->rows };
  gr_cpu_product p = {
    .term = { t }, .terms = 1, .rows = a_width, .cols = b_width, .y = y, .y_row = b_width, .base = y, .base_row = b_width
  };
  run(s, &p);
}

static void scale(const head *s, float *v) { s->isa->scale(v, v, s->params.lora_scale, s->rows * s->rank); }

/* u = lora_scale A h. */
static void lower(const head *s)
{
  if (!s->rank) return;
  multiply(s, term_of(s, s->a, 0, s->rank, false, s->x), s->rank, s->u, false);
  scale(s, s->u);
}

/* The logits of `count` words from s->first on, each block of them given to finish. */
static gr_cpu_product logits(const head *s, int64_t count, gr_cpu_finish *finish)
{
  gr_cpu_product p = {
    .term = { term_of(s, s->w, s->first, count, false, s->x) }, .terms = 1, .rows = s->rows, .cols = count, .finish = finish, .ctx = s
  };
  if (s->rank) p.term[p.terms++] = term_of(s, s->b, s->first, count, false, s->u);
  return p;
}

static void finish_logits(const head *s, float *z, int64_t word, int64_t n)
{
  float buffer[GR_CPU_PIECE];
  for (int64_t i = 0; s->bias && i < n; i += GR_CPU_PIECE) {
    int64_t live = gr_min(GR_CPU_PIECE, n - i);
    s->isa->add(z + i, z + i, gr_cpu_piece(s->bias, word + i, live, (gr_row_at){ 0, 0, 0 }, buffer), live);
  }
  s->isa->soften(z, s->params.scale, s->params.softcap, n);
}

/* ---- forward ---- */

static void finish_sums(const gr_cpu_product *p, int64_t row, int64_t rows, int64_t col, int64_t cols, float *z, int64_t z_row)
{
  const head *s = p->ctx;
  for (int64_t r = row; r < row + rows; r++, z += z_row) {
    int64_t slot = col / s->slice * s->chunk + r, label = label_at(s, s->tokens[r]) - col;
    finish_logits(s, z, col, cols);
    s->sum[slot] = s->isa->sum_exp(z, cols, &s->top[slot]);
    if (label >= 0 && label < cols) s->at_label[r] = z[label];
  }
}

static void loss_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const head *s = ctx;
  float top = -INFINITY;
  double sum = 0;
  for (int64_t i = (int64_t)job; i < s->slices * s->chunk; i += s->chunk)
    if (!(s->top[i] <= top)) top = s->top[i];
  for (int64_t i = (int64_t)job; i < s->slices * s->chunk; i += s->chunk)
    sum += s->sum[i] * (GR_MUTANT(head_loss_no_rescale) ? 1 : exp((double)s->top[i] - (double)top));
  double lse = (double)top + log(sum);
  ((float *)s->call->out[0].data)[s->tokens[job]] = (float)(lse - (double)s->at_label[job]);
  ((float *)s->call->out[1].data)[s->tokens[job]] = (float)lse;
}

static gr_status run_head(gr_backend *b, const gr_op_call *call, bool bf16)
{
  head s = head_of(call, 3, 4, 5);
  s.isa = gr_cpu_isa_of(b);
  s.bf16 = bf16;
  lay_out(&s, false, call->scratch);
  for (int i = 0; i < 2; i++) memset(call->out[i].data, 0, (size_t)call->out[i].ne[0] * sizeof(float));
  for (int64_t next = 0; gather(&s, &next);) {
    lower(&s);
    gr_cpu_product p = logits(&s, s.vocab, finish_sums);
    p.slice = s.slice;
    run(&s, &p);
    gr_pool_run(call->pool, (size_t)s.rows, loss_job, &s);
  }
  return GR_OK;
}

/* ---- backward ---- */

static void finish_gradients(const gr_cpu_product *p, int64_t row, int64_t rows, int64_t col, int64_t cols, float *z, int64_t z_row)
{
  const head *s = p->ctx;
  for (int64_t r = row; r < row + rows; r++, z += z_row) {
    int64_t t = s->tokens[r];
    finish_logits(s, z, s->first + col, cols);
    s->isa->loss_gradient(z, float_at(&s->call->in[3], t), label_at(s, t) - s->first - col, float_at(&s->call->in[4], t), s->params.scale,
                          s->params.softcap, cols);
  }
}

/* Words [first, first + count): their gradients, and what these give to dh, q and dB. */
static void block_back(const head *s, int64_t count)
{
  gr_cpu_product p = logits(s, count, finish_gradients);
  p.y = s->g, p.y_row = count;
  run(s, &p);
  multiply(s, term_of(s, s->w, s->first, count, true, s->g), s->width, s->dx, s->first > 0 && !GR_MUTANT(head_loss_back_block_overwrites));
  if (!s->rank) return;
  add_outer(s, s->g, count, s->u, s->rank, (float *)s->call->out[2].data + s->first * s->rank);
  multiply(s, term_of(s, s->b, s->first, count, true, s->g), s->rank, s->q, s->first > 0);
}

static gr_status run_head_back(gr_backend *b, const gr_op_call *call, bool bf16)
{
  head s = head_of(call, 5, 6, 7);
  s.isa = gr_cpu_isa_of(b);
  s.bf16 = bf16;
  lay_out(&s, true, call->scratch);
  for (int i = 0; i < call->n_out; i++) memset(call->out[i].data, 0, (size_t)gr_array_count(&call->out[i]) * sizeof(float));
  float *dh = call->out[0].data;
  for (int64_t next = 0; gather(&s, &next);) {
    lower(&s);
    for (s.first = 0; s.first < s.vocab; s.first += VOCAB_BLOCK) block_back(&s, gr_min(VOCAB_BLOCK, s.vocab - s.first));
    if (s.rank) {
      scale(&s, s.q);
      add_outer(&s, s.q, s.rank, s.x, s.width, call->out[1].data);
      multiply(&s, term_of(&s, s.a, 0, s.rank, true, s.q), s.width, s.dx, true);
    }
    for (int64_t r = 0; r < s.rows; r++) memcpy(dh + s.tokens[r] * s.width, s.dx + r * s.width, (size_t)s.width * sizeof *dh);
  }
  return GR_OK;
}

/* ---- both at once ---- */

enum {
  ROWS = 4,   /* of a job */
  SHARE = 192 /* tokens for which a thread decodes W by itself rather than read what others wrote */
};

static void finish_block(const gr_cpu_product *p, int64_t row, int64_t rows, int64_t col, int64_t cols, float *z, int64_t z_row)
{
  const head *s = p->ctx;
  for (int64_t r = row; r < row + rows; r++, z += z_row) finish_logits(s, z, s->first + col, cols);
}

/* Logits of a block become exponentials. The label's is kept apart: what it takes from the gradient is found without a difference. */
static void prepare_exp(const gr_cpu_product *p, int64_t row, int64_t rows)
{
  const head *s = p->ctx;
  int64_t count = gr_min(VOCAB_BLOCK, s->vocab - s->first);
  for (int64_t r = row; r < row + rows; r++) {
    float *z = s->g + r * count, before = s->top[r];
    int64_t label = label_at(s, s->tokens[r]) - s->first;
    bool here = label >= 0 && label < count;
    if (here) {
      s->at_label[r] = z[label];
      z[label] = -INFINITY;
    }
    double sum = s->isa->exp_from(z, count, s->params.softcap, &s->top[r]);
    if (here) z[label] = 0;
    if (before < s->top[r] && s->first > 0) {
      float down = GR_MUTANT(head_loss_dh_no_rescale) ? 1 : (float)exp((double)before - (double)s->top[r]), *dx = s->dx + r * s->width;
      s->isa->scale(dx, dx, down, s->width);
      s->sum[r] *= (double)down;
    }
    s->sum[r] += sum;
  }
}

/* Rows of s through the vocabulary. */
static void all_words(head *s)
{
  for (s->first = 0; s->first < s->vocab; s->first += VOCAB_BLOCK) {
    int64_t count = gr_min(VOCAB_BLOCK, s->vocab - s->first);
    gr_cpu_product p = logits(s, count, finish_block);
    gr_cpu_product back = product_of(s, term_of(s, s->w, s->first, count, true, s->g), s->width, s->dx, s->first > 0);
    p.y = s->g, p.y_row = count;
    run(s, &p);
    back.prepare = prepare_exp, back.ctx = s;
    run(s, &back);
  }
}

/* Into how many shares rows are dealt. Few threads with many rows each take theirs through the whole vocabulary: what one core writes is
 * read by none, and nobody waits. */
static int64_t shares_of(int64_t rows, int threads) { return threads > 1 && rows / threads >= SHARE ? threads : 1; }

/* Bytes of scratch of a share of the rows. */
static size_t share_bytes(const head *s, int64_t rows)
{
  size_t along = gr_cpu_product_scratch(rows, VOCAB_BLOCK, s->width, 0, true, 1);
  size_t across = gr_cpu_product_scratch(rows, s->width, VOCAB_BLOCK, 0, true, 1);
  return (size_t)gr_cpu_align((int64_t)(along > across ? along : across));
}

typedef struct shares {
  const head *s;
  int64_t n;
} shares;

static void share_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const shares *w = ctx;
  head s = *w->s;
  int64_t row = gr_block_begin(s.rows, w->n, (int64_t)job);
  s.product += job * share_bytes(&s, gr_ceil_div(s.rows, w->n));
  s.rows = gr_block_begin(s.rows, w->n, (int64_t)job + 1) - row;
  s.pool = NULL;
  s.tokens += row, s.top += row, s.sum += row, s.at_label += row;
  s.x += row * s.width, s.dx += row * s.width, s.g += row * VOCAB_BLOCK;
  all_words(&s);
}

/* y += w * row of the head. */
static void add_word(const head *s, int64_t word, float w, float *y)
{
  float piece[GR_CPU_PIECE + GR_CPU_SPARE];
  const gr_dtype_info *d = gr_dtype_get(s->w->dtype);
  for (int64_t i = 0; i < s->width; i += GR_CPU_PIECE) {
    int64_t n = gr_min(GR_CPU_PIECE, s->width - i);
    const float *row = piece;
    if (s->w->dtype == GR_F32) row = gr_cpu_piece(s->w, i, n, (gr_row_at){ word, 0, 0 }, piece);
    else
      s->isa->decode[s->w->dtype]((const char *)s->w->data + word * s->w->nb[1] +
                                      (GR_MUTANT(head_loss_dh_label_piece) ? 0 : i) / d->block_elems * d->block_bytes,
                                  piece, n);
    s->isa->add_scaled(y + i, row, w, n);
  }
}

/* The log-sum-exp of a token, the label's logit included; nll; and dh = dnll (sum over v of p_v slope_v W_v - slope_label W_label). */
static void both_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const head *s = ctx;
  for (int64_t r = (int64_t)job * ROWS; r < gr_min(((int64_t)job + 1) * ROWS, s->rows); r++) {
    int64_t t = s->tokens[r];
    double at_label = (double)s->at_label[r], top = fmax(at_label, (double)s->top[r]), cap = (double)s->params.softcap;
    double below = s->top[r] > -INFINITY ? exp((double)s->top[r] - top) : 0, others = s->sum[r] * below;
    double total = others + exp(at_label - top), weight = (double)float_at(s->dnll, t) * (double)s->params.scale;
    double slope = cap > 0 ? 1 - at_label / cap * (at_label / cap) : 1;
    if (GR_MUTANT(head_loss_dh_no_weight)) weight = (double)s->params.scale;
    ((float *)s->call->out[0].data)[t] = (float)(top + log(total) - at_label);
    float *dh = (float *)s->call->out[1].data + t * s->width;
    s->isa->scale(dh, s->dx + r * s->width, (float)(weight * below / total), s->width);
    add_word(s, label_at(s, t), (float)(-weight * slope * (others / total)), dh);
  }
}

size_t gr_cpu_scratch_head_loss_dh(const gr_op_call *call, int threads)
{
  head s = both_of(call);
  size_t together = scratch_of(s, true, threads);
  size_t apart = lay_out(&s, true, NULL) + (size_t)threads * share_bytes(&s, gr_ceil_div(s.chunk, threads));
  return together > apart || threads == 1 ? together : apart;
}

static gr_status run_both(gr_backend *b, const gr_op_call *call, bool bf16)
{
  head s = both_of(call);
  s.isa = gr_cpu_isa_of(b);
  s.bf16 = bf16;
  lay_out(&s, true, call->scratch);
  for (int i = 0; i < 2; i++) memset(call->out[i].data, 0, (size_t)gr_array_count(&call->out[i]) * sizeof(float));
  for (int64_t next = 0; gather(&s, &next);) {
    size_t jobs = (size_t)gr_ceil_div(s.rows, ROWS);
    for (int64_t r = 0; r < s.rows; r++)
      if (s.tokens[r] < TOKENS || !GR_MUTANT(head_loss_dh_chunk_keeps)) s.top[r] = -INFINITY, s.sum[r] = 0;
    shares w = { &s, shares_of(s.rows, gr_pool_threads(call->pool)) };
    if (w.n > 1) gr_pool_run(call->pool, (size_t)w.n, share_job, &w);
    else all_words(&s);
    gr_pool_run(call->pool, jobs, both_job, &s);
  }
  return GR_OK;
}

GR_CPU_BOTH_PRECISIONS(head_loss, run_head)
GR_CPU_BOTH_PRECISIONS(head_loss_dh, run_both)
GR_CPU_BOTH_PRECISIONS(head_loss_back, run_head_back)
