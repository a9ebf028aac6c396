/* Records of many forms to one: a conversation (messages, tools), or bare text. What is done to a record on the way is counted. */
#ifndef GR_TEXT_RECORDS_H
#define GR_TEXT_RECORDS_H
#include <jansson.h>

#include "base/buf.h"
#include "text/dataset.h"

/* What a chat template does with tools, found out by rendering a small conversation with them. */
typedef struct gr_tool_support {
  bool definitions;        /* it writes the tools that are on offer */
  bool calls;              /* it writes an assistant's tool calls */
  bool answers;            /* it takes messages of role "tool" */
  bool objects;            /* it writes arguments that are objects as JSON */
  const gr_template *chat; /* whose this is; borrowed, NULL: none */
  bool parse_arguments;    /* it garbles arguments that are strings of JSON: they must be given as objects */
} gr_tool_support;

gr_status gr_tool_support_probe(gr_tool_support *s, const gr_template *t, const gr_render_options *o, gr_error *e);

typedef struct gr_conversation {
  json_t *messages; /* array, owned; NULL for text */
  json_t *tools;    /* owned; NULL when there are none */
  const char *text; /* borrowed from the record; bare text, all of it trained */
  size_t text_len;
  double weight;                  /* of the record */
  size_t events[GR_DATA_EVENTS];  /* what was done to it: GR_DATA_CALLS_AS_TEXT and the like */
  bool learnable;                 /* an assistant message of weight above 0 says or calls something */
  const gr_tool_support *support; /* borrowed */
  size_t keyed;                   /* messages that come from a key of the record ("system"), not from its list */
  size_t calls, answers;          /* numbered so far, of turns in ShareGPT's manner */
  const char *read[12];           /* keys of the record that were read */
  size_t n_read;
} gr_conversation;

/* The form of a record by its keys; GR_DATA_AUTO when none fits. */
gr_data_format gr_record_format(const json_t *record);

/* GR_ERR_MISMATCH: the record is well-formed and cannot be used, since nobody knows a role in it.
 * GR_ERR_FORMAT says what is wrong with the record, without file and line. The record may be changed. A conversation without
 * messages is fine here: it is not learnable. */
gr_status gr_record_read(json_t *record, gr_data_format format, const gr_tool_support *support, gr_conversation *out, gr_error *e);
void gr_conversation_free(gr_conversation *c);

/* Whether a key of the record says something that was not read, and is not one of those that say where a record is from ("id"). */
bool gr_record_lost(const gr_conversation *c, const char *key, const json_t *value);

/* Weight of a message or record: its "weight" (default 1; 0 or more), 0 when "train" is false. */
gr_status gr_message_weight(const json_t *message, double *weight, gr_error *e);

/* ---- between records.c, records_keys.c, records_roles.c, records_turns.c and records_tools.c ---- */

/* The value of a key, which counts as read from now on. */
json_t *gr_record_take(gr_conversation *c, const json_t *record, const char *key);
/* The first of some keys that the record has; the first of all when it has none. */
const char *gr_record_key_of(const json_t *record, const char *const *keys);

/* A turn of {"role", "content"}, whose role may be one of ShareGPT's; and one of {"from", "value"}. `number`: what errors call it. */
gr_status gr_conversation_turn(gr_conversation *c, json_t *turn, size_t number, gr_error *e);
gr_status gr_conversation_sharegpt(gr_conversation *c, const json_t *turn, size_t number, gr_error *e);

/* Appends a message after putting it in order: content to text, calls checked or written as text. Takes the reference. `turn` (from
 * 1) is what errors call it. */
gr_status gr_conversation_add(gr_conversation *c, json_t *message, size_t turn, gr_error *e);

/* Tool definitions: a list, or the text of one; bare ones are wrapped as {"type": "function", "function": ...}. */
gr_status gr_conversation_set_tools(gr_conversation *c, json_t *tools, gr_error *e);

/* A ShareGPT turn that calls functions: text of {"name", "arguments"} or of a list of them. False when it is not of that form. */
gr_status gr_calls_from_text(const char *text, size_t n, json_t **calls, gr_error *e);

/* JSON as Python's json.dumps writes it without ASCII escapes: ", " and ": ", shortest floats. */
void gr_json_write(gr_buf *out, const json_t *json);
json_t *gr_json_as_text(const json_t *json, gr_error *e); /* the same, as a JSON string */

/* Text with something other than white space in it. */
bool gr_json_says(const json_t *text);

#endif
