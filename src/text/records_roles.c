/* Who speaks: the roles of templates, and the names that ShareGPT's data sets have for them. */
#include <string.h>

#include "base/alloc.h"
#include "text/records.h"

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

/* Calls and their answers are numbered through the conversation as templates want ids: nine letters and digits. */
static gr_status number_calls(gr_conversation *c, json_t *calls, gr_error *e)
{
  for (size_t i = 0; i < json_array_size(calls); i++)
    if (json_object_set_new(json_array_get(calls, i), "id", json_sprintf("call%05zu", ++c->calls % 100000)) < 0)
      return gr_fail_memory(e, 64);
  return GR_OK;
}

static gr_status sharegpt_message(gr_conversation *c, const json_t *turn, const char *role, enum sharegpt_kind kind, size_t number,
                                  json_t **out, gr_error *e)
{
  static const char *const extras[] = { "weight", "train", "name" };
  json_t *value = json_object_get(turn, json_object_get(turn, "value") ? "value" : "content"), *calls = NULL;
  if (!value) return gr_fail(e, GR_ERR_FORMAT, "message %zu has no \"value\"", number);
  if (kind == CALLS && json_is_string(value)) GR_TRY(gr_calls_from_text(json_string_value(value), json_string_length(value), &calls, e));
  if (kind == CALLS && !calls) c->events[GR_DATA_CALLS_UNREAD]++;
  json_t *m = calls ? json_pack("{s:s,s:s,s:O}", "role", role, "content", "", "tool_calls", calls)
                    : json_pack("{s:s,s:O}", "role", role, "content", value);
  gr_status s = m ? GR_OK : gr_fail_memory(e, 64);
  if (s == GR_OK && calls) s = number_calls(c, calls, e);
  json_decref(calls);
  if (s == GR_OK && kind == ANSWERS && c->answers < c->calls &&
      json_object_set_new(m, "tool_call_id", json_sprintf("call%05zu", ++c->answers % 100000)) < 0)
    s = gr_fail_memory(e, 64);
  for (size_t k = 0; s == GR_OK && k < sizeof extras / sizeof *extras; k++) {
    json_t *v = json_object_get(turn, extras[k]);
    if (v && json_object_set(m, extras[k], v) < 0) s = gr_fail_memory(e, 64);
  }
  if (s == GR_OK) *out = m;
  else json_decref(m);
  return s;
}

gr_status gr_conversation_sharegpt(gr_conversation *c, const json_t *turn, size_t number, gr_error *e)
{
  const json_t *from = json_object_get(turn, "from");
  enum sharegpt_kind kind;
  if (!from) from = json_object_get(turn, "role");
  if (!json_is_string(from)) return gr_fail(e, GR_ERR_FORMAT, "message %zu does not say who speaks (\"from\")", number);
  const char *role = sharegpt_role(json_string_value(from), &kind);
  if (!role) return gr_fail(e, GR_ERR_FORMAT, "message %zu is from '%.40s', whom Graft does not know", number, json_string_value(from));
  json_t *m = NULL;
  GR_TRY(sharegpt_message(c, turn, role, kind, number, &m, e));
  return gr_conversation_add(c, m, number, e);
}

static bool is_native(const char *role)
{
  static const char *const roles[] = { "system", "developer", "user", "assistant", "model", "tool", "function" };
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
    if (strcmp(roles[i], role) == 0) return true;
  return false;
}

gr_status gr_conversation_turn(gr_conversation *c, json_t *turn, size_t number, gr_error *e)
{
  const char *is = json_string_value(json_object_get(turn, "role"));
  enum sharegpt_kind kind = SAYS;
  const char *role = is && !is_native(is) ? sharegpt_role(is, &kind) : NULL;
  bool native = !is || is_native(is);
  if (!native && !(role && kind == SAYS) && c->support->chat && gr_template_quotes(c->support->chat, is)) native = true;
  if (native) return gr_conversation_add(c, json_incref(turn), number, e);
  if (!role)
    return gr_fail(e, GR_ERR_MISMATCH,
                   "message %zu has the role '%.40s', which is not one of system, developer, user, assistant, tool, nor one that the chat "
                   "template names",
                   number, is);
  if (kind == SAYS) {
    if (json_object_set_new(turn, "role", json_string(role)) < 0) return gr_fail_memory(e, 64);
    return gr_conversation_add(c, json_incref(turn), number, e);
  }
  json_t *m = NULL;
  GR_TRY(sharegpt_message(c, turn, role, kind, number, &m, e));
  return gr_conversation_add(c, m, number, e);
}
