/* The GGUF block formats: reference decode and encode, one file per format; layouts in blocks.h.
 *
 * A decoder defines what a block means: F32 arithmetic in a stated order without contraction, so the bits are the same under every compiler
 * and on every device. A block's scale and its sub-block's integer are multiplied first; then y = scale * code, scale * code - min or
 * scale * code + m, every operation rounded. Extreme scales decode to what that gives: denormal results are kept, and an infinite scale
 * gives NaN where the code or the sub-scale is zero. The sign and payload of a NaN result are not defined, for hardware differs there:
 * comparisons take all NaNs for one. Only F32 and BF16, which are moved and not computed, keep a NaN's bits. */
#ifndef GR_QUANT_QUANT_H
#define GR_QUANT_QUANT_H
#include "base/error.h"
#include "tensor/dtype.h"

/* y[n] = the values of n elements (a multiple of the block) stored at x. Any float or quantized type. */
typedef void gr_decode_fn(const void *x, float *y, int64_t n);
/* Stores x[n] at y. */
typedef void gr_encode_fn(const float *x, void *y, int64_t n);

gr_decode_fn *gr_quant_decoder(gr_dtype t); /* NULL for integer types */
gr_encode_fn *gr_quant_encoder(gr_dtype t); /* NULL where Graft has none: IQ4_NL, IQ4_XS, MXFP4, integers */

#endif
