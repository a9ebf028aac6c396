/* Expressions, by recursive descent, with the precedences of Jinja2: if-else, or, and, not, comparisons, + -, ~, * / // %, **,
 * sign, then subscripts, calls, filters and tests. */
#include <string.h>

#include "text/jinja.h"

static jinja_node *parse_unary(jinja_parser *p, bool with_filters);

static jinja_node *constant(jinja_parser *p, uint32_t line, jinja_value v)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_CONST, line);
  if (node) node->value = v;
  return node;
}

static jinja_node *string_constant(jinja_parser *p, uint32_t line, const char *text, size_t len)
{
  jinja_string *s = gr_jinja_parse_alloc(p, sizeof *s);
  if (!s) return NULL;
  *s = (jinja_string){ .data = text, .len = len };
  return constant(p, line, (jinja_value){ .type = JINJA_STRING, .u.string = s });
}

/* One or more string literals side by side. */
static jinja_node *parse_string(jinja_parser *p)
{
  const jinja_token *first = gr_jinja_peek(p);
  size_t len = 0, n = 0;
  for (; p->tokens[p->at + n].kind == JINJA_TOKEN_STRING; n++) len += p->tokens[p->at + n].len;
  const char *text = first->text;
  if (n > 1) {
    char *joined = gr_jinja_parse_alloc(p, len + 1);
    if (!joined) return NULL;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
      memcpy(joined + at, p->tokens[p->at + i].text, p->tokens[p->at + i].len);
      at += p->tokens[p->at + i].len;
    }
    text = joined;
  }
  p->at += n;
  return string_constant(p, first->line, text, len);
}

static jinja_node *parse_name(jinja_parser *p)
{
  const jinja_token *t = gr_jinja_peek(p);
  p->at++;
  if (!strcmp(t->text, "true") || !strcmp(t->text, "True")) return constant(p, t->line, gr_jinja_bool(true));
  if (!strcmp(t->text, "false") || !strcmp(t->text, "False")) return constant(p, t->line, gr_jinja_bool(false));
  if (!strcmp(t->text, "none") || !strcmp(t->text, "None")) return constant(p, t->line, gr_jinja_none());
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_NAME, t->line);
  if (!node) return NULL;
  node->text = t->text;
  node->symbol = gr_jinja_symbol(p, t->text);
  return node->symbol == UINT32_MAX ? NULL : node;
}

/* [a, b] or {a: b, c: d}; the bracket is the current token. */
static jinja_node *parse_display(jinja_parser *p, bool dict)
{
  const char *close = dict ? "}" : "]";
  jinja_node *node = gr_jinja_node(p, dict ? JINJA_NODE_DICT : JINJA_NODE_LIST, gr_jinja_peek(p)->line);
  size_t cap = 0;
  p->at++;
  while (node && !gr_jinja_is_op(p, close)) {
    jinja_node *item = gr_jinja_parse_expr(p, true);
    if (!item || !gr_jinja_push(p, &node->list, &cap, item)) return NULL;
    if (dict) {
      if (!gr_jinja_expect_op(p, ":")) return NULL;
      item = gr_jinja_parse_expr(p, true);
      if (!item || !gr_jinja_push(p, &node->list, &cap, item)) return NULL;
    }
    if (!gr_jinja_is_op(p, close) && !gr_jinja_expect_op(p, ",")) return NULL;
  }
  return node && gr_jinja_expect_op(p, close) ? node : NULL;
}

jinja_node *gr_jinja_parse_primary(jinja_parser *p)
{
  const jinja_token *t = gr_jinja_peek(p);
  char room[64];
  switch (t->kind) {
  case JINJA_TOKEN_NAME: return parse_name(p);
  case JINJA_TOKEN_STRING: return parse_string(p);
  case JINJA_TOKEN_INT: p->at++; return constant(p, t->line, gr_jinja_int(t->integer, 0));
  case JINJA_TOKEN_FLOAT: p->at++; return constant(p, t->line, gr_jinja_float(t->real, 0));
  default: break;
  }
  if (gr_jinja_is_op(p, "[")) return parse_display(p, false);
  if (gr_jinja_is_op(p, "{")) return parse_display(p, true);
  if (gr_jinja_skip_op(p, "(")) {
    jinja_node *node;
    if (gr_jinja_is_op(p, ")")) node = gr_jinja_node(p, JINJA_NODE_TUPLE, t->line);
    else node = gr_jinja_parse_tuple(p, true, false);
    return node && gr_jinja_expect_op(p, ")") ? node : NULL;
  }
  return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected a value, found %s", gr_jinja_describe(t, room));
}

/* (a, b, name=c); the opening parenthesis is the current token. */
static bool parse_args(jinja_parser *p, jinja_arg_nodes *args)
{
  size_t cap = 0, keyword_cap = 0, names_cap = 0;
  p->at++;
  while (p->status == GR_OK && !gr_jinja_is_op(p, ")")) {
    const jinja_token *t = gr_jinja_peek(p);
    if (gr_jinja_is_op(p, "*") || gr_jinja_is_op(p, "**")) {
      gr_jinja_syntax(p, GR_ERR_UNSUPPORTED, t->line, "'*' and '**' arguments are not supported");
      return false;
    }
    bool keyword = t->kind == JINJA_TOKEN_NAME && t[1].kind == JINJA_TOKEN_OP && !strcmp(t[1].text, "=");
    if (keyword) p->at += 2;
    else if (args->keyword.n) {
      gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "a plain argument cannot follow a named one");
      return false;
    }
    jinja_node *value = gr_jinja_parse_expr(p, true);
    if (!value || !gr_jinja_push(p, keyword ? &args->keyword : &args->positional, keyword ? &keyword_cap : &cap, value)) return false;
    if (keyword) {
      if (args->keyword.n > names_cap) {
        const char **names = gr_jinja_parse_alloc(p, keyword_cap * sizeof *names);
        if (!names) return false;
        if (names_cap) memcpy(names, args->names, names_cap * sizeof *names);
        args->names = names;
        names_cap = keyword_cap;
      }
      args->names[args->keyword.n - 1] = t->text;
    }
    if (!gr_jinja_is_op(p, ")") && !gr_jinja_expect_op(p, ",")) return false;
  }
  return gr_jinja_expect_op(p, ")");
}

static jinja_node *parse_call(jinja_parser *p, jinja_node *callee)
{
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_CALL, gr_jinja_peek(p)->line);
  if (!node) return NULL;
  node->a = callee;
  return parse_args(p, &node->args) ? node : NULL;
}

/* What stands between [ and ]: an index or start:stop:step. */
static jinja_node *parse_subscript(jinja_parser *p, jinja_node *object)
{
  uint32_t line = gr_jinja_peek(p)->line;
  p->at++;
  jinja_node *parts[3] = { NULL, NULL, NULL };
  size_t colons = 0;
  while (!gr_jinja_is_op(p, "]")) {
    if (gr_jinja_skip_op(p, ":")) {
      if (++colons > 2) return gr_jinja_syntax(p, GR_ERR_FORMAT, line, "a slice has at most two colons");
      continue;
    }
    if (parts[colons]) return gr_jinja_syntax(p, GR_ERR_UNSUPPORTED, line, "a subscript is one value or one slice");
    parts[colons] = gr_jinja_parse_expr(p, true);
    if (!parts[colons]) return NULL;
  }
  p->at++;
  if (!colons && !parts[0]) return gr_jinja_syntax(p, GR_ERR_FORMAT, line, "the subscript is empty");
  jinja_node *node = gr_jinja_node(p, colons ? JINJA_NODE_SLICE : JINJA_NODE_ITEM, line);
  if (!node) return NULL;
  node->a = object;
  if (!colons) {
    node->b = parts[0];
    return node;
  }
  size_t cap = 0;
  for (size_t i = 0; i < 3; i++)
    if (!gr_jinja_push(p, &node->list, &cap, parts[i])) return NULL;
  return node;
}

static jinja_node *parse_attribute(jinja_parser *p, jinja_node *object)
{
  p->at++;
  const jinja_token *t = gr_jinja_peek(p);
  char room[64];
  jinja_node *node = gr_jinja_node(p, t->kind == JINJA_TOKEN_INT ? JINJA_NODE_ITEM : JINJA_NODE_ATTR, t->line);
  if (!node) return NULL;
  node->a = object;
  if (t->kind == JINJA_TOKEN_INT) {
    node->b = constant(p, t->line, gr_jinja_int(t->integer, 0));
    if (!node->b) return NULL;
  } else if (t->kind == JINJA_TOKEN_NAME) {
    node->text = t->text;
    node->len = t->len;
  } else {
    return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected a name after '.', found %s", gr_jinja_describe(t, room));
  }
  p->at++;
  return node;
}

jinja_node *gr_jinja_parse_postfix(jinja_parser *p, jinja_node *node)
{
  while (node) {
    if (gr_jinja_is_op(p, ".")) node = parse_attribute(p, node);
    else if (gr_jinja_is_op(p, "[")) node = parse_subscript(p, node);
    else if (gr_jinja_is_op(p, "(")) node = parse_call(p, node);
    else break;
  }
  return node;
}

/* The (dotted) name of a filter or test. */
static const jinja_token *take_name(jinja_parser *p, const char *what)
{
  const jinja_token *t = gr_jinja_peek(p);
  char room[64];
  if (t->kind != JINJA_TOKEN_NAME)
    return gr_jinja_syntax(p, GR_ERR_FORMAT, t->line, "expected the name of a %s, found %s", what, gr_jinja_describe(t, room));
  p->at++;
  return t;
}

static jinja_node *parse_filter(jinja_parser *p, jinja_node *input)
{
  const jinja_token *t = take_name(p, "filter");
  jinja_node *node = t ? gr_jinja_node(p, JINJA_NODE_FILTER, t->line) : NULL;
  if (!node) return NULL;
  node->a = input;
  node->text = t->text;
  node->len = t->len;
  node->entry = gr_jinja_filter_find(t->text, t->len);
  return !gr_jinja_is_op(p, "(") || parse_args(p, &node->args) ? node : NULL;
}

jinja_node *gr_jinja_parse_filters(jinja_parser *p, bool bare)
{
  jinja_node *node = NULL;
  if (bare && !(node = parse_filter(p, NULL))) return NULL;
  while (gr_jinja_skip_op(p, "|")) {
    node = parse_filter(p, node);
    if (!node) return NULL;
  }
  return node;
}

/* x is [not] name, name(arguments), or name argument. */
static jinja_node *parse_test(jinja_parser *p, jinja_node *input)
{
  p->at++;
  bool negated = gr_jinja_skip_name(p, "not");
  const jinja_token *t = take_name(p, "test");
  jinja_node *node = t ? gr_jinja_node(p, JINJA_NODE_TEST, t->line) : NULL;
  if (!node) return NULL;
  node->a = input;
  node->text = t->text;
  node->len = t->len;
  node->negated = negated;
  node->entry = gr_jinja_test_find(t->text, t->len);
  if (gr_jinja_is_op(p, "(")) return parse_args(p, &node->args) ? node : NULL;
  if (gr_jinja_test_wants_argument(t->text)) {
    size_t cap = 0;
    jinja_node *arg = gr_jinja_parse_postfix(p, gr_jinja_parse_primary(p));
    if (!arg || !gr_jinja_push(p, &node->args.positional, &cap, arg)) return NULL;
  }
  return node;
}

static jinja_node *parse_filters_and_tests(jinja_parser *p, jinja_node *node)
{
  while (node) {
    if (gr_jinja_skip_op(p, "|")) node = parse_filter(p, node);
    else if (gr_jinja_is_name(p, "is")) node = parse_test(p, node);
    else if (gr_jinja_is_op(p, "(")) node = parse_call(p, node);
    else break;
  }
  return node;
}

static jinja_node *binary(jinja_parser *p, jinja_op op, uint32_t line, jinja_node *a, jinja_node *b)
{
  jinja_node *node = a && b ? gr_jinja_node(p, JINJA_NODE_BINARY, line) : NULL;
  if (!node) return NULL;
  node->op = op;
  node->a = a;
  node->b = b;
  return node;
}

static jinja_node *parse_unary(jinja_parser *p, bool with_filters)
{
  uint32_t line = gr_jinja_peek(p)->line;
  jinja_op op = gr_jinja_is_op(p, "-") ? JINJA_OP_NEG : gr_jinja_is_op(p, "+") ? JINJA_OP_POS : JINJA_OP_NONE;
  jinja_node *node;
  if (op != JINJA_OP_NONE) {
    if (!gr_jinja_deeper(p)) return NULL;
    p->at++;
    jinja_node *operand = parse_unary(p, false);
    p->depth--;
    node = operand ? gr_jinja_node(p, JINJA_NODE_UNARY, line) : NULL;
    if (!node) return NULL;
    node->op = op;
    node->a = operand;
  } else {
    node = gr_jinja_parse_primary(p);
  }
  node = gr_jinja_parse_postfix(p, node);
  return with_filters ? parse_filters_and_tests(p, node) : node;
}

/* The arithmetic levels, weakest first. Concatenation with ~ stands between + and *. */
static const struct level {
  struct {
    const char *text;
    jinja_op op;
  } ops[4];
} levels[] = {
  { { { "+", JINJA_OP_ADD }, { "-", JINJA_OP_SUB } } },
  { { { "*", JINJA_OP_MUL }, { "/", JINJA_OP_DIV }, { "//", JINJA_OP_FLOORDIV }, { "%", JINJA_OP_MOD } } },
  { { { "**", JINJA_OP_POW } } },
};

static jinja_node *parse_arithmetic(jinja_parser *p, size_t level);

static jinja_node *parse_concat(jinja_parser *p)
{
  uint32_t line = gr_jinja_peek(p)->line;
  jinja_node *first = parse_arithmetic(p, 1);
  if (!first || !gr_jinja_is_op(p, "~")) return first;
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_CONCAT, line);
  size_t cap = 0;
  if (!node || !gr_jinja_push(p, &node->list, &cap, first)) return NULL;
  while (gr_jinja_skip_op(p, "~")) {
    jinja_node *next = parse_arithmetic(p, 1);
    if (!next || !gr_jinja_push(p, &node->list, &cap, next)) return NULL;
  }
  return node;
}

static jinja_node *parse_operand(jinja_parser *p, size_t level)
{
  if (level == 0) return parse_concat(p);
  return level + 1 < sizeof levels / sizeof *levels ? parse_arithmetic(p, level + 1) : parse_unary(p, true);
}

static jinja_node *parse_arithmetic(jinja_parser *p, size_t level)
{
  jinja_node *node = parse_operand(p, level);
  while (node) {
    uint32_t line = gr_jinja_peek(p)->line;
    jinja_op op = JINJA_OP_NONE;
    for (size_t i = 0; i < 4 && levels[level].ops[i].text && op == JINJA_OP_NONE; i++)
      if (gr_jinja_skip_op(p, levels[level].ops[i].text)) op = levels[level].ops[i].op;
    if (op == JINJA_OP_NONE) break;
    node = binary(p, op, line, node, parse_operand(p, level));
  }
  return node;
}

static jinja_op take_comparison(jinja_parser *p)
{
  static const struct {
    const char *text;
    jinja_op op;
  } ops[] = { { "==", JINJA_OP_EQ }, { "!=", JINJA_OP_NE }, { "<=", JINJA_OP_LE },
              { ">=", JINJA_OP_GE }, { "<", JINJA_OP_LT },  { ">", JINJA_OP_GT } };
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (gr_jinja_skip_op(p, ops[i].text)) return ops[i].op;
  if (gr_jinja_skip_name(p, "in")) return JINJA_OP_IN;
  const jinja_token *t = gr_jinja_peek(p);
  if (gr_jinja_is_name(p, "not") && t[1].kind == JINJA_TOKEN_NAME && !strcmp(t[1].text, "in")) {
    p->at += 2;
    return JINJA_OP_NOT_IN;
  }
  return JINJA_OP_NONE;
}

static jinja_node *parse_compare(jinja_parser *p)
{
  uint32_t line = gr_jinja_peek(p)->line;
  jinja_node *first = parse_arithmetic(p, 0), *node = NULL;
  size_t cap = 0;
  while (first) {
    jinja_op op = take_comparison(p);
    if (op == JINJA_OP_NONE) break;
    if (!node) {
      node = gr_jinja_node(p, JINJA_NODE_COMPARE, line);
      if (!node) return NULL;
      node->a = first;
    }
    jinja_node *operand = gr_jinja_node(p, JINJA_NODE_COMPARE, gr_jinja_peek(p)->line);
    if (!operand) return NULL;
    operand->op = op;
    operand->a = parse_arithmetic(p, 0);
    if (!operand->a || !gr_jinja_push(p, &node->list, &cap, operand)) return NULL;
  }
  return node ? node : first;
}

static jinja_node *parse_not(jinja_parser *p)
{
  uint32_t line = gr_jinja_peek(p)->line;
  if (!gr_jinja_skip_name(p, "not")) return parse_compare(p);
  if (!gr_jinja_deeper(p)) return NULL;
  jinja_node *operand = parse_not(p);
  p->depth--;
  jinja_node *node = operand ? gr_jinja_node(p, JINJA_NODE_UNARY, line) : NULL;
  if (!node) return NULL;
  node->op = JINJA_OP_NOT;
  node->a = operand;
  return node;
}

static jinja_node *parse_and(jinja_parser *p)
{
  jinja_node *node = parse_not(p);
  for (uint32_t line = gr_jinja_peek(p)->line; node && gr_jinja_skip_name(p, "and"); line = gr_jinja_peek(p)->line)
    node = binary(p, JINJA_OP_AND, line, node, parse_not(p));
  return node;
}

static jinja_node *parse_or(jinja_parser *p)
{
  jinja_node *node = parse_and(p);
  for (uint32_t line = gr_jinja_peek(p)->line; node && gr_jinja_skip_name(p, "or"); line = gr_jinja_peek(p)->line)
    node = binary(p, JINJA_OP_OR, line, node, parse_and(p));
  return node;
}

jinja_node *gr_jinja_parse_expr(jinja_parser *p, bool with_cond)
{
  if (!gr_jinja_deeper(p)) return NULL;
  uint32_t line = gr_jinja_peek(p)->line;
  jinja_node *node = parse_or(p);
  while (node && with_cond && gr_jinja_skip_name(p, "if")) {
    jinja_node *cond = gr_jinja_node(p, JINJA_NODE_COND, line);
    if (!cond) return NULL;
    cond->b = node;
    cond->a = parse_or(p);
    if (!cond->a) return NULL;
    if (gr_jinja_skip_name(p, "else")) {
      cond->c = gr_jinja_parse_expr(p, true);
      if (!cond->c) return NULL;
    }
    node = cond;
  }
  p->depth--;
  return node;
}

jinja_node *gr_jinja_parse_tuple(jinja_parser *p, bool with_cond, bool targets)
{
  uint32_t line = gr_jinja_peek(p)->line;
  jinja_node *first = targets ? gr_jinja_parse_target(p, false) : gr_jinja_parse_expr(p, with_cond);
  if (!first || !gr_jinja_is_op(p, ",")) return first;
  jinja_node *node = gr_jinja_node(p, JINJA_NODE_TUPLE, line);
  size_t cap = 0;
  if (!node || !gr_jinja_push(p, &node->list, &cap, first)) return NULL;
  while (gr_jinja_skip_op(p, ",")) {
    const jinja_token *t = gr_jinja_peek(p);
    bool ends = t->kind == JINJA_TOKEN_OUTPUT_END || t->kind == JINJA_TOKEN_BLOCK_END || gr_jinja_is_op(p, ")") || gr_jinja_is_op(p, "=") ||
                (targets && gr_jinja_is_name(p, "in"));
    if (ends) break; /* a comma at the end */
    jinja_node *item = targets ? gr_jinja_parse_target(p, false) : gr_jinja_parse_expr(p, with_cond);
    if (!item || !gr_jinja_push(p, &node->list, &cap, item)) return NULL;
  }
  return node;
}
