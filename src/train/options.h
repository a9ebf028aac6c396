/* Training options: the struct, its defaults, setting by name, YAML. All expanded from options.def. */
#ifndef GR_TRAIN_OPTIONS_H
#define GR_TRAIN_OPTIONS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"

typedef enum gr_option_kind { GR_OPTION_FLAG, GR_OPTION_INT, GR_OPTION_REAL, GR_OPTION_TEXT, GR_OPTION_LIST } gr_option_kind;

typedef enum gr_option_role { GR_OPTION_BOUND, GR_OPTION_FREE } gr_option_role; /* see options.def */

typedef struct gr_string_list {
  const char **items;
  size_t n, cap;
  bool replace; /* the next value replaces all */
} gr_string_list;

typedef struct gr_train_options {
#define GR_FIELD_FLAG bool
#define GR_FIELD_INT int64_t
#define GR_FIELD_REAL double
#define GR_FIELD_TEXT const char *
#define GR_FIELD_LIST gr_string_list
#define GR_TRAIN_OPTION(field, kind, role, names, value, preset, help) GR_FIELD_##kind field;
#include "train/options.def"
#undef GR_TRAIN_OPTION
  const char *config; /* the YAML file that was loaded, or NULL */
  gr_arena arena;     /* owns every text */
} gr_train_options;

typedef struct gr_option_info {
  const char *field; /* the canonical key, "learning_rate" */
  gr_option_kind kind;
  gr_option_role role;
  const char *names; /* space-separated, with hyphens, as typed */
  const char *value, *preset, *help;
  size_t offset; /* in gr_train_options */
} gr_option_info;

/* The table, ended by field NULL. */
const gr_option_info *gr_train_option_infos(void);

void gr_train_options_init(gr_train_options *o); /* the defaults */
void gr_train_options_free(gr_train_options *o);

/* Finds an option by key ("learning_rate", "learning-rate", "lr"); NULL when there is none. */
const gr_option_info *gr_train_option_find(const char *key);

/* The same; a flag also as "no_packing", "no-packing": *negative then says that its value is meant the other way round. */
const gr_option_info *gr_train_option_find_flag(const char *key, bool *negative);

/* GR_ERR_USAGE with the nearest option to a mistyped key ("max_stepz", "--max-stepz") in the sentence. */
gr_status gr_train_option_nearest(const char *key, gr_error *e);

/* Lists that are set from here on replace what they hold, instead of adding to it: flags after a config. */
void gr_train_options_lists_from_flags(gr_train_options *o);

/* Sets from text: numbers and booleans (true, false, yes, no, on, off, 1, 0) are parsed and refused in words; a LIST gets one more
 * value, or several separated by commas for target_modules. where: "line 3 of run.yaml", for the sentence. */
gr_status gr_train_options_set(gr_train_options *o, const gr_option_info *info, const char *text, const char *where, gr_error *e);

/* The same of a flag that was found as "no_packing". */
gr_status gr_train_options_set_negated(gr_train_options *o, const gr_option_info *info, const char *text, gr_error *e);

/* true, yes, on, 1 and their opposites, in any case; false: it is neither. */
bool gr_truth_from_name(const char *text, bool *value);

/* Reads a YAML mapping of keys to scalars or lists of scalars. Lists replace. Refused with their line: unknown keys (with the nearest
 * one), options set twice, mappings inside, aliases, a second document. */
gr_status gr_train_options_load(gr_train_options *o, const char *path, gr_error *e);

/* Writes options as YAML that load() reads back to the same values: all of them, or those a checkpoint is bound to. */
void gr_train_options_dump(const gr_train_options *o, bool bound_only, gr_buf *out);

/* Ranges of single options; what depends on model and data is checked where they are known. */
gr_status gr_train_options_check(const gr_train_options *o, gr_error *e);

#endif
