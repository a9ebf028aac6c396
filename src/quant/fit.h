/* Private to the room: the search for the scale and offset under which a run of weights rounds with the least squared error.
 *
 * A (sub-)block is y = scale * code + offset with whole codes from a range. For given scale and offset the best code of an element is the
 * nearest; for given codes the best scale and offset are a least-squares solution. Alternating the two only descends into the nearest of
 * many small valleys, so the search starts from several points at once: eight are the lanes of one loop over the elements. A lane sums its
 * elements in order, so that results are the same on every machine. */
#ifndef GR_QUANT_FIT_H
#define GR_QUANT_FIT_H
#include <stdint.h>

enum { GR_FIT_LANES = 8 };

typedef struct gr_codes {
  int lo, hi;
} gr_codes;

/* What an offset may be: absent, anything, or of one sign. */
typedef enum gr_offset { GR_OFFSET_NONE, GR_OFFSET_ANY, GR_OFFSET_NEGATIVE, GR_OFFSET_POSITIVE } gr_offset;

typedef struct gr_fit {
  float scale, offset;
  float error; /* sum of (x - y)^2 */
} gr_fit;

typedef struct gr_fit_lanes {
  float scale[GR_FIT_LANES], offset[GR_FIT_LANES];                       /* in */
  float error[GR_FIT_LANES];                                             /* out, with y computed as a decoder does */
  float sum_q[GR_FIT_LANES], sum_qq[GR_FIT_LANES], sum_xq[GR_FIT_LANES]; /* out: moments of the nearest codes q */
} gr_fit_lanes;

/* Copies x[n], made safe for a search: NaN becomes 0, and magnitudes stop at 2^30, more than any block can hold.
 * Returns the largest magnitude. */
float gr_fit_load(const float *x, int n, float *clean);

/* Fills the out fields of all lanes; gr_fit_errors leaves out the moments. */
void gr_fit_measure(const float *x, int n, gr_codes codes, gr_fit_lanes *lanes);
void gr_fit_errors(const float *x, int n, gr_codes codes, gr_fit_lanes *lanes);

/* Index of the lane with the least error; -1 when none is below `than`. */
int gr_fit_best_lane(const gr_fit_lanes *lanes, float than);

/* code[n] = the nearest codes. */
void gr_fit_round(const float *x, int n, gr_codes codes, float scale, float offset, int8_t *code);

/* The best real-valued scale and offset found. The scale is >= 0 if there is an offset. */
gr_fit gr_fit_search(const float *x, int n, gr_codes codes, gr_offset kind);

/* The finite half nearest to v, as bits; zero is positive. */
uint16_t gr_fit_half(double v);

/* The half `steps` representable magnitudes away, within the finite ones of its sign. */
uint16_t gr_half_step(uint16_t half, int steps);

/* A whole block of a format whose scale and offset are halves: searches, rounds d and m (0 without offset) to the best halves, and gives
 * the codes. Blocks of zeros need no search: the result is all zero. */
void gr_fit_halves(const float *x, int n, gr_codes codes, gr_offset kind, uint16_t *d, uint16_t *m, int8_t *code);

#endif
