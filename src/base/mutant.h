/* Mutants: named breakages of single lines, which `graft ops mutants` switches on one at a time to see that a check turns red.
 *
 *   x = GR_MUTANT(name) ? wrong : right;
 *
 * base/mutants.def is the only list of them. In every build but the harness's own (GR_MUTANTS, cmake/mutants.cmake) GR_MUTANT is the
 * constant 0: nothing of a mutant is in the program, and a name that is not in the list does not compile. C and C++. */
#ifndef GR_BASE_MUTANT_H
#define GR_BASE_MUTANT_H

typedef enum gr_mutant {
  GR_MUTANT_NONE,
#define GR_MUTANT_LINE(name, check, subject, what) GR_MUTANT_##name,
#include "base/mutants.def"
#undef GR_MUTANT_LINE
  GR_MUTANT_COUNT,
  GR_MUTANT_control_equivalent, /* two lines of tests/mutants alone: what is no breakage must survive, what is never run must not count */
  GR_MUTANT_control_unreached
} gr_mutant;

#if defined(GR_MUTANTS)

#ifdef __cplusplus
extern "C" {
#endif

/* Asked by a mutated line: whether the mutant is switched on. If so, the line counts as executed. */
int gr_mutant_is(gr_mutant m);
/* Switches a mutant on and all others off; GR_MUTANT_NONE: all. Nothing counts as executed any more. */
void gr_mutant_set(gr_mutant m);
/* Whether a line of the mutant that is switched on was executed. */
int gr_mutant_executed(void);
/* v rounded to half, as a detour through it would leave it. */
float gr_mutant_half(float v);

#ifdef __cplusplus
}
#endif

#define GR_MUTANT(name) gr_mutant_is(GR_MUTANT_##name)
#define GR_MUTANT_HALF(name, v) (GR_MUTANT(name) ? gr_mutant_half(v) : (v))

#else

#define GR_MUTANT(name) ((int)GR_MUTANT_##name < 0)
#define GR_MUTANT_HALF(name, v) (GR_MUTANT(name) ? 0.0f : (v))

#endif
#endif
