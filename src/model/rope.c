/* RoPE tables, in double on the host (architectures.md 3.4): the same for every backend. */
#include <math.h>

#include "model/arch.h"

static const double pi = 3.14159265358979323846;

/* The dimension index at which a frequency turns `turns` times within the original context. */
static double yarn_bound(const gr_hparams *hp, double turns)
{
  return hp->rope_dims * log(hp->rope_original_context / (turns * 2 * pi)) / (2 * log(hp->rope_base));
}

void gr_model_rope(const gr_model *m, const int32_t *positions, size_t n, float *cosines, float *sines)
{
  const gr_hparams *hp = &m->hp;
  size_t half = (size_t)hp->rope_dims / 2;
  double magnitude = hp->rope_attn_factor, low = 0, high = 1;
  bool yarn = hp->yarn_ext_factor > 0;
  if (yarn) {
    low = fmax(0, floor(yarn_bound(hp, hp->yarn_beta_fast)));
    high = fmin(hp->rope_dims - 1, ceil(yarn_bound(hp, hp->yarn_beta_slow)));
    magnitude *= 1 + 0.1 * log(hp->rope_factor);
  }
  for (size_t i = 0; i < half; i++) {
    double frequency = pow(hp->rope_base, -2.0 * (double)i / hp->rope_dims);
    if (m->rope_factors) frequency /= (double)m->rope_factors[i];
    double ramp = 1 - fmin(1, fmax(0, ((double)i - low) / fmax(0.001, high - low)));
    double kept = yarn ? hp->yarn_ext_factor * ramp : 0; /* share of the angle that is not scaled */
    double step = frequency / hp->rope_factor * (1 - kept) + frequency * kept;
    for (size_t t = 0; t < n; t++) {
      double angle = positions[t] * step;
      cosines[t * half + i] = (float)(cos(angle) * magnitude);
      sines[t * half + i] = (float)(sin(angle) * magnitude);
    }
  }
}
