/* libFuzzer target for the GGUF and the adapter reader. Each input is opened, read in full, then opened again with one
 * allocation (or all from one on) failing, chosen by the input itself.
 *
 *   cmake -B b -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGR_FUZZ=ON -DGR_SANITIZE=address,undefined
 *   b/tests/fuzz/seed_gguf SEEDS && b/tests/fuzz/fuzz_gguf -max_len=16384 -timeout=5 -rss_limit_mb=512 CORPUS SEEDS */
#include "failing_alloc.h"
#include "gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is read goes here, so that no reading is optimised away. */
static volatile uint64_t sum;

static void open_and_walk(const uint8_t *data, size_t size)
{
  gr_error e = { 0 };
  gr_gguf *g;
  gr_adapter *a;
  if (gr_gguf_open_memory(&g, data, size, "input", &e) != GR_OK) {
    if (!e.text[0] || g) abort();
    return;
  }
  sum += walk(g);
  if (gr_adapter_from_gguf(&a, g, &e) != GR_OK) {
    if (!e.text[0] || a) abort();
    return;
  }
  sum += walk_adapter(a);
  gr_adapter_close(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  allocations_fail(0, false);
  open_and_walk(data, size);
  if (allocations.live) abort();
  size_t n = allocations.seen;
  if (!n) return 0;
  uint64_t choice = walk_bytes(data, size);
  allocations_fail(1 + (size_t)(choice >> 1) % n, choice & 1);
  open_and_walk(data, size);
  allocations_fail(0, false);
  if (allocations.live) abort();
  return 0;
}
