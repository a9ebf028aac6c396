/* A GPU on the CPU: the backend that shows, without a GPU, that kernels and the handling of devices are right. Its memory is out of the
 * host's reach, its work is queued and done when someone waits or reads, and its errors come up then. Speed is no aim. */
#include "backend/emu/emu.h"

#include <string.h>

#include "backend/backends.h"
#include "backend/emu/launch.h"
#include "backend/gpu/gpu.h"
#include "base/alloc.h"

enum {
  QUEUE_COMMANDS = 256,
  STAGED_BYTES = 64 << 10 /* a larger write waits for the queue instead of being copied into it */
};

typedef struct command {
  bool is_write;
  gr_gpu_launch launch;
  void *device; /* write */
  void *staged;
  size_t bytes;
} command;

typedef struct gr_emu {
  gr_gpu gpu;
  gr_emu_memory memory;
  gr_emu_launcher launcher;
  uint32_t lanes;
  command *queue;
  size_t queued;
  gr_error latched; /* the first error since the last sync; until that is asked for, nothing more is done */
} gr_emu;

static gr_status store(gr_emu *m, void *device, const void *host, size_t bytes, gr_error *e)
{
  unsigned char *at = gr_emu_memory_at(&m->memory, device, bytes);
  if (!at) return gr_fail(e, GR_ERR_DEVICE, "emu: a write of %zu bytes to %p, which is not memory of this device", bytes, device);
  memcpy(at, host, bytes);
  return GR_OK;
}

static void execute(gr_emu *m, const command *c)
{
  gr_error *e = &m->latched;
  if (c->is_write) {
    store(m, c->device, c->staged, c->bytes, e);
    return;
  }
  gr_emu_kernel kernel = { gr_gpu_kernel_get(c->launch.kernel), gr_emu_entry_of(c->launch.kernel) };
  gr_emu_launch(&m->launcher, &m->memory, &kernel, &c->launch, m->lanes, e);
}

static void drain(gr_emu *m)
{
  for (size_t i = 0; i < m->queued; i++) {
    if (m->latched.status == GR_OK) execute(m, &m->queue[i]);
    gr_free(m->queue[i].staged);
  }
  m->queued = 0;
}

static gr_status enqueue(gr_emu *m, const command *c)
{
  if (m->queued == QUEUE_COMMANDS) drain(m);
  m->queue[m->queued++] = *c;
  return GR_OK;
}

static gr_status emu_launch(gr_gpu *gpu, const gr_gpu_launch *launch, gr_error *e)
{
  (void)e;
  return enqueue((gr_emu *)gpu, &(command){ .launch = *launch });
}

static gr_status emu_alloc(gr_backend *b, size_t bytes, void **address, gr_error *e)
{
  return gr_emu_memory_alloc(&((gr_emu *)b)->memory, bytes, address, e);
}

static void emu_free(gr_backend *b, void *address)
{
  gr_emu *m = (gr_emu *)b;
  drain(m); /* launches in the queue may still use it */
  gr_emu_memory_free(&m->memory, address);
}

static gr_status report(const gr_emu *m, gr_error *e)
{
  return m->latched.status == GR_OK ? GR_OK : gr_fail(e, m->latched.status, "%s", m->latched.text);
}

static gr_status emu_write(gr_backend *b, void *device, const void *host, size_t bytes, gr_error *e)
{
  gr_emu *m = (gr_emu *)b;
  if (bytes > STAGED_BYTES) {
    drain(m);
    return m->latched.status == GR_OK ? store(m, device, host, bytes, e) : GR_OK;
  }
  void *staged = gr_alloc(bytes);
  if (!staged) return gr_fail_memory(e, bytes);
  memcpy(staged, host, bytes);
  return enqueue(m, &(command){ .is_write = true, .device = device, .staged = staged, .bytes = bytes });
}

static gr_status emu_read(gr_backend *b, void *host, const void *device, size_t bytes, gr_error *e)
{
  gr_emu *m = (gr_emu *)b;
  drain(m);
  GR_TRY(report(m, e));
  const unsigned char *at = gr_emu_memory_at(&m->memory, device, bytes);
  if (!at) return gr_fail(e, GR_ERR_DEVICE, "emu: a read of %zu bytes from %p, which is not memory of this device", bytes, device);
  memcpy(host, at, bytes);
  return GR_OK;
}

static gr_status emu_sync(gr_backend *b, gr_error *e)
{
  gr_emu *m = (gr_emu *)b;
  drain(m);
  gr_status status = report(m, e);
  m->latched = (gr_error){ 0 };
  return status;
}

static void emu_close(gr_backend *b)
{
  gr_emu *m = (gr_emu *)b;
  for (size_t i = 0; i < m->queued; i++) gr_free(m->queue[i].staged);
  gr_free(m->queue);
  gr_emu_launcher_deinit(&m->launcher);
  gr_emu_memory_deinit(&m->memory);
  gr_free(m);
}

static const gr_kernel_row rows[] = {
#define GR_GPU_ROW(o, n, id) { .op = GR_OP_##o, .name = n "__emu", .admits = gr_gpu_admits_##id, .run = gr_gpu_run_##id },
#define GR_GPU_ROW_SCRATCH(o, n, id)                                                                                                       \
  { .op = GR_OP_##o, .name = n "__emu", .admits = gr_gpu_admits_##id, .scratch = gr_gpu_scratch_##id, .run = gr_gpu_run_##id },
#include "backend/gpu/rows.def"
#undef GR_GPU_ROW_SCRATCH
#undef GR_GPU_ROW
  { .op = GR_OP_NONE },
};

static const gr_backend_ops ops = {
  .name = "emu",
  .rows = rows,
  .host_memory = false,
  .alloc = emu_alloc,
  .free = emu_free,
  .write = emu_write,
  .read = emu_read,
  .sync = emu_sync,
  .close = emu_close,
};

gr_status gr_backend_open_emu(gr_backend **out, gr_pool *pool, gr_error *e)
{
  gr_emu *m = gr_calloc(1, sizeof *m);
  command *queue = gr_calloc(QUEUE_COMMANDS, sizeof *queue);
  if (!m || !queue) {
    gr_free(m);
    gr_free(queue);
    return gr_fail_memory(e, sizeof *m + QUEUE_COMMANDS * sizeof *queue);
  }
  *m = (gr_emu){ .gpu = { { .ops = &ops, .pool = pool }, emu_launch }, .lanes = 32, .queue = queue };
  *out = &m->gpu.head;
  return GR_OK;
}

gr_status gr_emu_set_lanes(gr_backend *b, uint32_t lanes, gr_error *e)
{
  if (lanes < GR_EMU_LANES_MIN || lanes > GR_EMU_LANES_MAX || (lanes & (lanes - 1)))
    return gr_fail(e, GR_ERR_USAGE, "emu: lane groups of %u threads do not exist; use 4, 8, 16, 32 or 64", lanes);
  gr_emu *m = (gr_emu *)b;
  drain(m);
  m->lanes = lanes;
  return GR_OK;
}
