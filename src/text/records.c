#include "text/records.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

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

/* ---- forms ---- */

/* The turns of a conversation, under the names that are in use. */
static json_t *turns_of(const json_t *record)
{
  static const char *const keys[] = { "messages", "conversations", "conversation" };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    json_t *turns = json_object_get(record, keys[i]);
    if (turns) return turns;
  }
  return NULL;
}

gr_data_format gr_record_format(const json_t *record)
{
  static const struct {
    const char *key;
    gr_data_format format;
  } keys[] = { { "instruction", GR_DATA_ALPACA }, { "prompt", GR_DATA_PROMPT }, { "question", GR_DATA_QA }, { "text", GR_DATA_TEXT } };
  const json_t *turns = turns_of(record), *first = json_array_get(turns, 0);
  if (json_object_get(first, "from")) return GR_DATA_SHAREGPT;
  if (json_object_get(first, "role")) return GR_DATA_MESSAGES;
  if (turns) return json_object_get(record, "messages") ? GR_DATA_MESSAGES : GR_DATA_SHAREGPT;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (json_object_get(record, keys[i].key)) return keys[i].format;
  return GR_DATA_AUTO;
}

/* A message with the text of a field: a string, or a number written out (people export answers as numbers). */
static gr_status add_field(gr_conversation *c, const char *role, const json_t *value, const char *key, gr_error *e)
{
  if (!value || json_is_null(value)) return gr_fail(e, GR_ERR_FORMAT, "the key \"%s\" is missing", key);
  if (!json_is_string(value) && !json_is_number(value)) return gr_fail(e, GR_ERR_FORMAT, "\"%s\" must be text", key);
  json_t *m = json_pack("{s:s,s:O}", "role", role, "content", value);
  return gr_conversation_add(c, m, json_array_size(c->messages) + 1, e);
}

static gr_status add_system(gr_conversation *c, const json_t *record, gr_error *e)
{
  const json_t *system = json_object_get(record, "system");
  if (!system || json_is_null(system) || (json_is_string(system) && !gr_json_says(system))) return GR_OK;
  return add_field(c, "system", system, "system", e);
}

/* The first of some keys that the record has; the first of all when it has none. */
static const char *key_of(const json_t *record, const char *const *keys)
{
  for (size_t i = 0; keys[i]; i++)
    if (json_object_get(record, keys[i])) return keys[i];
  return keys[0];
}

static gr_status read_turns(json_t *turns, const char *key, gr_conversation *c, gr_error *e)
{
  if (!json_is_array(turns)) return gr_fail(e, GR_ERR_FORMAT, "\"%s\" must be a list of messages", key);
  for (size_t i = 0; i < json_array_size(turns); i++)
    GR_TRY(gr_conversation_add(c, json_incref(json_array_get(turns, i)), json_array_size(c->messages) + 1, e));
  return GR_OK;
}

/* Prompt and completion, as texts or as lists of messages; what the assistant says in a prompt is not trained. */
static gr_status read_pair(const json_t *record, const char *ask, const char *const *answers, gr_conversation *c, gr_error *e)
{
  const char *answer = key_of(record, answers);
  json_t *prompt = json_object_get(record, ask), *completion = json_object_get(record, answer);
  if (json_is_array(prompt)) {
    for (size_t i = 0; i < json_array_size(prompt); i++)
      if (json_is_object(json_array_get(prompt, i)) && json_object_set_new(json_array_get(prompt, i), "train", json_false()) < 0)
        return gr_fail_memory(e, 64);
    GR_TRY(read_turns(prompt, ask, c, e));
  } else {
    GR_TRY(add_system(c, record, e));
    GR_TRY(add_field(c, "user", prompt, ask, e));
  }
  return json_is_array(completion) ? read_turns(completion, answer, c, e) : add_field(c, "assistant", completion, answer, e);
}

static gr_status put_text(gr_buf *out, const json_t *record, const char *key, bool required, gr_error *e)
{
  const json_t *v = json_object_get(record, key);
  if (json_is_string(v)) gr_buf_append(out, json_string_value(v), json_string_length(v));
  else if (json_is_number(v)) gr_json_write(out, v);
  else if (required && !v) return gr_fail(e, GR_ERR_FORMAT, "the key \"%s\" is missing", key);
  else if (required || (v && !json_is_null(v))) return gr_fail(e, GR_ERR_FORMAT, "\"%s\" must be text", key);
  return GR_OK;
}

/* Instruction and input are joined by a blank line, as the data set's own prompt sets them apart. */
static gr_status read_alpaca(const json_t *record, gr_conversation *c, gr_error *e)
{
  static const char *const answers[] = { "output", "response", "completion", "answer", NULL };
  gr_buf ask = { 0 }, extra = { 0 };
  const char *answer = key_of(record, answers);
  GR_TRY(add_system(c, record, e));
  gr_status s = put_text(&ask, record, "instruction", true, e);
  if (s == GR_OK) s = put_text(&extra, record, "input", false, e);
  if (s == GR_OK && extra.len) gr_buf_puts(&ask, ask.len ? "\n\n" : "");
  if (s == GR_OK && extra.len) gr_buf_append(&ask, extra.data, extra.len);
  if (s == GR_OK) {
    json_t *text = ask.failed || extra.failed ? NULL : json_stringn(ask.data ? ask.data : "", ask.len);
    s = text ? add_field(c, "user", text, "instruction", e) : gr_fail_memory(e, ask.len);
    json_decref(text);
  }
  gr_buf_free(&ask);
  gr_buf_free(&extra);
  return s == GR_OK ? add_field(c, "assistant", json_object_get(record, answer), answer, e) : s;
}

/* ---- ShareGPT ---- */

enum sharegpt_kind { SAYS, CALLS, ANSWERS };

static const char *sharegpt_role(const char *from, enum sharegpt_kind *kind)
{
  static const struct {
    const char *from, *role;
    enum sharegpt_kind kind;
  } map[] = {
    { "human", "user", SAYS },
    { "user", "user", SAYS },
    { "gpt", "assistant", SAYS },
    { "assistant", "assistant", SAYS },
    { "chatgpt", "assistant", SAYS },
    { "bing", "assistant", SAYS },
    { "bard", "assistant", SAYS },
    { "model", "assistant", SAYS },
    { "system", "system", SAYS },
    { "tool", "tool", ANSWERS },
    { "observation", "tool", ANSWERS },
    { "function_response", "tool", ANSWERS },
    { "tool_response", "tool", ANSWERS },
    { "function_call", "assistant", CALLS },
    { "tool_call", "assistant", CALLS },
  };
  for (size_t i = 0; i < sizeof map / sizeof *map; i++)
    if (strcmp(map[i].from, from) == 0) {
      *kind = map[i].kind;
      return map[i].role;
    }
  return NULL;
}

/* Calls and their answers, numbered through the conversation as templates want ids: nine letters and digits. */
struct numbering {
  size_t calls, answers;
};

static gr_status number_calls(json_t *calls, struct numbering *n, gr_error *e)
{
  for (size_t i = 0; i < json_array_size(calls); i++)
    if (json_object_set_new(json_array_get(calls, i), "id", json_sprintf("call%05zu", ++n->calls % 100000)) < 0)
      return gr_fail_memory(e, 64);
  return GR_OK;
}

static gr_status sharegpt_message(const json_t *turn, const char *role, enum sharegpt_kind kind, struct numbering *n, gr_conversation *c,
                                  json_t **out, gr_error *e)
{
  static const char *const extras[] = { "weight", "train", "name" };
  json_t *value = json_object_get(turn, json_object_get(turn, "value") ? "value" : "content"), *calls = NULL;
  size_t number = json_array_size(c->messages) + 1;
  if (!value) return gr_fail(e, GR_ERR_FORMAT, "message %zu has no \"value\"", number);
  if (kind == CALLS && json_is_string(value)) GR_TRY(gr_calls_from_text(json_string_value(value), json_string_length(value), &calls, e));
  if (kind == CALLS && !calls) c->events[GR_DATA_CALLS_UNREAD]++;
  json_t *m = calls ? json_pack("{s:s,s:s,s:O}", "role", role, "content", "", "tool_calls", calls)
                    : json_pack("{s:s,s:O}", "role", role, "content", value);
  gr_status s = m ? GR_OK : gr_fail_memory(e, 64);
  if (s == GR_OK && calls) s = number_calls(calls, n, e);
  json_decref(calls);
  if (s == GR_OK && kind == ANSWERS && n->answers < n->calls &&
      json_object_set_new(m, "tool_call_id", json_sprintf("call%05zu", ++n->answers % 100000)) < 0)
    s = gr_fail_memory(e, 64);
  for (size_t k = 0; s == GR_OK && k < sizeof extras / sizeof *extras; k++) {
    json_t *v = json_object_get(turn, extras[k]);
    if (v && json_object_set(m, extras[k], v) < 0) s = gr_fail_memory(e, 64);
  }
  if (s == GR_OK) *out = m;
  else json_decref(m);
  return s;
}

static gr_status read_sharegpt(const json_t *record, gr_conversation *c, gr_error *e)
{
  const json_t *turns = turns_of(record);
  struct numbering n = { 0 };
  if (!turns) return gr_fail(e, GR_ERR_FORMAT, "the key \"conversations\" is missing");
  if (!json_is_array(turns)) return gr_fail(e, GR_ERR_FORMAT, "\"conversations\" must be a list");
  GR_TRY(add_system(c, record, e));
  for (size_t i = 0; i < json_array_size(turns); i++) {
    const json_t *turn = json_array_get(turns, i), *from = json_object_get(turn, "from");
    enum sharegpt_kind kind;
    if (!from) from = json_object_get(turn, "role");
    if (!json_is_string(from)) return gr_fail(e, GR_ERR_FORMAT, "message %zu does not say who speaks (\"from\")", i + 1);
    const char *role = sharegpt_role(json_string_value(from), &kind);
    if (!role) return gr_fail(e, GR_ERR_FORMAT, "message %zu is from '%.40s', whom Graft does not know", i + 1, json_string_value(from));
    json_t *m = NULL;
    GR_TRY(sharegpt_message(turn, role, kind, &n, c, &m, e));
    GR_TRY(gr_conversation_add(c, m, json_array_size(c->messages) + 1, e));
  }
  return gr_conversation_set_tools(c, json_object_get(record, "tools"), e);
}

static gr_status read_messages(const json_t *record, gr_conversation *c, gr_error *e)
{
  json_t *messages = turns_of(record), *tools = json_object_get(record, "tools");
  if (!messages) return gr_fail(e, GR_ERR_FORMAT, "the key \"messages\" is missing");
  GR_TRY(read_turns(messages, "messages", c, e));
  return gr_conversation_set_tools(c, tools ? tools : json_object_get(record, "functions"), e);
}

/* ---- records ---- */

static gr_status read_text(const json_t *record, gr_conversation *c, gr_error *e)
{
  const json_t *text = json_object_get(record, "text");
  if (!text) return gr_fail(e, GR_ERR_FORMAT, "the key \"text\" is missing");
  if (!json_is_string(text)) return gr_fail(e, GR_ERR_FORMAT, "\"text\" must be text");
  c->text = json_string_value(text);
  c->text_len = json_string_length(text);
  c->learnable = c->text_len > 0 && c->weight > 0;
  return GR_OK;
}

static gr_status read_form(json_t *record, gr_data_format format, gr_conversation *c, gr_error *e)
{
  static const char *const completions[] = { "completion", "response", "answer", "output", NULL };
  static const char *const answers[] = { "answer", "response", "output", NULL };
  switch (format) {
  case GR_DATA_MESSAGES: return read_messages(record, c, e);
  case GR_DATA_PROMPT: return read_pair(record, "prompt", completions, c, e);
  case GR_DATA_QA: return read_pair(record, "question", answers, c, e);
  case GR_DATA_ALPACA: return read_alpaca(record, c, e);
  case GR_DATA_SHAREGPT: return read_sharegpt(record, c, e);
  default:
    return gr_fail(e, GR_ERR_FORMAT,
                   "the record has none of the keys that Graft knows: messages, conversations, instruction, prompt, question, text");
  }
}

/* Two answers of which one is to be preferred, and none to be learned; some data sets of pairs have one of these keys as well. */
static bool is_preference(const json_t *record)
{
  static const char *const learnable[] = { "messages", "completion", "response", "answer", "output", "text" };
  for (size_t i = 0; i < sizeof learnable / sizeof *learnable; i++)
    if (json_object_get(record, learnable[i])) return false;
  return json_object_get(record, "chosen") && json_object_get(record, "rejected");
}

gr_status gr_record_read(json_t *record, gr_data_format format, const gr_tool_support *support, gr_conversation *c, gr_error *e)
{
  *c = (gr_conversation){ .support = support };
  if (!json_is_object(record)) return gr_fail(e, GR_ERR_FORMAT, "a record must be a JSON object");
  if (is_preference(record))
    return gr_fail(
        e, GR_ERR_FORMAT,
        "this is preference data (\"chosen\", \"rejected\"), which Graft does not train on: to learn the chosen answers, give them "
        "as \"completion\" beside \"prompt\"");
  GR_TRY(gr_message_weight(record, &c->weight, e));
  if (format == GR_DATA_TEXT) return read_text(record, c, e);
  c->messages = json_array();
  gr_status s = c->messages ? read_form(record, format, c, e) : gr_fail_memory(e, 64);
  c->learnable = c->learnable && c->weight > 0;
  if (s != GR_OK) gr_conversation_free(c);
  return s;
}

void gr_conversation_free(gr_conversation *c)
{
  json_decref(c->messages);
  json_decref(c->tools);
  *c = (gr_conversation){ 0 };
}
