/* Strings under construction, and values as text: what {{ x }} and str() give in Python. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/jinja.h"

/* --- Builder ------------------------------------------------------------------------------------------------------------------- */

static bool charge(jinja_ctx *ctx, size_t bytes)
{
  if (ctx->status != GR_OK) return false;
  if (bytes > ctx->bytes_left) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "the template uses more memory than a render may");
  ctx->bytes_left -= bytes;
  return true;
}

/* Grows *items to hold `need` of `size` bytes, charging what it grows by. */
static bool grow_charged(jinja_ctx *ctx, void **items, size_t *cap, size_t need, size_t size)
{
  if (need <= *cap) return true;
  size_t grown = *cap < 64 ? 64 : *cap;
  while (grown < need) {
    if (grown > SIZE_MAX / 2 / size) return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "a string is too long");
    grown *= 2;
  }
  if (!charge(ctx, (grown - *cap) * size)) return false;
  void *p = gr_realloc_array(*items, grown, size);
  if (!p) {
    ctx->status = gr_fail_memory(ctx->e, grown * size);
    return false;
  }
  *items = p;
  *cap = grown;
  return true;
}

bool gr_jinja_put(jinja_ctx *ctx, gr_jinja_builder *b, const char *bytes, size_t n, jinja_tag tag)
{
  if (!n) return ctx->status == GR_OK;
  if (b == ctx->out && ctx->mark && !(tag >> 32)) tag |= (jinja_tag)ctx->mark << 32;
  if (n > SIZE_MAX - b->len || !gr_jinja_steps(ctx, n / 256)) return false;
  if (!grow_charged(ctx, (void **)&b->data, &b->cap, b->len + n, 1)) return false;
  bool same = b->n_runs && b->runs[b->n_runs - 1].tag == tag;
  if (!same) {
    if (!grow_charged(ctx, (void **)&b->runs, &b->cap_runs, b->n_runs + 1, sizeof *b->runs)) return false;
    b->runs[b->n_runs++] = (jinja_run){ b->len, tag };
  }
  memcpy(b->data + b->len, bytes, n);
  b->len += n;
  b->runs[b->n_runs - 1].end = b->len;
  return true;
}

bool gr_jinja_put_part(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v, size_t from, size_t to)
{
  const jinja_string *s = v->u.string;
  if (from >= to) return ctx->status == GR_OK;
  if (!s->n_runs) return gr_jinja_put(ctx, b, s->data + from, to - from, v->tag);
  size_t start = 0;
  for (size_t i = 0; i < s->n_runs && start < to; i++) {
    size_t end = s->runs[i].end, low = start > from ? start : from, high = end < to ? end : to;
    if (low < high && !gr_jinja_put(ctx, b, s->data + low, high - low, s->runs[i].tag)) return false;
    start = end;
  }
  return gr_jinja_steps(ctx, s->n_runs / 64);
}

bool gr_jinja_put_string(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *s)
{
  return gr_jinja_put_part(ctx, b, s, 0, s->u.string->len);
}

void gr_jinja_builder_free(jinja_ctx *ctx, gr_jinja_builder *b)
{
  ctx->bytes_left += b->cap + b->cap_runs * sizeof *b->runs;
  gr_free(b->data);
  gr_free(b->runs);
  *b = (gr_jinja_builder){ 0 };
}

bool gr_jinja_finish(jinja_ctx *ctx, gr_jinja_builder *b, bool ok, jinja_value *out)
{
  jinja_string *s = ok ? gr_jinja_alloc(ctx, sizeof *s) : NULL;
  char *data = s ? gr_jinja_array(ctx, b->len, 1) : NULL;
  jinja_run *runs = data && b->n_runs > 1 ? gr_jinja_array(ctx, b->n_runs, sizeof *runs) : NULL;
  ok = data && (runs || b->n_runs <= 1);
  if (ok) {
    if (b->len) memcpy(data, b->data, b->len);
    if (runs) memcpy(runs, b->runs, b->n_runs * sizeof *runs);
    *s = (jinja_string){ .data = data, .len = b->len, .runs = runs, .n_runs = runs ? b->n_runs : 0 };
    *out = (jinja_value){ .type = JINJA_STRING, .tag = b->n_runs == 1 ? b->runs[0].tag : 0, .u.string = s };
  }
  gr_jinja_builder_free(ctx, b);
  return ok;
}

/* --- Numbers ------------------------------------------------------------------------------------------------------------------- */

/* Python's repr of a float: the fewest digits that read back as the same number, in plain notation for exponents -4 to 15.
 * The digits come from printf, whose decimal separator (the locale's) is skipped. */
size_t gr_jinja_float_text(double d, char room[40])
{
  if (isnan(d) || isinf(d)) return (size_t)snprintf(room, 40, "%s", isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
  char text[40], digits[20];
  int exponent = 0;
  size_t n_digits = 0;
  for (int precision = 0; precision < 17; precision++) {
    snprintf(text, sizeof text, "%.*e", precision, fabs(d));
    n_digits = 0;
    const char *c = text;
    for (; *c && *c != 'e'; c++)
      if (*c >= '0' && *c <= '9') digits[n_digits++] = *c;
    exponent = 0;
    if (sscanf(c, "e%d", &exponent) != 1) exponent = 0;
    double back;
    if (sscanf(text, "%lf", &back) == 1 && back == fabs(d)) break;
  }
  size_t at = 0;
  if (signbit(d)) room[at++] = '-';
  if (exponent < -4 || exponent >= 16) {
    room[at++] = digits[0];
    if (n_digits > 1) {
      room[at++] = '.';
      memcpy(room + at, digits + 1, n_digits - 1);
      at += n_digits - 1;
    }
    return at + (size_t)snprintf(room + at, 40 - at, "e%c%02d", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
  }
  if (exponent < 0) {
    memcpy(room + at, "0.0000", (size_t)(1 - exponent));
    at += (size_t)(1 - exponent);
  }
  for (size_t i = 0; i < n_digits || (int)i <= exponent + 1; i++) {
    if (exponent >= 0 && (int)i == exponent + 1) room[at++] = '.';
    room[at++] = i < n_digits ? digits[i] : '0';
  }
  room[at] = 0;
  return at;
}

/* --- str() and repr() ------------------------------------------------------------------------------------------------------------ */

/* What str.isprintable denies, as far as texts of chats need it: controls, separators but the space, formats, private use. */
static bool printable(uint32_t cp)
{
  if (cp < 0x7f) return cp >= 0x20;
  if (cp < 0x1000) return cp > 0xa0 && cp != 0xad && !(cp >= 0x600 && cp <= 0x605) && cp != 0x61c && cp != 0x6dd && cp != 0x70f;
  if (gr_jinja_space(cp) || cp == 0x180e || cp == 0xfeff) return false;
  return !((cp >= 0x200b && cp <= 0x200f) || (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2060 && cp <= 0x206f) ||
           (cp >= 0xe000 && cp <= 0xf8ff) || (cp >= 0xfff0 && cp <= 0xfffb) || (cp & 0xfffe) == 0xfffe || cp >= 0xe0000);
}

static bool put_quoted(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v)
{
  const jinja_string *s = v->u.string;
  jinja_tag tag = gr_jinja_tag_of(v);
  char quote = s->len && memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len) ? '"' : '\'';
  size_t plain = 0; /* bytes before it are written */
  if (!gr_jinja_put(ctx, b, &quote, 1, tag) || !gr_jinja_steps(ctx, s->len / 16)) return false;
  for (size_t at = 0, n; at < s->len; at += n) {
    uint32_t cp;
    char escape[16];
    n = jinja_next(s->data + at, s->len - at, &cp);
    if (cp == '\\' || cp == (uint32_t)quote) snprintf(escape, sizeof escape, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t') snprintf(escape, sizeof escape, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (printable(cp)) continue;
    else snprintf(escape, sizeof escape, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    if (!gr_jinja_put_part(ctx, b, v, plain, at)) return false;
    if (!gr_jinja_put(ctx, b, escape, strlen(escape), gr_jinja_tag_at(v, at))) return false;
    plain = at + n;
  }
  return gr_jinja_put_part(ctx, b, v, plain, s->len) && gr_jinja_put(ctx, b, &quote, 1, tag);
}

static bool put_repr(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v)
{
  if (v->type == JINJA_STRING) return put_quoted(ctx, b, v);
  if (v->type == JINJA_UNDEFINED) return gr_jinja_put(ctx, b, "Undefined", 9, 0);
  return gr_jinja_put_text(ctx, b, v);
}

static bool put_list(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v)
{
  const jinja_list *l = v->u.list;
  bool ok = gr_jinja_put(ctx, b, l->tuple ? "(" : "[", 1, v->tag);
  for (size_t i = 0; ok && i < l->n; i++) {
    if (i) ok = gr_jinja_put(ctx, b, ", ", 2, v->tag);
    ok = ok && put_repr(ctx, b, &l->items[i]);
  }
  if (l->tuple && l->n == 1) ok = ok && gr_jinja_put(ctx, b, ",", 1, v->tag);
  return ok && gr_jinja_put(ctx, b, l->tuple ? ")" : "]", 1, v->tag);
}

static bool put_dict(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v)
{
  const jinja_dict *d = v->u.dict;
  bool ok = gr_jinja_put(ctx, b, "{", 1, v->tag);
  for (size_t i = 0; ok && i < d->n; i++) {
    if (i) ok = gr_jinja_put(ctx, b, ", ", 2, v->tag);
    ok = ok && put_repr(ctx, b, &d->entries[i].key) && gr_jinja_put(ctx, b, ": ", 2, v->tag) && put_repr(ctx, b, &d->entries[i].value);
  }
  return ok && gr_jinja_put(ctx, b, "}", 1, v->tag);
}

static bool put_container(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v)
{
  if (!gr_jinja_enter(ctx)) return false;
  bool ok;
  if (ctx->json_containers) {
    jinja_json_style style = { .comma = ", ", .comma_len = 2, .colon = ": ", .colon_len = 2 };
    jinja_value dict = *v;
    if (v->type == JINJA_NAMESPACE) dict.type = JINJA_DICT;
    ok = gr_jinja_put_json(ctx, b, &dict, &style);
  } else {
    ok = v->type == JINJA_LIST ? put_list(ctx, b, v) : put_dict(ctx, b, v);
  }
  ctx->depth_left++;
  return ok;
}

bool gr_jinja_put_text(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v)
{
  char room[40];
  if (!gr_jinja_steps(ctx, 1)) return false;
  switch (v->type) {
  case JINJA_UNDEFINED: return true;
  case JINJA_NONE: return gr_jinja_put(ctx, b, "None", 4, v->tag);
  case JINJA_BOOL: return gr_jinja_put(ctx, b, v->u.boolean ? "True" : "False", v->u.boolean ? 4 : 5, v->tag);
  case JINJA_INT: return gr_jinja_put(ctx, b, room, (size_t)snprintf(room, sizeof room, "%lld", (long long)v->u.integer), v->tag);
  case JINJA_FLOAT: return gr_jinja_put(ctx, b, room, gr_jinja_float_text(v->u.real, room), v->tag);
  case JINJA_STRING: return gr_jinja_put_string(ctx, b, v);
  case JINJA_LIST:
  case JINJA_DICT: return put_container(ctx, b, v);
  case JINJA_NAMESPACE: return gr_jinja_put(ctx, b, "<Namespace ", 11, 0) && put_container(ctx, b, v) && gr_jinja_put(ctx, b, ">", 1, 0);
  default: return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s cannot be printed", gr_jinja_type_name(v));
  }
}

bool gr_jinja_text(jinja_ctx *ctx, const jinja_value *v, jinja_value *out)
{
  if (v->type == JINJA_STRING) {
    *out = *v;
    return true;
  }
  gr_jinja_builder b = { 0 };
  return gr_jinja_finish(ctx, &b, gr_jinja_put_text(ctx, &b, v), out);
}
