/* Every kind of fault of the hostile index, put into files of our own: each field of the container set to extreme values, each
 * byte changed, the file cut after each byte, names repeated, data overlapping, and many random changes at once. A change is
 * refused where the format forbids it, and what is accepted can be read in full: the bytes stand in an allocation of exactly
 * their size, so that a sanitizer sees one step beyond. */
#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "gguf_sample.h"
#include "gguf_walk.h"
#include "scratch.h"

typedef enum field_kind {
  VERSION,
  TENSORS,
  PAIRS,
  KEY_LEN,
  NAME_LEN,
  STRING_LEN,
  COUNT,
  VALUE_TYPE,
  ELEMENT_TYPE,
  TRUTH,
  ALIGNMENT,
  DIMS,
  DIM,
  TYPE,
  OFFSET
} field_kind;

typedef struct field {
  field_kind kind;
  size_t at, width;
} field;

typedef struct image {
  uint8_t *bytes;
  size_t size;
  size_t end; /* of the last tensor's data: what follows is padding */
  field fields[512];
  size_t field_count;
  size_t names_at[64], name_count; /* of tensors: where the bytes of each begin */
} image;

/* ---- where the fields are: a second, trusting reader ---- */

static uint64_t get(const image *m, size_t at, size_t width)
{
  uint64_t v = 0;
  for (size_t i = 0; i < width; i++) v |= (uint64_t)m->bytes[at + i] << (8 * i);
  return v;
}

static uint64_t note(image *m, field_kind kind, size_t *at, size_t width)
{
  assert_true(m->field_count < sizeof m->fields / sizeof *m->fields);
  m->fields[m->field_count++] = (field){ kind, *at, width };
  uint64_t v = get(m, *at, width);
  *at += width;
  return v;
}

static void note_text(image *m, field_kind kind, size_t *at)
{
  uint64_t n = note(m, kind, at, 8);
  *at += n;
}

static void note_value(image *m, size_t *at, field_kind kind, uint64_t type, uint64_t count)
{
  static const size_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
  for (uint64_t i = 0; i < count; i++) {
    if (type == GR_GGUF_STRING) note_text(m, STRING_LEN, at);
    else if (type == GR_GGUF_BOOL || kind == ALIGNMENT) note(m, kind, at, bytes[type]);
    else *at += bytes[type];
  }
}

static void note_fields(image *m)
{
  size_t at = 4;
  note(m, VERSION, &at, 4);
  uint64_t tensors = note(m, TENSORS, &at, 8), pairs = note(m, PAIRS, &at, 8);
  for (uint64_t i = 0; i < pairs; i++) {
    field_kind kind = memcmp(m->bytes + at + 8, "general.alignment", 17) == 0 ? ALIGNMENT : TRUTH;
    note_text(m, KEY_LEN, &at);
    uint64_t type = note(m, VALUE_TYPE, &at, 4), count = 1;
    if (type == GR_GGUF_ARRAY) {
      type = note(m, ELEMENT_TYPE, &at, 4);
      count = note(m, COUNT, &at, 8);
    }
    note_value(m, &at, kind, type, count);
  }
  for (uint64_t i = 0; i < tensors; i++) {
    m->names_at[m->name_count++] = at + 8;
    note_text(m, NAME_LEN, &at);
    uint64_t dims = note(m, DIMS, &at, 4);
    for (uint64_t d = 0; d < dims; d++) note(m, DIM, &at, 8);
    note(m, TYPE, &at, 4);
    note(m, OFFSET, &at, 8);
  }
}

static image load(const char *path)
{
  image m = { 0 };
  char *text;
  gr_error e = { 0 };
  gr_gguf *g = NULL;
  assert_ok(gr_file_read(path, 1 << 20, &text, &m.size, &e), &e);
  m.bytes = (uint8_t *)text;
  note_fields(&m);
  assert_ok(gr_gguf_open_memory(&g, m.bytes, m.size, "sample", &e), &e);
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    size_t end = (size_t)((const uint8_t *)t->data - m.bytes) + t->bytes;
    if (end > m.end) m.end = end;
  }
  gr_gguf_close(g);
  return m;
}

/* ---- opening a changed file ---- */

/* Opens a copy and reads all of what opens, as a model and as an adapter. */
static bool opens(const uint8_t *bytes, size_t size, gr_error *e)
{
  uint8_t *copy = gr_alloc(size);
  assert_non_null(copy);
  if (size) memcpy(copy, bytes, size);
  gr_gguf *g = NULL;
  gr_adapter *a = NULL;
  *e = (gr_error){ 0 };
  bool ok = gr_gguf_open_memory(&g, copy, size, "changed", e) == GR_OK;
  assert_true(ok == (g != NULL));
  if (!ok && (!e->text[0] || !strstr(e->text, "changed"))) fail_msg("a refusal without a sentence: '%s'", e->text);
  if (ok) {
    walk(g);
    gr_error ignored = { 0 };
    if (gr_adapter_from_gguf(&a, g, &ignored) == GR_OK) walk_adapter(a);
    gr_adapter_close(a);
  }
  gr_free(copy);
  return ok;
}

/* What the format says of one field set to v: -1 must be refused, 0 may be either, 1 must open. */
static int verdict(const image *m, const field *f, uint64_t v)
{
  uint64_t old = get(m, f->at, f->width);
  gr_dtype dtype;
  if (v == old) return 1;
  switch (f->kind) {
  case VERSION: return v == 2 ? 1 : -1;
  case TENSORS:
  case PAIRS: return v > old ? -1 : 0;
  case KEY_LEN:
  case NAME_LEN: return v == 0 || v > m->size ? -1 : 0;
  case STRING_LEN:
  case COUNT: return v > m->size ? -1 : 0;
  case VALUE_TYPE: return v > GR_GGUF_F64 ? -1 : 0;
  case ELEMENT_TYPE: return v > GR_GGUF_F64 || v == GR_GGUF_ARRAY ? -1 : 0;
  case TRUTH: return v > 1 ? -1 : 1;
  case ALIGNMENT: return v < 8 || (v & (v - 1)) ? -1 : 0;
  case DIMS: return v > 4 ? -1 : 0;
  case DIM: return v == 0 || v > 8 * m->size ? -1 : 0;
  case TYPE: return gr_dtype_from_ggml((uint32_t)v, &dtype) || (v >= 16 && v < 43) ? 0 : -1;
  case OFFSET: return -1; /* the sample's tensors stand without gaps: any other place is unaligned, overlapping or outside */
  }
  return 0;
}

static void every_field_at_its_extremes(image *m)
{
  static const uint64_t extremes[] = { 0,
                                       1,
                                       2,
                                       3,
                                       4,
                                       5,
                                       7,
                                       8,
                                       9,
                                       15,
                                       16,
                                       31,
                                       32,
                                       33,
                                       63,
                                       64,
                                       127,
                                       128,
                                       255,
                                       256,
                                       4096,
                                       65535,
                                       65536,
                                       INT32_MAX,
                                       UINT64_C(1) << 31,
                                       UINT32_MAX,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 40,
                                       UINT64_C(1) << 59,
                                       UINT64_C(1) << 60,
                                       UINT64_C(1) << 61,
                                       UINT64_C(1) << 62,
                                       INT64_MAX,
                                       UINT64_C(1) << 63,
                                       UINT64_MAX - 31,
                                       UINT64_MAX - 7,
                                       UINT64_MAX };
  enum { EXTREMES = sizeof extremes / sizeof *extremes };
  size_t refused = 0;
  for (size_t i = 0; i < m->field_count; i++) {
    const field *f = &m->fields[i];
    uint64_t old = get(m, f->at, f->width), near[] = { old - 1, old + 1, old * 2, old + m->size, m->size - f->at, m->size, ~old };
    for (size_t j = 0; j < EXTREMES + sizeof near / sizeof *near; j++) {
      uint64_t v = j < EXTREMES ? extremes[j] : near[j - EXTREMES];
      if (f->width < 8) v &= (UINT64_C(1) << 8 * f->width) - 1;
      for (size_t b = 0; b < f->width; b++) m->bytes[f->at + b] = (uint8_t)(v >> (8 * b));
      gr_error e;
      bool ok = opens(m->bytes, m->size, &e);
      for (size_t b = 0; b < f->width; b++) m->bytes[f->at + b] = (uint8_t)(old >> (8 * b));
      int want = verdict(m, f, v);
      if ((want < 0 && ok) || (want > 0 && !ok))
        fail_msg("field %zu of kind %d at byte %zu: %llu instead of %llu is %s %s", i, (int)f->kind, f->at, (unsigned long long)v,
                 (unsigned long long)old, ok ? "accepted" : "refused:", e.text);
      refused += !ok;
    }
  }
  assert_true(refused > m->field_count * 10);
}

static void every_cut(image *m)
{
  for (size_t n = 0; n <= m->size; n++) {
    gr_error e;
    bool ok = opens(m->bytes, n, &e);
    if (ok != (n >= m->end))
      fail_msg("cut after %zu of %zu bytes (the data ends at %zu): %s", n, m->size, m->end, ok ? "accepted" : e.text);
  }
}

static void every_byte(image *m)
{
  for (size_t at = 0; at < m->end; at++) {
    uint8_t old = m->bytes[at];
    const uint8_t values[] = { 0, 0xff, (uint8_t)(old ^ 1), (uint8_t)(old ^ 0x80), (uint8_t)(old + 1), (uint8_t)(old - 1) };
    for (size_t i = 0; i < sizeof values; i++) {
      gr_error e;
      m->bytes[at] = values[i];
      bool ok = opens(m->bytes, m->size, &e);
      if (at < 4 && ok != (values[i] == old)) fail_msg("magic with %02x at %zu: accepted", values[i], at);
    }
    m->bytes[at] = old;
  }
}

/* Exchanges bytes among places, widths and values at random: combinations that one change does not reach. */
static void many_at_once(image *m, uint64_t seed)
{
  uint8_t *saved = gr_alloc(m->size);
  assert_non_null(saved);
  memcpy(saved, m->bytes, m->size);
  for (uint64_t round = 0; round < 1500; round++) {
    uint64_t changes = 1 + gr_random_below(seed, round, 0, 4);
    for (uint64_t c = 1; c <= changes; c++) {
      const field *f = &m->fields[gr_random_below(seed, round, 4 * c, m->field_count)];
      uint64_t v = gr_random_u64(seed, round, 4 * c + 1) >> gr_random_below(seed, round, 4 * c + 2, 64);
      memcpy(m->bytes + f->at, &v, f->width);
      m->bytes[gr_random_below(seed, round, 4 * c + 3, m->size)] = (uint8_t)v;
    }
    gr_error e;
    size_t cut = gr_random_below(seed, round, 1, 4) ? m->size : (size_t)gr_random_below(seed, round, 2, m->size);
    opens(m->bytes, cut, &e);
    memcpy(m->bytes, saved, m->size);
  }
  gr_free(saved);
}

static void with_samples(void (*check)(image *m))
{
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  for (int which = 0; which < 4; which++) {
    const char *path = scratch_path(&dir, "sample.gguf");
    if (which < 2) assert_ok(sample_model_save(path, which ? 8 : 32, &e), &e);
    else if (which == 2) assert_ok(sample_adapter_save(path, &e), &e);
    else assert_ok(sample_base_save(path, "llama", 3, &e), &e);
    image m = load(path);
    check(&m);
    gr_free(m.bytes);
  }
  scratch_close(&dir);
}

static void fields_set_to_extremes(void **state)
{
  (void)state;
  with_samples(every_field_at_its_extremes);
}

static void files_cut_anywhere(void **state)
{
  (void)state;
  with_samples(every_cut);
}

static void bytes_changed_anywhere(void **state)
{
  (void)state;
  with_samples(every_byte);
}

static void random_changes(image *m) { many_at_once(m, m->size); }

static void many_changes_at_once(void **state)
{
  (void)state;
  with_samples(random_changes);
}

static void refuse(image *m, const char *says)
{
  gr_error e;
  if (opens(m->bytes, m->size, &e)) fail_msg("accepted: %s", says);
  if (!strstr(e.text, says)) fail_msg("'%s' does not say '%s'", e.text, says);
}

static void duplicates_and_overlaps(image *m)
{
  uint8_t saved[8];
  for (size_t i = 0; i < m->field_count; i++)
    for (size_t j = 0; j < i; j++) {
      const field *f = &m->fields[i], *g = &m->fields[j];
      if (f->kind != g->kind || (f->kind != KEY_LEN && f->kind != OFFSET)) continue;
      if (f->kind == KEY_LEN) {
        uint64_t n = get(m, f->at, 8);
        char key[64];
        if (n != get(m, g->at, 8) || n > sizeof key) continue;
        memcpy(key, m->bytes + f->at + 8, n);
        memcpy(m->bytes + f->at + 8, m->bytes + g->at + 8, n);
        refuse(m, "stands in the file twice");
        memcpy(m->bytes + f->at + 8, key, n);
      } else {
        memcpy(saved, m->bytes + f->at, 8);
        memcpy(m->bytes + f->at, m->bytes + g->at, 8);
        refuse(m, "overlap in the file");
        memcpy(m->bytes + f->at, saved, 8);
      }
    }
}

static void names_twice_and_data_overlapping(void **state)
{
  (void)state;
  with_samples(duplicates_and_overlaps);
}

/* The least that can overlap: the last byte of one tensor is the first of the next. */
static void overlap_of_one_byte(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_gguf_writer *w = NULL;
  gr_buf bytes = { 0 };
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_add_data(w, "first", GR_I8, 1, (int64_t[]){ 33 }, sample_bytes);
  gr_gguf_add_data(w, "second", GR_I8, 1, (int64_t[]){ 32 }, sample_bytes);
  assert_ok(gr_gguf_writer_encode(w, &bytes, &e), &e);
  gr_gguf_writer_free(w);
  image m = { .bytes = (uint8_t *)bytes.data, .size = bytes.len };
  note_fields(&m);
  const field *offset = &m.fields[m.field_count - 1];
  assert_true(offset->kind == OFFSET && get(&m, offset->at, 8) == 64);
  m.bytes[offset->at] = 32;
  refuse(&m, "'first' and 'second' overlap");
  gr_buf_free(&bytes);
}

/* Without tensors there is no offset to betray a wrong alignment. */
static void alignment_alone(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_gguf_writer *w = NULL;
  gr_buf bytes = { 0 };
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_writer_set_alignment(w, 64);
  assert_ok(gr_gguf_writer_encode(w, &bytes, &e), &e);
  gr_gguf_writer_free(w);
  image m = { .bytes = (uint8_t *)bytes.data, .size = bytes.len };
  note_fields(&m);
  const field *alignment = &m.fields[m.field_count - 1];
  assert_true(alignment->kind == ALIGNMENT && get(&m, alignment->at, 4) == 64);
  static const uint8_t values[] = { 8, 16, 128, 0, 1, 2, 4, 7, 12, 24, 48, 96, 255 };
  for (size_t i = 0; i < sizeof values; i++) {
    m.bytes[alignment->at] = values[i];
    if (i >= 3) refuse(&m, "not a power of two from 8");
    else assert_true(opens(m.bytes, m.size, &e));
  }
  gr_buf_free(&bytes);
}

/* Tensor names of one length are rare in the samples: a file with many, each in turn made a copy of another. */
static void tensor_names_twice(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_gguf_writer *w = NULL;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  char name[16];
  for (int i = 0; i < 40; i++) {
    snprintf(name, sizeof name, "blk.%02d.x", (i * 27) % 40);
    gr_gguf_add_data(w, name, GR_F32, 1, (int64_t[]){ 8 }, sample_floats);
  }
  assert_ok(gr_gguf_writer_save(w, scratch_path(&dir, "many.gguf"), &e), &e);
  gr_gguf_writer_free(w);
  image m = load(scratch_path(&dir, "many.gguf"));
  for (size_t i = 0; i < m.name_count; i++)
    for (size_t j = 0; j < i; j++) {
      memcpy(name, m.bytes + m.names_at[i], 8);
      memcpy(m.bytes + m.names_at[i], m.bytes + m.names_at[j], 8);
      refuse(&m, "stands in the file twice");
      memcpy(m.bytes + m.names_at[i], name, 8);
    }
  gr_free(m.bytes);
  scratch_close(&dir);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(fields_set_to_extremes),
    cmocka_unit_test(files_cut_anywhere),
    cmocka_unit_test(bytes_changed_anywhere),
    cmocka_unit_test(many_changes_at_once),
    cmocka_unit_test(names_twice_and_data_overlapping),
    cmocka_unit_test(overlap_of_one_byte),
    cmocka_unit_test(alignment_alone),
    cmocka_unit_test(tensor_names_twice),
  };
  return cmocka_run_group_tests_name("gguf mutation", tests, NULL, NULL);
}
