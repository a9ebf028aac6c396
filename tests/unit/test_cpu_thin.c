/* Products of few rows, whose kernels decode in registers: the bits are those of the same rows among many, which go through tiles; for
 * every type, instruction set and number of rows, chunks of the contraction, partial strips, and sums on top of another. */
#include "cpu_fixture.h"

enum { MANY = 21 }; /* more rows than any thin product has */

/* Rows [at, at + n) of x as a tensor of their own. */
static gr_tensor *rows_of(fixture *f, const gr_tensor *x, int64_t at, int64_t n)
{
  gr_tensor *part = f32(f, x->ne[0], n, 1);
  memcpy(part->data, (float *)x->data + at * x->ne[0], (size_t)(n * x->ne[0]) * sizeof(float));
  return part;
}

static gr_tensor *product(fixture *f, gr_tensor *w, gr_tensor *x, gr_tensor *y)
{
  return y ? gr_matmul_add(f->graph, y, w, x) : gr_matmul(f->graph, w, x);
}

static void few_as_among_many(fixture *f, gr_tensor *w, gr_tensor *x, gr_tensor *y)
{
  gr_error e;
  gr_tensor *all = product(f, w, x, y);
  assert_ok(gr_graph_status(f->graph, &e), &e);
  for (int i = 0; i < 2 * SETS; i++) { /* in F32, then in bf16 */
    const int s = i % SETS;
    if (!f->backend[s]) continue;
    assert_ok(gr_backend_use_precision(f->backend[s], i < SETS ? GR_PRECISION_F32 : GR_PRECISION_BF16, &e), &e);
    gr_op_call whole = call_of(all->node);
    run_cpu(f->backend[s], &whole, f->pool[0]);
    for (int64_t n = 1, at = 2; n <= GR_CPU_THIN; at += n++) {
      gr_op_call few = call_of(product(f, w, rows_of(f, x, at, n), y ? rows_of(f, y, at, n) : NULL)->node);
      run_cpu(f->backend[s], &few, f->pool[n % POOLS]);
      if (memcmp(few.out[0].data, (float *)whole.out[0].data + at * w->ne[1], (size_t)(n * w->ne[1]) * sizeof(float)) != 0)
        fail_msg("%s, %s, %s: %d rows alone have other bits", gr_dtype_name(w->dtype), sets[s], i < SETS ? "F32" : "bf16", (int)n);
      free_call(&few);
    }
    free_call(&whole);
    assert_ok(gr_backend_use_precision(f->backend[s], GR_PRECISION_F32, &e), &e);
  }
}

static void few_rows_have_the_bits_of_many(void **state)
{
  fixture *f = *state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F64) continue;
    int64_t elems = gr_dtype_get((gr_dtype)t)->block_elems, depth = elems == 1 ? 1307 : elems == 32 ? 1120 : 1280;
    gr_tensor *x = f32(f, depth, MANY, 1), *w = leaf(f, (gr_dtype)t, depth, 109, 1), *y = f32(f, 109, MANY, 1);
    few_as_among_many(f, w, x, NULL);
    few_as_among_many(f, w, x, y);
  }
}

static void shapes_at_the_edges(void **state)
{
  fixture *f = *state;
  static const int64_t sizes[][2] = { { 32, 32 }, { 64, 31 }, { 96, 33 }, { 576, 64 }, { 2080, 16 }, { 32, 640 }, { 5312, 40 } };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    gr_tensor *x = f32(f, sizes[i][0], MANY, 1);
    few_as_among_many(f, leaf(f, GR_Q4_1, sizes[i][0], sizes[i][1], 1), x, NULL);
    few_as_among_many(f, f32(f, sizes[i][0], sizes[i][1], 1), x, f32(f, sizes[i][1], MANY, 1));
  }
}

/* Each row of W its own scale and codes: a kernel that reads a neighbour's row is far off the reference. */
static void few_rows_equal_the_reference(void **state)
{
  fixture *f = *state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F64) continue;
    gr_tensor *w = leaf(f, (gr_dtype)t, 1280, 75, 1);
    for (int64_t n = 1; n <= GR_CPU_THIN; n++) check(f, gr_matmul(f->graph, w, f32(f, 1280, n, 1)), 1e-5);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = { GRAPH_TEST(few_rows_have_the_bits_of_many), GRAPH_TEST(shapes_at_the_edges),
                                      GRAPH_TEST(few_rows_equal_the_reference) };
  return cmocka_run_group_tests_name("cpu thin", tests, setup, teardown);
}
