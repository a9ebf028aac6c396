/* Event files, read back by a reader of the test's own: framing, both checksums of each record, and the protocol buffers in them.
 * TensorBoard itself reads them in tools/judge_tensorboard.py. */
#include <math.h>
#include <time.h>

#include "base/alloc.h"
#include "base/cursor.h"
#include "base/file.h"
#include "scratch.h"
#include "train/tensorboard.h"

enum { EVENTS_MAX = 16, SCALARS_MAX = 4 };

struct event {
  double wall_time;
  uint64_t step;
  char version[32];
  bool start; /* of a session */
  size_t n;
  struct {
    char tag[256];
    float value;
  } scalars[SCALARS_MAX];
};

static struct event events[EVENTS_MAX];

/* CRC-32C by long division, highest bit first, on bits turned round: not the way of the writer. */
static uint32_t turned(uint32_t v, int bits)
{
  uint32_t r = 0;
  for (int i = 0; i < bits; i++) r |= (v >> i & 1) << (bits - 1 - i);
  return r;
}

static uint32_t masked_crc(const uint8_t *p, size_t n)
{
  uint32_t rest = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    rest ^= turned(p[i], 8) << 24;
    for (int bit = 0; bit < 8; bit++) rest = rest & 0x80000000u ? rest << 1 ^ 0x1edc6f41u : rest << 1;
  }
  uint32_t crc = ~turned(rest, 32);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t take_varint(gr_cursor *c)
{
  uint64_t v = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    uint8_t byte = gr_cursor_u8(c);
    v |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return v;
  }
  c->failed = true;
  return 0;
}

/* The field at hand as a message, or a text. */
static gr_cursor take_inner(gr_cursor *c)
{
  size_t n = (size_t)take_varint(c);
  const uint8_t *p = gr_cursor_take(c, n);
  return (gr_cursor){ .data = p, .size = p ? n : 0, .failed = !p };
}

static bool take_text(gr_cursor *c, char *out, size_t room)
{
  gr_cursor text = take_inner(c);
  if (text.failed || text.size >= room) return false;
  memcpy(out, text.data, text.size);
  out[text.size] = 0;
  return true;
}

static bool read_value(gr_cursor c, struct event *v)
{
  if (v->n == SCALARS_MAX) return false;
  bool tag = take_varint(&c) == (1 << 3 | 2) && take_text(&c, v->scalars[v->n].tag, sizeof v->scalars[0].tag);
  bool value = take_varint(&c) == (2 << 3 | 5);
  v->scalars[v->n++].value = gr_cursor_f32(&c);
  return tag && value && !c.failed && gr_cursor_left(&c) == 0;
}

static bool read_summary(gr_cursor c, struct event *v)
{
  while (gr_cursor_left(&c))
    if (take_varint(&c) != (1 << 3 | 2) || !read_value(take_inner(&c), v)) return false;
  return !c.failed;
}

static bool read_event(gr_cursor c, struct event *v)
{
  *v = (struct event){ 0 };
  while (gr_cursor_left(&c)) {
    uint64_t key = take_varint(&c);
    gr_cursor inner = { 0 };
    switch (key) {
    case 1 << 3 | 1: v->wall_time = gr_cursor_f64(&c); break;
    case 2 << 3 | 0: v->step = take_varint(&c); break;
    case 3 << 3 | 2:
      if (!take_text(&c, v->version, sizeof v->version)) return false;
      break;
    case 5 << 3 | 2:
      if (!read_summary(take_inner(&c), v)) return false;
      break;
    case 7 << 3 | 2:
      inner = take_inner(&c);
      v->start = take_varint(&inner) == (1 << 3 | 0) && take_varint(&inner) == 1 && !inner.failed;
      break;
    default: return false;
    }
  }
  return !c.failed;
}

/* The events of a file's bytes, or -1 when a record is not whole and sound. */
static int read_events(const void *bytes, size_t n)
{
  gr_cursor c = { .data = bytes, .size = n };
  int count = 0;
  while (gr_cursor_left(&c)) {
    const uint8_t *length = gr_cursor_take(&c, 8);
    uint32_t sum = gr_cursor_u32(&c);
    if (!length || c.failed || sum != masked_crc(length, 8)) return -1;
    size_t size = (size_t)gr_load_le(length, 8);
    const uint8_t *data = gr_cursor_take(&c, size);
    sum = gr_cursor_u32(&c);
    if (!data || c.failed || sum != masked_crc(data, size) || count == EVENTS_MAX) return -1;
    if (!read_event((gr_cursor){ .data = data, .size = size }, &events[count++])) return -1;
  }
  return count;
}

/* ---- a folder of event files ---- */

static scratch dir;

static int set_up(void **state)
{
  (void)state;
  scratch_open(&dir);
  return 0;
}

static int tear_down(void **state)
{
  (void)state;
  scratch_close(&dir);
  return 0;
}

/* The bytes of the newest file, by name; the caller frees them. Returns how many files there are. */
static size_t newest(char **bytes, size_t *n)
{
  char name[256] = "";
  size_t count = 0;
  DIR *d = opendir(dir.folder);
  assert_non_null(d);
  for (struct dirent *entry; (entry = readdir(d));) {
    if (entry->d_name[0] == '.') continue;
    assert_memory_equal(entry->d_name, "events.out.tfevents.", 20); /* TensorBoard looks for "tfevents" */
    count++;
    if (strcmp(entry->d_name, name) > 0) snprintf(name, sizeof name, "%s", entry->d_name);
  }
  closedir(d);
  gr_error e = { 0 };
  char path[400];
  snprintf(path, sizeof path, "%s/%s", dir.folder, name);
  assert_ok(gr_file_read(path, 1 << 20, bytes, n, &e), &e);
  return count;
}

static gr_tensorboard *begin(uint64_t first_step)
{
  gr_tensorboard *t;
  gr_error e = { 0 };
  assert_ok(gr_tensorboard_open(&t, dir.folder, first_step, &e), &e);
  return t;
}

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void events_hold_what_was_added(void **state)
{
  (void)state;
  char longest[201]; /* its length takes two bytes */
  memset(longest, 'x', 200);
  longest[200] = 0;
  static const uint64_t steps[] = { 0, 1, 127, 128, 300, (uint64_t)1 << 40, UINT64_MAX >> 1 };
  enum { STEPS = sizeof steps / sizeof *steps };
  const gr_scalar scalars[] = { { "train/loss", 0.1 }, { "\xc3\xa9/-", -1e-30 }, { longest, INFINITY } };
  gr_error e = { 0 };
  double before = now();
  gr_tensorboard *t = begin(0);
  for (size_t i = 0; i < STEPS; i++) assert_ok(gr_tensorboard_add(t, steps[i], scalars, i % 3 + 1, &e), &e);
  gr_tensorboard_close(t);
  double after = now();
  char *bytes;
  size_t n;
  assert_int_equal(newest(&bytes, &n), 1);
  assert_int_equal(read_events(bytes, n), STEPS + 1);
  assert_string_equal(events[0].version, "brain.Event:2");
  assert_false(events[0].start);
  for (size_t i = 0; i < STEPS; i++) {
    const struct event *v = &events[i + 1];
    assert_true(v->step == steps[i] && v->n == i % 3 + 1 && !v->version[0] && !v->start);
    for (size_t k = 0; k < v->n; k++) {
      assert_string_equal(v->scalars[k].tag, scalars[k].tag);
      assert_true(v->scalars[k].value == (float)scalars[k].value);
    }
    assert_true(v->wall_time >= events[i].wall_time && v->wall_time >= before && v->wall_time <= after);
  }
  gr_free(bytes);
}

/* This test's reader can fail: whatever bit is changed, and wherever the file ends within a record. */
static void a_changed_bit_is_noticed(void **state)
{
  (void)state;
  const gr_scalar scalars[] = { { "train/loss", 2.5 }, { "eval/loss", 3 } };
  gr_error e = { 0 };
  gr_tensorboard *t = begin(0);
  assert_ok(gr_tensorboard_add(t, 7, scalars, 2, &e), &e);
  gr_tensorboard_close(t);
  char *bytes;
  size_t n, whole = 0;
  newest(&bytes, &n);
  assert_int_equal(read_events(bytes, n), 2);
  for (size_t bit = 0; bit < 8 * n; bit++) {
    bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    if (read_events(bytes, n) != -1) fail_msg("bit %zu", bit);
    bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
  }
  for (size_t end = 1; end < n; end++) whole += read_events(bytes, end) != -1;
  assert_int_equal(whole, 1); /* behind the first record */
  gr_free(bytes);
}

static void a_run_that_goes_on_says_where(void **state)
{
  (void)state;
  const gr_scalar loss = { "train/loss", 1 };
  gr_error e = { 0 };
  char *bytes;
  size_t n;
  gr_tensorboard_close(begin(0));
  gr_tensorboard *t = begin(41);
  assert_ok(gr_tensorboard_add(t, 41, &loss, 1, &e), &e);
  gr_tensorboard_close(t);
  assert_int_equal(newest(&bytes, &n), 2); /* the older file is kept */
  assert_int_equal(read_events(bytes, n), 3);
  assert_true(events[1].start && events[1].step == 41);
  assert_true(events[2].n == 1 && events[2].step == 41);
  gr_free(bytes);
  gr_tensorboard_close(begin(0));
  assert_int_equal(newest(&bytes, &n), 1); /* and gone when a run begins anew */
  assert_int_equal(read_events(bytes, n), 1);
  gr_free(bytes);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(events_hold_what_was_added, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_changed_bit_is_noticed, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_run_that_goes_on_says_where, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("tensorboard", tests, NULL, NULL);
}
