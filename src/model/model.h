/* A model: a GGUF file, checked, and the graphs it stands for.
 *
 * One builder serves training, prefill and generation (DESIGN.md 5): the architecture's file in this folder builds a layer out of
 * the shared blocks, LoRA included; what differs between the uses is which inputs there are and which outputs are asked for. */
#ifndef GR_MODEL_MODEL_H
#define GR_MODEL_MODEL_H
#include "graph/graph.h"
#include "io/gguf.h"
#include "model/lora.h"
#include "ops/op.h"
#include "text/tokenizer.h"

typedef struct gr_model gr_model;

/* What the metadata says, after the defaults of architectures.md 3.1. */
typedef struct gr_hparams {
  int32_t layers, width, heads, heads_kv, head_k, head_v, ff, vocab;
  int32_t context;                                        /* trained context length in tokens, at least 1 */
  int32_t rope_dims;                                      /* n_rot, even */
  float eps;                                              /* of the RMS norms */
  float attention_scale, attention_softcap, head_softcap; /* softcap 0: none */
  float embedding_scale, residual_scale, head_scale;      /* factors of the embedding, of what is added to x, of the logits; 1: none */
  int32_t window;                                         /* tokens that a sliding layer sees; 0: no layer slides */
  int32_t experts, experts_used;                          /* 0: a dense model */
  int32_t expert_ff, shared_ff;                           /* feed-forward length of an expert, of the shared expert (0: none) */
  int32_t dense_layers;                                   /* the first layers, which have no experts */
  int32_t gating;                                         /* GR_GATE_* (ops/params.h) */
  bool renormalise;                                       /* the weights of the chosen experts sum to 1 */
  float expert_scale;                                     /* factor of those weights; 1: none */
  bool rope;                                              /* false: positions do not enter q and k */
  double rope_base;
  double rope_base_local; /* of sliding layers, which then extend no context; 0: as the others */
  double rope_factor;     /* context extension: positions are divided by it (linear), or as YaRN says */
  double rope_attn_factor, yarn_ext_factor, yarn_beta_fast, yarn_beta_slow;
  int32_t rope_original_context;
  double query_growth; /* q of position p is multiplied by 1 + this * ln(1 + floor(p / rope_original_context)); 0: no */
} gr_hparams;

/* A place where an adapter can sit: a linear layer of the graph, or a stack of them. */
typedef struct gr_linear {
  const char *name; /* GGUF tensor name, "blk.3.attn_q.weight" */
  int64_t in, out;
  int64_t experts; /* matrices in the stack; 1: an ordinary one */
  int32_t layer;   /* -1: the head */
} gr_linear;

/* Opens and checks the whole file: architecture, hyper-parameters, every tensor's presence, shape and type; tensors that the
 * architecture does not use are refused by name (ignoring one would give wrong results). */
gr_status gr_model_open(gr_model **m, const char *path, gr_error *e);
/* The same over an open file, which the model then owns (also on failure). */
gr_status gr_model_open_gguf(gr_model **m, gr_gguf *file, gr_error *e);
void gr_model_close(gr_model *m); /* NULL is fine */

const gr_gguf *gr_model_file(const gr_model *m);
const char *gr_model_arch(const gr_model *m);
const gr_hparams *gr_model_hparams(const gr_model *m);
size_t gr_model_parameters(const gr_model *m);        /* weights in the file */
size_t gr_model_active_parameters(const gr_model *m); /* of those, what one token passes through: the used share of the experts */
int32_t gr_model_sliding_layers(const gr_model *m);   /* how many see hp.window tokens only */
bool gr_model_tied(const gr_model *m);                /* the head is token_embd */
size_t gr_model_linear_count(const gr_model *m);
const gr_linear *gr_model_linear(const gr_model *m, size_t i);
/* The tokenizer; a file without one, or with a broken one, does not open. */
const gr_tokenizer *gr_model_tokenizer(const gr_model *m);

/* ---- graphs ---- */

typedef struct gr_adapter_use {
  gr_lora *lora;
  float scale; /* user scale; 1 */
  bool train;  /* its A and B get gradients; at most one adapter is trained */
} gr_adapter_use;

typedef struct gr_build {
  int64_t tokens;  /* capacity n */
  int64_t keys;    /* capacity m of the KV cache; 0: no cache, the tokens are the keys */
  int64_t outputs; /* capacity rows of logits; 0: no logits */
  bool loss;       /* nll of labels */
  const gr_adapter_use *adapters;
  size_t n_adapters;
  float dropout; /* of the input of A of the trained adapter */
} gr_build;

enum { GR_ROPE_GLOBAL, GR_ROPE_LOCAL, GR_ROPE_TABLES };

/* A built graph with its inputs and outputs; what was not asked for is NULL. I32 unless said. */
typedef struct gr_model_graph {
  gr_graph *graph;
  gr_tensor *ids, *positions, *segments;                      /* [n]; segment -1 is padding: sees and is seen by nothing */
  gr_tensor *cosines[GR_ROPE_TABLES], *sines[GR_ROPE_TABLES]; /* [rope_dims/2, n] F32; the local ones only where layers need them */
  gr_tensor *query_scale;                                     /* [1, 1, n] F32, where hp.query_growth is */
  gr_tensor *slots, *key_positions, *key_segments;            /* with a cache: where each token's K and V go [n]; of every slot [m] */
  gr_tensor **k_cache, **v_cache;                             /* [layers] leaves of kind STATE: [head, heads_kv, m] F32 */
  gr_tensor *output_rows;                                     /* [outputs]: which tokens' logits */
  gr_tensor *labels;                                          /* [n]: next id, -1: no loss there */
  gr_tensor *dropout_keys, *dropout_run;                      /* [2,n] and [4]: see gr_dropout_params */
  gr_tensor *logits;                                          /* [V, outputs] F32 */
  gr_tensor *nll;                                             /* [n] F32 */
  gr_tensor **a, **b;                                         /* leaves of the trained adapter's pairs, in its order */
  size_t n_pairs;
} gr_model_graph;

gr_status gr_model_build(const gr_model *m, const gr_build *o, gr_model_graph *out, gr_error *e);
void gr_model_graph_free(gr_model_graph *mg);

/* Writes what a graph takes of n positions: they themselves and tables made of them in double on the host, RoPE's cosines and sines
 * (architectures.md 3.4, with the YaRN magnitude) among them. room: gr_model_position_floats(m) * n floats of the caller's. */
size_t gr_model_position_floats(const gr_model *m);
gr_status gr_model_write_positions(const gr_model *m, const gr_model_graph *mg, gr_plan *p, const int32_t *positions, size_t n, float *room,
                                   gr_error *e);

#endif
