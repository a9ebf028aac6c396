/* bench_cpu: what the CPU backend's kernels reach, beside the machine's limit measured in the same run.
 *   bench_cpu [threads = 2] [seconds a case = 0.5] [text: only the cases whose line contains it] [f32 or bf16]
 * One line a case: GFLOP/s by the wall clock (median, best), the limit of multiply-adds on registers (the best of tries that alternate with
 * all that was timed so far), and shares of it: by the wall clock, and by processor time, which leaves out what other processes took
 * (median, best). GRAFT_CPU forces an instruction set. Flops of attention count visible pairs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "backend/cpu/peak.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "ops/params.h"
#include "quant/quant.h"

enum { RUNS = 10000, NODES = 8, PATTERN = 61, ARENA = 1 << 30, DISTINCT = 2048 /* rows of an operand; then they repeat */ };

typedef struct bench {
  gr_pool *pool;
  gr_backend *backend;
  double seconds;
  const char *filter;
  gr_graph *graph;
  uint64_t stream;
  char *arena;
  size_t used;
  gr_cpu_limits limits;
} bench;

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *checked(void *p)
{
  if (!p) fprintf(stderr, "bench_cpu: out of memory\n"), exit(1);
  return p;
}

/* As a plan allocates: out of one arena, on huge pages where there are any. */
static void *storage(bench *b, size_t bytes)
{
  void *p = b->arena + b->used;
  b->used += (bytes + 64 + 63) & ~(size_t)63;
  if (b->used > ARENA) fprintf(stderr, "bench_cpu: the arena is too small\n"), exit(1);
  return p;
}

/* ---- operands ---- */

static gr_tensor *leaf(bench *b, gr_dtype t, int64_t n0, int64_t n1, int64_t n2)
{
  const int64_t ne[GR_DIMS] = { n0, n1, n2, 1 };
  int64_t row = (int64_t)gr_row_bytes(t, n0);
  char *data = storage(b, (size_t)(row * n1 * n2));
  for (int64_t r = 0; r < n1 * n2; r++) {
    if (r >= DISTINCT) {
      memcpy(data + r * row, data + r % PATTERN * row, (size_t)row);
      continue;
    }
    float *x = checked(gr_alloc((size_t)n0 * sizeof *x));
    if (r >= PATTERN && t != GR_F32) { /* encoding is slow, and what is decoded matters little */
      memcpy(data + r * row, data + r % PATTERN * row, (size_t)row);
      gr_free(x);
      continue;
    }
    for (int64_t i = 0; i < n0; i++) x[i] = (float)(gr_random_uniform(1, b->stream, (uint64_t)(r * n0 + i)) - 0.5);
    if (t == GR_I32) memset(data + r * row, 0, (size_t)row);
    else if (t == GR_F32) memcpy(data + r * row, x, (size_t)row);
    else if (gr_quant_encoder(t)) gr_quant_encoder(t)(x, data + r * row, n0);
    else memset(data + r * row, 0x21, (size_t)row); /* small finite scales in every format */
    gr_free(x);
  }
  b->stream++;
  return gr_graph_leaf(b->graph, GR_LEAF_INPUT, t, ne, NULL, data, "x");
}

static gr_array array_of(const gr_tensor *t)
{
  const gr_tensor *root = t->base ? t->base : t;
  gr_array a = { .data = (char *)root->data + t->offset, .dtype = t->dtype };
  memcpy(a.ne, t->ne, sizeof a.ne);
  memcpy(a.nb, t->nb, sizeof a.nb);
  return a;
}

/* ---- measuring ---- */

static int ascending(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
  qsort(x, n, sizeof *x, ascending);
  return x[n / 2];
}

/* What a case runs: one node, or several that give one result. */
typedef struct work {
  const gr_kernel_row *row[NODES];
  gr_op_call call[NODES];
  size_t n;
  double flops;
} work;

static void run_once(bench *b, const work *w)
{
  gr_error e;
  for (size_t i = 0; i < w->n; i++)
    if (w->row[i]->run(b->backend, &w->call[i], &e) != GR_OK) fprintf(stderr, "bench_cpu: %s\n", e.text), exit(1);
}

static void measure(bench *b, const char *name, const work *w)
{
  static double wall[RUNS], cpu[RUNS];
  size_t runs = 0;
  int threads = gr_pool_threads(b->pool);
  bool bf16 = false;
  for (size_t i = 0; i < w->n; i++) bf16 = bf16 || w->row[i]->bf16;
  run_once(b, w); /* pages, caches */
  for (double end = now() + b->seconds; runs < 3 || (runs < RUNS && now() < end); runs++) {
    if (runs % 8 == 0) gr_cpu_limits_raise(&b->limits, b->backend, b->pool, NULL, 0);
    double t0 = now(), c0 = gr_pool_seconds(b->pool);
    run_once(b, w);
    double t1 = now(), c1 = gr_pool_seconds(b->pool);
    wall[runs] = w->flops * 1e-9 / (t1 - t0);
    cpu[runs] = w->flops * 1e-9 / (c1 - c0) * threads;
  }
  double middle = median(wall, runs), middle_cpu = median(cpu, runs), top = 1e-9 * b->limits.flop_s[bf16];
  printf("| %-50s | %7.1f | %7.1f | ", name, middle, wall[runs - 1]);
  if (strncmp(name, "GB/s", 4) == 0) printf("      - |       - |       - |       - | %zu |\n", runs); /* not operations, and from caches */
  else
    printf("%7.1f | %5.1f %% | %5.1f %% | %5.1f %% | %zu |\n", top, 100 * middle / top, 100 * middle_cpu / top, 100 * cpu[runs - 1] / top,
           runs);
  fflush(stdout);
}

/* The nodes of the graph, the last of which gives t; flops 0: what their cost functions say. */
static void run_case(bench *b, const char *name, const gr_tensor *t, double flops)
{
  gr_error e;
  if (gr_graph_status(b->graph, &e) != GR_OK) fprintf(stderr, "bench_cpu: %s\n", e.text), exit(1);
  work w = { .flops = flops };
  for (size_t k = 0; k < b->graph->n_nodes; k++) {
    const gr_node *n = b->graph->nodes[k];
    if (gr_op_get(n->op)->flags & GR_OP_VIEW) continue;
    gr_op_call *call = &w.call[w.n];
    *call = (gr_op_call){ .op = n->op, .params = n->params, .n_in = n->n_in, .n_out = n->n_out, .pool = b->pool };
    for (int i = 0; i < n->n_in; i++)
      if (n->in[i]) call->in[i] = array_of(n->in[i]);
    for (int i = 0; i < n->n_out; i++) {
      call->out[i] = array_of(n->out[i]);
      call->out[i].data = n->out[i]->data = storage(b, (size_t)gr_array_count(&call->out[i]) * sizeof(float));
    }
    w.row[w.n] = gr_backend_find(b->backend, call);
    call->scratch = storage(b, (w.row[w.n]->scratch ? w.row[w.n]->scratch(call, gr_pool_threads(b->pool)) : 0) + 1);
    gr_cost cost;
    gr_op_get(n->op)->cost(call, &cost);
    if (!(flops > 0)) w.flops += cost.flops;
    w.n++;
    if (n == t->node) break;
  }
  measure(b, name, &w);
}

/* A graph of its own for each case; false when the filter leaves it out. */
static bool begin(bench *b, const char *name)
{
  if (b->filter && !strstr(name, b->filter)) return false;
  b->graph = checked(gr_graph_create());
  return true;
}

static void finish(bench *b)
{
  b->used = 0;
  gr_graph_free(b->graph);
}

/* ---- cases ---- */

static void linear(bench *b, gr_dtype t, int64_t m, int64_t k, int64_t n)
{
  char name[96];
  for (int back = 0; back < 2; back++) {
    snprintf(name, sizeof name, "%s %s %lld x %lld, n %lld", gr_dtype_name(t), back ? "backward" : "forward", (long long)m, (long long)k,
             (long long)n);
    if (!begin(b, name)) continue;
    gr_tensor *w = leaf(b, t, k, m, 1), *x = leaf(b, GR_F32, back ? m : k, n, 1);
    run_case(b, name, back ? gr_out_prod(b->graph, w, gr_transpose(b->graph, x)) : gr_matmul(b->graph, w, x), 0);
    finish(b);
  }
}

/* The products of an adapter on a k -> m layer. */
static void adapter(bench *b, int64_t m, int64_t k, int64_t r, int64_t n)
{
  static const char *const parts[] = { "A x", "y + B h", "dh = B^T dy", "dB", "dA", "dx + A^T dh" };
  char name[96];
  for (int i = 0; i < 6; i++) {
    snprintf(name, sizeof name, "adapter r %lld, %lld x %lld, n %lld: %s", (long long)r, (long long)m, (long long)k, (long long)n,
             parts[i]);
    if (!begin(b, name)) continue;
    gr_graph *g = b->graph;
    gr_tensor *a = leaf(b, GR_F32, k, r, 1), *up = leaf(b, GR_F32, r, m, 1), *x = leaf(b, GR_F32, k, n, 1), *h = leaf(b, GR_F32, r, n, 1),
              *y = leaf(b, GR_F32, m, n, 1);
    gr_tensor *t = i == 0   ? gr_matmul(g, a, x)
                   : i == 1 ? gr_matmul_add(g, y, up, h)
                   : i == 2 ? gr_out_prod(g, up, gr_transpose(g, y))
                   : i == 3 ? gr_out_prod(g, h, y)
                   : i == 4 ? gr_out_prod(g, x, h)
                            : gr_out_prod_add(g, x, a, gr_transpose(g, h));
    run_case(b, name, t, 0);
    finish(b);
  }
}

/* Each token chooses k of e at random: ids and their grouping. */
static void routing(bench *b, int64_t e, int64_t k, int64_t n, gr_tensor *to[3])
{
  gr_tensor *ids = leaf(b, GR_I32, k, n, 1), *perm = leaf(b, GR_I32, k, n, 1), *offsets = leaf(b, GR_I32, e + 1, 1, 1);
  for (int64_t p = 0; p < k * n; p++) ((int32_t *)ids->data)[p] = (int32_t)(gr_random_u64(3, 5, (uint64_t)p) % (uint64_t)e);
  gr_op_call group = {
    .op = GR_OP_group_experts, .n_in = 1, .n_out = 2, .in = { array_of(ids) }, .out = { array_of(perm), array_of(offsets) }
  };
  gr_op_get(GR_OP_group_experts)->reference(&group);
  to[0] = ids, to[1] = perm, to[2] = offsets;
}

/* One layer's products over experts, each token choosing k of E: those of frozen stacks (up reads one row a token, down one a slot), and,
 * unless r is 0, of factors of rank r, and the gradients of these. */
static void experts(bench *b, gr_dtype t, int64_t width, int64_t hidden, int64_t r, int64_t e, int64_t k, int64_t n)
{
  static const char *const parts[] = { "up", "up back", "down", "down back", "A x", "B h", "A back", "B back", "dA", "dB", "combine" };
  char name[96];
  for (int i = 0; i < (r ? 11 : 4); i++) {
    snprintf(name, sizeof name, "experts %lld of %lld, %s %lld x %lld, n %lld: %s", (long long)k, (long long)e, gr_dtype_name(t),
             (long long)hidden, (long long)width, (long long)n, parts[i]);
    if (!begin(b, name)) continue;
    gr_graph *g = b->graph;
    gr_tensor *route[3];
    routing(b, e, k, n, route);
    gr_tensor *ids = route[0], *perm = route[1], *offsets = route[2];
    gr_tensor *token = leaf(b, GR_F32, width, 1, n), *slot = leaf(b, GR_F32, hidden, k, n), *result = leaf(b, GR_F32, width, k, n);
    gr_tensor *h = r ? leaf(b, GR_F32, r, k, n) : NULL, *y = NULL;
    gr_tensor *up = i > 1 ? NULL : leaf(b, t, width, hidden, e), *down = i < 2 || i > 3 ? NULL : leaf(b, t, hidden, width, e);
    gr_tensor *a = r ? leaf(b, GR_F32, width, r, e) : NULL, *back = r ? leaf(b, GR_F32, r, hidden, e) : NULL;
    if (i == 0 || i == 4) y = gr_matmul_id(g, i ? a : up, token, ids, perm, offsets);
    if (i == 2) y = gr_matmul_id(g, down, slot, ids, perm, offsets);
    if (i == 5) y = gr_matmul_id(g, back, h, ids, perm, offsets);
    if (i == 1 || i == 6) y = gr_matmul_id_back(g, i > 1 ? a : up, i > 1 ? h : slot, ids, perm, offsets, 1);
    if (i == 3) y = gr_matmul_id_back(g, down, result, ids, perm, offsets, k);
    if (i == 7) y = gr_matmul_id_back(g, back, slot, ids, perm, offsets, k);
    if (i == 8) y = gr_out_prod_id(g, token, h, ids, perm, offsets);
    if (i == 9) y = gr_out_prod_id(g, h, slot, ids, perm, offsets);
    if (i == 10) y = gr_combine(g, result, leaf(b, GR_F32, k, n, 1));
    run_case(b, name, y, 0);
    finish(b);
  }
}

/* Gradients and products of a stack with its adapter: the product, those of the factors, the scale and the sum as nodes of their own, and
 * as one. slots: rows of x a token. */
static gr_tensor *adapted_node(gr_graph *g, bool back, bool fused, gr_tensor *w, gr_tensor *x, gr_tensor *const to[3], gr_tensor *a,
                               gr_tensor *b, int64_t slots)
{
  const struct gr_slots_lora_params p = { slots, 2 };
  if (fused) return back ? gr_matmul_id_lora_back(g, w, x, to, a, b, NULL, &p) : gr_matmul_id_lora(g, w, x, to[0], to[1], to[2], a, b, 2);
  if (back) {
    gr_tensor *h = gr_scale(g, gr_matmul_id_back(g, b, x, to[0], to[1], to[2], to[0]->ne[0]), 2);
    gr_tensor *low = gr_matmul_id_back(g, a, h, to[0], to[1], to[2], slots);
    return gr_add(g, low, gr_matmul_id_back(g, w, x, to[0], to[1], to[2], slots));
  }
  gr_tensor *base = gr_matmul_id(g, w, x, to[0], to[1], to[2]), *h = gr_scale(g, gr_matmul_id(g, a, x, to[0], to[1], to[2]), 2);
  return gr_add(g, base, gr_matmul_id(g, b, h, to[0], to[1], to[2]));
}

static void adapted(bench *b, gr_dtype t, int64_t width, int64_t hidden, int64_t r, int64_t e, int64_t k, int64_t n)
{
  static const char *const parts[] = { "up", "up back", "down", "down back" };
  char name[96];
  for (int i = 0; i < 8; i++) {
    const bool fused = i % 2, back = i / 2 % 2, down = i / 4;
    const int64_t from = down ? hidden : width, to = down ? width : hidden, slots = down ? k : 1;
    snprintf(name, sizeof name, "%lld of %lld, %s %lld x %lld, n %lld: adapted %s%s", (long long)k, (long long)e, gr_dtype_name(t),
             (long long)hidden, (long long)width, (long long)n, parts[i / 2], fused ? " in one" : "");
    if (!begin(b, name)) continue;
    gr_tensor *experts[3], *w = leaf(b, t, from, to, e), *x = leaf(b, GR_F32, back ? to : from, back ? k : slots, n);
    gr_tensor *a = leaf(b, GR_F32, from, r, e), *high = leaf(b, GR_F32, r, to, e);
    routing(b, e, k, n, experts);
    run_case(b, name, adapted_node(b->graph, back, fused, w, x, experts, a, high, slots), 0);
    finish(b);
  }
}

static void attention(bench *b, int64_t heads, int64_t kv, int64_t dim, int64_t n, int64_t segments)
{
  char name[96];
  for (int back = 0; back < 2; back++) {
    snprintf(name, sizeof name, "attention %s %lld/%lld heads of %lld, n %lld in %lld", back ? "backward" : "forward", (long long)heads,
             (long long)kv, (long long)dim, (long long)n, (long long)segments);
    if (!begin(b, name)) continue;
    gr_tensor *pos = leaf(b, GR_I32, n, 1, 1), *seg = leaf(b, GR_I32, n, 1, 1);
    for (int64_t i = 0; i < n; i++) {
      int64_t each = n / segments;
      ((int32_t *)pos->data)[i] = (int32_t)(i % each);
      ((int32_t *)seg->data)[i] = (int32_t)(i / each);
    }
    struct gr_attention_inputs in = { .q = leaf(b, GR_F32, dim, heads, n),
                                      .k = leaf(b, GR_F32, dim, kv, n),
                                      .v = leaf(b, GR_F32, dim, kv, n),
                                      .pos_q = pos,
                                      .seg_q = seg,
                                      .pos_k = pos,
                                      .seg_k = seg };
    struct gr_attention_params p = { .scale = 0.1f };
    double each = (double)(n / segments), pairs = (double)segments * each * (each + 1) / 2 * (double)heads;
    gr_tensor *out = leaf(b, GR_F32, dim, heads, n), *lse = leaf(b, GR_F32, heads, n, 1), *dout = leaf(b, GR_F32, dim, heads, n);
    run_case(b, name, back ? gr_attention_back(b->graph, &in, out, lse, dout, &p) : gr_attention(b->graph, &in, &p),
             pairs * (double)dim * (back ? 10 : 4));
    finish(b);
  }
}

static void head(bench *b, gr_dtype t, int64_t vocab, int64_t width, int64_t n)
{
  char name[96];
  for (int back = 0; back < 2; back++) {
    snprintf(name, sizeof name, "head %s %s %lld x %lld, n %lld", gr_dtype_name(t), back ? "backward" : "forward", (long long)vocab,
             (long long)width, (long long)n);
    if (!begin(b, name)) continue;
    struct gr_head_inputs in = { .w = leaf(b, t, width, vocab, 1), .h = leaf(b, GR_F32, width, n, 1), .labels = leaf(b, GR_I32, n, 1, 1) };
    struct gr_head_params p = { .scale = 1 };
    gr_tensor *lse = leaf(b, GR_F32, n, 1, 1), *dnll = leaf(b, GR_F32, n, 1, 1);
    run_case(b, name, back ? gr_head_loss_back(b->graph, &in, lse, dnll, &p) : gr_head_loss(b->graph, &in, &p), 0);
    finish(b);
  }
}

/* Bound by memory: what stands under GFLOP/s is GB/s. */
static void bandwidth(bench *b)
{
  static const char *const names[] = { "GB/s: add 1536 x 512",    "GB/s: rms_norm_mul 576 x 512", "GB/s: rms_norm_back 576 x 512",
                                       "GB/s: rope 64 x 9 x 512", "GB/s: swiglu 1536 x 512",      "GB/s: swiglu back 1536 x 512" };
  for (int i = 0; i < 6; i++) {
    if (!begin(b, names[i])) continue;
    gr_graph *g = b->graph;
    int64_t width = i == 1 || i == 2 ? 576 : 1536;
    gr_tensor *x = leaf(b, GR_F32, width, 512, 1), *y = leaf(b, GR_F32, width, 512, 1), *z = leaf(b, GR_F32, width, 512, 1);
    gr_tensor *w = leaf(b, GR_F32, width, 1, 1), *q = leaf(b, GR_F32, 64, 9, 512), *co = leaf(b, GR_F32, 32, 512, 1);
    gr_tensor *t = i == 0   ? gr_add(g, x, y)
                   : i == 1 ? gr_rms_norm_mul(g, x, w, 1e-5f)
                   : i == 2 ? gr_rms_norm_back(g, x, y, 1e-5f)
                   : i == 3 ? gr_rope(g, q, co, co, GR_ROPE_NORMAL, false)
                   : i == 4 ? gr_glu(g, GR_GLU_SWIGLU, x, y)
                            : gr_glu_back(g, GR_GLU_SWIGLU, x, y, z);
    static const double moved[] = { 3, 2, 3, 2, 3, 5 };
    run_case(b, names[i], t, 4 * moved[i] * (double)(t->ne[0] * t->ne[1] * t->ne[2]));
    finish(b);
  }
}

int main(int argc, char **argv)
{
  gr_error e;
  bench b = { .seconds = argc > 2 ? atof(argv[2]) : 0.5, .filter = argc > 3 ? argv[3] : NULL };
  if (gr_pool_create(&b.pool, argc > 1 ? atoi(argv[1]) : 2, &e) != GR_OK || gr_backend_open(&b.backend, "cpu", b.pool, &e) != GR_OK) {
    fprintf(stderr, "bench_cpu: %s\n", e.text);
    return 1;
  }
  gr_precision precision;
  if (gr_precision_parse(argc > 4 ? argv[4] : NULL, &precision, &e) != GR_OK ||
      gr_backend_use_precision(b.backend, precision, &e) != GR_OK) {
    fprintf(stderr, "bench_cpu: %s\n", e.text);
    return 1;
  }
  void *arena = NULL;
  if (b.backend->ops->alloc(b.backend, ARENA, &arena, &e) != GR_OK) {
    fprintf(stderr, "bench_cpu: %s\n", e.text);
    return 1;
  }
  b.arena = arena;
  printf("| %-50s | GFLOP/s | best | limit | share | by cpu time | best | runs |\n|---|---|---|---|---|---|---|---|\n", "work");
  static const gr_dtype small[] = { GR_F32, GR_F16, GR_BF16, GR_Q4_0, GR_Q4_1, GR_Q5_0, GR_Q5_1, GR_Q8_0, GR_IQ4_NL, GR_MXFP4 };
  static const gr_dtype super[] = { GR_Q2_K, GR_Q3_K, GR_Q4_K, GR_Q5_K, GR_Q6_K, GR_IQ4_XS };
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) linear(&b, small[i], 1536, 1536, 512);
  for (size_t i = 0; i < sizeof super / sizeof *super; i++) linear(&b, super[i], 1536, 1536, 512);
  linear(&b, GR_Q4_1, 576, 576, 512);
  linear(&b, GR_Q4_1, 192, 576, 512);
  linear(&b, GR_Q4_1, 1536, 576, 512);
  linear(&b, GR_Q4_1, 576, 1536, 512);
  static const gr_dtype large[] = { GR_Q4_K, GR_Q8_0, GR_Q6_K,   GR_Q5_K,   GR_Q4_0,  GR_Q4_1, GR_Q3_K, GR_Q2_K,
                                    GR_Q5_0, GR_Q5_1, GR_IQ4_NL, GR_IQ4_XS, GR_MXFP4, GR_F16,  GR_BF16, GR_F32 };
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) linear(&b, large[i], 5120, 5120, 512);
  for (int64_t n = 1; n <= 32; n *= 2) linear(&b, GR_Q4_1, 1536, 576, n);
  static const gr_dtype thin[] = { GR_Q4_K, GR_Q8_0, GR_Q6_K, GR_IQ4_NL, GR_IQ4_XS, GR_MXFP4 };
  for (size_t i = 0; i < sizeof thin / sizeof *thin; i++) linear(&b, thin[i], 1536, 1536, 1);
  adapter(&b, 1536, 1536, 16, 512);
  adapter(&b, 1536, 576, 16, 512);
  experts(&b, GR_Q4_K, 2048, 768, 16, 128, 8, 1024);
  experts(&b, GR_Q4_K, 2048, 768, 16, 16, 8, 1024);
  experts(&b, GR_Q4_K, 2048, 768, 16, 8, 2, 1024);
  experts(&b, GR_MXFP4, 2880, 2880, 16, 32, 4, 1024); /* gpt-oss-20b */
  experts(&b, GR_Q4_K, 2048, 768, 16, 128, 8, 1);
  adapted(&b, GR_Q4_K, 2048, 768, 16, 128, 8, 1024);
  adapted(&b, GR_MXFP4, 2880, 2880, 16, 32, 4, 1024);
  adapted(&b, GR_Q4_K, 2048, 768, 16, 128, 8, 1);
  static const gr_dtype stacks[] = { GR_Q4_K, GR_Q6_K, GR_Q8_0, GR_MXFP4 };
  for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) /* 16, 32 and 64 tokens an expert */
    for (int64_t n = 256; n <= 1024; n *= 2)
      if (stacks[i] != GR_Q4_K || n < 1024) experts(&b, stacks[i], 2048, 768, 0, 128, 8, n);
  attention(&b, 9, 3, 64, 512, 1);
  attention(&b, 9, 3, 64, 512, 8);
  attention(&b, 16, 4, 128, 2048, 1);
  head(&b, GR_Q8_0, 49152, 576, 512);
  head(&b, GR_Q4_1, 49152, 576, 128);
  bandwidth(&b);
  b.backend->ops->free(b.backend, arena);
  gr_backend_close(b.backend);
  gr_pool_free(b.pool);
  return 0;
}
