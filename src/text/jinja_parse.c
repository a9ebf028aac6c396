/* Statements, and the helpers that the whole parser shares. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/jinja.h"

enum { PARSE_DEPTH_MAX = 200, TEMPLATE_BYTES_MAX = 1 << 20 };

/* --- Helpers ------------------------------------------------------------------------------------------------------------------ */

const jinja_token *gr_jinja_peek(const jinja_parser *p) { return &p->tokens[p->at]; }

bool gr_jinja_is_name(const jinja_parser *p, const char *name)
{
  const jinja_token *t = gr_jinja_peek(p);
  return t->kind == JINJA_TOKEN_NAME && !strcmp(t->text, name);
}

bool gr_jinja_is_op(const jinja_parser *p, const char *op)
{
  const jinja_token *t = gr_jinja_peek(p);
  return t->kind == JINJA_TOKEN_OP && !strcmp(t->text, op);
}

bool gr_jinja_skip_name(jinja_parser *p, const char *name)
{
  bool is = gr_jinja_is_name(p, name);
  p->at += is;
  return is;
}

bool gr_jinja_skip_op(jinja_parser *p, const char *op)
{
  bool is = gr_jinja_is_op(p, op);
  p->at += is;
  return is;
}

bool gr_jinja_expect_op(jinja_parser *p, const char *op)
{
  if (gr_jinja_skip_op(p, op)) return true;
  char room[64];
  const jinja_token *t = gr_jinja_peek(p);
  gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected '%s', found %s", op, gr_jinja_describe(t, room));
  return false;
}

const char *gr_jinja_describe(const jinja_token *t, char room[64])
{
  switch (t->kind) {
  case JINJA_TOKEN_END: return "the end of the template";
  case JINJA_TOKEN_TEXT: return "text";
  case JINJA_TOKEN_OUTPUT_BEGIN: return "'{{'";
  case JINJA_TOKEN_BLOCK_BEGIN: return "'{%'";
  case JINJA_TOKEN_STRING: return "a string";
  case JINJA_TOKEN_INT:
  case JINJA_TOKEN_FLOAT: return "a number";
  default: snprintf(room, 64, "'%.50s'", t->text); return room;
  }
}

jinja_node *gr_jinja_node(jinja_parser *p, jinja_kind kind, uint32_t line)
{
  jinja_node *node = gr_jinja_parse_alloc(p, sizeof *node);
  if (!node) return NULL;
  node->kind = kind;
  node->line = line;
  return node;
}

bool gr_jinja_push(jinja_parser *p, jinja_nodes *list, size_t *cap, jinja_node *item)
{
  if (list->n == *cap) {
    size_t grown = *cap ? 2 * *cap : 4;
    jinja_node **items = gr_jinja_parse_alloc(p, grown * sizeof *items);
    if (!items) return false;
    if (list->n) memcpy(items, list->items, list->n * sizeof *items);
    list->items = items;
    *cap = grown;
  }
  list->items[list->n++] = item;
  return true;
}

uint32_t gr_jinja_symbol(jinja_parser *p, const char *name)
{
  gr_template *t = p->t;
  for (size_t i = 0; i < t->n_symbols; i++)
    if (!strcmp(t->symbols[i], name)) return (uint32_t)i;
  if (t->n_symbols == 4096) { /* looked up by walking: keeps a hostile template from making that dear */
    gr_jinja_syntax(p, GR_ERR_UNSUPPORTED, gr_jinja_peek(p)->line, "the template has more than 4096 variables");
    return UINT32_MAX;
  }
  if (!gr_grow((void **)&t->symbols, &t->cap_symbols, t->n_symbols + 1, sizeof *t->symbols)) {
    p->status = gr_fail_memory(p->e, (t->n_symbols + 1) * sizeof *t->symbols);
    return UINT32_MAX;
  }
  t->symbols[t->n_symbols] = name;
  return (uint32_t)t->n_symbols++;
}

bool gr_jinja_deeper(jinja_parser *p)
{
  if (p->depth < PARSE_DEPTH_MAX) {
    p->depth++;
    return true;
  }
  gr_jinja_syntax(p, GR_ERR_UNSUPPORTED, gr_jinja_peek(p)->line, "the template is nested more than %d deep", PARSE_DEPTH_MAX);
  return false;
}

/* --- Statements --------------------------------------------------------------------------------------------------------------- */

static bool parse_body(jinja_parser *p, jinja_nodes *body, uint32_t opened, const char *statement, const char *const *ends);

static bool end_tag(jinja_parser *p)
{
  const jinja_token *t = gr_jinja_peek(p);
  if (t->kind == JINJA_TOKEN_BLOCK_END) {
    p->at++;
    return true;
  }
  char room[64];
  gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected '%%}', found %s", gr_jinja_describe(t, room));
  return false;
}

/* Past the tag that starts a body, the body, and the word that ends it ("endfor"), with its tag. */
static bool parse_block(jinja_parser *p, jinja_nodes *body, uint32_t opened, const char *statement, const char *end)
{
  const char *const ends[] = { end, NULL };
  if (!end_tag(p) || !parse_body(p, body, opened, statement, ends)) return false;
  p->at++;
  return end_tag(p);
}

jinja_node *gr_jinja_parse_target(jinja_parser *p, bool attributes)
{
  const jinja_token *t = gr_jinja_peek(p);
  char room[64];
  if (gr_jinja_skip_op(p, "(")) {
    if (!gr_jinja_deeper(p)) return NULL;
    jinja_node *inner = gr_jinja_parse_tuple(p, false, true);
    p->depth--;
    return inner && gr_jinja_expect_op(p, ")") ? inner : NULL;
  }
  if (t->kind != JINJA_TOKEN_NAME)
    return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected a variable to assign to, found %s", gr_jinja_describe(t, room));
  static const char *const fixed[] = { "true", "false", "none", "True", "False", "None" };
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (!strcmp(t->text, fixed[i])) return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "'%s' cannot be assigned to", t->text);
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_NAME, t->line);
  if (!node) return NULL;
  node->text = t->text;
  node->symbol = gr_jinja_symbol(p, t->text);
  p->at++;
  if (node->symbol == UINT32_MAX || !attributes || !gr_jinja_skip_op(p, ".")) return node->symbol == UINT32_MAX ? NULL : node;
  const jinja_token *name = gr_jinja_peek(p);
  if (name->kind != JINJA_TOKEN_NAME)
    return gr_jinja_syntax(p, GR_ERR_FORMAT, name->line, "expected a name after '.', found %s", gr_jinja_describe(name, room));
  jinja_node *attr = gr_jinja_node(p, JINJA_NODE_ATTR, t->line);
  if (!attr) return NULL;
  attr->a = node;
  attr->text = name->text;
  attr->len = name->len;
  p->at++;
  return attr;
}

static jinja_node *parse_if(jinja_parser *p, uint32_t line)
{
  static const char *const ends[] = { "elif", "else", "endif", NULL };
  static const char *const last[] = { "endif", NULL };
  jinja_node *first = gr_jinja_node(p, JINJA_NODE_IF, line), *node = first;
  for (bool more = true; node && more;) {
    node->a = gr_jinja_parse_tuple(p, false, false);
    if (!node->a || !end_tag(p) || !parse_body(p, &node->body, line, "if", ends)) return NULL;
    uint32_t at = gr_jinja_peek(p)->line;
    more = gr_jinja_skip_name(p, "elif");
    if (more) {
      size_t cap = 0;
      jinja_node *next = gr_jinja_node(p, JINJA_NODE_IF, at);
      if (!next || !gr_jinja_push(p, &node->orelse, &cap, next)) return NULL;
      node = next;
    } else if (gr_jinja_skip_name(p, "else")) {
      if (!end_tag(p) || !parse_body(p, &node->orelse, line, "if", last)) return NULL;
    }
  }
  if (!node) return NULL;
  p->at++;
  return end_tag(p) ? first : NULL;
}

static jinja_node *parse_for(jinja_parser *p, uint32_t line)
{
  static const char *const ends[] = { "else", "endfor", NULL };
  static const char *const last[] = { "endfor", NULL };
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_FOR, line);
  if (!node) return NULL;
  node->b = gr_jinja_parse_tuple(p, false, true);
  if (!node->b) return NULL;
  if (!gr_jinja_skip_name(p, "in")) return gr_jinja_syntax(p, GR_ERR_FORMAT, line, "expected 'in' after the variable of 'for'");
  node->a = gr_jinja_parse_tuple(p, false, false);
  if (!node->a) return NULL;
  if (gr_jinja_skip_name(p, "if")) {
    node->c = gr_jinja_parse_expr(p, true);
    if (!node->c) return NULL;
  }
  if (gr_jinja_is_name(p, "recursive")) return gr_jinja_syntax(p, GR_ERR_UNSUPPORTED, line, "recursive loops are not supported");
  p->loops++;
  bool ok = end_tag(p) && parse_body(p, &node->body, line, "for", ends);
  p->loops--;
  if (!ok) return NULL;
  if (gr_jinja_skip_name(p, "else") && (!end_tag(p) || !parse_body(p, &node->orelse, line, "for", last))) return NULL;
  p->at++;
  return end_tag(p) ? node : NULL;
}

static jinja_node *parse_set(jinja_parser *p, uint32_t line)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_SET, line);
  if (!node) return NULL;
  node->b = gr_jinja_parse_target(p, true);
  if (node->b && gr_jinja_is_op(p, ",")) { /* set a, b = ... */
    jinja_node *targets = gr_jinja_node(p, JINJA_NODE_TUPLE, line);
    size_t cap = 0;
    if (!targets || !gr_jinja_push(p, &targets->list, &cap, node->b)) return NULL;
    while (gr_jinja_skip_op(p, ",") && !gr_jinja_is_op(p, "=")) {
      jinja_node *more = gr_jinja_parse_target(p, true);
      if (!more || !gr_jinja_push(p, &targets->list, &cap, more)) return NULL;
    }
    node->b = targets;
  }
  if (!node->b) return NULL;
  if (gr_jinja_skip_op(p, "=")) {
    node->a = gr_jinja_parse_tuple(p, true, false);
    return node->a && end_tag(p) ? node : NULL;
  }
  node->c = gr_jinja_parse_filters(p, false);
  return p->status == GR_OK && parse_block(p, &node->body, line, "set", "endset") ? node : NULL;
}

/* (a, b=default): names into list, defaults into args, right-aligned as in Python. */
static bool parse_params(jinja_parser *p, jinja_node *macro)
{
  size_t cap = 0, default_cap = 0;
  if (!gr_jinja_expect_op(p, "(")) return false;
  while (p->status == GR_OK && !gr_jinja_is_op(p, ")")) {
    uint32_t line = gr_jinja_peek(p)->line;
    jinja_node *name = gr_jinja_parse_target(p, false);
    if (!name || !gr_jinja_push(p, &macro->list, &cap, name)) return false;
    if (name->kind != JINJA_NODE_NAME) {
      gr_jinja_syntax(p, GR_ERR_FORMAT, line, "a parameter must be a name");
      return false;
    }
    if (gr_jinja_skip_op(p, "=")) {
      jinja_node *value = gr_jinja_parse_expr(p, true);
      if (!value || !gr_jinja_push(p, &macro->args.positional, &default_cap, value)) return false;
    } else if (macro->args.positional.n) {
      gr_jinja_syntax(p, GR_ERR_FORMAT, line, "parameter '%s' needs a default, as one before it has one", name->text);
      return false;
    }
    if (!gr_jinja_is_op(p, ")") && !gr_jinja_expect_op(p, ",")) return false;
  }
  return gr_jinja_expect_op(p, ")");
}

static bool parse_macro_body(jinja_parser *p, jinja_node *macro, const char *statement, const char *end)
{
  int loops = p->loops;
  p->loops = 0; /* a break inside belongs to no loop outside */
  bool ok = parse_block(p, &macro->body, macro->line, statement, end);
  p->loops = loops;
  return ok;
}

static jinja_node *parse_macro(jinja_parser *p, uint32_t line)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_MACRO, line), *name = node ? gr_jinja_parse_target(p, false) : NULL;
  if (!name) return NULL;
  if (name->kind != JINJA_NODE_NAME) return gr_jinja_syntax(p, GR_ERR_FORMAT, line, "expected the name of the macro");
  node->symbol = name->symbol;
  node->text = name->text;
  return parse_params(p, node) && parse_macro_body(p, node, "macro", "endmacro") ? node : NULL;
}

/* {% call(params) callee(args) %}body{% endcall %}: body becomes the macro that caller() calls. */
static jinja_node *parse_call_block(jinja_parser *p, uint32_t line)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_CALL_BLOCK, line), *macro = gr_jinja_node(p, JINJA_NODE_MACRO, line);
  if (!node || !macro) return NULL;
  macro->text = "caller";
  macro->symbol = UINT32_MAX; /* it has no caller of its own */
  node->b = macro;
  if (gr_jinja_is_op(p, "(") && !parse_params(p, macro)) return NULL;
  node->a = gr_jinja_parse_expr(p, false);
  if (!node->a) return NULL;
  if (node->a->kind != JINJA_NODE_CALL) return gr_jinja_syntax(p, GR_ERR_FORMAT, line, "'call' needs a call such as name(...)");
  return parse_macro_body(p, macro, "call", "endcall") ? node : NULL;
}

static jinja_node *parse_filter_block(jinja_parser *p, uint32_t line)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_FILTER_BLOCK, line);
  if (!node) return NULL;
  node->c = gr_jinja_parse_filters(p, true);
  return node->c && parse_block(p, &node->body, line, "filter", "endfilter") ? node : NULL;
}

static jinja_node *parse_with(jinja_parser *p, uint32_t line)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_WITH, line);
  size_t cap = 0;
  while (node && gr_jinja_peek(p)->kind != JINJA_TOKEN_BLOCK_END) {
    if (node->list.n && !gr_jinja_expect_op(p, ",")) return NULL;
    jinja_node *target = gr_jinja_parse_target(p, false);
    if (!target || !gr_jinja_expect_op(p, "=") || !gr_jinja_push(p, &node->list, &cap, target)) return NULL;
    jinja_node *value = gr_jinja_parse_expr(p, true);
    if (!value || !gr_jinja_push(p, &node->list, &cap, value)) return NULL;
  }
  return node && parse_block(p, &node->body, line, "with", "endwith") ? node : NULL;
}

static jinja_node *parse_generation(jinja_parser *p, uint32_t line)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_GENERATION, line);
  p->t->has_generation = true;
  return node && parse_block(p, &node->body, line, "generation", "endgeneration") ? node : NULL;
}

static jinja_node *parse_jump(jinja_parser *p, uint32_t line, jinja_kind kind)
{
  if (!p->loops) return gr_jinja_syntax(p, GR_ERR_FORMAT, line, "'break' and 'continue' belong inside a loop");
  jinja_node *node = gr_jinja_node(p, kind, line);
  return node && end_tag(p) ? node : NULL;
}

static jinja_node *parse_statement(jinja_parser *p)
{
  const jinja_token *t = gr_jinja_peek(p);
  char room[64];
  if (t->kind != JINJA_TOKEN_NAME)
    return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected a statement, found %s", gr_jinja_describe(t, room));
  p->at++;
  if (!strcmp(t->text, "if")) return parse_if(p, t->line);
  if (!strcmp(t->text, "for")) return parse_for(p, t->line);
  if (!strcmp(t->text, "set")) return parse_set(p, t->line);
  if (!strcmp(t->text, "macro")) return parse_macro(p, t->line);
  if (!strcmp(t->text, "call")) return parse_call_block(p, t->line);
  if (!strcmp(t->text, "filter")) return parse_filter_block(p, t->line);
  if (!strcmp(t->text, "with")) return parse_with(p, t->line);
  if (!strcmp(t->text, "generation")) return parse_generation(p, t->line);
  if (!strcmp(t->text, "break")) return parse_jump(p, t->line, JINJA_NODE_BREAK);
  if (!strcmp(t->text, "continue")) return parse_jump(p, t->line, JINJA_NODE_CONTINUE);
  static const char *const files[] = { "include", "import", "from", "extends", "block", "do", "autoescape", "trans" };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (!strcmp(t->text, files[i]))
      return gr_jinja_syntax(p, GR_ERR_UNSUPPORTED, t->line, "the statement '%s' is not supported in chat templates", t->text);
  return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "unknown statement '%.50s'", t->text);
}

static jinja_node *parse_output(jinja_parser *p)
{
  uint32_t line = gr_jinja_peek(p)->line;
  p->at++;
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_OUTPUT, line);
  if (!node) return NULL;
  node->a = gr_jinja_parse_tuple(p, true, false);
  if (!node->a) return NULL;
  const jinja_token *t = gr_jinja_peek(p);
  char room[64];
  if (t->kind != JINJA_TOKEN_OUTPUT_END)
    return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected '}}', found %s", gr_jinja_describe(t, room));
  p->at++;
  return node;
}

/* Statements up to a tag whose word is one of ends (NULL: up to the end of the template), which is left as the current token. */
static bool parse_body(jinja_parser *p, jinja_nodes *body, uint32_t opened, const char *statement, const char *const *ends)
{
  size_t cap = 0;
  if (!gr_jinja_deeper(p)) return false;
  while (p->status == GR_OK) {
    const jinja_token *t = gr_jinja_peek(p);
    jinja_node *node = NULL;
    if (t->kind == JINJA_TOKEN_END) {
      if (!ends) break;
      gr_jinja_syntax(p, GR_ERR_FORMAT, opened, "'%s' is never closed", statement);
      return false;
    } else if (t->kind == JINJA_TOKEN_TEXT) {
      p->at++;
      node = gr_jinja_node(p, JINJA_NODE_TEXT, t->line);
      if (node) {
        node->text = t->text;
        node->len = t->len;
      }
    } else if (t->kind == JINJA_TOKEN_OUTPUT_BEGIN) {
      node = parse_output(p);
    } else {
      p->at++;
      for (size_t i = 0; ends && ends[i]; i++)
        if (gr_jinja_is_name(p, ends[i])) {
          p->depth--;
          return true;
        }
      node = parse_statement(p);
    }
    if (!node || !gr_jinja_push(p, body, &cap, node)) return false;
  }
  p->depth--;
  return p->status == GR_OK;
}

/* --- The template -------------------------------------------------------------------------------------------------------------- */

static uint32_t symbol_of(const gr_template *t, const char *name)
{
  for (size_t i = 0; i < t->n_symbols; i++)
    if (!strcmp(t->symbols[i], name)) return (uint32_t)i;
  return UINT32_MAX;
}

gr_status gr_template_parse(gr_template **out, const char *text, size_t n, const char *name, gr_error *e)
{
  *out = NULL;
  if (n > TEMPLATE_BYTES_MAX)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s is %zu bytes long; a chat template may have %d", name, n, TEMPLATE_BYTES_MAX);
  gr_template *t = gr_calloc(1, sizeof *t);
  if (!t) return gr_fail_memory(e, sizeof *t);
  jinja_parser p = { .t = t, .e = e };
  t->name = gr_arena_strndup(&t->arena, name, strlen(name));
  t->source = gr_arena_strndup(&t->arena, text, n);
  if (!t->name || !t->source) p.status = gr_fail_memory(e, strlen(name));
  else if (gr_jinja_lex(&p, text, n)) parse_body(&p, &t->body, 1, "template", NULL);
  gr_free(p.tokens);
  if (p.status != GR_OK) {
    gr_template_free(t);
    return p.status;
  }
  t->loop_symbol = symbol_of(t, "loop");
  t->caller_symbol = symbol_of(t, "caller");
  *out = t;
  return GR_OK;
}

void gr_template_free(gr_template *t)
{
  if (!t) return;
  gr_arena_free(&t->arena);
  gr_free(t->symbols);
  gr_free(t);
}

bool gr_template_quotes(const gr_template *t, const char *word)
{
  size_t n = strlen(word);
  for (const char *at = t->source; n && (at = strstr(at, word)); at += n) {
    bool quoted = at > t->source && (at[-1] == '\'' || at[-1] == '"');
    if (quoted && at[n] == at[-1]) return true;
  }
  return false;
}

bool gr_template_has_generation(const gr_template *t) { return t->has_generation; }
