/* graft ops: options of the harness. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "optest/internal.h"

static const char usage[] = "usage: graft ops MODE [options]\n"
                            "  test      every kernel row of every backend against the reference\n"
                            "  grad      every backward rule against differences of the reference, in double\n"
                            "  perf      kernel rows on training shapes, side by side\n"
                            "  support   which row runs which op, by type and backend\n"
                            "  mutants   breaks one line after another on purpose and sees that a check turns red\n"
                            "  doc       docs/ops.md\n"
                            "  record    FILE and train's options: keeps the calls of one training step, for test --replay\n"
                            "options:\n"
                            "  -o, --op NAME[,NAME...]  only these ops, by Graft's or ggml's name\n"
                            "  -b, --backend NAME       only this backend\n"
                            "  --full                   dear cases too\n"
                            "  --replay FILE            test: the calls of a recording (graft ops record) in place of each op's cases\n"
                            "  --strict                 test: a case that any backend, not the CPU alone, lacks is a failure\n"
                            "  --seed N                 of all data (42)\n"
                            "  -t, --threads N          perf: threads (0, the default: every processor)\n"
                            "  -m, --mutant NAME        mutants: this one alone\n"
                            "  --json                   one JSON object a line\n"
                            "  -v, --verbose            a line for each case\n";

/* Names separated by commas; 2 and a sentence when one is unknown. */
static int choose_ops(gr_optest *o, const char *names, FILE *err)
{
  char name[64];
  while (*names) {
    size_t n = strcspn(names, ",");
    snprintf(name, sizeof name, "%.*s", (int)n, names);
    gr_op_id id = gr_op_find(name);
    if (id == GR_OP_NONE) {
      fprintf(err, "graft: there is no op '%s'; there are:", name);
      for (int i = 1; i < GR_OP_COUNT; i++) fprintf(err, " %s", gr_op_name((gr_op_id)i));
      fputc('\n', err);
      return 2;
    }
    o->chosen[id] = true;
    o->chosen_any = true;
    names += n + (names[n] == ',');
  }
  return 0;
}

static bool is(const char *arg, const char *a, const char *b) { return strcmp(arg, a) == 0 || (b && strcmp(arg, b) == 0); }

static bool parse_number(const char *text, unsigned long long *n)
{
  char *end;
  *n = strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && !*end;
}

static int parse(gr_optest *o, int argc, char **argv, FILE *err)
{
  for (int i = 1; i < argc; i++) {
    const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
    unsigned long long n = 0;
    if (is(arg, "--full", NULL)) o->full = true;
    else if (is(arg, "--strict", NULL)) o->strict = true;
    else if (is(arg, "--json", NULL)) o->json = true;
    else if (is(arg, "-v", "--verbose")) o->verbose = true;
    else if (is(arg, "-o", "--op") || is(arg, "-b", "--backend") || is(arg, "--seed", NULL) || is(arg, "-t", "--threads") ||
             is(arg, "-m", "--mutant") || is(arg, "--replay", NULL)) {
      i++;
      if (!value) return fprintf(err, "graft: %s needs a value\n", arg), 2;
      if (is(arg, "-o", "--op")) {
        if (choose_ops(o, value, err)) return 2;
      } else if (is(arg, "-b", "--backend")) o->backend = value;
      else if (is(arg, "-m", "--mutant")) o->mutant = value;
      else if (is(arg, "--replay", NULL)) o->replay = value;
      else if (is(arg, "-t", "--threads") && (!parse_number(value, &n) || n > 1024))
        return fprintf(err, "graft: %s takes 0 (one a processor) to 1024 threads, not '%s'\n", arg, value), 2;
      else if (!parse_number(value, &n)) return fprintf(err, "graft: %s takes a whole number from 0 on, not '%s'\n", arg, value), 2;
      else if (is(arg, "--seed", NULL)) o->seed = n;
      else o->threads = (int)n;
    } else return fprintf(err, "graft: ops has no option '%s'\n%s", arg, usage), 2;
  }
  return 0;
}

int gr_optest_main(int argc, char **argv, FILE *out, FILE *err)
{
  static const struct {
    const char *name;
    gr_status (*run)(gr_optest *o, gr_error *e);
  } modes[] = { { "test", gr_optest_test },       { "grad", gr_optest_grad },       { "perf", gr_optest_perf },
                { "support", gr_optest_support }, { "mutants", gr_optest_mutants }, { "doc", gr_optest_doc } };
  gr_optest o = { .out = out, .seed = GR_OPTEST_SEED };
  gr_error e = { 0 };
  if (argc < 1) return fputs(usage, err), 2;
  for (int i = 0; i < argc; i++)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return fputs(usage, out), 0;
  for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
    if (strcmp(argv[0], modes[m].name) != 0) continue;
    int wrong = parse(&o, argc, argv, err);
    if (wrong) return wrong;
    if (o.replay && modes[m].run != gr_optest_test) return fprintf(err, "graft: --replay is for ops test, not for ops %s\n", argv[0]), 2;
    gr_status status = modes[m].run(&o, &e);
    if (status != GR_OK) return fprintf(err, "graft: %s\n", e.text), status == GR_ERR_USAGE ? 2 : 1;
    return o.failures ? 1 : 0;
  }
  return fprintf(err, "graft: ops has no mode '%s'\n%s", argv[0], usage), 2;
}
