/* Chat templates: from messages to the text a model was taught on, with the origin of every byte, and the stretches of it that
 * training counts.
 *
 * A template is the Jinja program that a model carries (tokenizer.chat_template). Its environment is the one Hugging Face
 * transformers gives it: trim_blocks, lstrip_blocks, a sandbox without attributes that start with an underscore, loop controls,
 * `{% generation %}`; docs/templates.md lists what is understood. A parsed template never changes: threads may share it.
 *
 * Rendered bytes know where they come from. Bytes that the template wrote may be control tokens; bytes that a message, a tool
 * definition or a variable brought must not be, whatever they spell: "<|im_end|>" in a user's text is text. */
#ifndef GR_TEXT_CHAT_H
#define GR_TEXT_CHAT_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "io/gguf.h"

typedef struct gr_template gr_template;

/* Parses n bytes of template text; name (copied) is what errors call it. GR_ERR_FORMAT names the line of a syntax error,
 * GR_ERR_UNSUPPORTED of a statement that Jinja has and Graft has not. */
gr_status gr_template_parse(gr_template **t, const char *text, size_t n, const char *name, gr_error *e);
void gr_template_free(gr_template *t); /* NULL is fine */

/* The template that a model file carries: tokenizer.chat_template, or with a variant ("tool_use") tokenizer.chat_template.VARIANT.
 * A file without one gives the built-in ChatML template (whose form depends on the vocabulary) and *builtin true; a variant that the file
 * has not is refused with the names of those it has. */
gr_status gr_template_from_gguf(gr_template **t, const gr_gguf *g, const char *variant, bool *builtin, gr_error *e);

/* ChatML, for models that carry no template. The caller says that it was used. im_end: the vocabulary has the token <|im_end|>;
 * without it assistant turns end with eos_token, and where there is none rendering is refused. */
gr_status gr_template_builtin(gr_template **t, bool im_end, gr_error *e);

/* What errors call it. */
const char *gr_template_name(const gr_template *t);

bool gr_template_quotes(const gr_template *t, const char *word); /* the word stands in it as a string: it may be a role that it knows */
bool gr_template_has_generation(const gr_template *t);           /* it has {% generation %} blocks: they decide what is trained */

/* What a render may use up before it is refused; 0 means the default, which grows with the size of the messages. */
typedef struct gr_template_limits {
  size_t steps; /* evaluated nodes, plus work on long strings: 10 million and 64 for each byte of input */
  size_t bytes; /* memory for values and output: 64 MiB and 64 for each byte of input */
  size_t depth; /* nested evaluations, macro calls included: 1000 */
} gr_template_limits;

typedef struct gr_render_options {
  bool add_generation_prompt;
  const json_t *tools;     /* array of tool definitions, or NULL: the template sees none */
  const json_t *variables; /* object of further variables (enable_thinking, date_string, ...), or NULL; they win over all others */
  const char *bos_token;   /* as the tokenizer writes them; NULL: the variable is undefined. They may be control tokens. */
  const char *eos_token;
  int64_t now;               /* what strftime_now() formats: seconds since 1970-01-01 00:00 on the calendar that is meant */
  bool parse_tool_arguments; /* tool-call arguments that are a string holding a JSON object are given to the template as the object */
  bool json_containers;      /* lists and dictionaries print as JSON (as @huggingface/jinja does), not as Python does */
  gr_template_limits limits;
} gr_render_options;

typedef enum gr_origin {
  GR_ORIGIN_TEMPLATE, /* written by the template, or bos_token or eos_token */
  GR_ORIGIN_MESSAGE,  /* from messages[message].field */
  GR_ORIGIN_TOOLS,    /* from the tool definitions */
  GR_ORIGIN_VARIABLE  /* from options.variables */
} gr_origin;

typedef enum gr_field {
  GR_FIELD_NONE, /* not from a message */
  GR_FIELD_ROLE,
  GR_FIELD_CONTENT,
  GR_FIELD_REASONING,      /* reasoning_content, reasoning, thinking, thought */
  GR_FIELD_TOOL_CALL,      /* of tool_calls or function_call: names, ids, types */
  GR_FIELD_TOOL_ARGUMENTS, /* of tool_calls or function_call: the arguments */
  GR_FIELD_NAME,
  GR_FIELD_OTHER
} gr_field;

/* Bytes start..end-1 have one origin. `control` is true where the tokenizer may recognise control tokens: template bytes, and
 * the role of a message when it is one of the well-known words (templates write '<|' + role + '|>'). A control token may span
 * neighbouring runs that are all `control`: use gr_rendered_stretch. */
typedef struct gr_text_run {
  size_t start, end;
  gr_origin origin;
  gr_field field;
  size_t message; /* index into messages; 0 unless origin is GR_ORIGIN_MESSAGE */
  bool control;
} gr_text_run;

typedef struct gr_text_span {
  size_t start, end;
} gr_text_span;

typedef struct gr_rendered {
  char *text; /* UTF-8, NUL-terminated; may hold NULs */
  size_t len;
  gr_text_run *runs; /* ascending, adjacent, covering 0..len; neighbours differ */
  size_t n_runs;
  gr_text_span *generation; /* what {% generation %} blocks wrote, one each, empty ones left out; ascending */
  size_t n_generation;
} gr_rendered;

/* Renders messages (an array of objects; borrowed) into *out, which gr_rendered_free empties. What the template itself refuses
 * (raise_exception) is GR_ERR_MISMATCH; an error in the template GR_ERR_FORMAT; a limit GR_ERR_UNSUPPORTED. The sentence names
 * the template's line. */
gr_status gr_template_render(const gr_template *t, const json_t *messages, const gr_render_options *o, gr_rendered *out, gr_error *e);
void gr_rendered_free(gr_rendered *r);

/* The end of the longest stretch that begins at run i (an index, less than n_runs) with `control` unchanged: the index of the
 * first run behind it. */
size_t gr_rendered_stretch(const gr_rendered *r, size_t i);

/* --- What is trained ------------------------------------------------------------------------------------------------------- */

typedef struct gr_chat_span {
  size_t start, end; /* bytes of the rendered text */
  size_t message;    /* the assistant message that it belongs to */
  bool closed;       /* ends with (or, under generation marks, holds) one of the end-of-turn strings */
} gr_chat_span;

typedef struct gr_chat_spans {
  gr_chat_span *items; /* ascending, not overlapping */
  size_t count;
  size_t dropped;        /* how many assistant messages lost a field that was not empty (thinking that the template strips) */
  size_t failed_message; /* when locating failed: the message that could not be located */
} gr_chat_spans;

/* Locates the trained bytes of every assistant message. Generation marks decide where the template has them. Else a span begins
 * where the prompt of that turn ends (the messages before it, rendered with the generation prompt), or where that cannot be told
 * at the first byte of the message; it holds everything that the model itself must write, and ends with the first of the
 * end_of_turn strings in the template's bytes behind the message (closed), or with the message's last byte. A message with
 * nothing in it has a span of the closing token alone.
 * GR_ERR_MISMATCH names the message and the reason when bytes of it that must be trained are not in the text. */
gr_status gr_chat_locate(const gr_template *t, const json_t *messages, const gr_render_options *o, const gr_rendered *r,
                         const char *const *end_of_turn, size_t n_end_of_turn, gr_chat_spans *out, gr_error *e);
void gr_chat_spans_free(gr_chat_spans *s);

#endif
