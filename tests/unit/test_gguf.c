#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "gguf_sample.h"
#include "scratch.h"

#define HOSTILE SHARED_DATA "hostile-gguf/"

/* Files that the index wants refused for what they say about a model, a tokenizer or an adapter: as containers they are whole. */
static bool refused_by_a_later_layer(const char *file)
{
  static const char *const prefixes[] = {
    "arch-", "hp-", "rope-base-", "expert", "tokens-fewer", "tokens-more", "merges-missing", "tensor-missing", "adapter-", "base-as-adapter"
  };
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
    if (strncmp(file, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return false;
}

static void hostile_containers_get_the_answer_of_the_index(void **state)
{
  (void)state;
  require_shared();
  FILE *index = fopen(HOSTILE "index.json", "r");
  assert_non_null(index);
  char line[4096], file[128], expect[16];
  int seen = 0, wrong = 0, refused = 0;
  while (fgets(line, sizeof line, index)) {
    if (sscanf(line, "{\"file\": \"%127[^\"]\", \"expect\": \"%15[^\"]\"", file, expect) != 2) continue;
    seen++;
    char path[512];
    snprintf(path, sizeof path, "%s%s", HOSTILE, file);
    gr_error e = { 0 };
    gr_gguf *g = NULL;
    bool accepted = gr_gguf_open(&g, path, &e) == GR_OK;
    assert_true(accepted == (g != NULL));
    if (!accepted) {
      refused++;
      if (!strstr(e.text, file)) fail_msg("the sentence does not name %s: %s", file, e.text);
    }
    gr_gguf_close(g);
    bool want = strcmp(expect, "accept") == 0 || refused_by_a_later_layer(file);
    if (strcmp(expect, "either") == 0 || accepted == want) continue;
    print_error("%s: expected %s, got: %s\n", file, want ? "accept" : "reject", accepted ? "accept" : e.text);
    wrong++;
  }
  fclose(index);
  assert_int_equal(seen, 115);
  assert_int_equal(wrong, 0);
  assert_true(refused > 40);
}

/* ---- what is written is what is read ---- */

static void expect_number(const gr_gguf *g, const char *key, double want)
{
  double got = 0;
  const gr_gguf_kv *kv = gr_gguf_find(g, key);
  assert_non_null(kv);
  assert_true(gr_gguf_kv_f64(kv, 0, &got));
  if (got != want) fail_msg("%s is %.17g, not %.17g", key, got, want);
}

static void check_sample_values(const gr_gguf *g)
{
  expect_number(g, "t.u8", 200);
  expect_number(g, "t.i8", -100);
  expect_number(g, "t.u16", 60000);
  expect_number(g, "t.i16", -30000);
  expect_number(g, "t.u32", 4000000000.0);
  expect_number(g, "t.i32", -2000000000.0);
  expect_number(g, "t.f32", 0.15625);
  expect_number(g, "t.u64", 0x1p64);
  expect_number(g, "t.i64", -0x1p63);
  expect_number(g, "t.f64", 1e300);
  uint64_t u;
  int64_t i;
  bool b = false;
  assert_true(gr_gguf_kv_u64(gr_gguf_find(g, "t.u64"), 0, &u) && u == UINT64_MAX);
  assert_false(gr_gguf_kv_i64(gr_gguf_find(g, "t.u64"), 0, &i));
  assert_true(gr_gguf_kv_i64(gr_gguf_find(g, "t.i64"), 0, &i) && i == INT64_MIN);
  assert_false(gr_gguf_kv_u64(gr_gguf_find(g, "t.i64"), 0, &u));
  assert_true(gr_gguf_kv_bool(gr_gguf_find(g, "t.bool"), 0, &b) && b);
  assert_false(gr_gguf_kv_bool(gr_gguf_find(g, "t.bool"), 1, &b));
  assert_false(gr_gguf_kv_u64(gr_gguf_find(g, "t.bool"), 0, &u));
  gr_gguf_str s = { 0 };
  gr_error e = { 0 };
  assert_ok(gr_gguf_string(g, "t.nul", GR_GGUF_REQUIRED, &s, &e), &e);
  assert_true(s.len == 3 && memcmp(s.data, "a\0b", 3) == 0 && !gr_gguf_str_is(s, "a"));
  assert_ok(gr_gguf_string(g, "t.empty", GR_GGUF_REQUIRED, &s, &e), &e);
  assert_true(gr_gguf_str_is(s, ""));
}

static void check_sample_arrays(const gr_gguf *g)
{
  const gr_gguf_kv *kv = gr_gguf_find(g, "a.u16");
  uint64_t u = 0;
  bool b = true;
  assert_true(kv->is_array && kv->count == 3 && kv->type == GR_GGUF_U16);
  assert_true(gr_gguf_kv_u64(kv, 1, &u) && u == 0x0101);
  assert_false(gr_gguf_kv_u64(kv, 3, &u));
  assert_true(gr_gguf_kv_bool(gr_gguf_find(g, "a.bool"), 1, &b) && !b);
  static const gr_gguf_str want[] = { { "one", 3 }, { "", 0 }, { "thr\0e", 5 } };
  gr_gguf_strings it = gr_gguf_strings_of(gr_gguf_find(g, "a.string"));
  size_t n = 0;
  for (gr_gguf_str s; gr_gguf_strings_next(&it, &s); n++) assert_true(s.len == want[n].len && memcmp(s.data, want[n].data, s.len) == 0);
  assert_int_equal(n, 3);
  it = gr_gguf_strings_of(gr_gguf_find(g, "a.nostrings"));
  gr_gguf_str s;
  assert_false(gr_gguf_strings_next(&it, &s));
  it = gr_gguf_strings_of(kv);
  assert_false(gr_gguf_strings_next(&it, &s));
  assert_int_equal(gr_gguf_find(g, "a.none")->count, 0);
}

static void check_sample_tensors(const gr_gguf *g, uint32_t alignment)
{
  static const char *const order[] = {
    "norm.weight", "half.weight", "blk.0.q8.weight", "blk.0.q4.weight", "blk.0.q4k.weight", "exps.weight", "four.weight", "ids", "scalar"
  };
  static const size_t bytes[] = { 32, 80, 102, 72, 144, 96, 24, 20, 4 };
  assert_int_equal(gr_gguf_tensor_count(g), 9);
  for (size_t i = 0; i < 9; i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    assert_string_equal(t->name, order[i]);
    assert_ptr_equal(t, gr_gguf_tensor_find(g, order[i]));
    assert_int_equal(t->bytes, bytes[i]);
    bool floats = t->dtype == GR_F32;
    assert_memory_equal(t->data, floats ? (const void *)sample_floats : sample_bytes, t->bytes);
    if (i) assert_int_equal(((uintptr_t)t->data - (uintptr_t)gr_gguf_tensor_at(g, 0)->data) % alignment, 0);
  }
  const gr_gguf_tensor *t = gr_gguf_tensor_find(g, "exps.weight");
  assert_true(t->n_dims == 3 && t->ne[0] == 4 && t->ne[1] == 2 && t->ne[2] == 3 && t->ne[3] == 1);
  assert_true(gr_gguf_tensor_find(g, "scalar")->n_dims == 0);
  assert_null(gr_gguf_tensor_find(g, "exps.weigh"));
  assert_null(gr_gguf_tensor_at(g, 9));
}

static void written_file_reads_back(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  for (uint32_t alignment = 8; alignment <= 4096; alignment *= 2) {
    gr_error e = { 0 };
    gr_gguf *g = NULL;
    const char *path = scratch_path(&dir, "model.gguf");
    assert_ok(sample_model_save(path, alignment, &e), &e);
    assert_ok(gr_gguf_open(&g, path, &e), &e);
    assert_int_equal(gr_gguf_version(g), 3);
    assert_int_equal(gr_gguf_alignment(g), alignment);
    assert_int_equal(gr_gguf_part_count(g), 1);
    assert_string_equal(gr_gguf_path(g), path);
    assert_int_equal(gr_gguf_kv_count(g), 29 + (alignment != 32));
    check_sample_values(g);
    check_sample_arrays(g);
    check_sample_tensors(g, alignment);
    assert_ok(gr_gguf_check_types(g, &e), &e);
    gr_gguf_close(g);
  }
  assert_int_equal(scratch_count(&dir), 1); /* no temporary is left */
  scratch_close(&dir);
}

static void copied_file_is_the_same_bytes(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  for (uint64_t alignment = 32; alignment <= 64; alignment *= 2) {
    gr_error e = { 0 };
    gr_gguf *g = NULL;
    gr_gguf_writer *w = NULL;
    const char *from = scratch_path(&dir, "a.gguf"), *to = scratch_path(&dir, "b.gguf");
    assert_ok(sample_model_save(from, alignment, &e), &e);
    assert_ok(gr_gguf_open(&g, from, &e), &e);
    assert_ok(gr_gguf_writer_create(&w, &e), &e);
    for (size_t i = 0; i < gr_gguf_kv_count(g); i++) gr_gguf_put_kv(w, gr_gguf_kv_at(g, i));
    for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) gr_gguf_add_copy(w, gr_gguf_tensor_at(g, i));
    assert_ok(gr_gguf_writer_save(w, to, &e), &e);
    gr_gguf_writer_free(w);
    gr_gguf_close(g);
    char *a, *b;
    size_t n, m;
    assert_ok(gr_file_read(from, 1 << 20, &a, &n, &e), &e);
    assert_ok(gr_file_read(to, 1 << 20, &b, &m, &e), &e);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    gr_free(a);
    gr_free(b);
  }
  scratch_close(&dir);
}

/* ---- typed reads ---- */

static void assert_says(gr_status s, const gr_error *e, const char *a, const char *b)
{
  assert_int_not_equal(s, GR_OK);
  if (!strstr(e->text, a) || !strstr(e->text, b)) fail_msg("'%s' says neither '%s' nor '%s'", e->text, a, b);
}

static void typed_reads_check_type_and_range(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_gguf *g = NULL;
  assert_ok(sample_model_save(scratch_path(&dir, "m.gguf"), 32, &e), &e);
  assert_ok(gr_gguf_open(&g, scratch_path(&dir, "m.gguf"), &e), &e);
  uint64_t u = 7, each[3] = { 0 };
  int64_t i = 7;
  double f = 7;
  bool b = true;
  gr_gguf_str s = { "kept", 4 };
  const gr_gguf_kv *kv = NULL;
  assert_ok(gr_gguf_u64(g, "none", GR_GGUF_OPTIONAL, 0, 9, &u, &e), &e);
  assert_ok(gr_gguf_string(g, "none", GR_GGUF_OPTIONAL, &s, &e), &e);
  assert_true(u == 7 && gr_gguf_str_is(s, "kept"));
  assert_says(gr_gguf_u64(g, "none", GR_GGUF_REQUIRED, 0, 9, &u, &e), &e, "m.gguf", "'none' is missing");
  assert_ok(gr_gguf_u64(g, "t.u8", GR_GGUF_REQUIRED, 0, 200, &u, &e), &e);
  assert_int_equal(u, 200);
  assert_says(gr_gguf_u64(g, "t.u8", GR_GGUF_OPTIONAL, 0, 199, &u, &e), &e, "'t.u8' is 200", "0 to 199");
  assert_says(gr_gguf_u64(g, "t.i8", GR_GGUF_OPTIONAL, 0, UINT64_MAX, &u, &e), &e, "'t.i8' is -100", "0 to");
  assert_says(gr_gguf_u64(g, "t.f32", GR_GGUF_OPTIONAL, 0, 9, &u, &e), &e, "of type f32", "an integer");
  assert_says(gr_gguf_u64(g, "a.u8", GR_GGUF_OPTIONAL, 0, 9, &u, &e), &e, "of type array", "an integer");
  assert_ok(gr_gguf_i64(g, "t.i64", GR_GGUF_REQUIRED, INT64_MIN, 0, &i, &e), &e);
  assert_true(i == INT64_MIN);
  assert_says(gr_gguf_i64(g, "t.u64", GR_GGUF_REQUIRED, INT64_MIN, INT64_MAX, &i, &e), &e, "18446744073709551615", "outside");
  assert_ok(gr_gguf_f64(g, "t.i16", GR_GGUF_REQUIRED, -1e9, 1e9, &f, &e), &e);
  assert_true(f == -30000.0);
  assert_says(gr_gguf_f64(g, "t.f64", GR_GGUF_REQUIRED, 0, 1e9, &f, &e), &e, "t.f64", "1e+300");
  assert_ok(gr_gguf_bool(g, "t.bool", GR_GGUF_REQUIRED, &b, &e), &e);
  assert_says(gr_gguf_bool(g, "t.u8", GR_GGUF_REQUIRED, &b, &e), &e, "t.u8", "a truth value");
  assert_says(gr_gguf_string(g, "a.string", GR_GGUF_REQUIRED, &s, &e), &e, "a.string", "a string");
  assert_ok(gr_gguf_u64_each(g, "a.i8", GR_GGUF_REQUIRED, 0, 9, 3, each, &e), &e);
  assert_true(each[0] == 1 && each[1] == 0 && each[2] == 1);
  assert_ok(gr_gguf_u64_each(g, "t.u8", GR_GGUF_REQUIRED, 0, 255, 3, each, &e), &e);
  assert_true(each[0] == 200 && each[2] == 200);
  assert_says(gr_gguf_u64_each(g, "a.i8", GR_GGUF_REQUIRED, 0, 9, 2, each, &e), &e, "3 values", "2 are needed");
  assert_ok(gr_gguf_array(g, "a.f64", GR_GGUF_REQUIRED, GR_GGUF_KIND_FLOAT, &kv, &e), &e);
  assert_says(gr_gguf_array(g, "a.f64", GR_GGUF_REQUIRED, GR_GGUF_KIND_INT, &kv, &e), &e, "a.f64", "an array of integers");
  assert_says(gr_gguf_array(g, "t.u8", GR_GGUF_REQUIRED, GR_GGUF_KIND_INT, &kv, &e), &e, "t.u8", "an array of integers");
  gr_gguf_close(g);
  scratch_close(&dir);
}

/* ---- the writer refuses ---- */

static gr_status produce_part(void *ctx, gr_gguf_sink *sink, gr_error *e)
{
  for (size_t left = *(size_t *)ctx; left;) {
    size_t n = left < 7 ? left : 7;
    GR_TRY(gr_gguf_sink_write(sink, sample_bytes, n, e));
    left -= n;
  }
  return GR_OK;
}

static void wrong_writes_are_refused(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  size_t produced[] = { 32, 31, 33 };
  for (int fault = 0; fault < 14; fault++) {
    gr_error e = { 0 };
    gr_gguf_writer *w = NULL;
    assert_ok(gr_gguf_writer_create(&w, &e), &e);
    const int64_t ne[] = { 32, 1 }, odd[] = { 33 }, zero[] = { 0 }, huge[] = { INT64_MAX / 2, 8 };
    switch (fault) {
    case 0: gr_gguf_add_stream(w, "x", GR_I8, 2, ne, produce_part, &produced[0]); break; /* right */
    case 1: gr_gguf_add_stream(w, "x", GR_I8, 2, ne, produce_part, &produced[1]); break;
    case 2: gr_gguf_add_stream(w, "x", GR_I8, 2, ne, produce_part, &produced[2]); break;
    case 3: gr_gguf_add_data(w, "x", GR_Q8_0, 1, odd, sample_bytes); break;
    case 4: gr_gguf_add_data(w, "x", GR_F32, 1, zero, sample_bytes); break;
    case 5: gr_gguf_add_data(w, "x", GR_F32, 2, huge, sample_bytes); break;
    case 6: gr_gguf_add_data(w, "x", GR_F32, 5, ne, sample_bytes); break;
    case 7: gr_gguf_add_data(w, "", GR_F32, 1, ne, sample_bytes); break;
    case 8: gr_gguf_add_data(w, "a name of sixty-four bytes, which is one more than ggml can keep", GR_F32, 1, ne, sample_bytes); break;
    case 9: gr_gguf_put_string(w, "k\n", "v"); break;
    case 10: gr_gguf_put_u32(w, "k", 1), gr_gguf_put_u32(w, "l", 1), gr_gguf_put_bool(w, "k", 1); break;
    case 11: gr_gguf_add_data(w, "x", GR_F32, 1, ne, sample_floats), gr_gguf_add_data(w, "x", GR_F32, 1, ne, sample_floats); break;
    case 12: gr_gguf_writer_set_alignment(w, 48); break;
    case 13: gr_gguf_add_data(w, "x", GR_F32, 1, ne, NULL); break;
    }
    gr_status s = gr_gguf_writer_save(w, scratch_path(&dir, "w.gguf"), &e);
    gr_gguf_writer_free(w);
    if ((s == GR_OK) != (fault == 0)) fail_msg("fault %d: %s", fault, s == GR_OK ? "accepted" : e.text);
    if (fault) assert_non_null(strstr(e.text, fault == 1 ? "1 of its 32 bytes are missing" : fault == 2 ? "1 bytes too many" : "w.gguf"));
    assert_int_equal(scratch_count(&dir), 1); /* the right file, kept; no temporary */
  }
  scratch_close(&dir);
}

/* ---- splits ---- */

typedef struct split_fault {
  const char *what;
  int no[3], count[3], total[3]; /* -1: the key is left out */
  int parts;                     /* files that exist */
  bool same_tensor;
  const char *says; /* NULL: opens */
} split_fault;

static const split_fault split_faults[] = {
  { "right", { 0, 1, 2 }, { 3, 3, 3 }, { 4, 4, 4 }, 3, false, NULL },
  { "total only in the first", { 0, 1, 2 }, { 3, 3, 3 }, { 4, -1, -1 }, 3, false, NULL },
  { "missing part", { 0, 1, 2 }, { 3, 3, 3 }, { 4, 4, 4 }, 2, false, "-00003-of-00003.gguf" },
  { "duplicate tensor", { 0, 1, 2 }, { 3, 3, 3 }, { 4, 4, 4 }, 3, true, "stands in both" },
  { "wrong total", { 0, 1, 2 }, { 3, 3, 3 }, { 5, 5, 5 }, 3, false, "hold 4 tensors, but split.tensors.count is 5" },
  { "totals differ", { 0, 1, 2 }, { 3, 3, 3 }, { 4, 5, 4 }, 3, false, "is 5, but 4 in the first" },
  { "wrong number", { 0, 2, 1 }, { 3, 3, 3 }, { 4, 4, 4 }, 3, false, "do not say that it is part 2 of 3" },
  { "wrong count", { 0, 1, 2 }, { 3, 3, 4 }, { 4, 4, 4 }, 3, false, "do not say that it is part 3 of 3" },
  { "not the first", { 1, 1, 2 }, { 3, 3, 3 }, { 4, 4, 4 }, 3, false, "does not end in -00002-of-00003.gguf" },
  { "name says another count", { 0, 1, 2 }, { 4, 3, 3 }, { 4, 4, 4 }, 3, false, "does not end in -00001-of-00004.gguf" },
  { "no number", { -1, 1, 2 }, { 3, 3, 3 }, { 4, 4, 4 }, 3, false, "split.no is missing" },
  { "number beyond the count", { 3, 1, 2 }, { 3, 3, 3 }, { 4, 4, 4 }, 3, false, "split.no" },
  { "no total", { 0, 1, 2 }, { 3, 3, 3 }, { -1, 4, 4 }, 3, false, "split.tensors.count is missing" },
  { "count of one", { 0, 1, 2 }, { 1, 3, 3 }, { 4, 4, 4 }, 3, false, NULL },
  { "65,535 parts", { 0, 1, 2 }, { 65535, 3, 3 }, { 4, 4, 4 }, 3, false, "of-65535" },
};

static void save_part(scratch *dir, const split_fault *f, int part)
{
  gr_error e = { 0 };
  gr_gguf_writer *w = NULL;
  char name[64];
  snprintf(name, sizeof name, "m-%05d-of-00003.gguf", part + 1);
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  if (part == 0) gr_gguf_put_string(w, "general.architecture", "llama");
  if (f->no[part] >= 0) gr_gguf_put_scalar(w, "split.no", GR_GGUF_U16, &(uint16_t){ (uint16_t)f->no[part] });
  if (f->count[part] >= 0) gr_gguf_put_scalar(w, "split.count", GR_GGUF_U16, &(uint16_t){ (uint16_t)f->count[part] });
  if (f->total[part] >= 0) gr_gguf_put_i32(w, "split.tensors.count", f->total[part]);
  /* Two tensors in each part but the first, which may hold none. */
  for (int i = 0; i < 2 && part > 0; i++) {
    snprintf(name + 40, 20, "t%d.%d", f->same_tensor ? 1 : part, i);
    gr_gguf_add_data(w, name + 40, GR_F32, 1, (int64_t[]){ 8 * part }, sample_floats);
  }
  assert_ok(gr_gguf_writer_save(w, scratch_path(dir, name), &e), &e);
  gr_gguf_writer_free(w);
}

static void split_files_join_or_say_why_not(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof split_faults / sizeof *split_faults; i++) {
    const split_fault *f = &split_faults[i];
    scratch dir;
    scratch_open(&dir);
    for (int part = 0; part < f->parts; part++) save_part(&dir, f, part);
    gr_error e = { 0 };
    gr_gguf *g = NULL;
    gr_status s = gr_gguf_open(&g, scratch_path(&dir, "m-00001-of-00003.gguf"), &e);
    if (f->says && (s == GR_OK || !strstr(e.text, f->says))) fail_msg("%s: %s", f->what, s == GR_OK ? "opened" : e.text);
    if (!f->says && s != GR_OK) fail_msg("%s: %s", f->what, e.text);
    if (i == 0) {
      assert_int_equal(gr_gguf_part_count(g), 3);
      assert_int_equal(gr_gguf_tensor_count(g), 4);
      const gr_gguf_tensor *t = gr_gguf_tensor_find(g, "t2.1");
      assert_true(t && t->part == 2 && t->ne[0] == 16 && memcmp(t->data, sample_floats, t->bytes) == 0);
      assert_ptr_equal(gr_gguf_tensor_at(g, 3), t);
      assert_non_null(strstr(gr_gguf_part_path(g, 2), "m-00003-of-00003.gguf"));
      gr_gguf *other = NULL;
      assert_says(gr_gguf_open(&other, scratch_path(&dir, "m-00002-of-00003.gguf"), &e), &e, "is part 2 of", "m-00001-of-00003.gguf");
    }
    gr_gguf_close(g);
    scratch_close(&dir);
  }
}

/* ---- checks of the weights ---- */

static void weights_that_are_not_finite_are_named(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_pool *pool = NULL;
  gr_error e = { 0 };
  assert_ok(gr_pool_create(&pool, 3, &e), &e);
  enum { ROW = 4096, ROWS = 700 };
  float *x = gr_calloc((size_t)ROW * ROWS, sizeof *x);
  assert_non_null(x);
  for (int fault = 0; fault < 5; fault++) {
    gr_gguf_writer *w = NULL;
    gr_gguf *g = NULL;
    uint8_t q8[34 * 4] = { 0, 0x3c };
    const uint16_t infinite[3] = { 0, 0x7f7f, 0xff80 };
    x[5 * ROW + 9] = fault == 1 ? NAN : 0;
    x[600 * ROW + 1] = fault == 1 || fault == 2 ? -INFINITY : 0;
    if (fault == 3) q8[34 * 2 + 1] = 0x7c; /* a scale of infinity: infinity times 0 is NaN */
    assert_ok(gr_gguf_writer_create(&w, &e), &e);
    gr_gguf_add_data(w, "wide", GR_F32, 2, (int64_t[]){ ROW, ROWS }, x);
    gr_gguf_add_data(w, "q8", GR_Q8_0, 2, (int64_t[]){ 64, 2 }, q8);
    gr_gguf_add_data(w, "ints", GR_I32, 1, (int64_t[]){ 1 }, &(uint32_t){ 0x7fc00000 });
    if (fault == 4) gr_gguf_add_data(w, "bf16", GR_BF16, 1, (int64_t[]){ 3 }, infinite);
    assert_ok(gr_gguf_writer_save(w, scratch_path(&dir, "w.gguf"), &e), &e);
    gr_gguf_writer_free(w);
    assert_ok(gr_gguf_open(&g, scratch_path(&dir, "w.gguf"), &e), &e);
    static const char *const says[] = { NULL, "'wide' holds NaN or infinity, first at [9, 5, 0, 0]",
                                        "'wide' holds NaN or infinity, first at [1, 600",
                                        "'q8' holds NaN or infinity, first at [0, 1, 0, 0]",
                                        "'bf16' holds NaN or infinity, first at [2, 0" };
    for (int threads = 0; threads < 2; threads++) {
      gr_status s = gr_gguf_check_finite(g, threads ? pool : NULL, &e);
      if (!says[fault]) assert_ok(s, &e);
      else assert_says(s, &e, says[fault], "w.gguf");
    }
    gr_gguf_close(g);
  }
  gr_free(x);
  gr_pool_free(pool);
  scratch_close(&dir);
}

/* One bad element at the ends of pieces and of the shares of threads, and at the very end. */
static void the_only_bad_element_is_found_anywhere(void **state)
{
  (void)state;
  enum { COUNT = 3 * (1 << 20) + 4096 + 7 };
  static const int64_t places[] = {
    0, 4095, 4096, (1 << 20) - 1, 1 << 20, (1 << 21) - 4096, (1 << 21) - 1, 3 * (1 << 20) + 4096, COUNT - 1
  };
  float *x = gr_calloc(COUNT, sizeof *x);
  gr_pool *pool = NULL;
  gr_error e = { 0 };
  assert_non_null(x);
  assert_ok(gr_pool_create(&pool, 3, &e), &e);
  gr_gguf_writer *w = NULL;
  gr_buf bytes = { 0 };
  gr_gguf *g = NULL;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_add_data(w, "x", GR_F32, 1, (int64_t[]){ COUNT }, x);
  assert_ok(gr_gguf_writer_encode(w, &bytes, &e), &e);
  assert_ok(gr_gguf_open_memory(&g, bytes.data, bytes.len, "memory", &e), &e);
  float *stored = (float *)(uintptr_t)gr_gguf_tensor_at(g, 0)->data;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    char says[64];
    snprintf(says, sizeof says, "first at [%lld, 0, 0, 0]", (long long)places[i]);
    assert_ok(gr_gguf_check_finite(g, pool, &e), &e);
    stored[places[i]] = i % 2 ? NAN : INFINITY;
    assert_says(gr_gguf_check_finite(g, pool, &e), &e, "'x'", says);
    stored[places[i]] = 0;
  }
  gr_gguf_close(g);
  gr_buf_free(&bytes);
  gr_gguf_writer_free(w);
  gr_pool_free(pool);
  gr_free(x);
}

static void types_that_cannot_be_decoded_are_named(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_gguf *g = NULL;
  gr_gguf_writer *w = NULL;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_add_data(w, "good", GR_F32, 1, (int64_t[]){ 256 }, sample_floats);
  static const struct {
    uint32_t ggml_type;
    size_t bytes;
  } others[] = { { 16, 66 }, { 17, 74 }, { 18, 98 }, { 19, 50 },  { 21, 110 }, { 22, 82 },
                 { 29, 56 }, { 34, 54 }, { 35, 66 }, { 40, 144 }, { 41, 36 } };
  enum { N = sizeof others / sizeof *others };
  char names[N][8];
  for (int i = 0; i < N; i++) {
    snprintf(names[i], sizeof names[i], "bad%d", i);
    gr_gguf_add_copy(
        w,
        &(gr_gguf_tensor){ .name = names[i], .n_dims = 1, .ne = { 256, 1, 1, 1 }, .ggml_type = others[i].ggml_type, .data = sample_bytes });
  }
  assert_ok(gr_gguf_writer_save(w, scratch_path(&dir, "t.gguf"), &e), &e);
  gr_gguf_writer_free(w);
  assert_ok(gr_gguf_open(&g, scratch_path(&dir, "t.gguf"), &e), &e);
  for (int i = 0; i < N; i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_find(g, names[i]);
    assert_true(t && !t->has_dtype && t->ggml_type == others[i].ggml_type);
    assert_int_equal(t->bytes, others[i].bytes);
  }
  assert_says(gr_gguf_check_types(g, &e), &e, "11 tensors are of a type", "bad0 (IQ2_XXS), bad1 (IQ2_XS)");
  assert_says(GR_ERR_UNSUPPORTED, &e, "t.gguf", "and 3 more");
  assert_ok(gr_gguf_check_finite(g, NULL, &e), &e);
  gr_gguf_close(g);
  scratch_close(&dir);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(hostile_containers_get_the_answer_of_the_index),
    cmocka_unit_test(written_file_reads_back),
    cmocka_unit_test(copied_file_is_the_same_bytes),
    cmocka_unit_test(typed_reads_check_type_and_range),
    cmocka_unit_test(wrong_writes_are_refused),
    cmocka_unit_test(split_files_join_or_say_why_not),
    cmocka_unit_test(weights_that_are_not_finite_are_named),
    cmocka_unit_test(the_only_bad_element_is_found_anywhere),
    cmocka_unit_test(types_that_cannot_be_decoded_are_named),
  };
  return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
