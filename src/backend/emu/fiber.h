/* Fibers: stacks of their own that one host thread switches between by hand, without system calls, for x86-64 and arm64; by ucontext
 * elsewhere. AddressSanitizer and ThreadSanitizer are told of every switch. */
#ifndef GR_BACKEND_EMU_FIBER_H
#define GR_BACKEND_EMU_FIBER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !(defined(__x86_64__) && !defined(__ILP32__)) && !defined(__aarch64__) || defined(GR_FIBER_UCONTEXT)
#define GR_FIBER_UCONTEXT_ 1
#include <ucontext.h>
#else
#define GR_FIBER_UCONTEXT_ 0
#endif

typedef void gr_fiber_entry(void *arg);

typedef struct gr_fiber {
#if GR_FIBER_UCONTEXT_
  ucontext_t context;
#else
  void *sp; /* where the registers are saved while the fiber is not running */
#endif
  unsigned char *stack; /* NULL: the host thread itself */
  size_t stack_bytes;
  gr_fiber_entry *entry;
  void *arg;
  struct gr_fiber *from; /* who switched here last */
  const void *bottom;    /* bounds of its stack, for AddressSanitizer; the host's become known when it is first left */
  size_t bottom_bytes;
  void *tsan; /* ThreadSanitizer's handle */
} gr_fiber;

/* A fiber that starts in entry(arg) at the first switch to it. entry must never return. The stack (a multiple of 16 bytes, 16-byte
 * aligned) is the caller's and must outlive the fiber. */
void gr_fiber_init(gr_fiber *f, void *stack, size_t stack_bytes, gr_fiber_entry *entry, void *arg);
/* The fiber that stands for the calling thread: what others switch back to. */
void gr_fiber_init_host(gr_fiber *f);
/* Also fine for a fiber that never ran or stands in the middle of its entry: it is forgotten. Not for the one that is running. */
void gr_fiber_deinit(gr_fiber *f);
/* Leaves `from`, which must be the one that is running, and continues `to`. Returns when someone switches to `from`. */
void gr_fiber_switch(gr_fiber *from, gr_fiber *to);
/* False when the fiber has overrun its stack: the lowest bytes are no longer what init wrote there. */
bool gr_fiber_stack_intact(const gr_fiber *f);

#endif
