/* Recorded answers of other tokenizers (shared/data/tokenizer and others; SOURCES.md there says who gave them), and the
 * answers that hostile files get. */
#include "check.h"

#include <jansson.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/tokenizer.h"

static gr_tokenizer *load(const char *path)
{
  gr_error e = { 0 };
  gr_gguf *g;
  gr_tokenizer *t;
  assert_ok(gr_gguf_open(&g, path, &e), &e);
  assert_ok(gr_tokenizer_create(&t, g, &e), &e);
  gr_gguf_close(g); /* a tokenizer keeps nothing of the file */
  return t;
}

static void expect_ids(const gr_tokenizer *t, const char *text, size_t n, unsigned flags, const int32_t *ids, size_t count,
                       const char *what)
{
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, text, n, flags, &tokens, &e), &e);
  size_t same = 0;
  while (same < count && same < tokens.count && ids[same] == tokens.ids[same]) same++;
  if (same != count || same != tokens.count)
    fail_msg("%s: %zu tokens, expected %zu; from place %zu on they differ (%d, expected %d)", what, tokens.count, count, same,
             same < tokens.count ? tokens.ids[same] : -1, same < count ? ids[same] : -1);
  gr_tokens_free(&tokens);
}

static char *read_all(const char *path, size_t *n)
{
  gr_error e = { 0 };
  char *data;
  assert_ok(gr_file_read(path, 64 << 20, &data, n, &e), &e);
  return data;
}

/* FILE.inp holds texts with a line "__ggml_vocab_test__" between them, FILE.out a line of ids for each. */
static size_t check_inp_out(const char *vocabulary, const char *vectors)
{
  static const char separator[] = "\n__ggml_vocab_test__\n";
  char path[512];
  snprintf(path, sizeof path, SHARED_DATA "tokenizer/%s", vocabulary);
  gr_tokenizer *t = load(path);
  size_t n, checked = 0;
  snprintf(path, sizeof path, SHARED_DATA "tokenizer/%s.inp", vectors);
  char *texts = read_all(path, &n);
  snprintf(path, sizeof path, SHARED_DATA "tokenizer/%s.out", vectors);
  char *answers = read_all(path, &n), *line = answers;
  for (char *text = texts, *next; text; text = next, checked++) {
    char *end = strstr(text, separator);
    next = end ? end + strlen(separator) : NULL;
    size_t length = end ? (size_t)(end - text) : strlen(text);
    int32_t ids[4096];
    size_t count = 0;
    char *line_end = strchr(line, '\n');
    if (!line_end) line_end = line + strlen(line);
    for (char *p = line, *after; p < line_end; p = after) {
      ids[count] = (int32_t)strtol(p, &after, 10);
      if (after == p || after > line_end) break;
      count++;
    }
    line = *line_end ? line_end + 1 : line_end;
    expect_ids(t, text, length, 0, ids, count, vectors);
  }
  gr_free(texts);
  gr_free(answers);
  gr_tokenizer_free(t);
  return checked;
}

static void test_ggml_vectors(void **state)
{
  (void)state;
  require_shared();
  assert_int_equal(check_inp_out("ggml-vocab-gpt-2.gguf", "ggml-vocab-gpt-2.gguf"), 47);
  assert_int_equal(check_inp_out("ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-spm.gguf"), 47);
  assert_int_equal(check_inp_out("ggml-vocab-qwen3.gguf", "ggml-vocab-qwen2.gguf"), 47);
}

/* Calls each for every line of a file of JSON objects; returns how many there were. */
static size_t each_line(const char *path, void (*each)(const gr_tokenizer *t, json_t *row), const gr_tokenizer *t)
{
  size_t n, rows = 0;
  char *data = read_all(path, &n);
  for (char *line = data, *end; line < data + n; line = end + 1) {
    end = memchr(line, '\n', (size_t)(data + n - line));
    if (!end) end = data + n;
    if (end == line) continue;
    json_t *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
    assert_non_null(row);
    each(t, row);
    json_decref(row);
    rows++;
  }
  gr_free(data);
  return rows;
}

static size_t get_ids(json_t *array, int32_t *ids)
{
  size_t n = json_array_size(array);
  assert_true(n <= 4096);
  for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
  return n;
}

static void check_row(const gr_tokenizer *t, json_t *row)
{
  json_t *text = json_object_get(row, "text"), *array = json_object_get(row, "ids");
  const char *name = json_string_value(json_object_get(row, "name"));
  int32_t ids[4096];
  size_t count = get_ids(array, ids), n = json_string_length(text);
  expect_ids(t, json_string_value(text), n, GR_ENCODE_PARSE_CONTROL, ids, count, name);
  gr_buf back = { 0 };
  gr_error e = { 0 };
  assert_ok(gr_tokenizer_decode(t, ids, count, GR_DECODE_CONTROL, &back, &e), &e);
  assert_int_equal(back.len, n);
  assert_memory_equal(back.data ? back.data : "", json_string_value(text), n);
  gr_buf_free(&back);
}

static void test_json_vectors(void **state)
{
  (void)state;
  require_shared();
  gr_tokenizer *t = load(SHARED_DATA "tokenizer/ggml-vocab-gpt-2.gguf");
  assert_int_equal(each_line(SHARED_DATA "tokenizer/tjs-openai-community__gpt2.jsonl", check_row, t), 26);
  gr_tokenizer_free(t);
  t = load(SHARED_DATA "tokenizer/ggml-vocab-qwen3.gguf");
  assert_int_equal(each_line(SHARED_DATA "tokenizer/tjs-Xenova__Qwen1.5-0.5B-Chat.jsonl", check_row, t), 25);
  assert_int_equal(each_line(SHARED_DATA "tokenizer/qwen3-extra-vectors.jsonl", check_row, t), 32);
  gr_tokenizer_free(t);
}

/* Rendered chats: llama.cpp's ids, and a mask that is 1 for the tokens whose first byte lies in a trained span. */
static void check_rendering(const gr_tokenizer *t, json_t *row)
{
  json_t *text = json_object_get(row, "text"), *array = json_object_get(row, "ids"), *mask = json_object_get(row, "mask");
  if (!array) return;
  int32_t ids[4096];
  size_t count = get_ids(array, ids);
  expect_ids(t, json_string_value(text), json_string_length(text), GR_ENCODE_PARSE_CONTROL, ids, count,
             json_string_value(json_object_get(row, "case")));
  if (!mask) return;
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, json_string_value(text), json_string_length(text), GR_ENCODE_PARSE_CONTROL, &tokens, &e), &e);
  json_t *spans = json_object_get(row, "train_byte_spans"), *span;
  assert_int_equal(json_array_size(mask), tokens.count);
  for (size_t i = 0; i < tokens.count; i++) {
    size_t k;
    int inside = 0;
    json_array_foreach(spans, k, span)
    {
      inside |= tokens.at[i] >= json_integer_value(json_array_get(span, 0)) && tokens.at[i] < json_integer_value(json_array_get(span, 1));
    }
    assert_int_equal(inside, json_integer_value(json_array_get(mask, i)));
  }
  gr_tokens_free(&tokens);
}

static void test_renderings(void **state)
{
  (void)state;
  require_shared();
  gr_tokenizer *t = load(SHARED_DATA "tokenizer/ggml-vocab-qwen3.gguf");
  assert_int_equal(each_line(SHARED_DATA "templates/golden-render.jsonl", check_rendering, t), 154);
  gr_tokenizer_free(t);
}

/* The models' recorded texts begin with BOS. */
static void test_model_texts(void **state)
{
  (void)state;
  require_shared();
  static const char *const files[] = { "models/stories260K-expected.json", "models/tiny/expected.json" };
  size_t checked = 0;
  for (size_t f = 0; f < 2; f++) {
    char path[512];
    snprintf(path, sizeof path, SHARED_DATA "%s", files[f]);
    json_t *cases = json_load_file(path, 0, NULL), *row;
    size_t k;
    json_array_foreach(cases, k, row)
    {
      const char *name = json_string_value(json_object_get(row, "case")), *text = json_string_value(json_object_get(row, "text"));
      if (!text || strchr(name, '+')) continue;
      snprintf(path, sizeof path, SHARED_DATA "models/%s%s", f ? "tiny/" : "", name);
      gr_tokenizer *t = load(path);
      int32_t ids[4096];
      size_t count = get_ids(json_object_get(row, "ids"), ids);
      expect_ids(t, text, strlen(text), GR_ENCODE_SPECIAL, ids, count, name);
      gr_tokenizer_free(t);
      checked++;
    }
    json_decref(cases);
  }
  assert_int_equal(checked, 16);
}

/* ---- hostile files: what the container lets through must get a tokenizer or a sentence ---- */

struct answer {
  const char *file;
  bool accepted;
  const char *says; /* a part of the sentence, or of the notes */
};

/* Makes the file's tokenizer and asks it about every byte and its special tokens; false when the file was refused, with why. */
static bool try_file(const char *file, gr_error *e, char notes[1024])
{
  char path[512], text[600];
  snprintf(path, sizeof path, SHARED_DATA "hostile-gguf/%s", file);
  gr_gguf *g;
  gr_tokenizer *t;
  *e = (gr_error){ 0 };
  if (gr_gguf_open(&g, path, e) != GR_OK) return false;
  gr_status s = gr_tokenizer_create(&t, g, e);
  gr_gguf_close(g);
  if (s != GR_OK) {
    assert_null(t);
    assert_string_not_equal(e->text, "");
    return false;
  }
  snprintf(notes, 1024, "%s", gr_tokenizer_notes(t));
  for (int i = 0; i < 512; i++) text[i] = (char)i;
  strcpy(text + 512, "<s></s><unk>[PAD3]<0x0A><0xZZ><0x-1> abc");
  gr_tokens tokens = { 0 };
  gr_buf out = { 0 };
  assert_ok(gr_tokenizer_encode(t, text, 512 + strlen(text + 512), GR_ENCODE_SPECIAL | GR_ENCODE_PARSE_CONTROL, &tokens, e), e);
  assert_ok(gr_tokenizer_decode(t, tokens.ids, tokens.count, GR_DECODE_CONTROL, &out, e), e);
  gr_buf_free(&out);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
  return true;
}

static void test_hostile_files(void **state)
{
  (void)state;
  require_shared();
  static const struct answer answers[] = {
    { "ok-base.gguf", true, "" },
    { "ok-spm.gguf", true, "" },
    { "merges-missing.gguf", false, "tokenizer.ggml.merges is missing" },
    { "merges-no-space.gguf", true, "tokenizer.ggml.merges" },
    { "tokens-duplicate-and-empty.gguf", false, "same text" },
    { "token-type-wild.gguf", true, "type outside 1 to 6" },
    { "bos-id-eq-vocab.gguf", true, "bos_token_id" },
    { "byte-token-bad-hex.gguf", true, "<0x00>" },
    { "spm-no-byte-tokens.gguf", true, "byte tokens are missing" },
  };
  char notes[1024] = "";
  gr_error e;
  for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
    bool accepted = try_file(answers[i].file, &e, notes);
    if (accepted != answers[i].accepted) fail_msg("%s is %s: %s", answers[i].file, accepted ? "accepted" : "refused", e.text);
    if (!strstr(accepted ? notes : e.text, answers[i].says))
      fail_msg("%s: '%s' does not say '%s'", answers[i].file, accepted ? notes : e.text, answers[i].says);
  }
  json_t *index = json_load_file(SHARED_DATA "hostile-gguf/index.json", 0, NULL), *row;
  size_t k, tried = 0;
  json_array_foreach(index, k, row)
  {
    const char *file = json_string_value(json_object_get(row, "file"));
    bool accepted = try_file(file, &e, notes);
    if (!strcmp(json_string_value(json_object_get(row, "expect")), "accept") && strncmp(file, "adapter", 7) != 0 && !accepted)
      fail_msg("%s is refused: %s", file, e.text);
    tried++;
  }
  json_decref(index);
  assert_true(tried > 100);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ggml_vectors), cmocka_unit_test(test_json_vectors),  cmocka_unit_test(test_renderings),
    cmocka_unit_test(test_model_texts),  cmocka_unit_test(test_hostile_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
