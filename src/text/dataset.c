/* Files to samples: what is kept, counted and said. Records become samples in dataset_sample.c and dataset_plain.c. */
#include "text/dataset.h"
#include "text/json_guard.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/dataset_impl.h"
#include "text/dataset_source.h"

/* ---- samples ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
  h = (h ^ x) * 0xff51afd7ed558ccdu;
  return h ^ h >> 32;
}

static uint64_t sample_hash(const int32_t *ids, const float *weights, int32_t n)
{
  uint64_t h = mix(0x67726166u, (uint64_t)n);
  for (int32_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &weights[i], sizeof bits);
    h = mix(h, (uint64_t)(uint32_t)ids[i] << 32 | bits);
  }
  return h | 1;
}

static bool grow_seen(gr_dataset *d)
{
  if (d->n * 2 < d->seen_cap) return true;
  size_t cap = d->seen_cap ? 2 * d->seen_cap : 1024;
  uint64_t *bigger = gr_calloc(cap, sizeof *bigger);
  if (!bigger) return false;
  for (size_t i = 0; i < d->seen_cap; i++)
    if (d->seen[i]) {
      size_t at = d->seen[i] % cap;
      while (bigger[at]) at = (at + 1) % cap;
      bigger[at] = d->seen[i];
    }
  gr_free(d->seen);
  d->seen = bigger;
  d->seen_cap = cap;
  return true;
}

static bool seen_before(gr_dataset *d, uint64_t h)
{
  size_t at = h % d->seen_cap;
  while (d->seen[at] && d->seen[at] != h) at = (at + 1) % d->seen_cap;
  bool was = d->seen[at] == h;
  d->seen[at] = h;
  return was;
}

void gr_data_count(data_reader *r, gr_data_event v, size_t n)
{
  gr_dataset *d = r->d;
  if (n && d->counts.events[v] == 0) d->first[v] = (data_place){ r->file, r->line };
  d->counts.events[v] += n;
}

gr_status gr_data_add_sample(data_reader *r, const int32_t *ids, const float *weights, int32_t n, uint32_t piece, gr_error *e)
{
  gr_dataset *d = r->d;
  char *block = gr_alloc((size_t)n * 8);
  if (!block || !grow_seen(d) || !gr_grow((void **)&d->samples, &d->cap, d->n + 1, sizeof *d->samples)) {
    gr_free(block);
    return gr_fail_memory(e, (size_t)n * 8);
  }
  gr_sample *s = &d->samples[d->n++];
  *s = (gr_sample){ .ids = (int32_t *)(void *)block,
                    .weights = (float *)(void *)(block + 4 * (size_t)n),
                    .n = n,
                    .record = (uint32_t)d->counts.records,
                    .piece = piece,
                    .file = r->file,
                    .line = r->line };
  memcpy(s->ids, ids, (size_t)n * 4);
  memcpy(s->weights, weights, (size_t)n * 4);
  s->weights[0] = 0;
  uint64_t h = sample_hash(s->ids, s->weights, n);
  gr_data_count(r, GR_DATA_DUPLICATES, seen_before(d, h));
  int32_t bos = r->o ? gr_tokenizer_role(r->o->tokenizer, GR_ROLE_BOS) : -1; /* ids given as they are have no tokenizer */
  gr_data_count(r, GR_DATA_DOUBLED_BOS, n > 1 && bos >= 0 && ids[0] == bos && ids[1] == bos);
  d->hash = mix(d->hash, h);
  d->bytes += (size_t)n * 8 + sizeof *s;
  d->counts.samples++;
  d->counts.tokens += (size_t)n;
  for (int32_t i = 0; i < n; i++) d->counts.tokens_trained += s->weights[i] > 0;
  r->kept++;
  return GR_OK;
}

/* ---- files ---- */

/* The one of some suffixes that a path has, in capitals or not; NULL: none. */
static const char *suffix_of(const char *path, const char *const *suffixes)
{
  size_t n = strlen(path);
  for (; *suffixes; suffixes++) {
    size_t k = strlen(*suffixes);
    if (n > k && strcasecmp(path + n - k, *suffixes) == 0) return *suffixes;
  }
  return NULL;
}

/* Tables and archives: as plain text they would teach their commas, or noise. */
static gr_status check_name(const data_reader *r, gr_error *e)
{
  static const char *const tables[] = { ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".xlsx", ".xls", ".ods", NULL };
  static const char *const packed[] = { ".gz", ".zst", ".bz2", ".xz", ".zip", ".7z", ".tar", NULL };
  const char *table = suffix_of(r->path, tables), *archive = suffix_of(r->path, packed);
  if (r->format == GR_DATA_PLAIN) return GR_OK;
  if (table)
    return gr_fail(
        e, GR_ERR_FORMAT,
        "%s is a table (%s), which Graft does not read: convert it to JSONL, a record a line (--format plain trains on its text as "
        "it stands)",
        r->path, table);
  if (archive) return gr_fail(e, GR_ERR_FORMAT, "%s is packed (%s): unpack it first", r->path, archive);
  return GR_OK;
}

/* Standard input and pipes are read into memory, files are mapped. */
static bool is_stream(const char *path)
{
  struct stat st;
  return strcmp(path, "-") == 0 || (stat(path, &st) == 0 && S_ISFIFO(st.st_mode));
}

static gr_status open_bytes(gr_map *m, char **stream, const char *path, gr_error *e)
{
  if (gr_file_is_folder(path))
    return gr_file_fail_folder(path, ", and data comes from files of JSONL, JSON or text: name each of them", "chats.jsonl", GR_ERR_IO, e);
  if (!is_stream(path)) return gr_map_open(m, path, e);
  GR_TRY(gr_file_read(path, SIZE_MAX / 2, stream, &m->size, e));
  m->data = (const uint8_t *)*stream;
  return GR_OK;
}

static void close_bytes(gr_map *m, char *stream)
{
  if (!stream) gr_map_close(m);
  gr_free(stream);
}

/* Refuses what is not UTF-8 text: UTF-16 with its mark or without (every other byte of its JSON is NUL), models, archives. */
static gr_status check_text(const data_reader *r, const unsigned char *p, size_t n, gr_error *e)
{
  size_t head = n < 65536 ? n : 65536, zeros[2] = { 0, 0 };
  bool mark = n >= 2 && ((p[0] == 0xff && p[1] == 0xfe) || (p[0] == 0xfe && p[1] == 0xff));
  for (size_t i = 0; i < head; i++) zeros[i & 1] += p[i] == 0;
  if (mark || (head >= 4 && (zeros[0] > head / 4 || zeros[1] > head / 4) && !(zeros[0] && zeros[1])))
    return gr_fail(e, GR_ERR_FORMAT, "%s is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8 does that)", r->path);
  if (zeros[0] + zeros[1]) return gr_fail(e, GR_ERR_FORMAT, "%s holds NUL bytes: it is not a text file", r->path);
  return GR_OK;
}

static const char *const json_suffixes[] = { ".json", ".jsonl", ".ndjson", NULL };
static const char *const text_suffixes[] = { ".txt", ".text", ".md", NULL };

/* Plain text is what is told to be, is named so, or does not begin as JSON does. */
static gr_status is_plain(const data_reader *r, const unsigned char *p, size_t n, bool *plain, gr_error *e)
{
  size_t at = 0;
  *plain = r->format == GR_DATA_PLAIN;
  if (r->format != GR_DATA_AUTO) return GR_OK;
  while (at < n && (p[at] == ' ' || p[at] == '\t' || p[at] == '\r' || p[at] == '\n')) at++;
  bool json = at < n && (p[at] == '{' || p[at] == '[');
  *plain = suffix_of(r->path, text_suffixes) || (!json && !suffix_of(r->path, json_suffixes));
  size_t head = n < 65536 ? n : gr_utf8_complete((const char *)p, 65536);
  if (*plain && !gr_utf8_valid((const char *)p, head))
    return gr_fail(e, GR_ERR_FORMAT, "%s is neither JSON nor UTF-8 text; --format plain takes it as it is", r->path);
  return GR_OK;
}

static gr_status read_records(data_reader *r, const unsigned char *p, size_t n, gr_error *e)
{
  gr_record_source source;
  gr_record_source_init(&source, r->path, p, n);
  for (;;) {
    json_t *record;
    GR_TRY(gr_record_source_next(&source, &record, e));
    if (!record) break;
    r->line = source.record_line;
    gr_data_count(r, GR_DATA_SURROGATES, source.surrogates > 0);
    gr_data_count(r, GR_DATA_BIG_NUMBERS, source.numbers > 0);
    gr_status s = gr_data_read_record(r, record, e);
    json_decref(record);
    if (s == GR_ERR_MEMORY) return s;
    if (s != GR_OK) {
      gr_error_context(e, "%s:%u", r->path, r->line);
      return s;
    }
    r->d->counts.records++;
  }
  return GR_OK;
}

static gr_status read_file(data_reader *r, const gr_map *m, gr_error *e)
{
  const unsigned char *p = m->data;
  size_t n = m->size;
  bool plain;
  if (n == 0) return GR_OK; /* no bytes, and no place where they would be */
  GR_TRY(check_name(r, e));
  GR_TRY(check_text(r, p, n, e));
  if (n >= 3 && p[0] == 0xef && p[1] == 0xbb && p[2] == 0xbf) p += 3, n -= 3;
  GR_TRY(is_plain(r, p, n, &plain, e));
  if (!plain) return read_records(r, p, n, e);
  r->format = GR_DATA_PLAIN;
  return gr_data_read_plain(r, (const char *)p, n, e);
}

static gr_status nothing_left(const data_reader *r, size_t records, gr_error *e)
{
  const gr_dataset *d = r->d;
  if (records == 0) return gr_fail(e, GR_ERR_FORMAT, "%s is empty: it holds no record", r->path);
  if (d->counts.events[GR_DATA_REFUSED] && d->first[GR_DATA_REFUSED].file == r->file)
    return gr_fail(e, GR_ERR_FORMAT, "%s: nothing is left to learn; line %u: %s", r->path, d->first[GR_DATA_REFUSED].line, d->refusal);
  if (d->counts.events[GR_DATA_TOO_LONG] && d->first[GR_DATA_TOO_LONG].file == r->file)
    return gr_fail(e, GR_ERR_FORMAT,
                   "%s: nothing is left to learn: every record is longer than the window of %d tokens (give more with -c, or --overlong "
                   "split), or has no trained token",
                   r->path, r->o->window);
  return gr_fail(e, GR_ERR_FORMAT, "%s holds nothing to learn: no record has a trained token (an assistant's text, or a completion)",
                 r->path);
}

static gr_status add_file(gr_dataset *d, const char *path, gr_error *e)
{
  char *copy = gr_strdup(path);
  if (!copy || !gr_grow((void **)&d->files, &d->files_cap, d->n_files + 1, sizeof *d->files)) {
    gr_free(copy);
    return gr_fail_memory(e, strlen(path));
  }
  d->files[d->n_files++] = (data_file){ .path = copy };
  return GR_OK;
}

gr_status gr_dataset_add(gr_dataset **out, const char *path, const gr_data_options *o, gr_error *e)
{
  gr_dataset *d = *out ? *out : gr_calloc(1, sizeof *d);
  if (!d) return gr_fail_memory(e, sizeof *d);
  *out = d;
  if (o->window < 2) return gr_fail(e, GR_ERR_USAGE, "a window of %d tokens is not possible: it takes at least 2", o->window);
  GR_TRY(add_file(d, strcmp(path, "-") ? path : "standard input", e));
  d->window = o->window;
  data_reader r = {
    .d = d, .o = o, .path = d->files[d->n_files - 1].path, .format = o->format, .file = (uint32_t)d->n_files - 1, .line = 1
  };
  size_t before = d->counts.records;
  gr_map m = { 0 };
  char *stream = NULL;
  gr_json_guard_begin();
  gr_status s = gr_data_reader_open(&r, e);
  if (s == GR_OK) s = open_bytes(&m, &stream, path, e);
  if (s == GR_OK) s = read_file(&r, &m, e);
  if (gr_json_guard_end()) s = gr_fail(e, GR_ERR_MEMORY, "out of memory while reading %s", path);
  close_bytes(&m, stream);
  if (s == GR_OK && r.kept == 0) s = nothing_left(&r, d->counts.records - before, e);
  gr_data_reader_close(&r);
  data_file *f = &d->files[d->n_files - 1];
  f->format = r.format;
  f->forced = o->format != GR_DATA_AUTO;
  f->records = d->counts.records - before;
  return s == GR_OK ? gr_data_write_notes(d, e) : s;
}

gr_status gr_dataset_add_ids(gr_dataset **out, const int32_t *ids, const float *weights, int32_t n, gr_error *e)
{
  gr_dataset *d = *out ? *out : gr_calloc(1, sizeof *d);
  if (!d) return gr_fail_memory(e, sizeof *d);
  *out = d;
  if (d->n_files == 0) GR_TRY(add_file(d, "token ids", e));
  data_reader r = { .d = d, .path = "token ids", .file = (uint32_t)d->n_files - 1, .line = (uint32_t)d->n + 1 };
  GR_TRY(gr_data_add_sample(&r, ids, weights, n, 0, e));
  d->counts.records++;
  return GR_OK;
}

void gr_dataset_free(gr_dataset *d)
{
  if (!d) return;
  for (size_t i = 0; i < d->n; i++) gr_free(d->samples[i].ids);
  for (size_t i = 0; i < d->n_files; i++) gr_free(d->files[i].path);
  gr_free(d->samples);
  gr_free(d->files);
  gr_free(d->seen);
  gr_buf_free(&d->unread);
  gr_buf_free(&d->notes);
  gr_free(d);
}

size_t gr_dataset_count(const gr_dataset *d) { return d->n; }
const gr_sample *gr_dataset_at(const gr_dataset *d, size_t i) { return &d->samples[i]; }
const gr_data_counts *gr_dataset_counts(const gr_dataset *d) { return &d->counts; }
gr_data_format gr_dataset_format(const gr_dataset *d) { return d->n_files ? d->files[0].format : GR_DATA_AUTO; }
const char *gr_dataset_path(const gr_dataset *d, uint32_t file) { return d->files[file].path; }
const char *gr_dataset_notes(const gr_dataset *d) { return d->notes.data ? d->notes.data : ""; }
size_t gr_dataset_bytes(const gr_dataset *d) { return d->bytes + d->seen_cap * sizeof *d->seen; }
uint64_t gr_dataset_hash(const gr_dataset *d) { return d->hash; }
