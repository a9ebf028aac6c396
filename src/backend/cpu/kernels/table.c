#include "backend/cpu/kernels/micro.h"

#define GR_TEXT_(x) #x
#define GR_TEXT(x) GR_TEXT_(x)

extern const gr_cpu_isa GR_ISA_FN(isa);

const gr_cpu_isa GR_ISA_FN(isa) = {
  .name = GR_TEXT(GR_ISA),
  .block_rows = GR_ROWS,
  .lanes = GR_LANES,
  .words = GR_WORDS,
  .decode = GR_ISA_FN(decoders),
#define GR_KERNEL(result, name, args) .name = GR_ISA_FN(name),
#include "backend/cpu/kernels/kernels.def"
#undef GR_KERNEL
};
