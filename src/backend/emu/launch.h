/* One launch on the emulated device, watched.
 *
 * Kernels never see device memory. Each array of a launch is copied into a window of its own with guards on both sides, outputs being
 * NaN bytes until written (an output that is also an input is one window, as it is one array); the groups run twice, in ascending and in
 * descending order of threads and groups, and must give the same bits; then the outputs are copied back. So whatever a kernel reads or
 * writes outside its arrays is caught, here by the guards or under AddressSanitizer at the very access, even when device memory has other
 * tensors there. */
#ifndef GR_BACKEND_EMU_LAUNCH_H
#define GR_BACKEND_EMU_LAUNCH_H
#include "backend/emu/group.h"
#include "backend/emu/memory.h"
#include "backend/gpu/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_emu_launcher {
  gr_emu_machine *machine;
  unsigned char *windows; /* grows to the largest launch */
  size_t windows_bytes;
} gr_emu_launcher;

gr_status gr_emu_launch(gr_emu_launcher *l, const gr_emu_memory *memory, const gr_emu_kernel *kernel, const gr_gpu_launch *launch,
                        uint32_t lanes, gr_error *e);
void gr_emu_launcher_deinit(gr_emu_launcher *l);

/* The emulator's builds of a kernel (kernels.cpp): the same bits from both; the second is there on x86-64, for processors that have it. */
gr_emu_entry *gr_emu_entry_of_plain(gr_gpu_kernel kernel);
gr_emu_entry *gr_emu_entry_of_fma(gr_gpu_kernel kernel);
/* The faster one that this processor runs. */
gr_emu_entry *gr_emu_entry_of(gr_gpu_kernel kernel);

#ifdef __cplusplus
}
#endif
#endif
