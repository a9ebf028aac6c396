/* What attention and attention_back read keys and values with: packed blocks, and rows of them (attention.h). */
#ifndef GR_CPU_KEYS_H
#define GR_CPU_KEYS_H
#include "backend/cpu/kernels/micro.h"

static inline const float *row_at(const gr_array *a, int64_t head, int64_t token)
{
  return (const float *)gr_array_at(a, 0, head, token, 0);
}

/* How a packed left operand is read. */
static inline int packed_by(bool words)
{
#if GR_WORDS
  if (words) return GR_A_WORDS;
#endif
  (void)words;
  return GR_A_PACKED;
}

/* GR_ROWS keys of a key head, step by step of the contraction. */
static inline float *key_block(const gr_cpu_attention *a, float *blocks, int64_t steps, int64_t head, int64_t block)
{
  return blocks + (head * a->blocks + block) * (GR_ROWS * steps + GR_CPU_SPARE);
}

/* The rows from key `from` on of the segment that begins at key `start`; words: an even number of keys after it. */
static inline const float *key_row(const gr_cpu_attention *a, const gr_cpu_heads *rows, int64_t head, int64_t start, int64_t from)
{
  return rows->data + head * rows->head + (start + gr_cpu_attention_words(a, from - start)) * rows->row;
}

/* c[key, :] = packed key . qt for keys [from, to), of floats or words; as many columns as `vectors` hold. */
static inline void times_keys(const gr_cpu_attention *a, float *blocks, int64_t steps, bool words, int64_t head, int vectors,
                              const float *qt, int64_t qt_row, int64_t from, int64_t to, float *c, int64_t c_row)
{
  const int layout = packed_by(words);
  for (int64_t j = from, rows; j < to; j += rows, c += rows * c_row) {
    int64_t block = j / GR_ROWS, first = block * GR_ROWS, held = gr_min(GR_ROWS, a->k.ne[2] - first);
    rows = gr_min(first + held, to) - j;
    GR_ISA_FN(micro)
    [layout][rows - 1][vectors - 1](key_block(a, blocks, steps, head, block) + (j - first), held, qt, qt_row, steps, c, c_row, NULL, 0,
                                    NULL);
  }
}

#endif
