/* Products in bf16 are the products of rounded operands, summed in F32: nothing but the rounding differs, on any instruction set. */
#include "cpu_fixture.h"

#include "base/half.h"

static void use(fixture *f, gr_precision p)
{
  gr_error e;
  for (int s = 0; s < SETS; s++)
    if (f->backend[s]) assert_ok(gr_backend_use_precision(f->backend[s], p, &e), &e);
}

static int setup_bf16(void **state)
{
  if (setup(state) != 0) return -1;
  use(*state, GR_PRECISION_BF16);
  return 0;
}

static float rounded(float x) { return gr_bf16_to_f32(gr_f32_to_bf16(x)); }

/* y[n, cols] in double, of what W decodes to and of x, both rounded. */
static void reference(const gr_tensor *w, const float *x, bool across, int64_t n, double *y)
{
  int64_t k = w->ne[0], m = w->ne[1], cols = across ? k : m, depth = across ? m : k;
  float *row = gr_alloc((size_t)k * sizeof *row);
  memset(y, 0, (size_t)(n * cols) * sizeof *y);
  for (int64_t r = 0; r < m; r++) {
    gr_quant_decoder(w->dtype)((char *)w->data + r * w->nb[1], row, k);
    for (int64_t t = 0; t < n; t++)
      for (int64_t i = 0; i < k; i++) {
        double product = (double)rounded(row[i]) * (double)rounded(x[t * depth + (across ? r : i)]);
        y[t * cols + (across ? i : r)] += product;
      }
  }
  gr_free(row);
}

static gr_tensor *product(fixture *f, gr_tensor *w, gr_tensor *x, bool across)
{
  return across ? gr_out_prod(f->graph, w, gr_transpose(f->graph, x)) : gr_matmul(f->graph, w, x);
}

static void of_rounded_operands(fixture *f, gr_dtype type, int64_t k, int64_t m, int64_t n, bool across)
{
  gr_tensor *w = leaf(f, type, k, m, 1), *x = f32(f, across ? m : k, n, 1), *y = product(f, w, x, across);
  int64_t count = n * (across ? k : m);
  double *want = gr_alloc((size_t)count * sizeof *want), square = 0;
  reference(w, x->data, across, n, want);
  for (int64_t i = 0; i < count; i++) square += want[i] * want[i];
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call first = call_of(y->node);
    for (int p = 0; p < POOLS; p++) {
      gr_op_call again = call_of(y->node);
      run_cpu(f->backend[s], p ? &again : &first, f->pool[p]);
      if (p && !same_bits(&again, &first)) fail_msg("%s: %d threads give other bits", sets[s], thread_counts[p]);
      free_call(&again);
    }
    double wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong += pow((double)((float *)first.out[0].data)[i] - want[i], 2);
    double error = sqrt(wrong / square); /* of sums in F32; operands that are not rounded, or otherwise, are 2e-3 off */
    if (!(error < 2e-6)) fail_msg("%s, %s %s: error %.3g", sets[s], gr_dtype_name(type), across ? "across" : "along", error);
    free_call(&first);
  }
  gr_free(want);
}

static void every_type(void **state)
{
  fixture *f = *state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F64) continue;
    for (int across = 0; across < 2; across++) of_rounded_operands(f, (gr_dtype)t, 2560, 521, 17, across);
  }
}

/* Odd lengths of the contraction, tails of tiles, fewer rows than a block. */
static void odd_shapes(void **state)
{
  fixture *f = *state;
  static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 2, 5 }, { 17, 16, 15 }, { 31, 33, 14 }, { 4099, 7, 3 }, { 65, 131, 43 } };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int across = 0; across < 2; across++) {
      of_rounded_operands(f, GR_F16, sizes[i][0], sizes[i][1], sizes[i][2], across);
      of_rounded_operands(f, GR_BF16, sizes[i][0], sizes[i][1], sizes[i][2], across);
    }
}

/* A token among others and alone, and a packed weight and its floats, have the same bits. */
static void same_bits_alone_and_decoded(void **state)
{
  fixture *f = *state;
  gr_tensor *packed = leaf(f, GR_Q5_K, 1280, 530, 1), *floats = f32(f, 1280, 530, 1);
  for (int64_t r = 0; r < 530; r++)
    gr_quant_decoder(GR_Q5_K)((char *)packed->data + r * packed->nb[1], (float *)floats->data + r * 1280, 1280);
  for (int across = 0; across < 2; across++) {
    int64_t depth = across ? 530 : 1280, cols = across ? 1280 : 530;
    gr_tensor *x = f32(f, depth, 61, 1), *one = f32(f, depth, 1, 1);
    memcpy(one->data, (float *)x->data + 29 * depth, (size_t)depth * sizeof(float));
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      gr_op_call all = call_of(product(f, packed, x, across)->node), decoded = call_of(product(f, floats, x, across)->node);
      gr_op_call alone = call_of(product(f, packed, one, across)->node);
      run_cpu(f->backend[s], &all, f->pool[1]);
      run_cpu(f->backend[s], &decoded, f->pool[0]);
      run_cpu(f->backend[s], &alone, f->pool[0]);
      assert_true(same_bits(&all, &decoded));
      assert_memory_equal(alone.out[0].data, (float *)all.out[0].data + 29 * cols, (size_t)cols * sizeof(float));
      free_call(&all), free_call(&decoded), free_call(&alone);
    }
  }
}

/* Factors of adapters and their gradients keep the bits of F32. */
static void adapters_stay(void **state)
{
  fixture *f = *state;
  gr_tensor *a = f32(f, 1280, 16, 1), *b = f32(f, 16, 1280, 1), *x = f32(f, 1280, 530, 1), *h = f32(f, 16, 530, 1);
  gr_tensor *nodes[] = { gr_matmul(f->graph, a, x), gr_matmul(f->graph, b, h), gr_out_prod(f->graph, x, h), gr_out_prod(f->graph, h, x),
                         gr_out_prod(f->graph, x, f32(f, 600, 530, 1)) };
  for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      gr_op_call rounds = call_of(nodes[i]->node), floats = call_of(nodes[i]->node);
      gr_error e;
      run_cpu(f->backend[s], &rounds, f->pool[1]);
      assert_ok(gr_backend_use_precision(f->backend[s], GR_PRECISION_F32, &e), &e);
      run_cpu(f->backend[s], &floats, f->pool[1]);
      assert_ok(gr_backend_use_precision(f->backend[s], GR_PRECISION_BF16, &e), &e);
      assert_true(same_bits(&rounds, &floats));
      free_call(&rounds), free_call(&floats);
    }
}

/* What is no number stays none: rounding must not carry a NaN into an infinity or a zero. */
static void not_numbers(void **state)
{
  fixture *f = *state;
  gr_tensor *w = leaf(f, GR_Q8_0, 64, 5, 1), *x = f32(f, 64, 3, 1), *y = gr_matmul(f->graph, w, x);
  uint32_t worst = 0x7fffffffu;
  memcpy((float *)x->data + 64 + 7, &worst, sizeof worst);
  ((float *)x->data)[128] = INFINITY;
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call c = call_of(y->node);
    run_cpu(f->backend[s], &c, NULL);
    const float *v = c.out[0].data;
    for (int i = 0; i < 5; i++) {
      assert_true(isfinite(v[i]));
      assert_true(isnan(v[5 + i]));
      assert_false(isfinite(v[10 + i]));
    }
    free_call(&c);
  }
}

static void said_by_name(void **state)
{
  (void)state;
  gr_error e;
  gr_precision p;
  gr_backend *ref;
  assert_ok(gr_precision_parse(NULL, &p, &e), &e);
  assert_int_equal(p, GR_PRECISION_F32);
  assert_ok(gr_precision_parse("bf16", &p, &e), &e);
  assert_int_equal(p, GR_PRECISION_BF16);
  assert_int_equal(gr_precision_parse("f16", &p, &e), GR_ERR_USAGE);
  assert_non_null(strstr(e.text, "'f16'"));
  assert_ok(gr_backend_open(&ref, "ref", NULL, &e), &e);
  assert_ok(gr_backend_use_precision(ref, GR_PRECISION_F32, &e), &e);
  assert_int_equal(gr_backend_use_precision(ref, GR_PRECISION_BF16, &e), GR_ERR_USAGE);
  assert_non_null(strstr(e.text, "backend 'ref' has no products in bf16"));
  gr_backend_close(ref);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    GRAPH_TEST(every_type),    GRAPH_TEST(odd_shapes),  GRAPH_TEST(same_bits_alone_and_decoded),
    GRAPH_TEST(adapters_stay), GRAPH_TEST(not_numbers), cmocka_unit_test(said_by_name),
  };
  return cmocka_run_group_tests(tests, setup_bf16, teardown);
}
