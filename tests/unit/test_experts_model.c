/* Models with experts: what is refused and how, where adapters sit, what every one of them receives, what a step runs. */
#include <math.h>

#include "altered.h"
#include "base/alloc.h"
#include "io/adapter.h"
#include "scratch.h"
#include "train_sample.h"

static gr_model *open_model(const char *name)
{
  gr_error e = { 0 };
  gr_model *m = NULL;
  char path[512];
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", name);
  assert_ok(gr_model_open(&m, path, &e), &e);
  return m;
}

/* ---- refusals ---- */

static const float zeros[1 << 16];

/* A model without one key or tensor, perhaps with another in its place; and what the sentence says. */
typedef struct fault {
  const char *model, *without, *says;
  enum { NOTHING, NUMBER, REAL, BOOLS, TENSOR, HALF } put;
  const char *name; /* of what is put; NULL: `without` */
  int64_t value[3]; /* the number; how many; the shape */
} fault;

static const fault faults[] = {
  { "qwen3moe", "blk.1.ffn_gate_inp.weight", "the tensor blk.1.ffn_gate_inp.weight is missing", NOTHING, NULL, { 0 } },
  { "qwen3moe", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight has the shape [64, 7, 1, 1]", TENSOR, NULL, { 64, 7, 1 } },
  { "qwen3moe", "blk.0.ffn_up_exps.weight", "the tensor blk.0.ffn_up_exps.weight is missing", NOTHING, NULL, { 0 } },
  { "qwen3moe",
    "blk.1.ffn_gate_exps.weight",
    "blk.1.ffn_gate_exps.weight is missing, and so is blk.1.ffn_gate_up_exps",
    NOTHING,
    NULL,
    { 0 } },
  { "qwen3moe", "blk.0.ffn_up_exps.weight", "[64, 32, 7, 1], and [64, 32, 8] is needed", TENSOR, NULL, { 64, 32, 7 } },
  { "qwen3moe", "blk.0.ffn_down_exps.weight", "[64, 32, 8, 1], and [32, 64, 8] is needed", TENSOR, NULL, { 64, 32, 8 } },
  { "qwen3moe", "qwen3moe.expert_used_count", "expert_used_count", NOTHING, NULL, { 0 } },
  { "qwen3moe", "qwen3moe.expert_used_count", "expert_used_count is 0; of 8 experts, 1 to 8 can be used", NUMBER, NULL, { 0 } },
  { "qwen3moe", "qwen3moe.expert_used_count", "expert_used_count is 9; of 8 experts, 1 to 8 can be used", NUMBER, NULL, { 9 } },
  { "qwen3moe", "qwen3moe.expert_count", "architecture qwen3moe have experts, but expert_count is missing or 0", NUMBER, NULL, { 0 } },
  { "qwen3moe", "qwen3moe.expert_count", "blk.0.ffn_gate_inp.weight has the shape [64, 8, 1, 1]", NUMBER, NULL, { 7 } },
  { "qwen3moe", "qwen3moe.expert_feed_forward_length", "[64, 32, 8, 1], and [64, 40, 8] is needed", NUMBER, NULL, { 40 } },
  { "qwen3moe", "", "qwen3moe.expert_gating_func", NUMBER, "qwen3moe.expert_gating_func", { 4 } },
  { "qwen3moe", "", "qwen3moe.expert_weights_scale", REAL, "qwen3moe.expert_weights_scale", { -1 } },
  { "qwen3moe", "", "blk.0.ffn_gate_shexp.weight is missing", NUMBER, "qwen3moe.expert_shared_feed_forward_length", { 32 } },
  { "qwen3moe", "", "blk.0.ffn_gate.weight is missing", NUMBER, "qwen3moe.leading_dense_block_count", { 1 } },
  { "qwen3moe", "", "leading_dense_block_count", NUMBER, "qwen3moe.leading_dense_block_count", { 3 } },
  { "qwen3", "", "expert_count is 4, but models of the architecture qwen3 have no experts", NUMBER, "qwen3.expert_count", { 4 } },
  { "mixtral", "blk.0.ffn_gate_exps.weight", "convert the model again", TENSOR, "blk.0.ffn_gate.0.weight", { 64, 48, 1 } },
  { "mixtral", "blk.0.ffn_up_exps.weight", "convert the model again", HALF, "blk.0.ffn_up.0.weight", { 64, 48, 1 } }, /* among F32 */
  { "mixtral", "blk.1.ffn_down_exps.weight", "(blk.1.ffn_down.0.weight)", TENSOR, "blk.1.ffn_down.0.weight", { 48, 64, 1 } },
  { "mixtral", "llama.expert_count", "blk.0.ffn_gate.weight is missing", NUMBER, NULL, { 0 } },
  { "olmoe", "output.weight", "models of the architecture olmoe have a head of their own", NOTHING, NULL, { 0 } },
  { "olmoe", "blk.0.attn_q_norm.weight", "blk.0.attn_q_norm.weight has the shape", TENSOR, NULL, { 16, 1, 1 } },
  { "granite", "granite.residual_scale", "residual_scale", NOTHING, NULL, { 0 } },
  { "granite", "granite.logit_scale", "logit_scale", REAL, NULL, { 0 } },
  { "granitemoe-shared", "granitemoe.expert_shared_feed_forward_length", "blk.0.ffn_gate_shexp.weight has no place", NOTHING, NULL, { 0 } },
  { "granitemoe-shared", "blk.1.ffn_up_shexp.weight", "blk.1.ffn_up_shexp.weight is missing", NOTHING, NULL, { 0 } },
  { "gpt-oss", "output.weight", "head of their own", NOTHING, NULL, { 0 } },
  { "gpt-oss", "gpt-oss.attention.sliding_window", "attention.sliding_window", NOTHING, NULL, { 0 } },
  { "gpt-oss", "blk.1.attn_sinks.weight", "blk.1.attn_sinks.weight is missing", NOTHING, NULL, { 0 } },
  { "gpt-oss", "blk.0.attn_output.bias", "blk.0.attn_output.bias is missing", NOTHING, NULL, { 0 } },
  { "gpt-oss", "blk.0.ffn_gate_inp.bias", "blk.0.ffn_gate_inp.bias is missing", NOTHING, NULL, { 0 } },
  { "gpt-oss", "blk.0.ffn_down_exps.bias", "blk.0.ffn_down_exps.bias is missing", NOTHING, NULL, { 0 } },
  { "gpt-oss", "blk.0.ffn_down_exps.bias", "norms and biases must be F32", HALF, NULL, { 64, 6, 1 } },
  { "gpt-oss", "", "has 3 values for 2 layers", BOOLS, "gpt-oss.attention.sliding_window_pattern", { 3 } },
  { "gemma3", "blk.6.post_ffw_norm.weight", "blk.6.post_ffw_norm.weight is missing", NOTHING, NULL, { 0 } },
};

static void put_instead(altered *a, const fault *f)
{
  const char *name = f->name ? f->name : f->without;
  const uint8_t bools[8] = { 1, 0, 1 };
  switch (f->put) {
  case NOTHING: break;
  case NUMBER: gr_gguf_put_u32(a->writer, name, (uint32_t)f->value[0]); break;
  case REAL: gr_gguf_put_f32(a->writer, name, (float)f->value[0]); break;
  case BOOLS: gr_gguf_put_array(a->writer, name, GR_GGUF_BOOL, bools, (uint64_t)f->value[0]); break;
  case TENSOR: gr_gguf_add_data(a->writer, name, GR_F32, 3, f->value, zeros); break;
  case HALF: gr_gguf_add_data(a->writer, name, GR_F16, 3, f->value, zeros); break;
  }
}

static void faults_get_one_sentence(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    const fault *f = &faults[i];
    altered a;
    gr_error e = { 0 };
    gr_model *m = NULL;
    altered_open(&a, f->model);
    altered_without(&a, f->without);
    put_instead(&a, f);
    if (altered_model(&a, &m, &e) == GR_OK) fail_msg("%s without %s opens, instead of: %s", f->model, f->without, f->says);
    if (!strstr(e.text, f->says) || !strstr(e.text, "altered.gguf")) fail_msg("'%s' does not say '%s'", e.text, f->says);
    altered_close(&a);
  }
}

/* ---- adapters that fit another model ---- */

static void save_adapter(const char *path, const char *architecture, const gr_adapter_out *pair)
{
  gr_error e = { 0 };
  const gr_adapter_info info = { .architecture = architecture, .alpha = 4, .pairs = pair, .pair_count = 1 };
  assert_ok(gr_adapter_save(path, &info, &e), &e);
}

static void adapters_of_other_models_are_refused(void **state)
{
  (void)state;
  static const char gate[] = "blk.0.ffn_gate_exps.weight";
  static const struct {
    const char *architecture;
    gr_adapter_out pair;
    const char *says; /* NULL: it fits */
  } cases[] = {
    { "qwen3moe", { gate, 64, 32, 8, 2, zeros, zeros }, NULL },
    { "qwen3moe", { gate, 64, 32, 7, 2, zeros, zeros }, "as 64 x 32 x 7, but in" },
    { "qwen3moe", { gate, 64, 32, 1, 2, zeros, zeros }, "as 64 x 32 x 1, but in" },
    { "qwen3moe", { gate, 64, 40, 8, 2, zeros, zeros }, "is it another model's adapter?" },
    { "qwen3moe", { "blk.0.ffn_gate_up_exps.weight", 64, 64, 8, 2, zeros, zeros }, "does not have" },
    { "qwen3moe", { "blk.0.ffn_gate_inp.weight", 64, 8, 1, 2, zeros, zeros }, NULL },
    { "qwen3moe", { "token_embd.weight", 64, 112, 1, 2, zeros, zeros }, "an adapter on token_embd.weight is not handled" },
    { "llama", { gate, 64, 32, 8, 2, zeros, zeros }, "is for models of architecture 'llama'" },
  };
  gr_model *m = open_model("qwen3moe");
  scratch s;
  scratch_open(&s);
  const char *path = scratch_path(&s, "adapter.gguf");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gr_error e = { 0 };
    gr_lora *l = NULL;
    save_adapter(path, cases[i].architecture, &cases[i].pair);
    bool ok = gr_lora_load(&l, m, path, &e) == GR_OK;
    gr_lora_free(l);
    if (ok != !cases[i].says) fail_msg("case %zu: %s", i, ok ? "accepted" : e.text);
    if (!ok && !strstr(e.text, cases[i].says)) fail_msg("'%s' does not say '%s'", e.text, cases[i].says);
  }
  scratch_close(&s);
  gr_model_close(m);
}

/* ---- targets ---- */

static void targets_find_stacks_routers_and_fused_tensors(void **state)
{
  (void)state;
  static const struct {
    const char *model, *target;
    size_t pairs; /* 0: refused */
  } cases[] = {
    { "qwen3moe", "all-linear", 8 },
    { "qwen3moe", "attention", 8 },
    { "qwen3moe", "mlp", 0 },
    { "qwen3moe", "experts", 6 },
    { "qwen3moe", "ffn_gate_exps", 2 },
    { "qwen3moe", "blk.1.ffn_down_exps", 1 },
    { "qwen3moe", "gate_proj", 0 }, /* routed experts only when named as such */
    { "qwen3moe", "mlp.experts.gate_proj", 2 },
    { "qwen3moe", "experts.gate_up_proj", 4 },
    { "qwen3moe", "mlp.experts.down_proj", 2 },
    { "qwen3moe", "ffn_gate_inp", 2 },
    { "qwen3moe", "mlp.gate", 2 },
    { "qwen3moe", "router", 2 },
    { "qwen3moe", "lm_head", 1 },
    { "qwen3moe", "self_attn.q_proj", 2 },
    { "qwen3moe", "re:blk\\.0\\..*_exps\\.weight", 3 },
    { "qwen3moe-fused", "experts", 4 },
    { "qwen3moe-fused", "experts.gate_up_proj", 2 },
    { "qwen3moe-fused", "ffn_gate_exps", 0 },
    { "qwen3moe-fused", "output", 0 }, /* tied */
    { "mixtral", "w1", 2 },
    { "mixtral", "block_sparse_moe.experts.down_proj", 2 },
    { "mixtral", "block_sparse_moe.gate", 2 },
    { "granitemoe-shared", "all-linear", 14 },
    { "granitemoe-shared", "mlp", 6 },
    { "granitemoe-shared", "gate_proj", 2 },
    { "granitemoe-shared", "shared_expert.down_proj", 2 },
    { "granitemoe-shared", "experts", 6 },
    { "phi3", "qkv_proj", 2 },
    { "phi3", "gate_up_proj", 2 },
    { "phi3", "all-linear", 8 },
    { "gemma3", "all-linear", 49 },
    { "gpt-oss", "all-linear", 8 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gr_model *m = open_model(cases[i].model);
    gr_error e = { 0 };
    gr_lora *l = NULL;
    const gr_lora_options o = { .rank = 2, .alpha = 8, .targets = &cases[i].target, .n_targets = 1 };
    gr_status s = gr_lora_create(&l, m, &o, &e);
    size_t pairs = s == GR_OK ? gr_lora_pair_count(l) : 0;
    if (pairs != cases[i].pairs) fail_msg("%s, %s: %zu, not %zu %s", cases[i].model, cases[i].target, pairs, cases[i].pairs, e.text);
    if (s != GR_OK && !strstr(e.text, "experts, all-linear")) fail_msg("%s", e.text);
    gr_lora_free(l);
    gr_model_close(m);
  }
}

/* ---- adapters in memory ---- */

static void a_stack_begins_with_other_values_for_each_expert(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_model *m = open_model("qwen3moe");
  gr_lora *all = NULL, *one = NULL;
  const char *const both[] = { "all-linear", "experts" }, *const down[] = { "blk.1.ffn_down_exps" };
  assert_ok(gr_lora_create(&all, m, &(gr_lora_options){ .rank = 3, .alpha = 8, .targets = both, .n_targets = 2, .seed = 9 }, &e), &e);
  assert_ok(gr_lora_create(&one, m, &(gr_lora_options){ .rank = 3, .alpha = 8, .targets = down, .n_targets = 1, .seed = 9 }, &e), &e);
  const gr_lora_pair *p = gr_lora_pair_at(one, 0), *q = gr_lora_pair_at(all, (size_t)gr_lora_find(all, p->name));
  assert_true(p->in == 32 && p->out == 64 && p->experts == 8 && p->rank == 3);
  size_t each = (size_t)(p->rank * p->in);
  assert_memory_equal(p->a, q->a, 8 * each * sizeof(float));
  double bound = 1 / sqrt(32.0), largest = 0, squares = 0;
  for (size_t i = 0; i < 8 * each; i++) largest = fmax(largest, fabs((double)p->a[i])), squares += pow((double)p->a[i], 2);
  assert_true(largest <= bound && largest > 0.9 * bound);
  assert_true(fabs(squares / (8.0 * (double)each) - bound * bound / 3) < 0.1 * bound * bound);
  for (size_t x = 0; x < 8; x++)
    for (size_t y = 0; y < x; y++) assert_true(memcmp(p->a + x * each, p->a + y * each, each * sizeof(float)) != 0);
  for (size_t i = 0; i < gr_lora_pair_b(p); i++) assert_true(p->b[i] == 0);
  assert_int_equal(gr_lora_parameters(one), 8 * 3 * (32 + 64));
  gr_lora_free(all);
  gr_lora_free(one);
  gr_model_close(m);
}

static void stacks_come_back_from_files(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_model *m = open_model("granitemoe-shared");
  gr_lora *l = NULL, *back = NULL;
  gr_adapter *file = NULL;
  scratch s;
  scratch_open(&s);
  const char *path = scratch_path(&s, "adapter.gguf"), *const all[] = { "re:.*" };
  assert_ok(gr_lora_create(&l, m, &(gr_lora_options){ .rank = 3, .alpha = 6, .targets = all, .n_targets = 1, .seed = 1 }, &e), &e);
  fill_values(l, 3);
  assert_ok(gr_lora_save(l, m, path, NULL, &e), &e);
  assert_ok(gr_adapter_open(&file, path, &e), &e);
  const gr_adapter_pair *p = gr_adapter_find(file, "blk.1.ffn_down_exps.weight");
  assert_non_null(p);
  assert_true(p->a->n_dims == 3 && p->a->ne[0] == 32 && p->a->ne[1] == 3 && p->a->ne[2] == 5);
  assert_true(p->b->n_dims == 3 && p->b->ne[0] == 3 && p->b->ne[1] == 64 && p->b->ne[2] == 5);
  gr_adapter_close(file);
  assert_ok(gr_lora_load(&back, m, path, &e), &e);
  assert_int_equal(gr_lora_pair_count(back), gr_lora_pair_count(l));
  assert_int_equal(gr_lora_pair_count(l), 2 * 11 + 1); /* four of attention, router, three stacks, three shared; and the head */
  assert_memory_equal(gr_lora_values(back), gr_lora_values(l), gr_lora_parameters(l) * sizeof(float));
  gr_lora_values(l)[gr_lora_parameters(l) - 1] = NAN;
  assert_int_equal(gr_lora_check_finite(l, &e), GR_ERR_NUMERIC);
  gr_lora_free(back);
  gr_lora_free(l);
  scratch_close(&s);
  gr_model_close(m);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(faults_get_one_sentence),
    cmocka_unit_test(adapters_of_other_models_are_refused),
    cmocka_unit_test(targets_find_stacks_routers_and_fused_tensors),
    cmocka_unit_test(a_stack_begins_with_other_values_for_each_expert),
    cmocka_unit_test(stacks_come_back_from_files),
  };
  return cmocka_run_group_tests_name("experts_model", tests, NULL, NULL);
}
