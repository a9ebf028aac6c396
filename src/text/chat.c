/* Rendering: messages in, text and origins out. */
#include "text/chat.h"

#include <string.h>

#include "base/alloc.h"
#include "text/jinja.h"

/* Our own words; the form is ChatML, the most widely trained one. */
static const char chatml[] = "{%- for message in messages -%}\n"
                             "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}\n"
                             "{%- endfor -%}\n"
                             "{%- if add_generation_prompt -%}\n"
                             "{{ '<|im_start|>assistant\\n' }}\n"
                             "{%- endif -%}\n";

/* For vocabularies without <|im_end|>, which would be letters there: nothing would tell a server that the turn is over. */
static const char chatml_eos[] =
    "{%- if not eos_token -%}\n"
    "{{ raise_exception('the vocabulary has neither <|im_end|> nor EOS to end a turn with: only text can be trained') }}\n"
    "{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}\n"
    "{{- eos_token if message.role == 'assistant' else '<|im_end|>' }}{{ '\\n' }}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{ '<|im_start|>assistant\\n' }}\n"
    "{%- endif -%}\n";

gr_status gr_template_builtin(gr_template **t, bool im_end, gr_error *e)
{
  if (im_end) return gr_template_parse(t, chatml, sizeof chatml - 1, "the built-in ChatML template", e);
  return gr_template_parse(t, chatml_eos, sizeof chatml_eos - 1, "the built-in ChatML template with EOS at the end of assistant turns", e);
}

const char *gr_template_name(const gr_template *t) { return t->name; }

/* --- Limits ------------------------------------------------------------------------------------------------------------------------ */

/* A measure of the input: bytes of strings, and some for every value. Recursion ends where Jansson's own parser would have. */
static size_t json_bytes(const json_t *json, int depth)
{
  size_t n = 16, i;
  json_t *j = (json_t *)(uintptr_t)json, *item; /* iterating changes nothing */
  const char *key;
  if (!json || depth > 2048) return 0;
  if (json_is_string(json)) return n + json_string_length(json);
  if (json_is_array(json)) json_array_foreach(j, i, item) n += json_bytes(item, depth + 1);
  if (json_is_object(json)) json_object_foreach(j, key, item) n += strlen(key) + json_bytes(item, depth + 1);
  return n;
}

static size_t scaled(size_t base, size_t input)
{
  size_t grown;
  return gr_mul_size(input, 64, &grown) && gr_add_size(base, grown, &grown) ? grown : SIZE_MAX;
}

static void set_limits(jinja_ctx *ctx, const json_t *messages, const gr_render_options *o)
{
  size_t input = json_bytes(messages, 0) + json_bytes(o->tools, 0) + json_bytes(o->variables, 0);
  ctx->steps_left = o->limits.steps ? o->limits.steps : scaled(10 * 1000 * 1000, input);
  ctx->bytes_left = o->limits.bytes ? o->limits.bytes : scaled((size_t)64 << 20, input);
  ctx->depth_left = o->limits.depth ? o->limits.depth : 1000;
}

/* --- Variables --------------------------------------------------------------------------------------------------------------------- */

static jinja_value *global(jinja_ctx *ctx, const char *name)
{
  for (size_t i = 0; i < ctx->t->n_symbols; i++)
    if (!strcmp(ctx->t->symbols[i], name)) return &ctx->globals[i];
  return NULL; /* the template does not mention it */
}

static bool set_text(jinja_ctx *ctx, const char *name, const char *text)
{
  jinja_value *slot = global(ctx, name);
  return !slot || !text || gr_jinja_string(ctx, text, strlen(text), 0, slot);
}

static bool set_globals(jinja_ctx *ctx, const json_t *messages, size_t n, const gr_render_options *o)
{
  ctx->globals = gr_jinja_array(ctx, ctx->t->n_symbols, sizeof *ctx->globals);
  if (!ctx->globals) return false;
  jinja_value *slot = global(ctx, "messages");
  if (slot && messages && !gr_jinja_messages(ctx, messages, n, slot)) return false;
  slot = global(ctx, "add_generation_prompt");
  if (slot) *slot = gr_jinja_bool(o->add_generation_prompt);
  slot = global(ctx, "documents"); /* transformers passes none */
  if (slot) *slot = gr_jinja_none();
  slot = global(ctx, "tools");
  if (slot) *slot = gr_jinja_none();
  if (slot && o->tools && !json_is_null(o->tools) &&
      !gr_jinja_from_json(ctx, o->tools, jinja_tag_make(GR_ORIGIN_TOOLS, GR_FIELD_NONE, 0), slot))
    return false;
  if (!set_text(ctx, "bos_token", o->bos_token) || !set_text(ctx, "eos_token", o->eos_token)) return false;
  if (o->variables && !json_is_object(o->variables)) {
    ctx->status = gr_fail(ctx->e, GR_ERR_USAGE, "template variables must be a JSON object");
    return false;
  }
  json_t *variables = (json_t *)(uintptr_t)o->variables, *value; /* iterating changes nothing */
  const char *key;
  json_object_foreach(variables, key, value)
  {
    slot = global(ctx, key);
    if (slot && !gr_jinja_from_json(ctx, value, jinja_tag_make(GR_ORIGIN_VARIABLE, GR_FIELD_NONE, 0), slot)) return false;
  }
  return true;
}

/* --- Result ------------------------------------------------------------------------------------------------------------------------ */

static bool same_origin(jinja_tag a, jinja_tag b) { return (a & JINJA_TAG_ORIGIN) == (b & JINJA_TAG_ORIGIN); }

/* Runs of one origin, and the spans of generation blocks, from the builder's runs. */
static gr_status collect(gr_rendered *r, const gr_jinja_builder *b, gr_error *e)
{
  r->runs = gr_calloc(b->n_runs, sizeof *r->runs);
  r->generation = gr_calloc(b->n_runs, sizeof *r->generation);
  if (!r->runs || !r->generation) return gr_fail_memory(e, b->n_runs * sizeof *r->runs);
  size_t start = 0;
  for (size_t i = 0; i < b->n_runs; i++) {
    jinja_tag tag = b->runs[i].tag;
    size_t end = b->runs[i].end;
    if (i && same_origin(tag, b->runs[i - 1].tag)) {
      r->runs[r->n_runs - 1].end = end;
    } else {
      r->runs[r->n_runs++] = (gr_text_run){ .start = start,
                                            .end = end,
                                            .origin = jinja_tag_origin(tag),
                                            .field = jinja_tag_field(tag),
                                            .message = jinja_tag_message(tag),
                                            .control = jinja_tag_control(tag) };
    }
    if (tag >> 32) {
      if (i && tag >> 32 == b->runs[i - 1].tag >> 32) r->generation[r->n_generation - 1].end = end;
      else r->generation[r->n_generation++] = (gr_text_span){ start, end };
    }
    start = end;
  }
  return GR_OK;
}

static gr_status finish(jinja_ctx *ctx, gr_jinja_builder *b, gr_rendered *out)
{
  gr_status status = collect(out, b, ctx->e);
  if (status == GR_OK) {
    out->text = gr_strndup(b->data ? b->data : "", b->len);
    out->len = b->len;
    if (!out->text) status = gr_fail_memory(ctx->e, b->len);
  }
  if (status != GR_OK) gr_rendered_free(out);
  return status;
}

gr_status gr_jinja_render(const gr_template *t, const json_t *messages, size_t n, const gr_render_options *o, gr_rendered *out, gr_error *e)
{
  *out = (gr_rendered){ 0 };
  gr_jinja_builder text = { 0 };
  jinja_ctx ctx = { .t = t,
                    .e = e,
                    .line = 1,
                    .out = &text,
                    .now = o->now,
                    .json_containers = o->json_containers,
                    .parse_arguments = o->parse_tool_arguments };
  set_limits(&ctx, messages, o);
  if (set_globals(&ctx, messages, n, o) && gr_jinja_exec(&ctx, NULL, &t->body)) ctx.status = finish(&ctx, &text, out);
  gr_jinja_builder_free(&ctx, &text);
  gr_arena_free(&ctx.arena);
  for (size_t i = 0; i < ctx.n_parsed; i++) json_decref(ctx.parsed[i]);
  gr_free(ctx.parsed);
  return ctx.status;
}

gr_status gr_template_render(const gr_template *t, const json_t *messages, const gr_render_options *o, gr_rendered *out, gr_error *e)
{
  static const gr_render_options defaults;
  return gr_jinja_render(t, messages, json_array_size(messages), o ? o : &defaults, out, e);
}

void gr_rendered_free(gr_rendered *r)
{
  gr_free(r->text);
  gr_free(r->runs);
  gr_free(r->generation);
  *r = (gr_rendered){ 0 };
}

size_t gr_rendered_stretch(const gr_rendered *r, size_t i)
{
  size_t end = i + 1;
  while (end < r->n_runs && r->runs[end].control == r->runs[i].control) end++;
  return end;
}
