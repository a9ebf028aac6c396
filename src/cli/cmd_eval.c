/* graft eval: loss and perplexity on held-out data, trained tokens only; or the surprise at every token of given ids. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "infer/score.h"
#include "io/identity.h"
#include "train/heldout.h"

enum { WINDOW_MAX = 2048 };

struct options {
  gr_cli_model m;
  gr_arg_list data;
  const char *ids, *format, *overlong;
  int64_t window;
  bool per_token, train_on_inputs, parse_special, strict, json;
};

/* Sums over all that was predicted. */
struct totals {
  double loss, error; /* error: standard error of the samples' mean, 0 when unknown */
  size_t tokens, sequences;
};

static void print_totals(const struct options *o, const struct totals *t)
{
  bool none = t->tokens == 0; /* then there is no mean of it either */
  if (o->json)
    gr_cli_json(json_pack("{s:o,s:o,s:I,s:I,s:f}", "loss", none ? json_null() : json_real(t->loss), "perplexity",
                          none || !isfinite(exp(t->loss)) ? json_null() : json_real(exp(t->loss)), "tokens", (json_int_t)t->tokens,
                          "samples", (json_int_t)t->sequences, "standard_error", t->error));
  else if (none) printf("nothing was to be predicted in %zu sequences of one token\n", t->sequences);
  else
    printf("loss %.6f, perplexity %.4f, over %zu tokens in %zu %s\n", t->loss, exp(t->loss), t->tokens, t->sequences,
           o->ids ? "sequences" : "samples");
}

/* ---- data ---- */

static gr_status choose_window(const struct options *o, int32_t *window, gr_error *e)
{
  int32_t context = gr_model_hparams(o->m.model)->context;
  if (o->window < -1 || o->window == 0 || o->window == 1 || o->window > 1 << 24)
    return gr_fail(e, GR_ERR_USAGE, "a window of %lld tokens is not possible: give at least 2 with -c", (long long)o->window);
  *window = o->window > 0 ? (int32_t)o->window : context < WINDOW_MAX ? context : WINDOW_MAX;
  if (*window > context && o->strict)
    return gr_fail(e, GR_ERR_USAGE, "the window of %d tokens is longer than the model's context of %d", *window, context);
  if (*window > context) fprintf(stderr, "note     the window of %d tokens is longer than the model's context of %d\n", *window, context);
  return GR_OK;
}

static gr_status read_data(const struct options *o, const gr_template *chat, int32_t window, gr_dataset **d, gr_error *e)
{
  gr_data_options options = { .tokenizer = gr_model_tokenizer(o->m.model),
                              .chat_template = chat,
                              .train_on_inputs = o->train_on_inputs,
                              .parse_special = o->parse_special,
                              .window = window };
  if (!gr_data_format_from_name(o->format, &options.format))
    return gr_fail(e, GR_ERR_USAGE, "there is no data format '%s'; graft data --help lists them", o->format);
  if (strcmp(o->overlong, "drop") == 0) options.overlong = GR_OVERLONG_DROP;
  else if (strcmp(o->overlong, "split") == 0) options.overlong = GR_OVERLONG_SPLIT;
  else if (strcmp(o->overlong, "truncate") != 0)
    return gr_fail(e, GR_ERR_USAGE, "overlong '%s' is not one of truncate, drop, split", o->overlong);
  for (size_t i = 0; i < o->data.n; i++) GR_TRY(gr_dataset_add(d, o->data.items[i], &options, e));
  for (const char *notes = gr_dataset_notes(*d); *notes;) {
    int n = (int)strcspn(notes, "\n");
    fprintf(stderr, "note     %.*s\n", n, notes);
    notes += n + (notes[n] == '\n');
  }
  return o->strict ? gr_dataset_check_strict(*d, e) : GR_OK;
}

static gr_status evaluate(const struct options *o, const gr_dataset *d, int32_t window, struct totals *t, gr_error *e)
{
  size_t n = gr_dataset_count(d), *all = gr_calloc(n, sizeof *all);
  if (!all) return gr_fail_memory(e, n * sizeof *all);
  for (size_t i = 0; i < n; i++) all[i] = i;
  gr_heldout held = { 0 };
  gr_step *step = NULL;
  gr_status s = gr_heldout_open(&held, d, all, n, window, e);
  gr_free(all);
  const gr_step_options so = { .tokens = held.longest,
                               .adapters = o->m.adapters,
                               .n_adapters = o->m.n_adapters,
                               .backends = o->m.backends,
                               .n_backends = o->m.n_backends,
                               .allow_ref = o->m.allow_ref };
  if (s == GR_OK) s = gr_step_plan(&step, o->m.model, NULL, &so, e);
  if (s == GR_OK) gr_cli_note_fallen(&o->m, gr_step_plan_of(step));
  if (s == GR_OK) s = gr_heldout_run(&held, step, NULL, NULL, e);
  size_t bad = 0;
  if (s == GR_ERR_NUMERIC && step && gr_step_bad_samples(step, &bad, 1) > 0) {
    const gr_sample *x = gr_dataset_at(d, bad);
    gr_error_context(e, "%s:%u", gr_dataset_path(d, x->file), x->line);
  }
  if (s == GR_OK) *t = (struct totals){ held.loss, gr_heldout_standard_error(&held), held.tokens, n };
  gr_step_free(step);
  gr_heldout_close(&held);
  return s;
}

static gr_status run_data(const struct options *o, struct totals *t, gr_error *e)
{
  gr_template *chat = NULL;
  gr_dataset *d = NULL;
  bool builtin = false;
  int32_t window = 0;
  gr_status s = choose_window(o, &window, e);
  if (s == GR_OK) s = gr_template_from_gguf(&chat, gr_model_file(o->m.model), NULL, &builtin, e);
  if (s == GR_OK) s = read_data(o, chat, window, &d, e);
  if (s == GR_OK) s = evaluate(o, d, window, t, e);
  gr_dataset_free(d);
  gr_template_free(chat);
  return s;
}

/* ---- ids ---- */

struct sequences {
  int32_t *ids;
  size_t n, cap;
  size_t *ends; /* of each sequence, in ids */
  size_t count, ends_cap;
  int32_t longest;
};

/* One line; blank ones are no sequence. */
static gr_status read_line(struct sequences *q, const char *line, size_t number, int32_t vocab, gr_error *e)
{
  size_t start = q->n;
  for (const char *p = line;;) {
    while (isspace((unsigned char)*p) || *p == ',' || *p == '[' || *p == ']') p++;
    if (!*p) break;
    char *end;
    errno = 0;
    long v = strtol(p, &end, 10);
    if (end == p || errno || v < 0 || v > INT32_MAX) return gr_fail(e, GR_ERR_FORMAT, "line %zu: '%.20s' is not a token id", number, p);
    if (v >= vocab) return gr_fail(e, GR_ERR_FORMAT, "line %zu: token id %ld is outside the vocabulary of %d", number, v, vocab);
    if (!gr_grow((void **)&q->ids, &q->cap, q->n + 1, sizeof *q->ids)) return gr_fail_memory(e, q->cap);
    q->ids[q->n++] = (int32_t)v;
    p = end;
  }
  if (q->n == start) return GR_OK;
  if (q->n - start > 1 << 24) return gr_fail(e, GR_ERR_FORMAT, "line %zu: %zu tokens are too many for one sequence", number, q->n - start);
  if (!gr_grow((void **)&q->ends, &q->ends_cap, q->count + 1, sizeof *q->ends)) return gr_fail_memory(e, q->ends_cap);
  q->ends[q->count++] = q->n;
  if ((int32_t)(q->n - start) > q->longest) q->longest = (int32_t)(q->n - start);
  return GR_OK;
}

static gr_status read_sequences(struct sequences *q, const char *path, int32_t vocab, gr_error *e)
{
  char *text = NULL;
  size_t size = 0, number = 1;
  GR_TRY(gr_file_read(path, (size_t)1 << 31, &text, &size, e));
  gr_status s = GR_OK;
  for (char *line = text; s == GR_OK && line < text + size; number++) {
    char *end = line + strcspn(line, "\n");
    *end = 0;
    s = read_line(q, line, number, vocab, e);
    line = end + 1;
  }
  gr_free(text);
  if (s == GR_OK && !q->count) s = gr_fail(e, GR_ERR_FORMAT, "there are no token ids: give one sequence a line");
  if (s != GR_OK) gr_error_context(e, "%s", path);
  return s;
}

static void print_tokens(const struct options *o, const int32_t *ids, int32_t n, const float *nll, const int32_t *greedy)
{
  if (!o->json) {
    for (int32_t i = 0; i < n; i++) {
      if (i + 1 < n) printf("%d after %d: nll %.6f, greedy %d\n", ids[i + 1], ids[i], (double)nll[i], greedy[i]);
      else printf("after %d: greedy %d\n", ids[i], greedy[i]);
    }
    return;
  }
  json_t *losses = json_array(), *choices = json_array();
  for (int32_t i = 0; i < n; i++) {
    if (i + 1 < n) json_array_append_new(losses, json_real((double)nll[i]));
    json_array_append_new(choices, json_integer(greedy[i]));
  }
  gr_cli_json(json_pack("{s:o,s:o}", "nll", losses, "greedy", choices));
}

static gr_status score_all(const struct options *o, const struct sequences *q, gr_session *session, float *nll, int32_t *greedy,
                           struct totals *t, gr_error *e)
{
  int32_t vocab = gr_model_hparams(o->m.model)->vocab;
  double sum = 0;
  for (size_t i = 0, from = 0; i < q->count; from = q->ends[i++]) {
    int32_t n = (int32_t)(q->ends[i] - from);
    gr_status s = gr_score(session, vocab, q->ids + from, n, nll, o->per_token ? greedy : NULL, e);
    if (s != GR_OK) return gr_error_context(e, "%s: sequence %zu", o->ids, i + 1);
    for (int32_t k = 0; k + 1 < n; k++) sum += (double)nll[k];
    t->tokens += (size_t)n - 1;
    t->sequences++;
    if (o->per_token) print_tokens(o, q->ids + from, n, nll, greedy);
  }
  t->loss = t->tokens ? sum / (double)t->tokens : 0;
  return GR_OK;
}

static gr_status run_ids(const struct options *o, struct totals *t, gr_error *e)
{
  struct sequences q = { 0 };
  gr_session *session = NULL;
  gr_status s = read_sequences(&q, o->ids, gr_model_hparams(o->m.model)->vocab, e);
  if (s == GR_OK && q.longest < 2 && !o->per_token)
    s = gr_fail(e, GR_ERR_FORMAT, "%s: there is nothing to predict: no line has two tokens", o->ids);
  float *nll = gr_calloc((size_t)q.longest, sizeof *nll);
  int32_t *greedy = gr_calloc((size_t)q.longest, sizeof *greedy), context = gr_model_hparams(o->m.model)->context;
  if (s == GR_OK && (!nll || !greedy)) s = gr_fail_memory(e, (size_t)q.longest * sizeof *nll);
  if (s == GR_OK && q.longest > context && o->strict)
    s = gr_fail(e, GR_ERR_USAGE, "a sequence of %d tokens is longer than the model's context of %d", q.longest, context);
  if (s == GR_OK && q.longest > context)
    fprintf(stderr, "note     a sequence of %d tokens is longer than the model's context of %d\n", q.longest, context);
  const gr_session_options so = { .context = q.longest,
                                  .batch = GR_SCORE_ROWS,
                                  .outputs = GR_SCORE_ROWS,
                                  .adapters = o->m.adapters,
                                  .n_adapters = o->m.n_adapters,
                                  .backends = o->m.backends,
                                  .n_backends = o->m.n_backends,
                                  .allow_ref = o->m.allow_ref };
  if (s == GR_OK) s = gr_session_open(&session, o->m.model, &so, e);
  if (s == GR_OK) gr_cli_note_fallen(&o->m, gr_session_plan_of(session, false));
  if (s == GR_OK) s = score_all(o, &q, session, nll, greedy, t, e);
  gr_session_close(session);
  gr_free(nll);
  gr_free(greedy);
  gr_free(q.ids);
  gr_free(q.ends);
  return s;
}

/* The whole base is read anyway, so that its hash is to be had. */
static gr_status check_bases(const struct options *o, gr_error *e)
{
  char hash[GR_HASH_TEXT] = "";
  bool named = false;
  for (size_t i = 0; i < o->m.n_adapters; i++) named |= gr_lora_names_base(o->m.adapters[i].lora);
  if (named) GR_TRY(gr_base_hash(gr_model_file(o->m.model), o->m.pool, hash, e));
  return gr_cli_check_bases(&o->m, named ? hash : NULL, o->strict, e);
}

static gr_status run(struct options *o, gr_error *e)
{
  struct totals t = { 0 };
  if (!o->data.n == !o->ids) return gr_fail(e, GR_ERR_USAGE, "give the data with -d FILE, or token ids with --ids FILE");
  if (o->per_token && !o->ids) return gr_fail(e, GR_ERR_USAGE, "--per-token goes with --ids");
  GR_TRY(gr_cli_model_open(&o->m, e));
  GR_TRY(check_bases(o, e));
  GR_TRY(o->ids ? run_ids(o, &t, e) : run_data(o, &t, e));
  print_totals(o, &t);
  return GR_OK;
}

int gr_cmd_eval(int argc, char **argv)
{
  struct options o = { .format = "auto", .overlong = "truncate", .window = -1 };
  const gr_arg args[] = {
    GR_CLI_MODEL_ARGS(o.m),
    { "-d --data --dataset --val-file --eval-data", GR_ARG_LIST, "FILE", "held-out data, as train takes it; may be repeated", &o.data,
      NULL },
    { "--ids", GR_ARG_TEXT, "FILE", "token ids, one sequence a line, instead of data", &o.ids, NULL },
    { "--per-token", GR_ARG_FLAG, NULL, "with --ids: nll of each token, and the most likely one in its place", &o.per_token, NULL },
    { "-c --window --max-seq-length --ctx-size", GR_ARG_INT, "N", "longest sample in tokens (default: 2048 or the model's context)",
      &o.window, NULL },
    { "--format --dataset-format", GR_ARG_TEXT, "NAME", "form of the records (default: found out)", &o.format, NULL },
    { "--overlong", GR_ARG_TEXT, "WHAT", "samples longer than the window: truncate (default), drop or split", &o.overlong, NULL },
    { "--train-on-inputs", GR_ARG_FLAG, NULL, "count the whole text, not only the assistant's", &o.train_on_inputs, NULL },
    { "--parse-special", GR_ARG_FLAG, NULL, "control tokens that text records spell are read as such (conversations: never)",
      &o.parse_special, NULL },
    { "--strict", GR_ARG_FLAG, NULL,
      "refuse what is otherwise a note: records or keys left out, text cut, equal samples, control tokens in text", &o.strict, NULL },
    { "--json", GR_ARG_FLAG, NULL, "JSON on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL, "usage: graft eval -m MODEL [--lora ADAPTER] -d FILE | --ids FILE [options]", &status))
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  gr_arg_list_free(&o.data);
  gr_cli_model_close(&o.m);
  return status;
}
