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
static const char *const turns_keys[] = { "messages", "conversations", "conversation", NULL };

static json_t *turns_of(const json_t *record) { return json_object_get(record, gr_record_key_of(record, turns_keys)); }

static json_t *take_turns(gr_conversation *c, const json_t *record)
{
  return gr_record_take(c, record, gr_record_key_of(record, turns_keys));
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

/* The system's text under a key of the record, unless the turns begin with one of their own. */
static gr_status add_system(gr_conversation *c, const json_t *record, const json_t *turns, gr_error *e)
{
  static const char *const keys[] = { "system", "system_prompt", NULL };
  const char *key = gr_record_key_of(record, keys);
  const json_t *system = gr_record_take(c, record, key), *first = json_array_get(turns, 0);
  const json_t *role = json_object_get(first, json_object_get(first, "from") ? "from" : "role");
  if (!system || json_is_null(system) || (json_is_string(system) && !gr_json_says(system))) return GR_OK;
  if (json_is_string(role) && strcmp(json_string_value(role), "system") == 0) {
    const json_t *own = json_object_get(first, json_object_get(first, "value") ? "value" : "content");
    c->events[GR_DATA_SYSTEM_TWICE] += !json_equal(system, own);
    return GR_OK;
  }
  c->keyed++;
  return add_field(c, "system", system, key, e);
}

static gr_status read_turns(json_t *turns, const char *key, gr_conversation *c, gr_error *e)
{
  if (!json_is_array(turns)) return gr_fail(e, GR_ERR_FORMAT, "\"%s\" must be a list of messages", key);
  for (size_t i = 0; i < json_array_size(turns); i++)
    GR_TRY(gr_conversation_turn(c, json_array_get(turns, i), json_array_size(c->messages) + 1 - c->keyed, e));
  return GR_OK;
}

/* Earlier turns, as pairs of a question and its answer; their answers are trained. */
static gr_status read_history(const json_t *record, gr_conversation *c, gr_error *e)
{
  const json_t *history = gr_record_take(c, record, "history");
  if (!history || json_is_null(history) || (json_is_string(history) && !gr_json_says(history))) return GR_OK;
  bool fit = json_is_array(history);
  for (size_t i = 0; fit && i < json_array_size(history); i++) {
    const json_t *pair = json_array_get(history, i);
    fit = json_array_size(pair) == 2 && json_is_string(json_array_get(pair, 0)) && json_is_string(json_array_get(pair, 1));
    if (fit) GR_TRY(add_field(c, "user", json_array_get(pair, 0), "history", e));
    if (fit) GR_TRY(add_field(c, "assistant", json_array_get(pair, 1), "history", e));
  }
  return fit ? GR_OK : gr_fail(e, GR_ERR_FORMAT, "\"history\" must be a list of earlier turns, each [\"question\", \"answer\"]");
}

/* Prompt and completion, as texts or as lists of messages; what the assistant says in a prompt is not trained. */
static gr_status read_pair(const json_t *record, const char *ask, const char *const *answers, gr_conversation *c, gr_error *e)
{
  const char *answer = gr_record_key_of(record, answers);
  json_t *prompt = gr_record_take(c, record, ask), *completion = gr_record_take(c, record, answer);
  GR_TRY(add_system(c, record, prompt, e));
  if (json_is_array(prompt)) {
    for (size_t i = 0; i < json_array_size(prompt); i++)
      if (json_is_object(json_array_get(prompt, i)) && json_object_set_new(json_array_get(prompt, i), "train", json_false()) < 0)
        return gr_fail_memory(e, 64);
    GR_TRY(read_turns(prompt, ask, c, e));
    gr_record_take(c, record, "tools");
    GR_TRY(gr_conversation_set_tools(c, json_object_get(record, "tools"), e));
  } else {
    GR_TRY(read_history(record, c, e));
    GR_TRY(add_field(c, "user", prompt, ask, e));
  }
  return json_is_array(completion) ? read_turns(completion, answer, c, e) : add_field(c, "assistant", completion, answer, e);
}

static gr_status put_text(gr_buf *out, gr_conversation *c, const json_t *record, const char *key, bool required, gr_error *e)
{
  const json_t *v = gr_record_take(c, record, key);
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
  const char *answer = gr_record_key_of(record, answers);
  GR_TRY(add_system(c, record, NULL, e));
  GR_TRY(read_history(record, c, e));
  gr_status s = put_text(&ask, c, record, "instruction", true, e);
  if (s == GR_OK) s = put_text(&extra, c, record, "input", false, e);
  if (s == GR_OK && extra.len) gr_buf_puts(&ask, ask.len ? "\n\n" : "");
  if (s == GR_OK && extra.len) gr_buf_append(&ask, extra.data, extra.len);
  if (s == GR_OK) {
    json_t *text = ask.failed || extra.failed ? NULL : json_stringn(ask.data ? ask.data : "", ask.len);
    s = text ? add_field(c, "user", text, "instruction", e) : gr_fail_memory(e, ask.len);
    json_decref(text);
  }
  gr_buf_free(&ask);
  gr_buf_free(&extra);
  return s == GR_OK ? add_field(c, "assistant", gr_record_take(c, record, answer), answer, e) : s;
}

/* ---- conversations ---- */

static gr_status read_sharegpt(const json_t *record, gr_conversation *c, gr_error *e)
{
  const json_t *turns = take_turns(c, record);
  if (!turns) return gr_fail(e, GR_ERR_FORMAT, "the key \"conversations\" is missing");
  if (!json_is_array(turns)) return gr_fail(e, GR_ERR_FORMAT, "\"conversations\" must be a list");
  GR_TRY(add_system(c, record, turns, e));
  for (size_t i = 0; i < json_array_size(turns); i++) GR_TRY(gr_conversation_sharegpt(c, json_array_get(turns, i), i + 1, e));
  return gr_conversation_set_tools(c, gr_record_take(c, record, "tools"), e);
}

static gr_status read_messages(const json_t *record, gr_conversation *c, gr_error *e)
{
  static const char *const tools[] = { "tools", "functions", NULL };
  json_t *messages = take_turns(c, record);
  if (!messages) return gr_fail(e, GR_ERR_FORMAT, "the key \"messages\" is missing");
  if (json_array_size(messages)) GR_TRY(add_system(c, record, messages, e));
  GR_TRY(read_turns(messages, "messages", c, e));
  return gr_conversation_set_tools(c, gr_record_take(c, record, gr_record_key_of(record, tools)), e);
}

/* ---- records ---- */

static gr_status read_text(const json_t *record, gr_conversation *c, gr_error *e)
{
  const json_t *text = gr_record_take(c, record, "text");
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
  gr_record_take(c, record, "weight");
  gr_record_take(c, record, "train");
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
