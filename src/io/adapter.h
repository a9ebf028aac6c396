/* LoRA adapter files, as llama.cpp reads and writes them: a GGUF with general.type "adapter", adapter.type "lora", and for
 * each adapted base tensor NAME the pair NAME.lora_a, NAME.lora_b.
 *
 *   linear            W [in, out]       a [in, r]      b [r, out]       y += s B (A x)
 *   experts           W [in, out, E]    a [in, r, E]   b [r, out, E]    the same, by expert
 *   token_embd.weight W [D, V]          a [r, V]       b [r, D]         x += s B A[:, token]   (a is transposed)
 *
 * s = user scale * alpha / r, with one alpha in the file and r = b.ne[0] of each pair; with alpha missing or 0, s = user
 * scale. So an rsLoRA or a per-tensor alpha must be folded into B by whoever writes the file. */
#ifndef GR_IO_ADAPTER_H
#define GR_IO_ADAPTER_H
#include "io/gguf.h"
#include "io/gguf_write.h"

typedef struct gr_adapter_pair {
  const char *base; /* the adapted tensor's name, "blk.0.attn_q.weight" */
  const gr_gguf_tensor *a, *b;
  int64_t rank;
  int64_t in, out; /* of the base tensor: ne[0] and ne[1] (for token_embd.weight too: D and V) */
  int64_t experts; /* the base tensor's ne[2]: 1 for an ordinary matrix */
  bool transposed; /* token_embd.weight */
} gr_adapter_pair;

typedef struct gr_adapter gr_adapter;

/* Opens and checks an adapter file: what it says it is, that every tensor is half of a pair, that the halves fit each other,
 * types (F32, F16, BF16, Q8_0), alpha (finite, not negative) and values (finite). Tensors named *_norm.weight are ignored, as llama.cpp
 * ignores them. Pairs stand in the order of their lora_a in the file. */
gr_status gr_adapter_open(gr_adapter **a, const char *path, gr_error *e);

/* The same over an open file, which the adapter takes (it is closed on failure too). */
gr_status gr_adapter_from_gguf(gr_adapter **a, gr_gguf *g, gr_error *e);
void gr_adapter_close(gr_adapter *a); /* NULL is fine */

/* Refuses (GR_ERR_MISMATCH) an adapter for another architecture, for tensors that the base lacks, or of other shapes. */
gr_status gr_adapter_check(const gr_adapter *a, const gr_gguf *base, gr_error *e);

const gr_gguf *gr_adapter_gguf(const gr_adapter *a);
gr_gguf_str gr_adapter_architecture(const gr_adapter *a);
double gr_adapter_alpha(const gr_adapter *a);   /* 0 when missing */
size_t gr_adapter_ignored(const gr_adapter *a); /* tensors ignored: the user should hear of them */
size_t gr_adapter_count(const gr_adapter *a);
const gr_adapter_pair *gr_adapter_at(const gr_adapter *a, size_t i);
const gr_adapter_pair *gr_adapter_find(const gr_adapter *a, const char *base); /* NULL when not adapted */

/* alpha / r of a pair, 1 when alpha is missing or 0: what llama.cpp multiplies the user's scale with. */
double gr_adapter_scale(const gr_adapter *a, const gr_adapter_pair *pair);

/* ---- writing ---- */

typedef struct gr_adapter_out {
  const char *base;               /* name of the adapted tensor */
  int64_t in, out, experts, rank; /* of the base tensor, as in gr_adapter_pair; experts 1 for a matrix */
  const float *a, *b;             /* laid out as in the table above */
} gr_adapter_out;

typedef struct gr_adapter_info {
  const char *architecture; /* of the base */
  const char *name;         /* general.name; NULL: none */
  double alpha;
  const char *base_hash;   /* graft.base.hash, which says what it was trained on; NULL: none */
  const char *base_sample; /* graft.base.sample, likewise (identity.h) */
  const gr_adapter_out *pairs;
  size_t pair_count;
} gr_adapter_info;

/* Puts the adapter's metadata and tensors into a writer, for callers with keys of their own to add (named graft.*). */
void gr_adapter_put(gr_gguf_writer *w, const gr_adapter_info *info);

/* Writes a whole adapter file, all or nothing. Refuses NaN and infinity (GR_ERR_NUMERIC): such an adapter is never saved. */
gr_status gr_adapter_save(const char *path, const gr_adapter_info *info, gr_error *e);

#endif
