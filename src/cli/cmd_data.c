/* graft data: what training would see of a data set: counts, lints, and samples with the trained tokens marked. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "cli/cli.h"
#include "text/dataset.h"

struct options {
  const char *model, *format, *overlong, *color;
  gr_arg_list data;
  int64_t window, show;
  bool train_on_inputs, parse_special, pack, strict, json;
};

struct view {
  const gr_tokenizer *tokenizer;
  const gr_dataset *data;
  const struct options *o;
  bool color;
};

/* ---- samples ---- */

/* Bytes of data are not for the terminal to obey: control characters are spelled out, line ends and tabs are themselves. */
static void print_bytes(const char *text, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if ((c < 32 && c != '\n' && c != '\t') || c == 127) printf("\\x%02x", c);
    else putchar(c);
  }
}

static void begin_trained(const struct view *v, float weight)
{
  if (v->color) fputs(weight == 1 ? "\033[30;42m" : "\033[30;43m", stdout);
  else fputs("[[", stdout);
  if (weight != 1) printf("%g:", (double)weight);
}

static void end_trained(const struct view *v) { fputs(v->color ? "\033[0m" : "]]", stdout); }

static gr_status print_sample(const struct view *v, const gr_sample *x, gr_error *e)
{
  gr_buf piece = { 0 };
  gr_decoder decoder = gr_decoder_start(v->tokenizer, GR_DECODE_CONTROL | GR_DECODE_CONTINUES);
  float open = 0;
  gr_status s = GR_OK;
  printf("--- %s:%u", gr_dataset_path(v->data, x->file), x->line);
  if (x->piece) printf(" (piece %u)", x->piece + 1);
  printf(", %d tokens\n", x->n);
  for (int32_t i = 0; i < x->n && s == GR_OK; i++) {
    if (x->weights[i] != open && open > 0) end_trained(v);
    if (x->weights[i] != open && x->weights[i] > 0) begin_trained(v, x->weights[i]);
    open = x->weights[i];
    gr_buf_clear(&piece);
    s = gr_decoder_push(&decoder, x->ids[i], &piece, e);
    print_bytes(piece.data ? piece.data : "", piece.len);
  }
  if (open > 0) end_trained(v);
  putchar('\n');
  gr_buf_free(&piece);
  return s;
}

static void sample_json(const struct view *v, const gr_sample *x)
{
  json_t *ids = json_array(), *weights = json_array();
  const char *path = gr_dataset_path(v->data, x->file);
  for (int32_t i = 0; i < x->n; i++) {
    json_array_append_new(ids, json_integer(x->ids[i]));
    json_array_append_new(weights, json_real((double)x->weights[i]));
  }
  gr_cli_json(json_pack("{s:s,s:o,s:i,s:i,s:i,s:o,s:o}", "event", "sample", "file", gr_cli_json_text(path, strlen(path)), "line",
                        (int)x->line, "record", (int)x->record, "piece", (int)x->piece, "ids", ids, "weights", weights));
}

/* ---- summary ---- */

static int by_value(const void *a, const void *b)
{
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return x < y ? -1 : x > y;
}

/* Lengths at 0, 50, 90, 99 and 100 per cent of the samples. */
enum { RANKS = 5 };
static const int ranks[RANKS] = { 0, 50, 90, 99, 100 };

struct summary {
  int32_t lengths[RANKS];
  size_t windows;
  double fill;
  int32_t window;
};

static gr_status summarize(const struct view *v, struct summary *m, gr_error *e)
{
  size_t n = gr_dataset_count(v->data);
  int32_t *lengths = gr_calloc(n, sizeof *lengths);
  size_t *indices = gr_calloc(n, sizeof *indices);
  gr_packing p = { 0 };
  gr_status s = lengths && indices ? GR_OK : gr_fail_memory(e, n * sizeof *indices);
  for (size_t i = 0; s == GR_OK && i < n; i++) {
    lengths[i] = gr_dataset_at(v->data, i)->n;
    indices[i] = i;
  }
  if (s == GR_OK) s = gr_pack(&p, v->data, indices, n, m->window, v->o->pack, e);
  if (s == GR_OK) {
    qsort(lengths, n, sizeof *lengths, by_value);
    for (int i = 0; i < RANKS; i++) m->lengths[i] = lengths[ranks[i] ? (n * (size_t)ranks[i] + 99) / 100 - 1 : 0];
    m->windows = p.n_windows;
    m->fill = p.fill;
  }
  gr_packing_free(&p);
  gr_free(lengths);
  gr_free(indices);
  return s;
}

static void print_summary(const struct view *v, const struct summary *m)
{
  const gr_data_counts *c = gr_dataset_counts(v->data);
  printf("format:    %s%s\n", gr_data_format_name(gr_dataset_format(v->data)), strcmp(v->o->format, "auto") ? "" : " (found out)");
  printf("records:   %zu\nsamples:   %zu\n", c->records, c->samples);
  printf("tokens:    %zu, %zu of them trained (%.1f %%)\n", c->tokens, c->tokens_trained,
         100.0 * (double)c->tokens_trained / (double)c->tokens);
  printf("lengths:   %d to %d tokens; half up to %d, 90 %% up to %d, 99 %% up to %d\n", m->lengths[0], m->lengths[4], m->lengths[1],
         m->lengths[2], m->lengths[3]);
  printf("%s %zu window%s of %d tokens, %.1f %% full\n", v->o->pack ? "packing:  " : "unpacked: ", m->windows, m->windows == 1 ? "" : "s",
         m->window, 100 * m->fill);
}

static void summary_json(const struct view *v, const struct summary *m, const gr_error *fatal)
{
  const gr_data_counts *c = gr_dataset_counts(v->data);
  json_t *events = json_object(), *lengths = json_object(), *notes = json_array();
  for (int i = 0; i < GR_DATA_EVENTS; i++)
    json_object_set_new(events, gr_data_event_name((gr_data_event)i), json_integer((json_int_t)c->events[i]));
  for (int i = 0; i < RANKS; i++) {
    char name[8];
    snprintf(name, sizeof name, "p%d", ranks[i]);
    json_object_set_new(lengths, name, json_integer(m->lengths[i]));
  }
  for (const char *p = gr_dataset_notes(v->data); *p;) {
    size_t n = strcspn(p, "\n");
    json_array_append_new(notes, gr_cli_json_text(p, n));
    p += n + (p[n] == '\n');
  }
  json_t *all =
      json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:I,s:f}", "event", "data", "format", gr_data_format_name(gr_dataset_format(v->data)),
                "records", (json_int_t)c->records, "samples", (json_int_t)c->samples, "tokens", (json_int_t)c->tokens, "tokens_trained",
                (json_int_t)c->tokens_trained, "tokens_cut", (json_int_t)c->tokens_cut, "tokens_cut_trained",
                (json_int_t)c->tokens_cut_trained, "window", m->window, "windows", (json_int_t)m->windows, "fill", m->fill);
  json_object_set_new(all, "lengths", lengths);
  json_object_set_new(all, "events", events);
  json_object_set_new(all, "notes", notes);
  json_object_set_new(all, "fatal", fatal ? gr_cli_json_text(fatal->text, strlen(fatal->text)) : json_null());
  gr_cli_json(all);
}

static gr_status show(const struct view *v, int32_t window, gr_error *e)
{
  struct summary m = { .window = window };
  gr_error fatal = { 0 };
  GR_TRY(summarize(v, &m, e));
  for (size_t i = 0; i < gr_dataset_count(v->data) && i < (size_t)v->o->show; i++) {
    if (v->o->json) sample_json(v, gr_dataset_at(v->data, i));
    else GR_TRY(print_sample(v, gr_dataset_at(v->data, i), e));
  }
  bool bad = gr_dataset_check(v->data, &fatal) != GR_OK || (v->o->strict && gr_dataset_check_strict(v->data, &fatal) != GR_OK);
  if (v->o->json) summary_json(v, &m, bad ? &fatal : NULL);
  else print_summary(v, &m);
  gr_cli_flush();
  fprintf(stderr, "%s\n", gr_dataset_notes(v->data));
  return bad ? gr_fail(e, fatal.status, "%s", fatal.text) : GR_OK;
}

/* ---- the command ---- */

/* As for training: the smaller of 2048 and the model's context. */
static gr_status choose_window(const struct options *o, const gr_gguf *g, int32_t *window, gr_error *e)
{
  gr_gguf_str arch = { "", 0 };
  gr_buf key = { 0 };
  uint64_t context = 2048;
  GR_TRY(gr_gguf_string(g, "general.architecture", GR_GGUF_OPTIONAL, &arch, e));
  gr_buf_printf(&key, "%.*s.context_length", (int)arch.len, arch.data);
  gr_status s = key.failed ? gr_fail_memory(e, arch.len) : gr_gguf_u64(g, key.data, GR_GGUF_OPTIONAL, 1, UINT32_MAX, &context, e);
  gr_buf_free(&key);
  if (s != GR_OK) return s;
  int64_t chosen = o->window > 0 ? o->window : context < 2048 ? (int64_t)context : 2048;
  if (o->window == 0 || o->window < -1 || chosen < 2 || chosen > (1 << 24))
    return gr_fail(e, GR_ERR_USAGE, "a window of %lld tokens is not possible: give at least 2 with -c",
                   (long long)(o->window == -1 ? chosen : o->window));
  if ((uint64_t)chosen > context && o->strict)
    return gr_fail(e, GR_ERR_USAGE, "the window of %lld tokens is longer than the model's context of %llu", (long long)chosen,
                   (unsigned long long)context);
  if ((uint64_t)chosen > context)
    fprintf(stderr, "the window of %lld tokens is longer than the model's context of %llu\n", (long long)chosen,
            (unsigned long long)context);
  *window = (int32_t)chosen;
  return GR_OK;
}

static gr_status choose_color(const struct options *o, bool *color, gr_error *e)
{
  const char *no = getenv("NO_COLOR");
  if (strcmp(o->color, "always") == 0) *color = true;
  else if (strcmp(o->color, "never") == 0) *color = false;
  else if (strcmp(o->color, "auto") == 0) *color = isatty(1) && !(no && *no);
  else return gr_fail(e, GR_ERR_USAGE, "--color takes auto, always or never, not '%s'", o->color);
  return GR_OK;
}

static gr_status data_options(const struct options *o, gr_data_options *d, gr_error *e)
{
  static const char *const policies[] = { [GR_OVERLONG_TRUNCATE] = "truncate", [GR_OVERLONG_DROP] = "drop", [GR_OVERLONG_SPLIT] = "split" };
  int policy = 0;
  if (!o->model) return gr_fail(e, GR_ERR_USAGE, "give the model with -m FILE: its vocabulary and chat template make the samples");
  if (o->data.n == 0) return gr_fail(e, GR_ERR_USAGE, "give the data with -d FILE");
  if (o->show < 0) return gr_fail(e, GR_ERR_USAGE, "--show takes a number of samples, not %lld", (long long)o->show);
  if (!gr_data_format_from_name(o->format, &d->format))
    return gr_fail(e, GR_ERR_USAGE, "--format takes auto, messages, prompt, qa, alpaca, sharegpt, text or plain, not '%s'", o->format);
  while (policy <= GR_OVERLONG_SPLIT && strcmp(policies[policy], o->overlong)) policy++;
  if (policy > GR_OVERLONG_SPLIT) return gr_fail(e, GR_ERR_USAGE, "--overlong takes truncate, drop or split, not '%s'", o->overlong);
  d->overlong = (gr_overlong)policy;
  d->train_on_inputs = o->train_on_inputs;
  d->parse_special = o->parse_special;
  return GR_OK;
}

static gr_status run(const struct options *o, gr_error *e)
{
  struct view v = { .o = o };
  gr_data_options d = { 0 };
  gr_gguf *file = NULL;
  gr_tokenizer *tokenizer = NULL;
  gr_template *chat = NULL;
  gr_dataset *data = NULL;
  bool builtin = false;
  GR_TRY(data_options(o, &d, e));
  GR_TRY(choose_color(o, &v.color, e));
  gr_status s = gr_cli_vocabulary_open(o->model, &file, &tokenizer, e);
  if (s == GR_OK) s = gr_template_from_gguf(&chat, file, NULL, &builtin, e);
  if (s == GR_OK) s = choose_window(o, file, &d.window, e);
  if (s == GR_OK && builtin) fprintf(stderr, "the model has no chat template: conversations are written by %s\n", gr_template_name(chat));
  d.tokenizer = v.tokenizer = tokenizer;
  d.chat_template = chat;
  for (size_t i = 0; s == GR_OK && i < o->data.n; i++) s = gr_dataset_add(&data, o->data.items[i], &d, e);
  v.data = data;
  if (s == GR_OK) s = show(&v, d.window, e);
  gr_dataset_free(data);
  gr_template_free(chat);
  gr_tokenizer_free(tokenizer);
  gr_gguf_close(file);
  return s;
}

int gr_cmd_data(int argc, char **argv)
{
  struct options o = { .format = "auto", .overlong = "truncate", .color = "auto", .window = -1, .pack = true };
  const gr_arg args[] = {
    { "-m --model --base-model", GR_ARG_TEXT, "FILE", "a GGUF file with a vocabulary (and a chat template)", &o.model, NULL },
    { "-d --data --dataset", GR_ARG_LIST, "FILE", "JSONL, JSON or plain text, - for standard input; may be repeated", &o.data, NULL },
    { "--format --dataset-format", GR_ARG_TEXT, "NAME",
      "messages, prompt, qa, alpaca, sharegpt, text, plain, or auto (default: found out and said)", &o.format, NULL },
    { "-c --window --max-seq-length --cutoff-len", GR_ARG_INT, "N",
      "longest sample in tokens (default: the smaller of 2048 and the context)", &o.window, NULL },
    { "--overlong", GR_ARG_TEXT, "WHAT", "longer samples: truncate (default), drop, split", &o.overlong, NULL },
    { "--train-on-inputs", GR_ARG_FLAG, NULL, "train all tokens, not the assistant's alone", &o.train_on_inputs, NULL },
    { "--packing --pack", GR_ARG_FLAG, NULL, "several samples a window (default; --no-packing: one)", &o.pack, NULL },
    { "--parse-special", GR_ARG_FLAG, NULL, "control tokens that text records spell are read as such (conversations: never)",
      &o.parse_special, NULL },
    { "--strict", GR_ARG_FLAG, NULL,
      "refuse what is otherwise a note: records or keys left out, text cut, equal samples, control tokens in text", &o.strict, NULL },
    { "--show", GR_ARG_INT, "N", "print the first N samples, the trained tokens coloured or in [[ ]]", &o.show, NULL },
    { "--color", GR_ARG_TEXT, "WHEN", "auto (default), always, never", &o.color, NULL },
    { "--json", GR_ARG_FLAG, NULL, "one JSON object a line on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL, "usage: graft data -m MODEL -d DATA [options]", &status))
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  gr_arg_list_free(&o.data);
  return status;
}
