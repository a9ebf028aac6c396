/* Filters of single values, and the table of all filters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"

/* --- Numbers ----------------------------------------------------------------------------------------------------------------------- */

static void trim_space(const char **s, size_t *n)
{
  while (*n && (**s == ' ' || (**s >= 9 && **s <= 13))) {
    ++*s;
    --*n;
  }
  while (*n && ((*s)[*n - 1] == ' ' || ((*s)[*n - 1] >= 9 && (*s)[*n - 1] <= 13))) --*n;
}

static int digit_of(char c)
{
  if (c >= '0' && c <= '9') return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

bool gr_jinja_parse_int(const char *s, size_t n, int64_t base, int64_t *out)
{
  trim_space(&s, &n);
  bool negative = n && *s == '-';
  size_t at = n && (*s == '-' || *s == '+');
  char mark = at + 1 < n && s[at] == '0' ? (char)(s[at + 1] | 32) : 0;
  if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b')) at += 2;
  if (at >= n) return false;
  int64_t value = 0;
  for (size_t start = at; at < n; at++) {
    if (s[at] == '_' && at > start && at + 1 < n && s[at - 1] != '_') continue;
    int d = digit_of(s[at]);
    if (d >= base || value < (INT64_MIN + d) / base) return false;
    value = value * base - d; /* counted downwards, where there is room for one more */
  }
  if (!negative && value == INT64_MIN) return false;
  *out = negative ? value : -value;
  return true;
}

bool gr_jinja_parse_real(const char *s, size_t n, double *out)
{
  char text[256], point[8];
  size_t len = 0, digits = 0;
  trim_space(&s, &n);
  if (!n || n > 128) return false;
  snprintf(point, sizeof point, "%.1f", 0.5); /* strtod wants the locale's decimal separator: what stands between 0 and 5 */
  point[strlen(point) - 1] = 0;
  for (size_t i = 0; i < n; i++) {
    bool exponent = (s[i] | 32) == 'e' && digits, sign = s[i] == '-' || s[i] == '+';
    if (s[i] == '.') {
      memcpy(text + len, point + 1, strlen(point + 1));
      len += strlen(point + 1);
      continue;
    }
    if (!exponent && !sign && !(s[i] >= '0' && s[i] <= '9')) return false; /* keeps strtod from hexadecimals, infinities, NaNs */
    digits += !exponent && !sign;
    text[len++] = s[i];
  }
  text[len] = 0;
  char *end;
  *out = strtod(text, &end);
  return digits && end == text + len;
}

static bool filter_int(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "default", "base" };
  jinja_value given[2];
  int64_t base = 10, i = 0;
  double d = 0;
  if (!gr_jinja_bind(ctx, "int", args, params, 2, 0, given)) return false;
  if (given[1].type != JINJA_ABSENT && !gr_jinja_want_int(ctx, "int", &given[1], &base)) return false;
  if (base < 2 || base > 36) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "int knows the bases 2 to 36");
  if (in->type == JINJA_UNDEFINED) return gr_jinja_want_int(ctx, "int", in, &i);
  bool ok = in->type == JINJA_INT || in->type == JINJA_BOOL, real = in->type == JINJA_FLOAT;
  if (ok) i = in->type == JINJA_INT ? in->u.integer : in->u.boolean;
  if (real) d = in->u.real;
  if (in->type == JINJA_STRING) {
    const jinja_string *s = in->u.string;
    ok = gr_jinja_parse_int(s->data, s->len, base, &i);
    real = !ok && gr_jinja_parse_real(s->data, s->len, &d);
  }
  if (real && fabs(d) < 0x1p63) {
    i = (int64_t)d;
    ok = true;
  }
  if (ok) *out = gr_jinja_int(i, gr_jinja_tag_of(in));
  else *out = given[0].type == JINJA_ABSENT ? gr_jinja_int(0, 0) : given[0];
  return true;
}

static bool filter_float(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "default" };
  jinja_value given;
  double d = 0;
  if (!gr_jinja_bind(ctx, "float", args, params, 1, 0, &given)) return false;
  bool ok = in->type != JINJA_UNDEFINED;
  if (!ok) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "float needs a value, not undefined");
  if (in->type == JINJA_FLOAT) d = in->u.real;
  else if (in->type == JINJA_INT) d = (double)in->u.integer;
  else if (in->type == JINJA_BOOL) d = in->u.boolean;
  else ok = in->type == JINJA_STRING && gr_jinja_parse_real(in->u.string->data, in->u.string->len, &d);
  if (ok) *out = gr_jinja_float(d, gr_jinja_tag_of(in));
  else *out = given.type == JINJA_ABSENT ? gr_jinja_float(0, 0) : given;
  return true;
}

static bool filter_abs(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  if (!gr_jinja_bind(ctx, "abs", args, NULL, 0, 0, NULL)) return false;
  bool negative = in->type == JINJA_FLOAT ? in->u.real < 0 : in->type == JINJA_INT && in->u.integer < 0;
  if (in->type != JINJA_FLOAT && in->type != JINJA_INT && in->type != JINJA_BOOL)
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "abs needs a number, not %s", gr_jinja_type_name(in));
  *out = in->type == JINJA_BOOL ? gr_jinja_int(in->u.boolean, in->tag) : *in;
  return !negative || gr_jinja_negate(ctx, in, out);
}

static bool filter_round(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "precision", "method" };
  jinja_value given[2];
  int64_t precision = 0;
  if (!gr_jinja_bind(ctx, "round", args, params, 2, 0, given)) return false;
  if (given[0].type != JINJA_ABSENT && !gr_jinja_want_int(ctx, "round", &given[0], &precision)) return false;
  bool common = given[1].type == JINJA_ABSENT || jinja_is_text(&given[1], "common", 6), up = jinja_is_text(&given[1], "ceil", 4);
  if (!common && !up && !jinja_is_text(&given[1], "floor", 5))
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "round knows the methods 'common', 'ceil' and 'floor'");
  if (precision < 0 || precision > 15) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "round knows the precisions 0 to 15");
  if (in->type == JINJA_BOOL) *out = gr_jinja_int(in->u.boolean, in->tag);
  else *out = *in;
  if (in->type == JINJA_INT || in->type == JINJA_BOOL) return true;
  if (in->type != JINJA_FLOAT) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "round needs a number, not %s", gr_jinja_type_name(in));
  double scale = pow(10, (double)precision), d = in->u.real;
  if (!common) {
    d = (up ? ceil(d * scale) : floor(d * scale)) / scale;
  } else if (fabs(d) < 1e15) { /* printf rounds the exact value, halves to even, as Python does */
    char text[64];
    snprintf(text, sizeof text, "%.*f", (int)precision, d);
    if (sscanf(text, "%lf", &d) != 1) d = in->u.real;
  }
  *out = gr_jinja_float(d, in->tag);
  return true;
}

/* --- Strings ----------------------------------------------------------------------------------------------------------------------- */

static bool recase(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_case how, jinja_value *out)
{
  jinja_value text;
  return gr_jinja_bind(ctx, "the filter", args, NULL, 0, 0, NULL) && gr_jinja_text(ctx, in, &text) && gr_jinja_recase(ctx, &text, how, out);
}

static bool filter_upper(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, in, args, JINJA_UPPER, out);
}

static bool filter_lower(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, in, args, JINJA_LOWER, out);
}

static bool filter_title(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, in, args, JINJA_TITLE_WORDS, out);
}

static bool filter_capitalize(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, in, args, JINJA_CAPITALIZE, out);
}

static bool filter_trim(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "chars" };
  jinja_value chars, text;
  if (!gr_jinja_bind(ctx, "trim", args, params, 1, 0, &chars) || !gr_jinja_text(ctx, in, &text)) return false;
  bool given = chars.type != JINJA_ABSENT && chars.type != JINJA_NONE;
  if (given && !gr_jinja_want_string(ctx, "trim", &chars)) return false;
  return gr_jinja_strip(ctx, &text, given ? &chars : NULL, JINJA_BOTH, out);
}

static bool filter_replace(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "old", "new", "count" };
  jinja_value given[3], text, old, new_text;
  int64_t count = -1;
  if (!gr_jinja_bind(ctx, "replace", args, params, 3, 2, given) || !gr_jinja_text(ctx, in, &text)) return false;
  if (!gr_jinja_text(ctx, &given[0], &old) || !gr_jinja_text(ctx, &given[1], &new_text)) return false;
  bool all = given[2].type == JINJA_ABSENT || given[2].type == JINJA_NONE;
  if (!all && !gr_jinja_want_int(ctx, "replace", &given[2], &count)) return false;
  return gr_jinja_replace(ctx, &text, &old, &new_text, count, out);
}

/* Also `safe`: nothing here escapes by itself, so there is nothing to mark. */
static bool filter_string(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return gr_jinja_bind(ctx, "string", args, NULL, 0, 0, NULL) && gr_jinja_text(ctx, in, out);
}

static bool filter_escape(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char from[] = "&<>'\"";
  static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
  jinja_value text;
  if (!gr_jinja_bind(ctx, "escape", args, NULL, 0, 0, NULL) || !gr_jinja_text(ctx, in, &text)) return false;
  const jinja_string *s = text.u.string;
  gr_jinja_builder b = { 0 };
  bool ok = gr_jinja_steps(ctx, s->len / 16);
  for (size_t at = 0; ok && at < s->len; at++) {
    const char *special = s->data[at] ? strchr(from, s->data[at]) : NULL;
    if (special) ok = gr_jinja_put(ctx, &b, to[special - from], strlen(to[special - from]), gr_jinja_tag_at(&text, at));
    else ok = gr_jinja_put_part(ctx, &b, &text, at, at + 1);
  }
  return gr_jinja_finish(ctx, &b, ok, out);
}

static bool filter_indent(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "width", "first", "blank" };
  jinja_value given[3], text, lines;
  if (!gr_jinja_bind(ctx, "indent", args, params, 3, 0, given) || !gr_jinja_want_string(ctx, "indent", in)) return false;
  text = *in;
  if (given[0].type != JINJA_STRING) {
    static const char blanks[] = "                                                                ";
    int64_t width = 4;
    if (given[0].type != JINJA_ABSENT && !gr_jinja_want_int(ctx, "indent", &given[0], &width)) return false;
    if (width > 64) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "indent is wider than 64");
    if (!gr_jinja_string(ctx, blanks, width > 0 ? (size_t)width : 0, 0, &given[0])) return false;
  }
  bool first = gr_jinja_truth(&given[1]), blank = gr_jinja_truth(&given[2]);
  if (!gr_jinja_splitlines(ctx, &text, &(jinja_args){ 0 }, &lines)) return false;
  const jinja_string *s = text.u.string;
  jinja_value empty;
  bool ends = !s->len || s->data[s->len - 1] == '\n'; /* the empty line behind the last newline counts */
  if (ends && (!gr_jinja_literal(ctx, "", &empty) || !gr_jinja_list_add(ctx, lines.u.list, empty))) return false;
  gr_jinja_builder b = { 0 };
  bool ok = true;
  for (size_t i = 0; ok && i < lines.u.list->n; i++) {
    const jinja_value *line = &lines.u.list->items[i];
    bool indented = i ? blank || line->u.string->len : first;
    if (i) ok = gr_jinja_put(ctx, &b, "\n", 1, gr_jinja_tag_of(&text));
    if (ok && indented) ok = gr_jinja_put_string(ctx, &b, &given[0]);
    ok = ok && gr_jinja_put_string(ctx, &b, line);
  }
  return gr_jinja_finish(ctx, &b, ok, out);
}

static bool filter_format(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  jinja_value text;
  if (args->n_keyword) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "format takes no named arguments here");
  return gr_jinja_text(ctx, in, &text) && gr_jinja_format(ctx, &text, args->positional, args->n, out);
}

static bool filter_default(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "default_value", "boolean" };
  jinja_value given[2];
  if (!gr_jinja_bind(ctx, "default", args, params, 2, 0, given)) return false;
  *out = *in;
  if (in->type != JINJA_UNDEFINED && !(gr_jinja_truth(&given[1]) && !gr_jinja_truth(in))) return true;
  *out = given[0];
  return given[0].type != JINJA_ABSENT || gr_jinja_literal(ctx, "", out);
}

static bool filter_attr(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "name" };
  jinja_value name;
  if (!gr_jinja_bind(ctx, "attr", args, params, 1, 1, &name) || !gr_jinja_want_string(ctx, "attr", &name)) return false;
  if (in->type != JINJA_DICT) return gr_jinja_item(ctx, in, &name, out);
  const jinja_dict empty = { 0 }; /* a dictionary's attributes are its methods, not its entries */
  jinja_value bare = { .type = JINJA_DICT, .u.dict = (jinja_dict *)&empty };
  return gr_jinja_item(ctx, &bare, &name, out);
}

/* --- The table ----------------------------------------------------------------------------------------------------------------------- */

static const jinja_filter_entry value_filters[] = {
  { "tojson", gr_jinja_tojson }, { "trim", filter_trim },     { "length", gr_jinja_length }, { "count", gr_jinja_length },
  { "default", filter_default }, { "d", filter_default },     { "string", filter_string },   { "safe", filter_string },
  { "upper", filter_upper },     { "lower", filter_lower },   { "title", filter_title },     { "capitalize", filter_capitalize },
  { "replace", filter_replace }, { "int", filter_int },       { "float", filter_float },     { "abs", filter_abs },
  { "round", filter_round },     { "escape", filter_escape }, { "e", filter_escape },        { "forceescape", filter_escape },
  { "indent", filter_indent },   { "format", filter_format }, { "attr", filter_attr },
};

enum { N_VALUE_FILTERS = sizeof value_filters / sizeof *value_filters };

size_t gr_jinja_filter_find(const char *name, size_t n)
{
  size_t n_list;
  const jinja_filter_entry *list = gr_jinja_list_filters(&n_list);
  for (size_t i = 0; i < N_VALUE_FILTERS + n_list; i++) {
    const char *known = i < N_VALUE_FILTERS ? value_filters[i].name : list[i - N_VALUE_FILTERS].name;
    if (strlen(known) == n && !memcmp(known, name, n)) return i;
  }
  return SIZE_MAX;
}

bool gr_jinja_filter_apply(jinja_ctx *ctx, size_t entry, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  size_t n_list;
  const jinja_filter_entry *list = gr_jinja_list_filters(&n_list);
  const jinja_filter_entry *f = entry < N_VALUE_FILTERS ? &value_filters[entry] : &list[entry - N_VALUE_FILTERS];
  return f->apply(ctx, in, args, out);
}
