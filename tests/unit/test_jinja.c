/* The Jinja engine: recorded answers of Jinja2 itself (tests/golden/jinja.jsonl, by tools/judge_jinja.py), recorded renderings of
 * others' templates where the shared data is, errors, limits and the sandbox. */
#include "check.h"
#include "io/gguf.h"
#include "jsonl.h"
#include "text/chat.h"

enum { CLOCK = 1752105600 }; /* 2025-07-10 */

static const gr_render_options plain = { .now = CLOCK };

/* Renders without messages; *r is empty when that fails. */
static gr_status render(const char *text, const gr_render_options *o, gr_rendered *r, gr_error *e)
{
  gr_template *t;
  *r = (gr_rendered){ 0 };
  *e = (gr_error){ 0 };
  gr_status s = gr_template_parse(&t, text, strlen(text), "template", e);
  if (s == GR_OK) s = gr_template_render(t, NULL, o, r, e);
  gr_template_free(t);
  return s;
}

/* expected: a string, or null for "must fail". */
static void assert_renders(const char *text, const gr_render_options *o, const json_t *expected)
{
  gr_rendered r;
  gr_error e;
  gr_status s = render(text, o, &r, &e);
  if (json_is_null(expected)) {
    if (s == GR_OK) fail_msg("%s renders \"%s\", but it must fail", text, r.text);
    assert_non_null(strstr(e.text, "template, line "));
    assert_int_equal(e.status, s);
  } else {
    if (s != GR_OK) fail_msg("%s: %s", text, e.text);
    if (r.len != json_string_length(expected) || memcmp(r.text, json_string_value(expected), r.len))
      fail_msg("%s renders \"%s\", not \"%s\"", text, r.text, json_string_value(expected));
  }
  gr_rendered_free(&r);
}

/* --- Recorded answers -------------------------------------------------------------------------------------------------------------- */

static json_t *context;

static void golden_line(const json_t *line)
{
  if (!context) {
    context = json_incref(json_object_get(line, "context"));
    return;
  }
  gr_render_options o = plain;
  o.variables = context;
  assert_renders(json_string_value(json_object_get(line, "template")), &o, json_object_get(line, "text"));
}

static void answers_as_jinja2_does(void **state)
{
  (void)state;
  assert_true(jsonl_each(GR_SOURCE_DIR "/tests/golden/jinja.jsonl", golden_line) > 800);
  json_decref(context);
  context = NULL;
}

static void language_line(const json_t *line)
{
  gr_render_options o = plain;
  o.variables = json_object_get(line, "context");
  assert_renders(json_string_value(json_object_get(line, "template")), &o, json_object_get(line, "target"));
}

static void renders_small_programs_of_others(void **state)
{
  (void)state;
  require_shared();
  assert_int_equal(jsonl_each(SHARED_DATA "templates/hfjs-jinja-language.jsonl", language_line), 49);
}

static void whole_template_line(const json_t *line)
{
  gr_render_options o = plain;
  o.variables = json_object_get(line, "data");
  /* Where Jinja2 differs, the record is of an engine that prints lists as JSON. */
  o.json_containers = json_is_false(json_object_get(line, "jinja2_3.1.2_agrees"));
  assert_renders(json_string_value(json_object_get(line, "chat_template")), &o, json_object_get(line, "target"));
}

static void renders_whole_templates_of_others(void **state)
{
  (void)state;
  require_shared();
  assert_int_equal(jsonl_each(SHARED_DATA "templates/hfjs-e2e.jsonl", whole_template_line), 23);
}

static json_t *conversations;

/* The special tokens of the tokenizer that each template belongs to. */
static void set_tokens(gr_render_options *o, const char *name)
{
  static const char *const tokens[][3] = { { "trl-gemma3", "<bos>", "<eos>" },
                                           { "trl-llama3_2", "<|begin_of_text|>", "<|eot_id|>" },
                                           { "trl-phi3", "<s>", "<|endoftext|>" },
                                           { "trl-qwen", NULL, "<|im_end|>" } };
  for (size_t i = 0; i < 4; i++) {
    if (strncmp(name, tokens[i][0], strlen(tokens[i][0]))) continue;
    o->bos_token = tokens[i][1];
    o->eos_token = tokens[i][2];
    return;
  }
  fail_msg("no special tokens are known for the template %s", name);
}

static gr_template *open_template(const char *name)
{
  char path[512], *text;
  size_t n;
  gr_error e;
  gr_template *t;
  snprintf(path, sizeof path, SHARED_DATA "templates/jinja/%s.jinja", name);
  assert_ok(gr_file_read(path, 1 << 20, &text, &n, &e), &e);
  assert_ok(gr_template_parse(&t, text, n, name, &e), &e);
  gr_free(text);
  return t;
}

static void conversation_line(const json_t *line)
{
  const char *name = json_string_value(json_object_get(line, "template")), *which = json_string_value(json_object_get(line, "case"));
  const json_t *c = json_object_get(conversations, which), *text = json_object_get(line, "text");
  const json_t *spans = json_object_get(line, "train_byte_spans");
  gr_render_options o = plain;
  o.tools = json_object_get(c, "tools");
  o.add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt"));
  set_tokens(&o, name);
  gr_template *t = open_template(name);
  gr_rendered r;
  gr_error e;
  gr_status s = gr_template_render(t, json_object_get(c, "messages"), &o, &r, &e);
  if (!text) {
    assert_non_null(json_object_get(line, "error"));
    if (s == GR_OK) fail_msg("%s with %s must fail", name, which);
    assert_non_null(strstr(e.text, ", line "));
  } else {
    if (s != GR_OK) fail_msg("%s with %s: %s", name, which, e.text);
    assert_string_equal(r.text, json_string_value(text));
    assert_int_equal(r.len, json_string_length(text));
    assert_int_equal(r.n_generation, json_array_size(spans));
    for (size_t i = 0; i < r.n_generation; i++) {
      const json_t *span = json_array_get(spans, i);
      assert_int_equal(r.generation[i].start, json_integer_value(json_array_get(span, 0)));
      assert_int_equal(r.generation[i].end, json_integer_value(json_array_get(span, 1)));
    }
  }
  gr_rendered_free(&r);
  gr_template_free(t);
}

static void renders_conversations_as_recorded(void **state)
{
  (void)state;
  require_shared();
  conversations = json_load_file(SHARED_DATA "templates/conversations.json", 0, NULL);
  assert_non_null(conversations);
  assert_int_equal(jsonl_each(SHARED_DATA "templates/golden-render.jsonl", conversation_line), 154);
  json_decref(conversations);
}

/* Templates without a recorded rendering: each takes a plain exchange, and what was said is in the text. */
static void family_line(const json_t *line)
{
  json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"QUESTION\"},{\"role\":\"assistant\",\"content\":\"ANSWER\"}]", 0, NULL);
  gr_render_options o = plain;
  o.bos_token = "<s>";
  o.eos_token = "</s>";
  const json_t *text = json_object_iter_value(json_object_iter((json_t *)(uintptr_t)line));
  gr_template *t;
  gr_rendered r;
  gr_error e;
  assert_ok(gr_template_parse(&t, json_string_value(text), json_string_length(text), "family", &e), &e);
  assert_ok(gr_template_render(t, messages, &o, &r, &e), &e);
  const char *question = strstr(r.text, "QUESTION"), *answer = strstr(r.text, "ANSWER");
  assert_true(question && answer && question < answer);
  gr_rendered_free(&r);
  gr_template_free(t);
  json_decref(messages);
}

static void takes_the_templates_of_many_families(void **state)
{
  (void)state;
  require_shared();
  assert_int_equal(jsonl_each(SHARED_DATA "templates/ollama-family-templates.jsonl", family_line), 35);
}

/* --- Our own rules ------------------------------------------------------------------------------------------------------------------ */

static void clocks_and_options(void **state)
{
  (void)state;
  static const struct {
    int64_t now;
    const char *text;
  } dates[] = { { 0, "1970-01-01 Thu 001 00:00:00" },          { -1, "1969-12-31 Wed 365 23:59:59" },
                { 951782400, "2000-02-29 Tue 060 00:00:00" },  { 951868800, "2000-03-01 Wed 061 00:00:00" },
                { 1709164800, "2024-02-29 Thu 060 00:00:00" }, { 4107542399, "2100-02-28 Sun 059 23:59:59" },
                { 4107542400, "2100-03-01 Mon 060 00:00:00" }, { -62135596800, "1-01-01 Mon 001 00:00:00" },
                { -62162035201, "0-02-29 Tue 060 23:59:59" } };
  for (size_t i = 0; i < sizeof dates / sizeof *dates; i++) {
    gr_render_options o = { .now = dates[i].now };
    json_t *expected = json_string(dates[i].text);
    assert_renders("{{ strftime_now('%F %a %j %T') }}", &o, expected);
    json_decref(expected);
  }
  json_t *variables = json_loads("{\"l\": [1, \"a\", null, {\"k\": true}], \"tools\": 7}", 0, NULL);
  gr_render_options o = { .variables = variables, .bos_token = "<s>", .add_generation_prompt = true, .json_containers = true };
  json_t *expected = json_string("[1, \"a\", null, {\"k\": true}] [1, \"a\", null, {\"k\": true}] 7 <s>  True None");
  assert_renders("{{ l }} {{ l|string }} {{ tools }} {{ bos_token }} {{ eos_token }} {{ add_generation_prompt }} {{ documents }}", &o,
                 expected);
  json_decref(expected);
  json_decref(variables);
}

static void errors_name_the_line(void **state)
{
  (void)state;
  static const struct {
    const char *text, *says;
    gr_status status;
  } cases[] = {
    { "a\nb\n{% if x %}", "template, line 3: 'if' is never closed", GR_ERR_FORMAT },
    { "{% for m in messages %}{{ m.content ", "template, line 1: the tag that begins here is never closed by }}", GR_ERR_FORMAT },
    { "\n\n{{ 'x }}", "template, line 3: the string that begins here has no closing quote", GR_ERR_FORMAT },
    { "\n{# x", "template, line 2: the comment that begins here is never closed by #}", GR_ERR_FORMAT },
    { "\r\n\r\n{{ 1 2 }}", "template, line 3: expected '}}', found a number", GR_ERR_FORMAT },
    { "{{ a\n + * }}", "template, line 2: expected a value, found '*'", GR_ERR_FORMAT },
    { "{{ [1,\n2\n }}", "template, line 3: unexpected '}'", GR_ERR_FORMAT },
    { "x\n{% frobnicate %}", "template, line 2: unknown statement 'frobnicate'", GR_ERR_FORMAT },
    { "x\n{% include 'y' %}", "template, line 2: the statement 'include' is not supported in chat templates", GR_ERR_UNSUPPORTED },
    { "{{ f(*x) }}", "template, line 1: '*' and '**' arguments are not supported", GR_ERR_UNSUPPORTED },
    { "\n{{ nothing.at.all }}", "template, line 2: 'nothing' is undefined, so it has no 'at'", GR_ERR_FORMAT },
    { "{% if true %}\n\n{{ 'a' + 1 }}{% endif %}", "template, line 3: '+' does not work between a string and an integer", GR_ERR_FORMAT },
    { "\n{{ nothing + 'a' }}", "template, line 2: 'nothing' is undefined, but '+' needs its value", GR_ERR_FORMAT },
    { "\n\n{{ x|frobnicate }}", "template, line 3: there is no filter named 'frobnicate'", GR_ERR_UNSUPPORTED },
    { "{{ x is\nfrobnicate }}", "template, line 2: there is no test named 'frobnicate'", GR_ERR_UNSUPPORTED },
    { "{% macro m() %}\n{{ 1/0 }}\n{% endmacro %}\n{{ m() }}", "template, line 2: division by zero", GR_ERR_FORMAT },
    { "\n{{ raise_exception('Roles must ' ~ 'alternate') }}",
      "template, line 2: the template refuses the conversation: Roles must alternate", GR_ERR_MISMATCH },
    { "{{ 9223372036854775807 + 1 }}", "template, line 1: the result of '+' does not fit 64 bits", GR_ERR_UNSUPPORTED },
    { "{{ 99999999999999999999 }}", "template, line 1: this number is malformed or does not fit 64 bits", GR_ERR_FORMAT },
    { "\n\x80", "template, line 2: the template is not valid UTF-8 here", GR_ERR_FORMAT },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    gr_rendered r;
    gr_error e;
    gr_status s = render(cases[i].text, &plain, &r, &e);
    if (s == GR_OK) fail_msg("%s must fail", cases[i].text);
    assert_string_equal(e.text, cases[i].says);
    assert_int_equal(s, cases[i].status);
  }
}

static void a_filter_that_is_not_reached_may_be_unknown(void **state)
{
  (void)state;
  json_t *expected = json_string("fine");
  assert_renders("{% if false %}{{ x|frobnicate is frobnicate }}{% else %}fine{% endif %}", &plain, expected);
  json_decref(expected);
}

/* --- Hostile templates --------------------------------------------------------------------------------------------------------------- */

static char *repeated(const char *head, const char *middle, size_t times, const char *tail)
{
  size_t n = strlen(middle);
  char *s = malloc(strlen(head) + n * times + strlen(tail) + 1);
  assert_non_null(s);
  strcpy(s, head);
  for (size_t i = 0; i < times; i++) memcpy(s + strlen(head) + n * i, middle, n);
  strcpy(s + strlen(head) + n * times, tail);
  return s;
}

static void assert_limited(const char *text, const char *says)
{
  gr_rendered r;
  gr_error e;
  gr_status s = render(text, &plain, &r, &e);
  if (s == GR_OK) fail_msg("%.80s must be refused", text);
  assert_int_equal(s, GR_ERR_UNSUPPORTED);
  if (!strstr(e.text, says)) fail_msg("%.80s: %s", text, e.text);
}

static void runaway_templates_end(void **state)
{
  (void)state;
  static const char deep[] = "nested deeper than a render may", large[] = "uses more memory", slow[] = "runs for longer";
  assert_limited("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", deep);
  assert_limited("{% macro f() %}{% call g() %}{% endcall %}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", deep);
  assert_limited("{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}", deep);
  assert_limited("{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x|tojson }}", deep);
  assert_limited("{% set n = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% set n.y = [n.y] %}{% endfor %}"
                 "{{ n.x == n.y }}",
                 deep);
  assert_limited("{% set n = namespace() %}{% set n.x = n %}{{ n }}", deep);
  assert_limited("{{ 'x' * 1000000000 }}", large);
  assert_limited("{{ [1] * 1000000000 }}", large);
  assert_limited("{% set n = namespace(x='xy') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x|length }}", large);
  assert_limited("{% set n = namespace(x='xy') %}{% for i in range(99) %}{% set n.x = n.x|replace('x', 'xx') %}{% endfor %}", slow);
  assert_limited("{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", slow);
  assert_limited("{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x.find('b') }}{% endfor %}", slow);
  assert_limited("{% set x = 'a' * 500000 %}{{ (x + 'b') in (x + x) }}", slow);
  assert_limited("{% for i in range(100000) %}{{ ('a' * 100000).split('b')|length }}{% endfor %}", slow);
  assert_limited("{{ range(100001)|list }}", "more than 100000 numbers");
}

static void deep_nesting_is_refused(void **state)
{
  (void)state;
  static const struct {
    const char *head, *middle, *tail, *says;
  } cases[] = {
    { "{{ ", "(", "", "nested more than" },
    { "{{ ", "-", "1 }}", "nested more than" },
    { "{{ ", "not ", "1 }}", "nested more than" },
    { "{{ ", "[", "", "nested more than" },
    { "{{ ", "{1:", "", "nested more than" },
    { "{{ ", "a if b else ", "c }}", "nested more than" },
    { "", "{% if 1 %}", "", "nested more than" },
    { "", "{% for x in y %}", "", "nested more than" },
    { "{% set ", "(", "a = 1 %}", "nested more than" },
    { "{{ 1", "+1", " }}", "nested deeper than a render may" },
    { "{{ 1", "|abs", " }}", "nested deeper than a render may" },
    { "{{ l", "[0]", " }}", "nested deeper than a render may" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = repeated(cases[i].head, cases[i].middle, 20000, cases[i].tail);
    assert_limited(text, cases[i].says);
    free(text);
  }
  char *text = repeated("{% if 0 %}", "{% elif 0 %}", 20000, "{% else %}x{% endif %}"); /* long, not deep */
  json_t *expected = json_string("x");
  assert_renders(text, &plain, expected);
  json_decref(expected);
  free(text);
  text = repeated("", "x", (1 << 20) + 1, "");
  assert_limited(text, "bytes long");
  free(text);
}

static void limits_can_be_set(void **state)
{
  (void)state;
  static const char text[] = "{% for i in range(50) %}{{ 'abcdefgh' * 20 }}{% endfor %}";
  gr_rendered r;
  gr_error e;
  assert_ok(render(text, &plain, &r, &e), &e);
  assert_int_equal(r.len, 50 * 160);
  gr_rendered_free(&r);
  assert_int_equal(render(text, &(gr_render_options){ .limits.steps = 100 }, &r, &e), GR_ERR_UNSUPPORTED);
  assert_int_equal(render(text, &(gr_render_options){ .limits.bytes = 8000 }, &r, &e), GR_ERR_UNSUPPORTED);
  assert_int_equal(render(text, &(gr_render_options){ .limits.depth = 3 }, &r, &e), GR_ERR_UNSUPPORTED);
}

/* Nothing of the host can be reached: attributes of values are the few that the engine names, and values do not change. */
static void the_sandbox_is_closed(void **state)
{
  (void)state;
  static const char *const refused[] = { "{{ ''.__class__.__mro__[1].__subclasses__() }}",
                                         "{{ ''['__class__']['__mro__'] }}",
                                         "{{ (''|attr('__class__')).x }}",
                                         "{{ {}.__class__.x }}",
                                         "{{ [].append(1) }}",
                                         "{{ {}.update({'a': 1}) }}",
                                         "{{ ''.format.__globals__ }}",
                                         "{{ range.__globals__ }}{{ range.x.y }}",
                                         "{{ self.__init__ }}",
                                         "{{ cycler.__init__ }}",
                                         "{% set x.y = 1 %}",
                                         "{{ [''|map('attr', '__class__')|list][0][0].x }}",
                                         "{% set n = namespace(__init__=1) %}" };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) assert_renders(refused[i], &plain, json_null());
}

static void hostile_model_files_fail_cleanly(void **state)
{
  (void)state;
  require_shared();
  static const struct {
    const char *file, *says;
  } cases[] = { { "unterminated", "chat template, line 1: the tag that begins here is never closed by }}" },
                { "recursive", "chat template, line 1: calls or values are nested deeper than a render may" },
                { "python-escape", "chat template, line 1: '__class__' is undefined, so it has no '__mro__'" },
                { "huge-string", "chat template, line 1: the template uses more memory than a render may" } };
  for (size_t i = 0; i < 4; i++) {
    char path[256];
    gr_error e;
    gr_gguf *g;
    gr_template *t;
    gr_rendered r;
    bool builtin;
    snprintf(path, sizeof path, SHARED_DATA "hostile-gguf/template-%s.gguf", cases[i].file);
    assert_ok(gr_gguf_open(&g, path, &e), &e);
    gr_status s = gr_template_from_gguf(&t, g, NULL, &builtin, &e);
    assert_false(builtin);
    if (s == GR_OK) s = gr_template_render(t, NULL, &plain, &r, &e);
    assert_int_not_equal(s, GR_OK);
    assert_string_equal(e.text, cases[i].says);
    gr_template_free(t);
    gr_gguf_close(g);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(answers_as_jinja2_does),
    cmocka_unit_test(renders_small_programs_of_others),
    cmocka_unit_test(renders_whole_templates_of_others),
    cmocka_unit_test(renders_conversations_as_recorded),
    cmocka_unit_test(takes_the_templates_of_many_families),
    cmocka_unit_test(clocks_and_options),
    cmocka_unit_test(errors_name_the_line),
    cmocka_unit_test(a_filter_that_is_not_reached_may_be_unknown),
    cmocka_unit_test(runaway_templates_end),
    cmocka_unit_test(deep_nesting_is_refused),
    cmocka_unit_test(limits_can_be_set),
    cmocka_unit_test(the_sandbox_is_closed),
    cmocka_unit_test(hostile_model_files_fail_cleanly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
