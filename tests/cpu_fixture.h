/* What the tests of the CPU backend share: operands, and a node run on every instruction set with 1, 2 and 7 threads against its reference.
 */
#ifndef GR_TESTS_CPU_FIXTURE_H
#define GR_TESTS_CPU_FIXTURE_H
#include "check.h"

#include <math.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "ops/params.h"
#include "quant/quant.h"

static const char *const sets[] = { "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon", "generic" };
static const int thread_counts[] = { 1, 2, 7 };
enum { SETS = 6, POOLS = 3 };

typedef struct fixture {
  gr_pool *pool[POOLS];
  gr_backend *backend[SETS]; /* NULL: does not run here */
  gr_graph *graph;
  uint64_t stream;
} fixture;

static inline int setup(void **state)
{
  gr_error e;
  fixture *f = calloc(1, sizeof *f);
  for (int i = 0; i < POOLS; i++)
    if (gr_pool_create(&f->pool[i], thread_counts[i], &e) != GR_OK) return -1;
  for (int i = 0; i < SETS; i++) {
    setenv("GRAFT_CPU", sets[i], 1);
    if (gr_backend_open(&f->backend[i], "cpu", NULL, &e) != GR_OK) f->backend[i] = NULL;
  }
  unsetenv("GRAFT_CPU");
  *state = f;
  return 0;
}

static inline int teardown(void **state)
{
  fixture *f = *state;
  for (int i = 0; i < POOLS; i++) gr_pool_free(f->pool[i]);
  for (int i = 0; i < SETS; i++) gr_backend_close(f->backend[i]);
  free(f);
  return 0;
}

static inline int new_graph(void **state)
{
  fixture *f = *state;
  f->stream = 1;
  return (f->graph = gr_graph_create()) ? 0 : -1;
}

static inline int free_graph(void **state)
{
  fixture *f = *state;
  for (size_t i = 0; i < f->graph->n_tensors; i++) gr_free(f->graph->tensors[i]->data);
  gr_graph_free(f->graph);
  return 0;
}

/* ---- inputs ---- */

static inline void fill_blocks(gr_dtype t, unsigned char *p, int64_t blocks, uint64_t stream)
{
  const gr_dtype_info *d = gr_dtype_get(t);
  float y[256];
  for (int64_t i = 0, draw = 0; i < blocks; draw++) { /* random bytes, but for blocks with wild scales */
    for (int j = 0; j < d->block_bytes; j++) p[j] = (unsigned char)gr_random_u64(42, stream, (uint64_t)(draw * 512 + j));
    gr_quant_decoder(t)(p, y, d->block_elems);
    bool tame = true;
    for (int j = 0; j < d->block_elems; j++) tame = tame && isfinite(y[j]) && fabsf(y[j]) < 8;
    if (tame) i++, p += d->block_bytes;
  }
}

static inline gr_tensor *leaf(fixture *f, gr_dtype t, int64_t a, int64_t b, int64_t c)
{
  const int64_t ne[GR_DIMS] = { a, b, c, 1 };
  size_t bytes = gr_row_bytes(t, a) * (size_t)(b * c);
  void *data = gr_alloc(bytes + 1);
  assert_non_null(data);
  gr_tensor *x = gr_graph_leaf(f->graph, GR_LEAF_INPUT, t, ne, NULL, data, "x");
  assert_non_null(x);
  int64_t n = a * b * c;
  uint64_t stream = f->stream++;
  if (t == GR_F32)
    for (int64_t i = 0; i < n; i++) ((float *)data)[i] = (float)gr_random_normal(42, stream, (uint64_t)i);
  else if (t != GR_I32) fill_blocks(t, data, n / gr_dtype_get(t)->block_elems, stream);
  return x;
}

static inline gr_tensor *f32(fixture *f, int64_t a, int64_t b, int64_t c) { return leaf(f, GR_F32, a, b, c); }

static inline gr_tensor *integers(fixture *f, const int32_t *v, int64_t n)
{
  gr_tensor *x = leaf(f, GR_I32, n, 1, 1);
  memcpy(x->data, v, (size_t)n * sizeof *v);
  return x;
}

static inline gr_array array_of(const gr_tensor *t)
{
  const gr_tensor *root = t->base ? t->base : t;
  gr_array a = { .data = (char *)root->data + t->offset, .dtype = t->dtype };
  memcpy(a.ne, t->ne, sizeof a.ne);
  memcpy(a.nb, t->nb, sizeof a.nb);
  return a;
}

/* ---- running ---- */

static inline gr_op_call call_of(const gr_node *n)
{
  gr_op_call c = { .op = n->op, .params = n->params, .n_in = n->n_in, .n_out = n->n_out };
  for (int i = 0; i < n->n_in; i++)
    if (n->in[i]) c.in[i] = array_of(n->in[i]);
  for (int i = 0; i < n->n_out; i++) {
    c.out[i] = array_of(n->out[i]);
    size_t bytes = (size_t)gr_array_count(&c.out[i]) * sizeof(float);
    c.out[i].data = gr_alloc(bytes);
    assert_non_null(c.out[i].data);
    memset(c.out[i].data, 0xff, bytes); /* NaN: what is not written shows */
  }
  return c;
}

static inline void free_call(gr_op_call *c)
{
  for (int i = 0; i < c->n_out; i++) gr_free(c->out[i].data);
}

static inline void run_cpu(gr_backend *b, gr_op_call *c, gr_pool *pool)
{
  gr_error e;
  const gr_kernel_row *row = gr_backend_find(b, c);
  assert_non_null(row);
  c->pool = pool;
  c->scratch = row->scratch ? gr_alloc_aligned(row->scratch(c, gr_pool_threads(pool)) + 1, 64) : NULL;
  assert_ok(row->run(b, c, &e), &e);
  gr_free(c->scratch);
}

/* Largest difference of each output over its root mean square. */
static inline void assert_near(const gr_op_call *got, const gr_op_call *want, double tolerance, const char *what)
{
  for (int i = 0; i < want->n_out; i++) {
    const float *a = got->out[i].data, *b = want->out[i].data;
    int64_t n = gr_array_count(&want->out[i]);
    double square = 0, worst = 0;
    for (int64_t j = 0; j < n; j++) {
      if (isfinite(b[j])) square += (double)b[j] * (double)b[j];
      double d = a[j] == b[j] ? 0 : fabs((double)a[j] - (double)b[j]);
      if (!(d <= worst)) worst = d;
    }
    assert_true(square > 0);
    double error = worst / sqrt(square / (double)n);
    if (!(error <= tolerance)) fail_msg("%s of %s, output %d: error %.3g, tolerance %.3g", gr_op_name(want->op), what, i, error, tolerance);
  }
}

static inline bool same_bits(const gr_op_call *a, const gr_op_call *b)
{
  for (int i = 0; i < a->n_out; i++)
    if (memcmp(a->out[i].data, b->out[i].data, (size_t)gr_array_count(&a->out[i]) * sizeof(float)) != 0) return false;
  return true;
}

/* The node of t against its reference, on every set and number of threads. */
static inline void check(fixture *f, const gr_tensor *t, double tolerance)
{
  gr_error e;
  assert_ok(gr_graph_status(f->graph, &e), &e);
  assert_non_null(t);
  gr_op_call want = call_of(t->node);
  gr_op_get(want.op)->reference(&want);
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call first = call_of(t->node);
    for (int p = 0; p < POOLS; p++) {
      gr_op_call got = call_of(t->node);
      run_cpu(f->backend[s], p == 0 ? &first : &got, f->pool[p]);
      if (p == 0) assert_near(&first, &want, tolerance, sets[s]);
      else if (!same_bits(&got, &first)) fail_msg("%s of %s: %d threads give other bits", gr_op_name(want.op), sets[s], thread_counts[p]);
      free_call(&got);
    }
    free_call(&first);
  }
  free_call(&want);
}

#define GRAPH_TEST(name) cmocka_unit_test_setup_teardown(name, new_graph, free_graph)

#endif
