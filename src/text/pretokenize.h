/* Cutting a text into the words that byte-level BPE merges within.
 *
 * A pre-tokenizer is a list of regular expressions, applied in turn: each cuts every piece that the ones before it left into
 * its matches and what lies between them. They are compiled once with PCRE2 (its JIT where the system allows it). The
 * expressions are those of the models' own tokenizers (docs/tokenizers.md); Unicode white space is spelled out in them, because
 * PCRE2's \s also holds U+180E. */
#ifndef GR_TEXT_PRETOKENIZE_H
#define GR_TEXT_PRETOKENIZE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct gr_pretokenizer gr_pretokenizer;

/* A pre-tokenizer by the name that GGUF files give it (tokenizer.ggml.pre), and what else that name decides. */
typedef struct gr_pretokenizer_kind {
  const char *name;
  const char *const *patterns; /* ends with NULL */
  bool ignore_merges;          /* a word that is a token is taken whole, whatever the merges say */
  bool add_bos;                /* unless the file says otherwise */
} gr_pretokenizer_kind;

/* NULL or "": the list that llama.cpp uses for a file that names none. GR_ERR_UNSUPPORTED lists the names that are known. */
gr_status gr_pretokenizer_find(const char *name, const gr_pretokenizer_kind **kind, gr_error *e);

/* Compiles patterns (ending with NULL, at most GR_PRETOKENIZER_STAGES). match_limit bounds PCRE2's work on one match; 0 means a
 * bound in proportion to the text, which no pattern of ours comes near. */
enum { GR_PRETOKENIZER_STAGES = 4 };
gr_status gr_pretokenizer_create(gr_pretokenizer **p, const char *const *patterns, uint32_t match_limit, gr_error *e);
void gr_pretokenizer_free(gr_pretokenizer *p); /* NULL is fine */

/* What one thread needs to run it; made anew, or reused for any number of texts. */
typedef struct gr_pretokenizer_run gr_pretokenizer_run;
gr_status gr_pretokenizer_run_create(gr_pretokenizer_run **run, const gr_pretokenizer *p, gr_error *e);
void gr_pretokenizer_run_free(gr_pretokenizer_run *run); /* NULL is fine */

/* Calls word(ctx, start, length) for each word of text[0..n), in order; together they are the whole text. Stops at the first
 * call that fails and returns what it returned. PCRE2's limits are errors, never a text cut elsewhere. */
typedef gr_status gr_pretokenizer_word(void *ctx, size_t start, size_t length, gr_error *e);
gr_status gr_pretokenizer_split(gr_pretokenizer_run *run, const char *text, size_t n, gr_pretokenizer_word *word, void *ctx, gr_error *e);

#endif
