/* F32, F16, BF16 and F64 as formats: one element a block. Decoding is exact but for F64, which rounds to the nearest float. */
#include "quant/codecs.h"

void gr_f32_decode(const void *restrict x, float *restrict y, int64_t n) { memcpy(y, x, (size_t)n * sizeof *y); }

void gr_f32_encode(const float *x, void *y, int64_t n) { memcpy(y, x, (size_t)n * sizeof *x); }

void gr_f16_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const uint8_t *bytes = x;
  for (int64_t i = 0; i < n; i++) {
    uint16_t h;
    memcpy(&h, bytes + 2 * i, sizeof h);
    y[i] = gr_f16_to_f32(h);
  }
}

void gr_f16_encode(const float *x, void *y, int64_t n)
{
  uint8_t *bytes = y;
  for (int64_t i = 0; i < n; i++) gr_store_u16(bytes + 2 * i, gr_f32_to_f16(x[i]));
}

void gr_bf16_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const uint8_t *bytes = x;
  for (int64_t i = 0; i < n; i++) {
    uint16_t h;
    memcpy(&h, bytes + 2 * i, sizeof h);
    y[i] = gr_bf16_to_f32(h);
  }
}

void gr_bf16_encode(const float *x, void *y, int64_t n)
{
  uint8_t *bytes = y;
  for (int64_t i = 0; i < n; i++) gr_store_u16(bytes + 2 * i, gr_f32_to_bf16(x[i]));
}

void gr_f64_decode(const void *restrict x, float *restrict y, int64_t n)
{
  const uint8_t *bytes = x;
  for (int64_t i = 0; i < n; i++) {
    double v;
    memcpy(&v, bytes + 8 * i, sizeof v);
    y[i] = (float)v;
  }
}

void gr_f64_encode(const float *x, void *y, int64_t n)
{
  uint8_t *bytes = y;
  for (int64_t i = 0; i < n; i++) {
    double v = (double)x[i];
    memcpy(bytes + 8 * i, &v, sizeof v);
  }
}
