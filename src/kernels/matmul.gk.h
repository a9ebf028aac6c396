/* y[m,n] = sum over k of w[k,m] x[k,n], for every weight type; and z + that. */
#include "kernels/gk/product.h"

#define GK_FORMAT(format, dtype) GK_PRODUCT_KERNELS(matmul, format, false)
#include "kernels/formats.def"
#undef GK_FORMAT
