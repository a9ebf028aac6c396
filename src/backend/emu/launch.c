#include "backend/emu/launch.h"

#include <string.h>

#include "backend/emu/sanitizers.h"
#include "base/alloc.h"

enum { GUARD_BYTES = 64, POISON = 0xff };

typedef struct window {
  unsigned char *device; /* where device memory keeps the array */
  unsigned char *data;   /* what the kernel sees; guards on both sides */
  unsigned char *first;  /* outputs: what the first run left */
  size_t bytes, back;    /* of the array; of the guard behind it */
  bool output;
  bool keeps; /* an output that must start as it is in device memory: it is an input too, or leaves gaps */
  int same;   /* input: number of the output that is the same array and shares its window; -1: none */
} window;

static bool has_window(const window *w) { return w->output || w->same < 0; }

/* Guards are NaN too, but a different one for each window, so that a kernel copying guard to guard is seen. */
static unsigned char guard_byte(int i, size_t k)
{
  const unsigned char word[4] = { (unsigned char)(0xb0 + i), 0xa5, 0xc0, 0xff };
  return word[k % 4];
}

static void guards_set(const window *w, int n)
{
  for (int i = 0; i < n; i++) {
    if (!has_window(&w[i])) continue;
    for (size_t k = 0; k < GUARD_BYTES; k++) w[i].data[k - GUARD_BYTES] = guard_byte(i, k);
    for (size_t k = 0; k < w[i].back; k++) w[i].data[w[i].bytes + k] = guard_byte(i, k + w[i].bytes);
    GR_ASAN_POISON(w[i].data - GUARD_BYTES, GUARD_BYTES);
    GR_ASAN_POISON(w[i].data + w[i].bytes, w[i].back);
  }
}

static void guards_lift(const window *w, int n)
{
  for (int i = 0; i < n; i++)
    if (has_window(&w[i])) GR_ASAN_UNPOISON(w[i].data - GUARD_BYTES, GUARD_BYTES + w[i].bytes + w[i].back);
}

static gr_status guards_check(const window *w, int n, const gr_gpu_kernel_info *info, uint32_t group, gr_error *e)
{
  for (int i = 0; i < n; i++) {
    if (!has_window(&w[i])) continue;
    for (size_t k = 0; k < GUARD_BYTES; k++)
      if (w[i].data[k - GUARD_BYTES] != guard_byte(i, k))
        return gr_fail(e, GR_ERR_DEVICE, "emu: kernel %s, group %u, wrote %zu bytes before the start of buffer %d", info->name, group,
                       GUARD_BYTES - k, i);
    for (size_t k = 0; k < w[i].back; k++)
      if (w[i].data[w[i].bytes + k] != guard_byte(i, k + w[i].bytes))
        return gr_fail(e, GR_ERR_DEVICE, "emu: kernel %s, group %u, wrote past the end of buffer %d: at byte %zu of %zu", info->name, group,
                       i, w[i].bytes + k, w[i].bytes);
  }
  return GR_OK;
}

/* Inputs may overlap each other. An output overlaps nothing, but it may be an input's array: then both see one window. */
static gr_status find_overlaps(window *w, int n, const gr_gpu_kernel_info *info, gr_error *e)
{
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n && w[i].output; j++) {
      if (i == j || w[i].device + w[i].bytes <= w[j].device || w[j].device + w[j].bytes <= w[i].device) continue;
      if (w[j].output || w[j].device != w[i].device || w[j].bytes != w[i].bytes)
        return gr_fail(e, GR_ERR_DEVICE, "emu: buffers %d and %d of kernel %s overlap, and it writes to one of them", j, i, info->name);
      w[j].same = i;
      w[i].keeps = true;
    }
  return GR_OK;
}

/* Finds the launch's arrays in device memory. Gives the bytes that all windows take. */
static gr_status windows_find(window *w, int n, const gr_emu_memory *memory, const gr_gpu_kernel_info *info, const gr_gpu_launch *launch,
                              size_t *total, gr_error *e)
{
  for (int i = 0; i < n; i++) {
    const gr_gpu_buffer *b = &launch->buffer[i];
    w[i] = (window){ .device = gr_emu_memory_at(memory, b->address, b->bytes), .bytes = b->bytes, .same = -1 };
    if (!w[i].device)
      return gr_fail(e, GR_ERR_DEVICE, "emu: buffer %d of kernel %s is not memory of this device: %zu bytes at %p", i, info->name, b->bytes,
                     b->address);
    w[i].output = info->buffers[i] == 'o';
    w[i].keeps = w[i].output && b->gaps;
    w[i].back = GUARD_BYTES + (64 - b->bytes % 64);
  }
  GR_TRY(find_overlaps(w, n, info, e));
  *total = 0;
  for (int i = 0; i < n; i++)
    if (has_window(&w[i])) *total += (w[i].output ? 2 : 1) * (GUARD_BYTES + w[i].bytes + w[i].back);
  return GR_OK;
}

static void windows_place(window *w, int n, unsigned char *memory)
{
  for (int i = 0; i < n; i++) {
    if (!has_window(&w[i])) continue;
    size_t span = GUARD_BYTES + w[i].bytes + w[i].back;
    w[i].data = memory + GUARD_BYTES;
    if (w[i].output) w[i].first = memory + span + GUARD_BYTES;
    memory += w[i].output ? 2 * span : span;
  }
  for (int i = 0; i < n; i++)
    if (!has_window(&w[i])) w[i].data = w[w[i].same].data;
}

/* Runs all groups once, on fresh copies. */
static gr_status run_once(gr_emu_launcher *l, const window *w, int n, const gr_emu_kernel *kernel, const gr_gpu_launch *launch,
                          uint32_t lanes, gr_emu_order order, gr_error *e)
{
  void *buffers[GR_GPU_BUFFERS_MAX];
  for (int i = 0; i < n; i++) {
    buffers[i] = w[i].data;
    if (w[i].output && !w[i].keeps) memset(w[i].data, POISON, w[i].bytes);
    else memcpy(w[i].data, w[i].device, w[i].bytes);
  }
  gr_status status = GR_OK;
  guards_set(w, n);
  for (uint32_t k = 0; k < launch->groups && status == GR_OK; k++) {
    uint32_t group = order == GR_EMU_ASCENDING ? k : launch->groups - 1 - k;
    status = gr_emu_machine_run(l->machine, kernel, lanes, order, group, launch->args, buffers, e);
    if (status != GR_OK) break;
    guards_lift(w, n);
    status = guards_check(w, n, kernel->info, group, e);
    if (status == GR_OK) guards_set(w, n);
  }
  guards_lift(w, n);
  for (int i = 0; i < n && status == GR_OK; i++)
    if (!w[i].output && w[i].same < 0 && memcmp(w[i].data, w[i].device, w[i].bytes))
      status = gr_fail(e, GR_ERR_DEVICE, "emu: kernel %s wrote into buffer %d, which it may only read", kernel->info->name, i);
  return status;
}

static gr_status compare_orders(const window *w, int n, const gr_gpu_kernel_info *info, gr_error *e)
{
  for (int i = 0; i < n; i++)
    for (size_t k = 0; w[i].output && k < w[i].bytes; k++)
      if (w[i].first[k] != w[i].data[k])
        return gr_fail(
            e, GR_ERR_DEVICE,
            "emu: kernel %s leaves other bits at byte %zu of buffer %d when its threads take turns in descending order: a barrier "
            "is missing, or two threads write there",
            info->name, k, i);
  return GR_OK;
}

gr_status gr_emu_launch(gr_emu_launcher *l, const gr_emu_memory *memory, const gr_emu_kernel *kernel, const gr_gpu_launch *launch,
                        uint32_t lanes, gr_error *e)
{
  window w[GR_GPU_BUFFERS_MAX] = { { .device = NULL } };
  int n = (int)strlen(kernel->info->buffers);
  size_t total = 0;
  if (!l->machine) GR_TRY(gr_emu_machine_create(&l->machine, e));
  GR_TRY(windows_find(w, n, memory, kernel->info, launch, &total, e));
  if (total > l->windows_bytes) {
    gr_free(l->windows);
    l->windows = gr_alloc_aligned(total, 64);
    l->windows_bytes = l->windows ? total : 0;
    if (!l->windows) return gr_fail_memory(e, total);
  }
  windows_place(w, n, l->windows);
  GR_TRY(run_once(l, w, n, kernel, launch, lanes, GR_EMU_ASCENDING, e));
  for (int i = 0; i < n; i++)
    if (w[i].output) memcpy(w[i].first, w[i].data, w[i].bytes);
  GR_TRY(run_once(l, w, n, kernel, launch, lanes, GR_EMU_DESCENDING, e));
  GR_TRY(compare_orders(w, n, kernel->info, e));
  for (int i = 0; i < n; i++)
    if (w[i].output) memcpy(w[i].device, w[i].data, w[i].bytes);
  return GR_OK;
}

void gr_emu_launcher_deinit(gr_emu_launcher *l)
{
  gr_emu_machine_free(l->machine);
  gr_free(l->windows);
  *l = (gr_emu_launcher){ 0 };
}

gr_emu_entry *gr_emu_entry_of(gr_gpu_kernel kernel)
{
#if GR_CPU_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return gr_emu_entry_of_fma(kernel);
#endif
  return gr_emu_entry_of_plain(kernel);
}
