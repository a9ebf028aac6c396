/* JSON in and out: messages become values whose every byte knows its field, and tojson writes as Python's json.dumps does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/jinja.h"
#include "text/json_guard.h"

/* --- Out ------------------------------------------------------------------------------------------------------------------------ */

static bool put_escaped(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v, bool ascii)
{
  const jinja_string *s = v->u.string;
  jinja_tag tag = gr_jinja_tag_of(v);
  size_t plain = 0; /* bytes before it are written */
  if (!gr_jinja_put(ctx, b, "\"", 1, tag) || !gr_jinja_steps(ctx, s->len / 16)) return false;
  for (size_t at = 0, n = 1; at < s->len; at += n) {
    static const char special[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
    unsigned char c = (unsigned char)s->data[at];
    uint32_t cp = c;
    char escape[16];
    n = 1;
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\' && !(ascii && c == 0x7f)) continue;
    if (c >= 0x80) {
      n = jinja_next(s->data + at, s->len - at, &cp);
      if (!ascii) continue;
    }
    const char *known = c && c < 0x80 ? strchr(special, c) : NULL;
    if (known) snprintf(escape, sizeof escape, "\\%c", letter[known - special]);
    else if (cp < 0x10000) snprintf(escape, sizeof escape, "\\u%04x", (unsigned)cp);
    else snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)), (unsigned)(0xdc00 + (cp & 0x3ff)));
    if (!gr_jinja_put_part(ctx, b, v, plain, at)) return false;
    if (!gr_jinja_put(ctx, b, escape, strlen(escape), gr_jinja_tag_at(v, at))) return false;
    plain = at + n;
  }
  return gr_jinja_put_part(ctx, b, v, plain, s->len) && gr_jinja_put(ctx, b, "\"", 1, tag);
}

typedef struct json_out {
  jinja_ctx *ctx;
  gr_jinja_builder *b;
  const jinja_json_style *style;
  size_t level;
} json_out;

static bool put_value(json_out *o, const jinja_value *v);

static bool put_break(json_out *o, jinja_tag tag)
{
  if (!o->style->indent) return true;
  bool ok = gr_jinja_put(o->ctx, o->b, "\n", 1, tag);
  for (size_t i = 0; ok && i < o->level; i++) ok = gr_jinja_put_string(o->ctx, o->b, o->style->indent);
  return ok;
}

/* Before item i: the comma, and a line of its own when indented. */
static bool put_separator(json_out *o, size_t i, jinja_tag tag)
{
  return (!i || gr_jinja_put(o->ctx, o->b, o->style->comma, o->style->comma_len, tag)) && put_break(o, tag);
}

static bool put_array(json_out *o, const jinja_value *v)
{
  const jinja_list *l = v->u.list;
  if (!gr_jinja_put(o->ctx, o->b, "[", 1, v->tag)) return false;
  o->level++;
  for (size_t i = 0; i < l->n; i++)
    if (!put_separator(o, i, v->tag) || !put_value(o, &l->items[i])) return false;
  o->level--;
  return (!l->n || put_break(o, v->tag)) && gr_jinja_put(o->ctx, o->b, "]", 1, v->tag);
}

static int by_key(const void *a, const void *b)
{
  const jinja_string *x = (*(const jinja_entry *const *)a)->key.u.string, *y = (*(const jinja_entry *const *)b)->key.u.string;
  size_t n = x->len < y->len ? x->len : y->len;
  int c = n ? memcmp(x->data, y->data, n) : 0;
  return c ? c : (x->len > y->len) - (x->len < y->len);
}

/* The entries in the order they are written in. */
static const jinja_entry **ordered_entries(json_out *o, const jinja_dict *d)
{
  const jinja_entry **order = gr_jinja_array(o->ctx, d->n, sizeof *order);
  if (!order) return NULL;
  bool strings = true;
  for (size_t i = 0; i < d->n; i++) {
    order[i] = &d->entries[i];
    strings = strings && d->entries[i].key.type == JINJA_STRING;
  }
  if (!o->style->sort_keys) return order;
  if (!strings) {
    gr_jinja_fail(o->ctx, GR_ERR_FORMAT, "tojson can sort keys only when all are strings");
    return NULL;
  }
  qsort(order, d->n, sizeof *order, by_key);
  return order;
}

static bool put_key(json_out *o, const jinja_value *key)
{
  if (key->type == JINJA_STRING) return put_value(o, key);
  if (key->type == JINJA_LIST || key->type == JINJA_DICT)
    return gr_jinja_fail(o->ctx, GR_ERR_FORMAT, "%s cannot be a key in JSON", gr_jinja_type_name(key));
  return gr_jinja_put(o->ctx, o->b, "\"", 1, key->tag) && put_value(o, key) && gr_jinja_put(o->ctx, o->b, "\"", 1, key->tag);
}

static bool put_object(json_out *o, const jinja_value *v)
{
  const jinja_dict *d = v->u.dict;
  const jinja_entry **order = ordered_entries(o, d);
  if (!order || !gr_jinja_put(o->ctx, o->b, "{", 1, v->tag)) return false;
  o->level++;
  for (size_t i = 0; i < d->n; i++) {
    if (!put_separator(o, i, v->tag) || !put_key(o, &order[i]->key)) return false;
    if (!gr_jinja_put(o->ctx, o->b, o->style->colon, o->style->colon_len, v->tag) || !put_value(o, &order[i]->value)) return false;
  }
  o->level--;
  return (!d->n || put_break(o, v->tag)) && gr_jinja_put(o->ctx, o->b, "}", 1, v->tag);
}

static bool put_value(json_out *o, const jinja_value *v)
{
  if (!gr_jinja_steps(o->ctx, 1)) return false;
  char room[40];
  size_t n;
  switch (v->type) {
  case JINJA_NONE: return gr_jinja_put(o->ctx, o->b, "null", 4, v->tag);
  case JINJA_BOOL: return gr_jinja_put(o->ctx, o->b, v->u.boolean ? "true" : "false", v->u.boolean ? 4 : 5, v->tag);
  case JINJA_INT: return gr_jinja_put_text(o->ctx, o->b, v);
  case JINJA_FLOAT:
    n = gr_jinja_float_text(v->u.real, room);
    if (room[n - 1] == 'f') n = (size_t)snprintf(room, sizeof room, v->u.real > 0 ? "Infinity" : "-Infinity");
    else if (room[0] == 'n') n = (size_t)snprintf(room, sizeof room, "NaN");
    return gr_jinja_put(o->ctx, o->b, room, n, v->tag);
  case JINJA_STRING: return put_escaped(o->ctx, o->b, v, o->style->ascii);
  case JINJA_LIST:
  case JINJA_DICT: {
    if (!gr_jinja_enter(o->ctx)) return false;
    bool ok = v->type == JINJA_LIST ? put_array(o, v) : put_object(o, v);
    o->ctx->depth_left++;
    return ok;
  }
  default: return gr_jinja_fail(o->ctx, GR_ERR_FORMAT, "%s cannot be written as JSON", gr_jinja_type_name(v));
  }
}

bool gr_jinja_put_json(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v, const jinja_json_style *style)
{
  json_out o = { .ctx = ctx, .b = b, .style = style };
  return put_value(&o, v);
}

/* indent: none, a string, or a number of blanks. */
static bool json_indent(jinja_ctx *ctx, jinja_value *indent, jinja_json_style *style)
{
  if (indent->type == JINJA_ABSENT || indent->type == JINJA_NONE) return true;
  if (indent->type != JINJA_STRING) {
    int64_t n;
    if (!gr_jinja_want_int(ctx, "tojson's indent", indent, &n)) return false;
    if (n > 64) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "tojson's indent is larger than 64");
    static const char blanks[] = "                                                                ";
    if (!gr_jinja_string(ctx, blanks, n > 0 ? (size_t)n : 0, 0, indent)) return false;
  }
  style->indent = indent;
  style->comma_len = 1; /* the line ends there */
  return true;
}

bool gr_jinja_tojson(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "ensure_ascii", "indent", "separators", "sort_keys" }; /* the order transformers has */
  jinja_value given[4];
  if (!gr_jinja_bind(ctx, "tojson", args, params, 4, 0, given)) return false;
  jinja_json_style style = { .comma = ", ", .comma_len = 2, .colon = ": ", .colon_len = 2 };
  if (!json_indent(ctx, &given[1], &style)) return false;
  style.ascii = gr_jinja_truth(&given[0]);
  style.sort_keys = gr_jinja_truth(&given[3]);
  if (given[2].type != JINJA_ABSENT && given[2].type != JINJA_NONE) {
    const jinja_list *l = given[2].type == JINJA_LIST ? given[2].u.list : NULL;
    if (!l || l->n != 2 || l->items[0].type != JINJA_STRING || l->items[1].type != JINJA_STRING)
      return gr_jinja_fail(ctx, GR_ERR_FORMAT, "tojson's separators must be two strings");
    const jinja_string *comma = l->items[0].u.string, *colon = l->items[1].u.string;
    style.comma = comma->data;
    style.comma_len = comma->len;
    style.colon = colon->data;
    style.colon_len = colon->len;
  }
  gr_jinja_builder b = { 0 };
  return gr_jinja_finish(ctx, &b, gr_jinja_put_json(ctx, &b, in, &style), out);
}

/* --- In ------------------------------------------------------------------------------------------------------------------------- */

/* Jansson's iteration is in insertion order and takes non-const objects, but changes nothing. */
static json_t *unconst(const json_t *json) { return (json_t *)(uintptr_t)json; }

static bool from_array(jinja_ctx *ctx, const json_t *json, jinja_tag tag, jinja_value *out)
{
  size_t n = json_array_size(json);
  if (!gr_jinja_list(ctx, n, out)) return false;
  for (size_t i = 0; i < n; i++) {
    jinja_value item;
    if (!gr_jinja_from_json(ctx, json_array_get(json, i), tag, &item) || !gr_jinja_list_add(ctx, out->u.list, item)) return false;
  }
  return true;
}

/* Appends without looking for an equal key: a JSON object has none. */
static bool add_entry(jinja_ctx *ctx, jinja_dict *d, void *iterator, jinja_tag tag, jinja_value value)
{
  jinja_entry *entry = &d->entries[d->n++];
  entry->value = value;
  return gr_jinja_string(ctx, json_object_iter_key(iterator), json_object_iter_key_len(iterator), tag, &entry->key);
}

static bool from_object(jinja_ctx *ctx, const json_t *json, jinja_tag tag, jinja_value *out)
{
  if (!gr_jinja_dict(ctx, json_object_size(json), out)) return false;
  json_t *object = unconst(json);
  bool ok = true;
  for (void *i = json_object_iter(object); i && ok; i = json_object_iter_next(object, i)) {
    jinja_value value;
    ok = gr_jinja_from_json(ctx, json_object_iter_value(i), tag, &value) && add_entry(ctx, out->u.dict, i, tag, value);
  }
  return ok;
}

bool gr_jinja_from_json(jinja_ctx *ctx, const json_t *json, jinja_tag tag, jinja_value *out)
{
  bool ok = true;
  if (!gr_jinja_enter(ctx)) return false;
  switch (json_typeof(json)) {
  case JSON_OBJECT: ok = from_object(ctx, json, tag, out); break;
  case JSON_ARRAY: ok = from_array(ctx, json, tag, out); break;
  case JSON_STRING: ok = gr_jinja_string(ctx, json_string_value(json), json_string_length(json), tag, out); break;
  case JSON_INTEGER: *out = gr_jinja_int(json_integer_value(json), 0); break;
  case JSON_REAL: *out = gr_jinja_float(json_real_value(json), 0); break;
  case JSON_TRUE:
  case JSON_FALSE: *out = gr_jinja_bool(json_is_true(json)); break;
  case JSON_NULL: *out = gr_jinja_none(); break;
  }
  ctx->depth_left++;
  if (ok) out->tag = tag;
  return ok;
}

static gr_field field_of(const char *key)
{
  static const struct {
    const char *key;
    gr_field field;
  } fields[] = { { "role", GR_FIELD_ROLE },
                 { "content", GR_FIELD_CONTENT },
                 { "reasoning_content", GR_FIELD_REASONING },
                 { "reasoning", GR_FIELD_REASONING },
                 { "thinking", GR_FIELD_REASONING },
                 { "thought", GR_FIELD_REASONING },
                 { "tool_calls", GR_FIELD_TOOL_CALL },
                 { "function_call", GR_FIELD_TOOL_CALL },
                 { "name", GR_FIELD_NAME } };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (!strcmp(key, fields[i].key)) return fields[i].field;
  return GR_FIELD_OTHER;
}

/* The words that templates compose control tokens with; any other role is data like all else. */
static bool known_role(const char *role)
{
  static const char *const known[] = { "system",  "developer",   "user",  "assistant",    "tool",    "function", "functions",
                                       "ipython", "observation", "model", "tool_results", "context", "documents" };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(role, known[i])) return true;
  return false;
}

/* A string that holds a JSON object, as the object; *out is untouched and *is false when it is anything else. */
static bool parse_arguments(jinja_ctx *ctx, const json_t *json, jinja_tag tag, jinja_value *out, bool *is)
{
  const char *text = json_string_value(json);
  size_t n = json_string_length(json);
  json_error_t why;
  json_t *object = text ? gr_json_parse(text, n, JSON_ALLOW_NUL, &why) : NULL;
  if (text && !object && gr_json_out_of_memory(&why)) {
    ctx->status = gr_fail_memory(ctx->e, n);
    return false;
  }
  *is = json_is_object(object);
  if (!*is) {
    json_decref(object);
    return true;
  }
  if (!gr_grow((void **)&ctx->parsed, &ctx->cap_parsed, ctx->n_parsed + 1, sizeof *ctx->parsed)) {
    json_decref(object);
    ctx->status = gr_fail_memory(ctx->e, sizeof *ctx->parsed);
    return false;
  }
  ctx->parsed[ctx->n_parsed++] = object; /* its strings are borrowed until the render ends */
  return gr_jinja_from_json(ctx, object, tag, out);
}

/* One tool call, or its "function": the arguments have a field of their own. */
static bool from_call(jinja_ctx *ctx, const json_t *json, size_t message, jinja_value *out)
{
  jinja_tag tag = jinja_tag_make(GR_ORIGIN_MESSAGE, GR_FIELD_TOOL_CALL, message);
  jinja_tag arguments = jinja_tag_make(GR_ORIGIN_MESSAGE, GR_FIELD_TOOL_ARGUMENTS, message);
  if (!json_is_object(json)) return gr_jinja_from_json(ctx, json, tag, out);
  if (!gr_jinja_enter(ctx) || !gr_jinja_dict(ctx, json_object_size(json), out)) return false;
  out->tag = tag;
  json_t *object = unconst(json);
  bool ok = true;
  for (void *i = json_object_iter(object); i && ok; i = json_object_iter_next(object, i)) {
    const char *key = json_object_iter_key(i);
    const json_t *item = json_object_iter_value(i);
    jinja_value value;
    bool parsed = false;
    if (!strcmp(key, "arguments") || !strcmp(key, "parameters")) {
      if (ctx->parse_arguments) ok = parse_arguments(ctx, item, arguments, &value, &parsed);
      if (ok && !parsed) ok = gr_jinja_from_json(ctx, item, arguments, &value);
    } else if (!strcmp(key, "function")) {
      ok = from_call(ctx, item, message, &value);
    } else {
      ok = gr_jinja_from_json(ctx, item, tag, &value);
    }
    ok = ok && add_entry(ctx, out->u.dict, i, tag, value);
  }
  ctx->depth_left++;
  return ok;
}

static bool from_calls(jinja_ctx *ctx, const json_t *json, size_t message, jinja_value *out)
{
  if (!json_is_array(json)) return from_call(ctx, json, message, out);
  size_t n = json_array_size(json);
  if (!gr_jinja_list(ctx, n, out)) return false;
  out->tag = jinja_tag_make(GR_ORIGIN_MESSAGE, GR_FIELD_TOOL_CALL, message);
  for (size_t i = 0; i < n; i++) {
    jinja_value call;
    if (!from_call(ctx, json_array_get(json, i), message, &call) || !gr_jinja_list_add(ctx, out->u.list, call)) return false;
  }
  return true;
}

/* Reasoning goes by several names; a template sees it under reasoning_content and thinking, as transformers arranges it. */
static bool alias_reasoning(jinja_ctx *ctx, size_t message, jinja_dict *d)
{
  static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
  jinja_tag tag = jinja_tag_make(GR_ORIGIN_MESSAGE, GR_FIELD_OTHER, message);
  jinja_value reasoning, key;
  bool found = false;
  for (size_t i = 0; i < 3 && !found; i++) {
    if (!gr_jinja_dict_find(ctx, d, names[i], &reasoning, &found)) return false;
    found = found && reasoning.type != JINJA_NONE;
  }
  for (size_t i = 0; i < 2 && found; i++) {
    jinja_value there;
    bool has = false;
    if (i && !gr_jinja_dict_find(ctx, d, names[i], &there, &has)) return false; /* reasoning_content is always set anew */
    if (has) continue;
    if (!gr_jinja_string(ctx, names[i], strlen(names[i]), tag, &key) || !gr_jinja_dict_put(ctx, d, key, reasoning)) return false;
  }
  return true;
}

static bool from_message(jinja_ctx *ctx, const json_t *json, size_t message, jinja_value *out)
{
  if (!gr_jinja_dict(ctx, json_object_size(json), out)) return false;
  out->tag = jinja_tag_make(GR_ORIGIN_MESSAGE, GR_FIELD_OTHER, message);
  json_t *object = unconst(json);
  bool ok = true;
  for (void *i = json_object_iter(object); i && ok; i = json_object_iter_next(object, i)) {
    const char *key = json_object_iter_key(i);
    const json_t *item = json_object_iter_value(i);
    gr_field field = field_of(key);
    jinja_tag tag = jinja_tag_make(GR_ORIGIN_MESSAGE, field, message);
    if (field == GR_FIELD_ROLE && json_is_string(item) && known_role(json_string_value(item))) tag |= JINJA_TAG_CONTROL;
    jinja_value value;
    ok = field == GR_FIELD_TOOL_CALL ? from_calls(ctx, item, message, &value) : gr_jinja_from_json(ctx, item, tag, &value);
    ok = ok && add_entry(ctx, out->u.dict, i, jinja_tag_make(GR_ORIGIN_MESSAGE, GR_FIELD_OTHER, message), value);
  }
  return ok && alias_reasoning(ctx, message, out->u.dict);
}

bool gr_jinja_messages(jinja_ctx *ctx, const json_t *messages, size_t n, jinja_value *out)
{
  if (!json_is_array(messages)) {
    ctx->status = gr_fail(ctx->e, GR_ERR_FORMAT, "the messages of a conversation must be an array of objects");
    return false;
  }
  if (!gr_jinja_list(ctx, n, out)) return false;
  for (size_t i = 0; i < n; i++) {
    const json_t *json = json_array_get(messages, i);
    jinja_value message;
    if (!json_is_object(json) || i > JINJA_TAG_MESSAGE_MAX) {
      ctx->status = gr_fail(ctx->e, GR_ERR_FORMAT, "message %zu is not an object", i);
      return false;
    }
    if (!from_message(ctx, json, i, &message) || !gr_jinja_list_add(ctx, out->u.list, message)) return false;
  }
  return true;
}
