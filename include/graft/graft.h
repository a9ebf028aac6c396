/* Graft as a library: load a GGUF model, generate with adapters, train an adapter.
 *
 *   gr_error e = { 0 };
 *   gr_engine *engine;
 *   if (gr_engine_open(&engine, "model.gguf", NULL, &e) != GR_OK) puts(e.text);
 *
 * Nothing here exits, aborts on input or prints. Objects are not shared between threads unless a call says so; any number of
 * engines may have the same file open, and its weights are then in memory once. Text is UTF-8. */
#ifndef GRAFT_GRAFT_H
#define GRAFT_GRAFT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graft/status.h"

#if defined(__GNUC__)
#define GR_API __attribute__((visibility("default")))
#else
#define GR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

GR_API const char *gr_version(void); /* "0.1.0" */

/* ---- a model ready to run ---- */

typedef struct gr_engine gr_engine;

typedef struct gr_engine_options {
  const char *backend; /* NULL: "cpu" */
  int threads;         /* 0: one a processor; results do not depend on it */
  /* "f32" (NULL: the same), or "bf16": operands of the model's products are rounded, on the way into them; sums are F32 in both. */
  const char *precision;
} gr_engine_options;

/* options may be NULL. *engine is NULL on failure. */
GR_API gr_status gr_engine_open(gr_engine **engine, const char *model, const gr_engine_options *options, gr_error *e);
GR_API void gr_engine_close(gr_engine *engine); /* NULL is fine */

/* From now on scale times this adapter counts in everything the engine computes. */
GR_API gr_status gr_engine_add_adapter(gr_engine *engine, const char *path, float scale, gr_error *e);
GR_API void gr_engine_drop_adapters(gr_engine *engine);
/* What there is to know of the adapters in use, a sentence a line: those that say that they were trained on another base. "": nothing.
 * Good until the next call that adds or drops one. */
GR_API const char *gr_engine_notes(const gr_engine *engine);

GR_API int32_t gr_engine_vocabulary(const gr_engine *engine); /* number of tokens */
GR_API int32_t gr_engine_context(const gr_engine *engine);    /* tokens the model was trained for */

/* Token ids of a text, BOS included where the model wants it. *ids is freed with gr_engine_free. */
GR_API gr_status gr_engine_tokenize(const gr_engine *engine, const char *text, size_t bytes, int32_t **ids, size_t *count, gr_error *e);
GR_API void gr_engine_free(void *p);

/* ---- using it ---- */

typedef struct gr_generate_settings {
  int32_t tokens_max;
  double temperature; /* 0: always the most likely token */
  int32_t top_k;      /* 0: all */
  double top_p, min_p, repeat_penalty;
  uint64_t seed;
} gr_generate_settings; /* settings that are NULL are the default ones */
GR_API gr_generate_settings gr_generate_settings_default(void);

/* Each token's bytes as they come, which need not be whole characters; false stops. */
typedef bool gr_text_callback(void *ctx, const char *text, size_t bytes);

/* Continues a prompt, in which control tokens may be written out. */
GR_API gr_status gr_engine_generate(gr_engine *engine, const char *prompt, size_t bytes, const gr_generate_settings *settings,
                                    gr_text_callback *on_text, void *ctx, gr_error *e);

/* One message of a conversation; role: "system", "user", "assistant". */
typedef struct gr_chat_message {
  const char *role, *content;
} gr_chat_message;

/* The assistant's next answer in a conversation, written by the model's own chat template (ChatML where it has none). What messages say
 * stays text, whatever control tokens it spells. */
GR_API gr_status gr_engine_chat(gr_engine *engine, const gr_chat_message *messages, size_t count, const gr_generate_settings *settings,
                                gr_text_callback *on_text, void *ctx, gr_error *e);

/* nll[i] = -ln p(ids[i + 1] | ids[0..i]) for i = 0..count-2. count from 2 to the context. */
GR_API gr_status gr_engine_score(gr_engine *engine, const int32_t *ids, size_t count, float *nll, gr_error *e);

/* ---- training an adapter ---- */

typedef struct gr_training gr_training;

GR_API gr_status gr_training_create(gr_training **training, gr_error *e);
GR_API void gr_training_free(gr_training *training); /* NULL is fine */
/* Options by the names of `graft train --help` ("model", "data", "output", "lora_r", ...), values as text; "data" and other lists
 * may be set several times. GR_ERR_USAGE names an unknown option's nearest. */
GR_API gr_status gr_training_set(gr_training *training, const char *name, const char *value, gr_error *e);
GR_API gr_status gr_training_load(gr_training *training, const char *yaml, gr_error *e);

typedef enum gr_progress_kind {
  GR_PROGRESS_NOTE,
  GR_PROGRESS_PLAN,
  GR_PROGRESS_STEP,
  GR_PROGRESS_EVAL,
  GR_PROGRESS_CHECKPOINT,
  GR_PROGRESS_DONE
} gr_progress_kind;

typedef struct gr_progress {
  gr_progress_kind kind;
  const char *text; /* note: what to know; checkpoint: its path; done: the adapter's */
  uint64_t step, steps_total;
  double epoch, loss, learning_rate, gradient_norm, tokens_per_second;
  bool has_heldout; /* eval and done: there is held-out data */
  double heldout_loss;
  size_t memory_bytes;
} gr_progress;

/* Runs to the end. on_progress and stop may be NULL; stop is polled many times a step: when it turns true, a checkpoint is written
 * and GR_ERR_CANCELLED comes back (set "resume" to go on). */
GR_API gr_status gr_training_run(gr_training *training, void (*on_progress)(void *ctx, const gr_progress *progress),
                                 bool (*stop)(void *ctx), void *ctx, gr_error *e);

#ifdef __cplusplus
}
#endif
#endif
