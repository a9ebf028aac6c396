/* One record to samples: rendered and tokenized once, whole; weighed by spans; cut to the window. */
#include <string.h>

#include "base/alloc.h"
#include "text/dataset_impl.h"

/* ---- what is the same for all records of a file ---- */

static gr_status copy_text(const gr_tokenizer *t, int32_t id, char **out, gr_error *e)
{
  gr_text_view v = gr_tokenizer_text(t, id);
  *out = gr_strndup(v.data ? v.data : "", v.len);
  return *out ? GR_OK : gr_fail_memory(e, v.len);
}

static gr_status push_text(const gr_tokenizer *t, int32_t id, char ***items, size_t *n, size_t *cap, gr_error *e)
{
  if (gr_tokenizer_text(t, id).len == 0) return GR_OK;
  if (!gr_grow((void **)items, cap, *n + 1, sizeof **items)) return gr_fail_memory(e, *cap * sizeof **items);
  GR_TRY(copy_text(t, id, &(*items)[*n], e));
  ++*n;
  return GR_OK;
}

gr_status gr_data_reader_open(data_reader *r, gr_error *e)
{
  const gr_tokenizer *t = r->o->tokenizer;
  for (int32_t id = 0; (size_t)id < gr_tokenizer_vocab_size(t); id++) {
    if (gr_tokenizer_is_eog(t, id)) GR_TRY(push_text(t, id, &r->ends, &r->n_ends, &r->ends_cap, e));
    if (!gr_tokenizer_is_control(t, id)) continue;
    GR_TRY(push_text(t, id, &r->controls, &r->n_controls, &r->controls_cap, e));
    if (gr_tokenizer_text(t, id).len) r->control_start[(unsigned char)gr_tokenizer_text(t, id).data[0]] = true;
  }
  GR_TRY(copy_text(t, gr_tokenizer_role(t, GR_ROLE_BOS), &r->bos, e));
  GR_TRY(copy_text(t, gr_tokenizer_role(t, GR_ROLE_EOS), &r->eos, e));
  r->render = (gr_render_options){ .variables = r->o->variables, .bos_token = r->bos, .eos_token = r->eos };
  if (!r->o->chat_template) return GR_OK;
  GR_TRY(gr_tool_support_probe(&r->support, r->o->chat_template, &r->render, e));
  r->render.parse_tool_arguments = r->support.parse_arguments;
  return GR_OK;
}

void gr_data_reader_close(data_reader *r)
{
  for (size_t i = 0; i < r->n_ends; i++) gr_free(r->ends[i]);
  for (size_t i = 0; i < r->n_controls; i++) gr_free(r->controls[i]);
  gr_free(r->ends);
  gr_free(r->controls);
  gr_free(r->bos);
  gr_free(r->eos);
  gr_tokens_free(&r->tokens);
  gr_free(r->weights);
  gr_free(r->trusted);
}

bool gr_data_spells_control(const data_reader *r, const char *text, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    if (!r->control_start[(unsigned char)text[i]]) continue;
    for (size_t k = 0; k < r->n_controls; k++) {
      size_t length = strlen(r->controls[k]);
      if (length > 1 && length <= n - i && memcmp(text + i, r->controls[k], length) == 0) return true;
    }
  }
  return false;
}

/* ---- to the window ---- */

static size_t count_trained(const float *weights, int32_t from, int32_t to)
{
  size_t n = 0;
  for (int32_t i = from; i < to; i++) n += weights[i] > 0;
  return n;
}

/* Pieces share a token: the last of one is the first of the next, so that every token but the record's first is predicted once. */
static gr_status split(data_reader *r, int32_t n, gr_error *e)
{
  int32_t window = r->o->window;
  size_t kept = 0, left = 0;
  uint32_t piece = 0;
  for (int32_t at = 0; at + 1 < n; at += window - 1, piece++) {
    int32_t end = n - at < window ? n : at + window;
    bool trained = count_trained(r->weights, at + 1, end) > 0;
    if (trained) GR_TRY(gr_data_add_sample(r, r->tokens.ids + at, r->weights + at, end - at, piece, e));
    kept += trained;
    left += !trained;
  }
  gr_data_count(r, GR_DATA_SPLIT, kept > 0);
  gr_data_count(r, GR_DATA_PIECES_LEFT, kept ? left : 0);
  gr_data_count(r, GR_DATA_UNTRAINED, kept == 0);
  return GR_OK;
}

/* The n tokens at hand, with their weights. */
static gr_status keep(data_reader *r, int32_t n, gr_error *e)
{
  int32_t window = r->o->window;
  size_t trained = count_trained(r->weights, 1, n);
  if (trained == 0) gr_data_count(r, GR_DATA_UNTRAINED, 1);
  if (trained == 0) return GR_OK;
  if (n <= window) return gr_data_add_sample(r, r->tokens.ids, r->weights, n, 0, e);
  if (r->o->overlong == GR_OVERLONG_SPLIT) return split(r, n, e);
  size_t left = count_trained(r->weights, 1, window);
  if (r->o->overlong == GR_OVERLONG_DROP || left == 0) {
    gr_data_count(r, GR_DATA_TOO_LONG, 1);
    return GR_OK;
  }
  gr_data_count(r, GR_DATA_TRUNCATED, 1);
  r->d->counts.tokens_cut += (size_t)(n - window);
  r->d->counts.tokens_cut_trained += trained - left;
  return gr_data_add_sample(r, r->tokens.ids, r->weights, window, 0, e);
}

static gr_status room_for_weights(data_reader *r, size_t n, gr_error *e)
{
  if (!gr_grow((void **)&r->weights, &r->weights_cap, n, sizeof *r->weights)) return gr_fail_memory(e, n * sizeof *r->weights);
  memset(r->weights, 0, n * sizeof *r->weights);
  return GR_OK;
}

/* ---- conversations ---- */

static gr_status trusted_spans(data_reader *r, const gr_rendered *text, size_t *n, gr_error *e)
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

static gr_status tokenize(data_reader *r, const gr_rendered *text, gr_error *e)
{
  size_t n;
  GR_TRY(trusted_spans(r, text, &n, e));
  GR_TRY(gr_tokenizer_encode_spans(r->o->tokenizer, text->text, text->len, r->trusted, n, GR_ENCODE_SPECIAL | GR_ENCODE_ONE_BOS, &r->tokens,
                                   e));
  gr_data_count(r, GR_DATA_LOST_BYTES, r->tokens.lost > 0);
  return room_for_weights(r, r->tokens.count + 1, e);
}

/* The weight of the tokens whose first byte lies in a span of an assistant's. */
static gr_status weigh_spans(data_reader *r, const gr_conversation *c, const gr_chat_spans *spans, gr_error *e)
{
  double weight = 0;
  size_t k = 0, known = SIZE_MAX;
  for (size_t i = 0; i < r->tokens.count; i++) {
    size_t at = r->tokens.at[i];
    while (k < spans->count && spans->items[k].end <= at) k++;
    if (k == spans->count || at < spans->items[k].start || r->tokens.length[i] == 0) continue;
    if (known != k) GR_TRY(gr_message_weight(json_array_get(c->messages, spans->items[k].message), &weight, e));
    known = k;
    r->weights[i] = (float)(weight * c->weight);
  }
  return GR_OK;
}

/* --train-on-inputs: everything, with the weight of the message that wrote it; the template's bytes count 1. */
static gr_status weigh_all(data_reader *r, const gr_conversation *c, const gr_rendered *text, gr_error *e)
{
  for (size_t i = 0, k = 0; i < r->tokens.count; i++) {
    double weight = 1;
    while (k < text->n_runs && text->runs[k].end <= r->tokens.at[i]) k++;
    if (k < text->n_runs && text->runs[k].origin == GR_ORIGIN_MESSAGE && text->runs[k].field != GR_FIELD_ROLE)
      GR_TRY(gr_message_weight(json_array_get(c->messages, text->runs[k].message), &weight, e));
    r->weights[i] = (float)(weight * c->weight);
  }
  return GR_OK;
}

static void lint(data_reader *r, const gr_chat_spans *spans)
{
  gr_data_counts *counts = &r->d->counts;
  bool ended = false;
  if (count_trained(r->weights, 1, (int32_t)r->tokens.count) == 0) return;
  for (size_t i = 1; i < r->tokens.count && !ended; i++)
    ended = r->weights[i] > 0 && gr_tokenizer_is_eog(r->o->tokenizer, r->tokens.ids[i]);
  counts->conversations++;
  counts->ended += ended;
  bool open = spans->count ? !spans->items[spans->count - 1].closed : !ended;
  gr_data_count(r, GR_DATA_END_UNTRAINED, open);
  gr_data_count(r, GR_DATA_THINKING_LOST, spans->dropped);
}

static gr_status conversation(data_reader *r, const gr_conversation *c, gr_error *e)
{
  gr_rendered text = { 0 };
  gr_chat_spans spans = { 0 };
  r->render.tools = c->tools;
  gr_status s = gr_template_render(r->o->chat_template, c->messages, &r->render, &text, e);
  if (s == GR_OK)
    s = gr_chat_locate(r->o->chat_template, c->messages, &r->render, &text, (const char *const *)r->ends, r->n_ends, &spans, e);
  if (s == GR_ERR_MISMATCH && r->o->train_on_inputs && text.text) s = GR_OK; /* then spans only tell weights apart */
  if (s == GR_OK) s = tokenize(r, &text, e);
  if (s == GR_OK && r->o->train_on_inputs) s = weigh_all(r, c, &text, e);
  if (s == GR_OK) s = weigh_spans(r, c, &spans, e);
  if (s == GR_OK) {
    lint(r, &spans);
    s = keep(r, (int32_t)r->tokens.count, e);
  }
  gr_chat_spans_free(&spans);
  gr_rendered_free(&text);
  return s;
}

/* A record that cannot be used: left out, counted, and the first named. */
static void refuse(data_reader *r, const gr_error *why)
{
  if (r->d->counts.events[GR_DATA_REFUSED] == 0) {
    size_t n = strlen(why->text), room = sizeof r->d->refusal - 1;
    if (n > room) n = gr_utf8_complete(why->text, room);
    memcpy(r->d->refusal, why->text, n);
    r->d->refusal[n] = 0;
  }
  gr_data_count(r, GR_DATA_REFUSED, 1);
}

/* The template refuses it, or its spans cannot be located. */
static gr_status conversation_or_refusal(data_reader *r, const gr_conversation *c, gr_error *e)
{
  gr_error why = { 0 };
  gr_status s = conversation(r, c, &why);
  if (s == GR_OK) return s;
  if (s == GR_ERR_MEMORY) return gr_fail(e, s, "%s", why.text);
  refuse(r, &why);
  return GR_OK;
}

/* ---- text ---- */

/* Bare text is all trained; it ends with EOS, so that its end is learned too. */
static gr_status document(data_reader *r, const gr_conversation *c, gr_error *e)
{
  const gr_tokenizer *t = r->o->tokenizer;
  gr_tokens *x = &r->tokens;
  int32_t eos = gr_tokenizer_role(t, GR_ROLE_EOS);
  unsigned flags = GR_ENCODE_SPECIAL | (r->o->parse_special ? GR_ENCODE_PARSE_CONTROL | GR_ENCODE_ONE_BOS : 0);
  GR_TRY(gr_tokenizer_encode(t, c->text, c->text_len, flags, x, e));
  gr_data_count(r, GR_DATA_LOST_BYTES, x->lost > 0);
  gr_data_count(r, r->o->parse_special ? GR_DATA_CONTROL_READ : GR_DATA_CONTROL_TEXT, gr_data_spells_control(r, c->text, c->text_len));
  size_t n = x->count;
  if (n > 1 && x->ids[n - 1] == eos && x->length[n - 1] == 0 && x->ids[n - 2] == eos) n--; /* the text spells it */
  GR_TRY(room_for_weights(r, n + 1, e));
  if (eos >= 0 && (n == 0 || x->ids[n - 1] != eos)) {
    if (n == x->cap) { /* one more id; places are not needed any more */
      int32_t *ids = gr_realloc_array(x->ids, n + 1, sizeof *ids);
      if (!ids) return gr_fail_memory(e, n * sizeof *ids);
      x->ids = ids;
    }
    x->ids[n++] = eos;
  }
  for (size_t i = 0; i < n; i++) r->weights[i] = (float)c->weight;
  return keep(r, (int32_t)n, e);
}

/* ---- records ---- */

enum { KEYS_SHOWN = 8, KEY_BYTES = 60 };

/* Keys of this record that nothing reads: counted once, and the first few of the data set named. */
static gr_status count_unread(data_reader *r, json_t *record, const gr_conversation *c, gr_error *e)
{
  gr_dataset *d = r->d;
  const char *key;
  json_t *value;
  bool any = false;
  json_object_foreach(record, key, value)
  {
    if (!gr_record_lost(c, key, value)) continue;
    any = true;
    if (d->n_unread > KEYS_SHOWN) continue;
    gr_buf name = { 0 };
    json_t *text = json_stringn(key, strlen(key) > KEY_BYTES ? gr_utf8_complete(key, KEY_BYTES) : strlen(key));
    if (text) gr_json_write(&name, text);
    json_decref(text);
    bool ok = text && !name.failed, known = ok && d->unread.data && strstr(d->unread.data, name.data);
    if (ok && !known) gr_buf_printf(&d->unread, "%s%s", d->n_unread ? ", " : "", d->n_unread == KEYS_SHOWN ? "..." : name.data);
    d->n_unread += ok && !known;
    gr_buf_free(&name);
    if (!ok || d->unread.failed) return gr_fail_memory(e, KEY_BYTES);
  }
  gr_data_count(r, GR_DATA_UNREAD_KEYS, any);
  return GR_OK;
}

static gr_status take(data_reader *r, const gr_conversation *c, gr_error *e)
{
  bool useful = c->learnable || (r->o->train_on_inputs && c->weight > 0 && json_array_size(c->messages) > 0);
  for (int v = 0; v < GR_DATA_EVENTS; v++) gr_data_count(r, (gr_data_event)v, useful ? c->events[v] : 0);
  if (!useful) gr_data_count(r, GR_DATA_UNTRAINED, 1);
  if (!useful) return GR_OK;
  if (!c->messages) return document(r, c, e);
  if (!r->o->chat_template) return gr_fail(e, GR_ERR_USAGE, "conversations need a chat template, and there is none");
  return conversation_or_refusal(r, c, e);
}

gr_status gr_data_read_record(data_reader *r, json_t *record, gr_error *e)
{
  if (r->format == GR_DATA_AUTO) r->format = gr_record_format(record);
  gr_conversation c;
  gr_error why = { 0 };
  gr_status s = gr_record_read(record, r->format, &r->support, &c, &why);
  if (s == GR_ERR_MISMATCH) {
    refuse(r, &why);
    return GR_OK;
  }
  if (s != GR_OK) return gr_fail(e, s, "%s", why.text);
  s = count_unread(r, record, &c, e);
  if (s == GR_OK) s = take(r, &c, e);
  gr_conversation_free(&c);
  return s;
}
