/* Hostile files as whole models: the index of the shared data, every file of it, and each kind of fault it describes put into the
 * golden models of this repository: keys missing, of wrong types, absurd or not finite; tensors missing, misshapen, of wrong types
 * or too many; vocabularies that do not fit. Nothing may crash; what is refused is refused in a sentence that names the file. */
#include "check.h"

#include "base/alloc.h"
#include "gguf_sample.h"
#include "model/model.h"

#define HOSTILE SHARED_DATA "hostile-gguf/"

static void every_file_of_the_index_gets_its_answer(void **state)
{
  (void)state;
  require_shared();
  gr_error e = { 0 };
  gr_model *base = NULL;
  assert_ok(gr_model_open(&base, HOSTILE "ok-base.gguf", &e), &e);
  FILE *index = fopen(HOSTILE "index.json", "r");
  assert_non_null(index);
  char line[4096], file[128], expect[16];
  int seen = 0, wrong = 0;
  while (fgets(line, sizeof line, index)) {
    if (sscanf(line, "{\"file\": \"%127[^\"]\", \"expect\": \"%15[^\"]\"", file, expect) != 2) continue;
    seen++;
    char path[512];
    snprintf(path, sizeof path, "%s%s", HOSTILE, file);
    gr_model *m = NULL;
    gr_lora *l = NULL;
    e = (gr_error){ 0 };
    bool adapter = strncmp(file, "adapter-", 8) == 0 || strcmp(file, "base-as-adapter.gguf") == 0;
    bool accepted = (adapter ? gr_lora_load(&l, base, path, &e) : gr_model_open(&m, path, &e)) == GR_OK;
    gr_lora_free(l);
    gr_model_close(m);
    if (!accepted && !strstr(e.text, file)) fail_msg("the sentence does not name %s: %s", file, e.text);
    if (strcmp(expect, "either") == 0 || accepted == (strcmp(expect, "accept") == 0)) continue;
    print_error("%s: expected %s, got: %s\n", file, expect, accepted ? "accept" : e.text);
    wrong++;
  }
  fclose(index);
  gr_model_close(base);
  assert_int_equal(seen, 115);
  assert_int_equal(wrong, 0);
}

/* ---- faults put into models of our own ---- */

typedef struct change {
  const char *key;                                        /* of the pair that is left out */
  const char *tensor;                                     /* of the tensor that is left out */
  void (*add)(gr_gguf_writer *w, const struct change *c); /* puts something else there */
  const gr_gguf_tensor *old;
  int variant;
} change;

/* The model with the change, opened. */
static bool opens(const gr_gguf *g, const change *c, gr_error *e)
{
  gr_gguf_writer *w = NULL;
  gr_buf bytes = { 0 };
  gr_gguf *changed = NULL;
  gr_model *m = NULL;
  assert_ok(gr_gguf_writer_create(&w, e), e);
  for (size_t i = 0; i < gr_gguf_kv_count(g); i++) {
    const gr_gguf_kv *kv = gr_gguf_kv_at(g, i);
    if (!c->key || strcmp(kv->key, c->key) != 0) gr_gguf_put_kv(w, kv);
  }
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    if (!c->tensor || strcmp(t->name, c->tensor) != 0) gr_gguf_add_copy(w, t);
    else if (c->add) c->add(w, c);
  }
  if (c->add && !c->tensor) c->add(w, c);
  assert_ok(gr_gguf_writer_encode(w, &bytes, e), e);
  gr_gguf_writer_free(w);
  assert_ok(gr_gguf_open_memory(&changed, bytes.data, bytes.len, "changed.gguf", e), e);
  *e = (gr_error){ 0 };
  bool ok = gr_model_open_gguf(&m, changed, e) == GR_OK;
  if (!ok && !strstr(e->text, "changed.gguf")) fail_msg("the sentence does not name the file: '%s'", e->text);
  gr_model_close(m);
  gr_buf_free(&bytes);
  return ok;
}

enum { VALUES = 22 };

static void put_other_value(gr_gguf_writer *w, const change *c)
{
  const uint32_t numbers[] = { 0, 1, 2, 3, 7, 65536, 1u << 31, UINT32_MAX };
  const gr_gguf_str strings[] = { { "a", 1 }, { "", 0 }, { "a\0b", 3 } };
  switch (c->variant) {
  case 0: break; /* missing */
  case 1: gr_gguf_put_string(w, c->key, "text"); break;
  case 2: gr_gguf_put_string(w, c->key, ""); break;
  case 3: gr_gguf_put_i32(w, c->key, -1); break;
  case 4: gr_gguf_put_u64(w, c->key, UINT64_MAX); break;
  case 5: gr_gguf_put_scalar(w, c->key, GR_GGUF_I64, &(int64_t){ INT64_MIN }); break;
  case 6: gr_gguf_put_f32(w, c->key, NAN); break;
  case 7: gr_gguf_put_f32(w, c->key, INFINITY); break;
  case 8: gr_gguf_put_f32(w, c->key, -1.5f); break;
  case 9: gr_gguf_put_bool(w, c->key, true); break;
  case 10: gr_gguf_put_array(w, c->key, GR_GGUF_U32, NULL, 0); break;
  case 11: gr_gguf_put_array(w, c->key, GR_GGUF_U32, numbers, 8); break;
  case 12: gr_gguf_put_strs(w, c->key, NULL, 0); break;
  case 13: gr_gguf_put_strs(w, c->key, strings, 3); break;
  default: gr_gguf_put_u32(w, c->key, numbers[c->variant - 14]); break;
  }
}

/* Keys without which, or with which of another type, no model is whole. */
static bool must_be_a_number(const char *key)
{
  static const char *const suffixes[] = { ".block_count", ".embedding_length", ".feed_forward_length", ".attention.head_count" };
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    size_t n = strlen(key), k = strlen(suffixes[i]);
    if (n > k && strcmp(key + n - k, suffixes[i]) == 0) return true;
  }
  return false;
}

static bool must_be_refused(const char *key, int variant)
{
  bool tokens = strcmp(key, "tokenizer.ggml.tokens") == 0 || strcmp(key, "general.architecture") == 0;
  if (tokens) return true;
  if (must_be_a_number(key)) return variant != 15 && variant != 16 && variant != 17 && variant != 18 && variant != 19;
  if (strstr(key, ".rope.freq_base")) return variant == 1 || (variant >= 6 && variant <= 8);
  return false;
}

/* Where experts have a length of their own, nothing needs feed_forward_length. */
static bool may_be_missing(const gr_gguf *g, const char *key)
{
  char experts[128];
  const char *dot = strrchr(key, '.');
  if (!dot || strcmp(dot, ".feed_forward_length") != 0) return false;
  snprintf(experts, sizeof experts, "%.*s.expert%s", (int)(dot - key), key, "_feed_forward_length");
  return gr_gguf_find(g, experts) != NULL;
}

static size_t change_keys(const gr_gguf *g)
{
  size_t refused = 0;
  for (size_t i = 0; i < gr_gguf_kv_count(g); i++) {
    const char *key = gr_gguf_kv_at(g, i)->key;
    if (strcmp(key, "general.alignment") == 0) continue; /* the container's own: test_gguf_mutation */
    for (int variant = 0; variant < VALUES; variant++) {
      gr_error e = { 0 };
      bool ok = opens(g, &(change){ .key = key, .add = put_other_value, .variant = variant }, &e);
      if (ok && must_be_refused(key, variant) && !(variant == 0 && may_be_missing(g, key)))
        fail_msg("%s: %s with value %d is accepted", gr_gguf_path(g), key, variant);
      refused += !ok;
    }
  }
  return refused;
}

enum { SHAPES = 8 };

static void put_other_tensor(gr_gguf_writer *w, const change *c)
{
  static const float zeros[1 << 18];
  const gr_gguf_tensor *t = c->old;
  int64_t ne[4] = { t->ne[0], t->ne[1], t->ne[2], t->ne[3] };
  gr_dtype dtype = GR_F32;
  switch (c->variant) {
  case 0: return; /* missing */
  case 1: ne[0] += 1; break;
  case 2: ne[1] += 1; break;
  case 3: ne[2] = 2; break;
  case 4: ne[3] = 2; break;
  case 5: ne[0] = 1; break;
  case 6: dtype = GR_I32; break;
  case 7: dtype = GR_F64; break;
  }
  assert_true(ne[0] * ne[1] * ne[2] * ne[3] * 8 <= (int64_t)sizeof zeros);
  gr_gguf_add_data(w, t->name, dtype, 4, ne, zeros);
}

static void change_tensors(const gr_gguf *g)
{
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    for (int variant = 0; variant < SHAPES; variant++) {
      if (variant == 5 && t->ne[0] == 1) continue;
      gr_error e = { 0 };
      bool ok = opens(g, &(change){ .tensor = t->name, .add = put_other_tensor, .old = t, .variant = variant }, &e);
      bool tied = strcmp(t->name, "output.weight") == 0 && variant == 0;
      if (ok && !tied) fail_msg("%s: %s with fault %d is accepted", gr_gguf_path(g), t->name, variant);
      if (!ok && !strstr(e.text, t->name)) fail_msg("%s: the sentence does not name %s: %s", gr_gguf_path(g), t->name, e.text);
    }
  }
}

static void put_strangers(gr_gguf_writer *w, const change *c)
{
  static const char *const names[] = { "stranger.weight", "blk.0.attn_q.weights", "blk.99.attn_q.weight", "blk.0.attn_q.weight.lora_a" };
  gr_gguf_add_data(w, names[c->variant], GR_F32, 2, (int64_t[]){ 8, 4 }, sample_floats);
}

static void faults_in_models_of_our_own(void **state)
{
  (void)state;
  static const char *const models[] = {
    "llama", "qwen2", "qwen3", "qwen3moe", "qwen2moe", "granitemoe-shared", "gemma3", "gpt-oss", "phi3"
  };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    char path[512];
    snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", models[i]);
    gr_error e = { 0 };
    gr_gguf *g = NULL;
    assert_ok(gr_gguf_open(&g, path, &e), &e);
    if (!opens(g, &(change){ 0 }, &e)) fail_msg("%s, unchanged: %s", models[i], e.text);
    assert_true(change_keys(g) > 5 * VALUES);
    change_tensors(g);
    for (int variant = 0; variant < 4; variant++)
      if (opens(g, &(change){ .add = put_strangers, .variant = variant }, &e)) fail_msg("%s: stranger %d is accepted", models[i], variant);
    gr_gguf_close(g);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_file_of_the_index_gets_its_answer),
    cmocka_unit_test(faults_in_models_of_our_own),
  };
  return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
