/* Which element a thread works on, and where it lies. */
#ifndef GK_INDEX_H
#define GK_INDEX_H
#include "kernels/gk/gk.h"

/* Splits a row number into indices 1..3 of shape ne; i[0] is left to the caller. */
GK_FN void gk_row_split(uint32_t row, const GK_CONST_AS uint32_t *ne, GK_PRIVATE uint32_t *i)
{
  i[1] = row % ne[1];
  i[2] = row / ne[1] % ne[2];
  i[3] = row / ne[1] / ne[2];
}

GK_FN int64_t gk_offset(const GK_PRIVATE uint32_t *i, const GK_CONST_AS int64_t *stride)
{
  return i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3];
}

/* The same with indices taken modulo ne: the operand repeats. */
GK_FN int64_t gk_offset_repeat(const GK_PRIVATE uint32_t *i, const GK_CONST_AS int64_t *stride, const GK_CONST_AS uint32_t *ne)
{
  return i[0] % ne[0] * stride[0] + (GK_MUTANT(emu_repeat_row_0) ? 0 : i[1] % ne[1]) * stride[1] + i[2] % ne[2] * stride[2] +
         i[3] % ne[3] * stride[3];
}

/* Rows are dealt to `blocks` groups each, one thread an element: the thread's element of shape ne. i[0] may lie past the row's end. */
GK_FN void gk_element(gk_thread t, const GK_CONST_AS uint32_t *ne, uint32_t blocks, GK_PRIVATE uint32_t *i)
{
  i[0] = gk_group(t) % blocks * gk_size(t) + gk_tid(t);
  if (GK_MUTANT(emu_last_partial_block) && (gk_group(t) % blocks + 1) * gk_size(t) > ne[0]) i[0] = ne[0];
  gk_row_split(gk_group(t) / blocks, ne, i);
}

#endif
