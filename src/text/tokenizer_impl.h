/* What the files of the tokenizer share. Nothing here is for others. */
#ifndef GR_TEXT_TOKENIZER_IMPL_H
#define GR_TEXT_TOKENIZER_IMPL_H
#include "base/arena.h"
#include "text/pretokenize.h"
#include "text/strmap.h"
#include "text/tokenizer.h"
#include "text/tokenizer_merge.h"

enum {
  GR_MATCH_ALWAYS = 1,  /* the token's text is cut out of any text before words are */
  GR_MATCH_TRUSTED = 2, /* only out of trusted bytes */
  GR_TOKEN_HIDDEN = 4,  /* decoding leaves it out unless asked */
  GR_TOKEN_EOG = 8,
  GR_TOKEN_STRIPS = 16, /* swallows the white space behind it (Phi-3) */
  GR_TOKEN_BREAKS = 32  /* text begins anew behind it: SentencePiece puts a space of its own there */
};

struct gr_pair_slot {
  uint64_t key; /* left symbol << 32 | right symbol */
  uint32_t rank;
  int32_t symbol; /* of the merged text; GR_NO_SYMBOL: the slot is free */
};

struct gr_tokenizer {
  bool spm;
  const char *pre;
  size_t count;
  gr_arena arena;       /* owns all text */
  gr_text_view *text;   /* [count] as the file writes it */
  gr_text_view *output; /* [count] the bytes that decoding writes */
  float *score;         /* [count], never NaN */
  uint8_t *type, *flags;
  gr_strmap by_text; /* over text */
  int32_t role[GR_ROLE_COUNT];
  bool add_bos, add_eos, add_space;
  gr_buf notes;
  size_t note_count;

  /* Symbols are strings that merging can make: those of the tokens first, at their ids (empty where a token is never made so),
   * then those that only merges name. */
  gr_text_view *symbol;
  size_t symbol_count, symbol_cap;
  gr_strmap by_symbol;
  int32_t byte_symbol[256]; /* of the single byte, GR_NO_SYMBOL when it has none */
  int32_t byte_token[256];  /* what spells a byte when nothing else does, -1: nothing */

  /* gpt2 */
  bool ignore_merges;
  gr_pretokenizer *words;
  struct gr_pair_slot *pairs;
  size_t pair_mask;

  /* llama */
  size_t symbol_max;  /* bytes of the longest symbol */
  uint64_t *bridges;  /* a Bloom filter of the pairs of neighbouring characters that stand in symbols */
  size_t bridge_mask; /* bits - 1 */

  /* special tokens, sorted by text; those that start with byte b are first_byte[b] .. first_byte[b + 1] - 1 */
  int32_t *special;
  int32_t *special_shorter; /* place of the longest other special that this one starts with, -1: none */
  size_t special_count;
  uint32_t first_byte[257];
};

/* State of one encoding. */
typedef struct gr_encoder {
  const gr_tokenizer *t;
  const char *text;
  size_t n;
  gr_tokens *out;
  gr_merger merger;
  gr_pretokenizer_run *run;
  gr_buf work;
  size_t word_start; /* where the piece of text in hand begins in the whole */
} gr_encoder;

bool gr_tokens_push(gr_tokens *out, int32_t id, size_t at, size_t length);

void gr_tokenizer_note(gr_tokenizer *t, const char *fmt, ...) GR_PRINTF(2, 3);

/* Symbols. gr_symbol_add copies the bytes unless they are known; GR_NO_SYMBOL: out of memory. */
int32_t gr_symbol_find(const gr_tokenizer *t, const char *p, size_t n);
int32_t gr_symbol_add(gr_tokenizer *t, const char *p, size_t n);

/* Roles, end of generation, and which tokens are matched in text; after text, type and by_text are set. */
void gr_tokenizer_init_roles(gr_tokenizer *t, const gr_tokenizer_spec *spec);
gr_status gr_tokenizer_init_specials(gr_tokenizer *t, gr_error *e);

gr_status gr_bpe_init(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e);
gr_status gr_spm_init(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e);

/* Tokens of text[start..start+n), which holds no special token. */
gr_status gr_bpe_encode(gr_encoder *enc, size_t start, size_t n, gr_error *e);
gr_status gr_spm_encode(gr_encoder *enc, size_t start, size_t n, bool space_first, gr_error *e);

/* The byte that a text like "<0x0A>" means, or -1. */
int gr_byte_token_value(gr_text_view text);

/* Special tokens found in a text, ascending; free `items`. `skip` bytes of white space behind a token belong to it. */
typedef struct gr_special_match {
  uint32_t start, length, skip;
  int32_t id;
} gr_special_match;
typedef struct gr_special_matches {
  gr_special_match *items;
  size_t count, cap;
} gr_special_matches;
gr_status gr_tokenizer_match_specials(const gr_tokenizer *t, const char *text, size_t n, const gr_trusted_span *trusted,
                                      size_t trusted_count, gr_special_matches *out, gr_error *e);

#endif
