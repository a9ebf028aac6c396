/* Records of every form to weighted tokens: which tokens are trained, what is refused and in which words, what is counted. The
 * vocabulary is that of the embedded model; its template writes ChatML and knows no tools. */
#include "dataset_load.h"

/* ---- forms ---- */

static const struct {
  const char *name, *text;
  gr_data_format format;
  const char *first, *second;
} forms[] = {
  { "messages.jsonl",
    "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":"
    "\"yo\"}]}\n"
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
    "{\"role\":\"assistant\",\"content\":\"d\"}]}\n",
    GR_DATA_MESSAGES, S("be") U("hi") A("yo"), U("a") A("b") U("c") A("d") },
  { "prompt.jsonl", "{\"prompt\":\"hi\",\"completion\":\"yo\"}\n{\"prompt\":\"p\",\"response\":\"r\",\"system\":\"s\"}", GR_DATA_PROMPT,
    U("hi") A("yo"), S("s") U("p") A("r") },
  { "turns.json",
    "[{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}],"
    "\"completion\":[{\"role\":\"assistant\",\"content\":\"d\"}]}]",
    GR_DATA_PROMPT, U("a") "<|im_start|>assistant\nb<|im_end|>\n" U("c") A("d"), NULL },
  { "qa.jsonl", "{\"question\":\"hi\",\"answer\":\"yo\"}\n{\"answer\":12,\"question\":1.10}", GR_DATA_QA, U("hi") A("yo"),
    U("1.1") A("12") },
  { "alpaca.json",
    "[{\"instruction\":\"do\",\"input\":\"this\",\"output\":\"done\"},\n{\"instruction\":\"do\",\"input\":\"\",\"response\":\"ok\"}]",
    GR_DATA_ALPACA, U("do\n\nthis") A("done"), U("do") A("ok") },
  { "sharegpt.json",
    "{\n \"conversations\": [\n {\"from\":\"system\",\"value\":\"s\"},\n {\"from\":\"human\",\"value\":\"hi\"},\n "
    "{\"from\":\"gpt\",\"value\":\"yo\"}]\n}\n",
    GR_DATA_SHAREGPT, S("s") U("hi") A("yo"), NULL },
  { "roles.jsonl", "{\"conversations\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"}]}",
    GR_DATA_MESSAGES, U("hi") A("yo"), NULL },
  { "bare.jsonl",
    "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"}]\n[{\"role\":\"user\",\"content\":\"a\"},{"
    "\"role\":\"assistant\",\"content\":\"b\"}]\n",
    GR_DATA_MESSAGES, U("hi") A("yo"), U("a") A("b") },
  { "keys.jsonl",
    "{\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n"
    "{\"system\":\"s\",\"messages\":[{\"role\":\"system\",\"content\":\"own\"},{\"role\":\"human\",\"content\":\"a\"},{\"role\":\"gpt\","
    "\"content\":\"b\"}]}",
    GR_DATA_MESSAGES, S("s") U("a") A("b"), S("own") U("a") A("b") },
  { "history.jsonl",
    "{\"instruction\":\"c\",\"output\":\"d\",\"system_prompt\":\"s\",\"history\":[[\"a\",\"b\"]]}\n"
    "{\"instruction\":\"c\",\"output\":\"d\",\"history\":[]}",
    GR_DATA_ALPACA, S("s") U("a") A("b") U("c") A("d"), U("c") A("d") },
  { "turns_system.jsonl", "{\"system\":\"s\",\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":\"b\"}", GR_DATA_PROMPT,
    S("s") U("a") A("b"), NULL },
  { "text.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}", GR_DATA_TEXT, "one<|im_end|>", "two<|im_end|>" },
  { "plain.txt", "one two", GR_DATA_PLAIN, "one two", NULL },
  { "bracket.txt", "[INST] one", GR_DATA_PLAIN, "[INST] one", NULL },
};

/* All tokens but the first, which nothing predicts. */
static void assert_all_trained(size_t i, const char *text)
{
  const gr_sample *x = gr_dataset_at(at.d, i);
  gr_buf all = { 0 };
  assert_ok(gr_tokenizer_decode(at.tokenizer, x->ids, (size_t)x->n, GR_DECODE_CONTROL, &all, &at.e), &at.e);
  assert_string_equal(all.data, text);
  for (int32_t k = 0; k < x->n; k++) assert_true((x->weights[k] > 0) == (k > 0));
  gr_buf_free(&all);
}

static void every_form(void **state)
{
  (void)state;
  gr_data_options o = options();
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    load_ok(forms[i].name, forms[i].text, &o);
    assert_int_equal(gr_dataset_format(at.d), forms[i].format);
    assert_int_equal(gr_dataset_count(at.d), forms[i].second ? 2 : 1);
    bool bare = forms[i].format == GR_DATA_PLAIN || forms[i].format == GR_DATA_TEXT;
    for (size_t k = 0; k < gr_dataset_count(at.d); k++) {
      const char *is = k ? forms[i].second : forms[i].first;
      if (bare) assert_all_trained(k, is);
      else assert_string_equal(marked(k), is);
    }
    char said[80];
    snprintf(said, sizeof said, "format %s (found out)", gr_data_format_name(forms[i].format));
    assert_non_null(strstr(gr_dataset_notes(at.d), said));
    if (gr_dataset_counts(at.d)->conversations) assert_ok(gr_dataset_check(at.d, &at.e), &at.e);
  }
}

static void a_form_is_forced(void **state)
{
  (void)state;
  gr_data_options o = options();
  const char *both = "{\"text\":\"t\",\"question\":\"q\",\"answer\":\"a\"}";
  load_ok("both.jsonl", both, &o);
  assert_int_equal(gr_dataset_format(at.d), GR_DATA_QA);
  o.format = GR_DATA_TEXT;
  load_ok("both.jsonl", both, &o);
  assert_all_trained(0, "t<|im_end|>");
  assert_non_null(strstr(gr_dataset_notes(at.d), "format text (as told)"));
  o.format = GR_DATA_ALPACA;
  assert_int_equal(load("both.jsonl", both, &o), GR_ERR_FORMAT);
  assert_non_null(strstr(at.e.text, "both.jsonl:1: the key \"instruction\" is missing"));
  o.format = GR_DATA_PLAIN;
  load_ok("both.jsonl", both, &o);
  assert_int_equal(gr_dataset_format(at.d), GR_DATA_PLAIN);
}

/* What a record says under keys of no form is counted, its first names are kept; ids and the like are not spoken of. */
static void keys_that_nothing_reads(void **state)
{
  (void)state;
  gr_data_options o = options();
  load_ok("keys.jsonl",
          "{\"question\":\"q\",\"answer\":\"a\",\"id\":1,\"prompt_id\":\"x\",\"source\":\"s\",\"note\":null,\"hint\":\" "
          "\",\"list\":[],\"tools\":{}}\n"
          "{\"question\":\"q\",\"answer\":\"b\",\"output\":\"c\",\"hint\":\"h\"}\n"
          "{\"question\":\"q\",\"answer\":\"d\",\"hint\":\"h\",\"line\\nend\":1}\n",
          &o);
  assert_int_equal(count(GR_DATA_UNREAD_KEYS), 2);
  const char *says = "2 records have keys that nothing reads: \"output\", \"hint\", \"line\\nend\"; the first: ";
  if (!strstr(gr_dataset_notes(at.d), says)) fail_msg("%s", gr_dataset_notes(at.d));
  load_ok("keys.jsonl",
          "{\"question\":\"q\",\"answer\":\"a\",\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1}", &o);
  assert_non_null(strstr(gr_dataset_notes(at.d), "\"h\", ...; the first"));
  load_ok("two.jsonl",
          "{\"system\":\"s\",\"messages\":[{\"role\":\"system\",\"content\":\"t\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
          "\"assistant\","
          "\"content\":\"b\"}]}\n"
          "{\"system\":\"s\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
          "\"assistant\","
          "\"content\":\"b\"}]}",
          &o);
  assert_int_equal(count(GR_DATA_SYSTEM_TWICE), 1);
  assert_int_equal(count(GR_DATA_UNREAD_KEYS), 0);
}

/* A role that the template names is the template's affair. */
static void roles_that_the_template_names(void **state)
{
  (void)state;
  static const char text[] =
      "{% for m in messages %}{% if m.role == 'judge' %}<|im_start|>judge\n{% else %}<|im_start|>{{ m.role }}\n{% endif %}{{ m.content "
      "}}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const char *data = "{\"messages\":[{\"role\":\"judge\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"a\"}]}\n"
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"a\"}]}\n";
  gr_data_options o = options();
  gr_template *chat;
  load_ok("roles.jsonl", data, &o);
  assert_int_equal(count(GR_DATA_REFUSED), 1);
  assert_ok(gr_template_parse(&chat, text, strlen(text), "template", &at.e), &at.e);
  o.chat_template = chat;
  load_ok("roles.jsonl", data, &o);
  assert_int_equal(count(GR_DATA_REFUSED), 0);
  assert_string_equal(marked(0), "<|im_start|>judge\nx<|im_end|>\n" A("a"));
  gr_template_free(chat);
}

/* What is in a record and is not a clean string. */
static void odd_content(void **state)
{
  (void)state;
  gr_data_options o = options();
  static const struct {
    const char *text, *is;
  } cases[] = {
    { "\xef\xbb\xbf{\"question\":\"q\",\"answer\":\"a\"}", U("q") A("a") },
    { "\r\n \r\n{\"question\":\"q\",\"answer\":\"a\"}\r\n\r\n", U("q") A("a") },
    { "{\"question\":\"q\",\"answer\":\"\\ud83d\\ude00\\uD83D\\udE00\"}", U("q") A("\xf0\x9f\x98\x80\xf0\x9f\x98\x80") },
    { "{\"question\":\"\\ud83d x\",\"answer\":\"\\udc00\\ud800\"}", U("\xef\xbf\xbd x") A("\xef\xbf\xbd\xef\xbf\xbd") },
    { "{\"question\":\"\\\\ud83d\",\"answer\":\"a\",\"n\":1e999}", U("\\ud83d") A("a") },
    { "{\"question\":123456789012345678901234567890,\"answer\":-1e9999,\"n\":\"1e999\"}",
      U("123456789012345678901234567890") A("-1e9999") },
    { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\" b\"]},{\"role\":\"assistant\",\"content\":7}]}",
      U("a b") A("7") },
    { "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}],\"tools\":null,\"weight\":null}",
      U("q") A("a") },
    { "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null},{\"role\":\"user\",\"content\":\"r\"}"
      ",{\"role\":\"assistant\",\"content\":\"a\"}]}",
      U("q") A("") U("r") A("a") },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    load_ok("odd.jsonl", cases[i].text, &o);
    assert_string_equal(marked(0), cases[i].is);
    assert_int_equal(count(GR_DATA_SURROGATES), i == 3);
    assert_int_equal(count(GR_DATA_BIG_NUMBERS), i == 4 || i == 5);
    assert_int_equal(count(GR_DATA_EMPTY_TURNS), i == 8);
  }
}

/* A NUL in a string does not end it; the bytes are compared, since a C string would hide what is behind it. */
static void nul_in_a_string(void **state)
{
  (void)state;
  gr_data_options o = options();
  static const char *const texts[] = {
    "{\"question\":\"a\\u0000b\",\"answer\":\"c\\u0000d\"}", "{\"instruction\":\"a\\u0000b\",\"input\":\"x\",\"output\":\"c\\u0000d\"}",
    "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\\u0000b\"},{\"from\":\"gpt\",\"value\":\"c\\u0000d\"}]}",
    "{\"text\":\"a\\u0000bc\\u0000d\"}"
  };
  for (size_t i = 0; i < 4; i++) {
    gr_buf all = { 0 };
    load_ok("nul.jsonl", texts[i], &o);
    const gr_sample *x = gr_dataset_at(at.d, 0);
    assert_ok(gr_tokenizer_decode(at.tokenizer, x->ids, (size_t)x->n, 0, &all, &at.e), &at.e);
    bool question = false, answer = false;
    for (size_t k = 0; k + 3 <= all.len; k++) {
      question = question || memcmp(all.data + k, "a\0b", 3) == 0;
      answer = answer || memcmp(all.data + k, "c\0d", 3) == 0;
    }
    assert_true(question && answer);
    gr_buf_free(&all);
  }
}

/* ---- refusals ---- */

static const struct {
  const char *text, *says;
} faults[] = {
  { "", "f.jsonl is empty" },
  { " \n\r\n\t", "f.jsonl is empty" },
  { "[]", "f.jsonl is empty" },
  { "{\"question\":\"q\",\"answer\":\"a\"}\n{\"question\":\"q\"", "f.jsonl:2: the file ends inside this record" },
  { "{\"question\":\"q\",\"answer\":\"a", "f.jsonl:1: the file ends inside this record" },
  { "{\"question\":\"q\",\"answer\":\"a\n", "f.jsonl:1: the file ends inside this record" },
  { "{\"question\":\"q\",\"answer\":\"a\"}\n{\"question\":\"q\",\n", "f.jsonl:2: the file ends inside this record" },
  { "{\"question\":\"q\"\n{\"question\":\"q\",\"answer\":\"a\"}\n",
    "f.jsonl:1: the line ends inside this record, which was cut off: complete it, or leave it out" },
  { "{\"question\":\"q\",\"answer\":\"a\n\n{\"question\":\"q\",\"answer\":\"a\"}\n", "f.jsonl:1: the line ends inside this record" },
  { "[{\"question\":\"q\",\"answer\":\"a\n{\"question\":\"q\",\"answer\":\"a\"},\n{\"question\":\"q\",\"answer\":\"a\"}]",
    "f.jsonl:1: the line ends inside this record" },
  { "[{\"question\":\"q\",\"answer\":\n{\"question\":\"q\",\"answer\":\"a\"}]", "f.jsonl:2: not JSON" },
  { "{\"question\":\"q\",\"answer\":\"a\"}\n{\"messages\":[\n{\"role\":\"user\",\"content\":\"x\"},\n{\"role\":\"assistant\",\"content\":"
    "\"y\"}\n"
    "]}\n",
    "f.jsonl:2: a record is spread over several lines" },
  { "{\"question\":\"q\",\"answer\":\"a\"}\n{\"messages\":[\n{\"role\":\"assistant\",\"content\":\"y\"}\n]}\n",
    "f.jsonl:2: a record is spread over several lines" },
  { "{\"question\":\"q\",\"answer\":\"a\"}\n{\"messages\":\n{\"role\":[\n", "f.jsonl:2: a record is spread over several lines" },
  { "{\"question\":\"q\",\"answer\":\"a\"}\n{\n\"question\":\"q\",\n\"answer\":\"a\"}",
    "f.jsonl:2: a record is spread over several lines" },
  { "{\n\"question\":\"q\",\n\"answer\":\"a\"}\n{\"question\":\"q\",\"answer\":\"a\"}", "jq -c" },
  { "{\"question\":\"q\nr\",\"answer\":\"a\"}", "f.jsonl:1: a string runs over the end of its line" },
  { "[{\"question\":\"q\",\n\"answer\":\"a\nb\"}]", "f.jsonl:2: a string runs over the end of its line" },
  { "{\"question\":\"q\",\"answer\":\"a\"} {\"question\":\"q\",\"answer\":\"a\"}", "f.jsonl:1: something follows the record" },
  { "{\"question\":\"q\",\"answer\":\"a\"},\n", "f.jsonl:1: something follows the record" },
  { "[{\"question\":\"q\",\"answer\":\"a\"}\n{\"question\":\"q\",\"answer\":\"a\"}]", "f.jsonl:2: a comma or ] is missing" },
  { "[{\"question\":\"q\",\"answer\":\"a\"},", "f.jsonl:1: the file ends inside the list" },
  { "[{\"question\":\"q\",\"answer\":\"a\"}", "f.jsonl:1: the file ends inside the list" },
  { "[{\"question\":\"q\",\"answer\":\"a\"}]\nx", "f.jsonl:2: something follows the list" },
  { "\n\n{\"question\":\"q\",\"answer\":tru}", "f.jsonl:3: not JSON (column 28" },
  { "{\"question\":\"q\",\"answer\":\"a\"]", "f.jsonl:1: not JSON" },
  { "[{\"question\":\"q\",\"answer\":\"a\"},\n{\"question\":\"q\",\n\"answer\":\"a\",}]", "f.jsonl:3: not JSON" },
  { "hello", "f.jsonl:1: not JSON" },
  { "{\"question\":\"\xff\",\"answer\":\"a\"}", "f.jsonl:1: not JSON" },
  { "{\"question\":\"q\",\"answer\":\"a\",\"weight\":NaN}", "f.jsonl:1: NaN and Infinity are not JSON" },
  { "{\"question\":\"q\",\"answer\":\"a\",\"n\":-Infinity}", "f.jsonl:1: NaN and Infinity are not JSON" },
  { "{\"question\":\"q\",\"answer\":\"a\",\"weight\":1e999}", "f.jsonl:1: \"weight\" must be a number" },
  { "{\"question\":\"q\",\"answer\":\"a\",\"weight\":-1}", "f.jsonl:1: \"weight\" must be a number" },
  { "{\"question\":\"q\",\"answer\":\"a\",\"train\":1}", "f.jsonl:1: \"train\" must be true or false" },
  { "7\n", "f.jsonl:1: a record must be a JSON object" },
  { "[7]\n", "f.jsonl:1: a record must be a JSON object" },
  { "{\"foo\":1}", "f.jsonl:1: the record has none of the keys" },
  { "{\"prompt\":\"q\",\"chosen\":\"a\",\"rejected\":\"b\"}", "f.jsonl:1: this is preference data" },
  { "{\"chosen\":[],\"rejected\":[]}", "f.jsonl:1: this is preference data" },
  { "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"}],\"chosen\":{},\"rejected\":{}}", "f.jsonl:1: this is preference data" },
  { "{\"question\":\"q\"}", "f.jsonl:1: the key \"answer\" is missing" },
  { "{\"question\":null,\"answer\":\"a\"}", "f.jsonl:1: the key \"question\" is missing" },
  { "{\"question\":{},\"answer\":\"a\"}", "f.jsonl:1: \"question\" must be text" },
  { "{\"instruction\":[],\"output\":\"a\"}", "f.jsonl:1: \"instruction\" must be text" },
  { "{\"instruction\":\"i\",\"input\":{},\"output\":\"a\"}", "f.jsonl:1: \"input\" must be text" },
  { "{\"instruction\":\"i\",\"output\":\"o\",\"history\":[[\"a\"]]}", "f.jsonl:1: \"history\" must be a list of earlier turns" },
  { "{\"messages\":[{\"role\":\"moderator\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"a\"}]}",
    "f.jsonl: nothing is left to learn; line 1: message 1 has the role 'moderator', which is not one of system, developer, user" },
  { "{\"text\":[]}", "f.jsonl:1: \"text\" must be text" },
  { "{\"messages\":7}", "f.jsonl:1: \"messages\" must be a list" },
  { "{\"messages\":[7]}", "f.jsonl:1: message 1 is not an object" },
  { "{\"messages\":[{\"content\":\"x\"}]}", "f.jsonl:1: message 1 has no \"role\"" },
  { "{\"messages\":[{\"role\":\"user\"}]}", "f.jsonl:1: message 1 has no \"content\"" },
  { "{\"messages\":[{\"role\":\"user\",\"content\":true}]}", "f.jsonl:1: the \"content\" of message 1 must be text" },
  { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
    "part 1 of message 1 is not text but of type image_url" },
  { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"weight\":\"1\"}]}", "f.jsonl:1: message 1: \"weight\" must be" },
  { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":7}]}", "f.jsonl:1: \"tool_calls\" of message 1 must be a list" },
  { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "tool call 1 of message 1 does not name its function" },
  { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}],\"tools\":\"x\"}", "f.jsonl:1: \"tools\" must be a list" },
  { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}],\"tools\":[1]}", "f.jsonl:1: tool 1 in \"tools\" is not an object" },
  { "{\"conversations\":[{\"value\":\"x\"}]}", "f.jsonl:1: message 1 does not say who speaks" },
  { "{\"conversations\":[{\"from\":\"wizard\",\"value\":\"x\"}]}", "f.jsonl:1: message 1 is from 'wizard'" },
  { "{\"conversations\":[{\"from\":\"gpt\"}]}", "f.jsonl:1: message 1 has no \"value\"" },
  { "{\"question\":\"q\",\"answer\":\"\"}", "f.jsonl holds nothing to learn" },
  { "{\"question\":\"q\",\"answer\":\"  \"}", "f.jsonl holds nothing to learn" },
  { "{\"question\":\"q\",\"answer\":\"a\",\"weight\":0}", "f.jsonl holds nothing to learn" },
  { "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "f.jsonl holds nothing to learn" },
  { "{\"messages\":[]}", "f.jsonl holds nothing to learn" },
};

static void refusals_name_file_and_line(void **state)
{
  (void)state;
  gr_data_options o = options();
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    assert_int_equal(load("f.jsonl", faults[i].text, &o), GR_ERR_FORMAT);
    if (!strstr(at.e.text, faults[i].says)) fail_msg("%s\n  says: %s\n  not: %s", faults[i].text, at.e.text, faults[i].says);
    const char *once = strstr(at.e.text, "f.jsonl");
    assert_non_null(once);
    assert_null(strstr(once + 1, "f.jsonl"));
    assert_null(strchr(at.e.text, '\n'));
  }
}

static void encodings_that_are_not_utf8(void **state)
{
  (void)state;
  gr_data_options o = options();
  static const char json[] = "{\"question\":\"q\",\"answer\":\"a\"}\n";
  for (int big = 0; big < 2; big++)
    for (int mark = 0; mark < 2; mark++) {
      unsigned char wide[2 * sizeof json + 2] = { big ? 0xfe : 0xff, big ? 0xff : 0xfe };
      for (size_t i = 0; i < sizeof json - 1; i++) {
        wide[2 + 2 * i + big] = (unsigned char)json[i];
        wide[3 + 2 * i - big] = 0;
      }
      assert_int_equal(load_bytes("f.jsonl", wide + (mark ? 0 : 2), 2 * (sizeof json - 1) + (mark ? 2 : 0), &o), GR_ERR_FORMAT);
      assert_non_null(strstr(at.e.text, "is UTF-16: save it as UTF-8"));
    }
  for (int mark = 0; mark < 2; mark++) { /* no bytes, and a mark before no bytes */
    assert_int_equal(load("f.txt", mark ? "\xef\xbb\xbf" : "", &o), GR_ERR_FORMAT);
    assert_non_null(strstr(at.e.text, "f.txt is empty"));
  }
  assert_int_equal(load_bytes("f.txt", "GGUF\3\0\0\0model", 13, &o), GR_ERR_FORMAT);
  assert_non_null(strstr(at.e.text, "NUL"));
  assert_int_equal(load("f.bin", "caf\xe9 is Latin-1", &o), GR_ERR_FORMAT);
  assert_non_null(strstr(at.e.text, "neither JSON nor UTF-8"));
  o.format = GR_DATA_PLAIN;
  assert_int_equal(load("f.bin", "caf\xe9 is Latin-1", &o), GR_OK);
  assert_int_equal(gr_dataset_add(&at.d, "/nonexistent/x.jsonl", &o, &at.e), GR_ERR_IO);
}

/* Unless the text of one is what was asked for. */
static void tables_and_archives(void **state)
{
  (void)state;
  static const char *const names[][2] = { { "t.csv", "t.csv is a table (.csv), which Graft does not read: convert it to JSONL" },
                                          { "t.TSV", "t.TSV is a table (.tsv)" },
                                          { "t.parquet", "t.parquet is a table" },
                                          { "t.xlsx", "t.xlsx is a table" },
                                          { "t.jsonl.gz", "t.jsonl.gz is packed (.gz): unpack it first" } };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    gr_data_options o = options();
    assert_int_equal(load(names[i][0], "question,answer\nq,a\n", &o), GR_ERR_FORMAT);
    if (!strstr(at.e.text, names[i][1])) fail_msg("%s says: %s", names[i][0], at.e.text);
    o.format = GR_DATA_PLAIN;
    load_ok(names[i][0], "question,answer\nq,a\n", &o);
  }
  gr_data_options o = options();
  load_ok("both.jsonl", "{\"prompt\":\"q\",\"completion\":\"a\",\"chosen\":\"a\",\"rejected\":\"b\"}", &o);
  assert_string_equal(marked(0), U("q") A("a"));
}

static void deep_nesting_is_no_stack_overflow(void **state)
{
  (void)state;
  gr_data_options o = options();
  enum { DEPTH = 200000 };
  for (int form = 0; form < 3; form++) {
    gr_buf text = { 0 };
    gr_buf_puts(&text, form == 1 ? "[" : form == 2 ? "{\"messages\":" : "{\"question\":\"q\",\"answer\":\"a\",\"x\":");
    for (int i = 0; i < DEPTH; i++) gr_buf_putc(&text, '[');
    for (int i = 0; i < DEPTH; i++) gr_buf_putc(&text, ']');
    gr_buf_puts(&text, form == 1 ? "]" : "}");
    assert_int_equal(load_bytes("deep.jsonl", text.data, text.len, &o), GR_ERR_FORMAT);
    assert_non_null(strstr(at.e.text, "deep.jsonl:1: not JSON"));
    assert_non_null(strstr(at.e.text, "depth"));
    assert_int_equal(load_bytes("deep.jsonl", text.data, DEPTH, &o), GR_ERR_FORMAT); /* never closed */
    gr_buf_free(&text);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_teardown(every_form, end_load),
    cmocka_unit_test_teardown(a_form_is_forced, end_load),
    cmocka_unit_test_teardown(keys_that_nothing_reads, end_load),
    cmocka_unit_test_teardown(roles_that_the_template_names, end_load),
    cmocka_unit_test_teardown(odd_content, end_load),
    cmocka_unit_test_teardown(nul_in_a_string, end_load),
    cmocka_unit_test_teardown(refusals_name_file_and_line, end_load),
    cmocka_unit_test_teardown(encodings_that_are_not_utf8, end_load),
    cmocka_unit_test_teardown(tables_and_archives, end_load),
    cmocka_unit_test_teardown(deep_nesting_is_no_stack_overflow, end_load),
  };
  return cmocka_run_group_tests_name("dataset", tests, set_up, tear_down);
}
