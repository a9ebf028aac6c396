/* Products of few rows of x, as generation has them: what they cost is reading W. Every weight is read once, decoded in registers and
 * multiplied there; a tile, written and read again, would cost more than all the multiplying. The bits are those of tiles: each element
 * is a chain of multiply-adds in ascending order of the contraction, a lane for each row of W. */
#include "backend/cpu/kernels/quads.h"
#include "backend/cpu/kernels/tiles.h"

enum {
  GROUPS = 2, /* of GR_LANES rows of W side by side: chains that hide each other's latency */
  WIDE = GROUPS * GR_LANES,
  PIECE = 256, /* elements of a row decoded at a time where a type has no kernel of its own */
  PITCH = PIECE + 16,
  LINE = 64,
  SECOND = 4096 /* bytes of a second term's next rows that are asked for, at most */
};

/* WIDE rows of W through up to GR_CPU_THIN rows of x. */
typedef struct thin {
  const uint8_t *w;
  int64_t stride; /* bytes between rows of W */
  const float *x[GR_CPU_THIN];
  const float *packed;  /* in pairs of bf16: rows of x side by side, as the engine packs them */
  int64_t n;            /* elements of the contraction */
  const uint8_t *ahead; /* what will be read next: asked for while this is computed */
  float *sum;           /* [rows][WIDE] */
} thin;

typedef void thin_fn(const thin *t);

/* A whole number of lines, read in order while the streams of the rows at hand are walked side by side. */
GR_INLINE const uint8_t *ask(const uint8_t *ahead, int64_t bytes)
{
  for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(ahead + i, 0, 2);
  return ahead + bytes;
}

GR_INLINE void clear(int rows, vf sum[GR_CPU_THIN][GROUPS])
{
  GR_UNROLL
  for (int r = 0; r < rows; r++) {
    GR_UNROLL
    for (int g = 0; g < GROUPS; g++) sum[r][g] = (vf){ 0 };
  }
}

/* quads: lanes stand as quads.h has them. */
GR_INLINE void keep(bool quads, int rows, const thin *t, vf sum[GR_CPU_THIN][GROUPS])
{
#if GR_QUADS
  GR_UNROLL
  for (int r = 0; quads && r < rows; r++) {
    GR_UNROLL
    for (int g = 0; g < GROUPS; g++) sum[r][g] = quad_rows(sum[r][g]);
  }
#endif
  (void)quads;
  GR_UNROLL
  for (int r = 0; r < rows; r++) {
    GR_UNROLL
    for (int g = 0; g < GROUPS; g++) vstore(t->sum + r * WIDE + g * GR_LANES, sum[r][g]);
  }
}

/* Elements i and i + 1 of the contraction, i even; both false: i is the last, and odd 0. bf16: as pairs, where the set has them. */
GR_INLINE void multiply(bool bf16, bool both, int rows, int g, const thin *t, int64_t i, vf even, vf odd, vf sum[GR_CPU_THIN][GROUPS])
{
#if GR_WORDS
  if (bf16) {
    const vf w = GR_MUTANT(bf16_thin_swapped) ? vpair(odd, even) : vpair(even, odd);
    GR_UNROLL
    for (int r = 0; r < rows; r++) sum[r][g] = vdot_words(vword(t->packed + i / 2 * rows + r), w, sum[r][g]);
    return;
  }
#endif
  (void)bf16;
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r][g] = madd(vset(t->x[r][i]), even, sum[r][g]);
  if (!both) return;
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r][g] = madd(vset(t->x[r][i + 1]), odd, sum[r][g]);
}

#if GR_QUADS
/* Elements i to i + 3, in words. */
GR_INLINE void multiply_quad(int rows, int g, const thin *t, int64_t i, vi codes, gr_quad_scales scales, vf sum[GR_CPU_THIN][GROUPS])
{
  GR_UNROLL
  for (int pair = 0; pair < 2; pair++) {
    const vf w = quad_words(codes, &scales, GR_MUTANT(bf16_thin_swapped) ? 1 - pair : pair);
    GR_UNROLL
    for (int r = 0; r < rows; r++) sum[r][g] = vdot_words(vword(t->packed + (i / 2 + pair) * rows + r), w, sum[r][g]);
  }
}

#define QUADS_1(type, elems)                                                                                                               \
  if (bf16) {                                                                                                                              \
    GR_UNROLL                                                                                                                              \
    for (int e = 0; e < (elems); e += 4) {                                                                                                 \
      GR_UNROLL                                                                                                                            \
      for (int g = 0; g < GROUPS; g++) multiply_quad(rows, g, t, at + e, type##_codes(&p[g], e / 4), type##_scales(&p[g], e), sum);        \
    }                                                                                                                                      \
  } else
#else
#define QUADS_1(type, elems)
#endif

#define QUADS_0(type, elems)

/* All elements of a part, 32 at a time, of every group; quads: the type has what quads.h wants. */
#define PART(type, elems, from, quads)                                                                                                     \
  const int64_t at = (from);                                                                                                               \
  QUADS_##quads(type, elems) GR_UNROLL for (int q = 0; q < (elems); q += 32)                                                               \
  {                                                                                                                                        \
    GR_UNROLL                                                                                                                              \
    for (int e = 0; e < 32; e += 2) {                                                                                                      \
      GR_UNROLL                                                                                                                            \
      for (int g = 0; g < GROUPS; g++)                                                                                                     \
        multiply(bf16, true, rows, g, t, at + q + e, type##_at(&p[g], q + e), type##_at(&p[g], q + e + 1), sum);                           \
    }                                                                                                                                      \
  }

#define THIN(type, part, quads)                                                                                                            \
  GR_INLINE void type##_thin(bool bf16, int rows, const thin *t)                                                                           \
  {                                                                                                                                        \
    vf sum[GR_CPU_THIN][GROUPS];                                                                                                           \
    const uint8_t *w = t->w, *ahead = t->ahead;                                                                                            \
    clear(rows, sum);                                                                                                                      \
    for (int64_t i = 0; i < t->n; i += GR_QK, w += sizeof(gr_block_##type)) {                                                              \
      part p[GROUPS];                                                                                                                      \
      ahead = ask(ahead, WIDE * sizeof(gr_block_##type));                                                                                  \
      GR_UNROLL                                                                                                                            \
      for (int g = 0; g < GROUPS; g++) type##_load(&p[g], w + g * GR_LANES * t->stride, t->stride);                                        \
      PART(type, GR_QK, i, quads)                                                                                                          \
    }                                                                                                                                      \
    keep(bf16 && (quads), rows, t, sum);                                                                                                   \
  }

#define THIN_K(type, head, part, part_elems, quads)                                                                                        \
  GR_INLINE void type##_thin(bool bf16, int rows, const thin *t)                                                                           \
  {                                                                                                                                        \
    vf sum[GR_CPU_THIN][GROUPS];                                                                                                           \
    const uint8_t *w = t->w, *ahead = t->ahead;                                                                                            \
    clear(rows, sum);                                                                                                                      \
    for (int64_t i = 0; i < t->n; i += GR_QK_K, w += sizeof(gr_block_##type)) {                                                            \
      head h[GROUPS];                                                                                                                      \
      for (int g = 0; g < GROUPS; g++) type##_open(&h[g], w + g * GR_LANES * t->stride, t->stride);                                        \
      for (int k = 0; k < GR_QK_K / (part_elems); k++) {                                                                                   \
        part p[GROUPS];                                                                                                                    \
        ahead = ask(ahead, (int64_t)(WIDE * sizeof(gr_block_##type)) / (GR_QK_K / (part_elems)));                                          \
        GR_UNROLL                                                                                                                          \
        for (int g = 0; g < GROUPS; g++) type##_load(&p[g], &h[g], w + g * GR_LANES * t->stride, t->stride, k);                            \
        PART(type, part_elems, i + k * (part_elems), quads)                                                                                \
      }                                                                                                                                    \
    }                                                                                                                                      \
    keep(bf16 && (quads), rows, t, sum);                                                                                                   \
  }

/* The generic set of arm64 takes super-blocks row by row, as below: gcc spends minutes on these kernels without NEON's own loads and
 * conversions, and no arm64 is without NEON. */
#if defined(__aarch64__) && !defined(GR_NEON)
#define SUPER_BLOCKS 0
#else
#define SUPER_BLOCKS 1
#endif

THIN(q4_0, gr_part_32, 1)
THIN(q4_1, gr_part_32, 1)
THIN(q8_0, gr_part_32, 1)
THIN(q5_0, gr_part_32, 1)
THIN(q5_1, gr_part_32, 1)
THIN(iq4_nl, gr_part_named, 0)
THIN(mxfp4, gr_part_named, 0)
#if SUPER_BLOCKS
THIN_K(q2_k, gr_head_q2, gr_part_q2, GR_Q2_K_PART, 1)
THIN_K(q3_k, gr_head_q3, gr_part_q3, GR_Q3_K_PART, 1)
THIN_K(q4_k, gr_head_k, gr_part_k, GR_Q4_K_PART, 1)
THIN_K(q5_k, gr_head_k, gr_part_k, GR_Q5_K_PART, 1)
THIN_K(q6_k, gr_head_q6, gr_part_q6, GR_Q6_K_PART, 1)
THIN_K(iq4_xs, gr_head_iq4, gr_part_iq4, GR_IQ4_XS_PART, 0)
#endif

/* ---- every other type: rows of floats, transposed in registers ---- */

/* GR_LANES rows of n floats, elements from `at` of the contraction; goes on with the sums of group g. */
GR_INLINE void square(bool bf16, int rows, const thin *t, int g, const float *const src[GR_LANES], int64_t at, int64_t n)
{
  vf sum[GR_CPU_THIN][GROUPS];
  float *kept = t->sum + g * GR_LANES;
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r][0] = vload(kept + r * WIDE);
  int64_t i = 0;
  for (; i + GR_LANES <= n; i += GR_LANES) {
    vf v[GR_LANES];
    GR_UNROLL
    for (int r = 0; r < GR_LANES; r++) v[r] = vload(src[r] + i);
    vtranspose(v);
    GR_UNROLL
    for (int e = 0; e < GR_LANES; e += 2) multiply(bf16, true, rows, 0, t, at + i + e, v[e], v[e + 1], sum);
  }
  if (i < n) {
    vf v[GR_LANES];
    for (int r = 0; r < GR_LANES; r++) v[r] = vload_part(src[r] + i, n - i);
    vtranspose(v);
    int e = 0;
    for (; e + 1 < n - i; e += 2) multiply(bf16, true, rows, 0, t, at + i + e, v[e], v[e + 1], sum);
    if (e < n - i) multiply(bf16, false, rows, 0, t, at + i + e, v[e], (vf){ 0 }, sum);
  }
  GR_UNROLL
  for (int r = 0; r < rows; r++) vstore(kept + r * WIDE, sum[r][0]);
}

typedef void square_fn(const thin *t, int g, const float *const src[GR_LANES], int64_t at, int64_t n);

/* ---- for each number of rows, in floats and pairs of bf16 ---- */

#if SUPER_BLOCKS
#define EACH_SUPER(R, variant, bf16)                                                                                                       \
  static void q2_k_##variant##_##R(const thin *t) { q2_k_thin(bf16, R, t); }                                                               \
  static void q3_k_##variant##_##R(const thin *t) { q3_k_thin(bf16, R, t); }                                                               \
  static void q4_k_##variant##_##R(const thin *t) { q4_k_thin(bf16, R, t); }                                                               \
  static void q5_k_##variant##_##R(const thin *t) { q5_k_thin(bf16, R, t); }                                                               \
  static void q6_k_##variant##_##R(const thin *t) { q6_k_thin(bf16, R, t); }                                                               \
  static void iq4_xs_##variant##_##R(const thin *t) { iq4_xs_thin(bf16, R, t); }
#else
#define EACH_SUPER(R, variant, bf16)
#endif
#define EACH(R, variant, bf16)                                                                                                             \
  static void q4_0_##variant##_##R(const thin *t) { q4_0_thin(bf16, R, t); }                                                               \
  static void q4_1_##variant##_##R(const thin *t) { q4_1_thin(bf16, R, t); }                                                               \
  static void q8_0_##variant##_##R(const thin *t) { q8_0_thin(bf16, R, t); }                                                               \
  static void q5_0_##variant##_##R(const thin *t) { q5_0_thin(bf16, R, t); }                                                               \
  static void q5_1_##variant##_##R(const thin *t) { q5_1_thin(bf16, R, t); }                                                               \
  static void iq4_nl_##variant##_##R(const thin *t) { iq4_nl_thin(bf16, R, t); }                                                           \
  static void mxfp4_##variant##_##R(const thin *t) { mxfp4_thin(bf16, R, t); }                                                             \
  EACH_SUPER(R, variant, bf16)                                                                                                             \
  static void square_##variant##_##R(const thin *t, int g, const float *const src[GR_LANES], int64_t at, int64_t n)                        \
  {                                                                                                                                        \
    square(bf16, R, t, g, src, at, n);                                                                                                     \
  }
#define ROWS(variant, bf16)                                                                                                                \
  EACH(1, variant, bf16)                                                                                                                   \
  EACH(2, variant, bf16) EACH(3, variant, bf16) EACH(4, variant, bf16)
ROWS(floats, false)
#if GR_WORDS
ROWS(bf16, true)
#endif
_Static_assert(GR_CPU_THIN == 4, "one kernel for each number of rows");

#define ALL(name)                                                                                                                          \
  {                                                                                                                                        \
    name##_1, name##_2, name##_3, name##_4                                                                                                 \
  }
#if SUPER_BLOCKS
#define SUPER_TYPES(variant)                                                                                                               \
  , [GR_Q2_K] = ALL(q2_k_##variant), [GR_Q3_K] = ALL(q3_k_##variant), [GR_Q4_K] = ALL(q4_k_##variant), [GR_Q5_K] = ALL(q5_k_##variant),    \
    [GR_Q6_K] = ALL(q6_k_##variant), [GR_IQ4_XS] = ALL(iq4_xs_##variant)
#else
#define SUPER_TYPES(variant)
#endif
#define TYPES(variant)                                                                                                                     \
  {                                                                                                                                        \
    [GR_Q4_0] = ALL(q4_0_##variant), [GR_Q4_1] = ALL(q4_1_##variant), [GR_Q8_0] = ALL(q8_0_##variant), [GR_Q5_0] = ALL(q5_0_##variant),    \
    [GR_Q5_1] = ALL(q5_1_##variant), [GR_IQ4_NL] = ALL(iq4_nl_##variant), [GR_MXFP4] = ALL(mxfp4_##variant) SUPER_TYPES(variant)           \
  }
/* [in pairs][type][rows - 1] */
static thin_fn *const kernels[1 + GR_WORDS][GR_DTYPE_COUNT][GR_CPU_THIN] = { TYPES(floats),
#if GR_WORDS
                                                                             TYPES(bf16)
#endif
};
static square_fn *const squares[1 + GR_WORDS][GR_CPU_THIN] = { ALL(square_floats),
#if GR_WORDS
                                                               ALL(square_bf16)
#endif
};

/* The first `live` rows; what comes of the others is not kept. */
static void by_floats(const gr_cpu_product *p, const gr_cpu_term *t, const thin *a, int64_t live)
{
  float buffer[GR_LANES][PITCH];
  const gr_dtype_info *d = gr_dtype_get(t->dtype);
  const bool plain = t->dtype == GR_F32;
  memset(a->sum, 0, (size_t)(p->rows * WIDE) * sizeof *a->sum);
  for (int g = 0; g * GR_LANES < live; g++)
    for (int64_t i = 0; i < a->n; i += PIECE) {
      int64_t n = gr_min(a->n - i, PIECE);
      const float *src[GR_LANES];
      for (int64_t r = 0; r < GR_LANES; r++) {
        const uint8_t *row = a->w + gr_min(g * GR_LANES + r, live - 1) * a->stride + i / d->block_elems * d->block_bytes;
        src[r] = plain ? (const float *)(const void *)row : buffer[r];
        if (!plain) p->isa->decode[t->dtype](row, buffer[r], n);
      }
      squares[t->words][p->rows - 1](a, g, src, i, n);
    }
}

/* ---- products ---- */

static void add_to(const gr_cpu_product *p, int64_t col, int64_t live, const float *sum, bool begun)
{
  for (int64_t r = 0; r < p->rows; r++, sum += WIDE) {
    float *y = p->y + (p->y_at ? p->y_at[r] : r * p->y_row) + col;
    const float *base = begun ? y : p->base ? p->base + r * p->base_row + col : NULL;
    int64_t i = 0;
    for (; i + GR_LANES <= live; i += GR_LANES) vstore(y + i, base ? vload(base + i) + vload(sum + i) : vload(sum + i));
    for (; i < live; i++) y[i] = base ? base[i] + sum[i] : sum[i];
  }
}

static const float *row_of(const gr_cpu_term *t, int64_t r)
{
  return (const float *)(const void *)(t->x + (t->x_at ? t->x_at[r] : r * t->x_row));
}

/* Columns [col, col + live), live being WIDE or, where no weight has a kernel of its own, less. */
static void columns(const gr_cpu_product *p, int64_t col, int64_t live)
{
  float sum[GR_CPU_THIN * WIDE];
  for (const gr_cpu_term *t = p->term; t < p->term + p->terms; t++) {
    const gr_dtype_info *d = gr_dtype_get(t->dtype);
    const uint8_t *w = (const uint8_t *)t->w + col * t->w_row;
    int64_t k = 0;
    do { /* a contraction over nothing still gives base, or zeros */
      int64_t deep = gr_min(t->chunk, t->depth - k), at = k / d->block_elems * d->block_bytes;
      thin a = { .w = w + at, .stride = t->w_row, .n = deep, .ahead = w + WIDE * (t->w_row + at), .sum = sum };
      for (int64_t r = 0; r < p->rows; r++) a.x[r] = row_of(t, GR_MUTANT(matmul_thin_row_0) ? 0 : r) + k;
      if (k == 0 && (t > p->term || WIDE * t->w_row <= SECOND))
        ask(a.ahead, gr_min(WIDE * t->w_row, SECOND)); /* no stream that a processor would follow */
      if (t->words) a.packed = gr_packed_at(p, t, 0, k);
      if (kernels[t->words][t->dtype][0]) kernels[t->words][t->dtype][p->rows - 1](&a);
      else by_floats(p, t, &a, live);
      add_to(p, col, live, sum, k > 0 || t > p->term);
      k += deep;
    } while (k < t->depth);
  }
}

/* What a job reads first comes from memory, and part of x from another core: all of it is asked for at once. */
static void ask_first(const gr_cpu_product *p, int64_t col, int64_t live)
{
  for (const gr_cpu_term *t = p->term; t < p->term + p->terms; t++) {
    const uint8_t *w = (const uint8_t *)t->w + col * t->w_row;
    for (int64_t r = 0; r < p->rows && !t->words; r++) ask((const uint8_t *)row_of(t, r), t->depth * (int64_t)sizeof(float));
    for (int64_t i = 0; i < t->w_row; i += LINE)
      for (int64_t r = 0; r < live; r++) __builtin_prefetch(w + r * t->w_row + i, 0, 2);
  }
}

int64_t GR_ISA_FN(thin)(const gr_cpu_product *p, int64_t col, int64_t end)
{
  bool floats = true;
  for (const gr_cpu_term *t = p->term; t < p->term + p->terms; t++) floats = floats && !kernels[t->words][t->dtype][0];
  const int64_t least = floats ? 1 : WIDE;
  if (end - col >= least) ask_first(p, col, gr_min(end - col, WIDE));
  for (int64_t live; end - col >= least; col += live) columns(p, col, live = gr_min(end - col, WIDE));
  return col;
}
