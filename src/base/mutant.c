/* The mutant that is switched on: the one piece of global state, and only in the harness's own build. */
#include "base/mutant.h"

#if defined(GR_MUTANTS)
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

static atomic_int active, executed;

/* A test program that checks a mutant is told its name by the environment, and tells in a file that the line was executed. */
__attribute__((constructor)) static void read_environment(void)
{
  static const char *const names[GR_MUTANT_COUNT] = {
#define GR_MUTANT_LINE(name, check, subject, what) [GR_MUTANT_##name] = #name,
#include "base/mutants.def"
#undef GR_MUTANT_LINE
  };
  const char *wanted = getenv("GRAFT_MUTANT");
  for (int i = 1; wanted && i < GR_MUTANT_COUNT; i++)
    if (strcmp(names[i], wanted) == 0) active = i;
}

static void note_execution(void)
{
  const char *path = getenv("GRAFT_MUTANT_EXECUTED");
  if (atomic_exchange(&executed, 1) || !path) return;
  FILE *f = fopen(path, "w");
  if (!f) return;
  fputc('1', f);
  fclose(f);
}

int gr_mutant_is(gr_mutant m)
{
  if (atomic_load_explicit(&active, memory_order_relaxed) != (int)m) return 0;
  if (!atomic_load_explicit(&executed, memory_order_relaxed)) note_execution();
  return 1;
}

void gr_mutant_set(gr_mutant m)
{
  atomic_store(&active, (int)m);
  atomic_store(&executed, 0);
}

int gr_mutant_executed(void) { return atomic_load(&executed); }

float gr_mutant_half(float v) { return gr_f16_to_f32(gr_f32_to_f16(v)); }

#else
typedef int gr_mutant_none; /* a file must hold something */
#endif
