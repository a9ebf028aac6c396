#include "backend/cpu/isa.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if GR_CPU_X86
#include <cpuid.h>
#endif
#if GR_CPU_ARM && defined(__linux__)
#include <sys/auxv.h>
#endif

extern const gr_cpu_isa gr_cpu_isa_generic;

static bool runs_always(void) { return true; }

bool gr_cpu_pairs_gain(const char *maker) { return strcmp(maker, "AuthenticAMD") == 0; }

#if GR_CPU_X86
extern const gr_cpu_isa gr_cpu_isa_avx2, gr_cpu_isa_avx512, gr_cpu_isa_avx512_bf16;

/* What -march=x86-64-v3 and -v4 let the compiler use, as far as it can matter in floating-point kernels. */
static bool runs_avx2(void)
{
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool runs_avx512(void)
{
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool runs_avx512_bf16(void) { return runs_avx512() && __builtin_cpu_supports("avx512bf16"); }

static bool gains_avx512_bf16(void)
{
  unsigned most, name[3];
  char maker[sizeof name + 1] = "";
  if (__get_cpuid(0, &most, &name[0], &name[2], &name[1])) memcpy(maker, name, sizeof name);
  return gr_cpu_pairs_gain(maker);
}
#endif

#if GR_CPU_ARM
extern const gr_cpu_isa gr_cpu_isa_neon, gr_cpu_isa_neon_bf16; /* NEON is a part of every aarch64 */

/* What -march=armv8.2-a lets the compiler use besides is a part of every processor that has bf16. */
#if defined(__linux__)
static bool runs_neon_bf16(void) { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }
#elif defined(__APPLE__)
int sysctlbyname(const char *name, void *value, size_t *size, void *to, size_t to_size); /* its header is not one of POSIX */

static bool runs_neon_bf16(void)
{
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, NULL, 0) == 0 && has;
}
#else
static bool runs_neon_bf16(void) { return false; }
#endif
#endif

/* Best first: the first that runs, and that gains something there, is taken unless one is named. */
static const struct {
  const gr_cpu_isa *isa;
  bool (*runs)(void), (*gains)(void);
} sets[] = {
#if GR_CPU_X86
  { &gr_cpu_isa_avx512_bf16, runs_avx512_bf16, gains_avx512_bf16 },
  { &gr_cpu_isa_avx512, runs_avx512, runs_always },
  { &gr_cpu_isa_avx2, runs_avx2, runs_always },
#endif
#if GR_CPU_ARM
  { &gr_cpu_isa_neon_bf16, runs_neon_bf16, runs_always },
  { &gr_cpu_isa_neon, runs_always, runs_always },
#endif
  { &gr_cpu_isa_generic, runs_always, runs_always },
};

gr_status gr_cpu_isa_choose(const gr_cpu_isa **isa, gr_error *e)
{
  const char *wanted = getenv("GRAFT_CPU");
  if (wanted && !wanted[0]) wanted = NULL;
  char list[64] = "";
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    bool runs = sets[i].runs();
    if (runs && (wanted ? strcmp(wanted, sets[i].isa->name) == 0 : sets[i].gains())) {
      *isa = sets[i].isa;
      return GR_OK;
    }
    if (!runs && strcmp(wanted ? wanted : "", sets[i].isa->name) == 0)
      return gr_fail(e, GR_ERR_USAGE, "GRAFT_CPU=%s: this processor does not have these instructions", wanted);
    if (runs) strcat(strcat(list, list[0] ? ", " : ""), sets[i].isa->name);
  }
  return gr_fail(e, GR_ERR_USAGE, "GRAFT_CPU=%s: there is no such instruction set; this processor runs %s", wanted, list);
}
