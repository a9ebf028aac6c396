/* Element types: sizes and names, expanded from dtypes.def. */
#ifndef GR_TENSOR_DTYPE_H
#define GR_TENSOR_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum gr_dtype {
#define GR_DTYPE(id, name, ggml, elems, bytes, kind) GR_##id,
#include "tensor/dtypes.def"
#undef GR_DTYPE
  GR_DTYPE_COUNT
} gr_dtype;

typedef enum gr_dtype_kind { GR_KIND_FLOAT, GR_KIND_INT, GR_KIND_QUANT } gr_dtype_kind;

typedef struct gr_dtype_info {
  const char *name;
  int ggml_id;         /* ggml's type number in GGUF files, -1: none */
  int32_t block_elems; /* elements of a block: 1, 32 or 256 */
  int32_t block_bytes;
  gr_dtype_kind kind;
} gr_dtype_info;

const gr_dtype_info *gr_dtype_get(gr_dtype t);
static inline const char *gr_dtype_name(gr_dtype t) { return gr_dtype_get(t)->name; }
static inline bool gr_dtype_is_quant(gr_dtype t) { return gr_dtype_get(t)->kind == GR_KIND_QUANT; }
static inline bool gr_dtype_is_float(gr_dtype t) { return gr_dtype_get(t)->kind == GR_KIND_FLOAT; }

/* By ggml type number or by name (any case); false when Graft has no such type. */
bool gr_dtype_from_ggml(uint32_t ggml_id, gr_dtype *out);
bool gr_dtype_from_name(const char *name, gr_dtype *out);

/* ggml's name of a type number that Graft may not handle ("IQ2_XXS"), or NULL when the number is unassigned: for refusals. */
const char *gr_ggml_type_name(uint32_t ggml_id);

/* Bytes of a contiguous row of n elements; n must be a multiple of block_elems. */
static inline size_t gr_row_bytes(gr_dtype t, int64_t n)
{
  const gr_dtype_info *d = gr_dtype_get(t);
  return (size_t)(n / d->block_elems) * (size_t)d->block_bytes;
}

#endif
