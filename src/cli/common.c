#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "cli/cli.h"

static int lost; /* errno of the first write to stdout that failed; later ones may succeed */

void gr_cli_flush(void)
{
  if (fflush(stdout) != 0 && !lost) lost = errno;
}

int gr_cli_end(int status)
{
  gr_cli_flush();
  if (!lost && !ferror(stdout)) return status;
  if (status == 0) fprintf(stderr, "graft: cannot write standard output: %s\n", lost ? strerror(lost) : "a write failed");
  return status ? status : 1;
}

void gr_cli_json(json_t *object)
{
  char *line = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
  if (line) puts(line);
  else fprintf(stderr, "graft: out of memory while writing JSON\n");
  gr_cli_flush();
  free(line);
  json_decref(object);
}

json_t *gr_cli_json_text(const char *text, size_t n)
{
  json_t *whole = json_stringn(text, n);
  if (whole) return whole;
  gr_buf clean = { 0 };
  for (size_t at = 0; at < n;) {
    size_t step = 1;
    json_t *piece = NULL;
    for (size_t k = 1; k <= 4 && at + k <= n && !piece; k++)
      if ((piece = json_stringn(text + at, k))) step = k;
    if (piece) gr_buf_append(&clean, text + at, step);
    else gr_buf_puts(&clean, "\xef\xbf\xbd");
    json_decref(piece);
    at += step;
  }
  whole = json_stringn(clean.data ? clean.data : "", clean.len);
  gr_buf_free(&clean);
  return whole;
}

int gr_cli_fail(const gr_error *e)
{
  gr_cli_flush();
  fprintf(stderr, "graft: %s\n", e->text);
  return e->status == GR_ERR_USAGE ? 2 : 1;
}

bool gr_cli_parse(const gr_arg *args, int argc, char **argv, gr_arg_words *words, const char *usage, int *status)
{
  gr_error e = { 0 };
  bool help = false;
  if (gr_args_parse(args, argc, argv, words, &help, &e) != GR_OK) {
    *status = gr_cli_fail(&e);
    return false;
  }
  if (!help) return true;
  printf("%s\n\n", usage);
  gr_args_print(args);
  *status = 0;
  return false;
}

/* What a path that does not open may have been meant for. */
static gr_status explain_path(const char *path, gr_status s, gr_error *e)
{
  const char *slash = strchr(path, '/');
  bool hub = slash && slash > path && path[0] != '.' && slash[1] && !strchr(slash + 1, '/') && !strstr(path, ".gguf");
  if (s == GR_OK || !hub || gr_file_exists(path)) return s;
  return gr_fail(e, s, "%s is no file here, and looks like a name on the Hugging Face Hub: download a GGUF file of that model and give it",
                 path);
}

gr_status gr_cli_vocabulary_open(const char *path, gr_gguf **file, gr_tokenizer **t, gr_error *e)
{
  gr_gguf_str type = { "", 0 };
  GR_TRY(explain_path(path, gr_gguf_open(file, path, e), e));
  GR_TRY(gr_gguf_string(*file, "general.type", GR_GGUF_OPTIONAL, &type, e));
  if (gr_gguf_str_is(type, "adapter"))
    return gr_fail(e, GR_ERR_MISMATCH, "%s is an adapter and has no vocabulary: give the model it is for with -m", path);
  return gr_tokenizer_create(t, *file, e);
}

static gr_status open_backends(gr_cli_model *m, gr_error *e)
{
  const char *name = m->backend ? m->backend : "cpu";
  gr_precision precision;
  if (strcmp(name, "ref") == 0 && !m->allow_ref)
    return gr_fail(e, GR_ERR_USAGE, "the backend ref is the slow double reference, which is for tests: --allow-ref permits it");
  GR_TRY(gr_precision_parse(m->precision, &precision, e));
  GR_TRY(gr_pool_create(&m->pool, (int)m->threads, e));
  GR_TRY(gr_backend_open(&m->backends[0], name, m->pool, e));
  m->n_backends = 1;
  GR_TRY(gr_backend_use_precision(m->backends[0], precision, e));
  if (strcmp(name, "cpu") == 0) return GR_OK;
  /* What a device has no kernel for runs on the CPU, and placement reports say so. */
  GR_TRY(gr_backend_open(&m->backends[1], "cpu", m->pool, e));
  m->n_backends = 2;
  return GR_OK;
}

static gr_status add_adapter(gr_cli_model *m, const char *path, double scale, gr_error *e)
{
  gr_adapter_use *use = &m->adapters[m->n_adapters];
  GR_TRY(gr_lora_load(&use->lora, m->model, path, e));
  use->scale = (float)scale;
  m->n_adapters++;
  return GR_OK;
}

/* "FILE:0.5" behind --lora is a file of that name, or meant for --lora-scaled. */
static gr_status explain_scale(const char *path, gr_status s, gr_error *e)
{
  const char *colon = strrchr(path, ':');
  char *end = NULL, *file = colon ? gr_strndup(path, (size_t)(colon - path)) : NULL;
  if (colon) strtod(colon + 1, &end);
  if (file && end > colon + 1 && !*end && gr_file_exists(file) && !gr_file_exists(path)) {
    gr_error why = *e;
    gr_fail(e, s, "%s: a scale is given as --lora-scaled %s", why.text, path);
  }
  gr_free(file);
  return s;
}

static gr_status add_scaled(gr_cli_model *m, const char *text, gr_error *e)
{
  const char *colon = strrchr(text, ':');
  char *end = NULL;
  double scale = colon ? strtod(colon + 1, &end) : 0;
  if (!colon || end == colon + 1 || *end) return gr_fail(e, GR_ERR_USAGE, "--lora-scaled takes FILE:SCALE, not '%s'", text);
  if (!isfinite((float)scale)) return gr_fail(e, GR_ERR_USAGE, "--lora-scaled takes FILE:SCALE with a finite scale, not '%s'", colon + 1);
  char *path = gr_strndup(text, (size_t)(colon - text));
  if (!path) return gr_fail_memory(e, strlen(text));
  gr_status s = add_adapter(m, path, scale, e);
  gr_free(path);
  return s;
}

/* Threads that wait for a processor hold up those that have one. */
static void note_threads(const gr_cli_model *m)
{
  int processors = gr_pool_processors();
  if (m->threads > processors)
    fprintf(stderr, "note     %lld threads on %d processor%s: this is slower than -t %d, and changes no result\n", (long long)m->threads,
            processors, processors > 1 ? "s" : "", processors);
}

gr_status gr_cli_model_open(gr_cli_model *m, gr_error *e)
{
  if (!m->path) return gr_fail(e, GR_ERR_USAGE, "give the model with -m FILE");
  if (m->threads < 0 || m->threads > 1024)
    return gr_fail(e, GR_ERR_USAGE, "-t takes 0 (one a processor) to 1024 threads, not %lld", (long long)m->threads);
  GR_TRY(open_backends(m, e));
  note_threads(m);
  GR_TRY(explain_path(m->path, gr_model_open(&m->model, m->path, e), e));
  m->adapters = gr_calloc(m->lora.n + m->lora_scaled.n, sizeof *m->adapters);
  if (!m->adapters) return gr_fail_memory(e, 0);
  for (size_t i = 0; i < m->lora.n; i++) {
    gr_status s = add_adapter(m, m->lora.items[i], 1, e);
    if (s != GR_OK) return explain_scale(m->lora.items[i], s, e);
  }
  for (size_t i = 0; i < m->lora_scaled.n; i++) GR_TRY(add_scaled(m, m->lora_scaled.items[i], e));
  return GR_OK;
}

gr_status gr_cli_check_bases(const gr_cli_model *m, const char *hash, bool strict, gr_error *e)
{
  for (size_t i = 0; i < m->n_adapters; i++) {
    gr_error other = { 0 };
    gr_status s = gr_lora_check_base(m->adapters[i].lora, m->model, hash, &other);
    if (s == GR_OK) continue;
    if (s != GR_ERR_MISMATCH || strict) return gr_fail(e, s, "%s", other.text);
    fprintf(stderr, "note     %s\n", other.text);
  }
  return GR_OK;
}

void gr_cli_model_close(gr_cli_model *m)
{
  for (size_t i = 0; i < m->n_adapters; i++) gr_lora_free(m->adapters[i].lora);
  gr_free(m->adapters);
  gr_model_close(m->model);
  gr_backend_close(m->backends[0]);
  gr_backend_close(m->backends[1]);
  gr_pool_free(m->pool);
  gr_arg_list_free(&m->lora);
  gr_arg_list_free(&m->lora_scaled);
}

gr_cli_sampling gr_cli_sampling_defaults(void)
{
  gr_sampling p = gr_sampling_defaults();
  return (gr_cli_sampling){ .top_k = p.top_k,
                            .repeat_last = p.repeat_last,
                            .seed = (int64_t)p.seed,
                            .temperature = p.temperature,
                            .top_p = p.top_p,
                            .min_p = p.min_p,
                            .repeat_penalty = p.repeat_penalty };
}

void gr_cli_note_fallen(const gr_cli_model *m, const gr_plan *plan)
{
  gr_buf ops = { 0 };
  size_t fallen = gr_plan_fallen(plan, &ops);
  if (fallen && !ops.failed)
    fprintf(stderr, "note     %zu of %zu launches of a run have no kernel on %s and run on %s: %s\n", fallen, gr_plan_launches(plan),
            m->backends[0]->ops->name, m->backends[m->n_backends - 1]->ops->name, ops.data);
  gr_buf_free(&ops);
}

void gr_cli_note_context(int32_t context)
{
  fprintf(stderr, "note     the context of %d tokens is full: the text ends before -n was reached; -c sets another context\n", context);
}

void gr_cli_note_beyond(int32_t context, int32_t own)
{
  if (context > own)
    fprintf(stderr, "note     the context of %d tokens is longer than the model's of %d: positions beyond it are new to the model\n",
            context, own);
}

gr_status gr_cli_check_lengths(int64_t predict, int64_t context, gr_error *e)
{
  if (predict < 0 || predict > 1 << 30) return gr_fail(e, GR_ERR_USAGE, "-n takes 0 to %d tokens, not %lld", 1 << 30, (long long)predict);
  if (context < 0 || context > 1 << 30) return gr_fail(e, GR_ERR_USAGE, "-c takes 1 to %d tokens, not %lld", 1 << 30, (long long)context);
  return GR_OK;
}

/* Counts beyond 32 bits mean "all" as surely as the largest that fits. */
static int32_t clamp(int64_t v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v; }

gr_sampling gr_cli_sampling_of(const gr_cli_sampling *s)
{
  return (gr_sampling){ .temperature = s->temperature,
                        .top_k = clamp(s->top_k),
                        .top_p = s->top_p,
                        .min_p = s->min_p,
                        .repeat_penalty = s->repeat_penalty,
                        .repeat_last = clamp(s->repeat_last),
                        .seed = (uint64_t)s->seed };
}
