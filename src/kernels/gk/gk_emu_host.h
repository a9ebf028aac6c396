/* Where the emulated device and its kernels meet: what a kernel compiled for the emulator may ask of it. C and C++. */
#ifndef GK_EMU_HOST_H
#define GK_EMU_HOST_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A thread of the emulated GPU as its kernel sees it; the head of the emulator's own struct (backend/emu/group.c). */
typedef struct gr_emu_thread {
  uint32_t tid, group, size, lanes;
} gr_emu_thread;

/* Waits until every thread of the group stands at this same line. */
void gr_emu_barrier(gr_emu_thread *t, const char *file, int line);
/* The sum of v over the thread's lane group, which must arrive whole, added up as a butterfly of exchanges. */
float gr_emu_lane_sum(gr_emu_thread *t, float v, const char *file, int line);
/* The group's next shared array. Each thread asks for the same arrays in the same order and is given the same memory. */
void *gr_emu_shared(gr_emu_thread *t, size_t bytes, const char *file, int line);

/* A kernel's entry point with its argument struct and buffers passed as memory. */
typedef void gr_emu_entry(gr_emu_thread *t, const void *args, void *const *buffers);

#ifdef __cplusplus
}
#endif
#endif
