/* LoRA adapters: y = W x + s B (A x), s = scale * alpha / rank (architectures.md 7.2, 8.1). A and B are F32 and live here. */
#ifndef GR_MODEL_LORA_H
#define GR_MODEL_LORA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct gr_model;

typedef struct gr_lora_pair {
  const char *name; /* of the base tensor, "blk.0.attn_q.weight" */
  int64_t in, out, rank;
  int64_t experts; /* matrices in the base tensor's stack; 1: an ordinary matrix */
  float *a;        /* [in, rank, experts]: ne0 = in */
  float *b;        /* [rank, out, experts] */
} gr_lora_pair;

typedef struct gr_lora gr_lora;

typedef struct gr_lora_options {
  int64_t rank;
  double alpha;
  bool rslora;                /* s = alpha / sqrt(rank); folded into alpha, so that every reader applies it */
  const char *const *targets; /* see gr_lora_match; none: all-linear */
  size_t n_targets;
  uint64_t seed;
} gr_lora_options;

/* A fresh adapter: A uniform in +-1/sqrt(in), a function of (seed, tensor name, expert, index) alone; B zero, so it changes nothing.
 * A target that matches no linear is refused with the valid ones, a rank below 1 or above what any of them allows too. A matrix that
 * allows less (its smaller side) has the rank that it allows: its s is alpha over that rank, as every reader of the file computes it. */
gr_status gr_lora_create(gr_lora **l, const struct gr_model *m, const gr_lora_options *o, gr_error *e);
/* From an adapter GGUF; refuses one of another architecture, or that does not fit m. */
gr_status gr_lora_load(gr_lora **l, const struct gr_model *m, const char *path, gr_error *e);
void gr_lora_free(gr_lora *l); /* NULL is fine */

size_t gr_lora_pair_count(const gr_lora *l);
gr_lora_pair *gr_lora_pair_at(const gr_lora *l, size_t i);
/* Index of the pair on a base tensor, or -1. */
ptrdiff_t gr_lora_find(const gr_lora *l, const char *name);
double gr_lora_alpha(const gr_lora *l); /* as written into the file; 0: none, s = scale */
/* Whether its file holds the hash of the base that it was trained on (io/identity.h). */
bool gr_lora_names_base(const gr_lora *l);
/* GR_ERR_MISMATCH, in a sentence that is a refusal or a note as the caller has it, when the adapter's file says that it was trained on
 * another base than m. hash: m's gr_base_hash where it is known; NULL: only m's sample is compared, which costs no more than a few
 * kilobytes a tensor. An adapter that says nothing, as one of other programs, passes. Another quantization of the same model is a base
 * that one may mean; another model of the same shapes is not. */
gr_status gr_lora_check_base(const gr_lora *l, const struct gr_model *m, const char *hash, gr_error *e);
/* s of a pair for a user scale. */
float gr_lora_scale(const gr_lora *l, const gr_lora_pair *p, float scale);
size_t gr_lora_parameters(const gr_lora *l); /* floats in all A and B */
/* All of them in one block: A then B of each pair, pair after pair. */
float *gr_lora_values(gr_lora *l);
/* GR_ERR_NUMERIC, with the tensor named, when a value is NaN or infinite. */
gr_status gr_lora_check_finite(const gr_lora *l, gr_error *e);

/* Writes the adapter GGUF that llama.cpp loads. Refuses non-finite values. base_hash: gr_base_hash of m, which it was
 * trained on; NULL: not said, and no sample of it either. */
gr_status gr_lora_save(const gr_lora *l, const struct gr_model *m, const char *path, const char *base_hash, gr_error *e);

/* True when a target means the linear `name` ("blk.3.attn_q.weight"). A target is
 *   a GGUF name with or without "blk.N." and ".weight": attn_q, blk.0.attn_q;
 *   a Hugging Face name, perhaps with its module before it: q_proj, self_attn.q_proj, mlp.experts.down_proj, mlp.gate, lm_head;
 *   a group: attention; mlp, the dense feed-forward and the shared experts; experts, the routed ones; all-linear, which is attention and
 *   mlp: not the routed experts, not the router, not the gate of a shared expert, not the head;
 *   or re:EXPRESSION, a POSIX extended regular expression that must match the whole name. */
bool gr_lora_match(const char *target, const char *name);

/* Values of A and of B. */
static inline size_t gr_lora_pair_a(const gr_lora_pair *p) { return (size_t)(p->rank * p->in * p->experts); }
static inline size_t gr_lora_pair_b(const gr_lora_pair *p) { return (size_t)(p->rank * p->out * p->experts); }

#endif
