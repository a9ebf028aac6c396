#include "backend/emu/memory.h"

#include <string.h>

#include "base/alloc.h"

/* Bit 54 alone: not canonical on x86-64 with 48 bits of address, never handed out by a kernel with 57, and above the 52 bits of arm64;
 * arithmetic on such a pointer is as good as on any other. */
#define FIRST_ADDRESS (UINT64_C(1) << 54)

enum { ADDRESS_ALIGN = 256, GAP = 4096, POISON = 0xff };

typedef struct gr_emu_block {
  uint64_t address;
  size_t bytes;
  unsigned char *data;
} gr_emu_block;

gr_status gr_emu_memory_alloc(gr_emu_memory *m, size_t bytes, void **address, gr_error *e)
{
  unsigned char *data = bytes > SIZE_MAX / 4 ? NULL : gr_alloc_aligned(bytes, 64);
  if (!data || !gr_grow((void **)&m->blocks, &m->cap, m->n + 1, sizeof *m->blocks)) {
    gr_free(data);
    return gr_fail_memory(e, bytes);
  }
  memset(data, POISON, bytes);
  if (!m->next) m->next = FIRST_ADDRESS;
  m->blocks[m->n++] = (gr_emu_block){ m->next, bytes, data };
  *address = (void *)(uintptr_t)m->next;
  m->next += (bytes + GAP + ADDRESS_ALIGN - 1) / ADDRESS_ALIGN * ADDRESS_ALIGN;
  return GR_OK;
}

/* The last block whose address is not above this one; m->n when there is none. */
static size_t find(const gr_emu_memory *m, uint64_t address)
{
  size_t low = 0, high = m->n;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (m->blocks[middle].address <= address) low = middle + 1;
    else high = middle;
  }
  return low ? low - 1 : m->n;
}

void gr_emu_memory_free(gr_emu_memory *m, const void *address)
{
  size_t i = find(m, (uintptr_t)address);
  if (i == m->n || m->blocks[i].address != (uintptr_t)address) return;
  gr_free(m->blocks[i].data);
  memmove(m->blocks + i, m->blocks + i + 1, (m->n - i - 1) * sizeof *m->blocks);
  m->n--;
}

void gr_emu_memory_deinit(gr_emu_memory *m)
{
  for (size_t i = 0; i < m->n; i++) gr_free(m->blocks[i].data);
  gr_free(m->blocks);
  *m = (gr_emu_memory){ 0 };
}

unsigned char *gr_emu_memory_at(const gr_emu_memory *m, const void *address, size_t bytes)
{
  size_t i = find(m, (uintptr_t)address);
  if (i == m->n) return NULL;
  const gr_emu_block *b = &m->blocks[i];
  uint64_t offset = (uintptr_t)address - b->address;
  return offset <= b->bytes && bytes <= b->bytes - offset ? b->data + offset : NULL;
}
