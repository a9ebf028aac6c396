#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "train/output.h"
#include "train/tensorboard.h"

struct gr_metrics {
  char *jsonl_path, *csv_path;
  int jsonl, csv;
  gr_tensorboard *tensorboard;
};

static const char header[] = "step,epoch,loss,lr,grad_norm,tokens,tokens_total,tok_s,eval_loss,eval_improvement,eval_standard_error\n";

/* ---- going on ---- */

/* The step of a whole line; false for one that was cut off, and for what is no line of ours. */
static bool jsonl_step(const char *line, size_t n, uint64_t *step)
{
  static const char event[] = "{\"event\":\"", key[] = "\"step\":";
  if (n < sizeof event || line[n - 1] != '}' || memcmp(line, event, sizeof event - 1) != 0) return false;
  for (size_t i = sizeof event; i + sizeof key < n; i++)
    if (memcmp(line + i, key, sizeof key - 1) == 0) {
      *step = strtoull(line + i + sizeof key - 1, NULL, 10);
      return true;
    }
  return false;
}

static bool csv_step(const char *line, size_t n, uint64_t *step)
{
  char *end;
  *step = strtoull(line, &end, 10);
  return n > 0 && end > line && *end == ',';
}

/* What is kept of a file of an earlier run; an absent one is empty. */
static gr_status keep_lines(const char *path, bool (*step_of)(const char *, size_t, uint64_t *), uint64_t last, gr_buf *kept, gr_error *e)
{
  char *text = NULL;
  size_t size = 0;
  if (!gr_file_exists(path)) return GR_OK;
  GR_TRY(gr_file_read(path, (size_t)1 << 32, &text, &size, e));
  for (size_t at = 0; at < size;) {
    const char *line = text + at, *end = memchr(line, '\n', size - at);
    uint64_t step;
    if (!end) break;
    size_t n = (size_t)(end - line);
    if (step_of(line, n, &step) && step <= last) gr_buf_append(kept, line, n + 1);
    at += n + 1;
  }
  gr_free(text);
  return kept->failed ? gr_fail_memory(e, size) : GR_OK;
}

static gr_status rewrite(const char *path, const gr_buf *text, gr_error *e)
{
  gr_file *f = NULL;
  GR_TRY(gr_file_create(&f, path, e));
  gr_status s = gr_file_write(f, text->data, text->len, e);
  if (s == GR_OK) return gr_file_commit(f, e);
  gr_file_abandon(f);
  return s;
}

static gr_status begin_files(gr_metrics *m, bool resumed, uint64_t step, gr_error *e)
{
  gr_buf jsonl = { 0 }, csv = { 0 };
  gr_buf_puts(&csv, header);
  gr_status s = resumed ? keep_lines(m->jsonl_path, jsonl_step, step, &jsonl, e) : GR_OK;
  if (s == GR_OK && resumed) s = keep_lines(m->csv_path, csv_step, step, &csv, e);
  if (s == GR_OK && csv.failed) s = gr_fail_memory(e, sizeof header);
  if (s == GR_OK) s = rewrite(m->jsonl_path, &jsonl, e);
  if (s == GR_OK) s = rewrite(m->csv_path, &csv, e);
  gr_buf_free(&jsonl);
  gr_buf_free(&csv);
  return s;
}

static gr_status open_append(const char *path, int *fd, gr_error *e)
{
  *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  return *fd < 0 ? gr_fail_errno(e, errno, "open", path) : GR_OK;
}

gr_status gr_metrics_open(gr_metrics **out, const char *output, bool tensorboard, bool resumed, uint64_t step, gr_error *e)
{
  *out = NULL;
  gr_metrics *m = gr_calloc(1, sizeof *m);
  if (!m) return gr_fail_memory(e, sizeof *m);
  m->jsonl = m->csv = -1;
  m->jsonl_path = gr_output_beside(output, ".metrics.jsonl");
  m->csv_path = gr_output_beside(output, ".metrics.csv");
  char *folder = gr_output_beside(output, ".tensorboard");
  gr_status s = m->jsonl_path && m->csv_path && folder ? GR_OK : gr_fail_memory(e, strlen(output));
  if (s == GR_OK) s = begin_files(m, resumed, step, e);
  if (s == GR_OK) s = open_append(m->jsonl_path, &m->jsonl, e);
  if (s == GR_OK) s = open_append(m->csv_path, &m->csv, e);
  if (s == GR_OK && tensorboard) s = gr_tensorboard_open(&m->tensorboard, folder, resumed ? step + 1 : 0, e);
  gr_free(folder);
  if (s != GR_OK) {
    gr_metrics_close(m);
    return s;
  }
  *out = m;
  return GR_OK;
}

void gr_metrics_close(gr_metrics *m)
{
  if (!m) return;
  if (m->jsonl >= 0) close(m->jsonl);
  if (m->csv >= 0) close(m->csv);
  gr_tensorboard_close(m->tensorboard);
  gr_free(m->jsonl_path);
  gr_free(m->csv_path);
  gr_free(m);
}

/* ---- adding ---- */

/* A whole line at a time, so that readers see whole lines. */
static gr_status write_line(int fd, const char *path, const char *text, size_t n, gr_error *e)
{
  for (size_t at = 0; at < n;) {
    ssize_t w = write(fd, text + at, n - at);
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return gr_fail_errno(e, errno, "write", path);
    at += (size_t)w;
  }
  return GR_OK;
}

static gr_status add_jsonl(gr_metrics *m, const gr_train_event *v, gr_error *e)
{
  json_t *object = gr_train_event_json(v);
  char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(object);
  gr_buf line = { 0 };
  if (text) gr_buf_printf(&line, "%s\n", text);
  free(text);
  gr_status s = text && !line.failed ? write_line(m->jsonl, m->jsonl_path, line.data, line.len, e) : gr_fail_memory(e, 256);
  gr_buf_free(&line);
  return s;
}

static gr_status add_csv(gr_metrics *m, const gr_train_event *v, gr_error *e)
{
  gr_buf line = { 0 };
  unsigned long long step = v->step;
  if (v->kind == GR_EVENT_STEP)
    gr_buf_printf(&line, "%llu,%.9g,%.9g,%.9g,%.9g,%zu,%zu,%.6g,,,\n", step, v->epoch, v->loss, v->lr, v->grad_norm, v->tokens,
                  v->tokens_total, v->tok_s);
  else gr_buf_printf(&line, "%llu,%.9g,,,,,,,%.9g,%.9g,%.9g\n", step, v->epoch, v->loss, v->improvement, v->standard_error);
  gr_status s = line.failed ? gr_fail_memory(e, 256) : write_line(m->csv, m->csv_path, line.data, line.len, e);
  gr_buf_free(&line);
  return s;
}

static gr_status add_tensorboard(gr_metrics *m, const gr_train_event *v, gr_error *e)
{
  const gr_scalar step[] = { { "train/loss", v->loss },
                             { "train/learning_rate", v->lr },
                             { "train/grad_norm", v->grad_norm },
                             { "train/tokens_per_second", v->tok_s },
                             { "train/epoch", v->epoch } };
  const gr_scalar eval[] = { { "eval/loss", v->loss }, { "eval/improvement", v->improvement } };
  if (v->kind == GR_EVENT_STEP) return gr_tensorboard_add(m->tensorboard, v->step, step, sizeof step / sizeof *step, e);
  return gr_tensorboard_add(m->tensorboard, v->step, eval, sizeof eval / sizeof *eval, e);
}

gr_status gr_metrics_add(gr_metrics *m, const gr_train_event *v, gr_error *e)
{
  if (v->kind != GR_EVENT_STEP && v->kind != GR_EVENT_EVAL) return GR_OK;
  GR_TRY(add_jsonl(m, v, e));
  GR_TRY(add_csv(m, v, e));
  return m->tensorboard ? add_tensorboard(m, v, e) : GR_OK;
}
