/* Every kernel, compiled for the emulator, and the way into each by number. Compiled once more (GR_EMU_FMA) for processors that have a fused
 * multiply-add as an instruction: it is a call elsewhere, and products are made of it. A kernel whose signature is not what kernels.def says does not
 * compile; one that is not in kernels.def is an unused function, which the flags make an error. */
#include "base/mutant.h"

#define GK_DIALECT_EMU
#define GK_MUTANT(name) (GR_MUTANT(name) != 0)
#define GK_MUTANT_HALF(name, v) GR_MUTANT_HALF(name, v)
#include "kernels/all.gk.h"

#include "backend/emu/entry.h"
#include "backend/emu/launch.h"

#if !defined(GR_EMU_FMA)
#define GR_EMU_FMA 0
#endif
#if GR_EMU_FMA
#define GR_EMU_ENTRY_OF gr_emu_entry_of_fma
#else
#define GR_EMU_ENTRY_OF gr_emu_entry_of_plain
#endif

extern "C" gr_emu_entry *GR_EMU_ENTRY_OF(gr_gpu_kernel kernel)
{
  switch (kernel) {
#define GK_ENTRY(name, args, buffers, size, shared, sync)                                                                                  \
  case GR_GPU_##name:                                                                                                                      \
    return GR_EMU_ENTRY(name, args, buffers);
#include "kernels/kernels.def"
#undef GK_ENTRY
  case GR_GPU_KERNEL_COUNT: break;
  }
  return nullptr;
}
