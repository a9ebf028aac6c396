/* Operators, subscripts, slices and attributes. Integers are 64 bits wide: where Python would grow, a render fails. */
#include <math.h>
#include <string.h>

#include "text/jinja.h"

static const char *op_text(jinja_op op)
{
  static const char *const texts[] = { [JINJA_OP_ADD] = "+",       [JINJA_OP_SUB] = "-", [JINJA_OP_MUL] = "*", [JINJA_OP_DIV] = "/",
                                       [JINJA_OP_FLOORDIV] = "//", [JINJA_OP_MOD] = "%", [JINJA_OP_POW] = "**" };
  return texts[op];
}

static bool is_integer(const jinja_value *v) { return v->type == JINJA_INT || v->type == JINJA_BOOL; }
static bool is_number(const jinja_value *v) { return is_integer(v) || v->type == JINJA_FLOAT; }
static int64_t as_integer(const jinja_value *v) { return v->type == JINJA_BOOL ? v->u.boolean : v->u.integer; }
static double as_real(const jinja_value *v) { return v->type == JINJA_FLOAT ? v->u.real : (double)as_integer(v); }

static bool add_overflows(int64_t a, int64_t b) { return b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b; }
static bool mul_overflows(int64_t a, int64_t b)
{
  if (!a || !b) return false;
  if (a > 0) return b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a;
  return b > 0 ? a < INT64_MIN / b : b < INT64_MAX / a;
}

/* a^n by squaring; false on overflow. */
static bool power(int64_t a, int64_t n, int64_t *out)
{
  int64_t result = 1;
  for (; n; n >>= 1) {
    if (n & 1) {
      if (mul_overflows(result, a)) return false;
      result *= a;
    }
    if (n > 1) {
      if (mul_overflows(a, a)) return false;
      a *= a;
    }
  }
  *out = result;
  return true;
}

static bool integer_op(jinja_ctx *ctx, jinja_op op, int64_t a, int64_t b, jinja_tag tag, jinja_value *out)
{
  bool overflow = false;
  int64_t r = 0;
  switch (op) {
  case JINJA_OP_ADD: overflow = add_overflows(a, b); break;
  case JINJA_OP_SUB: overflow = b > 0 ? a < INT64_MIN + b : a > INT64_MAX + b; break;
  case JINJA_OP_MUL: overflow = mul_overflows(a, b); break;
  case JINJA_OP_POW: overflow = !power(a, b, &r); break;
  default:
    if (!b) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "division by zero");
    overflow = a == INT64_MIN && b == -1;
  }
  if (overflow) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "the result of '%s' does not fit 64 bits", op_text(op));
  if (op == JINJA_OP_ADD) r = a + b;
  if (op == JINJA_OP_SUB) r = a - b;
  if (op == JINJA_OP_MUL) r = a * b;
  if (op == JINJA_OP_FLOORDIV) r = a / b - (a % b && (a < 0) != (b < 0)); /* towards minus infinity, as Python rounds */
  if (op == JINJA_OP_MOD) r = a % b && (a < 0) != (b < 0) ? a % b + b : a % b;
  *out = gr_jinja_int(r, tag);
  return true;
}

static bool number_op(jinja_ctx *ctx, jinja_op op, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
  jinja_tag tag = jinja_tag_join(a->tag, b->tag);
  if (is_integer(a) && is_integer(b) && op != JINJA_OP_DIV && !(op == JINJA_OP_POW && as_integer(b) < 0))
    return integer_op(ctx, op, as_integer(a), as_integer(b), tag, out);
  double x = as_real(a), y = as_real(b), r = 0;
  if (y == 0 && (op == JINJA_OP_DIV || op == JINJA_OP_FLOORDIV || op == JINJA_OP_MOD))
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "division by zero");
  if (op == JINJA_OP_POW && ((x == 0 && y < 0) || (x < 0 && y != floor(y))))
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "this power has no real value");
  switch (op) {
  case JINJA_OP_ADD: r = x + y; break;
  case JINJA_OP_SUB: r = x - y; break;
  case JINJA_OP_MUL: r = x * y; break;
  case JINJA_OP_DIV: r = x / y; break;
  case JINJA_OP_FLOORDIV: r = floor(x / y); break;
  case JINJA_OP_POW: r = pow(x, y); break;
  default: /* the sign of a remainder is the divisor's */
    r = fmod(x, y);
    if (r != 0 && (r < 0) != (y < 0)) r += y;
  }
  *out = gr_jinja_float(r, tag);
  return true;
}

static bool join_strings(jinja_ctx *ctx, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
  if (!b->u.string->len || !a->u.string->len) {
    *out = a->u.string->len ? *a : *b;
    return true;
  }
  gr_jinja_builder text = { 0 };
  return gr_jinja_finish(ctx, &text, gr_jinja_put_string(ctx, &text, a) && gr_jinja_put_string(ctx, &text, b), out);
}

static bool join_lists(jinja_ctx *ctx, const jinja_list *a, const jinja_list *b, jinja_value *out)
{
  if (!gr_jinja_list(ctx, a->n + b->n, out)) return false;
  out->u.list->tuple = a->tuple;
  for (size_t i = 0; i < a->n + b->n; i++)
    if (!gr_jinja_list_add(ctx, out->u.list, i < a->n ? a->items[i] : b->items[i - a->n])) return false;
  return true;
}

/* A string or list n times over. */
static bool repeat(jinja_ctx *ctx, const jinja_value *v, int64_t n, jinja_value *out)
{
  size_t each = v->type == JINJA_STRING ? v->u.string->len : v->u.list->n * sizeof *v->u.list->items;
  if (each && n > 0 && (uint64_t)n > ctx->bytes_left / each)
    return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "the template uses more memory than a render may");
  if (v->type == JINJA_STRING) {
    gr_jinja_builder text = { 0 };
    bool ok = true;
    for (int64_t i = 0; ok && v->u.string->len && i < n; i++) ok = gr_jinja_steps(ctx, 1) && gr_jinja_put_string(ctx, &text, v);
    return gr_jinja_finish(ctx, &text, ok, out);
  }
  if (!gr_jinja_list(ctx, 0, out)) return false;
  out->u.list->tuple = v->u.list->tuple;
  for (int64_t i = 0; v->u.list->n && i < n; i++)
    for (size_t k = 0; k < v->u.list->n; k++)
      if (!gr_jinja_list_add(ctx, out->u.list, v->u.list->items[k])) return false;
  return true;
}

static bool is_sequence(const jinja_value *v) { return v->type == JINJA_STRING || v->type == JINJA_LIST; }

bool gr_jinja_binary(jinja_ctx *ctx, jinja_op op, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
  if (is_number(a) && is_number(b)) return number_op(ctx, op, a, b, out);
  if (op == JINJA_OP_ADD && a->type == JINJA_STRING && b->type == JINJA_STRING) return join_strings(ctx, a, b, out);
  if (op == JINJA_OP_ADD && a->type == JINJA_LIST && b->type == JINJA_LIST && a->u.list->tuple == b->u.list->tuple)
    return join_lists(ctx, a->u.list, b->u.list, out);
  if (op == JINJA_OP_MUL && is_sequence(a) && is_integer(b)) return repeat(ctx, a, as_integer(b), out);
  if (op == JINJA_OP_MUL && is_integer(a) && is_sequence(b)) return repeat(ctx, b, as_integer(a), out);
  if (op == JINJA_OP_MOD && a->type == JINJA_STRING) {
    bool tuple = b->type == JINJA_LIST && b->u.list->tuple;
    return gr_jinja_format(ctx, a, tuple ? b->u.list->items : b, tuple ? b->u.list->n : 1, out);
  }
  const jinja_value *missing = a->type == JINJA_UNDEFINED ? a : b->type == JINJA_UNDEFINED ? b : NULL;
  if (missing && missing->u.hint)
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'%s' is undefined, but '%s' needs its value", missing->u.hint, op_text(op));
  return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'%s' does not work between %s and %s", op_text(op), gr_jinja_type_name(a),
                       gr_jinja_type_name(b));
}

bool gr_jinja_negate(jinja_ctx *ctx, const jinja_value *a, jinja_value *out)
{
  if (!is_number(a)) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "a sign does not go with %s", gr_jinja_type_name(a));
  if (a->type == JINJA_FLOAT) {
    *out = gr_jinja_float(-a->u.real, a->tag);
    return true;
  }
  return integer_op(ctx, JINJA_OP_SUB, 0, as_integer(a), a->tag, out);
}

bool gr_jinja_compare(jinja_ctx *ctx, jinja_op op, const jinja_value *a, const jinja_value *b, bool *out)
{
  int order = 0;
  switch (op) {
  case JINJA_OP_EQ: return gr_jinja_equal(ctx, a, b, out);
  case JINJA_OP_IN: return gr_jinja_contains(ctx, b, a, out);
  case JINJA_OP_NE:
    if (!gr_jinja_equal(ctx, a, b, out)) return false;
    *out = !*out;
    return true;
  case JINJA_OP_NOT_IN:
    if (!gr_jinja_contains(ctx, b, a, out)) return false;
    *out = !*out;
    return true;
  default: break;
  }
  if (!gr_jinja_order(ctx, a, b, &order)) return false;
  if (order == 2) *out = false; /* a NaN */
  else if (op == JINJA_OP_LT) *out = order < 0;
  else if (op == JINJA_OP_LE) *out = order <= 0;
  else if (op == JINJA_OP_GT) *out = order > 0;
  else *out = order >= 0;
  return true;
}

/* --- Subscripts ------------------------------------------------------------------------------------------------------------------ */

static size_t text_length(const jinja_value *s) { return gr_jinja_utf8_length(s->u.string->data, s->u.string->len); }

/* The code points from..to of a string. */
static bool text_part(jinja_ctx *ctx, const jinja_value *s, size_t from, size_t to, jinja_value *out)
{
  const jinja_string *t = s->u.string;
  size_t start = gr_jinja_utf8_offset(t->data, t->len, from);
  size_t end = start + gr_jinja_utf8_offset(t->data + start, t->len - start, to - from);
  return gr_jinja_steps(ctx, t->len / 256) && gr_jinja_substring(ctx, s, start, end, out);
}

bool gr_jinja_item(jinja_ctx *ctx, const jinja_value *v, const jinja_value *key, jinja_value *out)
{
  bool found = false;
  if (v->type == JINJA_DICT) {
    if (key->type != JINJA_LIST && key->type != JINJA_DICT && !gr_jinja_dict_get(ctx, v->u.dict, key, out, &found)) return false;
    if (found) return true;
  } else if (is_sequence(v) && is_integer(key)) {
    int64_t n = (int64_t)(v->type == JINJA_LIST ? v->u.list->n : text_length(v)), i = as_integer(key);
    if (i < 0 && i >= -n) i += n;
    if (i < 0 || i >= n) {
      *out = gr_jinja_undefined(NULL);
      return true;
    }
    if (v->type == JINJA_STRING) return text_part(ctx, v, (size_t)i, (size_t)i + 1, out);
    *out = v->u.list->items[i];
    return true;
  } else if (v->type == JINJA_UNDEFINED) {
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'%s' is undefined, so nothing can be looked up in it", v->u.hint ? v->u.hint : "the value");
  }
  if (key->type != JINJA_STRING) { /* as Jinja2: what cannot be subscripted has no item, not an error */
    *out = gr_jinja_undefined(NULL);
    return true;
  }
  char *name = gr_jinja_array(ctx, key->u.string->len + 1, 1);
  if (!name) return false;
  memcpy(name, key->u.string->data, key->u.string->len);
  if (v->type != JINJA_DICT) return gr_jinja_attr(ctx, v, name, out);
  size_t method = gr_jinja_method_find(v->type, name);
  if (method == SIZE_MAX) {
    *out = gr_jinja_undefined(name);
    return true;
  }
  return gr_jinja_attr(ctx, v, name, out);
}

static bool slice_bound(jinja_ctx *ctx, const jinja_value *v, int64_t absent, int64_t *out)
{
  *out = absent;
  if (v->type == JINJA_ABSENT || v->type == JINJA_NONE) return true;
  return gr_jinja_want_int(ctx, "a slice", v, out);
}

bool gr_jinja_slice(jinja_ctx *ctx, const jinja_value *v, const jinja_value bounds[3], jinja_value *out)
{
  if (!is_sequence(v)) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s cannot be sliced", gr_jinja_type_name(v));
  int64_t n = (int64_t)(v->type == JINJA_LIST ? v->u.list->n : text_length(v)), start, stop, step;
  if (!slice_bound(ctx, &bounds[2], 1, &step)) return false;
  if (!step) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "the step of a slice cannot be 0");
  int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n; /* the bounds of the bounds */
  if (!slice_bound(ctx, &bounds[0], step < 0 ? high : low, &start)) return false;
  if (!slice_bound(ctx, &bounds[1], step < 0 ? -n - 1 : high, &stop)) return false;
  if (start < 0) start = start < -n ? low : start + n;
  if (stop < 0) stop = stop < -n ? low : stop + n;
  if (start > high) start = high;
  if (stop > high) stop = high;
  if (v->type == JINJA_STRING && step == 1) return text_part(ctx, v, (size_t)start, (size_t)(stop > start ? stop : start), out);
  jinja_value items = *v; /* a string steps through the list of its code points */
  if (v->type == JINJA_STRING && !gr_jinja_iterate(ctx, v, &items)) return false;
  if (!gr_jinja_list(ctx, 0, out)) return false;
  out->tag = v->tag;
  out->u.list->tuple = items.u.list->tuple;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (!gr_jinja_list_add(ctx, out->u.list, items.u.list->items[i])) return false;
    if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
  }
  return v->type == JINJA_LIST || gr_jinja_join(ctx, out->u.list, NULL, out);
}

/* --- Attributes ------------------------------------------------------------------------------------------------------------------ */

static bool loop_attr(const jinja_loop *loop, const char *name, jinja_value *out)
{
  size_t n = loop->items->n, at = loop->at;
  if (!strcmp(name, "index")) *out = gr_jinja_int((int64_t)at + 1, 0);
  else if (!strcmp(name, "index0")) *out = gr_jinja_int((int64_t)at, 0);
  else if (!strcmp(name, "revindex")) *out = gr_jinja_int((int64_t)(n - at), 0);
  else if (!strcmp(name, "revindex0")) *out = gr_jinja_int((int64_t)(n - at - 1), 0);
  else if (!strcmp(name, "first")) *out = gr_jinja_bool(at == 0);
  else if (!strcmp(name, "last")) *out = gr_jinja_bool(at + 1 == n);
  else if (!strcmp(name, "length")) *out = gr_jinja_int((int64_t)n, 0);
  else if (!strcmp(name, "depth")) *out = gr_jinja_int(1, 0); /* of recursion, which there is none of */
  else if (!strcmp(name, "depth0")) *out = gr_jinja_int(0, 0);
  else if (!strcmp(name, "previtem")) *out = at ? loop->items->items[at - 1] : gr_jinja_undefined("previtem");
  else if (!strcmp(name, "nextitem")) *out = at + 1 < n ? loop->items->items[at + 1] : gr_jinja_undefined("nextitem");
  else return false;
  return true;
}

bool gr_jinja_attr(jinja_ctx *ctx, const jinja_value *v, const char *name, jinja_value *out)
{
  bool found = false;
  *out = gr_jinja_undefined(name);
  if (v->type == JINJA_UNDEFINED)
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'%s' is undefined, so it has no '%s'", v->u.hint ? v->u.hint : "the value", name);
  if (v->type == JINJA_LOOP && loop_attr(v->u.loop, name, out)) return true;
  size_t method = gr_jinja_method_find(v->type, name);
  if (method != SIZE_MAX) {
    jinja_bound *bound = gr_jinja_alloc(ctx, sizeof *bound);
    if (!bound) return false;
    *bound = (jinja_bound){ *v, method };
    *out = (jinja_value){ .type = JINJA_METHOD, .u.bound = bound };
    return true;
  }
  if (v->type != JINJA_DICT && v->type != JINJA_NAMESPACE) return true;
  jinja_value item;
  if (!gr_jinja_dict_find(ctx, v->u.dict, name, &item, &found)) return false;
  if (found) *out = item;
  return true;
}

bool gr_jinja_attr_path(jinja_ctx *ctx, const jinja_value *v, const jinja_value *path, jinja_value *out)
{
  *out = *v;
  if (path->type == JINJA_INT) return gr_jinja_item(ctx, v, path, out);
  if (!gr_jinja_want_string(ctx, "attribute", path)) return false;
  const jinja_string *s = path->u.string;
  for (size_t at = 0; at <= s->len;) {
    const char *dot = at < s->len ? memchr(s->data + at, '.', s->len - at) : NULL;
    size_t end = dot ? (size_t)(dot - s->data) : s->len;
    int64_t index = 0;
    bool digits = end > at && end - at < 18;
    for (size_t i = at; i < end && digits; i++) {
      digits = s->data[i] >= '0' && s->data[i] <= '9';
      index = index * 10 + (s->data[i] - '0');
    }
    jinja_value key = gr_jinja_int(index, 0), object = *out;
    if (!digits && !gr_jinja_substring(ctx, path, at, end, &key)) return false;
    if (!gr_jinja_item(ctx, &object, &key, out)) return false;
    at = end + 1;
  }
  return true;
}
