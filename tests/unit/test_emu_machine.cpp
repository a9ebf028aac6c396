/* The emulator tests itself: kernels that are wrong, each in one way that a GPU may or may not show, must be caught and named; their
 * correct twins must pass. And the decoders of kernels give the bits of src/quant. */
extern "C" {
#include "check.h"

#include <sys/wait.h>

#include "backend/emu/fiber.h"
#include "backend/emu/sanitizers.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "quant/quant.h"
}

#include "backend/emu/launch.h"

#define GK_DIALECT_EMU
#include "backend/emu/entry.h"
#include "kernels/gk/quant.h"

namespace
{

struct args {
  uint32_t n;
};

enum { SIZE = 64, N = 100 };

/* y[0] = sum of x: each thread adds up a share, then they meet in shared memory. What each variant leaves out stands in its name. */
#define SUM_HEAD                                                                                                                           \
  GK_ENTER(t);                                                                                                                             \
  GK_SHARED(float, share, SIZE);                                                                                                           \
  float sum = 0.0f;                                                                                                                        \
  for (uint32_t i = gk_tid(t); i < a.n; i += gk_size(t)) sum += x[i];                                                                      \
  share[gk_tid(t)] = sum;

GK_KERNEL(sum_correct, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  gk_barrier(t);
  if (gk_tid(t) != 0) return;
  float total = 0.0f;
  for (uint32_t i = 0; i < gk_size(t); i++) total += share[i];
  y[0] = total;
}

GK_KERNEL(sum_without_barrier, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  if (gk_tid(t) != 0) return;
  float total = 0.0f;
  for (uint32_t i = 0; i < gk_size(t); i++) total += share[i];
  y[0] = total;
}

/* The mirror image: only the ascending order shows it, since the last thread adds up. */
GK_KERNEL(sum_without_barrier_by_last, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  if (gk_tid(t) != gk_size(t) - 1) return;
  float total = 0.0f;
  for (uint32_t i = 0; i < gk_size(t); i++) total += share[i];
  y[0] = total;
}

/* Shared memory used again too early: the second use lacks its barrier. */
GK_KERNEL(reuse_without_barrier, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, SIZE);
  float seen = 0.0f;
  for (uint32_t round = 0; round < 2; round++) {
    share[gk_tid(t)] = x[gk_tid(t)] + (float)round;
    gk_barrier(t);
    seen += share[gk_size(t) - 1 - gk_tid(t)];
  }
  if (gk_tid(t) < a.n) y[gk_tid(t)] = seen;
}

/* gk_group_sum without its last barrier, twice: one lane group's second sum may overwrite what another still reads of the first. */
GK_KERNEL(sums_without_barrier_between, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, SIZE);
  float seen = 0.0f;
  for (uint32_t round = 0; round < 2; round++) {
    const float sum = gk_lane_sum(t, x[gk_tid(t)] + (float)round);
    if (gk_tid(t) % gk_lanes(t) == 0) share[gk_tid(t) / gk_lanes(t)] = sum;
    gk_barrier(t);
    for (uint32_t i = 0; i < gk_size(t) / gk_lanes(t); i++) seen += share[i];
  }
  if (gk_tid(t) < a.n) y[gk_tid(t)] = seen;
}

GK_KERNEL(barrier_in_branch, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  if (gk_tid(t) < 40) gk_barrier(t);
  if (gk_tid(t) == 0) y[0] = share[0];
}

GK_KERNEL(two_barriers, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  if (gk_tid(t) % 2 == 0) gk_barrier(t);
  else gk_barrier(t); /* on another line */
  if (gk_tid(t) == 0) y[0] = share[0];
}

GK_KERNEL(lanes_in_branch, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  if (gk_tid(t) != 33) sum = gk_lane_sum(t, sum);
  if (gk_tid(t) == 0) y[0] = sum + share[0];
}

/* Lane groups may go their own ways, as long as each stays together. */
GK_KERNEL(lanes_by_group, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  SUM_HEAD
  for (uint32_t i = 0; i <= gk_tid(t) / gk_lanes(t); i++) sum = gk_lane_sum(t, 1.0f);
  gk_barrier(t);
  if (gk_tid(t) == 0) y[0] = sum;
}

GK_KERNEL(undeclared_barrier, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  gk_barrier(t);
  y[0] = x[a.n - 1];
}

GK_KERNEL(writes_past_end, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  for (uint32_t i = gk_tid(t); i <= a.n; i += gk_size(t)) y[i] = i < a.n ? x[i] : 0.0f;
}

GK_KERNEL(copies_past_end, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  for (uint32_t i = gk_tid(t); i <= a.n; i += gk_size(t)) y[i] = x[i];
}

GK_KERNEL(writes_before_start, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_GLOBAL float *before = y - 1;
  for (uint32_t i = gk_tid(t); i < a.n; i += gk_size(t)) before[i] = x[i];
}

GK_KERNEL(writes_past_shared, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, SIZE);
  GK_SHARED_AS float *all = share;
  all[gk_tid(t) + 1] = x[gk_tid(t)];
  gk_barrier(t);
  if (gk_tid(t) < a.n) y[gk_tid(t)] = share[gk_tid(t)];
}

GK_KERNEL(last_writer_wins, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  for (uint32_t i = gk_tid(t); i < a.n; i += gk_size(t)) y[i / 2] = x[i];
}

GK_KERNEL(writes_input, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  if (gk_tid(t) == 0) const_cast<float *>(x)[3] = 0.0f;
  for (uint32_t i = gk_tid(t); i < a.n; i += gk_size(t)) y[i] = x[i];
}

GK_KERNEL(asks_for_more_shared, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, 2 * SIZE);
  share[gk_tid(t)] = x[a.n - 1];
  y[0] = x[0];
}

GK_KERNEL(asks_for_less_shared, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  GK_SHARED(float, share, SIZE / 2);
  share[gk_tid(t) % 32] = x[a.n - 1];
  y[0] = x[0];
}

GK_KERNEL(reads_past_end, args, const GK_GLOBAL float *x, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  for (uint32_t i = gk_tid(t); i < a.n; i += gk_size(t)) y[i] = x[i + 1] > 50.0f ? 1.0f : 0.0f;
}

struct machine_test {
  gr_emu_memory memory;
  gr_emu_launcher launcher;
  void *x, *y;
};

int setup(void **state)
{
  static machine_test m;
  gr_error e = {};
  m = machine_test();
  *state = &m;
  if (gr_emu_memory_alloc(&m.memory, N * sizeof(float), &m.x, &e) != GR_OK) return -1;
  if (gr_emu_memory_alloc(&m.memory, N * sizeof(float), &m.y, &e) != GR_OK) return -1;
  float *x = reinterpret_cast<float *>(gr_emu_memory_at(&m.memory, m.x, N * sizeof(float)));
  for (int i = 0; i < N; i++) x[i] = (float)i;
  return 0;
}

int teardown(void **state)
{
  machine_test *m = static_cast<machine_test *>(*state);
  gr_emu_launcher_deinit(&m->launcher);
  gr_emu_memory_deinit(&m->memory);
  return 0;
}

/* Runs a kernel of two buffers of N floats on one group. */
gr_status run(machine_test *m, const char *name, gr_emu_entry *entry, uint32_t shared_bytes, bool sync, uint32_t lanes, uint32_t groups,
              gr_error *e)
{
  const gr_gpu_kernel_info info = { name, "io", sizeof(args), SIZE, shared_bytes, sync };
  const gr_emu_kernel kernel = { &info, entry };
  gr_gpu_launch launch = {};
  launch.groups = groups;
  launch.buffer[0].address = m->x;
  launch.buffer[1].address = m->y;
  launch.buffer[0].bytes = launch.buffer[1].bytes = N * sizeof(float);
  const args a = { N };
  memcpy(launch.args, &a, sizeof a);
  return gr_emu_launch(&m->launcher, &m->memory, &kernel, &launch, lanes, e);
}

void expect(void **state, const char *name, gr_emu_entry *entry, uint32_t shared_bytes, bool sync, const char *text)
{
  machine_test *m = static_cast<machine_test *>(*state);
  gr_error e = {};
  gr_status s = run(m, name, entry, shared_bytes, sync, 32, 1, &e);
  if (!text) assert_ok(s, &e);
  if (!text) return;
  assert_int_equal(s, GR_ERR_DEVICE);
  if (!strstr(e.text, text) || !strstr(e.text, name)) fail_msg("'%s' should name %s and say '%s'", e.text, name, text);
  /* A kernel that went wrong leaves the machine as good as new. */
  assert_ok(run(m, "sum_correct", GR_EMU_ENTRY(sum_correct, args, "io"), SIZE * sizeof(float), true, 32, 1, &e), &e);
}

enum { SHARE = SIZE * sizeof(float) };

#define EXPECT(kernel, shared, sync, text) expect(state, #kernel, GR_EMU_ENTRY(kernel, args, "io"), shared, sync, text)

void correct_kernels_pass(void **state)
{
  machine_test *m = static_cast<machine_test *>(*state);
  gr_error e = {};
  const uint32_t lanes[] = { 4, 8, 16, 32, 64 };
  for (uint32_t width : lanes) {
    assert_ok(run(m, "sum_correct", GR_EMU_ENTRY(sum_correct, args, "io"), SHARE, true, width, 1, &e), &e);
    assert_true(*reinterpret_cast<float *>(gr_emu_memory_at(&m->memory, m->y, 4)) == N * (N - 1) / 2);
    assert_ok(run(m, "lanes_by_group", GR_EMU_ENTRY(lanes_by_group, args, "io"), SHARE, true, width, 1, &e), &e);
    assert_true(*reinterpret_cast<float *>(gr_emu_memory_at(&m->memory, m->y, 4)) == (float)width);
  }
}

void missing_barriers_are_caught(void **state)
{
  EXPECT(sum_without_barrier, SHARE, true, "leaves other bits at byte");
  EXPECT(sum_without_barrier_by_last, SHARE, true, "leaves other bits at byte");
  EXPECT(reuse_without_barrier, SHARE, true, "leaves other bits at byte");
  EXPECT(sums_without_barrier_between, SHARE, true, "leaves other bits at byte");
}

void divergence_is_caught(void **state)
{
  EXPECT(barrier_in_branch, SHARE, true, "thread 0 waits at the barrier of test_emu_machine.cpp");
  EXPECT(barrier_in_branch, SHARE, true, "while thread 40 has finished");
  EXPECT(two_barriers, SHARE, true, "while thread 1 waits at the barrier of test_emu_machine.cpp");
  EXPECT(lanes_in_branch, SHARE, true, "thread 32 waits for its lane group at test_emu_machine.cpp");
  EXPECT(undeclared_barrier, 0, false, "kernels.def says that there is none");
}

void shared_memory_is_as_declared(void **state)
{
  EXPECT(asks_for_more_shared, SHARE, true, "asks for 512 bytes of shared memory");
  EXPECT(asks_for_less_shared, SHARE, true, "it used 128 bytes of shared memory, but kernels.def says 256");
}

void two_writers_are_caught(void **state) { EXPECT(last_writer_wins, 0, false, "or two threads write there"); }

/* The guards say which kernel and buffer; AddressSanitizer, where it is, says which line first, and also sees reads. */
#ifdef GR_ASAN
#define EXPECT_BOUNDS(kernel, shared, sync, text) expect_death(state, #kernel, GR_EMU_ENTRY(kernel, args, "io"), shared, sync)
void expect_death(void **state, const char *name, gr_emu_entry *entry, uint32_t shared_bytes, bool sync)
{
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    gr_error e = {};
    dup2(pipes[1], 2);
    run(static_cast<machine_test *>(*state), name, entry, shared_bytes, sync, 32, 1, &e);
    _exit(0);
  }
  close(pipes[1]);
  char text[16384];
  size_t n = 0;
  for (ssize_t got; n < sizeof text - 1 && (got = read(pipes[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
  text[n] = 0;
  close(pipes[0]);
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
  if (!strstr(text, "AddressSanitizer: use-after-poison") || !strstr(text, name)) fail_msg("%s: %s", name, text);
}
#else
#define EXPECT_BOUNDS(kernel, shared, sync, text) EXPECT(kernel, shared, sync, text)
#endif

void accesses_out_of_bounds_are_caught(void **state)
{
  EXPECT_BOUNDS(writes_past_end, 0, false, "wrote past the end of buffer 1: at byte 400 of 400");
  EXPECT_BOUNDS(copies_past_end, 0, false, "wrote past the end of buffer 1");
  EXPECT_BOUNDS(writes_before_start, 0, false, "wrote 4 bytes before the start of buffer 1");
  EXPECT_BOUNDS(writes_past_shared, SHARE, true, "wrote outside the shared array of test_emu_machine.cpp");
#ifdef GR_ASAN
  EXPECT_BOUNDS(reads_past_end, 0, false, "");
#else
  (void)GR_EMU_ENTRY(reads_past_end, args, "io");
#endif
  EXPECT(writes_input, 0, false, "wrote into buffer 0");
}

/* ---- fibers ---- */

struct worker {
  gr_fiber fiber, *host;
  double sum;
  unsigned rounds;
};

/* Keeps more values alive over each switch than there are registers. */
void work(void *arg)
{
  worker *w = static_cast<worker *>(arg);
  double a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8, i = 9, j = 10;
  uint64_t p = 11, q = 12, r = 13, s = 14, t = 15, u = 16, v = 17;
  for (;;) {
    w->rounds++;
    w->sum = a + b + c + d + e + f + g + h + i + j + (double)(p + q + r + s + t + u + v);
    gr_fiber_switch(&w->fiber, w->host);
    a += 1, b += 1, c += 1, d += 1, e += 1, f += 1, g += 1, h += 1, i += 1, j += 1;
    p += 1, q += 1, r += 1, s += 1, t += 1, u += 1, v += 1;
  }
}

void fibers_keep_their_registers(void **)
{
  enum { FIBERS = 5, ROUNDS = 50, STACK = 64 << 10 };
  static worker w[FIBERS];
  gr_fiber host;
  gr_fiber_init_host(&host);
  unsigned char *stacks = static_cast<unsigned char *>(gr_alloc_aligned(FIBERS * STACK, 64));
  for (int k = 0; k < FIBERS; k++) {
    w[k] = worker();
    w[k].host = &host;
    gr_fiber_init(&w[k].fiber, stacks + k * STACK, STACK, work, &w[k]);
  }
  double x[12];
  for (int k = 0; k < 12; k++) x[k] = k;
  for (unsigned round = 0; round < ROUNDS; round++)
    for (int k = 0; k < FIBERS; k++) {
      gr_fiber_switch(&host, &w[k].fiber);
      assert_true(w[k].sum == 55 + 98 + 17.0 * round);
      assert_int_equal(w[k].rounds, round + 1);
      for (int i = 0; i < 12; i++) x[i] += 1; /* the host's own registers */
    }
  for (int k = 0; k < 12; k++) assert_true(x[k] == k + (double)ROUNDS * FIBERS);
  assert_true(gr_fiber_stack_intact(&w[2].fiber));
  stacks[2 * STACK + 63] ^= 1;
  assert_false(gr_fiber_stack_intact(&w[2].fiber));
  for (int k = 0; k < FIBERS; k++) gr_fiber_deinit(&w[k].fiber);
  gr_free(stacks);
}

/* ---- decoders ---- */

template <class Format>
bool decodes_alike(gr_dtype dtype, uint64_t stream)
{
  enum { ROW = 512 };
  const gr_dtype_info *d = gr_dtype_get(dtype);
  uint8_t row[ROW * 4];
  float want[ROW], got[ROW];
  for (size_t i = 0; i < sizeof row; i++) row[i] = (uint8_t)gr_random_u64(3, stream, i);
  /* Scales of every kind: every other row has one small byte pattern everywhere in its first bytes, so zero, denormal and infinite ones. */
  static const uint8_t patterns[] = { 0x00, 0x01, 0x7c, 0xfc, 0x7e, 0x80, 0xff };
  if (stream % 2) memset(row, patterns[stream / 2 % sizeof patterns], (size_t)d->block_bytes);
  gr_quant_decoder(dtype)(row, want, ROW);
  for (uint32_t i = 0; i < ROW; i += 8) gk_decode8(Format(), row, i, ROW, got + i);
  for (int i = 0; i < ROW; i++) {
    bool both_nan = got[i] != got[i] && want[i] != want[i];
    if (!both_nan && memcmp(got + i, want + i, sizeof *got) != 0) return false;
  }
  return true;
}

/* Any bytes at all: scales that are infinite, denormal, NaN. */
void decoders_give_the_bits_of_quant(void **)
{
  for (uint64_t stream = 0; stream < 400; stream++) {
#define GK_FORMAT(format, dtype)                                                                                                           \
  if (!decodes_alike<gk_##format>(GR_##dtype, stream)) fail_msg("%s, stream %u", #dtype, (unsigned)stream);
#include "kernels/formats.def"
#undef GK_FORMAT
  }
}

/* Past the end of a row that is no multiple of 8, a decoder reads nothing and gives zero. */
void decoders_stop_at_the_end(void **)
{
  float *row = static_cast<float *>(gr_alloc(11 * sizeof(float))), got[8];
  for (int i = 0; i < 11; i++) row[i] = 1;
  gk_decode8(gk_f32(), reinterpret_cast<uint8_t *>(row), 8, 11, got);
  for (int i = 0; i < 8; i++) assert_true(got[i] == (i < 3 ? 1.0f : 0.0f));
  gr_free(row);
}

} // namespace

int main()
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
    TEST(correct_kernels_pass),
    TEST(missing_barriers_are_caught),
    TEST(divergence_is_caught),
    TEST(shared_memory_is_as_declared),
    TEST(two_writers_are_caught),
    TEST(accesses_out_of_bounds_are_caught),
    cmocka_unit_test(fibers_keep_their_registers),
    cmocka_unit_test(decoders_give_the_bits_of_quant),
    cmocka_unit_test(decoders_stop_at_the_end),
  };
  return cmocka_run_group_tests_name("emu machine", tests, NULL, NULL);
}
