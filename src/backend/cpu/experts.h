/* What the kernels of expert products are handed beyond product.h. */
#ifndef GR_CPU_EXPERTS_H
#define GR_CPU_EXPERTS_H
#include <stdbool.h>
#include <stdint.h>

enum {
  GR_CPU_PAIRS = 128, /* chunk of a contraction over pairs, as over tokens */
  GR_CPU_AHEAD = 16   /* addresses that are fetched ahead stand behind those of the pairs: repeats of the last one */
};

/* One chunk of the gradient of an expert's factor: a and b are rows that stand anywhere, one of each for a pair. */
typedef struct gr_cpu_outer {
  const float *a, *b;
  int64_t pairs;
  int64_t rows, cols;                                                           /* of the result: elements of a's rows and of b's */
  int64_t y_row;                                                                /* floats */
  int64_t a_at[GR_CPU_PAIRS + GR_CPU_AHEAD], b_at[GR_CPU_PAIRS + GR_CPU_AHEAD]; /* floats */
} gr_cpu_outer;

#endif
