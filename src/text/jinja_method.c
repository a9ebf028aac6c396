/* Methods of strings, dictionaries, lists and the loop. Those that would change a value do not exist, as in the immutable
 * sandbox of transformers. */
#include <string.h>

#include "text/jinja.h"

/* --- Strings --------------------------------------------------------------------------------------------------------------------- */

static bool strip_side(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_side side, jinja_value *out)
{
  static const char *const params[] = { "chars" };
  jinja_value chars;
  if (!gr_jinja_bind(ctx, "strip", args, params, 1, 0, &chars)) return false;
  bool given = chars.type != JINJA_ABSENT && chars.type != JINJA_NONE;
  if (given && !gr_jinja_want_string(ctx, "strip", &chars)) return false;
  return gr_jinja_strip(ctx, self, given ? &chars : NULL, side, out);
}

static bool str_strip(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return strip_side(ctx, self, args, JINJA_BOTH, out);
}

static bool str_lstrip(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return strip_side(ctx, self, args, JINJA_LEFT, out);
}

static bool str_rstrip(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return strip_side(ctx, self, args, JINJA_RIGHT, out);
}

static bool recase(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_case how, jinja_value *out)
{
  return gr_jinja_bind(ctx, "a method without arguments", args, NULL, 0, 0, NULL) && gr_jinja_recase(ctx, self, how, out);
}

static bool str_upper(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, self, args, JINJA_UPPER, out);
}

static bool str_lower(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, self, args, JINJA_LOWER, out);
}

static bool str_title(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, self, args, JINJA_TITLE, out);
}

static bool str_capitalize(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return recase(ctx, self, args, JINJA_CAPITALIZE, out);
}

static bool affix(jinja_ctx *ctx, const jinja_value *self, const jinja_value *part, bool end, bool *out)
{
  if (!gr_jinja_want_string(ctx, end ? "endswith" : "startswith", part)) return false;
  const jinja_string *s = self->u.string, *p = part->u.string;
  *out = p->len <= s->len && !memcmp(s->data + (end ? s->len - p->len : 0), p->data, p->len);
  return gr_jinja_steps(ctx, p->len / 256);
}

/* startswith and endswith: of a string, or of any in a tuple. */
static bool has_affix(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, bool end, jinja_value *out)
{
  static const char *const params[] = { "prefix" };
  jinja_value part;
  bool holds = false;
  if (!gr_jinja_bind(ctx, end ? "endswith" : "startswith", args, params, 1, 1, &part)) return false;
  if (part.type == JINJA_LIST && part.u.list->tuple) {
    for (size_t i = 0; i < part.u.list->n && !holds; i++)
      if (!affix(ctx, self, &part.u.list->items[i], end, &holds)) return false;
  } else if (!affix(ctx, self, &part, end, &holds)) {
    return false;
  }
  *out = gr_jinja_bool(holds);
  return true;
}

static bool str_startswith(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return has_affix(ctx, self, args, false, out);
}

static bool str_endswith(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return has_affix(ctx, self, args, true, out);
}

static bool remove_affix(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, bool end, jinja_value *out)
{
  static const char *const params[] = { "affix" };
  jinja_value part;
  bool holds;
  if (!gr_jinja_bind(ctx, end ? "removesuffix" : "removeprefix", args, params, 1, 1, &part)) return false;
  if (!affix(ctx, self, &part, end, &holds)) return false;
  size_t n = self->u.string->len, cut = holds ? part.u.string->len : 0;
  return gr_jinja_substring(ctx, self, end ? 0 : cut, end ? n - cut : n, out);
}

static bool str_removeprefix(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return remove_affix(ctx, self, args, false, out);
}

static bool str_removesuffix(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return remove_affix(ctx, self, args, true, out);
}

static bool str_replace(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "old", "new", "count" };
  jinja_value given[3];
  int64_t count = -1;
  if (!gr_jinja_bind(ctx, "replace", args, params, 3, 2, given)) return false;
  if (!gr_jinja_want_string(ctx, "replace", &given[0]) || !gr_jinja_want_string(ctx, "replace", &given[1])) return false;
  if (given[2].type != JINJA_ABSENT && !gr_jinja_want_int(ctx, "replace", &given[2], &count)) return false;
  return gr_jinja_replace(ctx, self, &given[0], &given[1], count, out);
}

static bool str_join(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "iterable" };
  jinja_value v, items;
  if (!gr_jinja_bind(ctx, "join", args, params, 1, 1, &v) || !gr_jinja_iterate(ctx, &v, &items)) return false;
  for (size_t i = 0; i < items.u.list->n; i++)
    if (!gr_jinja_want_string(ctx, "the method join", &items.u.list->items[i])) return false;
  return gr_jinja_join(ctx, items.u.list, self, out);
}

/* find and rfind, in code points; with `count`, how often the part occurs. */
static bool search(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, bool last, bool count, jinja_value *out)
{
  static const char *const params[] = { "sub" };
  jinja_value part;
  if (!gr_jinja_bind(ctx, "a search", args, params, 1, 1, &part) || !gr_jinja_want_string(ctx, "a search", &part)) return false;
  const jinja_string *s = self->u.string, *p = part.u.string;
  int64_t found = -1, times = 0;
  size_t chars = 0;
  for (size_t at = 0; at + p->len <= s->len; at++) {
    bool starts = at == s->len || ((unsigned char)s->data[at] & 0xc0) != 0x80;
    if (starts && !memcmp(s->data + at, p->data, p->len)) {
      found = (int64_t)chars;
      times++;
      if (!last && !count) break;
      if (count && p->len) { /* occurrences do not overlap */
        chars += gr_jinja_utf8_length(s->data + at, p->len);
        at += p->len - 1;
        continue;
      }
    }
    chars += starts;
    if (!gr_jinja_steps(ctx, (at % 16 == 0) + p->len / 256)) return false;
  }
  *out = gr_jinja_int(count ? times : found, 0);
  return true;
}

static bool str_find(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return search(ctx, self, args, false, false, out);
}

static bool str_rfind(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return search(ctx, self, args, true, false, out);
}

static bool str_index(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  if (!search(ctx, self, args, false, false, out)) return false;
  return out->u.integer >= 0 || gr_jinja_fail(ctx, GR_ERR_FORMAT, "index did not find the string");
}

static bool str_count(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return search(ctx, self, args, false, true, out);
}

/* isupper, islower, isspace, isdigit: every code point (every cased one, for the first two) is such, and there is one. */
static bool all_are(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, char what, jinja_value *out)
{
  const jinja_string *s = self->u.string;
  bool all = true, any = false;
  if (!gr_jinja_bind(ctx, "a method without arguments", args, NULL, 0, 0, NULL) || !gr_jinja_steps(ctx, s->len / 16)) return false;
  for (size_t at = 0, n; all && at < s->len; at += n) {
    uint32_t cp;
    n = jinja_next(s->data + at, s->len - at, &cp);
    bool small = gr_jinja_upper(cp) != cp, capital = gr_jinja_lower(cp) != cp;
    if (what == 'u') all = !small;
    else if (what == 'l') all = !capital;
    else all = what == 's' ? gr_jinja_space(cp) : cp >= '0' && cp <= '9';
    any = any || what == 's' || what == 'd' || small || capital;
  }
  *out = gr_jinja_bool(all && any);
  return true;
}

static bool str_isupper(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return all_are(ctx, self, args, 'u', out);
}

static bool str_islower(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return all_are(ctx, self, args, 'l', out);
}

static bool str_isspace(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return all_are(ctx, self, args, 's', out);
}

static bool str_isdigit(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return all_are(ctx, self, args, 'd', out);
}

/* --- Dictionaries and lists -------------------------------------------------------------------------------------------------------- */

static bool dict_get(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "key", "default" };
  jinja_value given[2];
  bool found;
  if (!gr_jinja_bind(ctx, "get", args, params, 2, 1, given) || !gr_jinja_hashable(ctx, &given[0])) return false;
  if (!gr_jinja_dict_get(ctx, self->u.dict, &given[0], out, &found)) return false;
  if (!found) *out = given[1].type == JINJA_ABSENT ? gr_jinja_none() : given[1];
  return true;
}

/* items, keys, values. */
static bool dict_list(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, char what, jinja_value *out)
{
  const jinja_dict *d = self->u.dict;
  if (!gr_jinja_bind(ctx, "a method without arguments", args, NULL, 0, 0, NULL) || !gr_jinja_list(ctx, d->n, out)) return false;
  for (size_t i = 0; i < d->n; i++) {
    jinja_value v = what == 'k' ? d->entries[i].key : d->entries[i].value;
    if (what == 'i' && !gr_jinja_pair(ctx, d->entries[i].key, d->entries[i].value, &v)) return false;
    if (!gr_jinja_list_add(ctx, out->u.list, v)) return false;
  }
  return true;
}

static bool dict_items(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return dict_list(ctx, self, args, 'i', out);
}

static bool dict_keys(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return dict_list(ctx, self, args, 'k', out);
}

static bool dict_values(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return dict_list(ctx, self, args, 'v', out);
}

static bool list_find(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, bool count, jinja_value *out)
{
  static const char *const params[] = { "value" };
  jinja_value v;
  int64_t times = 0;
  if (!gr_jinja_bind(ctx, count ? "count" : "index", args, params, 1, 1, &v)) return false;
  for (size_t i = 0; i < self->u.list->n; i++) {
    bool same;
    if (!gr_jinja_equal(ctx, &self->u.list->items[i], &v, &same)) return false;
    if (same && !count) {
      *out = gr_jinja_int((int64_t)i, 0);
      return true;
    }
    times += same;
  }
  *out = gr_jinja_int(times, 0);
  return count || gr_jinja_fail(ctx, GR_ERR_FORMAT, "index did not find the value");
}

static bool list_index(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return list_find(ctx, self, args, false, out);
}

static bool list_count(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return list_find(ctx, self, args, true, out);
}

static bool loop_cycle(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  if (!args->n) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "loop.cycle needs at least one value");
  *out = args->positional[self->u.loop->at % args->n];
  return true;
}

static bool loop_changed(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "value" };
  jinja_loop *loop = self->u.loop;
  jinja_value v;
  bool same = false;
  if (!gr_jinja_bind(ctx, "loop.changed", args, params, 1, 1, &v)) return false;
  if (loop->changed.type != JINJA_ABSENT && !gr_jinja_equal(ctx, &loop->changed, &v, &same)) return false;
  loop->changed = v;
  *out = gr_jinja_bool(!same);
  return true;
}

/* --- The table --------------------------------------------------------------------------------------------------------------------- */

static const struct {
  jinja_type type;
  const char *name;
  bool (*call)(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out);
} methods[] = {
  { JINJA_STRING, "strip", str_strip },
  { JINJA_STRING, "lstrip", str_lstrip },
  { JINJA_STRING, "rstrip", str_rstrip },
  { JINJA_STRING, "split", gr_jinja_split },
  { JINJA_STRING, "rsplit", gr_jinja_rsplit },
  { JINJA_STRING, "splitlines", gr_jinja_splitlines },
  { JINJA_STRING, "upper", str_upper },
  { JINJA_STRING, "lower", str_lower },
  { JINJA_STRING, "title", str_title },
  { JINJA_STRING, "capitalize", str_capitalize },
  { JINJA_STRING, "startswith", str_startswith },
  { JINJA_STRING, "endswith", str_endswith },
  { JINJA_STRING, "removeprefix", str_removeprefix },
  { JINJA_STRING, "removesuffix", str_removesuffix },
  { JINJA_STRING, "replace", str_replace },
  { JINJA_STRING, "join", str_join },
  { JINJA_STRING, "find", str_find },
  { JINJA_STRING, "rfind", str_rfind },
  { JINJA_STRING, "index", str_index },
  { JINJA_STRING, "count", str_count },
  { JINJA_STRING, "isupper", str_isupper },
  { JINJA_STRING, "islower", str_islower },
  { JINJA_STRING, "isspace", str_isspace },
  { JINJA_STRING, "isdigit", str_isdigit },
  { JINJA_DICT, "get", dict_get },
  { JINJA_DICT, "items", dict_items },
  { JINJA_DICT, "keys", dict_keys },
  { JINJA_DICT, "values", dict_values },
  { JINJA_LIST, "index", list_index },
  { JINJA_LIST, "count", list_count },
  { JINJA_LOOP, "cycle", loop_cycle },
  { JINJA_LOOP, "changed", loop_changed },
};

size_t gr_jinja_method_find(jinja_type type, const char *name)
{
  for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
    if (methods[i].type == type && !strcmp(methods[i].name, name)) return i;
  return SIZE_MAX;
}

bool gr_jinja_method_call(jinja_ctx *ctx, size_t entry, const jinja_value *self, const jinja_args *args, jinja_value *out)
{
  return methods[entry].call(ctx, self, args, out);
}
