/* The gated units, in double: the one place that holds their formulas (architectures.md 3.5 and 7.3), for glu and glu_back. */
#ifndef GR_OPS_GLU_H
#define GR_OPS_GLU_H
#include <math.h>

#include "base/mutant.h"
#include "ops/params.h"
#include "ops/reference.h"

enum { GR_GLU_KINDS = GR_GLU_SWIGLU_OAI + 1 };

/* y = act(g) * u, and its derivatives. */
typedef struct gr_glu_value {
  double y, dg, du;
} gr_glu_value;

static inline gr_glu_value gr_glu_reference(int kind, double g, double u)
{
  if (kind == GR_GLU_GEGLU) {
    /* sqrt(2/pi); (1 + tanh(z)) / 2 is sigmoid(2 z), which does not cancel where z is far below 0 */
    const double c = 0.79788456080286535588, k = 0.044715;
    double z = 2 * c * (g + k * g * g * g), p = gr_reference_sigmoid(z), rest = gr_reference_sigmoid(-z), act = g * p;
    return (gr_glu_value){ act * u, u * (p + 2 * c * g * p * rest * (1 + 3 * k * g * g)), act };
  }
  if (kind == GR_GLU_SWIGLU_OAI) {
    const double alpha = 1.702, limit = 7; /* comparisons are written so that a NaN stays one */
    double gc = g > limit ? limit : g, uc = u < -limit ? -limit : u > limit ? limit : u;
    double s = gr_reference_sigmoid(alpha * gc), act = gc * s;
    return (gr_glu_value){ act * (uc + 1), g > limit && !GR_MUTANT(rule_glu_no_limit) ? 0 : (uc + 1) * s * (1 + alpha * gc * (1 - s)),
                           u < -limit || u > limit ? 0 : act };
  }
  double s = gr_reference_sigmoid(g), act = g * s;
  return (gr_glu_value){ act * u, u * s * (1 + g * (1 - s)), act };
}

#endif
