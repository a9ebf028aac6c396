/* y[m,n] = sum over k of w[m,k] b[n,k], for every weight type and any layout of b; and z + that. */
#include "kernels/gk/product.h"

#define GK_FORMAT(format, dtype) GK_PRODUCT_KERNELS(out_prod, format, true)
#include "kernels/formats.def"
#undef GK_FORMAT
