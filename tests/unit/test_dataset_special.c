/* Texts that spell special tokens, in full, in part and through each other: what data sets make of them, with parse_special and without. */
#include "dataset_load.h"

#include "base/buf.h"
#include "base/rng.h"
#include "special_vocab.h"
#include "text/records.h"

static const char chatml[] = "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static gr_tokenizer *vocab[2]; /* by whether it puts <s> and </s> */
static gr_template *chat;

static int open_vocab(void **state)
{
  gr_error e = { 0 };
  for (int i = 0; i < 2; i++) assert_ok(special_vocab(&vocab[i], i, &e), &e);
  assert_ok(gr_template_parse(&chat, chatml, sizeof chatml - 1, "chatml", &e), &e);
  return set_up(state);
}

static int close_vocab(void **state)
{
  for (int i = 0; i < 2; i++) gr_tokenizer_free(vocab[i]);
  gr_template_free(chat);
  return tear_down(state);
}

static gr_data_options special_options(bool add, bool parse)
{
  return (gr_data_options){ .tokenizer = vocab[add], .chat_template = chat, .window = WINDOW, .parse_special = parse };
}

/* Text number i: up to `pieces` pieces. */
static void make_text(gr_buf *text, uint64_t i, uint64_t pieces)
{
  gr_buf_clear(text);
  for (uint64_t k = 0, n = 1 + gr_random_u64(3, i, 0) % pieces; k < n; k++)
    gr_buf_puts(text, special_pieces[gr_random_u64(3, i, 1 + k) % SPECIAL_PIECES]);
  assert_false(text->failed);
}

static void end_text(gr_buf *text, gr_buf *line)
{
  gr_buf_free(text);
  gr_buf_free(line);
}

/* {"text": "..."} */
static void quote(gr_buf *line, const char *key, const gr_buf *text)
{
  json_t *string = json_stringn(text->data, text->len);
  assert_non_null(string);
  gr_buf_printf(line, "\"%s\": ", key);
  gr_json_write(line, string);
  json_decref(string);
}

/* ids[0..n) spell the text, special tokens standing where the rule puts them, and nowhere else. */
static void check_spelling(const gr_tokenizer *t, const int32_t *ids, size_t n, const gr_buf *text, bool parse)
{
  int32_t *found = malloc((text->len + 1) * sizeof *found);
  bool *covered = malloc(text->len + 1);
  gr_buf back = { 0 };
  assert_non_null(found);
  assert_non_null(covered);
  special_places(text->data, text->len, parse, found, covered);
  for (size_t i = 0; i < n; i++) {
    size_t place = back.len;
    assert_true(place < text->len);
    if (ids[i] != found[place] && (ids[i] >= special_first || found[place] >= 0))
      fail_msg("token %zu at byte %zu is %d, not %d, in: %.*s", i, place, ids[i], found[place], (int)text->len, text->data);
    assert_ok(gr_tokenizer_decode(t, ids + i, 1, GR_DECODE_CONTROL, &back, &at.e), &at.e);
  }
  assert_int_equal(back.len, text->len);
  assert_memory_equal(back.data, text->data, text->len);
  gr_buf_free(&back);
  free(found);
  free(covered);
}

/* The sample's tokens without those that stand for its beginning and end, of which there is one each, whoever wrote it. */
static void check_sample(const gr_sample *x, const gr_buf *text, bool add, bool parse, bool ends)
{
  const int32_t bos = special_first, eos = bos + 1, *ids = x->ids;
  bool starts = parse && text->len >= 3 && memcmp(text->data, "<s>", 3) == 0;
  bool stops = parse && text->len >= 4 && memcmp(text->data + text->len - 4, "</s>", 4) == 0;
  size_t n = (size_t)x->n;
  if (add || starts) assert_int_equal(ids[0], bos);
  if (add && !starts) ids++, n--;
  if (ends || stops) assert_int_equal(ids[n - 1], eos);
  if (ends && !stops) n--;
  check_spelling(vocab[add], ids, n, text, parse);
}

/* ---- text records and plain files ---- */

static void texts_are_spelled_once(void **state)
{
  (void)state;
  gr_buf text = { 0 }, line = { 0 };
  for (uint64_t i = 0; i < 1600; i++) {
    const bool add = i & 1, parse = i >> 1 & 1;
    gr_data_options o = special_options(add, parse);
    make_text(&text, i, 12);
    gr_buf_clear(&line);
    gr_buf_puts(&line, "{");
    quote(&line, "text", &text);
    gr_buf_puts(&line, "}\n");
    assert_ok(load_bytes("t.jsonl", line.data, line.len, &o), &at.e);
    assert_int_equal(gr_dataset_count(at.d), 1);
    check_sample(gr_dataset_at(at.d, 0), &text, add, parse, true);
  }
  end_text(&text, &line);
}

static void plain_files_are_spelled_once(void **state)
{
  (void)state;
  gr_buf text = { 0 }, line = { 0 };
  for (uint64_t i = 0; i < 800; i++) {
    const bool add = i & 1, parse = i >> 1 & 1;
    gr_data_options o = special_options(add, parse);
    make_text(&text, 10000 + i, 12);
    gr_buf_puts(&text, i & 4 ? "xyz" : "x</s>"); /* two tokens, at least, or there is no sample */
    assert_ok(load_bytes("t.txt", text.data, text.len, &o), &at.e);
    assert_int_equal(gr_dataset_count(at.d), 1);
    check_sample(gr_dataset_at(at.d, 0), &text, add, parse, add);
  }
  end_text(&text, &line);
}

/* Of several pieces: where they are cut no special token is lost, cut or made. */
static void long_files_are_spelled_once(void **state)
{
  (void)state;
  gr_buf text = { 0 }, line = { 0 };
  for (int parse = 0; parse < 2; parse++) {
    gr_data_options o = special_options(true, parse);
    o.window = 1 << 21;
    gr_buf_clear(&text);
    for (uint64_t k = 0; text.len < (size_t)900000; k++) gr_buf_puts(&text, special_pieces[gr_random_u64(5, 0, k) % SPECIAL_PIECES]);
    for (int k = 0; k < 60000; k++) gr_buf_puts(&text, "x\nOrla "); /* every line end that a piece could be cut at is within a token */
    assert_false(text.failed);
    assert_ok(load_bytes("long.txt", text.data, text.len, &o), &at.e);
    assert_int_equal(gr_dataset_count(at.d), 1);
    check_sample(gr_dataset_at(at.d, 0), &text, true, parse, true);
  }
  end_text(&text, &line);
}

/* ---- conversations ---- */

static size_t count_controls(const gr_sample *x)
{
  size_t n = 0;
  for (int32_t i = 0; i < x->n; i++) n += gr_tokenizer_is_control(vocab[0], x->ids[i]);
  return n;
}

/* Whatever a message spells, the control tokens are the template's six; and parse_special changes nothing. */
static void conversations_are_never_parsed(void **state)
{
  (void)state;
  gr_buf text = { 0 }, line = { 0 };
  for (uint64_t i = 0; i < 400; i++) {
    uint64_t hash[2];
    gr_buf_clear(&line);
    gr_buf_puts(&line, "{\"messages\": [{\"role\": \"system\", ");
    make_text(&text, 20000 + i, 6);
    quote(&line, "content", &text);
    gr_buf_puts(&line, "}, {\"role\": \"user\", ");
    make_text(&text, 30000 + i, 6);
    quote(&line, "content", &text);
    gr_buf_puts(&line, "}, {\"role\": \"assistant\", ");
    make_text(&text, 40000 + i, 6);
    gr_buf_putc(&text, 'x'); /* nothing is learned of white space alone */
    quote(&line, "content", &text);
    gr_buf_puts(&line, "}]}\n");
    for (int parse = 0; parse < 2; parse++) {
      gr_data_options o = special_options(false, parse);
      assert_ok(load_bytes("c.jsonl", line.data, line.len, &o), &at.e);
      if (!gr_dataset_count(at.d)) fail_msg("%s", gr_dataset_notes(at.d));
      const gr_data_counts *c = gr_dataset_counts(at.d);
      assert_int_equal(count_controls(gr_dataset_at(at.d, 0)), 6);
      assert_int_equal(c->events[GR_DATA_CONTROL_READ], 0);
      hash[parse] = gr_dataset_hash(at.d);
    }
    assert_true(hash[0] == hash[1]);
  }
  end_text(&text, &line);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_teardown(texts_are_spelled_once, end_load),
    cmocka_unit_test_teardown(plain_files_are_spelled_once, end_load),
    cmocka_unit_test_teardown(long_files_are_spelled_once, end_load),
    cmocka_unit_test_teardown(conversations_are_never_parsed, end_load),
  };
  return cmocka_run_group_tests_name("dataset, special tokens", tests, open_vocab, close_vocab);
}
