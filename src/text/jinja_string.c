/* What strings do: strip, replace, case, join, printf-like formats. Everything here moves bytes together with their tags. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"

/* --- Strip ----------------------------------------------------------------------------------------------------------------------- */

/* Whether the code point at s[0..n) is stripped: white space, or one of chars. */
static bool strips(const char *s, size_t n, const jinja_value *chars)
{
  if (!chars) {
    uint32_t cp;
    jinja_next(s, n, &cp);
    return gr_jinja_space(cp);
  }
  const jinja_string *set = chars->u.string;
  for (size_t at = 0, k; at < set->len; at += k) {
    uint32_t cp;
    k = jinja_next(set->data + at, set->len - at, &cp);
    if (k == n && !memcmp(set->data + at, s, n)) return true;
  }
  return false;
}

bool gr_jinja_strip(jinja_ctx *ctx, const jinja_value *v, const jinja_value *chars, jinja_side side, jinja_value *out)
{
  const jinja_string *s = v->u.string;
  size_t from = 0, to = s->len, cost = chars ? 1 + chars->u.string->len / 16 : 1;
  while ((side & JINJA_LEFT) && from < to) {
    uint32_t cp;
    size_t n = jinja_next(s->data + from, to - from, &cp);
    if (!strips(s->data + from, n, chars)) break;
    from += n;
    if (!gr_jinja_steps(ctx, cost)) return false;
  }
  while ((side & JINJA_RIGHT) && from < to) {
    size_t at = to - 1;
    while (at > from && ((unsigned char)s->data[at] & 0xc0) == 0x80) at--;
    if (!strips(s->data + at, to - at, chars)) break;
    to = at;
    if (!gr_jinja_steps(ctx, cost)) return false;
  }
  return gr_jinja_substring(ctx, v, from, to, out);
}

/* --- Replace --------------------------------------------------------------------------------------------------------------------- */

/* Where part next occurs in s at or after `from`, or s->len. Charges its steps. */
static bool find_from(jinja_ctx *ctx, const jinja_string *s, const jinja_string *part, size_t from, size_t *at)
{
  for (size_t i = from; part->len <= s->len && i <= s->len - part->len; i++) {
    const char *next = memchr(s->data + i, part->data[0], s->len - part->len - i + 1);
    if (!next) break;
    i = (size_t)(next - s->data);
    if (!gr_jinja_steps(ctx, 1 + part->len / 256)) return false;
    if (!memcmp(next, part->data, part->len)) {
      *at = i;
      return true;
    }
  }
  *at = s->len;
  return gr_jinja_steps(ctx, (s->len - from) / 256);
}

bool gr_jinja_replace(jinja_ctx *ctx, const jinja_value *v, const jinja_value *old, const jinja_value *new_text, int64_t count,
                      jinja_value *out)
{
  const jinja_string *s = v->u.string, *part = old->u.string;
  gr_jinja_builder b = { 0 };
  bool ok = true;
  size_t at = 0;
  for (int64_t done = 0; ok && (count < 0 || done < count) && at <= s->len; done++) {
    size_t hit = at;
    if (part->len) {
      ok = find_from(ctx, s, part, at, &hit);
      if (!ok || hit == s->len) break;
    }
    ok = gr_jinja_steps(ctx, 1) && gr_jinja_put_part(ctx, &b, v, at, hit) && gr_jinja_put_string(ctx, &b, new_text);
    if (part->len) {
      at = hit + part->len;
      continue;
    }
    uint32_t cp; /* an empty part stands before every code point and at the end */
    size_t n = at < s->len ? jinja_next(s->data + at, s->len - at, &cp) : 1;
    if (ok && at < s->len) ok = gr_jinja_put_part(ctx, &b, v, at, at + n);
    at += n;
  }
  return gr_jinja_finish(ctx, &b, ok && gr_jinja_put_part(ctx, &b, v, at, s->len), out);
}

/* --- Case ------------------------------------------------------------------------------------------------------------------------ */

static bool is_cased(uint32_t cp) { return gr_jinja_upper(cp) != cp || gr_jinja_lower(cp) != cp || cp == 0xdf; }

/* Does the filter `title` (JINJA_TITLE_WORDS) begin a word after this code point? */
static bool word_break(uint32_t cp) { return gr_jinja_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<'; }

bool gr_jinja_recase(jinja_ctx *ctx, const jinja_value *v, jinja_case how, jinja_value *out)
{
  const jinja_string *s = v->u.string;
  gr_jinja_builder b = { 0 };
  bool ok = gr_jinja_steps(ctx, s->len / 4), first = true; /* the next letter is a first one */
  for (size_t at = 0, n; ok && at < s->len; at += n) {
    uint32_t cp;
    char bytes[4];
    n = jinja_next(s->data + at, s->len - at, &cp);
    bool upper = how == JINJA_UPPER || (how != JINJA_LOWER && first);
    if (how == JINJA_TITLE) first = !is_cased(cp);
    else first = how == JINJA_TITLE_WORDS && word_break(cp);
    jinja_tag tag = gr_jinja_tag_at(v, at);
    if (upper && cp == 0xdf) ok = gr_jinja_put(ctx, &b, how == JINJA_UPPER || how == JINJA_TITLE_WORDS ? "SS" : "Ss", 2, tag);
    else ok = gr_jinja_put(ctx, &b, bytes, gr_utf8_encode(upper ? gr_jinja_upper(cp) : gr_jinja_lower(cp), bytes), tag);
  }
  return gr_jinja_finish(ctx, &b, ok, out);
}

/* --- Join, format ---------------------------------------------------------------------------------------------------------------- */

bool gr_jinja_join(jinja_ctx *ctx, const jinja_list *l, const jinja_value *separator, jinja_value *out)
{
  gr_jinja_builder b = { 0 };
  bool ok = true;
  for (size_t i = 0; ok && i < l->n; i++) {
    if (i && separator) ok = gr_jinja_put_string(ctx, &b, separator);
    ok = ok && gr_jinja_put_text(ctx, &b, &l->items[i]);
  }
  return gr_jinja_finish(ctx, &b, ok, out);
}

typedef struct format_spec {
  bool left, zero;
  int width, precision; /* -1: not given */
  char letter;
  size_t len; /* bytes of the directive */
} format_spec;

/* %[-0][width][.precision]letter at s[0] == '%'. */
static bool read_spec(const char *s, size_t n, format_spec *f)
{
  size_t at = 1;
  *f = (format_spec){ .width = 0, .precision = -1 };
  for (; at < n && (s[at] == '-' || s[at] == '0'); at++) {
    f->left = f->left || s[at] == '-';
    f->zero = f->zero || s[at] == '0';
  }
  for (; at < n && s[at] >= '0' && s[at] <= '9' && f->width < 1000; at++) f->width = f->width * 10 + (s[at] - '0');
  if (at < n && s[at] == '.')
    for (at++, f->precision = 0; at < n && s[at] >= '0' && s[at] <= '9' && f->precision < 100; at++)
      f->precision = f->precision * 10 + (s[at] - '0');
  if (at >= n || f->width >= 1000 || f->precision >= 100) return false;
  f->letter = s[at];
  f->len = at + 1;
  return true;
}

static bool put_formatted(jinja_ctx *ctx, gr_jinja_builder *b, const format_spec *f, const jinja_value *v)
{
  char room[512];
  jinja_value text;
  if (f->letter == 's') {
    if (!gr_jinja_text(ctx, v, &text)) return false;
    const jinja_string *s = text.u.string;
    size_t end = f->precision < 0 ? s->len : gr_jinja_utf8_offset(s->data, s->len, (size_t)f->precision);
    size_t shown = gr_jinja_utf8_length(s->data, end), pad = shown < (size_t)f->width ? (size_t)f->width - shown : 0;
    bool ok = true;
    for (size_t i = 0; ok && !f->left && i < pad; i++) ok = gr_jinja_put(ctx, b, " ", 1, 0);
    ok = ok && gr_jinja_put_part(ctx, b, &text, 0, end);
    for (size_t i = 0; ok && f->left && i < pad; i++) ok = gr_jinja_put(ctx, b, " ", 1, 0);
    return ok;
  }
  bool is_int = v->type == JINJA_INT || v->type == JINJA_BOOL, is_float = v->type == JINJA_FLOAT;
  double real = is_float ? v->u.real : v->type == JINJA_BOOL ? v->u.boolean : is_int ? (double)v->u.integer : 0;
  int n = -1, width = f->left ? -f->width : f->width;
  bool zero = f->zero && !f->left;
  if (f->letter == 'd' || f->letter == 'i') {
    if (is_float && !(fabs(real) < 0x1p62)) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "the float does not fit an integer format");
    long long whole = is_float ? (long long)real : v->type == JINJA_BOOL ? v->u.boolean : (long long)v->u.integer;
    if (is_int || is_float) n = snprintf(room, sizeof room, zero ? "%0*lld" : "%*lld", width, whole);
  } else if (f->letter == 'f' && (is_int || is_float)) {
    n = snprintf(room, sizeof room, zero ? "%0*.*f" : "%*.*f", width, f->precision < 0 ? 6 : f->precision, real);
    for (int i = 0; i < n && i < (int)sizeof room; i++)
      if (room[i] == ',') room[i] = '.'; /* the locale's separator */
  } else if (is_int && (f->letter == 'x' || f->letter == 'X') && v->type == JINJA_INT && v->u.integer >= 0) {
    n = snprintf(room, sizeof room, f->letter == 'x' ? "%*llx" : "%*llX", width, (unsigned long long)v->u.integer);
  }
  if (n < 0 || n >= (int)sizeof room)
    return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "the format '%%%c' does not go with %s", f->letter, gr_jinja_type_name(v));
  return gr_jinja_put(ctx, b, room, (size_t)n, v->tag);
}

bool gr_jinja_format(jinja_ctx *ctx, const jinja_value *format, const jinja_value *args, size_t n, jinja_value *out)
{
  const jinja_string *s = format->u.string;
  gr_jinja_builder b = { 0 };
  size_t used = 0;
  bool ok = true;
  for (size_t at = 0; ok && at < s->len;) {
    const char *percent = memchr(s->data + at, '%', s->len - at);
    size_t next = percent ? (size_t)(percent - s->data) : s->len;
    ok = gr_jinja_put_part(ctx, &b, format, at, next);
    at = next;
    if (!ok || at == s->len) break;
    format_spec f;
    if (!read_spec(s->data + at, s->len - at, &f)) ok = gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "this format is not understood");
    else if (f.letter == '%') ok = gr_jinja_put_part(ctx, &b, format, at, at + 1);
    else if (used == n) ok = gr_jinja_fail(ctx, GR_ERR_FORMAT, "the format wants more than %zu values", n);
    else ok = put_formatted(ctx, &b, &f, &args[used++]);
    if (ok) at += f.len;
  }
  if (ok && used < n) ok = gr_jinja_fail(ctx, GR_ERR_FORMAT, "the format wants %zu values, not %zu", used, n);
  return gr_jinja_finish(ctx, &b, ok, out);
}
