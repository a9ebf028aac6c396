/* Perf mode: rows of each op on its training shapes, side by side. Rows take turns, round by round, so that what the machine does
 * meanwhile falls on all alike; a row's figure is its best round. FLOPs and bytes are those of the op's `cost`. */
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "optest/internal.h"

enum { ROWS_MAX = 32, ROUNDS_MIN = 3, ROUNDS_MAX = 200 };
static const double seconds_wanted = 0.5; /* of each row and case */

typedef struct perf_row {
  const char *backend;
  gr_rig rig;
  double best, total;
} perf_row;

typedef struct perf_case {
  gr_optest *o;
  gr_op_id op;
  const gr_case *c;
  gr_case_graph cg;
  gr_interp it;
  perf_row rows[ROWS_MAX];
  size_t n;
} perf_case;

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gr_status fill_inputs(perf_case *k)
{
  for (int i = 0; i < k->c->n_in; i++) {
    if (!k->cg.in[i]) continue;
    gr_array a = gr_interp_array(&k->it, k->cg.in[i]);
    gr_case_fill(&k->c->in[i], &a, k->o->seed, (uint64_t)k->op << 32 | (uint64_t)i);
  }
  gr_op_call call;
  gr_interp_call(&k->it, k->cg.node, &call);
  if (k->c->prepare) k->c->prepare(&call);
  return GR_OK;
}

/* A shape is no place for the reference, unless it was asked for by name. */
static bool left_out(const gr_optest *o, const char *name) { return strcmp(name, "ref") == 0 && !o->backend; }

static gr_status open_rows(perf_case *k, gr_backend *const *backends, gr_error *e)
{
  gr_op_call capacity;
  gr_case_call(&k->cg, &capacity);
  for (size_t i = 0; gr_optest_target_name(k->o, i); i++) {
    const char *name = gr_optest_target_name(k->o, i);
    if (left_out(k->o, name)) continue;
    for (const gr_kernel_row *r = backends[i]->ops->rows; r->op != GR_OP_NONE && k->n < ROWS_MAX; r++) {
      if (r->op != k->op || (r->admits && !r->admits(&capacity))) continue;
      perf_row *p = &k->rows[k->n];
      *p = (perf_row){ .backend = name };
      GR_TRY(gr_rig_open(&p->rig, backends[i], r, &k->it, &k->cg, NULL, e));
      k->n++;
      GR_TRY(gr_rig_reset(&p->rig, e));
    }
  }
  return GR_OK;
}

static gr_status time_rows(perf_case *k, gr_error *e)
{
  bool more = true;
  for (int round = 0; round < ROUNDS_MAX && (round < ROUNDS_MIN || more); round++) {
    more = false;
    for (size_t i = 0; i < k->n; i++) {
      perf_row *p = &k->rows[i];
      if (round >= ROUNDS_MIN && p->total >= seconds_wanted) continue;
      double start = now();
      GR_TRY(gr_rig_run(&p->rig, e));
      double took = now() - start;
      if (round == 0 || took < p->best) p->best = took;
      p->total += took;
      more = more || p->total < seconds_wanted;
    }
  }
  return GR_OK;
}

static void tell(perf_case *k)
{
  char what[512];
  gr_cost cost = { 0 };
  gr_op_call capacity;
  gr_case_call(&k->cg, &capacity);
  gr_op_get(k->op)->cost(&capacity, &cost);
  gr_case_describe(k->op, k->c, what, sizeof what);
  for (size_t i = 0; i < k->n; i++) {
    const perf_row *p = &k->rows[i];
    double gflops = cost.flops / p->best * 1e-9, gbytes = (cost.bytes_read + cost.bytes_written) / p->best * 1e-9;
    k->o->checks++;
    if (!k->o->out) continue;
    if (k->o->json) {
      json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:f,s:f,s:f,s:f}", "event", "perf", "case", what, "backend", p->backend, "row",
                            p->rig.row->name, "seconds", p->best, "gflop_s", gflops, "gb_s", gbytes, "ratio", k->rows[0].best / p->best);
      if (j && json_dumpf(j, k->o->out, JSON_COMPACT) == 0) fputc('\n', k->o->out);
      json_decref(j);
    } else {
      if (i == 0) fprintf(k->o->out, "%s\n", what);
      fprintf(k->o->out, "  %-40s %10.3f ms %9.1f GFLOP/s %8.1f GB/s  x%.2f\n", p->rig.row->name, 1e3 * p->best, gflops, gbytes,
              k->rows[0].best / p->best);
    }
  }
  if (!k->n) k->o->uncovered++;
}

static gr_status perf_one(gr_optest *o, gr_op_id op, const gr_case *c, gr_backend *const *backends, gr_error *e)
{
  perf_case *k = gr_calloc(1, sizeof *k);
  if (!k) return gr_fail_memory(e, sizeof *k);
  *k = (perf_case){ .o = o, .op = op, .c = c };
  o->cases++;
  gr_status status = gr_case_build(&k->cg, op, c, e);
  if (status == GR_OK) status = gr_interp_open(&k->it, k->cg.graph, false, NULL, e);
  if (status == GR_OK) status = fill_inputs(k);
  if (status == GR_OK) status = open_rows(k, backends, e);
  if (status == GR_OK) status = time_rows(k, e);
  if (status == GR_OK) tell(k);
  for (size_t i = 0; i < k->n; i++) gr_rig_close(&k->rows[i].rig);
  if (k->it.storage) gr_interp_close(&k->it);
  gr_case_graph_free(&k->cg);
  gr_free(k);
  return status;
}

static gr_status perf_op(gr_optest *o, gr_op_id id, gr_backend *const *backends, gr_error *e)
{
  gr_case_list l;
  gr_status status = GR_OK;
  GR_TRY(gr_case_list_make(&l, o->swap, id, e));
  for (size_t n = 0; n < l.n && status == GR_OK; n++)
    if (l.items[n]->flags & GR_CASE_PERF) status = perf_one(o, id, l.items[n], backends, e);
  gr_case_list_free(&l);
  return status;
}

gr_status gr_optest_perf(gr_optest *o, gr_error *e)
{
  enum { TARGETS_MAX = 16 };
  gr_backend *backends[TARGETS_MAX] = { 0 };
  gr_pool *pool = NULL;
  gr_status status = gr_pool_create(&pool, o->threads, e);
  for (size_t i = 0; status == GR_OK && gr_optest_target_name(o, i) && i < TARGETS_MAX; i++)
    status = gr_optest_open(o, i, pool, &backends[i], e);
  for (int id = 1; id < GR_OP_COUNT && status == GR_OK; id++)
    if (gr_optest_wanted(o, (gr_op_id)id)) status = perf_op(o, (gr_op_id)id, backends, e);
  if (status == GR_OK) gr_optest_summary(o, "perf");
  for (int i = 0; i < TARGETS_MAX; i++) gr_backend_close(backends[i]);
  gr_pool_free(pool);
  return status;
}
