/* Writing a model with its weights in another type.
 *
 * What is encoded: float tensors of two dimensions or more whose name ends in ".weight". What stays as it is, as llama.cpp leaves it:
 * vectors, norms, routers (ffn_gate_inp*), ssm_conv1d, and everything that is no ".weight" (biases, ssm_a). Metadata is kept, but for
 * general.file_type and general.quantization_version, which are set, and the split.* keys: a split model comes out whole.
 * A row that the type's blocks do not fill falls back to a type of at least its precision with smaller blocks
 * (Q2_K, Q3_K -> Q4_0; Q4_K -> Q5_0; Q5_K -> Q5_1; Q6_K -> Q8_0), and else to half precision. */
#ifndef GR_IO_QUANTIZE_H
#define GR_IO_QUANTIZE_H
#include "io/gguf.h"

typedef struct gr_quantize_tensor {
  const char *name;
  size_t index, count; /* this one of how many, in file order */
  int n_dims;
  int64_t ne[4];
  gr_dtype from, to;
  bool encoded;   /* false: copied, byte for byte */
  bool fell_back; /* `to` is not the type asked for: the rows do not fit its blocks */
  size_t bytes_from, bytes_to;
  double error; /* RMS of what encoding changed, over the RMS of the weights; 0 when copied or when all are zero */
} gr_quantize_tensor;

typedef struct gr_quantize_options {
  gr_pool *pool;  /* NULL: on the caller's thread. The file is the same for any number of threads */
  bool overwrite; /* replace an existing `out`; never the input */
  bool (*on_tensor)(void *ctx, const gr_quantize_tensor *t); /* after each tensor is written; false stops. NULL: nobody is told */
  void *ctx;
} gr_quantize_options;

/* Reads the GGUF `in` and writes `out`, whole or not at all. options may be NULL. Refuses:
 *   GR_ERR_USAGE        a type that is not F32, F16, BF16 or one with an encoder; an existing `out`; `out` that is `in`
 *   GR_ERR_UNSUPPORTED  tensors that are quantized already (named); adapters
 *   GR_ERR_NUMERIC      weights that are NaN or infinite, or beyond half precision where the type's scales are halves
 *   GR_ERR_CANCELLED    on_tensor said so */
gr_status gr_quantize_file(const char *in, const char *out, gr_dtype type, const gr_quantize_options *options, gr_error *e);

/* Whether gr_quantize_file takes it as type. */
bool gr_quantize_has(gr_dtype type);

#endif
