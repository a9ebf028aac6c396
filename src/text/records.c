#include "text/records.h"

#include <stdlib.h>
#include <string.h>

static const char *const format_names[GR_DATA_FORMATS] = {
  [GR_DATA_AUTO] = "auto",     [GR_DATA_MESSAGES] = "messages", [GR_DATA_PROMPT] = "prompt", [GR_DATA_QA] = "qa",
  [GR_DATA_ALPACA] = "alpaca", [GR_DATA_SHAREGPT] = "sharegpt", [GR_DATA_TEXT] = "text",     [GR_DATA_PLAIN] = "plain",
};

const char *gr_data_format_name(gr_data_format f) { return format_names[f]; }

bool gr_data_format_from_name(const char *name, gr_data_format *f)
{
  for (int i = 0; i < GR_DATA_FORMATS; i++)
    if (strcmp(format_names[i], name) == 0) {
      *f = (gr_data_format)i;
      return true;
    }
  return false;
}

gr_data_format gr_record_format(const json_t *record)
{
  static const struct {
    const char *key;
    gr_data_format format;
  } keys[] = { { "messages", GR_DATA_MESSAGES },  { "conversations", GR_DATA_SHAREGPT }, { "conversation", GR_DATA_SHAREGPT },
               { "instruction", GR_DATA_ALPACA }, { "prompt", GR_DATA_PROMPT },          { "question", GR_DATA_QA },
               { "text", GR_DATA_TEXT } };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (json_object_get(record, keys[i].key)) return keys[i].format;
  return GR_DATA_AUTO;
}

/* Text of a field: a string, or a number written out (people export answers as numbers). NULL: refused in words. */
static json_t *field_text(const json_t *record, const char *key, bool required, gr_error *e)
{
  const json_t *v = json_object_get(record, key);
  if (json_is_string(v)) return json_incref((json_t *)(uintptr_t)v);
  if ((!v || json_is_null(v)) && !required) return json_string("");
  if (!v) {
    gr_fail(e, GR_ERR_FORMAT, "the key \"%s\" is missing", key);
    return NULL;
  }
  if (json_is_number(v)) {
    char *digits = json_dumps(v, JSON_ENCODE_ANY);
    json_t *text = digits ? json_string(digits) : NULL;
    free(digits);
    if (!text) gr_fail_memory(e, 32);
    return text;
  }
  gr_fail(e, GR_ERR_FORMAT, "\"%s\" must be text", key);
  return NULL;
}

static gr_status add_message(json_t *messages, const char *role, json_t *content, gr_error *e)
{
  if (!content) return e ? e->status : GR_ERR_FORMAT;
  json_t *m = json_pack("{s:s,s:o}", "role", role, "content", content);
  if (!m || json_array_append_new(messages, m) < 0) return gr_fail_memory(e, 64);
  return GR_OK;
}

static gr_status read_pair(const json_t *record, const char *ask, const char *answer, gr_conversation *c, gr_error *e)
{
  if (json_is_string(json_object_get(record, "system")))
    GR_TRY(add_message(c->messages, "system", field_text(record, "system", true, e), e));
  GR_TRY(add_message(c->messages, "user", field_text(record, ask, true, e), e));
  return add_message(c->messages, "assistant", field_text(record, answer, true, e), e);
}

/* Instruction and input are joined by a blank line, as the data set's own prompt sets them apart. */
static gr_status read_alpaca(const json_t *record, gr_conversation *c, gr_error *e)
{
  json_t *instruction = field_text(record, "instruction", true, e), *extra = instruction ? field_text(record, "input", false, e) : NULL;
  gr_status s = extra ? GR_OK : e ? e->status : GR_ERR_FORMAT;
  json_t *ask = NULL;
  if (s == GR_OK) {
    size_t a = json_string_length(instruction), b = json_string_length(extra);
    ask = b ? json_sprintf("%.*s\n\n%.*s", (int)a, json_string_value(instruction), (int)b, json_string_value(extra))
            : json_incref(instruction);
    if (!ask) s = gr_fail_memory(e, a + b);
  }
  if (s == GR_OK && json_is_string(json_object_get(record, "system")))
    s = add_message(c->messages, "system", field_text(record, "system", true, e), e);
  if (s == GR_OK) s = add_message(c->messages, "user", ask, e);
  else json_decref(ask);
  if (s == GR_OK) s = add_message(c->messages, "assistant", field_text(record, "output", true, e), e);
  json_decref(instruction);
  json_decref(extra);
  return s;
}

static const char *sharegpt_role(const char *from)
{
  static const char *const map[][2] = {
    { "human", "user" },
    { "user", "user" },
    { "gpt", "assistant" },
    { "assistant", "assistant" },
    { "chatgpt", "assistant" },
    { "bing", "assistant" },
    { "bard", "assistant" },
    { "model", "assistant" },
    { "system", "system" },
    { "tool", "tool" },
    { "observation", "tool" },
    { "function_response", "tool" },
    { "function_call", "assistant" },
    { "tool_call", "assistant" },
  };
  for (size_t i = 0; i < sizeof map / sizeof *map; i++)
    if (strcmp(map[i][0], from) == 0) return map[i][1];
  return NULL;
}

static gr_status read_sharegpt(const json_t *record, gr_conversation *c, gr_error *e)
{
  const json_t *turns = json_object_get(record, "conversations");
  if (!turns) turns = json_object_get(record, "conversation");
  if (!json_is_array(turns)) return gr_fail(e, GR_ERR_FORMAT, "\"conversations\" must be a list");
  if (json_is_string(json_object_get(record, "system")))
    GR_TRY(add_message(c->messages, "system", field_text(record, "system", true, e), e));
  for (size_t i = 0; i < json_array_size(turns); i++) {
    json_t *turn = json_array_get(turns, i), *from = json_object_get(turn, "from");
    if (!from) from = json_object_get(turn, "role");
    if (!json_is_string(from)) return gr_fail(e, GR_ERR_FORMAT, "turn %zu does not say who speaks (\"from\")", i + 1);
    const char *role = sharegpt_role(json_string_value(from)), *key = json_object_get(turn, "value") ? "value" : "content";
    if (!role) return gr_fail(e, GR_ERR_FORMAT, "turn %zu is from '%s', whom Graft does not know", i + 1, json_string_value(from));
    GR_TRY(add_message(c->messages, role, field_text(turn, key, true, e), e));
    json_t *added = json_array_get(c->messages, json_array_size(c->messages) - 1);
    static const char *const extras[] = { "weight", "train" };
    for (size_t k = 0; k < 2; k++) {
      json_t *v = json_object_get(turn, extras[k]);
      if (v && json_object_set(added, extras[k], v) < 0) return gr_fail_memory(e, 64);
    }
  }
  return GR_OK;
}

static gr_status read_messages(const json_t *record, gr_conversation *c, gr_error *e)
{
  json_t *messages = json_object_get(record, "messages");
  if (!json_is_array(messages)) return gr_fail(e, GR_ERR_FORMAT, "\"messages\" must be a list");
  for (size_t i = 0; i < json_array_size(messages); i++) {
    const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
    if (!json_is_object(m)) return gr_fail(e, GR_ERR_FORMAT, "message %zu is not an object", i + 1);
    if (!json_is_string(json_object_get(m, "role"))) return gr_fail(e, GR_ERR_FORMAT, "message %zu has no \"role\"", i + 1);
    if (content && !json_is_string(content) && !json_is_null(content) && !json_is_array(content))
      return gr_fail(e, GR_ERR_FORMAT, "the \"content\" of message %zu must be text", i + 1);
    if (!content && !json_object_get(m, "tool_calls") && !json_object_get(m, "function_call"))
      return gr_fail(e, GR_ERR_FORMAT, "message %zu has no \"content\"", i + 1);
  }
  json_decref(c->messages);
  c->messages = json_incref(messages);
  json_t *tools = json_object_get(record, "tools");
  c->tools = json_is_array(tools) && json_array_size(tools) ? tools : NULL;
  return GR_OK;
}

gr_status gr_message_weight(const json_t *message, double *weight, gr_error *e)
{
  const json_t *w = json_object_get(message, "weight"), *train = json_object_get(message, "train");
  *weight = 1;
  if (w && !json_is_null(w)) {
    if (!json_is_number(w) || !(json_number_value(w) >= 0) || json_number_value(w) > 1e6)
      return gr_fail(e, GR_ERR_FORMAT, "\"weight\" must be a number of 0 or more");
    *weight = json_number_value(w);
  }
  if (train && !json_is_null(train)) {
    if (!json_is_boolean(train)) return gr_fail(e, GR_ERR_FORMAT, "\"train\" must be true or false");
    if (json_is_false(train)) *weight = 0;
  }
  return GR_OK;
}

gr_status gr_record_read(const json_t *record, gr_data_format format, gr_conversation *c, gr_error *e)
{
  *c = (gr_conversation){ 0 };
  if (!json_is_object(record)) return gr_fail(e, GR_ERR_FORMAT, "a record must be a JSON object");
  GR_TRY(gr_message_weight(record, &c->weight, e));
  if (format == GR_DATA_TEXT) {
    const json_t *text = json_object_get(record, "text");
    if (!json_is_string(text)) return gr_fail(e, GR_ERR_FORMAT, "\"text\" must be text");
    c->text = json_string_value(text);
    c->text_len = json_string_length(text);
    return GR_OK;
  }
  c->messages = json_array();
  if (!c->messages) return gr_fail_memory(e, 64);
  gr_status s = GR_OK;
  switch (format) {
  case GR_DATA_MESSAGES: s = read_messages(record, c, e); break;
  case GR_DATA_PROMPT: s = read_pair(record, "prompt", json_object_get(record, "completion") ? "completion" : "response", c, e); break;
  case GR_DATA_QA: s = read_pair(record, "question", "answer", c, e); break;
  case GR_DATA_ALPACA: s = read_alpaca(record, c, e); break;
  case GR_DATA_SHAREGPT: s = read_sharegpt(record, c, e); break;
  default:
    s = gr_fail(e, GR_ERR_FORMAT,
                "the record has none of the keys that Graft knows: messages, conversations, instruction, prompt, question, text");
    break;
  }
  if (s == GR_OK && json_array_size(c->messages) == 0) s = gr_fail(e, GR_ERR_FORMAT, "the conversation is empty");
  if (s != GR_OK) gr_conversation_free(c);
  return s;
}

void gr_conversation_free(gr_conversation *c)
{
  json_decref(c->messages);
  *c = (gr_conversation){ 0 };
}
