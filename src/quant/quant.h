/* The GGUF block formats: reference decode and encode, one file per format.
 *
 * A decoder defines what a block means: F32 arithmetic in a stated order without contraction, so the bits are the same under
 * every compiler and on every device. Extreme blocks (denormal, infinite, NaN scales) decode to what that arithmetic gives. */
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
