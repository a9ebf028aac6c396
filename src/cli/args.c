#include "cli/args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/nearest.h"
#include "train/foreign.h"
#include "train/options.h"

/* ---- names ---- */

/* Compares typed[0..n) with one name, '_' and '-' being the same inside. */
static bool same_name(const char *typed, size_t n, const char *name, size_t len)
{
  if (n != len) return false;
  for (size_t i = 0; i < n; i++)
    if (typed[i] != name[i] && !(i > 1 && (typed[i] == '_' || typed[i] == '-') && (name[i] == '_' || name[i] == '-'))) return false;
  return true;
}

static const gr_arg *find(const gr_arg *args, const char *typed, size_t n)
{
  for (const gr_arg *a = args; a->names; a++)
    for (const char *p = a->names; *p;) {
      size_t len = strcspn(p, " ");
      if (same_name(typed, n, p, len)) return a;
      p += len + (p[len] == ' ');
    }
  return NULL;
}

enum { NAMES_MAX = 256 };

/* All names of the table that have more than one letter (one letter is near to any), copied into one buffer so that each is a string of
 * its own. */
static gr_status unknown(const gr_arg *args, const char *typed, size_t n, gr_error *e)
{
  const char *instead = gr_foreign_option(typed, n, false);
  if (instead) return gr_fail(e, GR_ERR_USAGE, "there is no option %.*s: %s", (int)n, typed, instead);
  gr_buf all = { 0 };
  for (const gr_arg *a = args; a->names; a++) gr_buf_printf(&all, "%s ", a->names);
  const char *names[NAMES_MAX];
  size_t count = 0;
  for (char *p = all.data; p && *p && count < NAMES_MAX;) {
    names[count] = p;
    p += strcspn(p, " ");
    count += p - names[count] > 2;
    if (*p) *p++ = 0;
  }
  char word[64];
  snprintf(word, sizeof word, "%.*s", (int)n, typed);
  const char *near = gr_nearest(word, names, count);
  gr_status s = near ? gr_fail(e, GR_ERR_USAGE, "there is no option %s; did you mean %s?", word, near)
                     : gr_fail(e, GR_ERR_USAGE, "there is no option %s; --help lists them", word);
  gr_buf_free(&all);
  return s;
}

/* ---- values ---- */

static gr_status store(const gr_arg *a, const char *name, const char *text, gr_error *e)
{
  char *end = NULL;
  errno = 0;
  switch (a->kind) {
  case GR_ARG_INT: {
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) return gr_fail(e, GR_ERR_USAGE, "%s takes a whole number, not '%s'", name, text);
    *(int64_t *)a->to = v;
    return GR_OK;
  }
  case GR_ARG_REAL: {
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return gr_fail(e, GR_ERR_USAGE, "%s takes a number, not '%s'", name, text);
    *(double *)a->to = v;
    return GR_OK;
  }
  case GR_ARG_TEXT: *(const char **)a->to = text; return GR_OK;
  case GR_ARG_LIST: {
    gr_arg_list *l = a->to;
    if (!gr_grow((void **)&l->items, &l->cap, l->n + 1, sizeof *l->items)) return gr_fail_memory(e, l->cap * sizeof *l->items);
    l->items[l->n++] = text;
    return GR_OK;
  }
  case GR_ARG_FLAG: break;
  }
  return GR_OK;
}

/* "--name", "--name=false"; negative: "--no-name", "--no-name=false". */
static gr_status take_flag(const gr_arg *a, bool negative, const char *typed, gr_error *e)
{
  const char *equals = strchr(typed, '=');
  bool value = true;
  if (equals && !gr_truth_from_name(equals + 1, &value))
    return gr_fail(e, GR_ERR_USAGE, "%.*s takes true or false, not '%s'", (int)(equals - typed), typed, equals + 1);
  *(bool *)a->to = value != negative;
  if (a->given) *a->given = true;
  return GR_OK;
}

static bool is_negative_flag(const gr_arg *args, const char *typed, const gr_arg **a)
{
  char positive[64];
  if (strncmp(typed, "--no-", 5) != 0 && strncmp(typed, "--no_", 5) != 0) return false;
  snprintf(positive, sizeof positive, "--%.*s", (int)strcspn(typed + 5, "="), typed + 5);
  *a = find(args, positive, strlen(positive));
  return *a && (*a)->kind == GR_ARG_FLAG;
}

bool gr_arg_is_attached(const char *typed)
{
  return typed[0] == '-' && typed[1] && strchr("-.0123456789", typed[1]) == NULL && typed[2] && strchr("-.0123456789", typed[2]);
}

static bool ends_in(const char *word, const char *extension)
{
  size_t n = strlen(word), x = strlen(extension);
  return n > x && strcmp(word + n - x, extension) == 0;
}

gr_status gr_arg_too_many(const gr_arg *args, const char *word, const char *before, gr_error *e)
{
  static const struct {
    const char *extension, *option, *what;
  } files[] = {
    { ".jsonl", "-d", "data is given" },   { ".json", "-d", "data is given" },           { ".txt", "-d", "data is given" },
    { ".gguf", "-m", "a model is given" }, { ".yaml", "--config", "a config is given" }, { ".yml", "--config", "a config is given" }
  };
  bool truth;
  if (strncmp(before, "--", 2) == 0 && before[2] && gr_truth_from_name(word, &truth)) {
    const char *name = before + (strncmp(before, "--no-", 5) == 0 ? 5 : 2);
    return gr_fail(e, GR_ERR_USAGE, "'%s' is one argument too many: a flag is given as --%s or --%s=true, and as --no-%s or --%s=false",
                   word, name, name, name, name);
  }
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (ends_in(word, files[i].extension) && (!args || find(args, files[i].option, strlen(files[i].option))))
      return gr_fail(e, GR_ERR_USAGE, "'%s' is one argument too many: %s with %s", word, files[i].what, files[i].option);
  const gr_arg *text = args ? find(args, "-p", 2) : NULL;
  if (text && text->kind == GR_ARG_TEXT) return gr_fail(e, GR_ERR_USAGE, "'%s' is one argument too many: a text is given with -p", word);
  return gr_fail(e, GR_ERR_USAGE, "'%s' is one argument too many", word);
}

/* The option that argv[*i] names and its value, which may stand behind it. */
static gr_status take(const gr_arg *args, int argc, char **argv, int *i, gr_error *e)
{
  const char *typed = argv[*i];
  size_t n = strcspn(typed, "=");
  const gr_arg *a = find(args, typed, n), *negative = NULL;
  if (!a && is_negative_flag(args, typed, &negative)) return take_flag(negative, true, typed, e);
  if (!a && gr_arg_is_attached(typed) && (a = find(args, typed, 2))) {
    if (a->kind == GR_ARG_INT || a->kind == GR_ARG_REAL) n = 2;
    else a = NULL;
  }
  if (!a) return unknown(args, typed, n, e);
  if (a->kind == GR_ARG_FLAG) return take_flag(a, false, typed, e);
  const char *value = typed[n] ? typed + n + (typed[n] == '=') : *i + 1 < argc ? argv[++*i] : NULL;
  if (!value) return gr_fail(e, GR_ERR_USAGE, "%s needs a value: %s", typed, a->value);
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)n, typed);
  GR_TRY(store(a, name, value, e));
  if (a->given) *a->given = true;
  return GR_OK;
}

gr_status gr_args_parse(const gr_arg *args, int argc, char **argv, gr_arg_words *words, bool *help, gr_error *e)
{
  bool only_words = false;
  for (int i = 0; i < argc; i++) {
    const char *typed = argv[i];
    if (only_words || typed[0] != '-' || !typed[1]) {
      if (!words || words->n == words->most) return gr_arg_too_many(args, typed, i ? argv[i - 1] : "", e);
      words->to[words->n++] = typed;
      continue;
    }
    if (strcmp(typed, "--") == 0) {
      only_words = true;
      continue;
    }
    if (strcmp(typed, "-h") == 0 || strcmp(typed, "--help") == 0) {
      *help = true;
      return GR_OK;
    }
    GR_TRY(take(args, argc, argv, &i, e));
  }
  return GR_OK;
}

void gr_arg_list_free(gr_arg_list *l)
{
  gr_free(l->items);
  *l = (gr_arg_list){ 0 };
}

void gr_args_print(const gr_arg *args)
{
  for (const gr_arg *a = args; a->names; a++) {
    char left[128];
    int used = snprintf(left, sizeof left, "  %s", a->names);
    if (a->value && used > 0 && (size_t)used < sizeof left) snprintf(left + used, sizeof left - (size_t)used, " %s", a->value);
    if (strlen(left) < 36) printf("%-36s %s\n", left, a->help);
    else printf("%s\n%37s%s\n", left, "", a->help);
  }
}
