/* Tools in records: what the template makes of them, definitions, calls that came as text. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/dataset_source.h"
#include "text/jinja.h"
#include "text/json_guard.h"
#include "text/records.h"

/* ---- JSON as text ---- */

static int append(const char *text, size_t n, void *out)
{
  gr_buf_append(out, text, n);
  return 0;
}

static void write_string(gr_buf *out, const char *text, size_t n)
{
  json_t *s = json_stringn_nocheck(text, n);
  if (!s || json_dump_callback(s, append, out, JSON_ENCODE_ANY) < 0) out->failed = true;
  json_decref(s);
}

void gr_json_write(gr_buf *out, const json_t *json)
{
  json_t *j = (json_t *)(uintptr_t)json, *item; /* iterating changes nothing */
  const char *key, *comma = "";
  size_t i;
  char room[40];
  switch (json_typeof(json)) {
  case JSON_OBJECT:
    gr_buf_putc(out, '{');
    json_object_foreach(j, key, item)
    {
      gr_buf_puts(out, comma);
      write_string(out, key, strlen(key));
      gr_buf_puts(out, ": ");
      gr_json_write(out, item);
      comma = ", ";
    }
    gr_buf_putc(out, '}');
    break;
  case JSON_ARRAY:
    gr_buf_putc(out, '[');
    json_array_foreach(j, i, item)
    {
      gr_buf_puts(out, i ? ", " : "");
      gr_json_write(out, item);
    }
    gr_buf_putc(out, ']');
    break;
  case JSON_STRING: write_string(out, json_string_value(json), json_string_length(json)); break;
  case JSON_INTEGER: gr_buf_printf(out, "%lld", (long long)json_integer_value(json)); break;
  case JSON_REAL: gr_buf_append(out, room, gr_jinja_float_text(json_real_value(json), room)); break;
  case JSON_TRUE: gr_buf_puts(out, "true"); break;
  case JSON_FALSE: gr_buf_puts(out, "false"); break;
  case JSON_NULL: gr_buf_puts(out, "null"); break;
  }
}

json_t *gr_json_as_text(const json_t *json, gr_error *e)
{
  gr_buf text = { 0 };
  gr_json_write(&text, json);
  json_t *out = text.failed ? NULL : json_stringn(text.data, text.len);
  if (!out) gr_fail_memory(e, text.len);
  gr_buf_free(&text);
  return out;
}

/* ---- what the template does ---- */

/* Words that no template writes of itself. */
#define PROBE_TOOL "graft_probe"
#define PROBE_KEY "graft_key"
#define PROBE_ANSWER "graft_answer"

static json_t *probe_messages(bool object, bool answer)
{
  gr_buf text = { 0 };
  gr_buf_puts(&text,
              "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\",");
  gr_buf_puts(&text, "\"type\":\"function\",\"function\":{\"name\":\"" PROBE_TOOL "\",\"arguments\":");
  gr_buf_puts(&text, object ? "{\"" PROBE_KEY "\":\"x\"}}}]}" : "\"{\\\"" PROBE_KEY "\\\": \\\"x\\\"}\"}}]}");
  if (answer)
    gr_buf_puts(&text, ",{\"role\":\"tool\",\"name\":\"" PROBE_TOOL "\",\"tool_call_id\":\"call00001\",\"content\":\"" PROBE_ANSWER "\"}");
  gr_buf_puts(&text, "]");
  json_t *messages = text.failed ? NULL : gr_json_parse(text.data, text.len, 0, NULL);
  gr_buf_free(&text);
  return messages;
}

static json_t *probe_tools(void)
{
  static const char tools[] =
      "[{\"type\":\"function\",\"function\":{\"name\":\"" PROBE_TOOL "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
      "\"properties\":{\"p\":{\"type\":\"string\"}},\"required\":[\"p\"]}}}]";
  return gr_json_parse(tools, sizeof tools - 1, 0, NULL);
}

static bool holds(const gr_rendered *r, gr_origin origin, const char *word)
{
  size_t n = strlen(word);
  for (size_t i = 0; i < r->n_runs; i++) {
    const gr_text_run *run = &r->runs[i];
    if (run->origin != origin) continue;
    for (size_t at = run->start; at + n <= run->end; at++)
      if (memcmp(r->text + at, word, n) == 0) return true;
  }
  return false;
}

/* The key between quotes of its own, neither escaped (JSON within JSON) nor single (Python). */
static bool plain_json(const gr_rendered *r)
{
  const char *key = r->text;
  while ((key = strstr(key, "\"" PROBE_KEY "\"")))
    if (key > r->text && key[-1] == '\\') key++;
    else return true;
  return false;
}

/* One rendering; a template that refuses it has no place for what is in it, and *out stays false. */
struct probe {
  bool definitions, calls, answers, plain;
};

static gr_status probe(const gr_template *t, const gr_render_options *base, bool object, bool answer, struct probe *out, gr_error *e)
{
  gr_render_options o = *base;
  gr_rendered text = { 0 };
  gr_error refused = { 0 };
  json_t *messages = probe_messages(object, answer);
  json_t *tools = probe_tools();
  o.tools = tools;
  o.parse_tool_arguments = false;
  *out = (struct probe){ 0 };
  gr_status s = messages && tools ? gr_template_render(t, messages, &o, &text, &refused) : GR_ERR_MEMORY;
  if (s == GR_OK)
    *out = (struct probe){ holds(&text, GR_ORIGIN_TOOLS, PROBE_TOOL), holds(&text, GR_ORIGIN_MESSAGE, PROBE_TOOL),
                           holds(&text, GR_ORIGIN_MESSAGE, PROBE_ANSWER), plain_json(&text) };
  gr_rendered_free(&text);
  json_decref(messages);
  json_decref(tools);
  return s == GR_ERR_MEMORY ? gr_fail_memory(e, 1024) : GR_OK;
}

gr_status gr_tool_support_probe(gr_tool_support *s, const gr_template *t, const gr_render_options *o, gr_error *e)
{
  struct probe p[2][2]; /* arguments as text or object; without and with the tool's answer */
  *s = (gr_tool_support){ .chat = t };
  for (int object = 0; object < 2; object++)
    for (int answer = 0; answer < 2; answer++) {
      struct probe *x = &p[object][answer];
      GR_TRY(probe(t, o, object, answer, x, e));
      s->definitions = s->definitions || x->definitions;
      s->calls = s->calls || x->calls;
      s->answers = s->answers || x->answers;
    }
  bool texts = p[0][0].plain || p[0][1].plain;
  s->objects = p[1][0].plain || p[1][1].plain;
  s->parse_arguments = s->objects && !texts;
  return GR_OK;
}

/* ---- definitions ---- */

gr_status gr_conversation_set_tools(gr_conversation *c, json_t *tools, gr_error *e)
{
  json_t *list = NULL;
  if (!tools || json_is_null(tools) || (json_is_string(tools) && !gr_json_says(tools))) return GR_OK;
  json_error_t why;
  if (json_is_string(tools)) list = gr_json_parse(json_string_value(tools), json_string_length(tools), JSON_ALLOW_NUL, &why);
  else list = json_incref(tools);
  if (!list && gr_json_out_of_memory(&why)) return gr_fail_memory(e, json_string_length(tools));
  if (!json_is_array(list)) {
    json_decref(list);
    return gr_fail(e, GR_ERR_FORMAT, "\"tools\" must be a list of tool definitions");
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    json_t *tool = json_array_get(list, i);
    if (!json_is_object(tool)) {
      json_decref(list);
      return gr_fail(e, GR_ERR_FORMAT, "tool %zu in \"tools\" is not an object", i + 1);
    }
    if (json_object_get(tool, "function") || !json_object_get(tool, "name")) continue;
    json_t *whole = json_pack("{s:s,s:O}", "type", "function", "function", tool);
    if (!whole || json_array_set_new(list, i, whole) < 0) {
      json_decref(list);
      return gr_fail_memory(e, 64);
    }
  }
  bool any = json_array_size(list) > 0;
  if (any && !c->support->definitions) c->events[GR_DATA_TOOLS_LEFT_OUT]++;
  if (any) c->tools = json_incref(list);
  json_decref(list);
  return GR_OK;
}

/* ---- calls written as text ---- */

static json_t *call_of(json_t *json)
{
  json_t *arguments = json_object_get(json, "arguments");
  if (!arguments) arguments = json_object_get(json, "parameters");
  if (!json_is_string(json_object_get(json, "name")) || !(json_is_object(arguments) || json_is_string(arguments))) return NULL;
  return json_pack("{s:s,s:{s:O,s:O}}", "type", "function", "function", "name", json_object_get(json, "name"), "arguments", arguments);
}

gr_status gr_calls_from_text(const char *text, size_t n, json_t **calls, gr_error *e)
{
  json_error_t why;
  *calls = NULL;
  json_t *json = gr_json_parse(text, n, JSON_ALLOW_NUL, &why);
  if (!json) return gr_json_out_of_memory(&why) ? gr_fail_memory(e, n) : GR_OK;
  json_t *list = json_is_array(json) ? json_incref(json) : json_pack("[O]", json), *out = json_array();
  bool fit = json_array_size(list) > 0, ok = list && out;
  for (size_t i = 0; ok && fit && i < json_array_size(list); i++) {
    json_t *call = call_of(json_array_get(list, i));
    fit = call != NULL;
    ok = !call || json_array_append_new(out, call) == 0;
  }
  json_decref(list);
  json_decref(json);
  if (ok && fit) *calls = out;
  else json_decref(out);
  return ok ? GR_OK : gr_fail_memory(e, n);
}
