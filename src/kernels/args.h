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

/* Rows of ne[0] zeros with rows of `length` placed at `first`. */
typedef struct gk_slice_args {
  int64_t x_stride[4], y_stride[4];
  uint32_t ne[4];
  uint32_t blocks, first, length, pad;
} gk_slice_args;
GK_ARGS_SIZE(gk_slice_args, 96);

/* Slices of x, of shape ne, into a cache of `rows` slices; its strides are in its own elements. */
typedef struct gk_store_args {
  int64_t x_stride[4], cache_stride[3], id_stride;
  uint32_t ne[4];
  uint32_t blocks, rows;
} gk_store_args;
GK_ARGS_SIZE(gk_store_args, 88);

/* y [length,slots,n] weighed by w [slots,n] to z [length,n], or their gradients (dy, dw, from dz in z's place). */
typedef struct gk_combine_args {
  int64_t y_stride[3], w_stride[2], z_stride[2], dy_stride[2], dw_stride;
  uint32_t length, slots, blocks, pad;
} gk_combine_args;
GK_ARGS_SIZE(gk_combine_args, 96);

/* Routing of tokens to `used` of the experts (struct gr_route_params). y: the weights, or the gradient of the logits; w: the gradient of
 * the weights. */
typedef struct gk_route_args {
  int64_t logit_stride[2], bias_stride, id_stride[2], w_stride[2], y_stride[2];
  uint32_t experts, used;
  int32_t gating, renormalise, biased; /* GK_GATE_ */
  float clamp, scale;
  uint32_t pad;
} gk_route_args;
GK_ARGS_SIZE(gk_route_args, 104);

enum { GK_GATE_SOFTMAX, GK_GATE_SIGMOID, GK_GATE_SELECTED };

/* The grouping of `pairs` pairs (slot, token), `used` slots a token. */
typedef struct gk_group_args {
  int64_t id_stride[2], perm_stride[2], offset_stride;
  uint32_t used, pairs, experts, pad;
} gk_group_args;
GK_ARGS_SIZE(gk_group_args, 56);

/* Products with stacks of experts: w's matrices lie w_expert_bytes apart (out_prod_id: as many floats); b and y are rows by slot and token,
 * b_rows and y_rows of them a token; `tiles` tiles of columns (pairs) for all experts. Of product only w_row_bytes, y_n_stride, m, n, k and
 * m_tiles are read. */
typedef struct gk_experts_args {
  gk_product_args product;
  int64_t w_expert_bytes, b_stride[3], y_stride[3], id_stride[2], offset_stride;
  uint32_t used, pairs, experts, tiles;
  uint32_t b_rows, y_rows;
} gk_experts_args;
GK_ARGS_SIZE(gk_experts_args, 168);

/* Sums over slots: rows of `length`, `used` a token, to `slots` a token. */
typedef struct gk_slots_args {
  int64_t y_stride[2];
  uint32_t length, used, slots, blocks;
} gk_slots_args;
GK_ARGS_SIZE(gk_slots_args, 32);

/* Head and loss: logits of tokens (w.n of them) by rows of the head (w.m) from w.k, and by an adapter's B (b.k its rank, 0: none). chunk:
 * tiles of rows that a group goes through; first: the head's row that row 0 here is. */
typedef struct gk_head_args {
  gk_product_args w, b;
  int64_t label_stride, bias_stride;
  uint32_t chunk, chunks, first, vocab;
  int32_t biased;
  float scale, softcap;
  uint32_t pad;
} gk_head_args;
GK_ARGS_SIZE(gk_head_args, 176);

/* Attention of n queries, `heads` heads of `length` channels, over m keys of kv_heads, with values of `width`: struct gr_attention_params.
 * Strides by channel, head and vector; index_stride: of pos_q, seg_q, pos_k, seg_k. What is written, and the result that backward reads, is
 * contiguous. */
typedef struct gk_attention_args {
  int64_t q_stride[3], k_stride[3], v_stride[3], dout_stride[3], index_stride[4], lse_stride[2], sink_stride;
  uint32_t n, m, heads, kv_heads, length, width;
  int32_t window, sinks;
  float scale, softcap;
} gk_attention_args;
GK_ARGS_SIZE(gk_attention_args, 192);

/* The gradient d through a norm and its weights w, on top of g. */
typedef struct gk_norm_add_args {
  int64_t g_stride[4], x_stride[4], d_stride[4], y_stride[4], w_stride;
  uint32_t ne[4];
  float eps;
  uint32_t pad;
} gk_norm_add_args;
GK_ARGS_SIZE(gk_norm_add_args, 160);

#endif
