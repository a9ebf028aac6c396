/* graft generate: continues a prompt, token by token, streaming. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "infer/generate.h"

struct options {
  gr_cli_model m;
  const char *prompt, *file;
  gr_cli_sampling sampling;
  int64_t n, context;
  bool json, special, ignore_eos;
};

static bool print_piece(void *ctx, int32_t id, const char *text, size_t n)
{
  (void)id;
  const struct options *o = ctx;
  if (!o->json) {
    fwrite(text, 1, n, stdout);
    gr_cli_flush();
  }
  return !gr_interrupted();
}

static void note_session(void *ctx, const gr_session *s)
{
  const struct options *o = ctx;
  gr_cli_note_fallen(&o->m, gr_session_plan_of(s, true));
}

static void print_json(const gr_generation *g)
{
  json_t *ids = json_array();
  for (int32_t i = 0; i < g->n_ids; i++) json_array_append_new(ids, json_integer(g->ids[i]));
  gr_cli_json(json_pack("{s:o,s:o,s:i,s:i,s:s,s:f,s:f}", "text", gr_cli_json_text(g->text ? g->text : "", g->text_len), "ids", ids,
                        "prompt_tokens", g->n_prompt, "tokens", g->n_ids - g->n_prompt, "stop", g->stop, "prompt_seconds",
                        g->prompt_seconds, "seconds", g->seconds));
}

static gr_status read_prompt(const struct options *o, char **text, size_t *n, gr_error *e)
{
  if (!o->prompt == !o->file) return gr_fail(e, GR_ERR_USAGE, "give the prompt with -p TEXT, or with -f FILE");
  if (o->file) return gr_file_read(o->file, (size_t)1 << 30, text, n, e);
  *n = strlen(o->prompt);
  *text = gr_strdup(o->prompt);
  return *text ? GR_OK : gr_fail_memory(e, *n);
}

static gr_status run(struct options *o, gr_error *e)
{
  char *prompt = NULL;
  size_t n = 0;
  gr_generation g = { 0 };
  gr_status s = gr_cli_check_lengths(o->n, o->context, e);
  if (s == GR_OK) s = gr_cli_model_open(&o->m, e);
  if (s == GR_OK) s = gr_cli_check_bases(&o->m, NULL, false, e);
  if (s == GR_OK) s = read_prompt(o, &prompt, &n, e);
  const gr_generate_options options = {
    .session = { .context = (int32_t)o->context,
                 .adapters = o->m.adapters,
                 .n_adapters = o->m.n_adapters,
                 .backends = o->m.backends,
                 .n_backends = o->m.n_backends,
                 .allow_ref = o->m.allow_ref },
    .sampling = gr_cli_sampling_of(&o->sampling),
    .most = (int32_t)o->n,
    .parse_control = o->special,
    .ignore_eos = o->ignore_eos,
    .on_token = print_piece,
    .on_session = note_session,
    .ctx = o,
  };
  if (s == GR_OK) gr_cli_note_beyond((int32_t)o->context, gr_model_hparams(o->m.model)->context);
  if (s == GR_OK) s = gr_generate(o->m.model, prompt, n, &options, &g, e);
  if (s == GR_OK && o->json) print_json(&g);
  else if (s == GR_OK)
    fprintf(stderr, "\n[%d prompt tokens, %.1f tok/s; %d generated, %.1f tok/s]\n", g.n_prompt, g.n_prompt / g.prompt_seconds,
            g.n_ids - g.n_prompt, g.n_ids > g.n_prompt ? (g.n_ids - g.n_prompt) / g.seconds : 0.0);
  if (s == GR_OK && strcmp(g.stop, "context") == 0)
    gr_cli_note_context(o->context > 0 ? (int32_t)o->context : gr_model_hparams(o->m.model)->context);
  gr_generation_free(&g);
  gr_free(prompt);
  return s;
}

int gr_cmd_generate(int argc, char **argv)
{
  struct options o = { .n = 128, .sampling = gr_cli_sampling_defaults(), .special = true };
  const gr_arg args[] = {
    GR_CLI_MODEL_ARGS(o.m),
    { "-p --prompt", GR_ARG_TEXT, "TEXT", "the prompt", &o.prompt, NULL },
    { "-f --file", GR_ARG_TEXT, "FILE", "a file with the prompt; - is standard input", &o.file, NULL },
    { "-n --predict", GR_ARG_INT, "N", "tokens to generate at most (default 128)", &o.n, NULL },
    { "-c --ctx-size", GR_ARG_INT, "N", "context in tokens (default: what prompt and -n need)", &o.context, NULL },
    GR_CLI_SAMPLING_ARGS(o.sampling),
    { "--special", GR_ARG_FLAG, NULL, "control tokens written out in the prompt are control tokens (default; --no-special: text)",
      &o.special, NULL },
    { "--ignore-eos", GR_ARG_FLAG, NULL, "go on after an end-of-turn token", &o.ignore_eos, NULL },
    { "--json", GR_ARG_FLAG, NULL, "one JSON object on stdout when done", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL, "usage: graft generate -m MODEL -p TEXT [options]", &status)) {
    gr_interrupt_catch(false);
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  }
  gr_cli_model_close(&o.m);
  return status;
}
