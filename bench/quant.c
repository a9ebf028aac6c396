/* bench_quant: nanoseconds a weight of every decoder and encoder, on rows of 4,096 that stay in cache.
 *   bench_quant [TYPE]        one line a type: name, decode ns/weight, encode ns/weight */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "quant/quant.h"

enum { ROW = 4096, MAX_BYTES = ROW * 8 };

/* Of this process, so that neighbours on the machine disturb less. */
static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of five, each at least 20 ms. */
static double decode_ns(gr_decode_fn *decode, const void *x, float *y)
{
  double best = 1e30;
  for (int round = 0; round < 5; round++) {
    long calls = 0;
    double start = now(), t;
    do {
      for (int k = 0; k < 16; k++) decode(x, y, ROW);
      calls += 16;
    } while ((t = now() - start) < 0.02);
    if (t / (double)calls < best) best = t / (double)calls;
  }
  return best * 1e9 / ROW;
}

static double encode_ns(gr_encode_fn *encode, const float *x, void *y)
{
  double best = 1e30;
  for (int round = 0; round < 3; round++) {
    long calls = 0;
    double start = now(), t;
    do encode(x, y, ROW), calls++;
    while ((t = now() - start) < 0.02);
    if (t / (double)calls < best) best = t / (double)calls;
  }
  return best * 1e9 / ROW;
}

int main(int argc, char **argv)
{
  static float x[ROW], y[ROW];
  static unsigned char packed[MAX_BYTES];
  for (int i = 0; i < ROW; i++) x[i] = (float)(0.02 * gr_random_normal(1, 0, (uint64_t)i));
  printf("%-8s %10s %10s   ns/weight\n", "type", "decode", "encode");
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    gr_decode_fn *decode = gr_quant_decoder((gr_dtype)t);
    gr_encode_fn *encode = gr_quant_encoder((gr_dtype)t);
    const char *name = gr_dtype_name((gr_dtype)t);
    if (!decode || (argc > 1 && strcmp(argv[1], name) != 0)) continue;
    /* For a type without encoder any bits will do that spell no infinite and no denormal scale. */
    for (size_t i = 0; i < sizeof packed; i++) packed[i] = (unsigned char)((gr_random_u64(2, 0, i) & 0x3b) | 0x08);
    printf("%-8s", name);
    if (encode) encode(x, packed, ROW);
    printf(" %10.3f", decode_ns(decode, packed, y));
    if (encode) printf(" %10.3f\n", encode_ns(encode, x, packed));
    else printf(" %10s\n", "-");
  }
  return 0;
}
