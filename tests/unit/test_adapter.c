#include "check.h"

#include "gguf_sample.h"
#include "io/identity.h"
#include "scratch.h"

static void assert_says(gr_status s, const gr_error *e, const char *what, const char *says)
{
  if (s == GR_OK || !strstr(e->text, says)) fail_msg("%s: wanted '%s', got '%s'", what, says, s == GR_OK ? "accepted" : e->text);
}

static void written_adapter_reads_back(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_adapter *a = NULL;
  assert_ok(sample_adapter_save(scratch_path(&dir, "a.gguf"), &e), &e);
  assert_ok(gr_adapter_open(&a, scratch_path(&dir, "a.gguf"), &e), &e);
  assert_true(gr_gguf_str_is(gr_adapter_architecture(a), "llama") && gr_adapter_alpha(a) == 8.0 && gr_adapter_ignored(a) == 0);
  assert_int_equal(gr_adapter_count(a), 3);
  for (size_t i = 0; i < 3; i++) {
    const gr_adapter_out *want = &sample_pairs[i];
    const gr_adapter_pair *p = gr_adapter_at(a, i);
    assert_string_equal(p->base, want->base);
    assert_ptr_equal(p, gr_adapter_find(a, want->base));
    assert_true(p->in == want->in && p->out == want->out && p->experts == want->experts && p->rank == want->rank);
    assert_true(gr_adapter_scale(a, p) == 8.0 / (double)want->rank);
    assert_memory_equal(p->a->data, sample_floats, p->a->bytes);
    assert_memory_equal(p->b->data, sample_floats, p->b->bytes);
  }
  const gr_adapter_pair *linear = gr_adapter_at(a, 0), *experts = gr_adapter_at(a, 1), *embedding = gr_adapter_at(a, 2);
  assert_true(linear->a->n_dims == 2 && linear->a->ne[0] == 6 && linear->a->ne[1] == 2 && linear->b->ne[0] == 2 && linear->b->ne[1] == 4);
  assert_true(experts->a->n_dims == 3 && experts->a->ne[2] == 3 && experts->b->ne[1] == 5 && experts->b->ne[2] == 3);
  assert_true(embedding->transposed && embedding->a->ne[0] == 3 && embedding->a->ne[1] == 9 && embedding->b->ne[1] == 6);
  assert_null(gr_adapter_find(a, "blk.0.attn_k.weight"));
  assert_null(gr_adapter_at(a, 3));
  gr_gguf_str hash = { 0 };
  assert_ok(gr_gguf_string(gr_adapter_gguf(a), "graft.base.hash", GR_GGUF_REQUIRED, &hash, &e), &e);
  assert_true(gr_gguf_str_is(hash, "0123abcd"));
  gr_adapter_close(a);
  scratch_close(&dir);
}

static void adapter_is_held_against_its_base(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_adapter *a = NULL;
  assert_ok(sample_adapter_save(scratch_path(&dir, "a.gguf"), &e), &e);
  assert_ok(gr_adapter_open(&a, scratch_path(&dir, "a.gguf"), &e), &e);
  const char *const says[] = { NULL, "is for models of architecture 'llama', but", "as 4 x 5 x 3, but in", "does not have" };
  for (int fault = 0; fault < 4; fault++) {
    gr_gguf *base = NULL;
    const char *path = scratch_path(&dir, "base.gguf");
    if (fault < 3) assert_ok(sample_base_save(path, fault == 1 ? "qwen2" : "llama", fault == 2 ? 2 : 3, &e), &e);
    else assert_ok(sample_model_save(path, 32, &e), &e);
    assert_ok(gr_gguf_open(&base, path, &e), &e);
    gr_status s = gr_adapter_check(a, base, &e);
    if (says[fault]) assert_says(s, &e, "check", says[fault]);
    else assert_ok(s, &e);
    gr_gguf_close(base);
  }
  gr_adapter_close(a);
  scratch_close(&dir);
}

/* One file a row: its metadata and its tensors, both halves of "x.weight" [8 x 8, r 2] unless told otherwise. */
typedef struct adapter_fault {
  const char *what;
  const char *general_type, *adapter_type, *architecture;
  float alpha;
  bool no_alpha, activated;
  const char *name_a, *name_b, *name_more; /* "": left out */
  gr_dtype dtype;
  int64_t rank_b, experts_b; /* 0: as a's */
  float value;
  const char *says; /* NULL: accepted */
} adapter_fault;

#define GOOD "adapter", "lora", "llama", 4
#define PAIR "x.weight.lora_a", "x.weight.lora_b"
static const adapter_fault faults[] = {
  { "right", GOOD, 0, 0, PAIR, "", GR_F32, 0, 0, 0, NULL },
  { "alpha 0", "adapter", "lora", "llama", 0, 0, 0, PAIR, "", GR_F32, 0, 0, 0, NULL },
  { "alpha missing", GOOD, true, 0, PAIR, "", GR_F32, 0, 0, 0, NULL },
  { "alpha NaN", "adapter", "lora", "llama", NAN, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "'adapter.lora.alpha' is nan" },
  { "alpha infinite", "adapter", "lora", "llama", INFINITY, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "'adapter.lora.alpha' is inf" },
  { "alpha negative", "adapter", "lora", "llama", -4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "'adapter.lora.alpha' is -4" },
  { "a model", "model", "lora", "llama", 4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "is not an adapter: its general.type is 'model'" },
  { "no type", "", "lora", "llama", 4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "is not an adapter: it has no general.type" },
  { "a broken architecture", "adapter", "lora", "lla\nma", 4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "'general.architecture' is not 1 to 63" },
  { "another adapter", "adapter", "control_vector", "llama", 4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "of type 'control_vector'" },
  { "no adapter type", "adapter", "", "llama", 4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "'adapter.type' is missing" },
  { "no architecture", "adapter", "lora", "", 4, 0, 0, PAIR, "", GR_F32, 0, 0, 0, "'general.architecture' is missing" },
  { "activated", GOOD, 0, true, PAIR, "", GR_F32, 0, 0, 0, "activated LoRA" },
  { "a alone", GOOD, 0, 0, "x.weight.lora_a", "", "", GR_F32, 0, 0, 0, "stands without its other half 'x.weight.lora_b'" },
  { "b alone", GOOD, 0, 0, "", "x.weight.lora_b", "", GR_F32, 0, 0, 0, "stands without its other half 'x.weight.lora_a'" },
  { "no tensors", GOOD, 0, 0, "", "", "", GR_F32, 0, 0, 0, "holds no lora_a" },
  { "only a norm", GOOD, 0, 0, "", "", "y_norm.weight", GR_F32, 0, 0, 0, "holds no lora_a" },
  { "a norm besides", GOOD, 0, 0, PAIR, "y_norm.weight", GR_F32, 0, 0, 0, NULL },
  { "another suffix", GOOD, 0, 0, PAIR, "rope_freqs.weight", GR_F32, 0, 0, 0, "'rope_freqs.weight' is not named as" },
  { "a norm's bias", GOOD, 0, 0, PAIR, "y_norm.bias", GR_F32, 0, 0, 0, "'y_norm.bias' is not named as" },
  { "no base name", GOOD, 0, 0, ".lora_a", ".lora_b", "", GR_F32, 0, 0, 0, "'.lora_a' is not named as" },
  { "F16", GOOD, 0, 0, PAIR, "", GR_F16, 0, 0, 0, NULL },
  { "BF16", GOOD, 0, 0, PAIR, "", GR_BF16, 0, 0, 0, NULL },
  { "Q8_0", GOOD, 0, 0, PAIR, "", GR_Q8_0, 0, 0, 0, NULL },
  { "Q4_0", GOOD, 0, 0, PAIR, "", GR_Q4_0, 0, 0, 0, "is of type Q4_0; an adapter's are F32" },
  { "I32", GOOD, 0, 0, PAIR, "", GR_I32, 0, 0, 0, "is of type I32; an adapter's are F32" },
  { "ranks differ", GOOD, 0, 0, PAIR, "", GR_F32, 1, 0, 0, "do not fit each other" },
  { "experts differ", GOOD, 0, 0, PAIR, "", GR_F32, 0, 2, 0, "do not fit each other" },
  { "embedding as a linear", GOOD, 0, 0, "token_embd.weight.lora_a", "token_embd.weight.lora_b", "", GR_F32, 0, 0, 0,
    "do not fit each other" },
  { "NaN", GOOD, 0, 0, PAIR, "", GR_F32, 0, 0, NAN, "'x.weight.lora_a' holds NaN or infinity, first at [3, 0, 0, 0]" },
};

static void save_fault(const adapter_fault *f, const char *path)
{
  gr_error e = { 0 };
  gr_gguf_writer *w = NULL;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  if (*f->general_type) gr_gguf_put_string(w, "general.type", f->general_type);
  if (*f->adapter_type) gr_gguf_put_string(w, "adapter.type", f->adapter_type);
  if (*f->architecture) gr_gguf_put_string(w, "general.architecture", f->architecture);
  if (!f->no_alpha) gr_gguf_put_f32(w, "adapter.lora.alpha", f->alpha);
  if (f->activated) gr_gguf_put_array(w, "adapter.alora.invocation_tokens", GR_GGUF_U32, &(uint32_t){ 7 }, 1);
  float values[256] = { 0 };
  values[3] = f->value;
  bool quant = gr_dtype_is_quant(f->dtype);
  const int64_t a[3] = { quant ? 32 : 8, quant ? 32 : 2, 1 };
  const int64_t b[3] = { f->rank_b ? f->rank_b : a[1], 8, f->experts_b ? f->experts_b : 1 };
  static const uint8_t zeros[2048];
  const void *data = f->dtype == GR_F32 ? (const void *)values : zeros;
  if (*f->name_a) gr_gguf_add_data(w, f->name_a, f->dtype, 2, a, data);
  if (*f->name_b) gr_gguf_add_data(w, f->name_b, f->dtype, 3, b, zeros);
  if (*f->name_more) gr_gguf_add_data(w, f->name_more, GR_F32, 1, (int64_t[]){ 8 }, zeros);
  assert_ok(gr_gguf_writer_save(w, path, &e), &e);
  gr_gguf_writer_free(w);
}

static void every_fault_of_an_adapter_is_named(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    const adapter_fault *f = &faults[i];
    gr_error e = { 0 };
    gr_adapter *a = NULL;
    save_fault(f, scratch_path(&dir, "f.gguf"));
    gr_status s = gr_adapter_open(&a, scratch_path(&dir, "f.gguf"), &e);
    if (f->says) {
      assert_says(s, &e, f->what, f->says);
      assert_says(s, &e, f->what, "f.gguf");
      assert_null(a);
      continue;
    }
    if (s != GR_OK) fail_msg("%s: %s", f->what, e.text);
    bool plain = f->no_alpha || f->alpha == 0;
    const gr_adapter_pair *p = gr_adapter_at(a, 0);
    assert_true(gr_adapter_scale(a, p) == (plain ? 1.0 : 4.0 / (double)p->rank));
    assert_int_equal(gr_adapter_ignored(a), *f->name_more != 0);
    gr_adapter_close(a);
  }
  scratch_close(&dir);
}

static void wrong_adapters_are_not_saved(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  const float bad[12] = { 0, 0, 0, 0, 0, 0, 0, -INFINITY };
  for (int fault = 0; fault < 8; fault++) {
    gr_adapter_out p = sample_pairs[0];
    gr_adapter_info info = { .architecture = "llama", .alpha = 8, .pairs = &p, .pair_count = 1 };
    gr_status want = fault == 0 ? GR_OK : GR_ERR_USAGE;
    switch (fault) {
    case 1: p.b = bad, want = GR_ERR_NUMERIC; break;
    case 2: p.rank = 0; break;
    case 3: p.a = NULL; break;
    case 4: info.alpha = (double)NAN; break;
    case 5: info.alpha = -1; break;
    case 6: info.pair_count = 0; break;
    case 7: p.base = "a base tensor's name of fifty-seven bytes: one too many ..."; break;
    }
    gr_error e = { 0 };
    const char *path = scratch_path(&dir, "a.gguf");
    gr_status s = gr_adapter_save(path, &info, &e);
    if (s != want) fail_msg("fault %d: %s, %s", fault, gr_status_name(s), e.text);
    if (want != GR_OK) assert_non_null(strstr(e.text, path));
    assert_int_equal(scratch_count(&dir), 1);
  }
  scratch_close(&dir);
}

/* ---- files of the shared data ---- */

static void hostile_adapters_get_the_answer_of_the_index(void **state)
{
  (void)state;
  require_shared();
  static const struct {
    const char *file;
    const char *says; /* NULL: accepted */
  } cases[] = {
    { "adapter-ok", NULL },
    { "adapter-b-wrong-height", "is it another model's adapter?" },
    { "adapter-other-suffix", "'rope_freqs.weight' is not named as" },
    { "adapter-alpha-missing", NULL },
    { "adapter-alpha-nan", "'adapter.lora.alpha' is nan" },
    { "adapter-alpha-negative", "'adapter.lora.alpha' is -4" },
    { "base-as-adapter", "it looks like a model" },
  };
  gr_error e = { 0 };
  gr_gguf *base = NULL;
  assert_ok(gr_gguf_open(&base, SHARED_DATA "hostile-gguf/ok-base.gguf", &e), &e);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char path[512];
    snprintf(path, sizeof path, SHARED_DATA "hostile-gguf/%s.gguf", cases[i].file);
    gr_adapter *a = NULL;
    gr_status s = gr_adapter_open(&a, path, &e);
    if (s == GR_OK) s = gr_adapter_check(a, base, &e);
    if (cases[i].says) assert_says(s, &e, cases[i].file, cases[i].says);
    else if (s != GR_OK) fail_msg("%s: %s", cases[i].file, e.text);
    gr_adapter_close(a);
  }
  gr_gguf_close(base);
}

static void adapters_of_llama_cpp_fit_their_bases(void **state)
{
  (void)state;
  require_shared();
  static const struct {
    const char *base, *adapter;
    size_t pairs;
    int64_t rank;
  } cases[] = {
    { "stories260K-q4_0", "stories260K-lora-r4-a8", 15, 4 },
    { "tiny/qwen3-tiny-f32", "tiny/lora-qwen3-r4-a8-attn+ffn", 14, 4 },
    { "tiny/qwen3moe-tiny-f32", "tiny/lora-qwen3moe-r4-a8-attn+experts", 14, 4 },
    { "tiny/qwen3moe-tiny-q4_k_m-like", "tiny/lora-qwen3moe-q4k-r8-a16-attn+experts", 7, 8 },
    { "tiny/qwen35-tiny-f32", "tiny/lora-qwen35-r2-a2-attn", 14, 2 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char path[512];
    gr_error e = { 0 };
    gr_gguf *base = NULL;
    gr_adapter *a = NULL;
    snprintf(path, sizeof path, SHARED_DATA "models/%s.gguf", cases[i].base);
    assert_ok(gr_gguf_open(&base, path, &e), &e);
    snprintf(path, sizeof path, SHARED_DATA "models/%s.gguf", cases[i].adapter);
    assert_ok(gr_adapter_open(&a, path, &e), &e);
    assert_ok(gr_adapter_check(a, base, &e), &e);
    assert_int_equal(gr_adapter_count(a), cases[i].pairs);
    assert_int_equal(gr_adapter_at(a, 0)->rank, cases[i].rank);
    gr_adapter_close(a);
    gr_gguf_close(base);
  }
}

/* ---- which base ---- */

enum { BASE_FLOATS = 8192 };

/* Two tensors with what each is to be, in one order or the other; part -1: both in one file, else the one that stands in that part. */
static void save_base(const char *path, bool backwards, int part, const char *name, int64_t rows, const float *a, const float *b)
{
  gr_error e = { 0 };
  gr_gguf_writer *w = NULL;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_put_string(w, "general.architecture", backwards ? "llama" : "qwen3");
  if (part >= 0) {
    gr_gguf_put_scalar(w, "split.no", GR_GGUF_U16, &(uint16_t){ (uint16_t)part });
    gr_gguf_put_scalar(w, "split.count", GR_GGUF_U16, &(uint16_t){ 2 });
    gr_gguf_put_scalar(w, "split.tensors.count", GR_GGUF_I32, &(int32_t){ 2 });
  }
  for (int i = 0; i < 2; i++) {
    bool first = (i == 0) != backwards;
    if (part >= 0 && part != !first) continue;
    gr_gguf_add_data(w, first ? name : "blk.1.attn_q.weight", GR_F32, 2, (int64_t[]){ BASE_FLOATS / rows, rows }, first ? a : b);
  }
  assert_ok(gr_gguf_writer_save(w, path, &e), &e);
  gr_gguf_writer_free(w);
}

static void sample_of(const char *path, char text[GR_HASH_TEXT])
{
  gr_error e = { 0 };
  gr_gguf *g = NULL;
  assert_ok(gr_gguf_open(&g, path, &e), &e);
  gr_base_sample(g, text);
  gr_gguf_close(g);
}

/* The same weights give it whatever stands beside them; others of the same shapes do not, nor do the same bytes as other tensors. */
static void a_base_is_known_by_a_sample_of_its_tensors(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  static float a[BASE_FLOATS], b[BASE_FLOATS], other[BASE_FLOATS];
  for (int i = 0; i < BASE_FLOATS; i++) a[i] = (float)i, b[i] = (float)(i % 37) - 20;
  const char name[] = "blk.0.attn_q.weight", path[] = "b.gguf";
  char first[GR_HASH_TEXT], again[GR_HASH_TEXT];
  save_base(scratch_path(&dir, path), false, -1, name, 64, a, b);
  sample_of(scratch_path(&dir, path), first);
  assert_int_equal(strspn(first, "0123456789abcdef"), 32);
  save_base(scratch_path(&dir, path), true, -1, name, 64, a, b); /* in another order, with other metadata */
  sample_of(scratch_path(&dir, path), again);
  assert_string_equal(first, again);
  save_base(scratch_path(&dir, "s-00001-of-00002.gguf"), false, 0, name, 64, a, b);
  save_base(scratch_path(&dir, "s-00002-of-00002.gguf"), false, 1, name, 64, a, b);
  sample_of(scratch_path(&dir, "s-00001-of-00002.gguf"), again);
  assert_string_equal(first, again);
  for (int fault = 0; fault < 6; fault++) {
    memcpy(other, a, sizeof a);
    if (fault == 0) other[0] = -1;
    else if (fault == 1) other[BASE_FLOATS - 1] = -1;
    else if (fault == 2)
      for (int i = 0; i < BASE_FLOATS; i += 128) other[i] += 1; /* one in 512 bytes, as a scale would stand in every block */
    const char *called = fault == 3 ? "blk.0.attn_k.weight" : name;
    save_base(scratch_path(&dir, path), false, -1, called, fault == 4 ? 128 : 64, fault == 5 ? b : other, fault == 5 ? a : b);
    sample_of(scratch_path(&dir, path), again);
    if (strcmp(first, again) == 0) fail_msg("fault %d is not seen", fault);
  }
  scratch_close(&dir);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(written_adapter_reads_back),
    cmocka_unit_test(adapter_is_held_against_its_base),
    cmocka_unit_test(every_fault_of_an_adapter_is_named),
    cmocka_unit_test(wrong_adapters_are_not_saved),
    cmocka_unit_test(hostile_adapters_get_the_answer_of_the_index),
    cmocka_unit_test(adapters_of_llama_cpp_fit_their_bases),
    cmocka_unit_test(a_base_is_known_by_a_sample_of_its_tensors),
  };
  return cmocka_run_group_tests_name("adapter", tests, NULL, NULL);
}
