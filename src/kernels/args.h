/* The argument structs of kernels: plain data whose layout the host (C), the emulator and every device compiler agree on. Sizes are
 * asserted by each. Strides are in elements of F32 unless the name says bytes; shapes are as in gr_array, ne[0] fastest.
 * 64-bit members stand first, so that there is no hidden padding. */
#ifndef GK_ARGS_H
#define GK_ARGS_H
#if !defined(__METAL_VERSION__)
#include <stdint.h>
#endif

#if defined(__cplusplus)
#define GK_ARGS_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define GK_ARGS_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif

enum { GK_ARGS_MAX = 256 }; /* bytes of the largest */

/* y[i] = f(x[i]), of shape ne. */
typedef struct gk_unary_args {
  int64_t x_stride[4], y_stride[4];
  uint32_t ne[4];
  uint32_t blocks; /* groups that a row (dimension 0) takes */
  float s;
} gk_unary_args;
GK_ARGS_SIZE(gk_unary_args, 88);

/* y[i] = f(x[i], b[i mod b_ne]), of shape ne. */
typedef struct gk_binary_args {
  int64_t x_stride[4], b_stride[4], y_stride[4];
  uint32_t ne[4], b_ne[4];
  uint32_t blocks, pad;
} gk_binary_args;
GK_ARGS_SIZE(gk_binary_args, 136);

/* Between x of shape ne and y, which has the shape of one of its repeats or is made of its repeats. */
typedef struct gk_repeat_args {
  int64_t x_stride[4], y_stride[4];
  uint32_t x_ne[4], y_ne[4];
  uint32_t blocks, pad;
} gk_repeat_args;
GK_ARGS_SIZE(gk_repeat_args, 104);

/* Gated units: gate, up, the gradient d of their result (backward), all of shape ne; y is the result or both gradients. */
typedef struct gk_glu_args {
  int64_t gate_stride[4], up_stride[4], d_stride[4], y_stride[4];
  uint32_t ne[4];
  uint32_t blocks;
  int32_t kind; /* GK_GLU_ */
} gk_glu_args;
GK_ARGS_SIZE(gk_glu_args, 152);

enum { GK_GLU_SWIGLU, GK_GLU_GEGLU, GK_GLU_SWIGLU_OAI };

/* Norms of rows; y's elements are adjacent. z is a second operand: weights of a row's elements, or the gradient. */
typedef struct gk_norm_args {
  int64_t x_stride[4], z_stride[4], y_stride[4];
  uint32_t ne[4];
  float eps;
  uint32_t pad;
} gk_norm_args;
GK_ARGS_SIZE(gk_norm_args, 120);

/* Rotation of the first 2 * half elements of rows of shape ne; angles [half, ne[2]]. */
typedef struct gk_rope_args {
  int64_t x_stride[4], y_stride[4], cos_stride[2], sin_stride[2];
  uint32_t ne[4];
  uint32_t half, blocks;
  int32_t neox, inverse; /* pairs (i, i + half) instead of (2i, 2i + 1); the transposed rotation */
} gk_rope_args;
GK_ARGS_SIZE(gk_rope_args, 128);

/* Rows of a table by id: walk is what threads are dealt over, y's rows of ceil(length / 8). table_bytes and table_ne: of the dimensions
 * after the first. */
typedef struct gk_rows_args {
  int64_t table_bytes[3], id_stride[3], y_stride[4];
  uint32_t walk[4], table_ne[3];
  uint32_t length, blocks, pad;
} gk_rows_args;
GK_ARGS_SIZE(gk_rows_args, 120);

/* Its adjoint: walk is y's shape with one row; rows: how many it has. */
typedef struct gk_rows_back_args {
  int64_t x_stride[4], id_stride[3], y_stride[4];
  uint32_t x_ne[4], walk[4];
  uint32_t rows, blocks;
} gk_rows_back_args;
GK_ARGS_SIZE(gk_rows_back_args, 128);

/* walk: rows of ceil(length / 4). */
typedef struct gk_dropout_args {
  int64_t x_stride[2], y_stride[2], key_stride[2], run_stride;
  uint32_t walk[4];
  uint32_t length, blocks, threshold, adapter;
  float scale;
  uint32_t pad;
} gk_dropout_args;
GK_ARGS_SIZE(gk_dropout_args, 96);

/* Products: y [m,n], a sum over k, of a packed matrix w (rows of w_row_bytes) and b (b_stride[0] along w's rows' direction of the op, see
 * gk/product.h), plus z of y's shape where the kernel has it. */
typedef struct gk_product_args {
  int64_t w_row_bytes;
  int64_t b_k_stride, b_n_stride;
  int64_t y_n_stride;
  int64_t z_m_stride, z_n_stride;
  uint32_t m, n, k;
  uint32_t m_tiles;
} gk_product_args;
GK_ARGS_SIZE(gk_product_args, 64);

#endif
