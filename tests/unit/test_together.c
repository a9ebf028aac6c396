/* Linear layers that need nothing of each other run as one launch: with the bits of one after the other and of plain nodes, for every
 * instruction set, precision, number of threads and of tokens, with adapters and without. */
#include "cpu_fixture.h"

#include "graph/plan.h"

enum { DEPTH = 576, LINEARS = 4, RESULTS = 96 + 67 + 33 + 32, TOKENS_MOST = 5 };

static const struct {
  gr_dtype type;
  int64_t cols, rank; /* rank 0: no adapter */
} linears[LINEARS] = { { GR_Q4_1, 96, 0 }, { GR_Q8_0, 67, 5 }, { GR_F32, 33, 16 }, { GR_Q4_1, 32, 40 } };

/* The same weights for every plan, which takes its graph apart. */
typedef struct layer {
  gr_tensor *x, *w[LINEARS], *a[LINEARS], *b[LINEARS];
} layer;

static layer make_layer(fixture *f)
{
  layer l = { .x = f32(f, DEPTH, TOKENS_MOST, 1) };
  for (int i = 0; i < LINEARS; i++) {
    l.w[i] = leaf(f, linears[i].type, DEPTH, linears[i].cols, 1);
    if (linears[i].rank == 0) continue;
    l.a[i] = f32(f, DEPTH, linears[i].rank, 1);
    l.b[i] = f32(f, linears[i].rank, linears[i].cols, 1);
  }
  return l;
}

static gr_tensor *weight(gr_graph *g, const gr_tensor *t) { return gr_graph_leaf(g, GR_LEAF_WEIGHT, t->dtype, t->ne, NULL, t->data, "w"); }

/* Each linear has an x of its own, made for it alone: that of an early one is not needed by a late one. */
static gr_plan *make_plan(const layer *l, gr_backend *b, gr_graph *g, int64_t tokens, bool plain, gr_tensor *results[LINEARS])
{
  gr_error e = { 0 };
  const int64_t ne[GR_DIMS] = { DEPTH, tokens, 1, 1 };
  gr_tensor *x = gr_graph_leaf(g, GR_LEAF_INPUT, GR_F32, ne, NULL, NULL, "x"), *own[LINEARS];
  for (int i = 0; i < LINEARS; i++) own[i] = gr_scale(g, x, (float)(i + 1));
  for (int i = 0; i < LINEARS; i++) {
    results[i] = gr_matmul(g, weight(g, l->w[i]), own[i]);
    if (linears[i].rank == 0) continue;
    gr_tensor *low = gr_scale(g, gr_matmul(g, weight(g, l->a[i]), own[i]), 0.5f);
    results[i] = gr_add(g, results[i], gr_matmul(g, weight(g, l->b[i]), low));
  }
  const gr_plan_options o = { .backends = &b, .n_backends = 1, .no_fusion = plain, .poison = true };
  gr_plan *p = NULL;
  assert_ok(gr_plan_create(&p, g, results, LINEARS, &o, &e), &e);
  assert_ok(gr_plan_allocate(p, &e), &e);
  assert_ok(gr_plan_write(p, x, l->x->data, (size_t)(DEPTH * tokens) * sizeof(float), &e), &e);
  return p;
}

/* most: launches run at once. */
static void run_plan(gr_plan *p, gr_tensor *const results[LINEARS], size_t most, float *y)
{
  gr_error e = { 0 };
  for (size_t cursor = 0; cursor < gr_plan_launches(p);) assert_ok(gr_plan_run(p, &cursor, most, &e), &e);
  for (int i = 0; i < LINEARS; i++) {
    size_t n = (size_t)(results[i]->ne[0] * results[i]->ne[1]);
    assert_ok(gr_plan_read(p, results[i], y, n * sizeof *y, &e), &e);
    y += n;
  }
}

static size_t joined(const gr_plan *p)
{
  size_t most = 0;
  for (size_t i = 0; i < p->n_launches; i++)
    if ((size_t)p->launches[i].joined > most) most = (size_t)p->launches[i].joined;
  return most;
}

static void compare(fixture *f, const layer *l, int set, bool bf16, int pool, int64_t tokens)
{
  static float want[RESULTS * TOKENS_MOST], got[RESULTS * TOKENS_MOST];
  gr_error e = { 0 };
  gr_backend *b = f->backend[set];
  gr_tensor *results[LINEARS];
  assert_ok(gr_backend_use_precision(b, bf16 ? GR_PRECISION_BF16 : GR_PRECISION_F32, &e), &e);
  for (int kind = 0; kind < 3; kind++) { /* plain nodes, then fused ones: launch by launch, and all at once */
    gr_graph *g = gr_graph_create();
    assert_non_null(g);
    b->pool = kind ? f->pool[pool] : NULL;
    gr_plan *p = make_plan(l, b, g, tokens, kind == 0, results);
    if (kind) assert_int_equal(joined(p), LINEARS - 1);
    run_plan(p, results, kind < 2 ? 1 : SIZE_MAX, kind ? got : want);
    if (kind && memcmp(got, want, (size_t)(RESULTS * tokens) * sizeof *got) != 0)
      fail_msg("%s, %s, %d threads, %d tokens: other bits %s", sets[set], bf16 ? "bf16" : "F32", thread_counts[pool], (int)tokens,
               kind == 1 ? "one by one" : "together");
    gr_plan_free(p);
    gr_graph_free(g);
  }
  b->pool = NULL;
  assert_ok(gr_backend_use_precision(b, GR_PRECISION_F32, &e), &e);
}

static void linears_have_the_same_bits_together(void **state)
{
  fixture *f = *state;
  const layer l = make_layer(f);
  for (int s = 0; s < SETS; s++)
    for (int i = 0; i < 2 * POOLS && f->backend[s]; i++)
      for (int64_t tokens = 1; tokens <= TOKENS_MOST; tokens++) compare(f, &l, s, i % 2, i / 2, tokens);
}

/* Jobs of one launch run in any order: nothing that one of them writes may stand where another reads or writes. */
static void what_runs_together_stands_apart(void **state)
{
  fixture *f = *state;
  const layer l = make_layer(f);
  gr_graph *g = gr_graph_create();
  gr_tensor *results[LINEARS];
  gr_backend *b = NULL;
  for (int s = SETS; s-- > 0;)
    if (f->backend[s]) b = f->backend[s];
  gr_plan *p = make_plan(&l, b, g, 3, false, results);
  size_t first = 0;
  while (p->launches[first].joined == 0) first++;
  for (size_t i = first; i < first + LINEARS; i++)
    for (size_t k = first; k < first + LINEARS; k++)
      for (int out = 0; out < p->launches[i].node->n_out; out++) {
        const gr_launch *other = &p->launches[k];
        const gr_place *y = &p->places[p->launches[i].out[out]];
        for (int j = 0; j < other->node->n_in + other->node->n_out; j++) {
          const int32_t at = j < other->node->n_in ? other->in[j] : other->out[j - other->node->n_in];
          const gr_place *z = &p->places[at];
          if (z == y || z->external) continue;
          if (y->offset < z->offset + z->bytes && z->offset < y->offset + y->bytes)
            fail_msg("launch %zu writes what launch %zu uses", i, k);
        }
      }
  gr_plan_free(p);
  gr_graph_free(g);
}

/* W' (W x): the second waits for the first. */
static void what_reads_the_other_does_not_run_with_it(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  gr_tensor *w = f32(f, DEPTH, DEPTH, 1), *x = f32(f, DEPTH, 1, 1);
  float y[2][DEPTH];
  gr_backend *b = NULL;
  for (int s = SETS; s-- > 0;)
    if (f->backend[s]) b = f->backend[s];
  b->pool = f->pool[1];
  gr_graph *g = gr_graph_create();
  assert_non_null(g);
  gr_tensor *in = weight(g, x), *mid = gr_matmul(g, weight(g, w), in), *out = gr_matmul(g, weight(g, w), mid);
  const gr_plan_options o = { .backends = &b, .n_backends = 1, .poison = true };
  gr_plan *p = NULL;
  assert_ok(gr_plan_create(&p, g, &out, 1, &o, &e), &e);
  assert_int_equal(joined(p), 0);
  for (int i = 0; i < 2; i++) {
    for (size_t cursor = 0; cursor < gr_plan_launches(p);) assert_ok(gr_plan_run(p, &cursor, i ? SIZE_MAX : 1, &e), &e);
    assert_ok(gr_plan_read(p, out, y[i], sizeof y[i], &e), &e);
  }
  assert_memory_equal(y[0], y[1], sizeof y[0]);
  gr_plan_free(p);
  gr_graph_free(g);
  b->pool = NULL;
}

int main(void)
{
  const struct CMUnitTest tests[] = { GRAPH_TEST(linears_have_the_same_bits_together), GRAPH_TEST(what_runs_together_stands_apart),
                                      GRAPH_TEST(what_reads_the_other_does_not_run_with_it) };
  return cmocka_run_group_tests_name("together", tests, setup, teardown);
}
