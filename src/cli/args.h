/* Command-line options, by table. Wrong usage is exit 2 with one sentence that suggests the nearest name. */
#ifndef GR_CLI_ARGS_H
#define GR_CLI_ARGS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum gr_arg_kind {
  GR_ARG_FLAG, /* bool: --name or --name=true, --no-name or --name=false */
  GR_ARG_INT,  /* int64_t */
  GR_ARG_REAL, /* double; 1e-4 and the like */
  GR_ARG_TEXT, /* const char * into argv */
  GR_ARG_LIST  /* gr_arg_list: may be repeated; values in order */
} gr_arg_kind;

typedef struct gr_arg_list {
  const char **items;
  size_t n, cap;
} gr_arg_list;

typedef struct gr_arg {
  const char *names; /* "-m --model --base-model": any may be typed; hyphens and underscores inside a name are the same */
  gr_arg_kind kind;
  const char *value; /* what --help calls the value */
  const char *help;
  void *to;
  bool *given; /* set when it was typed; may be NULL */
} gr_arg;

/* Reads argv[0..argc): options of the table (ended by names NULL) and up to n_words words, which must all be there unless
 * words_optional. "--name=value", "--name value", and "-n8" for numbers; "--" ends options; "-h" and "--help" set *help and return GR_OK at
 * once. */
typedef struct gr_arg_words {
  const char **to;
  size_t most, n;
} gr_arg_words;
gr_status gr_args_parse(const gr_arg *args, int argc, char **argv, gr_arg_words *words, bool *help, gr_error *e);
void gr_arg_list_free(gr_arg_list *l);

/* "-r8": a short option with its number attached. */
bool gr_arg_is_attached(const char *typed);

/* GR_ERR_USAGE for a word that no command takes, behind the argument `before` (or ""), saying what it may have been meant for: one of
 * the options of the table, or of a training run's when that is NULL. */
gr_status gr_arg_too_many(const gr_arg *args, const char *word, const char *before, gr_error *e);

/* Prints the options of a table. */
void gr_args_print(const gr_arg *args);

#endif
