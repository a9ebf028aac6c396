/* head_loss, head_loss_back. The tokens with a label are taken in chunks: their hidden states are gathered, the product engine gives
 * their logits into scratch, and masked tokens cost nothing. Each token's bits are its own, whatever chunk it falls into. */
#include <string.h>

#include "backend/cpu/cpu.h"

enum { CHUNK_LOGITS = 16 << 20, CHUNK_MOST = 256 };

typedef struct head {
  const gr_op_call *call;
  const gr_cpu_isa *isa;
  struct gr_head_params params;
  const gr_array *w, *h, *labels, *bias, *a, *b; /* NULL: absent */
  int64_t width, vocab, rank, chunk;
  /* Scratch. */
  int32_t *tokens; /* [chunk] which token each row is */
  float *x, *z;    /* [width, chunk], [vocab, chunk] */
  float *u, *q;    /* [rank, chunk]: A h, and lora_scale B^T g */
  float *dx;       /* [width, chunk] */
  char *product;   /* the engine's */
  int64_t rows;    /* live rows of the chunk */
} head;

static const gr_array *optional(const gr_op_call *call, int i) { return i < call->n_in && call->in[i].ne[0] > 0 ? &call->in[i] : NULL; }

static head head_of(const gr_op_call *call, int bias, int a, int b)
{
  head s = { .call = call,
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
  s.chunk = gr_max(1, gr_min(s.h->ne[1], gr_max(16, gr_min(CHUNK_MOST, CHUNK_LOGITS / gr_max(1, s.vocab)))));
  return s;
}

/* What the engine needs for the largest of the products below. */
static size_t engine_bytes(const head *s, int threads)
{
  const int64_t c = s->chunk, d = s->width, v = s->vocab, r = s->rank;
  const int64_t sizes[][3] = { { c, v, d }, { c, d, v }, { c, r, d }, { c, v, r }, { v, r, c }, { c, r, v }, { r, d, c }, { c, d, r } };
  size_t most = 0;
  for (size_t i = 0; i < (r ? sizeof sizes / sizeof *sizes : 2); i++) {
    size_t bytes = gr_cpu_product_scratch(sizes[i][0], sizes[i][1], sizes[i][2], threads);
    if (bytes > most) most = bytes;
  }
  return most;
}

static void *take(char *base, size_t *at, int64_t bytes)
{
  size_t from = *at;
  *at += (size_t)gr_cpu_align(bytes);
  return base ? base + from : NULL;
}

/* Lays out the scratch that begins at base; returns its size up to the engine's, so that with NULL it measures. */
static size_t lay_out(head *s, char *base)
{
  const int64_t f = sizeof(float);
  size_t at = 0;
  s->tokens = take(base, &at, s->chunk * (int64_t)sizeof *s->tokens);
  s->x = take(base, &at, s->chunk * s->width * f);
  s->z = take(base, &at, s->chunk * s->vocab * f);
  s->u = take(base, &at, s->chunk * s->rank * f);
  s->q = take(base, &at, s->chunk * s->rank * f);
  s->dx = take(base, &at, s->chunk * s->width * f);
  s->product = base ? base + at : NULL;
  return at;
}

static size_t scratch_of(head s, int threads) { return lay_out(&s, NULL) + engine_bytes(&s, threads); }

size_t gr_cpu_scratch_head_loss(const gr_op_call *call, int threads) { return scratch_of(head_of(call, 3, 4, 5), threads); }
size_t gr_cpu_scratch_head_loss_back(const gr_op_call *call, int threads) { return scratch_of(head_of(call, 5, 6, 7), threads); }

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
    if (label_at(s, *next) < 0) continue;
    float *x = s->x + s->rows * s->width;
    const float *h = gr_cpu_row(s->h, (gr_row_at){ *next, 0, 0 }, x);
    if (h != x) memcpy(x, h, (size_t)s->width * sizeof *x);
    s->tokens[s->rows++] = (int32_t)*next;
  }
  return s->rows > 0;
}

/* y[row, :] (+)= x[row, :] times w: along w's rows, or across them. All of rows x floats, dense but for w. */
static void multiply(const head *s, const gr_array *w, bool across, const float *x, float *y, bool add)
{
  int64_t depth = across ? w->ne[1] : w->ne[0], cols = across ? w->ne[0] : w->ne[1];
  gr_cpu_product p = { .w = w->data,
                       .w_row = w->nb[1],
                       .w_step = w->nb[0],
                       .dtype = w->dtype,
                       .across = across,
                       .x = (const char *)x,
                       .x_row = depth * (int64_t)sizeof *x,
                       .x_step = sizeof *x,
                       .y = y,
                       .y_row = cols,
                       .base = add ? y : NULL,
                       .base_row = cols,
                       .rows = s->rows,
                       .cols = cols,
                       .depth = depth };
  gr_cpu_product_run(&p, s->isa, s->call->pool, s->product);
}

/* y[i, :] += sum over the chunk's rows t of a[t, i] b[t, :]: a gradient of a factor of the adapter. */
static void add_outer(const head *s, const float *a, int64_t a_width, const float *b, int64_t b_width, float *y)
{
  const int64_t f = sizeof(float);
  gr_cpu_product p = { .w = (const char *)b,
                       .w_row = b_width * f,
                       .w_step = f,
                       .dtype = GR_F32,
                       .across = true,
                       .x = (const char *)a,
                       .x_row = f,
                       .x_step = a_width * f,
                       .y = y,
                       .y_row = b_width,
                       .base = y,
                       .base_row = b_width,
                       .rows = a_width,
                       .cols = b_width,
                       .depth = s->rows };
  gr_cpu_product_run(&p, s->isa, s->call->pool, s->product);
}

/* Logits before scale and softcap. */
static void logits(const head *s)
{
  multiply(s, s->w, false, s->x, s->z, false);
  if (!s->rank) return;
  multiply(s, s->a, false, s->x, s->u, false);
  for (int64_t i = 0; i < s->rows * s->rank; i++) s->u[i] *= s->params.lora_scale;
  multiply(s, s->b, false, s->u, s->z, true);
}

static float *finish_row(const head *s, int64_t row)
{
  float *z = s->z + row * s->vocab, buffer[GR_CPU_PIECE];
  for (int64_t i = 0; s->bias && i < s->vocab; i += GR_CPU_PIECE) {
    int64_t n = gr_min(GR_CPU_PIECE, s->vocab - i);
    s->isa->add(z + i, z + i, gr_cpu_piece(s->bias, i, n, (gr_row_at){ 0, 0, 0 }, buffer), n);
  }
  s->isa->soften(z, s->params.scale, s->params.softcap, s->vocab);
  return z;
}

static void loss_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const head *s = ctx;
  const float *z = finish_row(s, (int64_t)job);
  int64_t t = s->tokens[job];
  double lse = s->isa->log_sum_exp(z, s->vocab);
  ((float *)s->call->out[0].data)[t] = (float)(lse - (double)z[label_at(s, t)]);
  ((float *)s->call->out[1].data)[t] = (float)lse;
}

gr_status gr_cpu_run_head_loss(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  head s = head_of(call, 3, 4, 5);
  s.isa = gr_cpu_isa_of(b);
  lay_out(&s, call->scratch);
  for (int i = 0; i < 2; i++) memset(call->out[i].data, 0, (size_t)call->out[i].ne[0] * sizeof(float));
  for (int64_t next = 0; gather(&s, &next);) {
    logits(&s);
    gr_pool_run(call->pool, (size_t)s.rows, loss_job, &s);
  }
  return GR_OK;
}

static void gradient_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const head *s = ctx;
  int64_t t = s->tokens[job];
  float *z = finish_row(s, (int64_t)job);
  s->isa->loss_gradient(z, (double)float_at(&s->call->in[3], t), label_at(s, t), float_at(&s->call->in[4], t), s->params.scale,
                        s->params.softcap, s->vocab);
}

gr_status gr_cpu_run_head_loss_back(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)e;
  head s = head_of(call, 5, 6, 7);
  s.isa = gr_cpu_isa_of(b);
  lay_out(&s, call->scratch);
  for (int i = 0; i < call->n_out; i++) memset(call->out[i].data, 0, (size_t)gr_array_count(&call->out[i]) * sizeof(float));
  float *dh = call->out[0].data;
  for (int64_t next = 0; gather(&s, &next);) {
    logits(&s);
    gr_pool_run(call->pool, (size_t)s.rows, gradient_job, &s);
    multiply(&s, s.w, true, s.z, s.dx, false);
    if (s.rank) {
      add_outer(&s, s.z, s.vocab, s.u, s.rank, call->out[2].data); /* u holds lora_scale A h */
      multiply(&s, s.b, true, s.z, s.q, false);
      for (int64_t i = 0; i < s.rows * s.rank; i++) s.q[i] *= s.params.lora_scale;
      add_outer(&s, s.q, s.rank, s.x, s.width, call->out[1].data);
      multiply(&s, s.a, true, s.q, s.dx, true);
    }
    for (int64_t r = 0; r < s.rows; r++) memcpy(dh + s.tokens[r] * s.width, s.dx + r * s.width, (size_t)s.width * sizeof *dh);
  }
  return GR_OK;
}
