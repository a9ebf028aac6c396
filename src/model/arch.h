/* What an architecture's file provides, and the blocks it builds from. */
#ifndef GR_MODEL_ARCH_H
#define GR_MODEL_ARCH_H
#include "model/model.h"
#include "ops/params.h"

typedef struct gr_builder gr_builder;

typedef struct gr_arch {
  const char *name;                                 /* general.architecture */
  int rope_mode;                                    /* GR_ROPE_NORMAL or GR_ROPE_NEOX */
  bool rope_whole_head;                             /* n_rot must equal the head size */
  gr_tensor *(*layer)(gr_builder *b, gr_tensor *x); /* x [width, n] -> [width, n]; b->layer says which */
} gr_arch;

extern const gr_arch *const gr_archs[]; /* ends with NULL */

struct gr_builder {
  const gr_model *model;
  const gr_build *options;
  gr_model_graph *out;
  gr_graph *graph;
  int32_t layer;
  gr_tensor **weights; /* [tensors of the file] leaves made so far: what the architecture uses */
  /* Only while a model is opened: collects the linears. */
  gr_linear *linears;
  size_t n_linears, linears_cap;
};

/* Every block returns NULL after an error, as all builders do, and leaves the sentence in the graph. `stem` is the tensor name
 * without ".weight"; in a layer it is preceded by "blk.N.". */

/* The leaf of a tensor of this shape and name (stem + suffix, in the layer); misshapen ones are refused by name, and missing ones
 * unless `optional`, which then gives NULL without an error. */
gr_tensor *gr_block_weight(gr_builder *b, const char *stem, const char *suffix, int64_t ne0, int64_t ne1, bool optional);
/* rms_norm(x) * weight [ne0 of x]. */
gr_tensor *gr_block_norm(gr_builder *b, gr_tensor *x, const char *stem);
/* W x (+ bias where the file has one, or must have one) + what adapters add. */
enum gr_bias { GR_BIAS_OPTIONAL, GR_BIAS_REQUIRED };
gr_tensor *gr_block_linear(gr_builder *b, gr_tensor *x, const char *stem, int64_t out, enum gr_bias bias);

typedef struct gr_attention_spec {
  enum gr_bias qkv_bias;
  bool head_norm; /* RMS norm of each head of q and k before RoPE (attn_q_norm, attn_k_norm) */
  int32_t window; /* 0: none */
} gr_attention_spec;
/* x [width, n], normed -> attn_output of the attention over it. */
gr_tensor *gr_block_attention(gr_builder *b, gr_tensor *x, const gr_attention_spec *spec);
/* down(act(gate x) * up x) */
gr_tensor *gr_block_ffn(gr_builder *b, gr_tensor *x, int glu_kind);
/* The pre-norm layer that most share: x + attention(norm x), then + ffn(norm x). */
gr_tensor *gr_block_layer(gr_builder *b, gr_tensor *x, const gr_attention_spec *spec, int glu_kind);

struct gr_model {
  gr_gguf *file;
  const gr_arch *arch;
  gr_hparams hp;
  bool tied;
  gr_tokenizer *tokenizer;
  float *rope_factors; /* [rope_dims/2] divisors of the frequencies, or NULL */
  gr_linear *linears;
  size_t n_linears;
  gr_arena names;
};

gr_status gr_hparams_read(gr_model *m, gr_error *e);  /* hparams.c */
gr_status gr_builder_run(gr_builder *b, gr_error *e); /* build.c: the whole graph, into b->out */

#endif
