#include "backend/emu/group.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/emu/fiber.h"
#include "backend/emu/sanitizers.h"
#include "base/alloc.h"

enum {
  STACK_BYTES = 64 << 10,
  ARRAYS_MAX = 16,
  ZONE_BYTES = 64, /* between shared arrays */
  SHARED_BYTES = GR_GPU_SHARED_MAX + ARRAYS_MAX * 2 * ZONE_BYTES,
  POISON = 0xff /* in every byte of a float: NaN */
};

typedef enum thread_state { READY, AT_BARRIER, AT_LANES, DONE, HALTED } thread_state;

typedef struct emu_thread {
  gr_emu_thread head;
  gr_fiber fiber;
  gr_emu_machine *machine;
  thread_state state;
  const char *file; /* where it waits */
  int line;
  float value;     /* what it brings to, and takes from, a lane operation */
  uint32_t arrays; /* shared arrays it has asked for */
} emu_thread;

typedef struct shared_array {
  size_t at, bytes;
  const char *file;
  int line;
} shared_array;

struct gr_emu_machine {
  const gr_emu_kernel *kernel;
  const void *args;
  void *const *buffers;
  uint32_t lanes;
  gr_emu_order order;
  gr_fiber host;
  emu_thread thread[GR_GPU_SIZE_MAX];
  uint32_t fibers; /* of thread[] that have a stack and wait at the top of thread_main */
  unsigned char *stacks, *shared;
  shared_array array[ARRAYS_MAX];
  uint32_t arrays;
  gr_error error; /* of the group that runs */
};

static const char *file_name(const char *path)
{
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* ---- on a fiber ---- */

/* Gives the turn back to the scheduler, which continues the thread once its state is READY again. */
static void wait_as(emu_thread *t, thread_state state, const char *file, int line)
{
  t->state = state;
  t->file = file;
  t->line = line;
  gr_fiber_switch(&t->fiber, &t->machine->host);
}

/* The thread cannot go on; nor can its group. Does not return: a halted fiber is never continued. */
GR_PRINTF(2, 3) static void halt(emu_thread *t, const char *fmt, ...)
{
  char text[256];
  va_list list;
  va_start(list, fmt);
  vsnprintf(text, sizeof text, fmt, list);
  va_end(list);
  gr_fail(&t->machine->error, GR_ERR_DEVICE, "thread %u %s", t->head.tid, text);
  for (;;) wait_as(t, HALTED, "", 0);
}

void gr_emu_barrier(gr_emu_thread *head, const char *file, int line)
{
  emu_thread *t = (emu_thread *)head;
  if (!t->machine->kernel->info->sync)
    halt(t, "waits at the barrier of %s:%d, but kernels.def says that there is none", file_name(file), line);
  wait_as(t, AT_BARRIER, file, line);
}

float gr_emu_lane_sum(gr_emu_thread *head, float v, const char *file, int line)
{
  emu_thread *t = (emu_thread *)head;
  if (!t->machine->kernel->info->sync)
    halt(t, "waits for its lane group at %s:%d, but kernels.def says that it does not", file_name(file), line);
  t->value = v;
  wait_as(t, AT_LANES, file, line);
  return t->value;
}

void *gr_emu_shared(gr_emu_thread *head, size_t bytes, const char *file, int line)
{
  emu_thread *t = (emu_thread *)head;
  gr_emu_machine *m = t->machine;
  uint32_t n = t->arrays++;
  if (n == m->arrays) {
    size_t at = ZONE_BYTES, used = bytes;
    if (n) at = (m->array[n - 1].at + m->array[n - 1].bytes + 2 * ZONE_BYTES - 1) / ZONE_BYTES * ZONE_BYTES;
    for (uint32_t i = 0; i < n; i++) used += m->array[i].bytes;
    if (n == ARRAYS_MAX || used > m->kernel->info->shared_bytes)
      halt(t, "asks for %zu bytes of shared memory at %s:%d, but kernels.def says %u", used, file_name(file), line,
           m->kernel->info->shared_bytes);
    m->array[m->arrays++] = (shared_array){ at, bytes, file, line };
    GR_ASAN_UNPOISON(m->shared + at, bytes);
  }
  const shared_array *a = &m->array[n];
  if (a->file != file || a->line != line || a->bytes != bytes)
    halt(t, "asks for the shared array of %s:%d where another thread asked for that of %s:%d", file_name(file), line, file_name(a->file),
         a->line);
  return m->shared + a->at;
}

/* What every fiber runs: one thread of each group that comes; or, when the kernel never waits, all of them one after another. */
static void thread_main(void *arg)
{
  emu_thread *t = arg;
  gr_emu_machine *m = t->machine;
  for (;;) {
    uint32_t threads = m->kernel->info->sync ? 1 : t->head.size;
    for (uint32_t i = 0; i < threads; i++) {
      if (threads > 1) t->head.tid = m->order == GR_EMU_ASCENDING ? i : threads - 1 - i;
      t->arrays = 0;
      m->kernel->entry(&t->head, m->args, m->buffers);
    }
    t->state = DONE;
    gr_fiber_switch(&t->fiber, &m->host);
  }
}

/* ---- the scheduler, on the host's stack ---- */

static size_t shared_span(const gr_emu_machine *m) { return m->kernel->info->shared_bytes + ARRAYS_MAX * 2 * ZONE_BYTES; }

static void shared_reset(gr_emu_machine *m)
{
  size_t span = shared_span(m);
  m->arrays = 0;
  GR_ASAN_UNPOISON(m->shared, span);
  memset(m->shared, POISON, span);
  GR_ASAN_POISON(m->shared, span);
}

/* Nothing was written between the arrays, and they are as large as kernels.def says. */
static gr_status shared_check(gr_emu_machine *m)
{
  size_t span = shared_span(m), at = 0, used = 0;
  GR_ASAN_UNPOISON(m->shared, span);
  for (uint32_t i = 0; i <= m->arrays; i++) {
    size_t end = i < m->arrays ? m->array[i].at : span;
    for (; at < end; at++)
      if (m->shared[at] != POISON) {
        const shared_array *a = &m->array[i ? i - 1 : 0];
        return gr_fail(&m->error, GR_ERR_DEVICE, "a thread wrote outside the shared array of %s:%d", file_name(a->file), a->line);
      }
    if (i < m->arrays) at += m->array[i].bytes;
    if (i < m->arrays) used += m->array[i].bytes;
  }
  if (used != m->kernel->info->shared_bytes)
    return gr_fail(&m->error, GR_ERR_DEVICE, "it used %zu bytes of shared memory, but kernels.def says %u", used,
                   m->kernel->info->shared_bytes);
  return GR_OK;
}

static void describe(const emu_thread *t, char *text, size_t size)
{
  if (t->state == DONE) snprintf(text, size, "thread %u has finished", t->head.tid);
  else
    snprintf(text, size, "thread %u waits %s %s:%d", t->head.tid, t->state == AT_BARRIER ? "at the barrier of" : "for its lane group at",
             file_name(t->file), t->line);
}

static bool same_place(const emu_thread *a, const emu_thread *b)
{
  return a->state == b->state && (a->state == DONE || (a->line == b->line && (a->file == b->file || strcmp(a->file, b->file) == 0)));
}

/* A lane group that has arrived whole at one operation exchanges its values and may go on. */
static bool release_lanes(gr_emu_machine *m, emu_thread *lane)
{
  if (lane->state != AT_LANES) return false;
  for (uint32_t i = 1; i < m->lanes; i++)
    if (!same_place(lane, lane + i)) return false;
  for (uint32_t mask = m->lanes / 2; mask > 0; mask /= 2) {
    float next[GR_EMU_LANES_MAX];
    for (uint32_t i = 0; i < m->lanes; i++) next[i] = lane[i].value + lane[i ^ mask].value;
    for (uint32_t i = 0; i < m->lanes; i++) lane[i].value = next[i];
  }
  for (uint32_t i = 0; i < m->lanes; i++) lane[i].state = READY;
  return true;
}

/* A thread that does not stand where t does, of its lane group if t waits for that, else of the group. NULL: there is none. */
static const emu_thread *find_stray(const gr_emu_machine *m, const emu_thread *t)
{
  if (t->state != AT_LANES) return same_place(t, m->thread) ? NULL : m->thread;
  const emu_thread *lane = m->thread + t->head.tid / m->lanes * m->lanes;
  for (uint32_t i = 0; i < m->lanes; i++)
    if (!same_place(t, lane + i)) return lane + i;
  return NULL;
}

/* Every thread stands still, at no lane operation that its group has reached whole: all are done, or all are let past their barrier, or it
 * is an error. */
static gr_status release_group(gr_emu_machine *m, uint32_t size)
{
  for (uint32_t i = 0; i < size; i++) {
    const emu_thread *t = m->thread + i, *stray = find_stray(m, t);
    if (!stray) continue;
    char a[96], b[96];
    describe(stray < t ? stray : t, a, sizeof a);
    describe(stray < t ? t : stray, b, sizeof b);
    return gr_fail(&m->error, GR_ERR_DEVICE, "its threads diverge: %s while %s", a, b);
  }
  if (m->thread->state == AT_BARRIER)
    for (uint32_t i = 0; i < size; i++) m->thread[i].state = READY;
  return GR_OK;
}

/* Lets n threads, a lane group, run on to the next barrier: as far ahead of the others as a GPU may let it. */
static gr_status run_lanes(gr_emu_machine *m, emu_thread *lane, uint32_t n)
{
  do {
    for (uint32_t i = 0; i < n; i++) {
      emu_thread *t = lane + (m->order == GR_EMU_ASCENDING ? i : n - 1 - i);
      if (t->state != READY) continue;
      gr_fiber_switch(&m->host, &t->fiber);
      if (!gr_fiber_stack_intact(&t->fiber)) gr_fail(&m->error, GR_ERR_DEVICE, "thread %u overran its stack", t->head.tid);
      if (m->error.status != GR_OK) return m->error.status;
    }
  } while (release_lanes(m, lane));
  return GR_OK;
}

/* Until all are done, from barrier to barrier. */
static gr_status run_threads(gr_emu_machine *m, uint32_t threads)
{
  uint32_t width = threads < m->lanes ? threads : m->lanes;
  do {
    for (uint32_t at = 0; at < threads; at += width)
      GR_TRY(run_lanes(m, m->thread + (m->order == GR_EMU_ASCENDING ? at : threads - width - at), width));
    GR_TRY(release_group(m, threads));
  } while (m->thread->state != DONE);
  return GR_OK;
}

/* Forgets all fibers: some stand in the middle of a kernel that went wrong. */
static void drop_fibers(gr_emu_machine *m)
{
  for (uint32_t i = 0; i < m->fibers; i++) gr_fiber_deinit(&m->thread[i].fiber);
  m->fibers = 0;
}

gr_status gr_emu_machine_run(gr_emu_machine *m, const gr_emu_kernel *kernel, uint32_t lanes, gr_emu_order order, uint32_t group,
                             const void *args, void *const *buffers, gr_error *e)
{
  const gr_gpu_kernel_info *info = kernel->info;
  if (lanes < GR_EMU_LANES_MIN || lanes > GR_EMU_LANES_MAX || (lanes & (lanes - 1)) || info->size % lanes || info->size > GR_GPU_SIZE_MAX)
    return gr_fail(e, GR_ERR_USAGE, "emu: %u lanes do not divide the %u threads of kernel %s; use 4, 8, 16, 32 or 64", lanes, info->size,
                   info->name);
  uint32_t threads = info->sync ? info->size : 1;
  m->kernel = kernel;
  m->args = args;
  m->buffers = buffers;
  m->lanes = lanes;
  m->order = order;
  m->error = (gr_error){ 0 };
  shared_reset(m);
  gr_fiber_init_host(&m->host);
  for (uint32_t i = 0; i < threads; i++) {
    emu_thread *t = m->thread + i;
    if (i == m->fibers) {
      t->machine = m;
      gr_fiber_init(&t->fiber, m->stacks + (size_t)i * STACK_BYTES, STACK_BYTES, thread_main, t);
      m->fibers++;
    }
    t->head = (gr_emu_thread){ .tid = i, .group = group, .size = info->size, .lanes = lanes };
    t->state = READY;
  }
  gr_status status = run_threads(m, threads);
  if (status != GR_OK) drop_fibers(m);
  else status = shared_check(m);
  GR_ASAN_UNPOISON(m->shared, shared_span(m));
  return status == GR_OK ? GR_OK : gr_fail(e, status, "emu: kernel %s, group %u: %s", info->name, group, m->error.text);
}

gr_status gr_emu_machine_create(gr_emu_machine **out, gr_error *e)
{
  size_t stack_bytes = (size_t)GR_GPU_SIZE_MAX * STACK_BYTES;
  gr_emu_machine *m = gr_calloc(1, sizeof *m);
  if (!m) return gr_fail_memory(e, sizeof *m);
  m->stacks = gr_alloc_aligned(stack_bytes, 64);
  m->shared = gr_alloc_aligned(SHARED_BYTES, 64);
  if (!m->stacks || !m->shared) {
    gr_emu_machine_free(m);
    return gr_fail_memory(e, stack_bytes + SHARED_BYTES);
  }
  *out = m;
  return GR_OK;
}

void gr_emu_machine_free(gr_emu_machine *m)
{
  if (!m) return;
  drop_fibers(m);
  gr_free(m->stacks);
  gr_free(m->shared);
  gr_free(m);
}
