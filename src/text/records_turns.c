/* One message, put in order: content as text, tool calls in the one form that templates know, roles that the template takes. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/records.h"

bool gr_json_says(const json_t *text)
{
  const char *s = json_string_value(text);
  for (size_t i = 0; i < json_string_length(text); i++)
    if (!strchr(" \t\r\n\v\f", s[i]) || s[i] == 0) return true;
  return false;
}

gr_status gr_message_weight(const json_t *message, double *weight, gr_error *e)
{
  const json_t *w = json_object_get(message, "weight"), *train = json_object_get(message, "train");
  *weight = 1;
  if (w && !json_is_null(w)) {
    if (!json_is_number(w) || !(json_number_value(w) >= 0) || json_number_value(w) > 1e6)
      return gr_fail(e, GR_ERR_FORMAT, "\"weight\" must be a number from 0 to a million");
    *weight = json_number_value(w);
  }
  if (train && !json_is_null(train)) {
    if (!json_is_boolean(train)) return gr_fail(e, GR_ERR_FORMAT, "\"train\" must be true or false");
    if (json_is_false(train)) *weight = 0;
  }
  return GR_OK;
}

/* ---- content ---- */

/* The texts of typed parts, joined. */
static gr_status join_parts(const json_t *parts, size_t turn, json_t **out, gr_error *e)
{
  gr_buf text = { 0 };
  gr_status s = GR_OK;
  for (size_t i = 0; s == GR_OK && i < json_array_size(parts); i++) {
    const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type");
    const json_t *piece = json_is_string(part) ? part : json_object_get(part, "text");
    if (json_is_string(piece)) gr_buf_append(&text, json_string_value(piece), json_string_length(piece));
    else
      s = gr_fail(e, GR_ERR_FORMAT, "part %zu of message %zu is not text%s%.40s: Graft trains on text alone", i + 1, turn,
                  json_is_string(type) ? " but of type " : "", json_is_string(type) ? json_string_value(type) : "");
  }
  if (s == GR_OK) *out = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
  if (s == GR_OK && !*out) s = gr_fail_memory(e, text.len);
  gr_buf_free(&text);
  return s;
}

static bool is_role(const json_t *message, const char *role)
{
  const char *is = json_string_value(json_object_get(message, "role"));
  return is && strcmp(is, role) == 0;
}

static bool is_assistant(const json_t *m) { return is_role(m, "assistant") || is_role(m, "model"); }

static bool has_reasoning(const json_t *m)
{
  static const char *const keys[] = { "reasoning_content", "thinking", "reasoning", "thought" };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (gr_json_says(json_object_get(m, keys[i]))) return true;
  return false;
}

/* People export numbers where text is meant, and give a tool's answer as the object it is. */
static gr_status order_content(json_t *m, size_t turn, gr_error *e)
{
  const json_t *content = json_object_get(m, "content");
  json_t *text = NULL;
  if (json_is_string(content)) return GR_OK;
  bool answer = is_role(m, "tool") || is_role(m, "function");
  if (json_is_number(content) || (answer && (json_is_object(content) || json_is_boolean(content)))) text = gr_json_as_text(content, e);
  else if (json_is_array(content)) GR_TRY(join_parts(content, turn, &text, e));
  else if (content && !json_is_null(content)) return gr_fail(e, GR_ERR_FORMAT, "the \"content\" of message %zu must be text", turn);
  else if (json_object_get(m, "tool_calls") || (is_assistant(m) && (content || has_reasoning(m))))
    text = json_string(""); /* null breaks templates that search it */
  else return gr_fail(e, GR_ERR_FORMAT, "message %zu has no \"content\"", turn);
  return text && json_object_set_new(m, "content", text) == 0 ? GR_OK : gr_fail_memory(e, 64);
}

/* ---- tool calls ---- */

/* The older form, a single "function_call" and answers from role "function", to the present one. */
static gr_status modernise(json_t *m, gr_error *e)
{
  json_t *call = json_object_get(m, "function_call");
  if (json_is_object(call) && !json_object_get(m, "tool_calls")) {
    json_t *calls = json_pack("[{s:s,s:O}]", "type", "function", "function", call);
    if (!calls || json_object_set_new(m, "tool_calls", calls) < 0) return gr_fail_memory(e, 64);
  }
  json_object_del(m, "function_call");
  if (is_role(m, "function") && json_object_set_new(m, "role", json_string("tool")) < 0) return gr_fail_memory(e, 64);
  return GR_OK;
}

static gr_status check_calls(const gr_conversation *c, json_t *m, size_t turn, gr_error *e)
{
  json_t *calls = json_object_get(m, "tool_calls");
  if (calls && !json_is_array(calls)) return gr_fail(e, GR_ERR_FORMAT, "\"tool_calls\" of message %zu must be a list", turn);
  for (size_t i = 0; i < json_array_size(calls); i++) {
    json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
    if (!function) function = call; /* some write the name and arguments at the top */
    json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(json_object_get(function, "name")))
      return gr_fail(e, GR_ERR_FORMAT, "tool call %zu of message %zu does not name its function", i + 1, turn);
    if (arguments && !json_is_object(arguments) && !json_is_string(arguments))
      return gr_fail(e, GR_ERR_FORMAT, "the \"arguments\" of tool call %zu of message %zu must be an object, or its text", i + 1, turn);
    if (json_is_object(arguments) && !c->support->objects) {
      json_t *text = gr_json_as_text(arguments, e);
      if (!text || json_object_set_new(function, "arguments", text) < 0) return gr_fail_memory(e, 64);
    }
  }
  return GR_OK;
}

/* {"name": ..., "arguments": ...}, one line a call: for templates that have no place for calls. */
static gr_status calls_to_text(json_t *m, gr_error *e)
{
  const json_t *calls = json_object_get(m, "tool_calls"), *content = json_object_get(m, "content");
  gr_buf text = { 0 };
  if (json_is_string(content)) gr_buf_append(&text, json_string_value(content), json_string_length(content));
  for (size_t i = 0; i < json_array_size(calls); i++) {
    const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
    if (!function) function = call;
    const json_t *arguments = json_object_get(function, "arguments");
    gr_buf_puts(&text, text.len ? "\n{\"name\": " : "{\"name\": ");
    gr_json_write(&text, json_object_get(function, "name"));
    gr_buf_puts(&text, ", \"arguments\": ");
    if (json_is_string(arguments)) gr_buf_append(&text, json_string_value(arguments), json_string_length(arguments));
    else if (arguments) gr_json_write(&text, arguments);
    else gr_buf_puts(&text, "{}");
    gr_buf_puts(&text, "}");
  }
  json_t *whole = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
  bool ok = whole && json_object_set_new(m, "content", whole) == 0;
  gr_buf_free(&text);
  json_object_del(m, "tool_calls");
  return ok ? GR_OK : gr_fail_memory(e, 64);
}

static gr_status order_calls(gr_conversation *c, json_t *m, size_t turn, gr_error *e)
{
  GR_TRY(modernise(m, e));
  if (json_is_null(json_object_get(m, "tool_calls"))) json_object_del(m, "tool_calls");
  GR_TRY(check_calls(c, m, turn, e));
  size_t n = json_array_size(json_object_get(m, "tool_calls"));
  if (n == 0) json_object_del(m, "tool_calls");
  if (n == 0 || c->support->calls) return GR_OK;
  c->events[GR_DATA_CALLS_AS_TEXT] += n;
  return calls_to_text(m, e);
}

/* ---- a message ---- */

static gr_status order(gr_conversation *c, json_t *m, size_t turn, gr_error *e)
{
  double weight;
  if (!json_is_object(m)) return gr_fail(e, GR_ERR_FORMAT, "message %zu is not an object", turn);
  if (!json_is_string(json_object_get(m, "role"))) return gr_fail(e, GR_ERR_FORMAT, "message %zu has no \"role\"", turn);
  gr_status s = gr_message_weight(m, &weight, e);
  if (s != GR_OK) {
    gr_error_context(e, "message %zu", turn);
    return s;
  }
  GR_TRY(order_calls(c, m, turn, e));
  GR_TRY(order_content(m, turn, e));
  if (is_role(m, "tool") && !c->support->answers) {
    if (json_object_set_new(m, "role", json_string("user")) < 0) return gr_fail_memory(e, 64);
    c->events[GR_DATA_ANSWERS_AS_USER]++;
  }
  if (!is_assistant(m)) {
    c->events[GR_DATA_TRAIN_IGNORED] += json_is_true(json_object_get(m, "train"));
    return GR_OK;
  }
  bool says = gr_json_says(json_object_get(m, "content")) || json_object_get(m, "tool_calls") || has_reasoning(m);
  c->events[GR_DATA_EMPTY_TURNS] += !says;
  c->learnable = c->learnable || (says && weight > 0);
  return GR_OK;
}

gr_status gr_conversation_add(gr_conversation *c, json_t *message, size_t turn, gr_error *e)
{
  if (!message) return gr_fail_memory(e, 64);
  gr_status s = order(c, message, turn, e);
  if (s == GR_OK && json_array_append(c->messages, message) < 0) s = gr_fail_memory(e, 64);
  json_decref(message);
  return s;
}
