/* Every allocation of parsing, rendering and locating made to fail, one at a time and all from one on: the answer is GR_ERR_MEMORY
 * with a sentence, nothing leaks, and without failures the result is as ever. */
#include "failing_alloc.h"

#include "base/buf.h"
#include "check.h"
#include "text/chat.h"

static const char text[] =
    "{#- most of the language -#}{% macro show(x, y='-', z=[1, 2.5]) %}[{{ x ~ y ~ z|join(',') }}]{% endmacro %}"
    "{% set ns = namespace(seen=[], text='') %}{% for m in messages if m.role != 'skip' %}"
    "{% set ns.seen = ns.seen + [m.role|upper] %}{% set ns.text = ns.text ~ m.content|trim|replace('a', 'bb') %}"
    "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{{ m.content.split(' ')|map('title')|list|tojson(indent=2) }}"
    "{{ m.tool_calls|default([])|tojson(sort_keys=true) }}{% else %}{{ m.content[::-1] }}{{ {'k': (m, loop.index)}|string }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% set block %}{% filter lower %}{{ show(ns.text, z=ns.seen) }}{% endfilter %}{% endset %}"
    "{% call(a) show2() %}{{ a|indent }}{% endcall %}{% with q = block.splitlines()|sort|unique|first %}{{ q }}{% endwith %}"
    "{{ strftime_now('%d %B %Y') ~ '%5.1f|%s' % (2.25, messages|selectattr('role', 'eq', 'user')|map(attribute='content')|sum(start='')) }}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static const char macro2[] = "{% macro show2() %}{{ caller('x\ny') }}{% endmacro %}";

static const char thinking[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
                               "{% if m.thinking and loop.nextitem is not defined %}<think>{{ m.thinking }}</think>{% endif %}"
                               "{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}<|im_end|>\n"
                               "{% endfor %}{{ '<|im_start|>assistant\n<think>' if add_generation_prompt }}";

static json_t *messages;
static gr_buf clean; /* what it renders, and the spans, when nothing fails */

static gr_status attempt(gr_buf *out, gr_error *e)
{
  static const char *const ends[] = { "<|im_end|>" };
  gr_render_options o = { .add_generation_prompt = true, .parse_tool_arguments = true, .bos_token = "<s>" };
  gr_template *t;
  gr_rendered r = { 0 };
  gr_chat_spans s = { 0 };
  char whole[sizeof text + sizeof macro2];
  snprintf(whole, sizeof whole, "%s%s", macro2, text);
  gr_status status = gr_template_parse(&t, whole, strlen(whole), "template", e);
  if (status == GR_OK) status = gr_template_render(t, messages, &o, &r, e);
  if (status == GR_OK && out) gr_buf_append(out, r.text, r.len);
  gr_rendered_free(&r);
  gr_template_free(t);
  if (status != GR_OK) return status;
  status = gr_template_parse(&t, thinking, sizeof thinking - 1, "template", e);
  if (status == GR_OK) status = gr_template_render(t, messages, &o, &r, e);
  if (status == GR_OK) status = gr_chat_locate(t, messages, &o, &r, ends, 1, &s, e);
  if (status == GR_OK && out) {
    gr_buf_append(out, r.text, r.len);
    for (size_t i = 0; i < s.count; i++) gr_buf_printf(out, "(%zu %zu %zu)", s.items[i].start, s.items[i].end, s.items[i].message);
  }
  gr_chat_spans_free(&s);
  gr_rendered_free(&r);
  gr_template_free(t);
  return status;
}

static void every_allocation_may_fail(void **state)
{
  (void)state;
  static const char json[] = "[{\"role\": \"user\", \"content\": \" a \\u00fc long question, a long one \"},"
                             "{\"role\": \"assistant\", \"content\": \"the answer\", \"reasoning\": \"hm\","
                             " \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]},"
                             "{\"role\": \"user\", \"content\": \"and\"}, {\"role\": \"assistant\", \"content\": \"\"}]";
  gr_error e = { 0 };
  messages = json_loads(json, 0, NULL);
  assert_non_null(messages);
  assert_ok(attempt(&clean, &e), &e);
  assert_true(clean.len > 500 && strstr(clean.data, " 1)(") && strstr(clean.data, " 3)"));

  long before = allocations.live;
  allocations_fail(0, false);
  assert_ok(attempt(NULL, &e), &e);
  size_t n = allocations.seen;
  assert_true(n > 50);
  for (size_t rest = 0; rest < 2; rest++)
    for (size_t i = 1; i <= n; i++) {
      e = (gr_error){ 0 };
      allocations_fail(i, rest);
      gr_status s = attempt(NULL, &e);
      allocations_fail(0, false);
      if (s != GR_ERR_MEMORY) fail_msg("allocation %zu of %zu failed, but the answer is %s: %s", i, n, gr_status_name(s), e.text);
      if (!strstr(e.text, "memory")) fail_msg("allocation %zu of %zu: %s", i, n, e.text);
      assert_int_equal(allocations.live, before);
    }
  gr_buf again = { 0 };
  assert_ok(attempt(&again, &e), &e);
  assert_string_equal(again.data, clean.data);
  gr_buf_free(&again);
  gr_buf_free(&clean);
  json_decref(messages);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation_may_fail) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
