/* Generation: a prompt's tokens in, sampled tokens out, one callback a token. */
#ifndef GR_INFER_GENERATE_H
#define GR_INFER_GENERATE_H
#include <stdio.h>

#include "infer/sample.h"
#include "infer/session.h"

typedef struct gr_generate_options {
  gr_session_options session; /* context 0: as much as prompt and `most` need, at most the model's own */
  gr_sampling sampling;
  int32_t most;       /* tokens to generate at most */
  bool parse_control; /* control tokens written out in the prompt are recognised */
  bool ignore_eos;
  /* Called for each generated token with its bytes (which may be an unfinished character); false stops. NULL: nobody listens. */
  bool (*on_token)(void *ctx, int32_t id, const char *text, size_t n);
  void (*on_session)(void *ctx, const gr_session *s); /* gr_generate: before the prompt is run. NULL: nobody asks */
  void *ctx;
} gr_generate_options;

typedef struct gr_generation {
  int32_t *ids; /* prompt, then generated; an end-of-turn token that stopped it is among them */
  int32_t n_prompt, n_ids;
  char *text; /* of the generated tokens, control tokens left out */
  size_t text_len;
  const char *stop; /* "end", "length", "context" or "stopped" */
  double prompt_seconds, seconds;
} gr_generation;

gr_status gr_generate(const gr_model *m, const char *prompt, size_t n, const gr_generate_options *o, gr_generation *out, gr_error *e);
/* Goes on from ids already in `s` (which may be empty) with more prompt ids; the core of gr_generate and of chat. */
gr_status gr_generate_ids(gr_session *s, const gr_model *m, const int32_t *prompt, int32_t n, const gr_generate_options *o,
                          gr_generation *out, gr_error *e);
void gr_generation_free(gr_generation *g);

#endif
