/* Packing; the shared data sets and broken files; every allocation failing once. */
#include "failing_alloc.h"

#include <jansson.h>

#include "dataset_load.h"

#include "base/file.h"
#include "base/rng.h"

/* ---- packing ---- */

static void load_lengths(size_t n, int32_t budget)
{
  gr_buf text = { 0 };
  gr_data_options o = options();
  o.window = budget;
  for (size_t i = 0; i < n; i++) {
    gr_buf_puts(&text, "{\"text\":\"");
    for (uint64_t k = 0, length = 1 + gr_random_u64(3, 1, i) % 40; k < length; k++) gr_buf_printf(&text, "%d ", (int)(k % 10));
    gr_buf_puts(&text, "\"}\n");
  }
  assert_ok(load_bytes("pack.jsonl", text.data, text.len, &o), &at.e);
  assert_int_equal(gr_dataset_count(at.d), n);
  gr_buf_free(&text);
}

static void every_sample_is_in_one_window(void **state)
{
  (void)state;
  enum { N = 500, TAKEN = 400 };
  size_t indices[TAKEN];
  load_lengths(N, 64);
  for (size_t i = 0; i < TAKEN; i++) indices[i] = (i * 7) % N; /* 7 and 500 share no factor */
  for (int32_t budget = 64; budget < 700; budget = budget * 3 / 2) {
    gr_packing p, again;
    uint8_t seen[N] = { 0 };
    size_t at_order = 0;
    int64_t tokens = 0;
    assert_ok(gr_pack(&p, at.d, indices, TAKEN, budget, true, &at.e), &at.e);
    for (size_t w = 0; w < p.n_windows; w++) {
      int32_t sum = 0;
      assert_int_equal(p.windows[w].first, at_order);
      assert_true(p.windows[w].n > 0);
      for (size_t i = 0; i < p.windows[w].n; i++, at_order++) {
        assert_int_equal(seen[p.order[at_order]]++, 0);
        sum += gr_dataset_at(at.d, p.order[at_order])->n;
      }
      assert_int_equal(sum, p.windows[w].tokens);
      assert_true(sum <= budget);
      tokens += sum;
    }
    assert_int_equal(at_order, TAKEN);
    for (size_t i = 0; i < TAKEN; i++) assert_int_equal(seen[indices[i]], 1);
    assert_true(p.fill == (double)tokens / ((double)p.n_windows * budget));
    assert_true(p.fill > 0.9);
    assert_ok(gr_pack(&again, at.d, indices, TAKEN, budget, true, &at.e), &at.e);
    assert_int_equal(again.n_windows, p.n_windows);
    assert_memory_equal(again.order, p.order, TAKEN * sizeof *p.order);
    gr_packing_free(&again);
    gr_packing_free(&p);
  }
}

static void unpacked_windows_hold_one_sample(void **state)
{
  (void)state;
  size_t indices[90];
  gr_packing p;
  load_lengths(100, 64);
  for (size_t i = 0; i < 90; i++) indices[i] = 99 - i;
  assert_ok(gr_pack(&p, at.d, indices, 90, 64, false, &at.e), &at.e);
  assert_int_equal(p.n_windows, 90);
  for (size_t w = 0; w < 90; w++) {
    assert_int_equal(p.windows[w].n, 1);
    assert_int_equal(p.order[p.windows[w].first], indices[w]);
  }
  gr_packing_free(&p);
  assert_ok(gr_pack(&p, at.d, NULL, 0, 64, true, &at.e), &at.e);
  assert_int_equal(p.n_windows, 0);
  gr_packing_free(&p);
  load_lengths(100, 200);
  assert_int_equal(gr_pack(&p, at.d, indices, 90, 8, true, &at.e), GR_ERR_MISMATCH);
}

/* ---- shared data ---- */

static void the_shared_data_sets_load(void **state)
{
  (void)state;
  require_shared();
  static const struct {
    const char *file;
    gr_data_format format;
    size_t records, kept;
  } sets[] = {
    { "glaive-toolcall-sharegpt.json", GR_DATA_SHAREGPT, 100, 100 },
    { "gsm8k-test-400.jsonl", GR_DATA_QA, 400, 400 },
    { "identity-alpaca.json", GR_DATA_ALPACA, 91, 91 },
    { "openai-toy-chat.jsonl", GR_DATA_MESSAGES, 5, 5 },
    { "sharegpt-conversation.json", GR_DATA_SHAREGPT, 1, 1 },
    { "sharegpt-missing-turns.json", GR_DATA_SHAREGPT, 1, 1 },
    { "soup-alpaca-tiny.jsonl", GR_DATA_ALPACA, 10, 10 },
    { "torchtune-chat_tiny.json", GR_DATA_SHAREGPT, 1, 1 },
    { "torchtune-instruct_tiny.json", GR_DATA_ALPACA, 2, 2 },
    { "unsloth-canary.jsonl", GR_DATA_QA, 6, 6 },
    { "wikisql/train.jsonl", GR_DATA_TEXT, 1000, 1000 },
    { "wikisql/valid.jsonl", GR_DATA_TEXT, 100, 100 },
    { "wikisql/test.jsonl", GR_DATA_TEXT, 100, 100 },
    { "tinyshakespeare.txt", GR_DATA_PLAIN, 37, 37 },
  };
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    char path[400];
    gr_data_options o = options();
    o.window = 16384;
    snprintf(path, sizeof path, "%sdatasets/%s", SHARED_DATA, sets[i].file);
    end_load(NULL);
    assert_ok(gr_dataset_add(&at.d, path, &o, &at.e), &at.e);
    assert_ok(gr_dataset_check(at.d, &at.e), &at.e);
    assert_int_equal(gr_dataset_format(at.d), sets[i].format);
    assert_int_equal(gr_dataset_counts(at.d)->records, sets[i].records);
    assert_int_equal(gr_dataset_count(at.d), sets[i].kept);
    assert_int_equal(count(GR_DATA_REFUSED) + count(GR_DATA_UNTRAINED) + count(GR_DATA_END_UNTRAINED) + count(GR_DATA_LOST_BYTES), 0);
  }
}

/* What an assistant says in the records, its closing token behind it, is exactly what is trained. */
static void trained_tokens_spell_the_answers(void **state)
{
  (void)state;
  require_shared();
  gr_data_options o = options();
  gr_buf spelled = { 0 };
  assert_ok(gr_dataset_add(&at.d, SHARED_DATA "datasets/gsm8k-test-400.jsonl", &o, &at.e), &at.e);
  FILE *f = fopen(SHARED_DATA "datasets/gsm8k-test-400.jsonl", "r");
  assert_non_null(f);
  for (size_t i = 0; i < gr_dataset_count(at.d); i++) {
    const gr_sample *x = gr_dataset_at(at.d, i);
    json_t *record = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
    char answer[4000];
    snprintf(answer, sizeof answer, "%s<|im_end|>", json_string_value(json_object_get(record, "answer")));
    gr_buf_clear(&spelled);
    for (int32_t k = 0; k < x->n; k++)
      if (x->weights[k] > 0) assert_ok(gr_tokenizer_decode(at.tokenizer, x->ids + k, 1, GR_DECODE_CONTROL, &spelled, &at.e), &at.e);
    assert_string_equal(spelled.data, answer);
    json_decref(record);
  }
  fclose(f);
  gr_buf_free(&spelled);
}

static void messy_files_get_the_answer_of_the_index(void **state)
{
  (void)state;
  require_shared();
  gr_data_options o = options();
  json_t *index = json_load_file(SHARED_DATA "messy-json/index.json", 0, NULL);
  size_t n = json_array_size(index);
  assert_true(n >= 29);
  for (size_t i = 0; i < n; i++) {
    const json_t *entry = json_array_get(index, i);
    const char *file = json_string_value(json_object_get(entry, "file")), *expect = json_string_value(json_object_get(entry, "expect"));
    char path[400];
    snprintf(path, sizeof path, "%smessy-json/%s", SHARED_DATA, file);
    end_load(NULL);
    at.e = (gr_error){ 0 };
    gr_status s = gr_dataset_add(&at.d, path, &o, &at.e);
    if (s == GR_OK && strcmp(expect, "reject") == 0) fail_msg("%s was accepted", file);
    if (s != GR_OK && strcmp(expect, "accept") == 0) fail_msg("%s was refused: %s", file, at.e.text);
    if (s == GR_OK) assert_int_equal(gr_dataset_counts(at.d)->records, json_integer_value(json_object_get(entry, "records")));
    else if (s != GR_ERR_FORMAT || !strstr(at.e.text, file)) fail_msg("%s is not named: %s", file, at.e.text);
  }
  json_decref(index);
}

/* ---- allocations ---- */

static const char everything[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_"
    "calls\":"
    "[{\"function\":{\"name\":\"f\",\"arguments\":{\"k\":[1.5,null,true,\"x\"]}}}]},{\"role\":\"tool\",\"content\":{\"a\":1}},{\"role\":"
    "\"assistant\",\"content\":\"a\"}],\"tools\":[{\"name\":\"f\"}],\"n\":1e999,\"s\":\"\\ud800\"}\n"
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a text that goes on and on and on until it is longer than the window of it all\"},"
    "{\"role\":\"assistant\",\"content\":\"b\"}]}\n";
static const char call[] =
    "[{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":\\\"f\\\","
    "\\\"arguments\\\":{}}\"},{\"from\":\"observation\",\"value\":\"1\"},{\"from\":\"gpt\",\"value\":\"a\"}]}]";
static const char alpaca[] = "[{\"instruction\":\"i\",\"input\":\"x\",\"output\":1.5}]";
static const char plain[] = "one\r\ntwo three\n";

/* Reads the file with its n-th allocation failing; returns how many there were. */
static size_t load_failing(const char *path, size_t n, uint64_t *hash)
{
  gr_data_options o = options();
  gr_dataset *d = NULL;
  gr_error e = { 0 };
  long live = allocations.live;
  o.window = 64;
  o.overlong = GR_OVERLONG_SPLIT;
  allocations_fail(n, false);
  gr_status s = gr_dataset_add(&d, path, &o, &e);
  size_t seen = allocations.seen;
  allocations_fail(0, false);
  if (n == 0) {
    assert_ok(s, &e);
    *hash = gr_dataset_hash(d);
  } else if (s == GR_OK ? gr_dataset_hash(d) != *hash : s != GR_ERR_MEMORY) {
    fail_msg("allocation %zu of %s: %s", n, path, s == GR_OK ? "the data changed" : e.text);
  }
  assert_true(s == GR_OK || e.text[0]);
  gr_dataset_free(d);
  if (allocations.live != live) fail_msg("allocation %zu of %s: %ld leaked", n, path, allocations.live - live);
  return seen;
}

/* Jansson's too: left alone it (2.14) loses bytes without a word, or ends the program by an assertion, when its string buffer cannot grow.
 */
static void every_allocation_may_fail(void **state)
{
  (void)state;
  static const struct {
    const char *name, *text;
  } files[] = { { "n.jsonl", "{\"question\": \"q(\\ud800\", \"answer\": 1.3456789012345678901234567890}\r\n" },
                { "e.jsonl", everything },
                { "c.json", call },
                { "a.json", alpaca },
                { "p.txt", plain } };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    const char *path = scratch_path(&at.dir, files[i].name);
    uint64_t hash;
    write_file(path, files[i].text, strlen(files[i].text));
    for (size_t n = 1, last = load_failing(path, 0, &hash); n <= last; n++) load_failing(path, n, &hash);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_teardown(every_sample_is_in_one_window, end_load),
    cmocka_unit_test_teardown(unpacked_windows_hold_one_sample, end_load),
    cmocka_unit_test_teardown(the_shared_data_sets_load, end_load),
    cmocka_unit_test_teardown(trained_tokens_spell_the_answers, end_load),
    cmocka_unit_test_teardown(messy_files_get_the_answer_of_the_index, end_load),
    cmocka_unit_test_teardown(every_allocation_may_fail, end_load),
  };
  return cmocka_run_group_tests_name("dataset files", tests, set_up, tear_down);
}
