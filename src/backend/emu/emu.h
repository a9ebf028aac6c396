/* What only the emulator has, beyond its place in the list of backends. */
#ifndef GR_BACKEND_EMU_EMU_H
#define GR_BACKEND_EMU_EMU_H
#include "backend/backend.h"

/* Width of a lane group from now on, 32 to begin with (NVIDIA, Apple); 64 is AMD's, the smaller ones are for finding bugs.
 * Refused unless a power of two from 4 to 64. b is an emulator. */
gr_status gr_emu_set_lanes(gr_backend *b, uint32_t lanes, gr_error *e);

#endif
