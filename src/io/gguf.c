/* Opening GGUF files: one file, or the parts of a split joined into one list of tensors. */
#include "io/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "io/gguf_part.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mapped weights are used in place: only little-endian machines can do that"
#endif

struct gr_gguf {
  gr_arena names;
  gr_gguf_part *parts;
  size_t part_count;
  const gr_gguf_tensor **tensors; /* in file order, part after part */
  const gr_gguf_tensor **index;   /* sorted by name */
  size_t tensor_count;
};

static int compare_names(const void *a, const void *b)
{
  const gr_gguf_tensor *const *x = a, *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

static int compare_name_with(const void *name, const void *entry)
{
  const gr_gguf_tensor *const *t = entry;
  return strcmp(name, (*t)->name);
}

/* Joins the tensors of all parts; a name may stand once in all of them. */
static gr_status join_tensors(gr_gguf *g, gr_error *e)
{
  size_t n = 0;
  for (size_t p = 0; p < g->part_count; p++) n += g->parts[p].tensor_count;
  g->tensors = gr_calloc(n, sizeof *g->tensors);
  g->index = gr_calloc(n, sizeof *g->index);
  if (!g->tensors || !g->index) return gr_fail_memory(e, n * sizeof *g->tensors);
  for (size_t p = 0; p < g->part_count; p++)
    for (size_t i = 0; i < g->parts[p].tensor_count; i++) {
      g->parts[p].tensors[i].part = (int)p;
      g->tensors[g->tensor_count++] = &g->parts[p].tensors[i];
    }
  if (n) memcpy(g->index, g->tensors, n * sizeof *g->index);
  if (n) qsort(g->index, n, sizeof *g->index, compare_names);
  for (size_t i = 1; i < n; i++)
    if (compare_names(&g->index[i - 1], &g->index[i]) == 0) {
      int p = g->index[i - 1]->part, q = g->index[i]->part;
      if (p == q) return gr_fail(e, GR_ERR_FORMAT, "%s: tensor '%s' stands in the file twice", g->parts[p].path, g->index[i]->name);
      return gr_fail(e, GR_ERR_FORMAT, "tensor '%s' stands in both %s and %s", g->index[i]->name, g->parts[p < q ? p : q].path,
                     g->parts[p < q ? q : p].path);
    }
  return GR_OK;
}

/* The file's name goes in front of what the parser says. */
static gr_status parse_part(gr_gguf *g, gr_gguf_part *part, gr_error *e)
{
  gr_status s = gr_gguf_part_parse(part, &g->names, e);
  if (s != GR_OK) gr_error_context(e, "%s", part->path);
  return s;
}

static gr_status map_part(gr_gguf *g, const char *path, gr_error *e)
{
  gr_gguf_part *part = &g->parts[g->part_count++];
  part->path = gr_arena_strndup(&g->names, path, strlen(path));
  if (!part->path) return gr_fail_memory(e, strlen(path));
  if (gr_file_is_folder(path))
    return gr_file_fail_folder(path, ", and a model or adapter is a GGUF file: name the file in it", "model.gguf", GR_ERR_IO, e);
  GR_TRY(gr_map_open(&part->map, path, e));
  part->bytes = part->map.data;
  part->size = part->map.size;
  return parse_part(g, part, e);
}

/* A split.* key of one part; absent: *found is false. */
static gr_status split_key(const gr_gguf_part *part, const char *key, uint64_t max, bool *found, uint64_t *out, gr_error *e)
{
  const gr_gguf_kv *kv = gr_gguf_part_find(part, key);
  *found = kv != NULL;
  if (!kv) return GR_OK;
  if (kv->is_array || !gr_gguf_kv_u64(kv, 0, out) || *out > max)
    return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is not a number from 0 to %llu", part->path, key, (unsigned long long)max);
  return GR_OK;
}

#define SPLIT_PARTS_MAX 65535 /* split.count is a u16 */
#define SPLIT_SUFFIX_BYTES 40

static const char *split_suffix(char text[SPLIT_SUFFIX_BYTES], uint64_t number, uint64_t count)
{
  snprintf(text, SPLIT_SUFFIX_BYTES, "-%05u-of-%05u.gguf", (unsigned)number, (unsigned)count);
  return text;
}

/* Reads part 0's idea of the split: *count is 1 when there is none. Leaves in *prefix the length of the path before the suffix. */
static gr_status split_read(const gr_gguf_part *part, uint64_t *count, uint64_t *total, size_t *prefix, gr_error *e)
{
  bool has_count, has_no, has_total;
  uint64_t n = 0, no = 0;
  *count = 1;
  GR_TRY(split_key(part, "split.count", SPLIT_PARTS_MAX, &has_count, &n, e));
  if (n <= 1) return GR_OK;
  GR_TRY(split_key(part, "split.no", n - 1, &has_no, &no, e));
  GR_TRY(split_key(part, "split.tensors.count", INT32_MAX, &has_total, total, e));
  if (!has_no) return gr_fail(e, GR_ERR_FORMAT, "%s: split.count is %u but split.no is missing", part->path, (unsigned)n);
  char suffix[SPLIT_SUFFIX_BYTES], first[SPLIT_SUFFIX_BYTES];
  split_suffix(suffix, no + 1, n);
  split_suffix(first, 1, n);
  size_t length = strlen(part->path), ending = strlen(suffix);
  if (length <= ending || strcmp(part->path + length - ending, suffix) != 0)
    return gr_fail(e, GR_ERR_FORMAT,
                   "%s is part %u of a model split in %u files, but its name does not end in %s, so the other parts cannot be found",
                   part->path, (unsigned)no + 1, (unsigned)n, suffix);
  *prefix = length - ending;
  if (no != 0)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s is part %u of a model split in %u files; name the first part, %.*s%s", part->path,
                   (unsigned)no + 1, (unsigned)n, (int)*prefix, part->path, first);
  if (!has_total) return gr_fail(e, GR_ERR_FORMAT, "%s: split.count is %u but split.tensors.count is missing", part->path, (unsigned)n);
  *count = n;
  return GR_OK;
}

/* A part after the first must agree with it about what it is. */
static gr_status split_check(const gr_gguf_part *part, uint64_t number, uint64_t count, uint64_t total, gr_error *e)
{
  bool has_no, has_count, has_total;
  uint64_t no = 0, n = 0, t = total;
  GR_TRY(split_key(part, "split.no", SPLIT_PARTS_MAX, &has_no, &no, e));
  GR_TRY(split_key(part, "split.count", SPLIT_PARTS_MAX, &has_count, &n, e));
  GR_TRY(split_key(part, "split.tensors.count", INT32_MAX, &has_total, &t, e));
  if (!has_no || no != number || !has_count || n != count)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: split.no and split.count do not say that it is part %u of %u", part->path, (unsigned)number + 1,
                   (unsigned)count);
  if (t != total)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: split.tensors.count is %llu, but %llu in the first part", part->path, (unsigned long long)t,
                   (unsigned long long)total);
  return GR_OK;
}

/* Opens the parts after the first, when part 0 says that there are any. */
static gr_status open_rest(gr_gguf *g, gr_error *e)
{
  uint64_t count = 1, total = 0;
  size_t prefix = 0, cap = 1;
  GR_TRY(split_read(&g->parts[0], &count, &total, &prefix, e));
  for (uint64_t i = 1; i < count; i++) {
    /* One at a time: a file that announces 65,535 parts and has none must not cost more than one that has none. */
    if (!gr_grow((void **)&g->parts, &cap, (size_t)i + 1, sizeof *g->parts)) return gr_fail_memory(e, (size_t)(i + 1) * sizeof *g->parts);
    memset(&g->parts[i], 0, sizeof g->parts[i]);
    char suffix[SPLIT_SUFFIX_BYTES];
    gr_buf path = { 0 };
    gr_buf_append(&path, g->parts[0].path, prefix);
    gr_buf_puts(&path, split_suffix(suffix, i + 1, count));
    gr_status s = path.failed ? gr_fail_memory(e, prefix) : map_part(g, path.data, e);
    if (s == GR_ERR_IO) gr_error_context(e, "%s needs all of its %u parts", g->parts[0].path, (unsigned)count);
    gr_buf_free(&path);
    GR_TRY(s);
    GR_TRY(split_check(&g->parts[i], i, count, total, e));
  }
  if (count == 1) return GR_OK;
  uint64_t found = 0;
  for (size_t p = 0; p < g->part_count; p++) found += g->parts[p].tensor_count;
  if (found != total)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: its %u parts hold %llu tensors, but split.tensors.count is %llu", g->parts[0].path,
                   (unsigned)count, (unsigned long long)found, (unsigned long long)total);
  return GR_OK;
}

static gr_gguf *create(void)
{
  gr_gguf *g = gr_calloc(1, sizeof *g);
  if (g) g->parts = gr_calloc(1, sizeof *g->parts);
  if (g && !g->parts) {
    gr_free(g);
    g = NULL;
  }
  return g;
}

static gr_status finish(gr_gguf *g, gr_status s, gr_gguf **out)
{
  if (s != GR_OK) gr_gguf_close(g);
  else *out = g;
  return s;
}

gr_status gr_gguf_open(gr_gguf **out, const char *path, gr_error *e)
{
  *out = NULL;
  gr_gguf *g = create();
  if (!g) return gr_fail_memory(e, sizeof *g);
  gr_status s = map_part(g, path, e);
  if (s == GR_OK) s = open_rest(g, e);
  if (s == GR_OK) s = join_tensors(g, e);
  return finish(g, s, out);
}

gr_status gr_gguf_open_memory(gr_gguf **out, const void *bytes, size_t size, const char *name, gr_error *e)
{
  *out = NULL;
  gr_gguf *g = create();
  if (!g) return gr_fail_memory(e, sizeof *g);
  gr_gguf_part *part = &g->parts[g->part_count++];
  part->path = gr_arena_strndup(&g->names, name, strlen(name));
  part->bytes = bytes;
  part->size = size;
  uint64_t count = 1, total;
  size_t prefix;
  gr_status s = part->path ? parse_part(g, part, e) : gr_fail_memory(e, strlen(name));
  if (s == GR_OK) s = split_read(part, &count, &total, &prefix, e);
  if (s == GR_OK && count > 1) s = gr_fail(e, GR_ERR_UNSUPPORTED, "%s is one part of a split model, which must be opened as files", name);
  if (s == GR_OK) s = join_tensors(g, e);
  return finish(g, s, out);
}

void gr_gguf_close(gr_gguf *g)
{
  if (!g) return;
  for (size_t p = 0; p < g->part_count; p++) gr_gguf_part_deinit(&g->parts[p]);
  gr_free(g->parts);
  gr_free(g->tensors);
  gr_free(g->index);
  gr_arena_free(&g->names);
  gr_free(g);
}

const char *gr_gguf_path(const gr_gguf *g) { return g->parts[0].path; }
uint32_t gr_gguf_version(const gr_gguf *g) { return g->parts[0].version; }
uint32_t gr_gguf_alignment(const gr_gguf *g) { return g->parts[0].alignment; }
int gr_gguf_part_count(const gr_gguf *g) { return (int)g->part_count; }

uint64_t gr_gguf_file_bytes(const gr_gguf *g)
{
  uint64_t n = 0;
  for (size_t p = 0; p < g->part_count; p++) n += g->parts[p].size;
  return n;
}

const char *gr_gguf_part_path(const gr_gguf *g, int part) { return part >= 0 && (size_t)part < g->part_count ? g->parts[part].path : NULL; }

size_t gr_gguf_kv_count(const gr_gguf *g) { return g->parts[0].kv_count; }
const gr_gguf_kv *gr_gguf_kv_at(const gr_gguf *g, size_t i) { return i < g->parts[0].kv_count ? &g->parts[0].kv[i] : NULL; }
const gr_gguf_kv *gr_gguf_find(const gr_gguf *g, const char *key) { return gr_gguf_part_find(&g->parts[0], key); }

size_t gr_gguf_tensor_count(const gr_gguf *g) { return g->tensor_count; }
const gr_gguf_tensor *gr_gguf_tensor_at(const gr_gguf *g, size_t i) { return i < g->tensor_count ? g->tensors[i] : NULL; }

const gr_gguf_tensor *gr_gguf_tensor_find(const gr_gguf *g, const char *name)
{
  if (!g->tensor_count) return NULL;
  const gr_gguf_tensor **hit = bsearch(name, g->index, g->tensor_count, sizeof *g->index, compare_name_with);
  return hit ? *hit : NULL;
}
