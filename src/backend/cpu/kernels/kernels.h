/* Included by every kernel file: vectors, and the prototypes of kernels.def under this instruction set's names. */
#ifndef GR_CPU_KERNELS_H
#define GR_CPU_KERNELS_H
#include "backend/cpu/attention.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/simd.h"

#define GR_KERNEL(result, name, args) result GR_ISA_FN(name) args;
#include "backend/cpu/kernels/kernels.def"
#undef GR_KERNEL

extern gr_decode_fn *const GR_ISA_FN(decoders)[GR_DTYPE_COUNT];

#endif
