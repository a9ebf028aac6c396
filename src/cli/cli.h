/* What the commands share. Only this room prints: human text to stderr (results of commands that are read by people to stdout),
 * with --json one object a line to stdout. Exit status: 0 done, 1 operating error, 2 wrong usage. */
#ifndef GR_CLI_CLI_H
#define GR_CLI_CLI_H
#include <jansson.h>
#include <stdio.h>

#include "cli/args.h"
#include "graph/graph.h"
#include "model/model.h"

#define GR_COMMAND(name, help) int gr_cmd_##name(int argc, char **argv);
#include "cli/commands.def"
#undef GR_COMMAND

/* Prints an object as one line on stdout and drops the reference. */
void gr_cli_json(json_t *object);
/* A JSON string of bytes that need not be UTF-8: malformed ones become U+FFFD. */
json_t *gr_cli_json_text(const char *text, size_t n);

/* Prints "graft: <sentence>" and returns the exit status: 2 for GR_ERR_USAGE, else 1. */
int gr_cli_fail(const gr_error *e);

/* Parses; on --help prints usage (one or more lines), then the options. Returns false when the command should return *status. */
bool gr_cli_parse(const gr_arg *args, int argc, char **argv, gr_arg_words *words, const char *usage, int *status);

/* A model with its adapters on the chosen backend: what generate, chat and eval open. */
typedef struct gr_cli_model {
  /* filled by options */
  const char *path, *backend;
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

#define GR_CLI_MODEL_ARGS(m)                                                                                                               \
  { "-m --model", GR_ARG_TEXT, "FILE", "the model, a GGUF file", &(m).path, NULL },                                                        \
      { "--lora", GR_ARG_LIST, "FILE", "an adapter to apply; may be repeated", &(m).lora, NULL },                                          \
      { "--lora-scaled", GR_ARG_LIST, "FILE:SCALE", "an adapter times a scale", &(m).lora_scaled, NULL },                                  \
      { "-t --threads", GR_ARG_INT, "N", "threads (default: one a processor)", &(m).threads, NULL },                                       \
      { "-b --backend", GR_ARG_TEXT, "NAME", "where to compute (default cpu)", &(m).backend, NULL },                                       \
  {                                                                                                                                        \
    "--allow-ref", GR_ARG_FLAG, NULL, "let operations without a kernel run on the slow double reference", &(m).allow_ref, NULL             \
  }

gr_status gr_cli_model_open(gr_cli_model *m, gr_error *e);
void gr_cli_model_close(gr_cli_model *m);

#endif
