/* A session: one timeline of tokens over a model, with its KV cache. Several sessions share one mapped model.
 *
 * Tokens are run in batches through the same graph that training builds; positions are the timeline's. F32 cache. */
#ifndef GR_INFER_SESSION_H
#define GR_INFER_SESSION_H
#include "graph/graph.h"
#include "model/model.h"

typedef struct gr_session gr_session;

typedef struct gr_session_options {
  int32_t context;                /* tokens the timeline may hold */
  int32_t batch;                  /* tokens run at once at most (prefill); 0: 512 */
  int32_t outputs;                /* rows of logits that one gr_session_run may ask for; 0: 1 */
  const gr_adapter_use *adapters; /* copied; the adapters themselves must outlive the session */
  size_t n_adapters;
  gr_backend *const *backends; /* in order of preference; must outlive the session; the last one runs on host memory */
  size_t n_backends;
  bool allow_ref;
  bool profile; /* time every launch: gr_session_plan_of */
} gr_session_options;

gr_status gr_session_open(gr_session **s, const gr_model *m, const gr_session_options *o, gr_error *e);
void gr_session_close(gr_session *s); /* NULL is fine */

int32_t gr_session_length(const gr_session *s); /* tokens so far */
int32_t gr_session_context(const gr_session *s);
size_t gr_session_bytes(const gr_session *s); /* cache, plans' memory */

/* The plan that runs of one token take, or runs of several: for profiles and placement reports. */
const gr_plan *gr_session_plan_of(const gr_session *s, bool single);

/* Forgets everything from token n on. */
void gr_session_truncate(gr_session *s, int32_t n);

/* Appends n tokens. Of the last `rows` of them (0 to min(n, outputs)), writes the logits of the next token, [vocab] each, oldest
 * first. GR_ERR_USAGE when the context would overflow or an id is not in the vocabulary: nothing is appended then. */
gr_status gr_session_run(gr_session *s, const int32_t *ids, int32_t n, float *logits, int32_t rows, gr_error *e);

#endif
