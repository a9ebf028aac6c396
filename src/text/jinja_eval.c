/* Expressions: a walk over the tree. Every node costs a step and a level of depth, so no template runs or nests without end. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"

/* --- Limits and failure -------------------------------------------------------------------------------------------------------- */

bool gr_jinja_fail(jinja_ctx *ctx, gr_status status, const char *fmt, ...)
{
  if (ctx->status != GR_OK) return false;
  ctx->status = status;
  char why[768];
  va_list args;
  va_start(args, fmt);
  vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  gr_fail(ctx->e, status, "%s, line %u: %s", ctx->t->name, ctx->line, why);
  return false;
}

bool gr_jinja_steps(jinja_ctx *ctx, size_t steps)
{
  if (ctx->status != GR_OK) return false;
  if (steps > ctx->steps_left) {
    ctx->steps_left = 0;
    return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "the template runs for longer than a render may");
  }
  ctx->steps_left -= steps;
  return true;
}

bool gr_jinja_enter(jinja_ctx *ctx)
{
  if (!ctx->depth_left) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "calls or values are nested deeper than a render may");
  ctx->depth_left--;
  return true;
}

void *gr_jinja_array(jinja_ctx *ctx, size_t n, size_t size)
{
  if (ctx->status != GR_OK) return NULL;
  if (n > ctx->bytes_left / (size ? size : 1)) {
    gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "the template uses more memory than a render may");
    return NULL;
  }
  size_t wanted = n * size, bytes = wanted ? wanted : 1, before = ctx->arena.bytes;
  void *p = gr_arena_alloc(&ctx->arena, bytes);
  if (!p) {
    ctx->status = gr_fail_memory(ctx->e, bytes);
    return NULL;
  }
  size_t taken = ctx->arena.bytes - before; /* rounded up */
  ctx->bytes_left -= taken < ctx->bytes_left ? taken : ctx->bytes_left;
  return p;
}

void *gr_jinja_alloc(jinja_ctx *ctx, size_t bytes) { return gr_jinja_array(ctx, bytes, 1); }

/* --- Names ----------------------------------------------------------------------------------------------------------------------- */

static bool eval_name(jinja_ctx *ctx, const jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  for (; scope; scope = scope->parent) {
    for (size_t i = scope->n; i-- > 0;)
      if (scope->vars[i].symbol == node->symbol) {
        *out = scope->vars[i].value;
        return true;
      }
    if (!gr_jinja_steps(ctx, scope->n / 16)) return false;
  }
  *out = ctx->globals[node->symbol];
  if (out->type != JINJA_ABSENT) return true;
  size_t function = gr_jinja_function_find(node->text);
  *out = function == SIZE_MAX ? gr_jinja_undefined(node->text) : (jinja_value){ .type = JINJA_FUNCTION, .u.function = function };
  return true;
}

/* --- Displays, operators --------------------------------------------------------------------------------------------------------- */

static bool eval_list(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  if (!gr_jinja_list(ctx, node->list.n, out)) return false;
  out->u.list->tuple = node->kind == JINJA_NODE_TUPLE;
  for (size_t i = 0; i < node->list.n; i++) {
    jinja_value item;
    if (!gr_jinja_eval(ctx, scope, node->list.items[i], &item) || !gr_jinja_list_add(ctx, out->u.list, item)) return false;
  }
  return true;
}

static bool eval_dict(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  if (!gr_jinja_dict(ctx, node->list.n / 2, out)) return false;
  for (size_t i = 0; i + 1 < node->list.n; i += 2) {
    jinja_value key, value;
    if (!gr_jinja_eval(ctx, scope, node->list.items[i], &key) || !gr_jinja_eval(ctx, scope, node->list.items[i + 1], &value)) return false;
    if (!gr_jinja_dict_put(ctx, out->u.dict, key, value)) return false;
  }
  return true;
}

static bool eval_concat(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  gr_jinja_builder b = { 0 };
  bool ok = true;
  for (size_t i = 0; ok && i < node->list.n; i++) {
    jinja_value v;
    ok = gr_jinja_eval(ctx, scope, node->list.items[i], &v) && gr_jinja_put_text(ctx, &b, &v);
  }
  return gr_jinja_finish(ctx, &b, ok, out);
}

static bool eval_unary(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value v;
  if (!gr_jinja_eval(ctx, scope, node->a, &v)) return false;
  ctx->line = node->line;
  if (node->op == JINJA_OP_NOT) {
    *out = gr_jinja_bool(!gr_jinja_truth(&v));
    return true;
  }
  if (node->op == JINJA_OP_NEG) return gr_jinja_negate(ctx, &v, out);
  jinja_value zero = gr_jinja_int(0, 0);
  return gr_jinja_binary(ctx, JINJA_OP_ADD, &zero, &v, out); /* a boolean becomes a number; fails where a sign makes no sense */
}

static bool eval_binary(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value a, b;
  if (!gr_jinja_eval(ctx, scope, node->a, &a)) return false;
  if (node->op == JINJA_OP_AND || node->op == JINJA_OP_OR) {
    *out = a;
    return gr_jinja_truth(&a) == (node->op == JINJA_OP_OR) || gr_jinja_eval(ctx, scope, node->b, out);
  }
  if (!gr_jinja_eval(ctx, scope, node->b, &b)) return false;
  ctx->line = node->line;
  return gr_jinja_binary(ctx, node->op, &a, &b, out);
}

static bool eval_compare(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value left, right;
  bool holds = true;
  if (!gr_jinja_eval(ctx, scope, node->a, &left)) return false;
  for (size_t i = 0; holds && i < node->list.n; i++, left = right) {
    const jinja_node *link = node->list.items[i];
    if (!gr_jinja_eval(ctx, scope, link->a, &right)) return false;
    ctx->line = link->line;
    if (!gr_jinja_compare(ctx, link->op, &left, &right, &holds)) return false;
  }
  *out = gr_jinja_bool(holds);
  return true;
}

static bool eval_cond(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value test;
  if (!gr_jinja_eval(ctx, scope, node->a, &test)) return false;
  const jinja_node *chosen = gr_jinja_truth(&test) ? node->b : node->c;
  *out = gr_jinja_undefined(NULL);
  return !chosen || gr_jinja_eval(ctx, scope, chosen, out);
}

static bool eval_subscript(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value object, key, bounds[3];
  if (!gr_jinja_eval(ctx, scope, node->a, &object)) return false;
  if (node->kind == JINJA_NODE_ATTR) {
    ctx->line = node->line;
    return gr_jinja_attr(ctx, &object, node->text, out);
  }
  if (node->kind == JINJA_NODE_ITEM) {
    if (!gr_jinja_eval(ctx, scope, node->b, &key)) return false;
    ctx->line = node->line;
    return gr_jinja_item(ctx, &object, &key, out);
  }
  for (size_t i = 0; i < 3; i++) {
    bounds[i].type = JINJA_ABSENT;
    if (node->list.items[i] && !gr_jinja_eval(ctx, scope, node->list.items[i], &bounds[i])) return false;
  }
  ctx->line = node->line;
  return gr_jinja_slice(ctx, &object, bounds, out);
}

/* --- Calls, filters, tests --------------------------------------------------------------------------------------------------------- */

bool gr_jinja_eval_args(jinja_ctx *ctx, jinja_scope *scope, const jinja_arg_nodes *nodes, jinja_args *out)
{
  size_t n = nodes->positional.n, k = nodes->keyword.n;
  *out = (jinja_args){ .n = n, .n_keyword = k, .names = nodes->names };
  if (n + k == 0) return true;
  jinja_value *values = gr_jinja_array(ctx, n + k, sizeof *values);
  if (!values) return false;
  for (size_t i = 0; i < n + k; i++)
    if (!gr_jinja_eval(ctx, scope, i < n ? nodes->positional.items[i] : nodes->keyword.items[i - n], &values[i])) return false;
  out->positional = values;
  out->keyword = values + n;
  return true;
}

bool gr_jinja_call(jinja_ctx *ctx, const jinja_value *callee, const jinja_args *args, jinja_value *out)
{
  switch (callee->type) {
  case JINJA_FUNCTION: return gr_jinja_function_call(ctx, callee->u.function, args, out);
  case JINJA_METHOD: return gr_jinja_method_call(ctx, callee->u.bound->method, &callee->u.bound->self, args, out);
  case JINJA_MACRO: return gr_jinja_call_macro(ctx, callee->u.macro, args, NULL, out);
  case JINJA_UNDEFINED:
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'%s' is undefined, so it cannot be called", callee->u.hint ? callee->u.hint : "the value");
  default: return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s cannot be called", gr_jinja_type_name(callee));
  }
}

static bool eval_call(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value callee;
  jinja_args args;
  if (!gr_jinja_eval(ctx, scope, node->a, &callee) || !gr_jinja_eval_args(ctx, scope, &node->args, &args)) return false;
  ctx->line = node->line;
  return gr_jinja_call(ctx, &callee, &args, out);
}

static bool eval_filter(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value in = ctx->filtered;
  jinja_args args;
  if (node->a && !gr_jinja_eval(ctx, scope, node->a, &in)) return false;
  if (!gr_jinja_eval_args(ctx, scope, &node->args, &args)) return false;
  ctx->line = node->line;
  if (node->entry == SIZE_MAX) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "there is no filter named '%s'", node->text);
  return gr_jinja_filter_apply(ctx, node->entry, &in, &args, out);
}

static bool eval_test(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  jinja_value in;
  jinja_args args;
  bool holds;
  if (!gr_jinja_eval(ctx, scope, node->a, &in) || !gr_jinja_eval_args(ctx, scope, &node->args, &args)) return false;
  ctx->line = node->line;
  if (node->entry == SIZE_MAX) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "there is no test named '%s'", node->text);
  if (!gr_jinja_test_apply(ctx, node->entry, &in, &args, &holds)) return false;
  *out = gr_jinja_bool(holds != node->negated);
  return true;
}

static bool eval_node(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  switch (node->kind) {
  case JINJA_NODE_CONST: *out = node->value; return true;
  case JINJA_NODE_NAME: return eval_name(ctx, scope, node, out);
  case JINJA_NODE_LIST:
  case JINJA_NODE_TUPLE: return eval_list(ctx, scope, node, out);
  case JINJA_NODE_DICT: return eval_dict(ctx, scope, node, out);
  case JINJA_NODE_ATTR:
  case JINJA_NODE_ITEM:
  case JINJA_NODE_SLICE: return eval_subscript(ctx, scope, node, out);
  case JINJA_NODE_CALL: return eval_call(ctx, scope, node, out);
  case JINJA_NODE_FILTER: return eval_filter(ctx, scope, node, out);
  case JINJA_NODE_TEST: return eval_test(ctx, scope, node, out);
  case JINJA_NODE_UNARY: return eval_unary(ctx, scope, node, out);
  case JINJA_NODE_BINARY: return eval_binary(ctx, scope, node, out);
  case JINJA_NODE_COMPARE: return eval_compare(ctx, scope, node, out);
  case JINJA_NODE_COND: return eval_cond(ctx, scope, node, out);
  case JINJA_NODE_CONCAT: return eval_concat(ctx, scope, node, out);
  default: return gr_jinja_fail(ctx, GR_ERR_FORMAT, "a statement stands where a value belongs"); /* the parser makes no such tree */
  }
}

bool gr_jinja_eval(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out)
{
  ctx->line = node->line;
  if (!gr_jinja_steps(ctx, 1) || !gr_jinja_enter(ctx)) return false;
  bool ok = eval_node(ctx, scope, node, out);
  ctx->depth_left++;
  return ok;
}
