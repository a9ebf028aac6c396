/* One model said in several ways: tensors fused or apart, windows by period or by layer, factors in the metadata or in the weights, dense
 * layers before those with experts. What means the same gives the same bits. */
#include <math.h>

#include "altered.h"
#include "base/alloc.h"
#include "train_sample.h"

enum { TOKENS = 40 };

static gr_backend *cpu;
static float nll[2][TOKENS];

static int setup(void **state)
{
  gr_error e;
  (void)state;
  return gr_backend_open(&cpu, "cpu", NULL, &e) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
  (void)state;
  gr_backend_close(cpu);
  return 0;
}

static void score(const gr_model *m, float *out)
{
  gr_error e = { 0 };
  gr_step *s = NULL;
  gr_dataset *d = NULL;
  const size_t first = 0;
  add_sequence(&d, TOKENS, gr_model_hparams(m)->vocab, 4);
  const gr_step_options o = { .tokens = TOKENS, .backends = &cpu, .n_backends = 1 };
  assert_ok(gr_step_plan(&s, m, NULL, &o, &e), &e);
  assert_ok(gr_step_run(s, d, &first, 1, 0, out, NULL, NULL, &e), &e);
  gr_step_free(s);
  gr_dataset_free(d);
}

/* Opens, scores into nll[1] and closes the altered model. */
static void finish(altered *a)
{
  gr_error e = { 0 };
  gr_model *m = NULL;
  assert_ok(altered_model(a, &m, &e), &e);
  score(m, nll[1]);
  gr_model_close(m);
  altered_close(a);
}

/* The golden model as it is, into nll[0]. */
static void start(altered *a, const char *name)
{
  altered plain;
  gr_error e = { 0 };
  gr_model *m = NULL;
  altered_open(&plain, name);
  assert_ok(altered_model(&plain, &m, &e), &e);
  score(m, nll[0]);
  gr_model_close(m);
  altered_close(&plain);
  altered_open(a, name);
}

static bool same(void) { return memcmp(nll[0], nll[1], sizeof nll[0]) == 0; }

/* ---- fused tensors ---- */

static char names[32][64];
static uint8_t *pieces[32];
static int n_names, n_pieces;

static const char *name_of(int layer, const char *stem)
{
  char *name = names[n_names++ % 32];
  snprintf(name, sizeof names[0], "blk.%d.%s", layer, stem);
  return name;
}

/* Puts tensors of one layer, end to end along ne[1] (of each expert, when they are stacks), under another name; along ne[0] for biases. */
static void fuse(altered *a, int layer, const char *fused, const char *const *stems, int n)
{
  const gr_gguf_tensor *t[3];
  int64_t ne[3] = { 0 };
  size_t total = 0, at = 0;
  for (int i = 0; i < n; i++) {
    const char *name = name_of(layer, stems[i]);
    t[i] = gr_gguf_tensor_find(a->original, name);
    assert_non_null(t[i]);
    altered_without(a, name);
    total += t[i]->bytes;
  }
  bool bias = strstr(fused, ".bias") != NULL;
  for (int d = 0; d < 3; d++) ne[d] = t[0]->ne[d];
  for (int i = 1; i < n; i++) ne[bias ? 0 : 1] += t[i]->ne[bias ? 0 : 1];
  size_t stacks = (size_t)(bias ? ne[1] : ne[2]);
  uint8_t *data = pieces[n_pieces++] = gr_alloc(total);
  assert_non_null(data);
  for (size_t x = 0; x < stacks; x++)
    for (int i = 0; i < n; i++) {
      size_t each = t[i]->bytes / stacks;
      memcpy(data + at, (const uint8_t *)t[i]->data + x * each, each);
      at += each;
    }
  gr_gguf_add_data(a->writer, name_of(layer, fused), t[0]->dtype, 3, ne, data);
}

static void fused_tensors_give_the_bits_of_split_ones(void **state)
{
  (void)state;
  static const char *const qkv[] = { "attn_q.weight", "attn_k.weight", "attn_v.weight" };
  static const char *const biases[] = { "attn_q.bias", "attn_k.bias", "attn_v.bias" };
  static const char *const stacks[] = { "ffn_gate_exps.weight", "ffn_up_exps.weight" };
  static const char *const stack_biases[] = { "ffn_gate_exps.bias", "ffn_up_exps.bias" };
  static const char *const models[] = { "qwen2", "qwen3", "llama", "mixtral", "granitemoe", "gpt-oss" };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    altered a;
    start(&a, models[i]);
    n_names = n_pieces = 0;
    for (int layer = 0; layer < 2; layer++) {
      bool experts = gr_gguf_tensor_find(a.original, "blk.0.ffn_gate_exps.weight") != NULL;
      if (!experts || layer) fuse(&a, layer, "attn_qkv.weight", qkv, 3);
      if (gr_gguf_tensor_find(a.original, "blk.0.attn_q.bias") && (!experts || layer)) fuse(&a, layer, "attn_qkv.bias", biases, 3);
      if (experts) fuse(&a, layer, "ffn_gate_up_exps.weight", stacks, 2);
      if (gr_gguf_tensor_find(a.original, "blk.0.ffn_gate_exps.bias")) fuse(&a, layer, "ffn_gate_up_exps.bias", stack_biases, 2);
    }
    finish(&a);
    if (!same()) fail_msg("%s: fused, it says something else", models[i]);
    while (n_pieces) gr_free(pieces[--n_pieces]);
  }
}

/* ---- metadata ---- */

static void windows_slide_by_period_or_by_layer(void **state)
{
  (void)state;
  static const char key[] = "gpt-oss.attention.sliding_window_pattern";
  static const uint8_t first[2] = { 1, 0 }, second[2] = { 0, 1 };
  float all[TOKENS], none[TOKENS];
  altered a;
  start(&a, "gpt-oss");
  gr_gguf_put_u32(a.writer, key, 2);
  finish(&a);
  assert_true(same());
  start(&a, "gpt-oss");
  gr_gguf_put_array(a.writer, key, GR_GGUF_BOOL, first, 2);
  finish(&a);
  assert_true(same());
  start(&a, "gpt-oss");
  gr_gguf_put_array(a.writer, key, GR_GGUF_BOOL, second, 2);
  finish(&a);
  assert_false(same());
  start(&a, "gpt-oss");
  gr_gguf_put_u32(a.writer, key, 0);
  finish(&a);
  assert_false(same());
  memcpy(all, nll[1], sizeof all);
  start(&a, "gpt-oss");
  gr_gguf_put_u32(a.writer, key, 1);
  finish(&a);
  assert_false(same());
  memcpy(none, nll[1], sizeof none);
  assert_true(memcmp(all, none, sizeof all) != 0);
  assert_memory_equal(all + 1, none + 1, 7 * sizeof *all); /* the first eight tokens see the same either way */
}

/* Twice the weights of the experts, half of what they are weights of: exact, as powers of two are. */
static void weights_of_experts_are_scaled(void **state)
{
  (void)state;
  altered a;
  float *halves[2];
  start(&a, "qwen3moe");
  gr_gguf_put_f32(a.writer, "qwen3moe.expert_weights_scale", 2);
  n_names = 0;
  for (int layer = 0; layer < 2; layer++) {
    const char *name = name_of(layer, "ffn_down_exps.weight");
    const gr_gguf_tensor *t = gr_gguf_tensor_find(a.original, name);
    size_t n = t->bytes / sizeof(float);
    halves[layer] = gr_alloc(t->bytes);
    for (size_t i = 0; i < n; i++) halves[layer][i] = ((const float *)t->data)[i] / 2;
    altered_without(&a, name);
    gr_gguf_add_data(a.writer, name, GR_F32, 3, t->ne, halves[layer]);
  }
  finish(&a);
  assert_true(same());
  for (int layer = 0; layer < 2; layer++) gr_free(halves[layer]);
}

/* Metadata may gate and normalise otherwise than the architecture does by itself. */
static void gating_is_as_the_metadata_says(void **state)
{
  (void)state;
  altered a;
  start(&a, "qwen3moe");
  gr_gguf_put_u32(a.writer, "qwen3moe.expert_gating_func", 1);
  gr_gguf_put_bool(a.writer, "qwen3moe.expert_weights_norm", true);
  finish(&a);
  assert_true(same());
  for (uint32_t i = 0; i < 2; i++) {
    start(&a, "qwen3moe");
    if (i) gr_gguf_put_u32(a.writer, "qwen3moe.expert_gating_func", 2);
    else gr_gguf_put_bool(a.writer, "qwen3moe.expert_weights_norm", false);
    finish(&a);
    assert_false(same());
  }
  /* softmax over all made to sum to 1, and softmax over the chosen: one function */
  start(&a, "qwen3moe");
  gr_gguf_put_u32(a.writer, "qwen3moe.expert_gating_func", 3);
  gr_gguf_put_bool(a.writer, "qwen3moe.expert_weights_norm", false);
  finish(&a);
  assert_true(golden_error(nll[1] + 1, nll[0] + 1, TOKENS - 1, 1) < 1e-5);
}

/* ---- dense layers first ---- */

static void first_layers_may_be_dense(void **state)
{
  (void)state;
  static const char *const gone[] = { "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",
                                      "blk.0.ffn_down_exps.weight" };
  static const char *const put[] = { "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight" };
  gr_error e = { 0 };
  gr_model *m = NULL;
  altered a;
  start(&a, "mixtral");
  gr_gguf_put_u32(a.writer, "llama.leading_dense_block_count", 1);
  for (int i = 0; i < 4; i++) altered_without(&a, gone[i]);
  /* the dense layer is the first expert of the stack that stood there */
  for (int i = 0; i < 3; i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_find(a.original, gone[i + 1]);
    gr_gguf_add_data(a.writer, put[i], GR_F32, 2, t->ne, t->data);
  }
  assert_ok(altered_model(&a, &m, &e), &e);
  size_t stacks = 0, dense = 0;
  for (size_t i = 0; i < gr_model_linear_count(m); i++) {
    const gr_linear *w = gr_model_linear(m, i);
    stacks += w->experts > 1 && w->layer == 1;
    dense += strncmp(w->name, "blk.0.ffn_", 10) == 0 && w->experts == 1;
  }
  assert_int_equal(stacks, 3);
  assert_int_equal(dense, 3);
  score(m, nll[1]);
  for (int i = 1; i < TOKENS; i++) assert_true(isfinite(nll[1][i]));
  assert_false(same());
  gr_model_close(m);
  altered_close(&a);
}

/* ---- what a file may say of RoPE, biases and lengths ---- */

/* No RoPE is RoPE whose every angle is next to nothing: its cosine is 1, and its sine vanishes beside what it is added to. */
static void granite_may_have_no_rope(void **state)
{
  (void)state;
  static const float far[8] = { 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f };
  float with[TOKENS];
  altered a;
  start(&a, "granite");
  memcpy(with, nll[0], sizeof with);
  gr_gguf_add_data(a.writer, "rope_freqs.weight", GR_F32, 1, (const int64_t[]){ 8 }, far);
  finish(&a);
  memcpy(nll[0], nll[1], sizeof nll[0]);
  altered_open(&a, "granite");
  gr_gguf_put_bool(a.writer, "granite.rope.scaling.finetuned", false);
  finish(&a);
  assert_true(same());
  assert_true(memcmp(with, nll[1], sizeof with) != 0);
}

/* A magnitude of 2 makes both q and k twice as long: a quarter of the scale undoes it, exactly. */
static void the_magnitude_of_rope_is_the_files(void **state)
{
  (void)state;
  static const char *const keys[] = { "llama.rope.scaling.attn_factor", "llama.rope.scaling.yarn_attn_factor" };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    altered a;
    start(&a, "llama");
    gr_gguf_put_f32(a.writer, keys[i], 2);
    gr_gguf_put_f32(a.writer, "llama.attention.scale", 0.25f / 4);
    finish(&a);
    if (!same()) fail_msg("%s is not a factor of q and k", keys[i]);
  }
}

static void qwen2moe_takes_the_length_of_its_shared_expert_from_the_other(void **state)
{
  (void)state;
  altered a;
  start(&a, "qwen2moe");
  altered_without(&a, "qwen2moe.expert_shared_feed_forward_length");
  altered_without(&a, "qwen2moe.feed_forward_length");
  gr_gguf_put_u32(a.writer, "qwen2moe.feed_forward_length", 40);
  finish(&a);
  assert_true(same());
}

/* Experts may have biases where the architecture does not ask for them. The router's shifts all logits alike, which is nothing to a
 * softmax. */
static void biases_of_experts_count(void **state)
{
  (void)state;
  static float ones[64 * 8], nothing[64 * 8];
  for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) ones[i] = 1;
  altered a;
  start(&a, "qwen3moe");
  gr_gguf_add_data(a.writer, "blk.0.ffn_down_exps.bias", GR_F32, 2, (const int64_t[]){ 64, 8 }, nothing);
  gr_gguf_add_data(a.writer, "blk.1.ffn_gate_inp.bias", GR_F32, 1, (const int64_t[]){ 8 }, ones);
  finish(&a);
  assert_true(golden_error(nll[1] + 1, nll[0] + 1, TOKENS - 1, 1) < 1e-5);
  start(&a, "qwen3moe");
  gr_gguf_add_data(a.writer, "blk.0.ffn_down_exps.bias", GR_F32, 2, (const int64_t[]){ 64, 8 }, ones);
  finish(&a);
  assert_true(golden_error(nll[1] + 1, nll[0] + 1, TOKENS - 1, 1) > 1e-3);
}

/* gemma3 with one head of 32 in a width of 64 and as many layers as asked for, all of them layer 0. */
static float scale_of_gemma3(uint32_t layers)
{
  static const char *const counts[] = { "gemma3.block_count", "gemma3.attention.head_count", "gemma3.attention.head_count_kv" };
  gr_error e = { 0 };
  gr_model *m = NULL;
  altered a;
  char name[96];
  altered_open(&a, "gemma3");
  for (int i = 0; i < 3; i++) {
    altered_without(&a, counts[i]);
    gr_gguf_put_u32(a.writer, counts[i], i ? 1 : layers);
  }
  for (size_t i = 0; i < gr_gguf_tensor_count(a.original); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(a.original, i);
    int64_t ne[3] = { t->ne[0], t->ne[1], 1 };
    if (strncmp(t->name, "blk.0.", 6) != 0) continue;
    if (strcmp(t->name + 6, "attn_q.weight") == 0) ne[1] = 32;
    if (strcmp(t->name + 6, "attn_output.weight") == 0) ne[0] = 32;
    for (uint32_t k = 0; k < layers; k++) {
      snprintf(name, sizeof name, "blk.%u.%s", k, t->name + 6);
      if (k >= 7 || ne[0] != t->ne[0] || ne[1] != t->ne[1]) gr_gguf_add_data(a.writer, name, GR_F32, t->n_dims, ne, t->data);
    }
  }
  for (int k = 0; k < 7; k++) {
    altered_without(&a, name_of(k, "attn_q.weight"));
    altered_without(&a, name_of(k, "attn_output.weight"));
  }
  assert_ok(altered_model(&a, &m, &e), &e);
  float scale = gr_model_hparams(m)->attention_scale;
  gr_model_close(m);
  altered_close(&a);
  return scale;
}

/* Only the 27B, which is known by its 62 layers, scales by width / heads and not by the head. */
static void gemma3_of_27b_scales_by_its_width(void **state)
{
  (void)state;
  n_names = 0;
  assert_float_equal(scale_of_gemma3(8), 1 / sqrtf(32), 1e-7f);
  n_names = 0;
  assert_float_equal(scale_of_gemma3(62), 1 / sqrtf(64), 1e-7f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(fused_tensors_give_the_bits_of_split_ones),
    cmocka_unit_test(windows_slide_by_period_or_by_layer),
    cmocka_unit_test(weights_of_experts_are_scaled),
    cmocka_unit_test(gating_is_as_the_metadata_says),
    cmocka_unit_test(first_layers_may_be_dense),
    cmocka_unit_test(granite_may_have_no_rope),
    cmocka_unit_test(the_magnitude_of_rope_is_the_files),
    cmocka_unit_test(qwen2moe_takes_the_length_of_its_shared_expert_from_the_other),
    cmocka_unit_test(biases_of_experts_count),
    cmocka_unit_test(gemma3_of_27b_scales_by_its_width),
  };
  return cmocka_run_group_tests_name("model", tests, setup, teardown);
}
