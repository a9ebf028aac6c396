/* Origins of rendered bytes, templates of model files, and the bytes that are trained. The templates are our own, in the manner of
 * those that models carry. */
#include "check.h"
#include "io/gguf_write.h"
#include "jsonl.h"
#include "text/chat.h"

static json_t *parse(const char *text)
{
  char *copy = strdup(text);
  assert_non_null(copy);
  for (char *c = copy; *c; c++)
    if (*c == '`') *c = '"'; /* kinder to the eye than \" */
  json_error_t je;
  json_t *json = json_loads(copy, 0, &je);
  if (!json) fail_msg("%s: %s", text, je.text);
  free(copy);
  return json;
}

static gr_template *template_of(const char *text)
{
  gr_template *t;
  gr_error e;
  assert_ok(gr_template_parse(&t, text, strlen(text), "the template", &e), &e);
  return t;
}

/* --- Origins ------------------------------------------------------------------------------------------------------------------------ */

/* The text with its runs: {template}, <0c content of message 0>, <0c! when control tokens may be in it>, <t tools>, <v variable>. */
static void describe(const gr_rendered *r, gr_buf *out)
{
  static const char fields[] = "-rcmtano"; /* role, content, (m) reasoning, tool call, arguments, name, other */
  size_t at = 0;
  for (size_t i = 0; i < r->n_runs; i++) {
    const gr_text_run *run = &r->runs[i];
    assert_int_equal(run->start, at);
    assert_true(run->end > run->start);
    at = run->end;
    if (run->origin == GR_ORIGIN_TEMPLATE) {
      assert_true(run->control);
      gr_buf_putc(out, '{');
    } else if (run->origin == GR_ORIGIN_MESSAGE) {
      gr_buf_printf(out, "<%zu%c%s ", run->message, fields[run->field], run->control ? "!" : "");
    } else {
      assert_false(run->control);
      gr_buf_printf(out, "<%c ", run->origin == GR_ORIGIN_TOOLS ? 't' : 'v');
    }
    gr_buf_append(out, r->text + run->start, run->end - run->start);
    gr_buf_putc(out, run->origin == GR_ORIGIN_TEMPLATE ? '}' : '>');
  }
  assert_int_equal(at, r->len);
  assert_int_equal(r->text[r->len], 0);
}

static const char origin_messages[] = "[{`role`: `user`, `content`: `  Hi, you `, `name`: `Bo`, `extra`: {`k`: [1, 2.5, true, null, `x`]}},"
                                      " {`role`: `assistant`, `content`: `Yes`, `reasoning`: `hm`, `tool_calls`: [{`id`: `c1`, `function`: "
                                      "{`name`: `f`, `arguments`: {`a`: `b`}}}]},"
                                      " {`role`: `im_end`, `content`: [{`type`: `text`, `text`: `a-b-c`}]}]";

static void assert_origins(const char *text, const char *expected)
{
  json_t *messages = parse(origin_messages), *tools = parse("[{`name`: `T`}]"), *variables = parse("{`v`: `V`}");
  gr_render_options o = { .tools = tools, .variables = variables, .bos_token = "<s>" };
  gr_template *t = template_of(text);
  gr_rendered r;
  gr_error e;
  gr_buf got = { 0 };
  gr_status s = gr_template_render(t, messages, &o, &r, &e);
  if (s != GR_OK) fail_msg("%s: %s", text, e.text);
  describe(&r, &got);
  if (strcmp(got.data ? got.data : "", expected)) fail_msg("%s gives %s, not %s", text, got.data, expected);
  gr_buf_free(&got);
  gr_rendered_free(&r);
  gr_template_free(t);
  json_decref(messages);
  json_decref(tools);
  json_decref(variables);
}

/* Each line prints with m, n, o the three messages and c, d their contents. */
static void origins_survive_every_operation(void **state)
{
  (void)state;
  static const struct {
    const char *expression, *expected;
  } cases[] = {
    { "'a' + c", "{a}<0c   Hi, you >" },
    { "c + d + '!'", "<0c   Hi, you ><1c Yes>{!}" },
    { "c ~ '|' ~ d ~ 1", "<0c   Hi, you >{|}<1c Yes>{1}" },
    { "c[2:4]", "<0c Hi>" },
    { "('ab' + d + 'cd')[1:4]", "{b}<1c Ye>" },
    { "('ab' + d + 'cd')[::-1]", "{dc}<1c seY>{ba}" },
    { "('ab' + d)[2]", "<1c Y>" },
    { "('ab' + d)[-1]", "<1c s>" },
    { "c|trim", "<0c Hi, you>" },
    { "(' ' + d + ' ')|trim", "<1c Yes>" },
    { "('x' + d).strip('x')", "<1c Yes>" },
    { "c.lstrip()", "<0c Hi, you >" },
    { "c.rstrip()", "<0c   Hi, you>" },
    { "c.split(',')|join('+')", "<0c   Hi>{+}<0c  you >" },
    { "c.split()|join", "<0c Hi,you>" },
    { "('a,' ~ d).split(',')[1]", "<1c Yes>" },
    { "('a,' ~ d).rsplit(',', 1)|last", "<1c Yes>" },
    { "('a\\n' ~ d).splitlines()[1]", "<1c Yes>" },
    { "d.replace('e', '<|im_end|>')", "<1c Y>{<|im_end|>}<1c s>" },
    { "'1e2'.replace('e', d)", "{1}<1c Yes>{2}" },
    { "d|replace('Y', 'y')", "{y}<1c es>" },
    { "'a_b'|replace('_', c|trim)", "{a}<0c Hi, you>{b}" },
    { "('x' ~ d)|upper", "{X}<1c YES>" },
    { "('x' ~ d).lower()", "{x}<1c yes>" },
    { "('x-' ~ d)|title", "{X-}<1c Yes>" },
    { "(d ~ 'X')|capitalize", "<1c Yes>{x}" },
    { "d.title() ~ d.capitalize()", "<1c YesYes>" },
    { "d|list|join('.')", "<1c Y>{.}<1c e>{.}<1c s>" },
    { "d|reverse", "<1c seY>" },
    { "d|first ~ d|last", "<1c Ys>" },
    { "d * 2", "<1c YesYes>" },
    { "'%s!' % d", "<1c Yes>{!}" },
    { "'%5s|'|format(d)", "{  }<1c Yes>{|}" },
    { "d|indent(2, true)", "{  }<1c Yes>" },
    { "d|e ~ ('<' ~ d)|e", "<1c Yes>{&lt;}<1c Yes>" },
    { "d.removeprefix('Y')", "<1c es>" },
    { "d|string|safe", "<1c Yes>" },
    { "d if d else 'x'", "<1c Yes>" },
    { "'' or d", "<1c Yes>" },
    { "d|default('x') ~ nothing|default(d)", "<1c YesYes>" },
    { "[d, 'x']|join(',')", "<1c Yes>{,x}" },
    { "['x', d]|map('upper')|join", "{X}<1c YES>" },
    { "[d, 'A']|sort|first ~ [d, 'z']|min ~ [d]|unique|first", "{A}<1c YesYes>" },
    { "{'k': d}.k ~ {d: 1}|list|first", "<1c YesYes>" },
    { "[d]", "{[}<1c 'Yes'>{]}" },
    { "{'k': d}", "{{'k': }<1c 'Yes'>{}}" },
    { "[d]|string", "{[}<1c 'Yes'>{]}" },
    { "d|tojson", "<1c \"Yes\">" },
    { "{'k': d, 'n': 1}|tojson", "{{\"k\": }<1c \"Yes\">{, \"n\": 1}}" },
    { "{'k': [d]}|tojson(indent=1)", "{{\n \"k\": [\n  }<1c \"Yes\">{\n ]\n}}" },
    { "m.extra|tojson", "<0o {\"k\": [1, 2.5, true, null, \"x\"]}>" },
    { "m.extra.k[0] ~ m.extra.k[1] ~ m.extra.k[2] ~ m.extra.k[3]", "<0o 12.5TrueNone>" },
    { "m.extra.k[0] + 1", "<0o 2>" },
    { "1 + m.extra.k[0]", "<0o 2>" },
    { "-m.extra.k[0] ~ m.extra.k[1]|round|int ~ m.extra.k[0]|float", "<0o -121.0>" },
    { "d|length ~ messages|length ~ d.find('e') ~ ('e' in d)", "{331True}" },
    { "m.name", "<0n Bo>" },
    { "n.reasoning ~ n.reasoning_content ~ n.thinking", "<1m hmhmhm>" },
    { "n.tool_calls[0].id ~ n.tool_calls[0].function.name", "<1t c1f>" },
    { "n.tool_calls[0].function.arguments|tojson", "<1a {\"a\": \"b\"}>" },
    { "n.tool_calls|tojson", "<1t [{\"id\": \"c1\", \"function\": {\"name\": \"f\", \"arguments\": ><1a {\"a\": \"b\"}><1t }}]>" },
    { "m|list|first", "<0o role>" },
    { "o.content[0].text", "<2c a-b-c>" },
    { "tools|tojson ~ tools[0].name", "<t [{\"name\": \"T\"}]T>" },
    { "v ~ bos_token", "<v V>{<s>}" },
    { "'<|' ~ m.role ~ '|>'", "{<|}<0r! user>{|>}" },
    { "'<|' ~ o.role ~ '|>'", "{<|}<2r im_end>{|>}" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    snprintf(text, sizeof text, "{%%- set m, n, o = messages %%}{%%- set c = m.content %%}{%%- set d = n.content %%}{{ %s }}",
             cases[i].expression);
    assert_origins(text, cases[i].expected);
  }
}

static void origins_survive_statements(void **state)
{
  (void)state;
  static const char macro[] = "{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say(messages[1].content) }}";
  assert_origins(macro, "{[}<1c Yes>{]}");
  assert_origins("{% set x %}({{ messages[1].content }}){% endset %}{{ x|upper }}", "{(}<1c YES>{)}");
  assert_origins("{% filter lower %}A{{ messages[1].content }}{% endfilter %}", "{a}<1c yes>");
  assert_origins(
      "{% set ns = namespace(t='') %}{% for m in messages[:2] %}{% set ns.t = ns.t + m.content|trim + ';' %}{% endfor %}{{ ns.t }}",
      "<0c Hi, you>{;}<1c Yes>{;}");
  assert_origins("{% for ch in messages[1].content %}{{ ch }}{{ loop.index }}{% endfor %}", "<1c Y>{1}<1c e>{2}<1c s>{3}");
  assert_origins("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}<{{ messages[1].content }}>{% endcall %}", "{<}<1c Yes>{>}");
  assert_origins("{% with x = messages[1].content %}{{ x }}{% endwith %}{% generation %}{{ v }}{% endgeneration %}", "<1c Yes><v V>");
}

static void control_stretches_join_runs(void **state)
{
  (void)state;
  json_t *messages = parse("[{`role`: `user`, `content`: `x`}]");
  gr_template *t = template_of("<|{{ messages[0].role }}|>{{ messages[0].content }}<|end|>");
  gr_rendered r;
  gr_error e;
  assert_ok(gr_template_render(t, messages, NULL, &r, &e), &e);
  assert_int_equal(r.n_runs, 5);
  assert_int_equal(gr_rendered_stretch(&r, 0), 3);
  assert_int_equal(gr_rendered_stretch(&r, 3), 4);
  assert_int_equal(gr_rendered_stretch(&r, 4), 5);
  gr_rendered_free(&r);
  gr_template_free(t);
  json_decref(messages);
}

static void tool_arguments_may_be_parsed(void **state)
{
  (void)state;
  json_t *messages = parse("[{`role`: `assistant`, `tool_calls`: [{`function`: {`name`: `f`, `arguments`: `{\\`b\\`: [1], \\`a\\`: 2.0}`}},"
                           " {`function`: {`arguments`: `not JSON`}}, {`function`: {`arguments`: `[1]`}}]}]");
  gr_template *t = template_of("{% for c in messages[0].tool_calls %}{{ c.function.arguments|tojson }};{% endfor %}");
  gr_rendered r;
  gr_error e;
  gr_render_options o = { .parse_tool_arguments = true };
  assert_ok(gr_template_render(t, messages, NULL, &r, &e), &e);
  assert_string_equal(r.text, "\"{\\\"b\\\": [1], \\\"a\\\": 2.0}\";\"not JSON\";\"[1]\";");
  gr_rendered_free(&r);
  assert_ok(gr_template_render(t, messages, &o, &r, &e), &e);
  assert_string_equal(r.text, "{\"b\": [1], \"a\": 2.0};\"not JSON\";\"[1]\";");
  assert_int_equal(r.runs[0].field, GR_FIELD_TOOL_ARGUMENTS);
  gr_rendered_free(&r);
  gr_template_free(t);
  json_decref(messages);
}

static void generation_marks_travel_with_the_text(void **state)
{
  (void)state;
  static const struct {
    const char *text, *rendered;
    size_t spans[6];
  } cases[] = {
    { "a{% generation %}bc{% endgeneration %}d", "abcd", { 1, 3 } },
    { "{% generation %}a{% endgeneration %}{% generation %}b{% endgeneration %}", "ab", { 0, 1, 1, 2 } },
    { "{% generation %}{% endgeneration %}x", "x", { 0 } },
    { "{% set x %}a{% generation %}b{% endgeneration %}{% endset %}--{{ x }}{{ x|upper }}", "--abAB", { 3, 4, 5, 6 } },
    { "{% macro m() %}a{% generation %}bb{% endgeneration %}{% endmacro %}{{ m() }}c{{ m() }}", "abbcabb", { 1, 3, 5, 7 } },
    { "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}c", "abc", { 0, 1, 1, 2 } },
    { "{% set ns = namespace() %}{% generation %}{% set y %}q{% endset %}{% set ns.y = y %}{% endgeneration %}{{ ns.y }}", "q", { 0 } },
    { "{% generation %}{% set x = 'a' ~ 'b' %}{% endgeneration %}{% generation %}{% set y %}q{% endset %}{% endgeneration %}z",
      "z",
      { 0 } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gr_template *t = template_of(cases[i].text);
    gr_rendered r;
    gr_error e;
    assert_true(gr_template_has_generation(t));
    assert_ok(gr_template_render(t, NULL, NULL, &r, &e), &e);
    assert_string_equal(r.text, cases[i].rendered);
    size_t n = 0;
    while (n < 3 && cases[i].spans[2 * n + 1]) n++;
    assert_int_equal(r.n_generation, n);
    for (size_t k = 0; k < n; k++) {
      assert_int_equal(r.generation[k].start, cases[i].spans[2 * k]);
      assert_int_equal(r.generation[k].end, cases[i].spans[2 * k + 1]);
    }
    gr_rendered_free(&r);
    gr_template_free(t);
  }
}

/* --- Templates of model files --------------------------------------------------------------------------------------------------------- */

static gr_gguf *model_with(const char *text, const char *tool_use, gr_buf *bytes)
{
  gr_gguf_writer *w;
  gr_gguf *g;
  gr_error e;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_put_string(w, "general.architecture", "llama");
  if (text) gr_gguf_put_string(w, "tokenizer.chat_template", text);
  if (tool_use) {
    gr_gguf_str names[] = { { "tool_use", 8 }, { "rag", 3 } };
    gr_gguf_put_strs(w, "tokenizer.chat_templates", names, 2);
    gr_gguf_put_string(w, "tokenizer.chat_template.tool_use", tool_use);
  }
  assert_ok(gr_gguf_writer_encode(w, bytes, &e), &e);
  gr_gguf_writer_free(w);
  assert_ok(gr_gguf_open_memory(&g, bytes->data, bytes->len, "model.gguf", &e), &e);
  return g;
}

static void assert_file_renders(const gr_gguf *g, const char *variant, bool is_builtin, const char *expected)
{
  json_t *messages = parse("[{`role`: `user`, `content`: `Hi`}]");
  gr_template *t;
  gr_rendered r;
  gr_error e;
  bool builtin;
  assert_ok(gr_template_from_gguf(&t, g, variant, &builtin, &e), &e);
  assert_int_equal(builtin, is_builtin);
  assert_ok(gr_template_render(t, messages, &(gr_render_options){ .add_generation_prompt = true }, &r, &e), &e);
  assert_string_equal(r.text, expected);
  gr_rendered_free(&r);
  gr_template_free(t);
  json_decref(messages);
}

static void templates_come_from_model_files(void **state)
{
  (void)state;
  static const char chatml[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  gr_buf bytes = { 0 };
  gr_gguf *g = model_with("one {{ messages[0].content }}", "two {{ messages[0].content }}", &bytes);
  gr_template *t;
  gr_error e;
  bool builtin;
  assert_file_renders(g, NULL, false, "one Hi");
  assert_file_renders(g, "tool_use", false, "two Hi");
  assert_int_equal(gr_template_from_gguf(&t, g, "fast", &builtin, &e), GR_ERR_USAGE);
  assert_null(t);
  assert_string_equal(e.text, "model.gguf has no chat template named 'fast'; it has: tool_use, rag");
  gr_gguf_close(g);
  g = model_with(NULL, NULL, &bytes);
  assert_file_renders(g, NULL, true, chatml);
  assert_int_equal(gr_template_from_gguf(&t, g, "fast", &builtin, &e), GR_ERR_USAGE);
  assert_string_equal(e.text, "model.gguf has no chat template named 'fast' and no other named one");
  gr_gguf_close(g);
  g = model_with("", NULL, &bytes);
  assert_file_renders(g, NULL, true, chatml);
  gr_gguf_close(g);
  g = model_with("\n{% if %}", NULL, &bytes);
  assert_int_equal(gr_template_from_gguf(&t, g, NULL, &builtin, &e), GR_ERR_FORMAT);
  assert_string_equal(e.text, "chat template, line 2: expected a value, found '%}'");
  gr_gguf_close(g);
  gr_buf_free(&bytes);
}

/* Without <|im_end|> in the vocabulary the assistant's turn ends with EOS; without either, nothing can end it. */
static void builtin_template_ends_turns_with_what_there_is(void **state)
{
  (void)state;
  static const struct {
    const char *token, *eos, *expected;
  } cases[] = {
    { "<|im_end|>", "</s>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n" },
    { "x", "</s>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes</s>\n" },
    { "x", "", NULL },
    { "x", NULL, NULL },
  };
  json_t *messages = parse("[{`role`: `user`, `content`: `Hi`}, {`role`: `assistant`, `content`: `Yes`}]");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gr_buf bytes = { 0 };
    gr_gguf *g;
    gr_gguf_writer *w;
    gr_template *t;
    gr_rendered r;
    gr_error e;
    bool builtin;
    gr_gguf_str tokens[] = { { "a", 1 }, { cases[i].token, strlen(cases[i].token) } };
    assert_ok(gr_gguf_writer_create(&w, &e), &e);
    gr_gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, 2);
    assert_ok(gr_gguf_writer_encode(w, &bytes, &e), &e);
    gr_gguf_writer_free(w);
    assert_ok(gr_gguf_open_memory(&g, bytes.data, bytes.len, "model.gguf", &e), &e);
    assert_ok(gr_template_from_gguf(&t, g, NULL, &builtin, &e), &e);
    assert_true(builtin);
    gr_status s = gr_template_render(t, messages, &(gr_render_options){ .eos_token = cases[i].eos }, &r, &e);
    if (cases[i].expected) {
      assert_ok(s, &e);
      assert_string_equal(r.text, cases[i].expected);
      static const char *const ends[] = { "<|im_end|>", "</s>" };
      gr_chat_spans spans = { 0 };
      assert_ok(gr_chat_locate(t, messages, &(gr_render_options){ .eos_token = cases[i].eos }, &r, ends, 2, &spans, &e), &e);
      assert_int_equal(spans.count, 1);
      assert_true(spans.items[0].closed);
      gr_chat_spans_free(&spans);
      gr_rendered_free(&r);
    } else {
      assert_int_equal(s, GR_ERR_MISMATCH);
      assert_non_null(strstr(e.text, "neither <|im_end|> nor EOS"));
    }
    gr_template_free(t);
    gr_gguf_close(g);
    gr_buf_free(&bytes);
  }
  json_decref(messages);
}

static void messages_must_be_objects(void **state)
{
  (void)state;
  static const char *const bad[] = { "{}", "[1]", "[{}, `x`]" };
  gr_template *t = template_of("{{ messages }}");
  for (size_t i = 0; i < 3; i++) {
    json_t *messages = parse(bad[i]);
    gr_rendered r;
    gr_error e;
    assert_int_equal(gr_template_render(t, messages, NULL, &r, &e), GR_ERR_FORMAT);
    assert_non_null(strstr(e.text, "object"));
    assert_null(r.text);
    json_decref(messages);
  }
  gr_template_free(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(origins_survive_every_operation),
    cmocka_unit_test(origins_survive_statements),
    cmocka_unit_test(control_stretches_join_runs),
    cmocka_unit_test(tool_arguments_may_be_parsed),
    cmocka_unit_test(generation_marks_travel_with_the_text),
    cmocka_unit_test(templates_come_from_model_files),
    cmocka_unit_test(builtin_template_ends_turns_with_what_there_is),
    cmocka_unit_test(messages_must_be_objects),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
