/* Private to the room: the search for a super-block of the K-quants.
 *
 * y = (d * scale[s]) * code - (dmin * min[s]) for the elements of sub-block s, with d and dmin halves and all else whole numbers. Each
 * sub-block is first fitted on its own; several d and dmin are then tried under which those fits are rounded; the best is refined by turns:
 * whole scales and minima around the present ones for each sub-block, then the least-squares d and dmin for all of them. */
#ifndef GR_QUANT_KSEARCH_H
#define GR_QUANT_KSEARCH_H
#include "quant/blocks.h"
#include "quant/fit.h"

enum { GR_K_SUBS_MAX = 16 };

typedef struct gr_k_shape {
  int subs, len; /* subs * len = 256 */
  gr_codes codes;
  gr_codes scales; /* the range of a sub-block's whole scale */
  int min_hi;      /* the largest minimum; 0: the format has none */
} gr_k_shape;

typedef struct gr_k_fit {
  uint16_t d, dmin;
  int16_t scale[GR_K_SUBS_MAX], min[GR_K_SUBS_MAX];
  int8_t code[GR_QK_K];
} gr_k_fit;

void gr_k_search(const float *x, const gr_k_shape *shape, gr_k_fit *fit);

#endif
