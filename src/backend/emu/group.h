/* One group of GPU threads, run on a host thread: a fiber each, which gives way at barriers and collectives.
 *
 * What it watches while a group runs: that every thread reaches the same barriers, and every thread of a lane group the same
 * collectives (what does not is named with its line); that shared memory holds NaN bytes until it is written and is asked for as
 * kernels.def says; that nothing is written just past a shared array; that no stack overflows. */
#ifndef GR_BACKEND_EMU_GROUP_H
#define GR_BACKEND_EMU_GROUP_H
#include "backend/gpu/kernels.h"
#include "base/error.h"
#include "kernels/gk/gk_emu_host.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_emu_kernel {
  const gr_gpu_kernel_info *info;
  gr_emu_entry *entry;
} gr_emu_kernel;

/* Threads of a group run one after another, in this order, between two barriers. A kernel that lacks a barrier gives other results in one
 * of the two. */
typedef enum gr_emu_order { GR_EMU_ASCENDING, GR_EMU_DESCENDING } gr_emu_order;

enum { GR_EMU_LANES_MIN = 4, GR_EMU_LANES_MAX = 64 };

typedef struct gr_emu_machine gr_emu_machine;
gr_status gr_emu_machine_create(gr_emu_machine **m, gr_error *e);
void gr_emu_machine_free(gr_emu_machine *m); /* NULL is fine */

/* Runs group number `group` of kernel. lanes is the width of a lane group: a power of two, 4 to 64, that divides the kernel's size.
 * args and buffers are host addresses. The error, a GR_ERR_DEVICE, names the kernel and group. */
gr_status gr_emu_machine_run(gr_emu_machine *m, const gr_emu_kernel *kernel, uint32_t lanes, gr_emu_order order, uint32_t group,
                             const void *args, void *const *buffers, gr_error *e);

#ifdef __cplusplus
}
#endif
#endif
