/* Values: making them, comparing them, looking into them. */
#include <math.h>
#include <string.h>

#include "text/jinja.h"

const char *gr_jinja_type_name(const jinja_value *v)
{
  switch (v->type) {
  case JINJA_ABSENT:
  case JINJA_UNDEFINED: return "undefined";
  case JINJA_NONE: return "none";
  case JINJA_BOOL: return "a boolean";
  case JINJA_INT: return "an integer";
  case JINJA_FLOAT: return "a float";
  case JINJA_STRING: return "a string";
  case JINJA_LIST: return v->u.list->tuple ? "a tuple" : "a list";
  case JINJA_DICT: return "a dictionary";
  case JINJA_NAMESPACE: return "a namespace";
  case JINJA_LOOP: return "the loop";
  case JINJA_FUNCTION:
  case JINJA_METHOD: return "a function";
  case JINJA_MACRO: return "a macro";
  }
  return "a value";
}

jinja_value gr_jinja_undefined(const char *hint) { return (jinja_value){ .type = JINJA_UNDEFINED, .u.hint = hint }; }
jinja_value gr_jinja_none(void) { return (jinja_value){ .type = JINJA_NONE }; }
jinja_value gr_jinja_bool(bool b) { return (jinja_value){ .type = JINJA_BOOL, .u.boolean = b }; }
jinja_value gr_jinja_int(int64_t i, jinja_tag tag) { return (jinja_value){ .type = JINJA_INT, .tag = tag, .u.integer = i }; }
jinja_value gr_jinja_float(double d, jinja_tag tag) { return (jinja_value){ .type = JINJA_FLOAT, .tag = tag, .u.real = d }; }

bool gr_jinja_string(jinja_ctx *ctx, const char *data, size_t n, jinja_tag tag, jinja_value *out)
{
  jinja_string *s = gr_jinja_alloc(ctx, sizeof *s);
  if (!s) return false;
  *s = (jinja_string){ .data = data, .len = n };
  *out = (jinja_value){ .type = JINJA_STRING, .tag = tag, .u.string = s };
  return true;
}

bool gr_jinja_literal(jinja_ctx *ctx, const char *s, jinja_value *out) { return gr_jinja_string(ctx, s, strlen(s), 0, out); }

/* Index of the run that holds byte `at`. */
static size_t run_at(const jinja_string *s, size_t at)
{
  size_t low = 0, high = s->n_runs - 1;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (s->runs[mid].end > at) high = mid;
    else low = mid + 1;
  }
  return low;
}

jinja_tag gr_jinja_tag_at(const jinja_value *v, size_t at)
{
  const jinja_string *s = v->u.string;
  return s->n_runs ? s->runs[run_at(s, at)].tag : v->tag;
}

jinja_tag gr_jinja_tag_of(const jinja_value *v)
{
  if (v->type != JINJA_STRING || !v->u.string->n_runs) return v->tag & JINJA_TAG_ORIGIN;
  jinja_tag tag = 0;
  for (size_t i = 0; i < v->u.string->n_runs; i++) tag = jinja_tag_join(tag, v->u.string->runs[i].tag);
  return tag;
}

bool gr_jinja_substring(jinja_ctx *ctx, const jinja_value *v, size_t from, size_t to, jinja_value *out)
{
  const jinja_string *s = v->u.string;
  if (from == 0 && to == s->len) {
    *out = *v;
    return true;
  }
  if (from >= to || !s->n_runs) return gr_jinja_string(ctx, s->data + from, to > from ? to - from : 0, v->tag, out);
  size_t first = run_at(s, from), last = run_at(s, to - 1);
  if (first == last) return gr_jinja_string(ctx, s->data + from, to - from, s->runs[first].tag, out);
  jinja_run *runs = gr_jinja_array(ctx, last - first + 1, sizeof *runs);
  jinja_string *part = gr_jinja_alloc(ctx, sizeof *part);
  if (!runs || !part) return false;
  for (size_t i = first; i <= last; i++) {
    size_t end = s->runs[i].end < to ? s->runs[i].end : to;
    runs[i - first] = (jinja_run){ end - from, s->runs[i].tag };
  }
  *part = (jinja_string){ .data = s->data + from, .len = to - from, .runs = runs, .n_runs = last - first + 1 };
  *out = (jinja_value){ .type = JINJA_STRING, .u.string = part };
  return true;
}

/* Arena arrays grow by copying; the old one is garbage until the render ends, at most as much again. */
static bool grow(jinja_ctx *ctx, void **items, size_t *cap, size_t n, size_t size)
{
  if (n < *cap) return true;
  size_t grown = *cap ? 2 * *cap : 4;
  void *more = gr_jinja_array(ctx, grown, size);
  if (!more) return false;
  if (n) memcpy(more, *items, n * size);
  *items = more;
  *cap = grown;
  return true;
}

bool gr_jinja_list(jinja_ctx *ctx, size_t cap, jinja_value *out)
{
  jinja_list *l = gr_jinja_alloc(ctx, sizeof *l);
  if (!l) return false;
  if (cap) {
    l->items = gr_jinja_array(ctx, cap, sizeof *l->items);
    if (!l->items) return false;
    l->cap = cap;
  }
  *out = (jinja_value){ .type = JINJA_LIST, .u.list = l };
  return true;
}

bool gr_jinja_list_add(jinja_ctx *ctx, jinja_list *l, jinja_value v)
{
  if (!gr_jinja_steps(ctx, 1) || !grow(ctx, (void **)&l->items, &l->cap, l->n, sizeof v)) return false;
  l->items[l->n++] = v;
  return true;
}

bool gr_jinja_pair(jinja_ctx *ctx, jinja_value a, jinja_value b, jinja_value *out)
{
  if (!gr_jinja_list(ctx, 2, out) || !gr_jinja_list_add(ctx, out->u.list, a) || !gr_jinja_list_add(ctx, out->u.list, b)) return false;
  out->u.list->tuple = true;
  return true;
}

bool gr_jinja_dict(jinja_ctx *ctx, size_t cap, jinja_value *out)
{
  jinja_dict *d = gr_jinja_alloc(ctx, sizeof *d);
  if (!d) return false;
  if (cap) {
    d->entries = gr_jinja_array(ctx, cap, sizeof *d->entries);
    if (!d->entries) return false;
    d->cap = cap;
  }
  *out = (jinja_value){ .type = JINJA_DICT, .u.dict = d };
  return true;
}

/* Where key is, or d->n. Linear: dictionaries in conversations are small, and the steps are charged. */
static bool dict_index(jinja_ctx *ctx, const jinja_dict *d, const jinja_value *key, size_t *index)
{
  if (!gr_jinja_steps(ctx, d->n / 8)) return false;
  for (*index = 0; *index < d->n; ++*index) {
    bool same;
    if (!gr_jinja_equal(ctx, &d->entries[*index].key, key, &same)) return false;
    if (same) break;
  }
  return true;
}

bool gr_jinja_hashable(jinja_ctx *ctx, const jinja_value *v)
{
  bool bad = v->type == JINJA_DICT || (v->type == JINJA_LIST && !v->u.list->tuple);
  return !bad || gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s cannot be a key", gr_jinja_type_name(v));
}

bool gr_jinja_dict_put(jinja_ctx *ctx, jinja_dict *d, jinja_value key, jinja_value value)
{
  size_t i;
  if (!gr_jinja_hashable(ctx, &key) || !dict_index(ctx, d, &key, &i)) return false;
  if (i == d->n) {
    if (!grow(ctx, (void **)&d->entries, &d->cap, d->n, sizeof *d->entries)) return false;
    d->entries[d->n++].key = key;
  }
  d->entries[i].value = value;
  return true;
}

bool gr_jinja_dict_get(jinja_ctx *ctx, const jinja_dict *d, const jinja_value *key, jinja_value *out, bool *found)
{
  size_t i;
  if (!dict_index(ctx, d, key, &i)) return false;
  *found = i < d->n;
  if (*found) *out = d->entries[i].value;
  return true;
}

bool gr_jinja_dict_find(jinja_ctx *ctx, const jinja_dict *d, const char *key, jinja_value *out, bool *found)
{
  jinja_string s = { .data = key, .len = strlen(key) };
  jinja_value v = { .type = JINJA_STRING, .u.string = &s };
  return gr_jinja_dict_get(ctx, d, &v, out, found);
}

bool gr_jinja_truth(const jinja_value *v)
{
  switch (v->type) {
  case JINJA_ABSENT:
  case JINJA_UNDEFINED:
  case JINJA_NONE: return false;
  case JINJA_BOOL: return v->u.boolean;
  case JINJA_INT: return v->u.integer != 0;
  case JINJA_FLOAT: return v->u.real != 0;
  case JINJA_STRING: return v->u.string->len > 0;
  case JINJA_LIST: return v->u.list->n > 0;
  case JINJA_DICT: return v->u.dict->n > 0;
  default: return true;
  }
}

static bool is_number(const jinja_value *v) { return v->type == JINJA_BOOL || v->type == JINJA_INT || v->type == JINJA_FLOAT; }
static int64_t as_integer(const jinja_value *v) { return v->type == JINJA_BOOL ? v->u.boolean : v->u.integer; }

/* -1, 0, 1, or 2 when one is NaN. An integer and a float compare by value, without rounding the integer. */
static int compare_numbers(const jinja_value *a, const jinja_value *b)
{
  if (a->type != JINJA_FLOAT && b->type != JINJA_FLOAT) {
    int64_t x = as_integer(a), y = as_integer(b);
    return (x > y) - (x < y);
  }
  if (a->type == JINJA_FLOAT && b->type == JINJA_FLOAT) {
    double x = a->u.real, y = b->u.real;
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
  }
  if (a->type == JINJA_FLOAT) {
    int r = compare_numbers(b, a);
    return r == 2 ? 2 : -r;
  }
  double y = b->u.real;
  if (isnan(y)) return 2;
  if (y >= 0x1p63) return -1;
  if (y < -0x1p63) return 1;
  int64_t x = as_integer(a), whole = (int64_t)y;
  if (x != whole) return x > whole ? 1 : -1;
  double rest = y - (double)whole;
  return rest > 0 ? -1 : rest < 0;
}

static int compare_bytes(const jinja_string *a, const jinja_string *b)
{
  size_t n = a->len < b->len ? a->len : b->len;
  int c = n ? memcmp(a->data, b->data, n) : 0;
  return c ? (c > 0) - (c < 0) : (a->len > b->len) - (a->len < b->len);
}

static bool equal_lists(jinja_ctx *ctx, const jinja_list *a, const jinja_list *b, bool *out)
{
  *out = a->n == b->n && a->tuple == b->tuple;
  for (size_t i = 0; *out && i < a->n; i++)
    if (!gr_jinja_equal(ctx, &a->items[i], &b->items[i], out)) return false;
  return true;
}

static bool equal_dicts(jinja_ctx *ctx, const jinja_dict *a, const jinja_dict *b, bool *out)
{
  *out = a->n == b->n;
  for (size_t i = 0; *out && i < a->n; i++) {
    jinja_value other;
    if (!gr_jinja_dict_get(ctx, b, &a->entries[i].key, &other, out)) return false;
    if (*out && !gr_jinja_equal(ctx, &a->entries[i].value, &other, out)) return false;
  }
  return true;
}

bool gr_jinja_equal(jinja_ctx *ctx, const jinja_value *a, const jinja_value *b, bool *out)
{
  if (!gr_jinja_steps(ctx, 1)) return false;
  if (is_number(a) && is_number(b)) {
    *out = compare_numbers(a, b) == 0;
    return true;
  }
  *out = false;
  if (a->type != b->type) return true;
  bool ok = true;
  switch (a->type) {
  case JINJA_STRING:
    *out = a->u.string->len == b->u.string->len && compare_bytes(a->u.string, b->u.string) == 0;
    return gr_jinja_steps(ctx, a->u.string->len / 256);
  case JINJA_LIST:
    if (!gr_jinja_enter(ctx)) return false;
    ok = a->u.list == b->u.list ? (*out = true) : equal_lists(ctx, a->u.list, b->u.list, out);
    ctx->depth_left++;
    return ok;
  case JINJA_DICT:
    if (!gr_jinja_enter(ctx)) return false;
    ok = a->u.dict == b->u.dict ? (*out = true) : equal_dicts(ctx, a->u.dict, b->u.dict, out);
    ctx->depth_left++;
    return ok;
  case JINJA_NAMESPACE: *out = a->u.dict == b->u.dict; return true;
  case JINJA_LOOP: *out = a->u.loop == b->u.loop; return true;
  case JINJA_FUNCTION: *out = a->u.function == b->u.function; return true;
  case JINJA_METHOD: *out = a->u.bound == b->u.bound; return true;
  case JINJA_MACRO: *out = a->u.macro == b->u.macro; return true;
  default: *out = true; return true; /* none, undefined */
  }
}

bool gr_jinja_order(jinja_ctx *ctx, const jinja_value *a, const jinja_value *b, int *out)
{
  if (!gr_jinja_steps(ctx, 1)) return false;
  if (is_number(a) && is_number(b)) {
    *out = compare_numbers(a, b);
    return true;
  }
  if (a->type == JINJA_STRING && b->type == JINJA_STRING) {
    *out = compare_bytes(a->u.string, b->u.string);
    return gr_jinja_steps(ctx, a->u.string->len / 256);
  }
  if (a->type == JINJA_LIST && b->type == JINJA_LIST && a->u.list->tuple == b->u.list->tuple) {
    const jinja_list *x = a->u.list, *y = b->u.list;
    if (!gr_jinja_enter(ctx)) return false;
    *out = 0;
    for (size_t i = 0; i < x->n && i < y->n && *out == 0; i++) {
      bool same; /* equal items need no order */
      if (!gr_jinja_equal(ctx, &x->items[i], &y->items[i], &same)) return false;
      if (!same && !gr_jinja_order(ctx, &x->items[i], &y->items[i], out)) return false;
    }
    ctx->depth_left++;
    if (*out == 0) *out = (x->n > y->n) - (x->n < y->n);
    return true;
  }
  return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s and %s have no order", gr_jinja_type_name(a), gr_jinja_type_name(b));
}

static bool find_bytes(jinja_ctx *ctx, const jinja_string *s, const jinja_string *part, bool *out)
{
  *out = part->len == 0;
  for (size_t i = 0; !*out && part->len <= s->len && i <= s->len - part->len; i++) {
    const char *next = memchr(s->data + i, part->data[0], s->len - part->len - i + 1);
    if (!next) break;
    i = (size_t)(next - s->data);
    *out = memcmp(next, part->data, part->len) == 0;
    if (!gr_jinja_steps(ctx, 1 + part->len / 256)) return false;
  }
  return gr_jinja_steps(ctx, s->len / 256);
}

bool gr_jinja_contains(jinja_ctx *ctx, const jinja_value *box, const jinja_value *item, bool *out)
{
  *out = false;
  if (box->type == JINJA_UNDEFINED) return true; /* an empty collection */
  if (box->type == JINJA_STRING) {
    if (item->type == JINJA_STRING) return find_bytes(ctx, box->u.string, item->u.string, out);
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'in' looks for a string in a string, not for %s", gr_jinja_type_name(item));
  }
  if (box->type == JINJA_LIST) {
    for (size_t i = 0; i < box->u.list->n && !*out; i++)
      if (!gr_jinja_equal(ctx, &box->u.list->items[i], item, out)) return false;
    return true;
  }
  if (box->type == JINJA_DICT) {
    jinja_value ignored;
    return gr_jinja_hashable(ctx, item) && gr_jinja_dict_get(ctx, box->u.dict, item, &ignored, out);
  }
  return gr_jinja_fail(ctx, GR_ERR_FORMAT, "'in' cannot look into %s", gr_jinja_type_name(box));
}

bool gr_jinja_iterate(jinja_ctx *ctx, const jinja_value *v, jinja_value *list)
{
  switch (v->type) {
  case JINJA_UNDEFINED: return gr_jinja_list(ctx, 0, list);
  case JINJA_LIST: *list = *v; return true;
  case JINJA_DICT:
    if (!gr_jinja_list(ctx, v->u.dict->n, list)) return false;
    for (size_t i = 0; i < v->u.dict->n; i++)
      if (!gr_jinja_list_add(ctx, list->u.list, v->u.dict->entries[i].key)) return false;
    return true;
  case JINJA_STRING:
    if (!gr_jinja_list(ctx, 0, list)) return false;
    for (size_t at = 0, n; at < v->u.string->len; at += n) {
      uint32_t cp;
      jinja_value c;
      n = jinja_next(v->u.string->data + at, v->u.string->len - at, &cp);
      if (!gr_jinja_substring(ctx, v, at, at + n, &c) || !gr_jinja_list_add(ctx, list->u.list, c)) return false;
    }
    return true;
  default: return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s cannot be iterated over", gr_jinja_type_name(v));
  }
}
