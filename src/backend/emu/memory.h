/* The memory of the emulated device: addresses that the host can neither read nor mistake for its own. */
#ifndef GR_BACKEND_EMU_MEMORY_H
#define GR_BACKEND_EMU_MEMORY_H
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_emu_memory {
  struct gr_emu_block *blocks; /* in ascending order of address */
  size_t n, cap;
  uint64_t next; /* address of the next block: none is ever used again, so a stale one is recognised */
} gr_emu_memory;

/* A new block, filled with NaN bytes. Its address is a multiple of 256 that no process of today's machines can have mapped. */
gr_status gr_emu_memory_alloc(gr_emu_memory *m, size_t bytes, void **address, gr_error *e);
void gr_emu_memory_free(gr_emu_memory *m, const void *address); /* NULL is fine */
void gr_emu_memory_deinit(gr_emu_memory *m);
/* Where the host keeps the bytes [address, address + bytes), or NULL unless all of them lie in one block. */
unsigned char *gr_emu_memory_at(const gr_emu_memory *m, const void *address, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
