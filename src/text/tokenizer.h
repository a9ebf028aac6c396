/* Tokenizers of GGUF files: byte-level BPE ("gpt2") and SentencePiece BPE by score ("llama").
 *
 * The tokens are those that llama.cpp gives for the same file, since what is trained must be what is served; where the two
 * differ on purpose, docs/tokenizers.md says so. A tokenizer copies what it needs of the file, never changes once created,
 * and may be used by any number of threads.
 *
 * Text is bytes. Malformed UTF-8 is neither an error nor dropped: each malformed byte counts as one symbol character when
 * words are cut, is spelled by the token of that byte, and comes back as it was. */
#ifndef GR_TEXT_TOKENIZER_H
#define GR_TEXT_TOKENIZER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "io/gguf.h"
#include "text/utf8.h"

typedef struct gr_tokenizer gr_tokenizer;

/* Types as the file numbers them; any other number counts as normal. */
typedef enum gr_token_type {
  GR_TOKEN_NORMAL = 1,
  GR_TOKEN_UNKNOWN,
  GR_TOKEN_CONTROL,
  GR_TOKEN_USER_DEFINED,
  GR_TOKEN_UNUSED,
  GR_TOKEN_BYTE
} gr_token_type;

/* Tokens with a role. EOT, EOM and the FIM ones are also found by their text when the file does not name them. */
typedef enum gr_token_role {
  GR_ROLE_BOS,
  GR_ROLE_EOS,
  GR_ROLE_EOT, /* end of turn */
  GR_ROLE_EOM, /* end of message: the turn goes on after a tool has answered */
  GR_ROLE_UNK,
  GR_ROLE_SEP,
  GR_ROLE_PAD,
  GR_ROLE_FIM_PRE,
  GR_ROLE_FIM_SUF,
  GR_ROLE_FIM_MID,
  GR_ROLE_FIM_PAD,
  GR_ROLE_FIM_REP,
  GR_ROLE_FIM_SEP,
  GR_ROLE_COUNT
} gr_token_role;

/* What a tokenizer is made of; everything is copied. Absent numbers are -1, absent arrays NULL. */
typedef struct gr_tokenizer_spec {
  const char *model; /* "gpt2" or "llama" */
  const char *pre;   /* pre-tokenizer, gpt2 only; NULL or "" when the file names none */
  const char *name;  /* the model's name (general.name), which decides how Phi-3's special tokens treat white space; may be NULL */
  size_t token_count;
  const gr_text_view *tokens;
  const float *scores;  /* token_count of them */
  const int32_t *types; /* token_count of them */
  size_t merge_count;
  const gr_text_view *merges; /* "left right", best first; gpt2 needs them (an empty list is one) */
  int64_t role[GR_ROLE_COUNT];
  int add_bos, add_eos, add_space_prefix; /* 0, 1, or -1: the model's default */
} gr_tokenizer_spec;

void gr_tokenizer_spec_init(gr_tokenizer_spec *spec); /* everything absent */

/* From a file's tokenizer.ggml.* keys, and from parts. *t is NULL on failure. */
gr_status gr_tokenizer_create(gr_tokenizer **t, const gr_gguf *g, gr_error *e);
gr_status gr_tokenizer_build(gr_tokenizer **t, const gr_tokenizer_spec *spec, gr_error *e);
void gr_tokenizer_free(gr_tokenizer *t); /* NULL is fine */

/* What was odd in the file and how it was taken, one sentence a line; "" when nothing was. */
const char *gr_tokenizer_notes(const gr_tokenizer *t);

/* ---- encoding ---- */

/* ids[i] spells the text's bytes at[i] .. at[i]+length[i]-1. Tokens that spell none (BOS, EOS, the space that SentencePiece puts
 * before a text) have length 0 and the place where they were put. Initialise with {0}; reused by the next call. */
typedef struct gr_tokens {
  int32_t *ids;
  uint32_t *at, *length;
  size_t count, cap;
  size_t lost; /* bytes of the text that the vocabulary cannot spell: left out, or given as the unknown token */
} gr_tokens;
void gr_tokens_free(gr_tokens *tokens);

enum {
  GR_ENCODE_SPECIAL = 1,       /* put BOS and EOS where the file says so */
  GR_ENCODE_PARSE_CONTROL = 2, /* the text's "<|im_end|>" is that control token, not its letters */
  GR_ENCODE_ONE_BOS = 4        /* with GR_ENCODE_SPECIAL: no BOS before a text that itself begins with one (rendered chats) */
};
/* text[0..n) with n below 2^31. *out holds the tokens on success and nothing on failure. */
gr_status gr_tokenizer_encode(const gr_tokenizer *t, const char *text, size_t n, unsigned flags, gr_tokens *out, gr_error *e);

/* The same for a text of mixed origin: control tokens are recognised only where every byte of them is trusted, whatever
 * GR_ENCODE_PARSE_CONTROL says. Trusted are the bytes start..end-1 of each span; spans ascend and do not overlap, and a token may
 * lie across spans that touch. User-defined tokens are words of the model and are recognised everywhere, and a border of trust
 * does not otherwise cut the text. */
typedef struct gr_trusted_span {
  size_t start, end;
} gr_trusted_span;
gr_status gr_tokenizer_encode_spans(const gr_tokenizer *t, const char *text, size_t n, const gr_trusted_span *trusted, size_t trusted_count,
                                    unsigned flags, gr_tokens *out, gr_error *e);

/* ---- decoding: bytes, which need not be whole characters before the last token (see gr_utf8_complete) ---- */

enum {
  GR_DECODE_CONTROL = 1,  /* write control and unknown tokens as their text; otherwise they write nothing */
  GR_DECODE_CONTINUES = 2 /* the ids go on from earlier text: keep a leading space that would be SentencePiece's own */
};
gr_status gr_tokenizer_decode(const gr_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, gr_buf *out, gr_error *e);

/* Token by token: the concatenation is what gr_tokenizer_decode gives. */
typedef struct gr_decoder {
  const gr_tokenizer *tokenizer;
  unsigned flags;
  bool strip; /* the next space is SentencePiece's own */
} gr_decoder;
gr_decoder gr_decoder_start(const gr_tokenizer *t, unsigned flags);
gr_status gr_decoder_push(gr_decoder *d, int32_t id, gr_buf *out, gr_error *e);

/* ---- facts ---- */

size_t gr_tokenizer_vocab_size(const gr_tokenizer *t);
const char *gr_tokenizer_model(const gr_tokenizer *t);                /* "gpt2" or "llama" */
const char *gr_tokenizer_pre(const gr_tokenizer *t);                  /* pre-tokenizer in use; "" for llama */
int32_t gr_tokenizer_role(const gr_tokenizer *t, gr_token_role role); /* id, or -1 */
bool gr_tokenizer_adds_bos(const gr_tokenizer *t);
bool gr_tokenizer_adds_eos(const gr_tokenizer *t);

/* By id; false, normal and an empty view for ids out of range. */
bool gr_tokenizer_is_eog(const gr_tokenizer *t, int32_t id);     /* generation ends with it */
bool gr_tokenizer_is_control(const gr_tokenizer *t, int32_t id); /* control or unknown: never spelled by untrusted text */
gr_token_type gr_tokenizer_type(const gr_tokenizer *t, int32_t id);
gr_text_view gr_tokenizer_text(const gr_tokenizer *t, int32_t id); /* as the file writes it: "Ġthe", "▁the", "<|im_end|>" */

/* The token with exactly that text as the file writes it, or -1. */
int32_t gr_tokenizer_find(const gr_tokenizer *t, const char *text, size_t n);

#endif
