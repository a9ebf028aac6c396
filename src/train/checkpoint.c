#define _DEFAULT_SOURCE
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/gguf_write.h"
#include "io/identity.h"
#include "train/output.h"

/* ---- names ---- */

static const char suffix[] = ".checkpoint";

char *gr_checkpoint_path(const char *output, uint64_t step)
{
  char with[64];
  snprintf(with, sizeof with, ".step-%06llu%s", (unsigned long long)step, suffix);
  return gr_output_beside(output, with);
}

/* The step in a name that gr_checkpoint_path could have made for this stem. */
static bool step_of(const char *name, const char *stem, size_t n, uint64_t *step)
{
  if (strncmp(name, stem, n) != 0 || strncmp(name + n, ".step-", 6) != 0) return false;
  const char *digits = name + n + 6;
  char *end;
  errno = 0;
  *step = strtoull(digits, &end, 10);
  return !errno && *digits >= '0' && *digits <= '9' && strcmp(end, suffix) == 0;
}

static int ascending(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static gr_status list(DIR *d, const gr_output_name *name, uint64_t **steps, size_t *n, gr_error *e)
{
  size_t cap = 0;
  for (struct dirent *entry; (entry = readdir(d));) {
    uint64_t step;
    if (!step_of(entry->d_name, name->stem, name->stem_n, &step)) continue;
    if (!gr_grow((void **)steps, &cap, *n + 1, sizeof **steps)) return gr_fail_memory(e, cap * sizeof **steps);
    (*steps)[(*n)++] = step;
  }
  if (*n) qsort(*steps, *n, sizeof **steps, ascending);
  return GR_OK;
}

gr_status gr_checkpoint_list(const char *output, uint64_t **steps, size_t *n, gr_error *e)
{
  *steps = NULL;
  *n = 0;
  gr_output_name name;
  GR_TRY(gr_output_split(output, &name, e));
  DIR *d = opendir(name.folder);
  gr_status s = d ? list(d, &name, steps, n, e) : gr_fail_errno(e, errno, "read the folder", name.folder);
  if (d) closedir(d);
  gr_free(name.folder);
  if (s == GR_OK) return GR_OK;
  gr_free(*steps);
  *steps = NULL;
  *n = 0;
  return s;
}

void gr_checkpoint_drop(const char *output, size_t keep)
{
  uint64_t *steps = NULL;
  size_t n = 0;
  gr_error ignored = { 0 };
  if (gr_checkpoint_list(output, &steps, &n, &ignored) != GR_OK) return;
  for (size_t i = 0; i + keep < n; i++) {
    char *path = gr_checkpoint_path(output, steps[i]);
    if (path) unlink(path);
    gr_free(path);
  }
  gr_free(steps);
}

/* ---- writing ---- */

/* Disks lie: what is read back must be what was written. */
static uint64_t content_hash(const gr_lora *lora, const float *values, const gr_run_state *s, bool best)
{
  size_t n = gr_lora_parameters(lora) * sizeof(float);
  uint64_t all[5][2] = { { 0 } };
  gr_hash_bytes(values, n, all[0]);
  gr_hash_bytes(s->m, n, all[1]);
  gr_hash_bytes(s->v, n, all[2]);
  if (best) gr_hash_bytes(s->best, n, all[3]);
  if (s->baseline && s->n_baseline) gr_hash_bytes(s->baseline, s->n_baseline * sizeof *s->baseline, all[4]);
  uint64_t out[2];
  gr_hash_bytes(all, sizeof all, out);
  return out[0];
}

static void put_f64(gr_gguf_writer *w, const char *key, double v) { gr_gguf_put_scalar(w, key, GR_GGUF_F64, &v); }

static void put_identity(gr_gguf_writer *w, const gr_run_identity *id)
{
  gr_gguf_put_string(w, "general.type", "graft.checkpoint");
  gr_gguf_put_u32(w, "graft.checkpoint.version", 1);
  gr_gguf_put_string(w, "graft.base.hash", id->base_hash);
  gr_gguf_put_u64(w, "graft.data.hash", id->data_hash);
  gr_gguf_put_u64(w, "graft.data.samples", id->data_samples);
  gr_gguf_put_u64(w, "graft.data.tokens", id->data_tokens);
  gr_gguf_put_u64(w, "graft.adapter.hash", id->adapter_hash);
  gr_gguf_put_string(w, "graft.geometry", id->geometry);
  gr_gguf_put_u64(w, "graft.steps_total", id->steps_total);
  gr_gguf_put_u64(w, "graft.warmup", id->warmup);
}

static const char *const tenth_keys[] = { "graft.tenth.sum", "graft.tenth.steps", "graft.tenth_before.sum", "graft.tenth_before.steps" };

static void put_state(gr_gguf_writer *w, const gr_run_state *s)
{
  gr_gguf_put_u64(w, "graft.step", s->step);
  gr_gguf_put_u64(w, "graft.evaluations", s->evaluations);
  gr_gguf_put_u64(w, "graft.evaluations_worse", s->evaluations_worse);
  gr_gguf_put_u64(w, "graft.best_step", s->best_step);
  put_f64(w, "graft.best_loss", s->best_step ? s->best_loss : 0);
  put_f64(w, "graft.best_gain", s->best_gain);
  put_f64(w, "graft.best_se", s->best_se);
  put_f64(w, "graft.loss_first", s->loss_first);
  put_f64(w, "graft.loss_last", s->loss_last);
  for (size_t i = 0; i < sizeof s->tenth / sizeof *s->tenth; i++) put_f64(w, tenth_keys[i], s->tenth[i]);
  gr_gguf_put_u64(w, "graft.tokens_total", s->tokens_total);
}

gr_status gr_checkpoint_save(const char *path, gr_lora *lora, const gr_run_state *s, const gr_run_identity *id, gr_error *e)
{
  gr_gguf_writer *w = NULL;
  GR_TRY(gr_gguf_writer_create(&w, e));
  int64_t n = (int64_t)gr_lora_parameters(lora), baseline = (int64_t)s->n_baseline;
  bool best = s->best && s->best_step > 0;
  put_identity(w, id);
  put_state(w, s);
  gr_gguf_put_u64(w, "graft.content.hash", content_hash(lora, gr_lora_values(lora), s, best));
  gr_gguf_add_data(w, "values", GR_F32, 1, &n, gr_lora_values(lora));
  gr_gguf_add_data(w, "m", GR_F32, 1, &n, s->m);
  gr_gguf_add_data(w, "v", GR_F32, 1, &n, s->v);
  if (best) gr_gguf_add_data(w, "best", GR_F32, 1, &n, s->best);
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
      return gr_fail(e, GR_ERR_MISMATCH,
                     "%s belongs to a run with '%.*s', and this one has '%.*s': resume with the same options, or begin anew with "
                     "--overwrite",
                     path, (int)nb, b, (int)na, a);
    a += na + (a[na] == '\n');
    b += nb + (b + nb < end);
  }
  return gr_fail(e, GR_ERR_MISMATCH,
                 "%s belongs to a run of another version of Graft, with other options: go on with that version, or begin "
                 "anew with --overwrite",
                 path);
}

static gr_status check_numbers(const gr_gguf *g, const char *path, const gr_run_identity *id, gr_error *e)
{
  uint64_t data = 0, samples = 0, tokens = 0, adapter = 0, total = 0, warmup = 0;
  GR_TRY(gr_gguf_u64(g, "graft.data.hash", GR_GGUF_REQUIRED, 0, UINT64_MAX, &data, e));
  GR_TRY(gr_gguf_u64(g, "graft.data.samples", GR_GGUF_REQUIRED, 0, UINT64_MAX, &samples, e));
  GR_TRY(gr_gguf_u64(g, "graft.data.tokens", GR_GGUF_REQUIRED, 0, UINT64_MAX, &tokens, e));
  if (data != id->data_hash)
    return gr_fail(e, GR_ERR_MISMATCH,
                   "%s was written for other data: %llu samples of %llu tokens then, %llu samples of %llu tokens now, or the same in "
                   "another order: resume with the same data, or begin anew with --overwrite",
                   path, (unsigned long long)samples, (unsigned long long)tokens, (unsigned long long)id->data_samples,
                   (unsigned long long)id->data_tokens);
  GR_TRY(gr_gguf_u64(g, "graft.adapter.hash", GR_GGUF_REQUIRED, 0, UINT64_MAX, &adapter, e));
  if (adapter != id->adapter_hash)
    return gr_fail(e, GR_ERR_MISMATCH,
                   "%s belongs to a run that began from another adapter: give the same --init-adapter, or begin anew with --overwrite",
                   path);
  GR_TRY(gr_gguf_u64(g, "graft.steps_total", GR_GGUF_REQUIRED, 0, UINT64_MAX, &total, e));
  if (total != id->steps_total)
    return gr_fail(e, GR_ERR_MISMATCH,
                   "%s belongs to a run of %llu steps, and this one has %llu, by another schedule: resume with the same options, or "
                   "begin anew with --overwrite",
                   path, (unsigned long long)total, (unsigned long long)id->steps_total);
  GR_TRY(gr_gguf_u64(g, "graft.warmup", GR_GGUF_REQUIRED, 0, UINT64_MAX, &warmup, e));
  if (warmup != id->warmup)
    return gr_fail(e, GR_ERR_MISMATCH,
                   "%s belongs to a run that warms up over %llu steps, and this one does over %llu: resume with the same "
                   "options, or begin anew with --overwrite",
                   path, (unsigned long long)warmup, (unsigned long long)id->warmup);
  return GR_OK;
}

static gr_status check_identity(const gr_gguf *g, const char *path, const gr_run_identity *id, gr_error *e)
{
  gr_gguf_str type = { "", 0 }, hash = { "", 0 }, geometry = { "", 0 };
  uint64_t version = 0;
  GR_TRY(gr_gguf_string(g, "general.type", GR_GGUF_REQUIRED, &type, e));
  if (!gr_gguf_str_is(type, "graft.checkpoint"))
    return gr_fail(e, GR_ERR_FORMAT, "%s is not a checkpoint of Graft, though it is named as one: move it away", path);
  GR_TRY(gr_gguf_u64(g, "graft.checkpoint.version", GR_GGUF_REQUIRED, 1, 1, &version, e));
  GR_TRY(gr_gguf_string(g, "graft.base.hash", GR_GGUF_REQUIRED, &hash, e));
  if (!gr_gguf_str_is(hash, id->base_hash))
    return gr_fail(e, GR_ERR_MISMATCH,
                   "%s was written for another base model (its hash is %.*s, this one's %s): name that one with -m, or begin anew with "
                   "--overwrite",
                   path, (int)hash.len, hash.data, id->base_hash);
  GR_TRY(gr_gguf_string(g, "graft.geometry", GR_GGUF_REQUIRED, &geometry, e));
  if (!gr_gguf_str_is(geometry, id->geometry)) return geometry_differs(path, id->geometry, geometry, e);
  return check_numbers(g, path, id, e);
}

static gr_status read_tensor(const gr_gguf *g, const char *path, const char *name, gr_dtype dtype, void *to, size_t n, gr_error *e)
{
  const gr_gguf_tensor *t = gr_gguf_tensor_find(g, name);
  if (!t || !t->has_dtype || t->dtype != dtype || t->ne[0] != (int64_t)n || t->bytes != gr_row_bytes(dtype, (int64_t)n))
    return gr_fail(e, GR_ERR_MISMATCH, "%s: the tensor %s is missing or has another size than in this run: begin anew with --overwrite",
                   path, name);
  memcpy(to, t->data, t->bytes);
  return GR_OK;
}

static gr_status read_state(const gr_gguf *g, gr_run_state *s, gr_error *e)
{
  GR_TRY(gr_gguf_u64(g, "graft.step", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->step, e));
  GR_TRY(gr_gguf_u64(g, "graft.evaluations", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->evaluations, e));
  GR_TRY(gr_gguf_u64(g, "graft.evaluations_worse", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->evaluations_worse, e));
  GR_TRY(gr_gguf_u64(g, "graft.best_step", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->best_step, e));
  double *const reals[] = { &s->best_loss, &s->best_gain, &s->best_se, &s->loss_first, &s->loss_last };
  static const char *const keys[] = { "graft.best_loss", "graft.best_gain", "graft.best_se", "graft.loss_first", "graft.loss_last" };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    GR_TRY(gr_gguf_f64(g, keys[i], GR_GGUF_REQUIRED, -HUGE_VAL, HUGE_VAL, reals[i], e));
  for (size_t i = 0; i < sizeof s->tenth / sizeof *s->tenth; i++)
    GR_TRY(gr_gguf_f64(g, tenth_keys[i], GR_GGUF_OPTIONAL, -HUGE_VAL, HUGE_VAL, &s->tenth[i], e));
  if (!s->best_step) s->best_loss = HUGE_VAL;
  return gr_gguf_u64(g, "graft.tokens_total", GR_GGUF_REQUIRED, 0, UINT64_MAX, &s->tokens_total, e);
}

static gr_status read_content(const gr_gguf *g, const char *path, gr_lora *lora, gr_run_state *s, gr_error *e)
{
  size_t n = gr_lora_parameters(lora);
  bool best = s->best && s->best_step > 0;
  uint64_t hash = 0;
  GR_TRY(read_tensor(g, path, "values", GR_F32, gr_lora_values(lora), n, e));
  GR_TRY(read_tensor(g, path, "m", GR_F32, s->m, n, e));
  GR_TRY(read_tensor(g, path, "v", GR_F32, s->v, n, e));
  if (best) GR_TRY(read_tensor(g, path, "best", GR_F32, s->best, n, e));
  if (s->baseline && s->n_baseline) GR_TRY(read_tensor(g, path, "baseline", GR_F64, s->baseline, s->n_baseline, e));
  GR_TRY(gr_gguf_u64(g, "graft.content.hash", GR_GGUF_REQUIRED, 0, UINT64_MAX, &hash, e));
  if (hash != content_hash(lora, gr_lora_values(lora), s, best))
    return gr_fail(e, GR_ERR_FORMAT, "%s is damaged: what it holds is not what was written", path);
  return GR_OK;
}

gr_status gr_checkpoint_load(const char *path, gr_lora *lora, gr_run_state *s, const gr_run_identity *id, gr_error *e)
{
  gr_gguf *g = NULL;
  GR_TRY(gr_gguf_open(&g, path, e));
  gr_status status = check_identity(g, path, id, e);
  if (status == GR_OK) status = read_state(g, s, e);
  if (status == GR_OK && s->evaluations == 0) s->n_baseline = 0; /* stopped before the first evaluation */
  if (status == GR_OK) status = read_content(g, path, lora, s, e);
  gr_gguf_close(g);
  return status;
}

int64_t gr_checkpoint_peek(const char *path, const char *key, int64_t otherwise)
{
  gr_gguf *g = NULL;
  gr_error ignored = { 0 };
  gr_gguf_str geometry = { "", 0 };
  if (gr_gguf_open(&g, path, &ignored) != GR_OK) return otherwise;
  if (gr_gguf_string(g, "graft.geometry", GR_GGUF_OPTIONAL, &geometry, &ignored) == GR_OK) {
    size_t n = strlen(key);
    for (size_t at = 0; at + n + 2 < geometry.len;) {
      const char *line = geometry.data + at;
      if (strncmp(line, key, n) == 0 && line[n] == ':') {
        char digits[24] = "";
        for (size_t i = 0; i + 1 < sizeof digits && at + n + 2 + i < geometry.len && line[n + 2 + i] != '\n'; i++)
          digits[i] = line[n + 2 + i];
        otherwise = strtoll(digits, NULL, 10);
        break;
      }
      while (at < geometry.len && geometry.data[at] != '\n') at++;
      at++;
    }
  }
  gr_gguf_close(g);
  return otherwise;
}
