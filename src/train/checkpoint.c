#define _DEFAULT_SOURCE
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/gguf_write.h"

/* ---- names ---- */

static const char suffix[] = ".checkpoint";

/* Output without its ".gguf". */
static size_t stem_length(const char *output)
{
  size_t n = strlen(output);
  return n > 5 && strcmp(output + n - 5, ".gguf") == 0 ? n - 5 : n;
}

char *gr_checkpoint_path(const char *output, uint64_t step)
{
  gr_buf b = { 0 };
  gr_buf_append(&b, output, stem_length(output));
  gr_buf_printf(&b, ".step-%06llu%s", (unsigned long long)step, suffix);
  if (!b.failed) return b.data;
  gr_buf_free(&b);
  return NULL;
}

/* The step in a name that gr_checkpoint_path could have made for this stem. */
static bool step_of(const char *name, const char *stem, size_t n, uint64_t *step)
{
  if (strncmp(name, stem, n) != 0 || strncmp(name + n, ".step-", 6) != 0) return false;
  char *end;
  errno = 0;
  *step = strtoull(name + n + 6, &end, 10);
  return !errno && end > name + n + 6 && strcmp(end, suffix) == 0;
}

static int ascending(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

gr_status gr_checkpoint_list(const char *output, uint64_t **steps, size_t *n, gr_error *e)
{
  *steps = NULL;
  *n = 0;
  const char *slash = strrchr(output, '/'), *stem = slash ? slash + 1 : output;
  size_t stem_n = stem_length(output) - (size_t)(stem - output), cap = 0;
  char *folder = slash ? gr_strndup(output, slash == output ? 1 : (size_t)(slash - output)) : gr_strdup(".");
  if (!folder) return gr_fail_memory(e, strlen(output));
  DIR *d = opendir(folder);
  gr_status s = d ? GR_OK : gr_fail_errno(e, errno, "read the folder", folder);
  for (struct dirent *entry; s == GR_OK && (entry = readdir(d));) {
    uint64_t step;
    if (!step_of(entry->d_name, stem, stem_n, &step)) continue;
    if (!gr_grow((void **)steps, &cap, *n + 1, sizeof **steps)) s = gr_fail_memory(e, cap * sizeof **steps);
    else (*steps)[(*n)++] = step;
  }
  if (d) closedir(d);
  gr_free(folder);
  if (s != GR_OK) {
    gr_free(*steps);
    *steps = NULL;
    return s;
  }
  if (*n) qsort(*steps, *n, sizeof **steps, ascending);
  return GR_OK;
}

/* ---- writing ---- */

static void put_f64(gr_gguf_writer *w, const char *key, double v) { gr_gguf_put_scalar(w, key, GR_GGUF_F64, &v); }

gr_status gr_checkpoint_save(const char *path, gr_lora *lora, const gr_run_state *s, const gr_run_identity *id, gr_error *e)
{
  gr_gguf_writer *w = NULL;
  GR_TRY(gr_gguf_writer_create(&w, e));
  int64_t n = (int64_t)gr_lora_parameters(lora), baseline = (int64_t)s->n_baseline;
  gr_gguf_put_string(w, "general.type", "graft.checkpoint");
  gr_gguf_put_u32(w, "graft.checkpoint.version", 1);
  gr_gguf_put_string(w, "graft.base.hash", id->base_hash);
  gr_gguf_put_u64(w, "graft.data.hash", id->data_hash);
  gr_gguf_put_string(w, "graft.geometry", id->geometry);
  gr_gguf_put_u64(w, "graft.steps_total", id->steps_total);
  gr_gguf_put_u64(w, "graft.step", s->step);
  gr_gguf_put_u64(w, "graft.evaluations_worse", s->evaluations_worse);
  gr_gguf_put_u64(w, "graft.best_step", s->best_step);
  gr_gguf_put_bool(w, "graft.has_best", s->best != NULL && s->best_step > 0);
  put_f64(w, "graft.best_loss", s->best_step > 0 ? s->best_loss : 0);
  put_f64(w, "graft.loss_first", s->loss_first);
  gr_gguf_add_data(w, "values", GR_F32, 1, &n, gr_lora_values(lora));
  gr_gguf_add_data(w, "m", GR_F32, 1, &n, s->m);
  gr_gguf_add_data(w, "v", GR_F32, 1, &n, s->v);
  if (s->best && s->best_step > 0) gr_gguf_add_data(w, "best", GR_F32, 1, &n, s->best);
  if (s->baseline && baseline) gr_gguf_add_data(w, "baseline", GR_F64, 1, &baseline, s->baseline);
  gr_status status = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return status;
}

/* ---- reading ---- */

/* The first line in which two lists of options differ. */
static gr_status geometry_differs(const char *path, const char *now, gr_gguf_str then, gr_error *e)
{
  const char *a = now, *b = then.data, *end = then.data + then.len;
  while (*a && b < end) {
    size_t na = strcspn(a, "\n"), nb = 0;
    while (b + nb < end && b[nb] != '\n') nb++;
    if (na != nb || memcmp(a, b, na) != 0)
      return gr_fail(
          e, GR_ERR_MISMATCH,
          "%s belongs to a run with '%.*s', and this one has '%.*s': use the same options to resume, or begin anew with --overwrite", path,
          (int)nb, b, (int)na, a);
    a += na + (a[na] == '\n');
    b += nb + (b + nb < end);
  }
  return gr_fail(e, GR_ERR_MISMATCH, "%s belongs to a run with other options", path);
}

static gr_status check_identity(const gr_gguf *g, const char *path, const gr_run_identity *id, gr_error *e)
{
  gr_gguf_str type = { "", 0 }, hash = { "", 0 }, geometry = { "", 0 };
  uint64_t version = 0, data = 0, total = 0;
  GR_TRY(gr_gguf_string(g, "general.type", GR_GGUF_REQUIRED, &type, e));
  if (!gr_gguf_str_is(type, "graft.checkpoint")) return gr_fail(e, GR_ERR_FORMAT, "%s is not a checkpoint of Graft", path);
  GR_TRY(gr_gguf_u64(g, "graft.checkpoint.version", GR_GGUF_REQUIRED, 1, 1, &version, e));
  GR_TRY(gr_gguf_string(g, "graft.base.hash", GR_GGUF_REQUIRED, &hash, e));
  if (!gr_gguf_str_is(hash, id->base_hash))
    return gr_fail(e, GR_ERR_MISMATCH, "%s was written for another base model (hash %.*s, this one has %s)", path, (int)hash.len, hash.data,
                   id->base_hash);
  GR_TRY(gr_gguf_string(g, "graft.geometry", GR_GGUF_REQUIRED, &geometry, e));
  if (!gr_gguf_str_is(geometry, id->geometry)) return geometry_differs(path, id->geometry, geometry, e);
  GR_TRY(gr_gguf_u64(g, "graft.data.hash", GR_GGUF_REQUIRED, 0, UINT64_MAX, &data, e));
  if (data != id->data_hash)
    return gr_fail(e, GR_ERR_MISMATCH, "%s was written for other training data, or the same data in another order", path);
  GR_TRY(gr_gguf_u64(g, "graft.steps_total", GR_GGUF_REQUIRED, 0, UINT64_MAX, &total, e));
  if (total != id->steps_total)
    return gr_fail(e, GR_ERR_MISMATCH, "%s belongs to a run of %llu steps, and this one has %llu", path, (unsigned long long)total,
                   (unsigned long long)id->steps_total);
  return GR_OK;
}

static gr_status read_tensor(const gr_gguf *g, const char *path, const char *name, gr_dtype dtype, void *to, size_t n, gr_error *e)
{
  const gr_gguf_tensor *t = gr_gguf_tensor_find(g, name);
  if (!t || !t->has_dtype || t->dtype != dtype || t->ne[0] != (int64_t)n || t->bytes != gr_row_bytes(dtype, (int64_t)n))
    return gr_fail(e, GR_ERR_MISMATCH, "%s: the tensor %s is missing or has another size than this run", path, name);
  memcpy(to, t->data, t->bytes);
  return GR_OK;
}

static gr_status read_state(const gr_gguf *g, const char *path, gr_lora *lora, gr_run_state *s, gr_error *e)
{
  size_t n = gr_lora_parameters(lora);
  bool has_best = false;
  GR_TRY(gr_gguf_u64(g, "graft.step", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->step, e));
  GR_TRY(gr_gguf_u64(g, "graft.evaluations_worse", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->evaluations_worse, e));
  GR_TRY(gr_gguf_u64(g, "graft.best_step", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->best_step, e));
  GR_TRY(gr_gguf_bool(g, "graft.has_best", GR_GGUF_REQUIRED, &has_best, e));
  if (s->best_step > 0) GR_TRY(gr_gguf_f64(g, "graft.best_loss", GR_GGUF_REQUIRED, -1e300, 1e300, &s->best_loss, e));
  GR_TRY(gr_gguf_f64(g, "graft.loss_first", GR_GGUF_REQUIRED, -1e300, 1e300, &s->loss_first, e));
  GR_TRY(read_tensor(g, path, "values", GR_F32, gr_lora_values(lora), n, e));
  GR_TRY(read_tensor(g, path, "m", GR_F32, s->m, n, e));
  GR_TRY(read_tensor(g, path, "v", GR_F32, s->v, n, e));
  if (has_best && s->best) GR_TRY(read_tensor(g, path, "best", GR_F32, s->best, n, e));
  if (s->baseline && s->n_baseline) GR_TRY(read_tensor(g, path, "baseline", GR_F64, s->baseline, s->n_baseline, e));
  return GR_OK;
}

gr_status gr_checkpoint_load(const char *path, gr_lora *lora, gr_run_state *s, const gr_run_identity *id, gr_error *e)
{
  gr_gguf *g = NULL;
  GR_TRY(gr_gguf_open(&g, path, e));
  gr_status status = check_identity(g, path, id, e);
  if (status == GR_OK) status = read_state(g, path, lora, s, e);
  gr_gguf_close(g);
  return status;
}
