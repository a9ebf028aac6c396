/* graft quantize IN.gguf OUT.gguf TYPE: a model in another block format. */
#include <string.h>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "io/quantize.h"

struct options {
  const char *words[3];
  int64_t threads;
  bool overwrite, json;
};

static bool print_tensor(void *ctx, const gr_quantize_tensor *t)
{
  const struct options *o = ctx;
  if (o->json) {
    gr_cli_json(json_pack("{s:s,s:o,s:s,s:s,s:b,s:b,s:I,s:I,s:f}", "event", "tensor", "name", gr_cli_json_text(t->name, strlen(t->name)),
                          "from", gr_dtype_name(t->from), "to", gr_dtype_name(t->to), "encoded", t->encoded, "fell_back", t->fell_back,
                          "bytes_from", (json_int_t)t->bytes_from, "bytes_to", (json_int_t)t->bytes_to, "error", t->error));
  } else {
    fprintf(stderr, "[%zu/%zu] %-36s %s", t->index + 1, t->count, t->name, gr_dtype_name(t->from));
    if (t->encoded)
      fprintf(stderr, " -> %s, relative error %.2g%s", gr_dtype_name(t->to), t->error,
              t->fell_back ? " (its rows do not fit the blocks of the type asked for)" : "");
    fputc('\n', stderr);
  }
  return !gr_interrupted();
}

static gr_status run(struct options *o, gr_error *e)
{
  gr_dtype type;
  if (!gr_dtype_from_name(o->words[2], &type) || !gr_quantize_has(type)) {
    char list[200] = "";
    for (int t = 0; t < GR_DTYPE_COUNT; t++)
      if (gr_quantize_has((gr_dtype)t)) strcat(strcat(list, list[0] ? ", " : ""), gr_dtype_name((gr_dtype)t));
    return gr_fail(e, GR_ERR_USAGE, "'%s' is not a type to quantize to; those are %s", o->words[2], list);
  }
  if (o->threads < 0 || o->threads > 1024)
    return gr_fail(e, GR_ERR_USAGE, "-t takes 0 (one a processor) to 1024 threads, not %lld", (long long)o->threads);
  gr_pool *pool = NULL;
  GR_TRY(gr_pool_create(&pool, (int)o->threads, e));
  const gr_quantize_options q = { .pool = pool, .overwrite = o->overwrite, .on_tensor = print_tensor, .ctx = o };
  gr_status s = gr_quantize_file(o->words[0], o->words[1], type, &q, e);
  gr_pool_free(pool);
  return s;
}

int gr_cmd_quantize(int argc, char **argv)
{
  struct options o = { 0 };
  const gr_arg args[] = {
    { "--overwrite", GR_ARG_FLAG, NULL, "replace an existing output", &o.overwrite, NULL },
    { "-t --threads", GR_ARG_INT, "N", "threads (0, the default: one a processor)", &o.threads, NULL },
    { "--json", GR_ARG_FLAG, NULL, "one JSON object a tensor on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  gr_arg_words words = { o.words, 3, 0 };
  if (!gr_cli_parse(args, argc, argv, &words, "usage: graft quantize IN.gguf OUT.gguf TYPE [options]", &status)) return status;
  if (words.n < 3) gr_fail(&e, GR_ERR_USAGE, "quantize takes three words: IN.gguf OUT.gguf TYPE");
  else {
    gr_interrupt_catch(true); /* so that no half of a file is left */
    run(&o, &e);
  }
  return e.status == GR_OK ? 0 : gr_cli_fail(&e);
}
