/* The list of backends, and the search for a row. */
#include <string.h>

#include "backend/backend.h"
#include "backend/backends.h"
#include "base/alloc.h"

static const struct {
  const char *name;
  gr_status (*open)(gr_backend **b, gr_pool *pool, gr_error *e);
} backends[] = {
#define GR_BACKEND(name) { #name, gr_backend_open_##name },
#include "backend/backends.def"
#undef GR_BACKEND
};

const char *gr_backend_name(size_t i) { return i < sizeof backends / sizeof *backends ? backends[i].name : NULL; }

gr_status gr_backend_open(gr_backend **b, const char *name, gr_pool *pool, gr_error *e)
{
  char list[128] = "";
  for (size_t i = 0; gr_backend_name(i); i++) {
    if (strcmp(backends[i].name, name) == 0) return backends[i].open(b, pool, e);
    if (strlen(list) + strlen(backends[i].name) + 3 < sizeof list) strcat(strcat(list, i ? ", " : ""), backends[i].name);
  }
  return gr_fail(e, GR_ERR_USAGE,
                 "there is no backend '%s' in this build, which computes on the CPU; it has: %s (ref is the reference and emu an emulated "
                 "GPU, for tests)",
                 name, list);
}

void gr_backend_close(gr_backend *b)
{
  if (b) b->ops->close(b);
}

const gr_kernel_row *gr_backend_find(const gr_backend *b, const gr_op_call *call)
{
  const gr_kernel_row *best = NULL;
  for (const gr_kernel_row *r = b->ops->rows; r->op != GR_OP_NONE; r++)
    if (r->op == call->op && (!r->bf16 || b->bf16) && (!best || r->priority > best->priority) && (!r->admits || r->admits(call))) best = r;
  return best;
}

gr_status gr_precision_parse(const char *name, gr_precision *p, gr_error *e)
{
  *p = name && strcmp(name, "bf16") == 0 ? GR_PRECISION_BF16 : GR_PRECISION_F32;
  if (!name || *p == GR_PRECISION_BF16 || strcmp(name, "f32") == 0) return GR_OK;
  return gr_fail(e, GR_ERR_USAGE, "there is no precision '%s': it is f32 or bf16", name);
}

gr_status gr_backend_use_precision(gr_backend *b, gr_precision p, gr_error *e)
{
  bool has = p == GR_PRECISION_F32;
  for (const gr_kernel_row *r = b->ops->rows; r->op != GR_OP_NONE; r++) has = has || r->bf16;
  if (!has) return gr_fail(e, GR_ERR_USAGE, "backend '%s' has no products in bf16: use f32 there", b->ops->name);
  b->bf16 = p == GR_PRECISION_BF16;
  return GR_OK;
}

gr_status gr_host_alloc(gr_backend *b, size_t bytes, void **address, gr_error *e)
{
  (void)b;
  *address = gr_alloc_aligned(bytes, 64);
  return *address ? GR_OK : gr_fail_memory(e, bytes);
}

void gr_host_free(gr_backend *b, void *address)
{
  (void)b;
  gr_free(address);
}
