/* str.split, rsplit and splitlines, as Python has them. The pieces share the bytes of the whole. */
#include <string.h>

#include "text/jinja.h"

static bool add_piece(jinja_ctx *ctx, const jinja_value *self, size_t from, size_t to, jinja_value *list)
{
  jinja_value piece;
  return gr_jinja_substring(ctx, self, from, to, &piece) && gr_jinja_list_add(ctx, list->u.list, piece);
}

static bool space_at(const jinja_string *s, size_t at, size_t *n)
{
  uint32_t cp;
  *n = jinja_next(s->data + at, s->len - at, &cp);
  return gr_jinja_space(cp);
}

/* At runs of white space; what is left after max splits goes with its trailing white space. */
static bool split_space(jinja_ctx *ctx, const jinja_value *self, int64_t max, jinja_value *list)
{
  const jinja_string *s = self->u.string;
  if (!gr_jinja_steps(ctx, s->len / 16)) return false;
  for (size_t at = 0, n;;) {
    while (at < s->len && space_at(s, at, &n)) at += n;
    if (at == s->len) return true;
    size_t from = at;
    if (max >= 0 && (int64_t)list->u.list->n == max) return add_piece(ctx, self, from, s->len, list);
    while (at < s->len && !space_at(s, at, &n)) at += n;
    if (!add_piece(ctx, self, from, at, list)) return false;
  }
}

static bool split_at(jinja_ctx *ctx, const jinja_value *self, const jinja_string *sep, int64_t max, jinja_value *list)
{
  const jinja_string *s = self->u.string;
  size_t from = 0;
  for (size_t at = 0; at + sep->len <= s->len && (max < 0 || (int64_t)list->u.list->n < max);) {
    const char *next = memchr(s->data + at, sep->data[0], s->len - sep->len - at + 1);
    if (!next) break;
    at = (size_t)(next - s->data);
    if (!gr_jinja_steps(ctx, 1 + sep->len / 256)) return false;
    if (memcmp(next, sep->data, sep->len)) {
      at++;
      continue;
    }
    if (!add_piece(ctx, self, from, at, list)) return false;
    at += sep->len;
    from = at;
  }
  return add_piece(ctx, self, from, s->len, list);
}

static size_t before(const jinja_string *s, size_t at)
{
  do at--;
  while (at && ((unsigned char)s->data[at] & 0xc0) == 0x80);
  return at;
}

/* From the right; pieces come out last first. */
static bool rsplit_pieces(jinja_ctx *ctx, const jinja_value *self, const jinja_string *sep, int64_t max, jinja_value *list)
{
  const jinja_string *s = self->u.string;
  size_t end = s->len, n;
  if (!sep) {
    for (;;) {
      while (end && space_at(s, before(s, end), &n)) end = before(s, end);
      if (!end) return true;
      if (max >= 0 && (int64_t)list->u.list->n == max) return add_piece(ctx, self, 0, end, list);
      size_t from = end;
      while (from && !space_at(s, before(s, from), &n)) from = before(s, from);
      if (!add_piece(ctx, self, from, end, list) || !gr_jinja_steps(ctx, (end - from) / 16)) return false;
      end = from;
    }
  }
  for (size_t at = s->len; at >= sep->len && (max < 0 || (int64_t)list->u.list->n < max);) {
    if (!gr_jinja_steps(ctx, (at % 16 == 0) + sep->len / 256)) return false;
    if (memcmp(s->data + at - sep->len, sep->data, sep->len)) {
      at--;
      continue;
    }
    if (!add_piece(ctx, self, at, end, list)) return false;
    at -= sep->len;
    end = at;
  }
  return add_piece(ctx, self, 0, end, list);
}

static bool split_args(jinja_ctx *ctx, const jinja_args *args, const jinja_string **sep, int64_t *max)
{
  static const char *const params[] = { "sep", "maxsplit" };
  jinja_value given[2];
  *sep = NULL;
  *max = -1;
  if (!gr_jinja_bind(ctx, "split", args, params, 2, 0, given)) return false;
  if (given[1].type != JINJA_ABSENT && !gr_jinja_want_int(ctx, "split", &given[1], max)) return false;
  if (given[0].type == JINJA_ABSENT || given[0].type == JINJA_NONE) return true;
  if (!gr_jinja_want_string(ctx, "split", &given[0])) return false;
  *sep = given[0].u.string;
  return (*sep)->len || gr_jinja_fail(ctx, GR_ERR_FORMAT, "split cannot split at an empty string");
}

bool gr_jinja_split(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  const jinja_string *sep;
  int64_t max;
  if (!split_args(ctx, args, &sep, &max) || !gr_jinja_list(ctx, 0, out)) return false;
  return sep ? split_at(ctx, self, sep, max, out) : split_space(ctx, self, max, out);
}

bool gr_jinja_rsplit(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  const jinja_string *sep;
  int64_t max;
  if (!split_args(ctx, args, &sep, &max) || !gr_jinja_list(ctx, 0, out)) return false;
  if (!rsplit_pieces(ctx, self, sep, max, out)) return false;
  jinja_list *l = out->u.list;
  for (size_t i = 0; i < l->n / 2; i++) {
    jinja_value swap = l->items[i];
    l->items[i] = l->items[l->n - 1 - i];
    l->items[l->n - 1 - i] = swap;
  }
  return true;
}

bool gr_jinja_splitlines(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "keepends" };
  jinja_value keep;
  const jinja_string *s = self->u.string;
  if (!gr_jinja_bind(ctx, "splitlines", args, params, 1, 0, &keep) || !gr_jinja_list(ctx, 0, out)) return false;
  if (!gr_jinja_steps(ctx, s->len / 16)) return false;
  size_t from = 0;
  for (size_t at = 0, n; at < s->len; at += n) {
    uint32_t cp;
    n = jinja_next(s->data + at, s->len - at, &cp);
    bool ends = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
    if (!ends) continue;
    size_t end = at;
    if (cp == '\r' && at + 1 < s->len && s->data[at + 1] == '\n') n = 2;
    if (!add_piece(ctx, self, from, gr_jinja_truth(&keep) ? end + n : end, out)) return false;
    from = at + n;
  }
  return from == s->len || add_piece(ctx, self, from, s->len, out);
}
