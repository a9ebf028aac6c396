/* What an architecture's file provides, and the blocks it builds from. */
#ifndef GR_MODEL_ARCH_H
#define GR_MODEL_ARCH_H
#include "model/model.h"
#include "ops/params.h"

typedef struct gr_builder gr_builder;

/* ---- metadata ---- */

/* Reads keys of the architecture ("ARCH." is put before each suffix) one after another; after the first failure the rest do nothing. */
typedef struct gr_reader {
  gr_model *model;
  const gr_gguf *file;
  gr_error *e;
  gr_status status;
  char key[128];
} gr_reader;

int32_t gr_reader_int(gr_reader *r, const char *suffix, gr_gguf_need need, uint64_t min, uint64_t max, int32_t preset);
double gr_reader_real(gr_reader *r, const char *suffix, gr_gguf_need need, double min, double max, double preset);
bool gr_reader_bool(gr_reader *r, const char *suffix, bool preset);
/* attention.sliding_window and its pattern: in every `period` layers all but the last slide (0: all do), unless the file says otherwise. */
void gr_reader_window(gr_reader *r, gr_gguf_need need, int32_t period);

enum gr_experts_need { GR_EXPERTS_NONE, GR_EXPERTS_OPTIONAL, GR_EXPERTS_REQUIRED };

typedef struct gr_arch {
  const char *name;                                 /* general.architecture */
  int rope_mode;                                    /* GR_ROPE_NORMAL or GR_ROPE_NEOX */
  bool rope_whole_head;                             /* n_rot must equal the head size */
  bool own_head;                                    /* output.weight is required: the embedding never stands in for it */
  enum gr_experts_need experts;                     /* the rest is for those that have them, where the file does not say otherwise */
  int gating;                                       /* GR_GATE_* */
  bool renormalise;                                 /* of the weights of the chosen experts */
  bool shared_gate;                                 /* a shared expert stands behind ffn_gate_inp_shexp */
  bool ff_of_all;                                   /* feed_forward_length is that of the experts used together, not of one */
  void (*hparams)(gr_reader *r);                    /* keys of its own, into r->model->hp; NULL: none */
  gr_tensor *(*layer)(gr_builder *b, gr_tensor *x); /* x [width, n] -> [width, n]; b->layer says which */
} gr_arch;

extern const gr_arch *const gr_archs[]; /* ends with NULL */

/* ---- blocks ---- */

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
 * without ".weight"; in a layer it is preceded by "blk.N.". Whether a tensor is there, missing or misshapen is asked of the file: a
 * missing one is refused by name unless `optional`, which then gives NULL without an error; a misshapen one is always refused. */

/* weights.c: leaves. A matrix [ne0, ne1], or with `experts` a stack of them [ne0, ne1, experts]. */
bool gr_block_has(const gr_builder *b, const char *stem, const char *suffix);
/* Whether products that could stand in one tensor do (attn_qkv for attn_q, k, v); an error when there is neither. */
bool gr_block_fused(gr_builder *b, const char *fused, const char *split);
gr_tensor *gr_block_weight(gr_builder *b, const char *stem, const char *suffix, int64_t ne0, int64_t ne1, bool optional);
gr_tensor *gr_block_stack(gr_builder *b, const char *stem, int64_t ne0, int64_t ne1, int64_t experts);
/* F32 values that ops take as they are: norms, biases [ne0], biases of experts [ne0, ne1]. */
gr_tensor *gr_block_values(gr_builder *b, const char *stem, const char *suffix, int64_t ne0, int64_t ne1, bool optional);

/* linear.c: products, with what adapters add. */
enum gr_bias { GR_BIAS_OPTIONAL, GR_BIAS_REQUIRED };
/* x [in, n] -> W x (+ bias where the file has one, or must have one). */
gr_tensor *gr_block_linear(gr_builder *b, gr_tensor *x, const char *stem, int64_t out, enum gr_bias bias);
/* The choice of experts for each token, and the pairs sorted by expert: made once a layer, kept for backward. */
typedef struct gr_routing {
  gr_tensor *weights, *ids; /* [used, n] */
  gr_tensor *perm, *offsets;
} gr_routing;
/* x [in, slots, n] -> [out, used, n]: each pair's product with the matrix of its expert. */
gr_tensor *gr_block_expert_linear(gr_builder *b, gr_tensor *x, const char *stem, int64_t out, enum gr_bias bias, const gr_routing *r);

/* blocks.c. rms_norm(x) * weight [ne0 of x]. */
gr_tensor *gr_block_norm(gr_builder *b, gr_tensor *x, const char *stem);

/* RMS norm of q and k before RoPE (attn_q_norm, attn_k_norm): of each head, or of all heads as one vector. */
enum gr_qk_norm { GR_QK_NORM_NONE, GR_QK_NORM_HEAD, GR_QK_NORM_WHOLE };
typedef struct gr_attention_spec {
  enum gr_bias qkv_bias, out_bias;
  enum gr_qk_norm qk_norm;
  bool sinks; /* attn_sinks.weight: a logit for each head */
} gr_attention_spec;
/* x [width, n], normed -> attn_output of the attention over it; windowed where the model's layer is. q, k and v may be one tensor,
 * attn_qkv. */
gr_tensor *gr_block_attention(gr_builder *b, gr_tensor *x, const gr_attention_spec *spec);
/* down(act(gate x) * up x), the tensors named ffn_gate.., or with a tail ("_shexp") ffn_gate_shexp..; fused: ffn_up holds gate and up. */
gr_tensor *gr_block_ffn(gr_builder *b, gr_tensor *x, const char *tail, int64_t rows, int glu_kind, bool fused);
/* experts.c: router, experts, shared expert (where the file has one). */
gr_tensor *gr_block_experts(gr_builder *b, gr_tensor *x, int glu_kind, enum gr_bias bias);

/* The layer that most share: x + attention(norm x), then + ffn(norm x). */
typedef struct gr_layer_spec {
  gr_attention_spec attention;
  const char *ffn_norm;                    /* NULL: "ffn_norm" */
  const char *after_attention, *after_ffn; /* norms of what is added to x; NULL: none */
  int glu_kind;
  bool fused_ffn;           /* ffn_up holds gate and up */
  enum gr_bias expert_bias; /* of router and experts */
} gr_layer_spec;
gr_tensor *gr_block_layer(gr_builder *b, gr_tensor *x, const gr_layer_spec *spec);

struct gr_model {
  gr_gguf *file;
  const gr_arch *arch;
  gr_hparams hp;
  bool tied;
  gr_tokenizer *tokenizer;
  float *rope_factors; /* [rope_dims/2] divisors of the frequencies, or NULL */
  uint8_t *slides;     /* [layers] 1: attention sees only hp.window tokens; NULL: none does */
  gr_linear *linears;
  size_t n_linears;
  gr_arena names;
};

static inline bool gr_layer_slides(const gr_model *m, int32_t layer) { return m->slides && m->slides[layer]; }

gr_status gr_hparams_read(gr_model *m, gr_error *e);  /* hparams.c */
gr_status gr_builder_run(gr_builder *b, gr_error *e); /* build.c: the whole graph, into b->out */

#endif
