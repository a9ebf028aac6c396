/* graft render: a conversation as a chat template writes it, and which bytes of it training would count. */
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "text/chat.h"
#include "text/json_guard.h"
#include "text/tokenizer.h"

struct options {
  const char *model, *template_file, *variant, *messages, *tools, *variables, *bos, *eos;
  gr_arg_list ends;
  bool prompt, spans, parse_arguments, json;
};

/* Everything that a rendering needs, and what comes of it. */
struct render {
  gr_template *chat;
  json_t *input, *tools, *variables; /* owned */
  const json_t *messages;            /* in input */
  char *bos, *eos;                   /* NULL: not known */
  const char **ends;                 /* the first n_owned of them are ours */
  size_t n_ends, n_owned, cap;
  gr_rendered text;
  gr_chat_spans spans;
};

/* ---- input ---- */

static gr_status read_json(const char *path, json_t **out, gr_error *e)
{
  char *text = NULL;
  size_t n = 0;
  json_error_t why;
  if (!path) return GR_OK;
  GR_TRY(gr_file_read(path, (size_t)1 << 30, &text, &n, e));
  size_t mark = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
  *out = gr_json_parse(text + mark, n - mark, JSON_ALLOW_NUL, &why);
  gr_free(text);
  if (!*out && json_error_code(&why) == json_error_end_of_input_expected)
    return gr_fail(e, GR_ERR_FORMAT,
                   "%s:%d: one JSON value is wanted and another follows it: give a file of one (of JSONL, one line: head -n 1 does that)",
                   path, why.line);
  return *out ? GR_OK : gr_fail(e, GR_ERR_FORMAT, "%s:%d: not JSON: %s", path, why.line, why.text);
}

/* A list of messages, or an object that holds one (and perhaps tools). */
static gr_status read_input(const struct options *o, struct render *r, gr_error *e)
{
  if (!o->messages) return gr_fail(e, GR_ERR_USAGE, "give the conversation with --messages FILE (- is standard input)");
  GR_TRY(read_json(o->messages, &r->input, e));
  GR_TRY(read_json(o->tools, &r->tools, e));
  GR_TRY(read_json(o->variables, &r->variables, e));
  r->messages = json_is_array(r->input) ? r->input : json_object_get(r->input, "messages");
  if (!r->tools) r->tools = json_incref(json_object_get(r->input, "tools"));
  if (!json_is_array(r->messages))
    return gr_fail(e, GR_ERR_FORMAT, "%s must hold a list of messages, or an object with \"messages\"", o->messages);
  for (size_t i = 0; i < json_array_size(r->messages); i++)
    if (!json_is_object(json_array_get(r->messages, i)))
      return gr_fail(e, GR_ERR_FORMAT, "%s: message %zu is not an object", o->messages, i + 1);
  if (r->tools && !json_is_array(r->tools) && !json_is_null(r->tools)) return gr_fail(e, GR_ERR_FORMAT, "the tools must be a list");
  return GR_OK;
}

static gr_status copy_text(char **out, const char *text, size_t n, gr_error *e)
{
  *out = gr_strndup(text ? text : "", n);
  return *out ? GR_OK : gr_fail_memory(e, n);
}

static gr_status push_end(struct render *r, const char *text, gr_error *e)
{
  if (!gr_grow((void **)&r->ends, &r->cap, r->n_ends + 1, sizeof *r->ends)) return gr_fail_memory(e, r->cap * sizeof *r->ends);
  r->ends[r->n_ends++] = text;
  return GR_OK;
}

/* The template of a model, with its BOS, EOS and end-of-turn tokens. */
static gr_status from_model(const struct options *o, struct render *r, gr_error *e)
{
  gr_gguf *file = NULL;
  gr_tokenizer *t = NULL;
  bool builtin = false;
  gr_status s = gr_cli_vocabulary_open(o->model, &file, &t, e);
  if (s == GR_OK && !o->template_file) s = gr_template_from_gguf(&r->chat, file, o->variant, &builtin, e);
  if (s == GR_OK && builtin) fprintf(stderr, "the model has no chat template: this is %s\n", gr_template_name(r->chat));
  gr_text_view b = gr_tokenizer_text(t, s == GR_OK ? gr_tokenizer_role(t, GR_ROLE_BOS) : -1);
  gr_text_view x = gr_tokenizer_text(t, s == GR_OK ? gr_tokenizer_role(t, GR_ROLE_EOS) : -1);
  if (s == GR_OK) s = copy_text(&r->bos, b.data, b.len, e);
  if (s == GR_OK) s = copy_text(&r->eos, x.data, x.len, e);
  for (int32_t id = 0; s == GR_OK && (size_t)id < gr_tokenizer_vocab_size(t); id++) {
    if (!gr_tokenizer_is_eog(t, id)) continue;
    gr_text_view v = gr_tokenizer_text(t, id);
    char *copy;
    s = copy_text(&copy, v.data, v.len, e);
    if (s == GR_OK && (s = push_end(r, copy, e)) != GR_OK) gr_free(copy);
    r->n_owned += s == GR_OK;
  }
  gr_tokenizer_free(t);
  gr_gguf_close(file);
  return s;
}

static gr_status from_file(const struct options *o, struct render *r, gr_error *e)
{
  char *text = NULL;
  size_t n = 0;
  GR_TRY(gr_file_read(o->template_file, (size_t)1 << 24, &text, &n, e));
  gr_status s = gr_template_parse(&r->chat, text, n, o->template_file, e);
  gr_free(text);
  return s;
}

/* Without a model, the end-of-turn strings that are in wide use. */
static gr_status default_ends(struct render *r, gr_error *e)
{
  static const char *const usual[] = { "<|im_end|>", "<|eot_id|>", "<|eom_id|>",      "<end_of_turn>", "<|end|>",
                                       "</s>",       "<|return|>", "<|end_of_text|>", "<|endoftext|>", "<|eot|>" };
  for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) GR_TRY(push_end(r, usual[i], e));
  return GR_OK;
}

static gr_status prepare(const struct options *o, struct render *r, gr_error *e)
{
  if (!o->model && !o->template_file) return gr_fail(e, GR_ERR_USAGE, "give a model with -m FILE, or a template with --template FILE");
  if (o->variant && o->template_file) return gr_fail(e, GR_ERR_USAGE, "--variant names a template of the model: not with --template");
  GR_TRY(read_input(o, r, e));
  if (o->template_file) GR_TRY(from_file(o, r, e));
  if (o->model) GR_TRY(from_model(o, r, e));
  if (o->ends.n) r->n_ends = r->n_owned; /* what is told comes behind what the model has */
  for (size_t i = 0; i < o->ends.n; i++) GR_TRY(push_end(r, o->ends.items[i], e));
  return r->n_ends ? GR_OK : default_ends(r, e);
}

/* ---- output ---- */

static json_t *spans_json(const gr_chat_spans *s)
{
  json_t *list = json_array();
  for (size_t i = 0; i < s->count; i++)
    json_array_append_new(list, json_pack("{s:I,s:I,s:I,s:b}", "start", (json_int_t)s->items[i].start, "end", (json_int_t)s->items[i].end,
                                          "message", (json_int_t)s->items[i].message, "closed", s->items[i].closed));
  return list;
}

static void print_json(const struct options *o, const struct render *r)
{
  json_t *all = json_pack("{s:o}", "text", gr_cli_json_text(r->text.text, r->text.len)), *marks = json_array();
  for (size_t i = 0; i < r->text.n_generation; i++)
    json_array_append_new(marks, json_pack("[I,I]", (json_int_t)r->text.generation[i].start, (json_int_t)r->text.generation[i].end));
  json_object_set_new(all, "generation", marks);
  if (o->spans) json_object_set_new(all, "spans", spans_json(&r->spans));
  gr_cli_json(all);
}

static void print_text(const struct render *r)
{
  size_t at = 0;
  for (size_t i = 0; i < r->spans.count; i++) {
    const gr_chat_span *s = &r->spans.items[i];
    fwrite(r->text.text + at, 1, s->start - at, stdout);
    fputs("[[", stdout);
    fwrite(r->text.text + s->start, 1, s->end - s->start, stdout);
    fputs("]]", stdout);
    at = s->end;
  }
  fwrite(r->text.text + at, 1, r->text.len - at, stdout);
}

static gr_status run(const struct options *o, struct render *r, gr_error *e)
{
  GR_TRY(prepare(o, r, e));
  gr_render_options ro = { .add_generation_prompt = o->prompt,
                           .tools = json_is_null(r->tools) ? NULL : r->tools,
                           .variables = r->variables,
                           .bos_token = o->bos ? o->bos : r->bos,
                           .eos_token = o->eos ? o->eos : r->eos,
                           .now = (int64_t)time(NULL),
                           .parse_tool_arguments = o->parse_arguments };
  GR_TRY(gr_template_render(r->chat, r->messages, &ro, &r->text, e));
  if (o->spans) GR_TRY(gr_chat_locate(r->chat, r->messages, &ro, &r->text, r->ends, r->n_ends, &r->spans, e));
  if (o->json) print_json(o, r);
  else print_text(r);
  return GR_OK;
}

static void render_free(struct render *r)
{
  gr_chat_spans_free(&r->spans);
  gr_rendered_free(&r->text);
  gr_template_free(r->chat);
  json_decref(r->input);
  json_decref(r->tools);
  json_decref(r->variables);
  for (size_t i = 0; i < r->n_owned; i++) gr_free((void *)(uintptr_t)r->ends[i]);
  gr_free((void *)r->ends);
  gr_free(r->bos);
  gr_free(r->eos);
}

int gr_cmd_render(int argc, char **argv)
{
  struct options o = { 0 };
  struct render r = { 0 };
  const gr_arg args[] = {
    { "-m --model", GR_ARG_TEXT, "FILE", "a GGUF file: its chat template and tokens", &o.model, NULL },
    { "--template --chat-template", GR_ARG_TEXT, "FILE", "a Jinja chat template, instead of the model's", &o.template_file, NULL },
    { "--variant", GR_ARG_TEXT, "NAME", "a named template of the model, such as tool_use", &o.variant, NULL },
    { "--messages", GR_ARG_TEXT, "FILE", "JSON: a list of messages, or an object with messages and tools", &o.messages, NULL },
    { "--tools", GR_ARG_TEXT, "FILE", "JSON: a list of tool definitions", &o.tools, NULL },
    { "--variables", GR_ARG_TEXT, "FILE", "JSON: an object of further template variables", &o.variables, NULL },
    { "--add-generation-prompt", GR_ARG_FLAG, NULL, "end with what stands before the assistant's answer", &o.prompt, NULL },
    { "--parse-tool-arguments", GR_ARG_FLAG, NULL, "give the template tool arguments as objects", &o.parse_arguments, NULL },
    { "--bos-token", GR_ARG_TEXT, "TEXT", "bos_token (default: the model's)", &o.bos, NULL },
    { "--eos-token", GR_ARG_TEXT, "TEXT", "eos_token (default: the model's)", &o.eos, NULL },
    { "--end-of-turn", GR_ARG_LIST, "TEXT", "what ends a turn (default: the model's end tokens, or the usual ones); may be repeated",
      &o.ends, NULL },
    { "--spans", GR_ARG_FLAG, NULL, "put [[ ]] around what training counts", &o.spans, NULL },
    { "--json", GR_ARG_FLAG, NULL, "one JSON object on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL, "usage: graft render -m MODEL | --template FILE --messages FILE [options]", &status))
    status = run(&o, &r, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  render_free(&r);
  gr_arg_list_free(&o.ends);
  return status;
}
