/* What the commands share. Only this room prints: human text to stderr (results of commands that are read by people to stdout),
 * with --json one object a line to stdout. Exit status: 0 done, 1 operating error, 2 wrong usage. */
#ifndef GR_CLI_CLI_H
#define GR_CLI_CLI_H
#include <jansson.h>
#include <stdio.h>

#include "cli/args.h"
#include "graph/graph.h"
#include "infer/sample.h"
#include "model/model.h"

#define GR_COMMAND(name, help) int gr_cmd_##name(int argc, char **argv);
#include "cli/commands.def"
#undef GR_COMMAND

/* Flushes stdout, and remembers why when that fails. */
void gr_cli_flush(void);
/* The exit status of a command that ended with `status`: 1 and a sentence when it was 0 and not all of stdout could be written. */
int gr_cli_end(int status);

/* Prints an object as one line on stdout and drops the reference. */
void gr_cli_json(json_t *object);
/* A JSON string of bytes that need not be UTF-8: malformed ones become U+FFFD. */
json_t *gr_cli_json_text(const char *text, size_t n);

/* Prints "graft: <sentence>" and returns the exit status: 2 for GR_ERR_USAGE, else 1. */
int gr_cli_fail(const gr_error *e);

/* Parses; on --help prints usage (one or more lines), then the options. Returns false when the command should return *status. */
bool gr_cli_parse(const gr_arg *args, int argc, char **argv, gr_arg_words *words, const char *usage, int *status);

/* A file's vocabulary, for commands that need no weights: vocabulary-only files will do, adapters are refused. *file and *t are
 * the caller's to free, also after a failure. */
gr_status gr_cli_vocabulary_open(const char *path, gr_gguf **file, gr_tokenizer **t, gr_error *e);

/* A model with its adapters on the chosen backend: what generate, chat and eval open. */
typedef struct gr_cli_model {
  /* filled by options */
  const char *path, *backend, *precision; /* NULL: the defaults */
  gr_arg_list lora, lora_scaled;
  int64_t threads;
  bool allow_ref;
  /* filled by gr_cli_model_open */
  gr_model *model;
  gr_pool *pool;
  gr_backend *backends[2];
  size_t n_backends;
  gr_adapter_use *adapters;
  size_t n_adapters;
} gr_cli_model;

#define GR_CLI_MODEL_ARGS(m)                                                                                                                  \
  { "-m --model", GR_ARG_TEXT, "FILE", "the model, a GGUF file", &(m).path, NULL },                                                           \
      { "--lora", GR_ARG_LIST, "FILE", "an adapter to apply; may be repeated", &(m).lora, NULL },                                             \
      { "--lora-scaled", GR_ARG_LIST, "FILE:SCALE", "an adapter times a scale", &(m).lora_scaled, NULL },                                     \
      { "-t --threads", GR_ARG_INT, "N", "threads (0, the default: one a processor)", &(m).threads, NULL },                                   \
      { "-b --backend", GR_ARG_TEXT, "NAME", "where to compute (default cpu)", &(m).backend, NULL },                                          \
      { "--precision", GR_ARG_TEXT, "f32|bf16", "what operands of the model's products are rounded to (default f32)", &(m).precision, NULL }, \
  {                                                                                                                                           \
    "--allow-ref", GR_ARG_FLAG, NULL, "let operations without a kernel run on the slow double reference", &(m).allow_ref, NULL                \
  }

gr_status gr_cli_model_open(gr_cli_model *m, gr_error *e);
void gr_cli_model_close(gr_cli_model *m);

/* Notes on stderr of adapters that were trained on another base than the model, or, when strict, a refusal. hash: the model's
 * gr_base_hash where it is known, or NULL. */
gr_status gr_cli_check_bases(const gr_cli_model *m, const char *hash, bool strict, gr_error *e);

/* Says on stderr which operations the wanted backend has no kernel for. */
void gr_cli_note_fallen(const gr_cli_model *m, const gr_plan *plan);

/* Says on stderr that a text ended because the context was full. */
void gr_cli_note_context(int32_t context);

/* Says on stderr when a context is longer than the model's own. */
void gr_cli_note_beyond(int32_t context, int32_t own);

/* Ranges of -n and -c (0: not given). */
gr_status gr_cli_check_lengths(int64_t predict, int64_t context, gr_error *e);

/* How the next token is chosen, as options. */
typedef struct gr_cli_sampling {
  int64_t top_k, repeat_last, seed;
  double temperature, top_p, min_p, repeat_penalty;
} gr_cli_sampling;

gr_cli_sampling gr_cli_sampling_defaults(void);
gr_sampling gr_cli_sampling_of(const gr_cli_sampling *s);

#define GR_CLI_SAMPLING_ARGS(s)                                                                                                            \
  { "--temp --temperature", GR_ARG_REAL, "T", "0: always the most likely token (default 0.8)", &(s).temperature, NULL },                   \
      { "--top-k", GR_ARG_INT, "K", "0: all (default 40)", &(s).top_k, NULL },                                                             \
      { "--top-p", GR_ARG_REAL, "P", "default 0.95", &(s).top_p, NULL },                                                                   \
      { "--min-p", GR_ARG_REAL, "P", "default 0.05", &(s).min_p, NULL },                                                                   \
      { "--repeat-penalty", GR_ARG_REAL, "X", "1: none (default)", &(s).repeat_penalty, NULL },                                            \
      { "--repeat-last-n", GR_ARG_INT, "N", "how far back the penalty looks (default 64)", &(s).repeat_last, NULL },                       \
  {                                                                                                                                        \
    "-s --seed", GR_ARG_INT, "N", "default 42", &(s).seed, NULL                                                                            \
  }

#endif
