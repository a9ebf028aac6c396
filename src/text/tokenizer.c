/* Building a tokenizer from its parts, and what it tells about itself. */
#include "text/tokenizer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

enum { NOTES_MAX = 32 };

void gr_tokenizer_spec_init(gr_tokenizer_spec *spec)
{
  *spec = (gr_tokenizer_spec){ .add_bos = -1, .add_eos = -1, .add_space_prefix = -1 };
  for (int i = 0; i < GR_ROLE_COUNT; i++) spec->role[i] = -1;
}

/* A note that cannot be kept for want of memory is not worth failing for: what it tells is already decided. */
void gr_tokenizer_note(gr_tokenizer *t, const char *fmt, ...)
{
  if (t->note_count++ >= NOTES_MAX) return;
  char line[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(line, sizeof line, fmt, args);
  va_end(args);
  gr_error printable = { 0 }; /* notes quote the file, as errors do */
  gr_fail(&printable, GR_ERR_FORMAT, "%s", line);
  if (t->notes.len) gr_buf_putc(&t->notes, '\n');
  gr_buf_puts(&t->notes, printable.text);
}

int32_t gr_symbol_find(const gr_tokenizer *t, const char *p, size_t n) { return gr_strmap_find(&t->by_symbol, t->symbol, p, n); }

int32_t gr_symbol_add(gr_tokenizer *t, const char *p, size_t n)
{
  int32_t known = gr_symbol_find(t, p, n);
  if (known >= 0) return known;
  if (t->symbol_count >= INT32_MAX - 1) return GR_NO_SYMBOL;
  if (!gr_grow((void **)&t->symbol, &t->symbol_cap, t->symbol_count + 1, sizeof *t->symbol)) return GR_NO_SYMBOL;
  char *copy = gr_arena_strndup(&t->arena, p, n);
  if (!copy) return GR_NO_SYMBOL;
  t->symbol[t->symbol_count] = (gr_text_view){ copy, n };
  int32_t place = gr_strmap_add(&t->by_symbol, t->symbol, (int32_t)t->symbol_count);
  if (place >= 0) t->symbol_count++;
  return place;
}

int gr_byte_token_value(gr_text_view text)
{
  static const char digits[] = "0123456789ABCDEFabcdef";
  if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
  int value = 0;
  for (int i = 3; i < 5; i++) {
    const char *digit = text.data[i] ? strchr(digits, text.data[i]) : NULL;
    if (!digit) return -1;
    int d = (int)(digit - digits);
    value = value * 16 + (d < 16 ? d : d - 6);
  }
  return value;
}

static gr_status allocate(gr_tokenizer *t, size_t count, gr_error *e)
{
  t->count = t->symbol_count = t->symbol_cap = count;
  t->text = gr_calloc(count, sizeof *t->text);
  t->output = gr_calloc(count, sizeof *t->output);
  t->symbol = gr_calloc(count, sizeof *t->symbol);
  t->score = gr_calloc(count, sizeof *t->score);
  t->type = gr_calloc(count, 1);
  t->flags = gr_calloc(count, 1);
  if (!t->text || !t->output || !t->symbol || !t->score || !t->type || !t->flags) return gr_fail_memory(e, count * sizeof *t->text);
  return GR_OK;
}

/* Texts, which must differ: with two tokens of one text no id could be told from the other, and llama.cpp refuses such a file.
 * Empty ones are holes that no text reaches. */
static gr_status copy_texts(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e)
{
  if (!gr_strmap_reserve(&t->by_text, t->text, t->count)) return gr_fail_memory(e, t->count);
  size_t empty = 0;
  for (size_t id = 0; id < t->count; id++) {
    gr_text_view text = spec->tokens[id];
    char *copy = gr_arena_strndup(&t->arena, text.len ? text.data : "", text.len);
    if (!copy) return gr_fail_memory(e, text.len);
    t->text[id] = t->output[id] = (gr_text_view){ copy, text.len };
    empty += !text.len;
    if (!text.len) continue;
    int32_t place = gr_strmap_add(&t->by_text, t->text, (int32_t)id);
    if (place < 0) return gr_fail_memory(e, t->count);
    if ((size_t)place != id)
      return gr_fail(e, GR_ERR_FORMAT, "tokens %d and %zu of tokenizer.ggml.tokens have the same text '%.100s': convert the model again",
                     place, id, t->text[id].data);
  }
  if (empty) gr_tokenizer_note(t, "%zu tokens have an empty text: no text becomes one of them", empty);
  return GR_OK;
}

static void copy_types(gr_tokenizer *t, const gr_tokenizer_spec *spec)
{
  size_t wild = 0, first_wild = 0, bad_bytes = 0, first_bad = 0, bad_scores = 0;
  for (int b = 0; b < 256; b++) t->byte_token[b] = -1;
  for (size_t id = 0; id < t->count; id++) {
    int32_t type = spec->types ? spec->types[id] : GR_TOKEN_NORMAL;
    if ((type < GR_TOKEN_NORMAL || type > GR_TOKEN_BYTE) && !wild++) first_wild = id;
    t->type[id] = (uint8_t)(type < GR_TOKEN_NORMAL || type > GR_TOKEN_BYTE ? GR_TOKEN_NORMAL : type);
    float score = spec->scores ? spec->scores[id] : 0;
    bad_scores += isnan(score);
    t->score[id] = isnan(score) ? -INFINITY : score;
    if (t->type[id] != GR_TOKEN_BYTE) continue;
    int value = gr_byte_token_value(t->text[id]);
    if (value < 0) {
      if (!bad_bytes++) first_bad = id;
      continue;
    }
    if (t->byte_token[value] < 0) t->byte_token[value] = (int32_t)id;
  }
  if (wild) gr_tokenizer_note(t, "%zu tokens (the first is %zu) have a type outside 1 to 6: taken as normal", wild, first_wild);
  if (bad_bytes)
    gr_tokenizer_note(t, "%zu byte tokens (the first is %zu) are not of the form <0x00>: no byte becomes one of them", bad_bytes,
                      first_bad);
  if (bad_scores) gr_tokenizer_note(t, "%zu scores are not numbers: those tokens merge last", bad_scores);
}

/* What a byte token writes is its byte. */
static gr_status set_byte_outputs(gr_tokenizer *t, gr_error *e)
{
  for (size_t id = 0; id < t->count; id++) {
    int value = t->type[id] == GR_TOKEN_BYTE ? gr_byte_token_value(t->text[id]) : -1;
    if (value < 0) continue;
    char byte = (char)value, *copy = gr_arena_strndup(&t->arena, &byte, 1);
    if (!copy) return gr_fail_memory(e, 1);
    t->output[id] = (gr_text_view){ copy, 1 };
  }
  return GR_OK;
}

static gr_status set_additions(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e)
{
  const gr_pretokenizer_kind *kind = NULL;
  if (!t->spm) GR_TRY(gr_pretokenizer_find(spec->pre, &kind, e));
  t->add_bos = spec->add_bos >= 0 ? spec->add_bos : t->spm || kind->add_bos;
  t->add_eos = spec->add_eos > 0;
  t->add_space = spec->add_space_prefix >= 0 ? spec->add_space_prefix && t->spm : t->spm;
  if (t->add_bos && t->role[GR_ROLE_BOS] < 0)
    return gr_fail(e, GR_ERR_FORMAT, "this vocabulary begins every text with a BOS token, but tokenizer.ggml.bos_token_id names none");
  if (t->add_eos && t->role[GR_ROLE_EOS] < 0)
    return gr_fail(e, GR_ERR_FORMAT, "tokenizer.ggml.add_eos_token is true, but tokenizer.ggml.eos_token_id names no token");
  return GR_OK;
}

static gr_status build(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e)
{
  if (!spec->model || (strcmp(spec->model, "gpt2") != 0 && strcmp(spec->model, "llama") != 0))
    return gr_fail(e, spec->model ? GR_ERR_UNSUPPORTED : GR_ERR_FORMAT,
                   "tokenizer.ggml.model is \"%.100s\"; Graft knows \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece BPE)",
                   spec->model ? spec->model : "");
  t->spm = !strcmp(spec->model, "llama");
  if (!spec->token_count || !spec->tokens) return gr_fail(e, GR_ERR_FORMAT, "tokenizer.ggml.tokens is missing or empty");
  if (spec->token_count > INT32_MAX / 4) return gr_fail(e, GR_ERR_FORMAT, "tokenizer.ggml.tokens has %zu tokens", spec->token_count);
  GR_TRY(allocate(t, spec->token_count, e));
  GR_TRY(copy_texts(t, spec, e));
  copy_types(t, spec);
  gr_tokenizer_init_roles(t, spec);
  GR_TRY(set_byte_outputs(t, e));
  GR_TRY(t->spm ? gr_spm_init(t, spec, e) : gr_bpe_init(t, spec, e));
  GR_TRY(set_additions(t, spec, e));
  return gr_tokenizer_init_specials(t, e);
}

gr_status gr_tokenizer_build(gr_tokenizer **out, const gr_tokenizer_spec *spec, gr_error *e)
{
  *out = NULL;
  gr_tokenizer *t = gr_calloc(1, sizeof *t);
  if (!t) return gr_fail_memory(e, sizeof *t);
  gr_status s = build(t, spec, e);
  if (s == GR_OK) *out = t;
  else gr_tokenizer_free(t);
  return s;
}

void gr_tokenizer_free(gr_tokenizer *t)
{
  if (!t) return;
  gr_pretokenizer_free(t->words);
  gr_strmap_free(&t->by_text);
  gr_strmap_free(&t->by_symbol);
  gr_buf_free(&t->notes);
  void *owned[] = { t->text, t->output, t->symbol, t->score, t->type, t->flags, t->pairs, t->bridges, t->special, t->special_shorter };
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) gr_free(owned[i]);
  gr_arena_free(&t->arena);
  gr_free(t);
}

/* ---- facts ---- */

static bool in_range(const gr_tokenizer *t, int32_t id) { return id >= 0 && (size_t)id < t->count; }

const char *gr_tokenizer_notes(const gr_tokenizer *t) { return t->notes.data ? t->notes.data : ""; }
size_t gr_tokenizer_vocab_size(const gr_tokenizer *t) { return t->count; }
const char *gr_tokenizer_model(const gr_tokenizer *t) { return t->spm ? "llama" : "gpt2"; }
const char *gr_tokenizer_pre(const gr_tokenizer *t) { return t->pre; }
bool gr_tokenizer_adds_bos(const gr_tokenizer *t) { return t->add_bos; }
bool gr_tokenizer_adds_eos(const gr_tokenizer *t) { return t->add_eos; }

int32_t gr_tokenizer_role(const gr_tokenizer *t, gr_token_role role) { return (unsigned)role < GR_ROLE_COUNT ? t->role[role] : -1; }

bool gr_tokenizer_is_eog(const gr_tokenizer *t, int32_t id) { return in_range(t, id) && t->flags[id] & GR_TOKEN_EOG; }

bool gr_tokenizer_is_control(const gr_tokenizer *t, int32_t id)
{
  return in_range(t, id) && (t->type[id] == GR_TOKEN_CONTROL || t->type[id] == GR_TOKEN_UNKNOWN);
}

gr_token_type gr_tokenizer_type(const gr_tokenizer *t, int32_t id)
{
  return in_range(t, id) ? (gr_token_type)t->type[id] : GR_TOKEN_NORMAL;
}

gr_text_view gr_tokenizer_text(const gr_tokenizer *t, int32_t id) { return in_range(t, id) ? t->text[id] : (gr_text_view){ "", 0 }; }

int32_t gr_tokenizer_find(const gr_tokenizer *t, const char *text, size_t n) { return gr_strmap_find(&t->by_text, t->text, text, n); }
