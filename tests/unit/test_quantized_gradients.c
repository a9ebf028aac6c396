/* Gradients through quantized weights are those of the same weights decoded to F32, per type: what the packed kernels must give. The
 * decoder here is ours, which test_quant holds to the gguf package; tools/judge_gradients.py asks the package itself, and PyTorch. */
#include "base/arena.h"
#include "io/gguf_write.h"
#include "io/quantize.h"
#include "quant/quant.h"
#include "scratch.h"
#include "train_sample.h"

/* The golden models that are stored quantized, stacks of MXFP4 in the last two; rows of 256 in all but the last. */
static const char *const models[] = { "llama-wide", "qwen3moe-wide", "gpt-oss-wide", "gpt-oss" };
enum { MODELS = sizeof models / sizeof *models, WIDE = MODELS - 1 };
static const gr_dtype types[] = { GR_Q8_0, GR_Q6_K, GR_Q5_K, GR_Q4_K, GR_Q4_0, GR_Q3_K, GR_Q2_K };
enum { TYPES = sizeof types / sizeof *types };

/* Writes the same model with every tensor in F32. */
static void decode_model(const char *in, const char *out)
{
  gr_error e = { 0 };
  gr_gguf *g;
  gr_gguf_writer *w;
  gr_arena memory = { 0 };
  assert_ok(gr_gguf_open(&g, in, &e), &e);
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  for (size_t i = 0; i < gr_gguf_kv_count(g); i++) gr_gguf_put_kv(w, gr_gguf_kv_at(g, i));
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    float *x = gr_arena_alloc(&memory, (size_t)n * sizeof *x);
    assert_non_null(x);
    gr_quant_decoder(t->dtype)(t->data, x, n);
    gr_gguf_add_data(w, t->name, GR_F32, t->n_dims, t->ne, x);
  }
  assert_ok(gr_gguf_writer_save(w, out, &e), &e);
  gr_gguf_writer_free(w);
  gr_gguf_close(g);
  gr_arena_free(&memory);
}

/* How many tensors are stored as `type`, of those whose name has `part` in it (NULL: of all). */
static size_t stored_as(const char *path, gr_dtype type, const char *part)
{
  gr_error e = { 0 };
  gr_gguf *g;
  assert_ok(gr_gguf_open(&g, path, &e), &e);
  size_t n = 0;
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    n += t->dtype == type && (!part || strstr(t->name, part));
  }
  gr_gguf_close(g);
  return n;
}

/* The gradient of the golden samples' loss with the golden adapter, over the model at `path`; *n values. */
static float *gradient_of(const char *name, const char *path, gr_precision precision, size_t *n)
{
  golden g;
  gr_error e = { 0 };
  gr_model *m;
  gr_lora *lora;
  gr_pool *pool;
  gr_backend *backend;
  gr_step *s;
  char adapter[512];
  golden_open(&g, name);
  snprintf(adapter, sizeof adapter, GR_SOURCE_DIR "/tests/golden/%s-lora.gguf", name);
  assert_ok(gr_model_open(&m, path, &e), &e);
  assert_ok(gr_lora_load(&lora, m, adapter, &e), &e);
  assert_ok(gr_pool_create(&pool, 2, &e), &e);
  assert_ok(gr_backend_open(&backend, "cpu", pool, &e), &e);
  assert_ok(gr_backend_use_precision(backend, precision, &e), &e);
  gr_dataset *d = golden_samples(&g);
  const size_t all[2] = { 0, 1 };
  const gr_step_options o = { .tokens = (int32_t)g.n, .train = true, .backends = &backend, .n_backends = 1, .poison = true };
  assert_ok(gr_step_plan(&s, m, lora, &o, &e), &e);
  gr_step_clear(s);
  assert_ok(gr_step_run(s, d, all, 2, 0, NULL, NULL, NULL, &e), &e);
  *n = gr_lora_parameters(lora);
  float *copy = gr_alloc(*n * sizeof *copy);
  assert_non_null(copy);
  memcpy(copy, gr_step_gradient(s), *n * sizeof *copy);
  gr_step_free(s);
  gr_dataset_free(d);
  gr_backend_close(backend);
  gr_pool_free(pool);
  gr_lora_free(lora);
  gr_model_close(m);
  golden_close(&g);
  return copy;
}

/* 1e-6 relative is a few float epsilons over the whole gradient. */
static double difference(const char *name, const char *packed, const char *plain)
{
  size_t n, m;
  float *a = gradient_of(name, packed, GR_PRECISION_F32, &n), *b = gradient_of(name, plain, GR_PRECISION_F32, &m);
  assert_int_equal(n, m);
  double error = golden_error(a, b, n, 1);
  gr_free(a);
  gr_free(b);
  return error;
}

/* What the golden files are there for: were one made anew in F32, the other tests would pass on nothing. */
static void golden_models_are_stored_quantized(void **state)
{
  (void)state;
  static const gr_dtype dense[] = { GR_Q2_K, GR_Q3_K, GR_Q4_K, GR_Q5_K, GR_Q6_K,   GR_Q4_0,
                                    GR_Q4_1, GR_Q5_0, GR_Q5_1, GR_Q8_0, GR_IQ4_NL, GR_IQ4_XS };
  static const gr_dtype stacks[] = { GR_Q2_K, GR_Q3_K, GR_Q4_K, GR_Q5_K, GR_Q6_K, GR_IQ4_XS };
  for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
    assert_true(stored_as(GR_SOURCE_DIR "/tests/golden/llama-wide.gguf", dense[i], NULL) > 0);
  for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
    assert_int_equal(stored_as(GR_SOURCE_DIR "/tests/golden/qwen3moe-wide.gguf", stacks[i], "_exps.weight"), 1);
  assert_int_equal(stored_as(GR_SOURCE_DIR "/tests/golden/gpt-oss.gguf", GR_MXFP4, "_exps.weight"), 6);
  assert_int_equal(stored_as(GR_SOURCE_DIR "/tests/golden/gpt-oss-wide.gguf", GR_MXFP4, "_exps.weight"), 6);
}

static void each_types_gradient_is_its_decoded_weights(void **state)
{
  (void)state;
  scratch s;
  scratch_open(&s);
  for (int i = 0; i < MODELS; i++) {
    gr_error e = { 0 };
    char golden_path[512];
    const char *base = scratch_path(&s, "base.gguf"), *packed = scratch_path(&s, "packed.gguf"), *plain = scratch_path(&s, "plain.gguf");
    snprintf(golden_path, sizeof golden_path, GR_SOURCE_DIR "/tests/golden/%s.gguf", models[i]);
    decode_model(golden_path, base);
    double error = difference(models[i], golden_path, base);
    if (!(error <= 1e-6)) fail_msg("%s as it is stored: off by %.2e", models[i], error);
    for (int k = 0; k < TYPES && i < WIDE; k++) {
      const gr_quantize_options o = { .overwrite = true };
      assert_ok(gr_quantize_file(base, packed, types[k], &o, &e), &e);
      assert_true(stored_as(packed, types[k], NULL) >= 10);
      decode_model(packed, plain);
      error = difference(models[i], packed, plain);
      if (!(error <= 1e-6)) fail_msg("%s as %s: off by %.2e", models[i], gr_dtype_name(types[k]), error);
      print_message("# %s as %s: within %.1e of its decoded weights\n", models[i], gr_dtype_name(types[k]), error);
    }
  }
  scratch_close(&s);
}

/* The test would see a weight that is read wrongly: another type's rounding moves the gradient by far more than the bound. */
static void rounding_moves_the_gradient(void **state)
{
  (void)state;
  scratch s;
  gr_error e = { 0 };
  scratch_open(&s);
  const char *base = scratch_path(&s, "base.gguf"), *packed = scratch_path(&s, "packed.gguf");
  decode_model(GR_SOURCE_DIR "/tests/golden/llama-wide.gguf", base);
  assert_ok(gr_quantize_file(base, packed, GR_Q8_0, NULL, &e), &e);
  assert_true(difference("llama-wide", packed, base) > 1e-3);
  scratch_close(&s);
}

/* How far products of rounded operands move the gradient (docs/performance.md): two parts in a thousand a product, through whole models. A
 * quantization moves it by more: Q8_0, the finest, by 0.8 to 4.5 degrees, which is 1.4 to 8 in a hundred. */
static void bf16_moves_the_gradient_little(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++) {
    char path[512];
    size_t n;
    snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", models[i]);
    float *a = gradient_of(models[i], path, GR_PRECISION_BF16, &n), *b = gradient_of(models[i], path, GR_PRECISION_F32, &n);
    double error = golden_error(a, b, n, 1), dot = 0, aa = 0, bb = 0;
    for (size_t k = 0; k < n; k++) dot += (double)a[k] * (double)b[k], aa += (double)a[k] * (double)a[k], bb += (double)b[k] * (double)b[k];
    print_message("# %s in bf16: off by %.2e, cosine %.6f\n", models[i], error, dot / sqrt(aa * bb));
    assert_true(error > 1e-4); /* it does round */
    assert_true(error < 5e-2);
    gr_free(a);
    gr_free(b);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(golden_models_are_stored_quantized),
                                      cmocka_unit_test(each_types_gradient_is_its_decoded_weights),
                                      cmocka_unit_test(rounding_moves_the_gradient), cmocka_unit_test(bf16_moves_the_gradient_little) };
  return cmocka_run_group_tests_name("quantized gradients", tests, NULL, NULL);
}
