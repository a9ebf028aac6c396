/* y[:,i,t] = W of the pair's expert times x[:, i mod nb, t], for every weight type; rows of pairs that go nowhere are 0. */
#include "kernels/gk/experts.h"

#define GK_FORMAT(format, dtype) GK_EXPERTS_KERNEL(matmul_id, format, false)
#include "kernels/formats.def"
#undef GK_FORMAT
