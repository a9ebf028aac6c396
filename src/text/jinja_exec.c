/* Statements, scopes and macros. */
#include <string.h>

#include "text/jinja.h"

/* --- Variables ------------------------------------------------------------------------------------------------------------------ */

jinja_scope *gr_jinja_scope(jinja_ctx *ctx, jinja_scope *parent)
{
  jinja_scope *s = gr_jinja_alloc(ctx, sizeof *s);
  if (s) s->parent = parent;
  return s;
}

bool gr_jinja_bind_var(jinja_ctx *ctx, jinja_scope *scope, uint32_t symbol, jinja_value v)
{
  if (!scope) {
    ctx->globals[symbol] = v;
    return true;
  }
  for (size_t i = 0; i < scope->n; i++)
    if (scope->vars[i].symbol == symbol) {
      scope->vars[i].value = v;
      return true;
    }
  if (scope->n == scope->cap) {
    size_t grown = scope->cap ? 2 * scope->cap : 4;
    jinja_binding *vars = gr_jinja_array(ctx, grown, sizeof *vars);
    if (!vars) return false;
    if (scope->n) memcpy(vars, scope->vars, scope->n * sizeof *vars);
    scope->vars = vars;
    scope->cap = grown;
  }
  scope->vars[scope->n++] = (jinja_binding){ symbol, v };
  return gr_jinja_steps(ctx, scope->n / 16);
}

static bool assign_attr(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *target, jinja_value v)
{
  jinja_value object, key;
  if (!gr_jinja_eval(ctx, scope, target->a, &object)) return false;
  if (object.type != JINJA_NAMESPACE)
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "only a namespace has attributes that can be set; '%s' is %s", target->a->text,
                         gr_jinja_type_name(&object));
  if (target->text[0] == '_') return gr_jinja_fail(ctx, GR_ERR_FORMAT, "a namespace has no attributes that begin with an underscore");
  return gr_jinja_literal(ctx, target->text, &key) && gr_jinja_dict_put(ctx, object.u.dict, key, v);
}

bool gr_jinja_assign(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *target, jinja_value v)
{
  ctx->line = target->line;
  if (target->kind == JINJA_NODE_NAME) return gr_jinja_bind_var(ctx, scope, target->symbol, v);
  if (target->kind == JINJA_NODE_ATTR) return assign_attr(ctx, scope, target, v);
  jinja_value items;
  if (!gr_jinja_iterate(ctx, &v, &items)) return false;
  if (items.u.list->n != target->list.n)
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%zu values cannot be assigned to %zu variables", items.u.list->n, target->list.n);
  if (!gr_jinja_enter(ctx)) return false;
  for (size_t i = 0; i < target->list.n; i++)
    if (!gr_jinja_assign(ctx, scope, target->list.items[i], items.u.list->items[i])) return false;
  ctx->depth_left++;
  return true;
}

/* --- Output caught in a string ---------------------------------------------------------------------------------------------------- */

/* What body writes, as a string; marks of generation blocks inside stay on it, a block around it marks it when it is printed. */
static bool capture(jinja_ctx *ctx, jinja_scope *scope, const jinja_nodes *body, jinja_value *out)
{
  gr_jinja_builder caught = { 0 }, *outer = ctx->out;
  uint32_t mark = ctx->mark;
  ctx->out = &caught;
  ctx->mark = 0;
  jinja_scope *inner = gr_jinja_scope(ctx, scope);
  bool ok = inner && gr_jinja_exec(ctx, inner, body);
  ctx->out = outer;
  ctx->mark = mark;
  return gr_jinja_finish(ctx, &caught, ok, out);
}

/* The value of a filter chain whose innermost filter has no input of its own. */
static bool filter_value(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *chain, jinja_value *v)
{
  jinja_value outer = ctx->filtered, in = *v;
  ctx->filtered = in;
  bool ok = !chain || gr_jinja_eval(ctx, scope, chain, v);
  ctx->filtered = outer;
  return ok;
}

/* --- Macros ---------------------------------------------------------------------------------------------------------------------- */

static bool bind_params(jinja_ctx *ctx, const jinja_macro *m, jinja_scope *scope, const jinja_args *args)
{
  const jinja_node *node = m->node;
  size_t n = node->list.n, first_default = n - node->args.positional.n, used = 0;
  if (args->n > n) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "macro '%s' takes %zu arguments, not %zu", node->text, n, args->n);
  for (size_t i = 0; i < n; i++) {
    const jinja_node *param = node->list.items[i];
    jinja_value v = gr_jinja_undefined(param->text);
    bool given = i < args->n;
    if (given) v = args->positional[i];
    for (size_t k = 0; k < args->n_keyword; k++) {
      if (strcmp(args->names[k], param->text)) continue;
      if (given) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "macro '%s' got '%s' twice", node->text, param->text);
      v = args->keyword[k];
      given = true;
      used++;
    }
    uint32_t line = ctx->line;
    if (!given && i >= first_default && !gr_jinja_eval(ctx, scope, node->args.positional.items[i - first_default], &v)) return false;
    ctx->line = line;
    if (!gr_jinja_bind_var(ctx, scope, param->symbol, v)) return false;
  }
  if (used == args->n_keyword) return true;
  for (size_t k = 0; k < args->n_keyword; k++) {
    bool known = false;
    for (size_t i = 0; i < n; i++) known = known || !strcmp(args->names[k], node->list.items[i]->text);
    if (!known) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "macro '%s' has no parameter '%s'", node->text, args->names[k]);
  }
  return true;
}

bool gr_jinja_call_macro(jinja_ctx *ctx, const jinja_macro *m, const jinja_args *args, const jinja_macro *caller, jinja_value *out)
{
  if (!gr_jinja_enter(ctx)) return false;
  jinja_scope *scope = gr_jinja_scope(ctx, m->scope);
  if (!scope || !bind_params(ctx, m, scope, args)) return false;
  if (ctx->t->caller_symbol != UINT32_MAX) { /* some macro of this template mentions it */
    jinja_value v = gr_jinja_undefined("caller");
    if (caller) v = (jinja_value){ .type = JINJA_MACRO, .u.macro = caller };
    if (m->node->symbol != UINT32_MAX && !gr_jinja_bind_var(ctx, scope, ctx->t->caller_symbol, v)) return false;
  }
  uint32_t line = ctx->line;
  int flow = ctx->flow;
  ctx->flow = JINJA_FLOW_ON;
  bool ok = capture(ctx, scope, &m->node->body, out);
  ctx->flow = flow;
  ctx->line = line;
  ctx->depth_left++;
  return ok;
}

static jinja_macro *make_macro(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_macro *m = gr_jinja_alloc(ctx, sizeof *m);
  if (!m) return NULL;
  *m = (jinja_macro){ node, scope };
  for (; scope && !scope->captured; scope = scope->parent) scope->captured = true;
  return m;
}

static bool exec_macro(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_macro *m = make_macro(ctx, scope, node);
  return m && gr_jinja_bind_var(ctx, scope, node->symbol, (jinja_value){ .type = JINJA_MACRO, .u.macro = m });
}

static bool exec_call_block(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_macro *caller = make_macro(ctx, scope, node->b);
  jinja_value callee, text;
  jinja_args args;
  if (!caller || !gr_jinja_eval(ctx, scope, node->a->a, &callee) || !gr_jinja_eval_args(ctx, scope, &node->a->args, &args)) return false;
  ctx->line = node->line;
  if (callee.type != JINJA_MACRO) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'call' needs a macro, not %s", gr_jinja_type_name(&callee));
  return gr_jinja_call_macro(ctx, callee.u.macro, &args, caller, &text) && gr_jinja_put_string(ctx, ctx->out, &text);
}

/* --- Loops ------------------------------------------------------------------------------------------------------------------------ */

/* The items that a loop's `if` lets through. */
static bool select_items(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *items)
{
  jinja_value kept;
  jinja_scope *inner = gr_jinja_scope(ctx, scope);
  if (!inner || !gr_jinja_list(ctx, 0, &kept)) return false;
  for (size_t i = 0; i < items->u.list->n; i++) {
    jinja_value holds;
    if (!gr_jinja_assign(ctx, inner, node->b, items->u.list->items[i]) || !gr_jinja_eval(ctx, inner, node->c, &holds)) return false;
    if (gr_jinja_truth(&holds) && !gr_jinja_list_add(ctx, kept.u.list, items->u.list->items[i])) return false;
  }
  *items = kept;
  return true;
}

/* A body that has variables of its own. */
static bool exec_inner(jinja_ctx *ctx, jinja_scope *scope, const jinja_nodes *body)
{
  jinja_scope *inner = gr_jinja_scope(ctx, scope);
  return inner && gr_jinja_exec(ctx, inner, body);
}

static bool exec_for(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_value v, items;
  if (!gr_jinja_eval(ctx, scope, node->a, &v)) return false;
  ctx->line = node->line;
  if (!gr_jinja_iterate(ctx, &v, &items) || (node->c && !select_items(ctx, scope, node, &items))) return false;
  if (!items.u.list->n) return exec_inner(ctx, scope, &node->orelse);
  jinja_loop *loop = gr_jinja_alloc(ctx, sizeof *loop);
  jinja_scope *inner = gr_jinja_scope(ctx, scope);
  if (!loop || !inner) return false;
  loop->items = items.u.list;
  for (; loop->at < items.u.list->n; loop->at++) {
    if (!gr_jinja_steps(ctx, 1)) return false;
    if (inner->captured && !(inner = gr_jinja_scope(ctx, scope))) return false;
    inner->n = 0; /* what a turn sets is gone in the next */
    if (ctx->t->loop_symbol != UINT32_MAX &&
        !gr_jinja_bind_var(ctx, inner, ctx->t->loop_symbol, (jinja_value){ .type = JINJA_LOOP, .u.loop = loop }))
      return false;
    if (!gr_jinja_assign(ctx, inner, node->b, items.u.list->items[loop->at]) || !gr_jinja_exec(ctx, inner, &node->body)) return false;
    bool stop = ctx->flow == JINJA_FLOW_BREAK;
    ctx->flow = JINJA_FLOW_ON;
    if (stop) break;
  }
  return true;
}

/* --- The rest --------------------------------------------------------------------------------------------------------------------- */

/* Walks along a chain of elifs rather than down it. */
static bool exec_if(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  for (;;) {
    jinja_value test;
    if (!gr_jinja_eval(ctx, scope, node->a, &test)) return false;
    if (gr_jinja_truth(&test)) return gr_jinja_exec(ctx, scope, &node->body);
    if (node->orelse.n != 1 || node->orelse.items[0]->kind != JINJA_NODE_IF) return gr_jinja_exec(ctx, scope, &node->orelse);
    node = node->orelse.items[0];
  }
}

static bool exec_set(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_value v;
  bool ok =
      node->a ? gr_jinja_eval(ctx, scope, node->a, &v) : capture(ctx, scope, &node->body, &v) && filter_value(ctx, scope, node->c, &v);
  return ok && gr_jinja_assign(ctx, scope, node->b, v);
}

static bool exec_output(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_value v;
  if (!gr_jinja_eval(ctx, scope, node->a, &v)) return false;
  ctx->line = node->line;
  return gr_jinja_put_text(ctx, ctx->out, &v);
}

static bool exec_filter_block(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_value v;
  if (!capture(ctx, scope, &node->body, &v) || !filter_value(ctx, scope, node->c, &v)) return false;
  return gr_jinja_put_text(ctx, ctx->out, &v);
}

static bool exec_with(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  jinja_scope *inner = gr_jinja_scope(ctx, scope);
  if (!inner) return false;
  for (size_t i = 0; i + 1 < node->list.n; i += 2) {
    jinja_value v;
    if (!gr_jinja_eval(ctx, scope, node->list.items[i + 1], &v) || !gr_jinja_assign(ctx, inner, node->list.items[i], v)) return false;
  }
  return gr_jinja_exec(ctx, inner, &node->body);
}

/* A block within a block marks its own bytes, as it would in the tracker of transformers. */
static bool exec_generation(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  uint32_t outer = ctx->mark;
  ctx->mark = ++ctx->marks;
  bool ok = exec_inner(ctx, scope, &node->body);
  ctx->mark = outer;
  return ok;
}

static bool exec_node(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node)
{
  switch (node->kind) {
  case JINJA_NODE_TEXT: return gr_jinja_put(ctx, ctx->out, node->text, node->len, 0);
  case JINJA_NODE_OUTPUT: return exec_output(ctx, scope, node);
  case JINJA_NODE_IF: return exec_if(ctx, scope, node);
  case JINJA_NODE_FOR: return exec_for(ctx, scope, node);
  case JINJA_NODE_SET: return exec_set(ctx, scope, node);
  case JINJA_NODE_MACRO: return exec_macro(ctx, scope, node);
  case JINJA_NODE_CALL_BLOCK: return exec_call_block(ctx, scope, node);
  case JINJA_NODE_FILTER_BLOCK: return exec_filter_block(ctx, scope, node);
  case JINJA_NODE_WITH: return exec_with(ctx, scope, node);
  case JINJA_NODE_GENERATION: return exec_generation(ctx, scope, node);
  case JINJA_NODE_BREAK: ctx->flow = JINJA_FLOW_BREAK; return true;
  case JINJA_NODE_CONTINUE: ctx->flow = JINJA_FLOW_CONTINUE; return true;
  default: return gr_jinja_fail(ctx, GR_ERR_FORMAT, "a value stands where a statement belongs"); /* the parser makes no such tree */
  }
}

bool gr_jinja_exec(jinja_ctx *ctx, jinja_scope *scope, const jinja_nodes *body)
{
  if (!gr_jinja_enter(ctx)) return false;
  bool ok = true;
  for (size_t i = 0; ok && i < body->n && ctx->flow == JINJA_FLOW_ON; i++) {
    ctx->line = body->items[i]->line;
    ok = gr_jinja_steps(ctx, 1) && exec_node(ctx, scope, body->items[i]);
  }
  ctx->depth_left++;
  return ok;
}
