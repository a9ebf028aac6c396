/* Mutants mode: each line of base/mutants.def is switched on in turn, and the check it names must turn red.
 *
 * A check is first run with no mutant: it must be green, and check something. A mutant counts as caught only if its line was executed
 * while the check turned red; one that survives is a failure of the harness, and so is one whose line nothing executes. */
#define _XOPEN_SOURCE 700 /* popen, mkstemp */
#include "base/mutant.h"

#include "optest/internal.h"

#if !defined(GR_MUTANTS)

gr_status gr_optest_mutants(gr_optest *o, gr_error *e)
{
  (void)o;
  return gr_fail(e, GR_ERR_UNSUPPORTED,
                 "this program has no mutants in it, and must not: build the target graft-mutants and run `mutants/graft ops mutants` in "
                 "the build folder (cmake --build build --target graft-mutants && build/mutants/graft ops mutants)");
}

#else

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/isa.h"
#include "base/alloc.h"

static const gr_optest_mutant listed[] = {
#define GR_MUTANT_LINE(name, check, subject, what) { GR_MUTANT_##name, #name, #check, #subject, what },
#include "base/mutants.def"
#undef GR_MUTANT_LINE
};

/* What one run of a check came to. */
typedef struct verdict {
  size_t checks, failures;
  bool executed;
  gr_optest_failure first;
} verdict;

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

static bool is_program(const gr_optest_mutant *m) { return is(m->check, "program") || is(m->check, "words"); }

/* ---- checks ---- */

static gr_status run_mode(const gr_optest *o, const gr_optest_mutant *m, verdict *v, gr_error *e)
{
  gr_op_id op = gr_op_find(m->subject);
  if (op == GR_OP_NONE) return gr_fail(e, GR_ERR_USAGE, "mutant %s: there is no op '%s'", m->name, m->subject);
  gr_optest inner = { .seed = o->seed, .full = o->full, .chosen_any = true, .failures_max = 1, .first = &v->first };
  inner.chosen[op] = true;
  inner.targets = o->targets;
  inner.n_targets = o->n_targets;
  if (!is(m->check, "grad")) inner.backend = m->check;
  GR_TRY(is(m->check, "grad") ? gr_optest_grad(&inner, e) : gr_optest_test(&inner, e));
  v->checks = inner.checks;
  v->failures = inner.failures;
  v->executed = gr_mutant_executed();
  return GR_OK;
}

/* Reads a test program's TAP: how many tests there were, and the first that failed. */
static void read_tap(FILE *tap, verdict *v)
{
  char line[512];
  while (fgets(line, sizeof line, tap)) {
    bool failed = strncmp(line, "not ok ", 7) == 0;
    if ((!failed && strncmp(line, "ok ", 3) != 0) || strstr(line, "# SKIP") || strstr(line, "# skip")) continue;
    v->checks++;
    if (!failed) continue;
    line[strcspn(line, "\n")] = 0;
    const char *name = strstr(line, " - ");
    if (v->failures++ == 0) snprintf(v->first.what, sizeof v->first.what, "%s", name ? name + 3 : line);
  }
}

/* The program tells by a byte in `note` that the mutated line was executed. */
static gr_status run_program(const gr_optest_mutant *m, bool mutated, const char *note, verdict *v, gr_error *e)
{
  char command[1024], path[512];
  struct stat info;
  snprintf(path, sizeof path, GR_MUTANT_PROGRAMS "/%s", m->subject);
  if (access(path, X_OK) != 0) return gr_fail_errno(e, errno, "run the check of a mutant:", path);
  snprintf(command, sizeof command, "GRAFT_MUTANT=%s GRAFT_MUTANT_EXECUTED='%s' CMOCKA_MESSAGE_OUTPUT=TAP '%s' 2>&1",
           mutated ? m->name : "", note, path);
  FILE *tap = popen(command, "r");
  if (!tap) return gr_fail_errno(e, errno, "run", path);
  read_tap(tap, v);
  int rc = pclose(tap);
  if (rc != 0 && v->failures++ == 0) snprintf(v->first.what, sizeof v->first.what, "the program ended with status %d", rc);
  v->executed = stat(note, &info) == 0 && info.st_size > 0;
  return GR_OK;
}

static gr_status run_program_noted(const gr_optest_mutant *m, bool mutated, verdict *v, gr_error *e)
{
  char note[] = "/tmp/graft-mutant-XXXXXX";
  int f = mkstemp(note);
  if (f < 0) return gr_fail_errno(e, errno, "create", note);
  close(f);
  gr_status status = run_program(m, mutated, note, v, e);
  unlink(note);
  return status;
}

static gr_status run_check(const gr_optest *o, const gr_optest_mutant *m, bool mutated, verdict *v, gr_error *e)
{
  *v = (verdict){ 0 };
  if (is_program(m)) return run_program_noted(m, mutated, v, e);
  gr_mutant_set(mutated ? (gr_mutant)m->id : GR_MUTANT_NONE);
  gr_status status = run_mode(o, m, v, e);
  gr_mutant_set(GR_MUTANT_NONE);
  return status;
}

/* ---- one mutant ---- */

/* "matmul(...) (matmul__cpu, test)" */
static const char *place(const gr_optest_mutant *m, const verdict *v, char *text, size_t size)
{
  const char *mode = is(m->check, "grad") ? "grad" : is_program(m) ? m->subject : "test";
  snprintf(text, size, "%s (%s%s%s)", v->first.what, v->first.row, v->first.row[0] ? ", " : "", mode);
  return text;
}

/* Whether the check is green, and checks something, when nothing is broken. */
static gr_status check_baseline(gr_optest *o, const gr_optest_mutant *m, bool *green, gr_error *e)
{
  verdict v;
  char text[700];
  GR_TRY(run_check(o, m, false, &v, e));
  *green = v.checks > 0 && v.failures == 0;
  if (*green) return GR_OK;
  o->failures++;
  if (v.checks == 0) gr_optest_note(o, "failure", "the check '%s %s' checks nothing", m->check, m->subject);
  else
    gr_optest_note(o, "failure", "without any mutant the check '%s %s' is red already: %s: %s", m->check, m->subject,
                   place(m, &v, text, sizeof text), v.first.why);
  return GR_OK;
}

static gr_status check_mutant(gr_optest *o, const gr_optest_mutant *m, bool green, size_t *caught, gr_error *e)
{
  verdict v;
  char text[700];
  GR_TRY(run_check(o, m, true, &v, e));
  o->cases++;
  o->checks += v.checks;
  bool counts = green && v.executed && v.failures > 0;
  *caught += counts;
  o->failures += !counts;
  if (counts)
    gr_optest_note(o, "caught", "%s: %s; by %s%s%s", m->name, m->what, place(m, &v, text, sizeof text),
                   o->verbose && v.first.why[0] ? ": " : "", o->verbose ? v.first.why : "");
  else if (!green) gr_optest_note(o, "uncertain", "%s: %s; its check '%s %s' proves nothing", m->name, m->what, m->check, m->subject);
  else if (!v.executed)
    gr_optest_note(o, "unreached", "%s: %s; no check of '%s %s' executes its line", m->name, m->what, m->check, m->subject);
  else gr_optest_note(o, "survived", "%s: %s; %zu checks of '%s %s' stay green", m->name, m->what, v.checks, m->check, m->subject);
  return GR_OK;
}

/* ---- all of them ---- */

/* Whether kernels here multiply pairs of bf16: elsewhere there is no such line to break. */
static bool has_words(void)
{
  const gr_cpu_isa *isa;
  gr_error ignored;
  return gr_cpu_isa_choose(&isa, &ignored) == GR_OK && isa->words;
}

static bool wanted(const gr_optest *o, const gr_optest_mutant *m)
{
  bool on_backend = !is(m->check, "grad") && !is_program(m);
  if (o->mutant) return is(o->mutant, m->name);
  if (is(m->check, "words") && !has_words()) return false;
  if (o->backend && !(on_backend && is(o->backend, m->check))) return false;
  return !o->chosen_any || (!is_program(m) && o->chosen[gr_op_find(m->subject)]);
}

gr_status gr_optest_mutants(gr_optest *o, gr_error *e)
{
  const gr_optest_mutant *all = o->mutants ? o->mutants : listed;
  size_t n = o->mutants ? o->n_mutants : sizeof listed / sizeof *listed, caught = 0;
  signed char *green = gr_calloc(n, 1); /* by mutant, of its check: 1 green, -1 not */
  if (!green) return gr_fail_memory(e, n);
  gr_status status = GR_OK;
  for (size_t i = 0; i < n && status == GR_OK; i++) {
    if (!wanted(o, &all[i])) continue;
    for (size_t k = 0; k < i && !green[i]; k++)
      if (is(all[k].check, all[i].check) && is(all[k].subject, all[i].subject)) green[i] = green[k];
    if (!green[i]) {
      bool good = false;
      status = check_baseline(o, &all[i], &good, e);
      green[i] = good ? 1 : -1;
    }
    if (status == GR_OK) status = check_mutant(o, &all[i], green[i] > 0, &caught, e);
  }
  gr_free(green);
  if (status != GR_OK) return status;
  if (o->mutant && !o->cases) return gr_fail(e, GR_ERR_USAGE, "there is no mutant '%s'; base/mutants.def lists them", o->mutant);
  gr_optest_note(o, "mutants", "%zu of %zu caught", caught, o->cases);
  gr_optest_summary(o, "mutants");
  return GR_OK;
}

#endif
