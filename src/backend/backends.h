#ifndef GR_BACKEND_BACKENDS_H
#define GR_BACKEND_BACKENDS_H
#include "backend/backend.h"

#define GR_BACKEND(name) gr_status gr_backend_open_##name(gr_backend **b, gr_pool *pool, gr_error *e);
#include "backend/backends.def"
#undef GR_BACKEND

/* alloc and free of backends that compute in host memory. */
gr_status gr_host_alloc(gr_backend *b, size_t bytes, void **address, gr_error *e);
void gr_host_free(gr_backend *b, void *address);

#endif
