/* For tools/judge_gradients.py: gradients MODEL.gguf ADAPTER.gguf, samples on stdin, one a line: "id:weight id:weight ...".
 * Runs one training step's backward over them side by side. On stdout: a line "loss X", a line "NAME.lora_a N" or "NAME.lora_b N" for each
 * matrix, an empty line, then the gradients as floats in that order. A refusal is an error with its sentence (exit 2). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "train/step.h"

enum { LINE = 1 << 16, SAMPLES = 64 };

typedef struct job {
  gr_model *model;
  gr_lora *lora;
  gr_dataset *data;
  gr_pool *pool;
  gr_backend *backend;
  gr_step *step;
  int32_t tokens; /* of all samples */
} job;

static gr_status read_sample(job *j, char *line, gr_error *e)
{
  static int32_t ids[LINE / 4];
  static float weights[LINE / 4];
  int32_t n = 0;
  for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n"), n++) {
    char *end;
    ids[n] = (int32_t)strtol(word, &end, 10);
    if (*end != ':') return gr_fail(e, GR_ERR_FORMAT, "'%s' is no id:weight", word);
    weights[n] = strtof(end + 1, NULL);
  }
  j->tokens += n;
  return gr_dataset_add_ids(&j->data, ids, weights, n, e);
}

static gr_status run(job *j, const char *model, const char *adapter, gr_error *e)
{
  static char line[LINE];
  GR_TRY(gr_model_open(&j->model, model, e));
  GR_TRY(gr_lora_load(&j->lora, j->model, adapter, e));
  while (fgets(line, sizeof line, stdin)) GR_TRY(read_sample(j, line, e));
  size_t all[SAMPLES], n = gr_dataset_count(j->data);
  if (n > SAMPLES) return gr_fail(e, GR_ERR_USAGE, "%zu samples, more than %d", n, SAMPLES);
  for (size_t i = 0; i < n; i++) all[i] = i;
  GR_TRY(gr_pool_create(&j->pool, 1, e));
  GR_TRY(gr_backend_open(&j->backend, "cpu", j->pool, e));
  const gr_step_options o = { .tokens = j->tokens, .train = true, .backends = &j->backend, .n_backends = 1 };
  GR_TRY(gr_step_plan(&j->step, j->model, j->lora, &o, e));
  GR_TRY(gr_step_allocate(j->step, e));
  gr_step_clear(j->step);
  return gr_step_run(j->step, j->data, all, n, 0, NULL, NULL, NULL, e);
}

static bool print(const job *j)
{
  const gr_step_sums *sums = gr_step_sums_of(j->step);
  printf("loss %.9g\n", sums->loss / sums->weight);
  size_t total = gr_lora_parameters(j->lora);
  const float *first = gr_lora_pair_at(j->lora, 0)->a;
  for (size_t i = 0; i < gr_lora_pair_count(j->lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(j->lora, i);
    const float *end = i + 1 < gr_lora_pair_count(j->lora) ? gr_lora_pair_at(j->lora, i + 1)->a : first + total;
    printf("%s.lora_a %td\n%s.lora_b %td\n", p->name, p->b - p->a, p->name, end - p->b);
  }
  putchar('\n');
  return fwrite(gr_step_gradient(j->step), sizeof(float), total, stdout) == total && fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
  job j = { 0 };
  gr_error e = { 0 };
  if (argc != 3) return 2;
  bool good = run(&j, argv[1], argv[2], &e) == GR_OK;
  if (!good) fprintf(stderr, "gradients: %s\n", e.text);
  else good = print(&j);
  gr_step_free(j.step);
  gr_backend_close(j.backend);
  gr_pool_free(j.pool);
  gr_dataset_free(j.data);
  gr_lora_free(j.lora);
  gr_model_close(j.model);
  return good ? 0 : 2;
}
