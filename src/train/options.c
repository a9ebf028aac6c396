#include "train/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/nearest.h"
#include "train/foreign.h"
#include "train/memory.h"
#include "train/optim.h"

static const gr_option_info infos[] = {
#define GR_TRAIN_OPTION(field, kind, role, names, value, preset, help)                                                                     \
  { #field, GR_OPTION_##kind, GR_OPTION_##role, names, value, #preset, help, offsetof(gr_train_options, field) },
#include "train/options.def"
#undef GR_TRAIN_OPTION
  { 0 },
};

enum { OPTIONS = sizeof infos / sizeof *infos - 1 };

const gr_option_info *gr_train_option_infos(void) { return infos; }

#define PRESET_FLAG(field, preset) o->field = preset;
#define PRESET_INT(field, preset) o->field = preset;
#define PRESET_REAL(field, preset) o->field = preset;
#define PRESET_TEXT(field, preset) o->field = preset;
#define PRESET_LIST(field, preset) /* empty */
void gr_train_options_init(gr_train_options *o)
{
  *o = (gr_train_options){ 0 };
#define GR_TRAIN_OPTION(field, kind, role, names, value, preset, help) PRESET_##kind(field, preset)
#include "train/options.def"
#undef GR_TRAIN_OPTION
}

void gr_train_options_free(gr_train_options *o)
{
  for (const gr_option_info *i = infos; i->field; i++)
    if (i->kind == GR_OPTION_LIST) gr_free(((gr_string_list *)(void *)((char *)o + i->offset))->items);
  gr_arena_free(&o->arena);
  *o = (gr_train_options){ 0 };
}

/* ---- names ---- */

static bool same_key(const char *key, const char *name, size_t n)
{
  if (strlen(key) != n) return false;
  for (size_t i = 0; i < n; i++)
    if (key[i] != name[i] && !((key[i] == '_' || key[i] == '-') && (name[i] == '_' || name[i] == '-'))) return false;
  return true;
}

const gr_option_info *gr_train_option_find(const char *key)
{
  for (const gr_option_info *i = infos; i->field; i++) {
    if (same_key(key, i->field, strlen(i->field))) return i;
    for (const char *p = i->names; *p;) {
      size_t n = strcspn(p, " "), hyphens = strspn(p, "-");
      if (same_key(key, p + hyphens, n - hyphens)) return i;
      p += n + (p[n] == ' ');
    }
  }
  return NULL;
}

const gr_option_info *gr_train_option_find_flag(const char *key, bool *negative)
{
  const gr_option_info *info = gr_train_option_find(key);
  *negative = false;
  if (info || strncmp(key, "no", 2) != 0 || (key[2] != '-' && key[2] != '_')) return info;
  info = gr_train_option_find(key + 3);
  *negative = info && info->kind == GR_OPTION_FLAG;
  return *negative ? info : NULL;
}

/* Every name of every option that has more than one letter (one letter is near to any), one string each, hyphens off: pointers into
 * all. */
static size_t split_names(gr_buf *all, const char **names, size_t most)
{
  size_t n = 0;
  for (const gr_option_info *i = infos; i->field; i++) gr_buf_printf(all, "%s %s ", i->field, i->names);
  for (char *p = all->failed ? NULL : all->data; p && *p && n < most;) {
    p += strspn(p, "-");
    names[n] = p;
    p += strcspn(p, " ");
    n += p - names[n] > 1;
    *p++ = 0;
  }
  return n;
}

gr_status gr_train_option_nearest(const char *key, gr_error *e)
{
  enum { NAMES_MAX = 8 * OPTIONS };
  const char *names[NAMES_MAX];
  const char *instead = gr_foreign_option(key, strlen(key), true);
  if (instead) return gr_fail(e, GR_ERR_USAGE, "there is no option '%s': %s", key, instead);
  gr_buf all = { 0 };
  size_t n = split_names(&all, names, NAMES_MAX);
  bool flag = key[0] == '-';
  const char *word = key + strspn(key, "-"), *near = strlen(word) > 1 ? gr_nearest(word, names, n) : NULL;
  const gr_option_info *info = near ? gr_train_option_find(near) : NULL;
  char meant[80] = "";
  if (info && flag) snprintf(meant, sizeof meant, "--%s", near);
  else if (info) snprintf(meant, sizeof meant, "%s", info->field);
  for (char *p = meant + 2; flag && info && *p; p++)
    if (*p == '_') *p = '-';
  gr_buf_free(&all);
  if (info) return gr_fail(e, GR_ERR_USAGE, "there is no option '%s'; did you mean '%s'?", key, meant);
  return gr_fail(e, GR_ERR_USAGE, "there is no option '%s'; graft train --help lists them", key);
}

void gr_train_options_lists_from_flags(gr_train_options *o)
{
  for (const gr_option_info *i = infos; i->field; i++)
    if (i->kind == GR_OPTION_LIST) ((gr_string_list *)(void *)((char *)o + i->offset))->replace = true;
}

/* ---- values ---- */

bool gr_truth_from_name(const char *text, bool *value)
{
  static const char *const words[] = { "false", "true", "no", "yes", "off", "on", "0", "1" };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcasecmp(text, words[i]) == 0) {
      *value = i % 2;
      return true;
    }
  return false;
}

/* What an option is called in a sentence: where a config has it its key, and else the letter that it may be typed by, too. */
static const char *called(const char *field, const char *where, char text[64])
{
  const gr_option_info *i = infos;
  while (i->field && strcmp(i->field, field) != 0) i++;
  bool letter = i->field && i->names[1] != '-' && !where[0];
  if (letter) snprintf(text, 64, "%.2s (%s)", i->names, field);
  else snprintf(text, 64, "%s", field);
  return text;
}

static gr_status set_flag(bool *to, const char *name, const char *text, const char *where, gr_error *e)
{
  if (gr_truth_from_name(text, to)) return GR_OK;
  return gr_fail(e, GR_ERR_USAGE, "%s%s takes true or false, not '%s'", where, name, text);
}

static gr_status add_text(gr_train_options *o, gr_string_list *l, const char *text, size_t n, gr_error *e)
{
  if (l->replace) l->n = 0;
  l->replace = false;
  char *copy = gr_arena_strndup(&o->arena, text, n);
  if (!copy || !gr_grow((void **)&l->items, &l->cap, l->n + 1, sizeof *l->items)) return gr_fail_memory(e, n);
  l->items[l->n++] = copy;
  return GR_OK;
}

static gr_status no_names(const char *where, gr_error *e)
{
  return gr_fail(e, GR_ERR_USAGE, "%starget_modules names nothing to adapt: name linears, or leave it out for all-linear", where);
}

static bool is_targets(const gr_option_info *info) { return strcmp(info->field, "target_modules") == 0; }

/* A regular expression may hold commas: "re:" takes the rest of the text. */
static gr_status add_names(gr_train_options *o, gr_string_list *l, const char *text, const char *where, gr_error *e)
{
  bool any = false;
  for (const char *at = text; *at;) {
    at += strspn(at, " ");
    bool expression = strncmp(at, "re:", 3) == 0;
    size_t n = expression ? strlen(at) : strcspn(at, ","), name = n;
    while (!expression && name && at[name - 1] == ' ') name--;
    if (!expression && strcspn(at, " []'\"") < name)
      return gr_fail(e, GR_ERR_USAGE, "%starget_modules takes names with commas between them, as in q_proj,v_proj, not '%s'", where, text);
    if (name) GR_TRY(add_text(o, l, at, name, e));
    any |= name > 0;
    at += n + (at[n] == ',');
  }
  return any ? GR_OK : no_names(where, e);
}

gr_status gr_train_options_set(gr_train_options *o, const gr_option_info *info, const char *text, const char *where, gr_error *e)
{
  void *to = (char *)o + info->offset;
  char *end = NULL, name[64];
  called(info->field, where, name);
  errno = 0;
  switch (info->kind) {
  case GR_OPTION_FLAG: return set_flag(to, info->field, text, where, e);
  case GR_OPTION_INT: {
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) return gr_fail(e, GR_ERR_USAGE, "%s%s takes a whole number, not '%s'", where, name, text);
    *(int64_t *)to = v;
    return GR_OK;
  }
  case GR_OPTION_REAL: {
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return gr_fail(e, GR_ERR_USAGE, "%s%s takes a number, not '%s'", where, name, text);
    *(double *)to = v;
    return GR_OK;
  }
  case GR_OPTION_TEXT: {
    char *copy = gr_arena_strndup(&o->arena, text, strlen(text));
    if (!copy) return gr_fail_memory(e, strlen(text));
    *(const char **)to = copy;
    return GR_OK;
  }
  case GR_OPTION_LIST:
    if (is_targets(info)) return add_names(o, to, text, where, e);
    return add_text(o, to, text, strlen(text), e);
  }
  return GR_OK;
}

gr_status gr_train_options_set_negated(gr_train_options *o, const gr_option_info *info, const char *text, gr_error *e)
{
  bool *to = (bool *)(void *)((char *)o + info->offset);
  GR_TRY(gr_train_options_set(o, info, text, "", e));
  *to = !*to;
  return GR_OK;
}

/* ---- YAML ---- */

static gr_status load_value(gr_train_options *o, yaml_document_t *doc, const gr_option_info *info, yaml_node_t *value, const char *where,
                            gr_error *e)
{
  if (value->type == YAML_SCALAR_NODE) {
    const char *text = (const char *)value->data.scalar.value;
    bool null = value->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
    return null ? GR_OK : gr_train_options_set(o, info, text, where, e);
  }
  if (value->type != YAML_SEQUENCE_NODE || info->kind != GR_OPTION_LIST)
    return gr_fail(e, GR_ERR_USAGE, "%s%s takes %s", where, info->field,
                   info->kind == GR_OPTION_LIST ? "a value or a list of values" : "a single value");
  for (yaml_node_item_t *i = value->data.sequence.items.start; i < value->data.sequence.items.top; i++) {
    yaml_node_t *item = yaml_document_get_node(doc, *i);
    if (!item || item->type != YAML_SCALAR_NODE) return gr_fail(e, GR_ERR_USAGE, "%s%s takes a list of plain values", where, info->field);
    GR_TRY(gr_train_options_set(o, info, (const char *)item->data.scalar.value, where, e));
  }
  return is_targets(info) && value->data.sequence.items.start == value->data.sequence.items.top ? no_names(where, e) : GR_OK;
}

static gr_status unknown_key(const char *name, const char *where, gr_error *e)
{
  gr_train_option_nearest(name, e);
  return gr_error_context(e, "%.*s", (int)strlen(where) - 2, where); /* which ends in ": " */
}

static gr_status load_mapping(gr_train_options *o, yaml_document_t *doc, const char *path, gr_error *e)
{
  size_t lines[OPTIONS] = { 0 }; /* where each was set */
  yaml_node_t *root = yaml_document_get_root_node(doc);
  if (!root) return GR_OK; /* an empty file changes nothing */
  if (root->type != YAML_MAPPING_NODE) return gr_fail(e, GR_ERR_USAGE, "%s must be a mapping of option names to values", path);
  for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
    yaml_node_t *key = yaml_document_get_node(doc, p->key), *value = yaml_document_get_node(doc, p->value);
    char where[300];
    snprintf(where, sizeof where, "%.200s:%zu: ", path, key ? key->start_mark.line + 1 : 0);
    if (!key || !value || key->type != YAML_SCALAR_NODE) return gr_fail(e, GR_ERR_USAGE, "%sa key must be a plain word", where);
    const char *name = (const char *)key->data.scalar.value;
    if (value->type == YAML_MAPPING_NODE)
      return gr_fail(e, GR_ERR_USAGE, "%s'%s' holds a mapping, and options do not nest: write each on a line of its own, such as lora_r: 8",
                     where, name);
    bool negative;
    const gr_option_info *info = gr_train_option_find_flag(name, &negative);
    if (!info) return unknown_key(name, where, e);
    size_t *line = &lines[info - infos];
    if (*line) return gr_fail(e, GR_ERR_USAGE, "%s%s is set already in line %zu: keep one of them", where, info->field, *line);
    *line = key->start_mark.line + 1;
    if (info->kind == GR_OPTION_LIST) ((gr_string_list *)(void *)((char *)o + info->offset))->n = 0;
    bool *flag = (bool *)(void *)((char *)o + info->offset);
    if (negative) *flag = !*flag; /* and back, since a value of null leaves it as it is */
    GR_TRY(load_value(o, doc, info, value, where, e));
    if (negative) *flag = !*flag;
  }
  return GR_OK;
}

static gr_status not_yaml(const yaml_parser_t *parser, const char *path, gr_error *e)
{
  return gr_fail(e, GR_ERR_FORMAT, "%s:%zu: not YAML: %s", path, parser->problem_mark.line + 1,
                 parser->problem ? parser->problem : "unreadable");
}

/* What a document of one mapping cannot show any more once it is loaded. */
static gr_status check_events(yaml_parser_t *parser, const char *path, gr_error *e)
{
  gr_status s = GR_OK;
  int documents = 0;
  for (bool end = false; !end && s == GR_OK;) {
    yaml_event_t event;
    if (!yaml_parser_parse(parser, &event)) return not_yaml(parser, path, e);
    size_t line = event.start_mark.line + 1;
    end = event.type == YAML_STREAM_END_EVENT;
    if (event.type == YAML_ALIAS_EVENT)
      s = gr_fail(e, GR_ERR_USAGE, "%s:%zu: an alias ('*%s') is not taken: write the value itself", path, line,
                  (const char *)event.data.alias.anchor);
    else if (event.type == YAML_DOCUMENT_START_EVENT && ++documents > 1)
      s = gr_fail(e, GR_ERR_USAGE, "%s:%zu: a second document begins: a config is one", path, line);
    yaml_event_delete(&event);
  }
  return s;
}

/* Parses the text once with `document` false, to check it, then once more to take it. */
static gr_status load_text(gr_train_options *o, const char *text, size_t n, bool document, const char *path, gr_error *e)
{
  yaml_parser_t parser;
  yaml_document_t doc;
  if (!yaml_parser_initialize(&parser)) return gr_fail_memory(e, sizeof parser);
  yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
  gr_status s = GR_OK;
  if (!document) {
    s = check_events(&parser, path, e);
  } else if (!yaml_parser_load(&parser, &doc)) {
    s = not_yaml(&parser, path, e);
  } else {
    s = load_mapping(o, &doc, path, e);
    yaml_document_delete(&doc);
  }
  yaml_parser_delete(&parser);
  return s;
}

gr_status gr_train_options_load(gr_train_options *o, const char *path, gr_error *e)
{
  enum { CONFIG_MAX = 16 << 20 };
  char *text = NULL;
  size_t n = 0;
  GR_TRY(gr_file_read(path, CONFIG_MAX, &text, &n, e));
  gr_status s = load_text(o, text, n, false, path, e);
  if (s == GR_OK) s = load_text(o, text, n, true, path, e);
  gr_free(text);
  if (s == GR_OK && !(o->config = gr_arena_strndup(&o->arena, path, strlen(path)))) s = gr_fail_memory(e, strlen(path));
  return s;
}

static void dump_text(gr_buf *out, const char *text)
{
  gr_buf_putc(out, '\'');
  for (const char *p = text; *p; p++) {
    if (*p == '\'') gr_buf_putc(out, '\'');
    gr_buf_putc(out, *p);
  }
  gr_buf_putc(out, '\'');
}

/* As short as reads back to the same value. */
static void dump_real(gr_buf *out, double v)
{
  char text[32];
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, v);
    if (!(strtod(text, NULL) < v) && !(strtod(text, NULL) > v)) break;
  }
  gr_buf_puts(out, text);
}

void gr_train_options_dump(const gr_train_options *o, bool bound_only, gr_buf *out)
{
  for (const gr_option_info *i = infos; i->field; i++) {
    if (bound_only && i->role != GR_OPTION_BOUND) continue;
    const void *at = (const char *)o + i->offset;
    gr_buf_printf(out, "%s: ", i->field);
    switch (i->kind) {
    case GR_OPTION_FLAG: gr_buf_puts(out, *(const bool *)at ? "true" : "false"); break;
    case GR_OPTION_INT: gr_buf_printf(out, "%lld", (long long)*(const int64_t *)at); break;
    case GR_OPTION_REAL: dump_real(out, *(const double *)at); break;
    case GR_OPTION_TEXT: {
      const char *text = *(const char *const *)at;
      if (text) dump_text(out, text);
      else gr_buf_puts(out, "null");
      break;
    }
    case GR_OPTION_LIST: {
      const gr_string_list *l = at;
      gr_buf_putc(out, '[');
      if (l->n == 0 && is_targets(i)) dump_text(out, "all-linear"); /* what none means */
      for (size_t k = 0; k < l->n; k++) {
        if (k) gr_buf_puts(out, ", ");
        dump_text(out, l->items[k]);
      }
      gr_buf_putc(out, ']');
      break;
    }
    }
    gr_buf_putc(out, '\n');
  }
}

/* ---- ranges ---- */

struct range {
  const char *name;
  double value, min, max;
};

static gr_status check_range(const struct range *r, gr_error *e)
{
  char name[64];
  called(r->name, "", name);
  if (r->value < r->min || !isfinite(r->value))
    return gr_fail(e, GR_ERR_USAGE, "%s must be at least %.10g, not %.10g", name, r->min, r->value);
  if (r->value > r->max) return gr_fail(e, GR_ERR_USAGE, "%s must be at most %.10g, not %.10g", name, r->max, r->value);
  return GR_OK;
}

static gr_status check_words(const gr_train_options *o, gr_error *e)
{
  gr_schedule schedule;
  const char *memory = o->gradient_checkpointing;
  if (!gr_schedule_from_name(o->lr_scheduler_type, &schedule))
    return gr_fail(e, GR_ERR_USAGE, "lr_scheduler_type '%s' is not one of cosine, linear, constant", o->lr_scheduler_type);
  if (strcmp(memory, "on") != 0 && strcmp(memory, "off") != 0 && strcmp(memory, "fit") != 0)
    return gr_fail(e, GR_ERR_USAGE, "gradient_checkpointing '%s' is not one of on, off, fit", memory);
  for (size_t i = 0; i < o->report_to.n; i++)
    if (strcmp(o->report_to.items[i], "tensorboard") != 0 && strcmp(o->report_to.items[i], "none") != 0)
      return gr_fail(e, GR_ERR_USAGE, "report_to '%s' is not one of tensorboard, none; metrics.jsonl and metrics.csv are always written",
                     o->report_to.items[i]);
  size_t bytes;
  return o->max_memory ? gr_memory_parse(o->max_memory, &bytes, e) : GR_OK;
}

gr_status gr_train_options_check(const gr_train_options *o, gr_error *e)
{
  const struct range ranges[] = {
    { "lora_r", (double)o->lora_r, 1, 1 << 20 },
    { "lora_alpha", o->lora_alpha, 1e-6, 1e9 },
    { "lora_dropout", o->lora_dropout, 0, 0.999 },
    { "learning_rate", o->learning_rate, 0, 1e6 },
    { "lr_min", o->lr_min, 0, o->learning_rate },
    { "warmup_ratio", o->warmup_ratio, 0, 1 },
    { "warmup_steps", o->warmup_steps == -1 ? 0 : (double)o->warmup_steps, 0, 1e9 },
    { "weight_decay", o->weight_decay, 0, 1e3 },
    { "adam_beta1", o->adam_beta1, 0, 0.999999 },
    { "adam_beta2", o->adam_beta2, 0, 0.9999999 },
    { "adam_epsilon", o->adam_epsilon, 1e-30, 1 },
    { "max_grad_norm", o->max_grad_norm, 0, 1e30 },
    { "num_epochs", o->num_epochs, 1e-6, 1e5 },
    { "max_steps", o->max_steps == -1 ? 1 : (double)o->max_steps, 1, 1e7 },
    { "batch_size", (double)o->batch_size, 1, 1e6 },
    { "micro_batch_size", o->micro_batch_size == -1 ? 1 : (double)o->micro_batch_size, 1, 1e6 },
    { "gradient_accumulation_steps", (double)o->gradient_accumulation_steps, 1, 1e6 },
    { "window", o->window == -1 ? 2 : (double)o->window, 2, 1 << 24 },
    { "val_split", o->val_split, 0, 0.9 },
    { "eval_steps", (double)o->eval_steps, 0, 1e9 },
    { "early_stopping_patience", (double)o->early_stopping_patience, 0, 1e9 },
    { "save_steps", (double)o->save_steps, 0, 1e9 },
    { "save_total_limit", (double)o->save_total_limit, 1, 1e6 },
    { "threads", (double)o->threads, 0, 1024 },
    { "logging_steps", (double)o->logging_steps, 1, 1e9 },
  };
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) GR_TRY(check_range(&ranges[i], e));
  if (o->resume && o->overwrite)
    return gr_fail(e, GR_ERR_USAGE, "--resume goes on with a run and --overwrite begins it anew: give one of them");
  return check_words(o, e);
}
