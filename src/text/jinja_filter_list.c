/* Filters over sequences. */
#include <string.h>

#include "text/jinja.h"

bool gr_jinja_length(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  size_t n = 0;
  if (!gr_jinja_bind(ctx, "length", args, NULL, 0, 0, NULL)) return false;
  if (in->type == JINJA_STRING) n = gr_jinja_utf8_length(in->u.string->data, in->u.string->len);
  else if (in->type == JINJA_LIST) n = in->u.list->n;
  else if (in->type == JINJA_DICT) n = in->u.dict->n;
  else if (in->type != JINJA_UNDEFINED) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "%s has no length", gr_jinja_type_name(in));
  *out = gr_jinja_int((int64_t)n, 0);
  return in->type != JINJA_STRING || gr_jinja_steps(ctx, in->u.string->len / 256);
}

static bool filter_ends(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool last, jinja_value *out)
{
  jinja_value items;
  if (!gr_jinja_bind(ctx, last ? "last" : "first", args, NULL, 0, 0, NULL) || !gr_jinja_iterate(ctx, in, &items)) return false;
  const jinja_list *l = items.u.list;
  *out = l->n ? l->items[last ? l->n - 1 : 0] : gr_jinja_undefined(last ? "last" : "first");
  return true;
}

static bool filter_first(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return filter_ends(ctx, in, args, false, out);
}

static bool filter_last(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return filter_ends(ctx, in, args, true, out);
}

static bool copy_list(jinja_ctx *ctx, const jinja_value *in, jinja_value *out)
{
  jinja_value items;
  if (!gr_jinja_iterate(ctx, in, &items) || !gr_jinja_list(ctx, items.u.list->n, out)) return false;
  out->tag = items.tag;
  for (size_t i = 0; i < items.u.list->n; i++)
    if (!gr_jinja_list_add(ctx, out->u.list, items.u.list->items[i])) return false;
  return true;
}

static bool filter_list(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return gr_jinja_bind(ctx, "list", args, NULL, 0, 0, NULL) && copy_list(ctx, in, out);
}

static bool filter_reverse(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  if (!gr_jinja_bind(ctx, "reverse", args, NULL, 0, 0, NULL) || !copy_list(ctx, in, out)) return false;
  jinja_list *l = out->u.list;
  for (size_t i = 0; i < l->n / 2; i++) {
    jinja_value swap = l->items[i];
    l->items[i] = l->items[l->n - 1 - i];
    l->items[l->n - 1 - i] = swap;
  }
  return in->type != JINJA_STRING || gr_jinja_join(ctx, l, NULL, out);
}

static bool filter_items(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  if (!gr_jinja_bind(ctx, "items", args, NULL, 0, 0, NULL)) return false;
  if (in->type == JINJA_UNDEFINED) return gr_jinja_list(ctx, 0, out);
  if (in->type != JINJA_DICT) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "items needs a dictionary, not %s", gr_jinja_type_name(in));
  return gr_jinja_method_call(ctx, gr_jinja_method_find(JINJA_DICT, "items"), in, args, out);
}

/* item.attribute, or item itself; strings in lower case unless case matters. */
static bool key_of(jinja_ctx *ctx, const jinja_value *item, const jinja_value *attribute, bool case_sensitive, jinja_value *key)
{
  jinja_value v = *item;
  bool plain = attribute->type == JINJA_ABSENT || attribute->type == JINJA_NONE;
  if (!plain && !gr_jinja_attr_path(ctx, item, attribute, &v)) return false;
  *key = v;
  return case_sensitive || v.type != JINJA_STRING || gr_jinja_recase(ctx, &v, JINJA_LOWER, key);
}

/* The keys of a sort; with "a,b" as the attribute each is a tuple. */
static bool sort_keys(jinja_ctx *ctx, const jinja_list *l, const jinja_value *attribute, bool case_sensitive, jinja_value *keys)
{
  jinja_value comma, parts;
  bool several = attribute->type == JINJA_STRING && memchr(attribute->u.string->data, ',', attribute->u.string->len);
  if (several) {
    if (!gr_jinja_literal(ctx, ",", &comma)) return false;
    jinja_args args = { .positional = &comma, .n = 1 };
    if (!gr_jinja_split(ctx, attribute, &args, &parts)) return false;
  }
  for (size_t i = 0; i < l->n; i++) {
    if (!several) {
      if (!key_of(ctx, &l->items[i], attribute, case_sensitive, &keys[i])) return false;
      continue;
    }
    if (!gr_jinja_list(ctx, parts.u.list->n, &keys[i])) return false;
    for (size_t k = 0; k < parts.u.list->n; k++) {
      jinja_value key;
      if (!key_of(ctx, &l->items[i], &parts.u.list->items[k], case_sensitive, &key)) return false;
      if (!gr_jinja_list_add(ctx, keys[i].u.list, key)) return false;
    }
  }
  return true;
}

/* Merges order[from..mid) and order[mid..to) by their keys; equal ones keep their order, also when reversed. */
static bool merge(jinja_ctx *ctx, const jinja_value *keys, size_t *order, size_t *room, size_t from, size_t mid, size_t to, bool reverse)
{
  size_t a = from, b = mid, n = 0;
  while (a < mid && b < to) {
    int c;
    if (!gr_jinja_order(ctx, &keys[order[a]], &keys[order[b]], &c)) return false;
    bool take_b = reverse ? c < 0 : c == 1;
    room[n++] = take_b ? order[b++] : order[a++];
  }
  while (a < mid) room[n++] = order[a++];
  while (b < to) room[n++] = order[b++];
  memcpy(order + from, room, n * sizeof *order);
  return true;
}

static bool sort_list(jinja_ctx *ctx, jinja_list *l, const jinja_value *attribute, bool case_sensitive, bool reverse)
{
  size_t n = l->n;
  jinja_value *keys = gr_jinja_array(ctx, n, sizeof *keys), *sorted = gr_jinja_array(ctx, n, sizeof *sorted);
  size_t *order = gr_jinja_array(ctx, n, sizeof *order), *room = gr_jinja_array(ctx, n, sizeof *room);
  if (!keys || !sorted || !order || !room || !sort_keys(ctx, l, attribute, case_sensitive, keys)) return false;
  for (size_t i = 0; i < n; i++) order[i] = i;
  for (size_t width = 1; width < n; width *= 2)
    for (size_t from = 0; from + width < n; from += 2 * width) {
      size_t to = from + 2 * width < n ? from + 2 * width : n;
      if (!merge(ctx, keys, order, room, from, from + width, to, reverse)) return false;
    }
  for (size_t i = 0; i < n; i++) sorted[i] = l->items[order[i]];
  l->items = sorted;
  l->cap = n;
  return true;
}

static bool filter_sort(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "reverse", "case_sensitive", "attribute" };
  jinja_value given[3];
  if (!gr_jinja_bind(ctx, "sort", args, params, 3, 0, given) || !copy_list(ctx, in, out)) return false;
  return sort_list(ctx, out->u.list, &given[2], gr_jinja_truth(&given[1]), gr_jinja_truth(&given[0]));
}

static bool filter_dictsort(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "case_sensitive", "by", "reverse" };
  jinja_value given[3];
  if (!gr_jinja_bind(ctx, "dictsort", args, params, 3, 0, given)) return false;
  if (in->type != JINJA_DICT) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "dictsort needs a dictionary, not %s", gr_jinja_type_name(in));
  bool by_value = jinja_is_text(&given[1], "value", 5);
  if (given[1].type != JINJA_ABSENT && !by_value && !jinja_is_text(&given[1], "key", 3))
    return gr_jinja_fail(ctx, GR_ERR_FORMAT, "dictsort sorts by 'key' or by 'value'");
  size_t items = gr_jinja_method_find(JINJA_DICT, "items");
  if (!gr_jinja_method_call(ctx, items, in, &(jinja_args){ 0 }, out)) return false;
  jinja_value which = gr_jinja_int(by_value, 0);
  return sort_list(ctx, out->u.list, &which, gr_jinja_truth(&given[0]), gr_jinja_truth(&given[2]));
}

static bool filter_unique(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "case_sensitive", "attribute" };
  jinja_value given[2], items, seen;
  if (!gr_jinja_bind(ctx, "unique", args, params, 2, 0, given) || !gr_jinja_iterate(ctx, in, &items)) return false;
  if (!gr_jinja_list(ctx, 0, out) || !gr_jinja_list(ctx, 0, &seen)) return false;
  for (size_t i = 0; i < items.u.list->n; i++) {
    jinja_value key;
    bool known;
    if (!key_of(ctx, &items.u.list->items[i], &given[1], gr_jinja_truth(&given[0]), &key)) return false;
    if (!gr_jinja_contains(ctx, &seen, &key, &known)) return false;
    if (known) continue;
    if (!gr_jinja_list_add(ctx, seen.u.list, key) || !gr_jinja_list_add(ctx, out->u.list, items.u.list->items[i])) return false;
  }
  return true;
}

static bool extreme(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool max, jinja_value *out)
{
  static const char *const params[] = { "case_sensitive", "attribute" };
  jinja_value given[2], items, best;
  if (!gr_jinja_bind(ctx, max ? "max" : "min", args, params, 2, 0, given) || !gr_jinja_iterate(ctx, in, &items)) return false;
  *out = gr_jinja_undefined(max ? "max" : "min");
  for (size_t i = 0; i < items.u.list->n; i++) {
    jinja_value key;
    int c = 0;
    if (!key_of(ctx, &items.u.list->items[i], &given[1], gr_jinja_truth(&given[0]), &key)) return false;
    if (i && !gr_jinja_order(ctx, &key, &best, &c)) return false;
    if (i && !(max ? c == 1 : c < 0)) continue;
    best = key;
    *out = items.u.list->items[i];
  }
  return true;
}

static bool filter_max(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return extreme(ctx, in, args, true, out);
}

static bool filter_min(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return extreme(ctx, in, args, false, out);
}

static bool filter_sum(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "attribute", "start" };
  jinja_value given[2], items;
  if (!gr_jinja_bind(ctx, "sum", args, params, 2, 0, given) || !gr_jinja_iterate(ctx, in, &items)) return false;
  jinja_value total = given[1].type == JINJA_ABSENT ? gr_jinja_int(0, 0) : given[1];
  for (size_t i = 0; i < items.u.list->n; i++) {
    jinja_value v, left = total;
    if (!key_of(ctx, &items.u.list->items[i], &given[0], true, &v) || !gr_jinja_binary(ctx, JINJA_OP_ADD, &left, &v, &total)) return false;
  }
  *out = total;
  return true;
}

static bool filter_join(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "d", "attribute" };
  jinja_value given[2], items, separator;
  if (!gr_jinja_bind(ctx, "join", args, params, 2, 0, given) || !gr_jinja_iterate(ctx, in, &items)) return false;
  bool separated = given[0].type != JINJA_ABSENT;
  if (separated && !gr_jinja_text(ctx, &given[0], &separator)) return false;
  jinja_value parts = items;
  if (given[1].type != JINJA_ABSENT && given[1].type != JINJA_NONE) {
    if (!gr_jinja_list(ctx, items.u.list->n, &parts)) return false;
    for (size_t i = 0; i < items.u.list->n; i++) {
      jinja_value v;
      if (!key_of(ctx, &items.u.list->items[i], &given[1], true, &v) || !gr_jinja_list_add(ctx, parts.u.list, v)) return false;
    }
  }
  return gr_jinja_join(ctx, parts.u.list, separated ? &separator : NULL, out);
}

/* What map, select and their kin walk over: as in Jinja2, anything false is empty, so `none | selectattr(...)` is no error. */
static bool iterate_if_true(jinja_ctx *ctx, const jinja_value *in, jinja_value *items)
{
  return gr_jinja_truth(in) ? gr_jinja_iterate(ctx, in, items) : gr_jinja_list(ctx, 0, items);
}

/* map('filter', arguments...) or map(attribute=..., default=...). */
static bool filter_map(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  static const char *const params[] = { "attribute", "default" };
  jinja_value given[2], items;
  if (!iterate_if_true(ctx, in, &items) || !gr_jinja_list(ctx, items.u.list->n, out)) return false;
  size_t filter = SIZE_MAX;
  jinja_args rest = *args;
  if (args->n) {
    if (!gr_jinja_want_string(ctx, "map", &args->positional[0])) return false;
    const jinja_string *name = args->positional[0].u.string;
    filter = gr_jinja_filter_find(name->data, name->len);
    if (filter == SIZE_MAX)
      return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "there is no filter named '%.*s'", (int)(name->len < 60 ? name->len : 60), name->data);
    rest.positional++;
    rest.n--;
  } else if (!gr_jinja_bind(ctx, "map", args, params, 2, 1, given)) {
    return false;
  }
  for (size_t i = 0; i < items.u.list->n; i++) {
    jinja_value v;
    bool ok = gr_jinja_enter(ctx) && (filter != SIZE_MAX ? gr_jinja_filter_apply(ctx, filter, &items.u.list->items[i], &rest, &v)
                                                         : gr_jinja_attr_path(ctx, &items.u.list->items[i], &given[0], &v));
    if (!ok) return false;
    ctx->depth_left++;
    if (filter == SIZE_MAX && v.type == JINJA_UNDEFINED && given[1].type != JINJA_ABSENT) v = given[1];
    if (!gr_jinja_list_add(ctx, out->u.list, v)) return false;
  }
  return true;
}

/* select, reject: by a test, or by truth; selectattr, rejectattr: the same of an attribute. */
static bool choose(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool by_attr, bool keep, jinja_value *out)
{
  jinja_value items;
  jinja_args rest = *args;
  if (!iterate_if_true(ctx, in, &items) || !gr_jinja_list(ctx, 0, out)) return false;
  if (by_attr && !args->n) return gr_jinja_fail(ctx, GR_ERR_FORMAT, "selectattr and rejectattr need the name of an attribute");
  if (by_attr) {
    rest.positional++;
    rest.n--;
  }
  size_t test = SIZE_MAX;
  if (rest.n) {
    if (!gr_jinja_want_string(ctx, "a test's name", &rest.positional[0])) return false;
    const jinja_string *name = rest.positional[0].u.string;
    test = gr_jinja_test_find(name->data, name->len);
    if (test == SIZE_MAX)
      return gr_jinja_fail(ctx, GR_ERR_UNSUPPORTED, "there is no test named '%.*s'", (int)(name->len < 60 ? name->len : 60), name->data);
    rest.positional++;
    rest.n--;
  }
  for (size_t i = 0; i < items.u.list->n; i++) {
    jinja_value v = items.u.list->items[i];
    if (by_attr && !gr_jinja_attr_path(ctx, &items.u.list->items[i], &args->positional[0], &v)) return false;
    bool holds = gr_jinja_truth(&v);
    if (test != SIZE_MAX && !gr_jinja_test_apply(ctx, test, &v, &rest, &holds)) return false;
    if (holds == keep && !gr_jinja_list_add(ctx, out->u.list, items.u.list->items[i])) return false;
  }
  return true;
}

static bool filter_select(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return choose(ctx, in, args, false, true, out);
}

static bool filter_reject(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return choose(ctx, in, args, false, false, out);
}

static bool filter_selectattr(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return choose(ctx, in, args, true, true, out);
}

static bool filter_rejectattr(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
  return choose(ctx, in, args, true, false, out);
}

const jinja_filter_entry *gr_jinja_list_filters(size_t *n)
{
  static const jinja_filter_entry filters[] = {
    { "first", filter_first },
    { "last", filter_last },
    { "list", filter_list },
    { "reverse", filter_reverse },
    { "items", filter_items },
    { "sort", filter_sort },
    { "join", filter_join },
    { "dictsort", filter_dictsort },
    { "unique", filter_unique },
    { "max", filter_max },
    { "min", filter_min },
    { "sum", filter_sum },
    { "map", filter_map },
    { "select", filter_select },
    { "reject", filter_reject },
    { "selectattr", filter_selectattr },
    { "rejectattr", filter_rejectattr },
  };
  *n = sizeof filters / sizeof *filters;
  return filters;
}
