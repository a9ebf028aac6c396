/* Every kernel, compiled for the emulator, and the way into each by number. A kernel whose signature is not what kernels.def says does not
 * compile; one that is not in kernels.def is an unused function, which the flags make an error. */
#include "base/mutant.h"

#define GK_DIALECT_EMU
#define GK_MUTANT(name) (GR_MUTANT(name) != 0)
#define GK_MUTANT_HALF(name, v) GR_MUTANT_HALF(name, v)
#include "kernels/all.gk.h"

#include "backend/emu/entry.h"
#include "backend/emu/launch.h"

extern "C" gr_emu_entry *gr_emu_entry_of(gr_gpu_kernel kernel)
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
