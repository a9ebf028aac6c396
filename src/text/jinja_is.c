/* Tests: what may follow `is`. */
#include <string.h>

#include "text/jinja.h"

static bool no_args(jinja_ctx *ctx, const jinja_args *args) { return gr_jinja_bind(ctx, "the test", args, NULL, 0, 0, NULL); }

static bool one_arg(jinja_ctx *ctx, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "other" };
  return gr_jinja_bind(ctx, "the test", args, params, 1, 1, out);
}

/* A test of one type, or of several. */
#define TYPE_TEST(name, condition)                                                                                                         \
  static bool test_##name(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)                                        \
  {                                                                                                                                        \
    *out = (condition);                                                                                                                    \
    return no_args(ctx, args);                                                                                                             \
  }

TYPE_TEST(defined, in->type != JINJA_UNDEFINED)
TYPE_TEST(undefined, in->type == JINJA_UNDEFINED)
TYPE_TEST(none, in->type == JINJA_NONE)
TYPE_TEST(boolean, in->type == JINJA_BOOL)
TYPE_TEST(true, in->type == JINJA_BOOL && in->u.boolean)
TYPE_TEST(false, in->type == JINJA_BOOL && !in->u.boolean)
TYPE_TEST(integer, in->type == JINJA_INT)
TYPE_TEST(float, in->type == JINJA_FLOAT)
TYPE_TEST(number, in->type == JINJA_INT || in->type == JINJA_FLOAT || in->type == JINJA_BOOL)
TYPE_TEST(string, in->type == JINJA_STRING)
TYPE_TEST(mapping, in->type == JINJA_DICT)
TYPE_TEST(iterable, in->type == JINJA_STRING || in->type == JINJA_LIST || in->type == JINJA_DICT || in->type == JINJA_UNDEFINED)
TYPE_TEST(sequence, in->type == JINJA_STRING || in->type == JINJA_LIST || in->type == JINJA_DICT || in->type == JINJA_UNDEFINED)
TYPE_TEST(callable, in->type == JINJA_FUNCTION || in->type == JINJA_METHOD || in->type == JINJA_MACRO)

/* Nothing is ever marked as escaped. */
static bool test_escaped(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  (void)in;
  *out = false;
  return no_args(ctx, args);
}

static bool test_divisibleby(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  jinja_value by, rest, zero = gr_jinja_int(0, 0);
  return one_arg(ctx, args, &by) && gr_jinja_binary(ctx, JINJA_OP_MOD, in, &by, &rest) && gr_jinja_equal(ctx, &rest, &zero, out);
}

static bool parity(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, int64_t odd, bool *out)
{
  jinja_value two = gr_jinja_int(2, 0), rest, wanted = gr_jinja_int(odd, 0);
  return no_args(ctx, args) && gr_jinja_binary(ctx, JINJA_OP_MOD, in, &two, &rest) && gr_jinja_equal(ctx, &rest, &wanted, out);
}

static bool test_odd(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out) { return parity(ctx, in, args, 1, out); }
static bool test_even(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out) { return parity(ctx, in, args, 0, out); }

static bool text_is(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, const char *method, bool *out)
{
  jinja_value text, holds;
  if (!gr_jinja_text(ctx, in, &text)) return false;
  if (!gr_jinja_method_call(ctx, gr_jinja_method_find(JINJA_STRING, method), &text, args, &holds)) return false;
  *out = holds.u.boolean;
  return true;
}

static bool test_upper(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  return text_is(ctx, in, args, "isupper", out);
}

static bool test_lower(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  return text_is(ctx, in, args, "islower", out);
}

static bool test_sameas(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  jinja_value other;
  *out = false;
  if (!one_arg(ctx, args, &other)) return false;
  if (in->type != other.type) return true;
  if (in->type == JINJA_LIST) *out = in->u.list == other.u.list;
  else if (in->type == JINJA_DICT) *out = in->u.dict == other.u.dict;
  else return gr_jinja_equal(ctx, in, &other, out);
  return true;
}

static bool compare(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_op op, bool *out)
{
  jinja_value other;
  return one_arg(ctx, args, &other) && gr_jinja_compare(ctx, op, in, &other, out);
}

static bool test_eq(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_EQ, out); }
static bool test_ne(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_NE, out); }
static bool test_lt(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_LT, out); }
static bool test_le(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_LE, out); }
static bool test_gt(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_GT, out); }
static bool test_ge(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_GE, out); }
static bool test_in(jinja_ctx *ctx, const jinja_value *in, const jinja_args *a, bool *out) { return compare(ctx, in, a, JINJA_OP_IN, out); }

static bool test_filter(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  *out = in->type == JINJA_STRING && gr_jinja_filter_find(in->u.string->data, in->u.string->len) != SIZE_MAX;
  return no_args(ctx, args);
}

static bool test_test(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out)
{
  *out = in->type == JINJA_STRING && gr_jinja_test_find(in->u.string->data, in->u.string->len) != SIZE_MAX;
  return no_args(ctx, args);
}

static const struct {
  const char *name;
  jinja_test_fn *apply;
  bool wants_argument;
} tests[] = {
  { "defined", test_defined, false },
  { "undefined", test_undefined, false },
  { "none", test_none, false },
  { "boolean", test_boolean, false },
  { "true", test_true, false },
  { "false", test_false, false },
  { "integer", test_integer, false },
  { "float", test_float, false },
  { "number", test_number, false },
  { "string", test_string, false },
  { "mapping", test_mapping, false },
  { "iterable", test_iterable, false },
  { "sequence", test_sequence, false },
  { "callable", test_callable, false },
  { "escaped", test_escaped, false },
  { "odd", test_odd, false },
  { "even", test_even, false },
  { "upper", test_upper, false },
  { "lower", test_lower, false },
  { "filter", test_filter, false },
  { "test", test_test, false },
  { "divisibleby", test_divisibleby, true },
  { "sameas", test_sameas, true },
  { "in", test_in, true },
  { "eq", test_eq, true },
  { "equalto", test_eq, true },
  { "==", test_eq, true },
  { "ne", test_ne, true },
  { "!=", test_ne, true },
  { "lt", test_lt, true },
  { "lessthan", test_lt, true },
  { "<", test_lt, true },
  { "le", test_le, true },
  { "<=", test_le, true },
  { "gt", test_gt, true },
  { "greaterthan", test_gt, true },
  { ">", test_gt, true },
  { "ge", test_ge, true },
  { ">=", test_ge, true },
};

size_t gr_jinja_test_find(const char *name, size_t n)
{
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
    if (strlen(tests[i].name) == n && !memcmp(tests[i].name, name, n)) return i;
  return SIZE_MAX;
}

bool gr_jinja_test_apply(jinja_ctx *ctx, size_t entry, const jinja_value *in, const jinja_args *args, bool *out)
{
  return tests[entry].apply(ctx, in, args, out);
}

bool gr_jinja_test_wants_argument(const char *name)
{
  size_t entry = gr_jinja_test_find(name, strlen(name));
  return entry != SIZE_MAX && tests[entry].wants_argument;
}
