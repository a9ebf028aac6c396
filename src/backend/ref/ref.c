/* The oracle: every op by its own reference, one thread. Nothing is placed here unless a command says --allow-ref. */
#include "backend/backends.h"
#include "base/alloc.h"

static gr_status ref_run(gr_backend *b, const gr_op_call *call, gr_error *e)
{
  (void)b;
  (void)e;
  gr_op_get(call->op)->reference(call);
  return GR_OK;
}

static bool has_reference(const gr_op_call *call) { return gr_op_get(call->op)->reference != NULL; }

static const gr_kernel_row rows[] = {
#define GR_OP(id, ggml, args, doc) { .op = GR_OP_##id, .name = #id "__ref", .admits = has_reference, .run = ref_run },
#include "ops/ops.def"
#undef GR_OP
  { .op = GR_OP_NONE },
};

static void ref_close(gr_backend *b) { gr_free(b); }

static const gr_backend_ops ops = {
  .name = "ref", .rows = rows, .host_memory = true, .alloc = gr_host_alloc, .free = gr_host_free, .close = ref_close
};

gr_status gr_backend_open_ref(gr_backend **out, gr_pool *pool, gr_error *e)
{
  gr_backend *b = gr_calloc(1, sizeof *b);
  if (!b) return gr_fail_memory(e, sizeof *b);
  *b = (gr_backend){ .ops = &ops, .pool = pool };
  *out = b;
  return GR_OK;
}
