/* Files to samples: lines to records, records to conversations, conversations to tokens with weights. */
#include "text/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/records.h"

struct gr_dataset {
  gr_sample *samples;
  size_t n, cap;
  char **paths;
  size_t n_paths, paths_cap;
  gr_data_counts counts;
  gr_data_format format;
  gr_buf notes;
  size_t bytes;
  uint64_t hash;
  uint64_t *seen; /* open-addressed set of sample hashes, for duplicates */
  size_t seen_cap;
};

/* One file being read. */
struct reader {
  gr_dataset *d;
  const gr_data_options *o;
  const char *path;
  gr_data_format format;
  uint32_t file, line;
  size_t learned; /* samples of this file that hold a trained token */
  gr_tokens tokens;
  gr_trusted_span *trusted;
  size_t trusted_cap;
};

static gr_status at_line(const struct reader *r, gr_error *e)
{
  gr_error_context(e, "%s:%u", r->path, r->line);
  return e ? e->status : GR_ERR_FORMAT;
}

/* ---- notes ---- */

static void note(struct reader *r, size_t before, const char *what)
{
  if (before) return;
  gr_buf_printf(&r->d->notes, "%s%s:%u: %s", r->d->notes.len ? "\n" : "", r->path, r->line, what);
}

/* ---- samples ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
  h = (h ^ x) * 0xff51afd7ed558ccdu;
  return h ^ h >> 32;
}

static uint64_t sample_hash(const int32_t *ids, const float *weights, int32_t n)
{
  uint64_t h = mix(0x67726166u, (uint64_t)n);
  for (int32_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &weights[i], sizeof bits);
    h = mix(h, (uint64_t)(uint32_t)ids[i] << 32 | bits);
  }
  return h | 1;
}

static bool grow_seen(gr_dataset *d)
{
  if (d->n * 2 < d->seen_cap) return true;
  size_t cap = d->seen_cap ? 2 * d->seen_cap : 1024;
  uint64_t *bigger = gr_calloc(cap, sizeof *bigger);
  if (!bigger) return false;
  for (size_t i = 0; i < d->seen_cap; i++)
    if (d->seen[i]) {
      size_t at = d->seen[i] % cap;
      while (bigger[at]) at = (at + 1) % cap;
      bigger[at] = d->seen[i];
    }
  gr_free(d->seen);
  d->seen = bigger;
  d->seen_cap = cap;
  return true;
}

static bool seen_before(gr_dataset *d, uint64_t h)
{
  size_t at = h % d->seen_cap;
  while (d->seen[at] && d->seen[at] != h) at = (at + 1) % d->seen_cap;
  bool was = d->seen[at] == h;
  d->seen[at] = h;
  return was;
}

static gr_status add_sample(struct reader *r, const int32_t *ids, const float *weights, int32_t n, uint32_t piece, gr_error *e)
{
  gr_dataset *d = r->d;
  char *block = gr_alloc((size_t)n * 8);
  if (!block || !grow_seen(d) || !gr_grow((void **)&d->samples, &d->cap, d->n + 1, sizeof *d->samples)) {
    gr_free(block);
    return gr_fail_memory(e, (size_t)n * 8);
  }
  gr_sample *s = &d->samples[d->n++];
  *s = (gr_sample){ .ids = (int32_t *)(void *)block,
                    .weights = (float *)(void *)(block + 4 * (size_t)n),
                    .n = n,
                    .record = (uint32_t)d->counts.records,
                    .piece = piece,
                    .file = r->file,
                    .line = r->line };
  memcpy(s->ids, ids, (size_t)n * 4);
  memcpy(s->weights, weights, (size_t)n * 4);
  s->weights[0] = 0;
  uint64_t h = sample_hash(s->ids, s->weights, n);
  if (seen_before(d, h)) {
    note(r, d->counts.duplicates, "the same as an earlier sample");
    d->counts.duplicates++;
  }
  d->hash = mix(d->hash, h);
  d->bytes += (size_t)n * 8 + sizeof *s;
  d->counts.samples++;
  d->counts.tokens += (size_t)n;
  size_t trained = 0;
  for (int32_t i = 0; i < n; i++) trained += s->weights[i] > 0;
  d->counts.tokens_trained += trained;
  r->learned += trained > 0;
  return GR_OK;
}

static size_t count_trained(const float *weights, int32_t from, int32_t to)
{
  size_t n = 0;
  for (int32_t i = from + 1; i < to; i++) n += weights[i] > 0; /* a piece's first token is not predicted */
  return n;
}

static gr_status keep(struct reader *r, const int32_t *ids, const float *weights, int32_t n, gr_error *e)
{
  gr_data_counts *c = &r->d->counts;
  int32_t window = r->o->window;
  if (n > window && r->o->overlong == GR_OVERLONG_DROP) {
    note(r, c->dropped_long++, "longer than the window: dropped");
    return GR_OK;
  }
  if (n > window && r->o->overlong == GR_OVERLONG_TRUNCATE) {
    note(r, c->truncated++, "longer than the window: cut at its end");
    n = window;
  }
  if (n > window) note(r, c->split++, "longer than the window: split");
  if (n < 2 || count_trained(weights, 0, n) == 0) {
    note(r, c->dropped_empty++, "nothing in it is trained: dropped");
    return GR_OK;
  }
  for (int32_t at = 0, piece = 0; at < n; at += window, piece++) {
    int32_t end = n - at < window ? n : at + window;
    if (count_trained(weights, at, end)) GR_TRY(add_sample(r, ids + at, weights + at, end - at, (uint32_t)piece, e));
  }
  return GR_OK;
}

/* ---- conversations ---- */

static gr_status trusted_spans(struct reader *r, const gr_rendered *text, size_t *n, gr_error *e)
{
  *n = 0;
  for (size_t i = 0; i < text->n_runs;) {
    size_t end = gr_rendered_stretch(text, i);
    if (text->runs[i].control) {
      if (!gr_grow((void **)&r->trusted, &r->trusted_cap, *n + 1, sizeof *r->trusted)) return gr_fail_memory(e, r->trusted_cap);
      r->trusted[(*n)++] = (gr_trusted_span){ text->runs[i].start, text->runs[end - 1].end };
    }
    i = end;
  }
  return GR_OK;
}

/* Weights of the tokens whose first byte lies in a span. */
static gr_status weigh(struct reader *r, const json_t *messages, const gr_chat_spans *spans, double record_weight, float *weights,
                       gr_error *e)
{
  size_t k = 0;
  for (size_t i = 0; i < r->tokens.count; i++) {
    size_t at = r->tokens.at[i];
    while (k < spans->count && spans->items[k].end <= at) k++;
    if (k == spans->count || at < spans->items[k].start || r->tokens.length[i] == 0) continue;
    double w = 1;
    GR_TRY(gr_message_weight(json_array_get(messages, spans->items[k].message), &w, e));
    weights[i] = (float)(w * record_weight);
  }
  return GR_OK;
}

static void lint(struct reader *r, const gr_chat_spans *spans)
{
  gr_data_counts *c = &r->d->counts;
  const gr_tokenizer *t = r->o->tokenizer;
  int32_t bos = gr_tokenizer_role(t, GR_ROLE_BOS);
  if (spans && spans->count && !spans->items[spans->count - 1].closed)
    note(r, c->end_not_trained++, "the end of the last turn is not trained: the model would not learn to stop");
  if (r->tokens.count > 1 && bos >= 0 && r->tokens.ids[0] == bos && r->tokens.ids[1] == bos)
    note(r, c->doubled_bos++, "begins with two BOS tokens");
  if (spans && spans->dropped) {
    note(r, c->thinking_dropped, "the chat template drops the reasoning of an earlier turn");
    c->thinking_dropped += spans->dropped;
  }
}

/* What ends a turn: the texts of the end-of-generation tokens. */
enum { ENDS_MAX = 64 };
static size_t turn_ends(const gr_tokenizer *t, char **ends)
{
  size_t n = 0;
  for (size_t id = 0; id < gr_tokenizer_vocab_size(t) && n < ENDS_MAX; id++) {
    if (!gr_tokenizer_is_eog(t, (int32_t)id)) continue;
    gr_text_view v = gr_tokenizer_text(t, (int32_t)id);
    ends[n] = gr_strndup(v.data, v.len);
    n += ends[n] != NULL;
  }
  return n;
}

static gr_status render_options(const struct reader *r, const gr_conversation *c, char **bos, char **eos, gr_render_options *o, gr_error *e)
{
  const gr_tokenizer *t = r->o->tokenizer;
  gr_text_view b = gr_tokenizer_text(t, gr_tokenizer_role(t, GR_ROLE_BOS)), s = gr_tokenizer_text(t, gr_tokenizer_role(t, GR_ROLE_EOS));
  *bos = gr_strndup(b.data ? b.data : "", b.len);
  *eos = gr_strndup(s.data ? s.data : "", s.len);
  if (!*bos || !*eos) return gr_fail_memory(e, b.len + s.len);
  *o = (gr_render_options){ .tools = c->tools,
                            .variables = r->o->variables,
                            .bos_token = *bos,
                            .eos_token = *eos,
                            .parse_tool_arguments = r->o->parse_tool_arguments };
  return GR_OK;
}

static gr_status conversation(struct reader *r, const gr_conversation *c, gr_error *e)
{
  gr_rendered text = { 0 };
  gr_chat_spans spans = { 0 };
  gr_render_options o;
  char *bos = NULL, *eos = NULL, *ends[ENDS_MAX];
  size_t n_ends = turn_ends(r->o->tokenizer, ends), n_trusted = 0;
  float *weights = NULL;
  gr_status s = render_options(r, c, &bos, &eos, &o, e);
  if (s == GR_OK) s = gr_template_render(r->o->chat_template, c->messages, &o, &text, e);
  if (s == GR_OK && !r->o->train_on_inputs)
    s = gr_chat_locate(r->o->chat_template, c->messages, &o, &text, (const char *const *)ends, n_ends, &spans, e);
  if (s == GR_OK) s = trusted_spans(r, &text, &n_trusted, e);
  if (s == GR_OK)
    s = gr_tokenizer_encode_spans(r->o->tokenizer, text.text, text.len, r->trusted, n_trusted, GR_ENCODE_SPECIAL | GR_ENCODE_ONE_BOS,
                                  &r->tokens, e);
  if (s == GR_OK) {
    weights = gr_calloc(r->tokens.count, sizeof *weights);
    if (!weights) s = gr_fail_memory(e, r->tokens.count * sizeof *weights);
  }
  for (size_t i = 0; s == GR_OK && r->o->train_on_inputs && i < r->tokens.count; i++) weights[i] = (float)c->weight;
  if (s == GR_OK && !r->o->train_on_inputs) s = weigh(r, c->messages, &spans, c->weight, weights, e);
  if (s == GR_OK) {
    lint(r, r->o->train_on_inputs ? NULL : &spans);
    s = keep(r, r->tokens.ids, weights, (int32_t)r->tokens.count, e);
  }
  gr_free(weights);
  for (size_t i = 0; i < n_ends; i++) gr_free(ends[i]);
  gr_free(bos);
  gr_free(eos);
  gr_chat_spans_free(&spans);
  gr_rendered_free(&text);
  return s;
}

/* Bare text is all trained; a document ends with EOS, so that its end is learned too. */
static gr_status bare_text(struct reader *r, const char *text, size_t n, double weight, bool document, gr_error *e)
{
  const gr_tokenizer *t = r->o->tokenizer;
  int32_t eos = gr_tokenizer_role(t, GR_ROLE_EOS);
  GR_TRY(gr_tokenizer_encode(t, text, n, GR_ENCODE_SPECIAL, &r->tokens, e));
  size_t count = r->tokens.count;
  bool ended = !document || eos < 0 || (count && r->tokens.ids[count - 1] == eos);
  int32_t *ids = gr_alloc((count + 1) * sizeof *ids);
  float *weights = gr_alloc((count + 1) * sizeof *weights);
  gr_status s = ids && weights ? GR_OK : gr_fail_memory(e, count * 8);
  if (s == GR_OK) {
    if (count) memcpy(ids, r->tokens.ids, count * sizeof *ids);
    if (!ended) ids[count++] = eos;
    for (size_t i = 0; i < count; i++) weights[i] = (float)weight;
    lint(r, NULL);
    if (document) s = keep(r, ids, weights, (int32_t)count, e);
    for (size_t at = 0; !document && s == GR_OK && at + 1 < count; at += (size_t)r->o->window) {
      int32_t take = (int32_t)(count - at < (size_t)r->o->window ? count - at : (size_t)r->o->window);
      if (take < 2) break;
      s = add_sample(r, ids + at, weights + at, take, (uint32_t)(at / (size_t)r->o->window), e);
      r->d->counts.records++;
    }
  }
  gr_free(ids);
  gr_free(weights);
  return s;
}

static gr_status record(struct reader *r, const json_t *json, gr_error *e)
{
  if (r->format == GR_DATA_AUTO) r->format = gr_record_format(json);
  gr_conversation c;
  GR_TRY(gr_record_read(json, r->format, &c, e));
  gr_status s = c.messages ? conversation(r, &c, e) : bare_text(r, c.text, c.text_len, c.weight, true, e);
  gr_conversation_free(&c);
  if (s == GR_OK) r->d->counts.records++;
  return s;
}

/* ---- files ---- */

static const unsigned char *skip_space(const unsigned char *p, const unsigned char *end)
{
  while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++;
  return p;
}

enum { JSON_FLAGS = JSON_ALLOW_NUL };

static gr_status bad_json(const struct reader *r, const json_error_t *why, gr_error *e)
{
  return gr_fail(e, GR_ERR_FORMAT, "%s:%u: not a JSON record: %s (column %d)", r->path, r->line, why->text, why->column);
}

static gr_status read_lines(struct reader *r, const unsigned char *p, const unsigned char *end, gr_error *e)
{
  for (; p < end; r->line++) {
    const unsigned char *stop = memchr(p, '\n', (size_t)(end - p)), *next = stop ? stop + 1 : end;
    if (!stop) stop = end;
    const unsigned char *from = skip_space(p, stop);
    p = next;
    if (from == stop) continue;
    json_error_t why;
    json_t *json = json_loadb((const char *)from, (size_t)(stop - from), JSON_FLAGS, &why);
    if (!json) return bad_json(r, &why, e);
    gr_status s = record(r, json, e);
    json_decref(json);
    if (s != GR_OK) return at_line(r, e);
  }
  return GR_OK;
}

/* A list of records: line numbers are those of the list's elements, counted from 1. */
static gr_status read_array(struct reader *r, const unsigned char *p, const unsigned char *end, gr_error *e)
{
  json_error_t why;
  json_t *all = json_loadb((const char *)p, (size_t)(end - p), JSON_FLAGS, &why);
  if (!all) {
    r->line = why.line > 0 ? (uint32_t)why.line : 1;
    return bad_json(r, &why, e);
  }
  gr_status s = GR_OK;
  for (size_t i = 0; i < json_array_size(all) && s == GR_OK; i++) {
    r->line = (uint32_t)i + 1;
    s = record(r, json_array_get(all, i), e);
    if (s != GR_OK) gr_error_context(e, "%s: record %zu", r->path, i + 1);
  }
  json_decref(all);
  return s;
}

static gr_status read_file(struct reader *r, const gr_map *m, gr_error *e)
{
  const unsigned char *p = m->data, *end = p + m->size;
  if (m->size >= 2 && ((p[0] == 0xff && p[1] == 0xfe) || (p[0] == 0xfe && p[1] == 0xff)))
    return gr_fail(e, GR_ERR_FORMAT, "%s is UTF-16: save it as UTF-8", r->path);
  if (m->size >= 3 && p[0] == 0xef && p[1] == 0xbb && p[2] == 0xbf) p += 3;
  const unsigned char *first = skip_space(p, end);
  if (first == end) return gr_fail(e, GR_ERR_FORMAT, "%s is empty", r->path);
  if (r->format == GR_DATA_PLAIN || (r->format == GR_DATA_AUTO && *first != '{' && *first != '[')) {
    r->format = GR_DATA_PLAIN;
    return bare_text(r, (const char *)p, (size_t)(end - p), 1, false, e);
  }
  return *first == '[' ? read_array(r, p, end, e) : read_lines(r, p, end, e);
}

static gr_status add_path(gr_dataset *d, const char *path, gr_error *e)
{
  char *copy = gr_strdup(path);
  if (!copy || !gr_grow((void **)&d->paths, &d->paths_cap, d->n_paths + 1, sizeof(char *))) {
    gr_free(copy);
    return gr_fail_memory(e, strlen(path));
  }
  d->paths[d->n_paths++] = copy;
  return GR_OK;
}

gr_status gr_dataset_add(gr_dataset **out, const char *path, const gr_data_options *o, gr_error *e)
{
  gr_dataset *d = *out ? *out : gr_calloc(1, sizeof *d);
  if (!d) return gr_fail_memory(e, sizeof *d);
  *out = d;
  GR_TRY(add_path(d, path, e));
  struct reader r = { .d = d, .o = o, .path = path, .format = o->format, .file = (uint32_t)d->n_paths - 1, .line = 1 };
  gr_map m = { 0 };
  gr_status s = gr_map_open(&m, path, e);
  if (s == GR_OK) s = read_file(&r, &m, e);
  gr_map_close(&m);
  gr_tokens_free(&r.tokens);
  gr_free(r.trusted);
  if (s == GR_OK && r.learned == 0) s = gr_fail(e, GR_ERR_FORMAT, "%s holds nothing to learn: no record has a trained token", path);
  if (s == GR_OK && d->n_paths == 1) d->format = r.format;
  return s;
}

void gr_dataset_free(gr_dataset *d)
{
  if (!d) return;
  for (size_t i = 0; i < d->n; i++) gr_free(d->samples[i].ids);
  for (size_t i = 0; i < d->n_paths; i++) gr_free(d->paths[i]);
  gr_free(d->samples);
  gr_free(d->paths);
  gr_free(d->seen);
  gr_buf_free(&d->notes);
  gr_free(d);
}

size_t gr_dataset_count(const gr_dataset *d) { return d->n; }
const gr_sample *gr_dataset_at(const gr_dataset *d, size_t i) { return &d->samples[i]; }
const gr_data_counts *gr_dataset_counts(const gr_dataset *d) { return &d->counts; }
gr_data_format gr_dataset_format(const gr_dataset *d) { return d->format; }
const char *gr_dataset_path(const gr_dataset *d, uint32_t file) { return d->paths[file]; }
const char *gr_dataset_notes(const gr_dataset *d) { return d->notes.data ? d->notes.data : ""; }
size_t gr_dataset_bytes(const gr_dataset *d) { return d->bytes + d->seen_cap * sizeof *d->seen; }
uint64_t gr_dataset_hash(const gr_dataset *d) { return d->hash; }
