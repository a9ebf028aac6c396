/* Plain text: one long document, tokenized by the piece and cut into windows, so that a file of any size takes the memory of its
 * tokens and no more.
 *
 * Pieces are cut before a character that follows a line end and is not white space. Each piece but the first is tokenized with that
 * line end in front, whose tokens are then dropped: pre-tokenizers never join across such a place, and SentencePiece puts its space
 * before the line end instead of before a word that has none. A place within a special token is none. So the tokens are those of the
 * whole text. */
#include <string.h>

#include "base/alloc.h"
#include "text/dataset_impl.h"

enum { PIECE = 1 << 18 };

struct plain {
  data_reader *r;
  gr_buf text; /* the piece, with LF line ends */
  int32_t *ids;
  uint32_t *lines; /* of each id */
  float *weights;  /* all 1 */
  size_t n, cap_ids, cap_lines;
  uint32_t line, windows;
  gr_text_view *joins; /* special tokens that a piece could be cut in */
  size_t n_joins, cap_joins;
};

/* Whether a piece may begin with c, a line end standing before it. */
static bool begins_piece(char c) { return !strchr(" \t\r\n\v\f", c) && (c & 0x80) == 0; }

static gr_status find_joins(struct plain *p, gr_error *e)
{
  const gr_tokenizer *t = p->r->o->tokenizer;
  for (int32_t id = 0; (size_t)id < gr_tokenizer_vocab_size(t); id++) {
    gr_text_view v = gr_tokenizer_text(t, id);
    bool special = gr_tokenizer_type(t, id) == GR_TOKEN_USER_DEFINED || gr_tokenizer_is_control(t, id), cut = false;
    for (size_t i = 1; special && i < v.len; i++) cut = cut || (v.data[i - 1] == '\n' && begins_piece(v.data[i]));
    if (!cut) continue;
    if (!gr_grow((void **)&p->joins, &p->cap_joins, p->n_joins + 1, sizeof *p->joins)) return gr_fail_memory(e, p->n_joins);
    p->joins[p->n_joins++] = v;
  }
  return GR_OK;
}

/* Whether the text spells the token from byte i on, and is not done with it at `cut`. CR LF is read as LF. */
static bool spells_across(const char *text, size_t n, size_t i, gr_text_view token, size_t cut)
{
  for (size_t k = 0; k < token.len; i++) {
    if (i >= n) return false;
    if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') continue;
    if (text[i] != token.data[k++]) return false;
  }
  return i > cut;
}

static bool within_token(const struct plain *p, const char *text, size_t n, size_t cut)
{
  for (size_t k = 0; k < p->n_joins; k++)
    for (size_t back = 1; back <= 2 * p->joins[k].len && back <= cut; back++)
      if (spells_across(text, n, cut - back, p->joins[k], cut)) return true;
  return false;
}

static gr_status put(struct plain *p, int32_t id, uint32_t line, gr_error *e)
{
  if (!gr_grow((void **)&p->ids, &p->cap_ids, p->n + 1, sizeof *p->ids) ||
      !gr_grow((void **)&p->lines, &p->cap_lines, p->n + 1, sizeof *p->lines))
    return gr_fail_memory(e, p->n * 8);
  p->ids[p->n] = id;
  p->lines[p->n++] = line;
  return GR_OK;
}

/* Windows share a token, as the pieces of a split record do. */
static gr_status take_windows(struct plain *p, bool last, gr_error *e)
{
  size_t window = (size_t)p->r->o->window, at = 0;
  while (p->n - at >= window || (last && p->n - at >= 2)) {
    size_t n = p->n - at < window ? p->n - at : window;
    p->r->line = p->lines[at];
    GR_TRY(gr_data_add_sample(p->r, p->ids + at, p->weights, (int32_t)n, p->windows++, e));
    p->r->d->counts.records++;
    at += n - 1;
  }
  if (at == 0) return GR_OK; /* perhaps there are no arrays yet */
  memmove(p->ids, p->ids + at, (p->n - at) * sizeof *p->ids);
  memmove(p->lines, p->lines + at, (p->n - at) * sizeof *p->lines);
  p->n -= at;
  return GR_OK;
}

/* Where the piece that begins at `from` ends. */
static size_t piece_end(const struct plain *p, const char *text, size_t n, size_t from)
{
  if (n - from <= PIECE) return n;
  for (size_t at = from + PIECE; at < n; at++)
    if (text[at - 1] == '\n' && begins_piece(text[at]) && !within_token(p, text, n, at)) return at;
  return n;
}

/* CR LF becomes LF; true when there was one. */
static bool copy_piece(gr_buf *out, const char *text, size_t n)
{
  bool any = false;
  for (size_t at = 0; at < n;) {
    const char *cr = memchr(text + at, '\r', n - at);
    size_t end = cr ? (size_t)(cr - text) : n;
    gr_buf_append(out, text + at, end - at);
    bool pair = cr && end + 1 < n && text[end + 1] == '\n';
    if (cr && !pair) gr_buf_putc(out, '\r');
    any = any || pair;
    at = end + (cr != NULL);
  }
  return any;
}

static gr_status take_piece(struct plain *p, bool first, gr_error *e)
{
  data_reader *r = p->r;
  gr_tokens *x = &r->tokens;
  size_t lead = first ? 0 : 1, at = 0, i = 0;
  GR_TRY(gr_tokenizer_encode(r->o->tokenizer, p->text.data, p->text.len, r->o->parse_special ? GR_ENCODE_PARSE_CONTROL : 0, x, e));
  while (lead && i < x->count && x->at[i] < lead) i++;
  int32_t bos = gr_tokenizer_role(r->o->tokenizer, GR_ROLE_BOS);
  bool begun = r->o->parse_special && x->count && x->ids[0] == bos && x->length[0] > 0; /* the text spells it */
  if (first && gr_tokenizer_adds_bos(r->o->tokenizer) && !begun) GR_TRY(put(p, bos, 1, e));
  r->line = p->line;
  gr_data_count(r, GR_DATA_LOST_BYTES, x->lost > 0);
  gr_data_count(r, r->o->parse_special ? GR_DATA_CONTROL_READ : GR_DATA_CONTROL_TEXT, gr_data_spells_control(r, p->text.data, p->text.len));
  for (at = lead; i < x->count; i++) {
    for (; at < x->at[i]; at++) p->line += p->text.data[at] == '\n';
    GR_TRY(put(p, x->ids[i], p->line, e));
  }
  for (; at < p->text.len; at++) p->line += p->text.data[at] == '\n';
  return take_windows(p, false, e);
}

static gr_status read_pieces(struct plain *p, const char *text, size_t n, gr_error *e)
{
  const gr_tokenizer *t = p->r->o->tokenizer;
  bool crlf = false;
  GR_TRY(find_joins(p, e));
  for (size_t from = 0; from < n;) {
    size_t end = piece_end(p, text, n, from);
    gr_buf_clear(&p->text);
    if (from) gr_buf_putc(&p->text, '\n');
    crlf = copy_piece(&p->text, text + from, end - from) || crlf;
    if (p->text.failed) return gr_fail_memory(e, end - from);
    GR_TRY(take_piece(p, from == 0, e));
    from = end;
  }
  p->r->line = 1;
  gr_data_count(p->r, GR_DATA_CRLF, crlf);
  int32_t eos = gr_tokenizer_role(t, GR_ROLE_EOS);
  bool ended = p->r->o->parse_special && p->n && p->ids[p->n - 1] == eos;
  if (gr_tokenizer_adds_eos(t) && !ended) GR_TRY(put(p, eos, p->line, e));
  return take_windows(p, true, e);
}

gr_status gr_data_read_plain(data_reader *r, const char *text, size_t n, gr_error *e)
{
  struct plain p = { .r = r, .line = 1 };
  size_t window = (size_t)r->o->window;
  p.weights = gr_calloc(window, sizeof *p.weights);
  gr_status s = p.weights ? GR_OK : gr_fail_memory(e, window * sizeof *p.weights);
  for (size_t i = 0; s == GR_OK && i < window; i++) p.weights[i] = 1;
  if (s == GR_OK) s = read_pieces(&p, text, n, e);
  gr_buf_free(&p.text);
  gr_free(p.ids);
  gr_free(p.lines);
  gr_free(p.joins);
  gr_free(p.weights);
  return s;
}
