/* Driven by tools/judge_tokenizer.py: judge_tokenizer VOCABULARY.gguf. All numbers are 32-bit little-endian.
 * Reads requests from stdin: flags, length, text. Answers each with: count, count ids, count places, count lengths, lost, then
 * the length of what the ids decode to, and those bytes. Before the first request it writes the vocabulary: count, adds_bos,
 * adds_eos, and for each token: end-of-generation, control, length of its piece, and the piece. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "text/tokenizer.h"

static void put(uint32_t v) { fwrite(&v, sizeof v, 1, stdout); }

static int die(const gr_error *e)
{
  fprintf(stderr, "%s\n", e->text);
  return 1;
}

static int put_bytes(const gr_buf *b)
{
  put((uint32_t)b->len);
  fwrite(b->data, 1, b->len, stdout);
  return 0;
}

static gr_status put_vocabulary(const gr_tokenizer *t, gr_error *e)
{
  gr_buf piece = { 0 };
  put((uint32_t)gr_tokenizer_vocab_size(t));
  put(gr_tokenizer_adds_bos(t));
  put(gr_tokenizer_adds_eos(t));
  for (int32_t id = 0; (size_t)id < gr_tokenizer_vocab_size(t); id++) {
    gr_buf_clear(&piece);
    GR_TRY(gr_tokenizer_decode(t, &id, 1, GR_DECODE_CONTROL | GR_DECODE_CONTINUES, &piece, e));
    put(gr_tokenizer_is_eog(t, id));
    put(gr_tokenizer_is_control(t, id));
    put_bytes(&piece);
  }
  gr_buf_free(&piece);
  fflush(stdout);
  return GR_OK;
}

static gr_status answer(const gr_tokenizer *t, const char *text, uint32_t n, uint32_t flags, gr_tokens *tokens, gr_buf *back, gr_error *e)
{
  GR_TRY(gr_tokenizer_encode(t, text, n, flags, tokens, e));
  put((uint32_t)tokens->count);
  fwrite(tokens->ids, sizeof *tokens->ids, tokens->count, stdout);
  fwrite(tokens->at, sizeof *tokens->at, tokens->count, stdout);
  fwrite(tokens->length, sizeof *tokens->length, tokens->count, stdout);
  put((uint32_t)tokens->lost);
  gr_buf_clear(back);
  GR_TRY(gr_tokenizer_decode(t, tokens->ids, tokens->count, GR_DECODE_CONTROL, back, e));
  put_bytes(back);
  fflush(stdout);
  return GR_OK;
}

int main(int argc, char **argv)
{
  gr_error e = { 0 };
  gr_gguf *g;
  gr_tokenizer *t;
  if (argc != 2) return 2;
  if (gr_gguf_open(&g, argv[1], &e) != GR_OK || gr_tokenizer_create(&t, g, &e) != GR_OK) return die(&e);
  fputs(gr_tokenizer_notes(t), stderr);
  if (put_vocabulary(t, &e) != GR_OK) return die(&e);
  gr_tokens tokens = { 0 };
  gr_buf back = { 0 };
  uint32_t header[2];
  while (fread(header, sizeof header, 1, stdin) == 1) {
    char *text = gr_alloc(header[1]);
    if (!text || fread(text, 1, header[1], stdin) != header[1]) return 1;
    if (answer(t, text, header[1], header[0], &tokens, &back, &e) != GR_OK) return die(&e);
    gr_free(text);
  }
  gr_buf_free(&back);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
  gr_gguf_close(g);
  return 0;
}
