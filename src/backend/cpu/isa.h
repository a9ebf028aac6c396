/* The kernels of one instruction set, as a table. kernels/kernels.def is the only list of them; each set's table is filled by
 * kernels/table.c, compiled once per set (cmake/kernels.cmake). Drivers (the other .c files of this folder) know shapes, strides
 * and threads; kernels know vectors and never allocate, lock or fail. */
#ifndef GR_CPU_ISA_H
#define GR_CPU_ISA_H
#include "backend/cpu/attention.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/product.h"
#include "base/error.h"
#include "quant/quant.h"

/* dropout: of a run, step and adapter (ops/dropout.h). */
typedef struct gr_cpu_mask {
  uint64_t key;
  uint32_t threshold; /* words from here on are kept, */
  float scale;        /* and what they keep is multiplied by this */
} gr_cpu_mask;

typedef struct gr_cpu_isa {
  const char *name;
  int block_rows; /* rows that the micro-kernel of products computes at once */
  int lanes;
  bool words;                  /* products in bf16 take pairs of them */
  gr_decode_fn *const *decode; /* by type; bit-equal to gr_quant_decoder's */
#define GR_KERNEL(result, name, args) result(*name) args;
#include "backend/cpu/kernels/kernels.def"
#undef GR_KERNEL
} gr_cpu_isa;

/* Whether processors of this maker, named as CPUID does, multiply pairs of bf16 (vdpbf16ps) faster than floats; of one that is not known
 * it is not assumed. A table and no timing: which set runs decides bits of bf16, and they must not differ from run to run. */
bool gr_cpu_pairs_gain(const char *maker);

/* The best set that this machine runs, or the one that GRAFT_CPU names; an unknown or unavailable name is refused in words. */
gr_status gr_cpu_isa_choose(const gr_cpu_isa **isa, gr_error *e);

#endif
