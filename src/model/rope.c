/* What graphs take of positions: RoPE tables and the like, in double on the host (architectures.md 3.4): the same for every backend. */
#include <math.h>

#include "model/arch.h"

static const double pi = 3.14159265358979323846;

/* The dimension index at which a frequency turns `turns` times within the original context. */
static double yarn_bound(const gr_hparams *hp, double turns)
{
  return hp->rope_dims * log(hp->rope_original_context / (turns * 2 * pi)) / (2 * log(hp->rope_base));
}

struct table {
  double base, factor, magnitude, low, high, kept;
};

static struct table table_of(const gr_hparams *hp, int which)
{
  struct table t = { hp->rope_base, hp->rope_factor, hp->rope_attn_factor, 0, 1, 0 };
  if (which == GR_ROPE_LOCAL) return (struct table){ hp->rope_base_local, 1, 1, 0, 1, 0 };
  if (hp->yarn_ext_factor > 0) {
    t.low = fmax(0, floor(yarn_bound(hp, hp->yarn_beta_fast)));
    t.high = fmin(hp->rope_dims - 1, ceil(yarn_bound(hp, hp->yarn_beta_slow)));
    t.magnitude *= 1 + 0.1 * log(hp->rope_factor);
    t.kept = hp->yarn_ext_factor;
  }
  return t;
}

static void fill_table(const gr_model *m, int which, const int32_t *positions, size_t n, float *cosines, float *sines)
{
  const gr_hparams *hp = &m->hp;
  const struct table tab = table_of(hp, which);
  size_t half = (size_t)hp->rope_dims / 2;
  for (size_t i = 0; i < half; i++) {
    double frequency = pow(tab.base, -2.0 * (double)i / hp->rope_dims);
    if (m->rope_factors) frequency /= (double)m->rope_factors[i];
    double ramp = 1 - fmin(1, fmax(0, ((double)i - tab.low) / fmax(0.001, tab.high - tab.low)));
    double kept = tab.kept * ramp; /* share of the angle that is not scaled */
    double step = frequency / tab.factor * (1 - kept) + frequency * kept;
    for (size_t t = 0; t < n; t++) {
      double angle = positions[t] * step;
      cosines[t * half + i] = (float)(cos(angle) * tab.magnitude);
      sines[t * half + i] = (float)(sin(angle) * tab.magnitude);
    }
  }
}

/* One table at a time, and the scale of q after it. */
size_t gr_model_position_floats(const gr_model *m) { return (size_t)m->hp.rope_dims; }

gr_status gr_model_write_positions(const gr_model *m, const gr_model_graph *mg, gr_plan *p, const int32_t *positions, size_t n, float *room,
                                   gr_error *e)
{
  const gr_hparams *hp = &m->hp;
  size_t half = (size_t)hp->rope_dims / 2, bytes = half * n * sizeof(float);
  GR_TRY(gr_plan_write(p, mg->positions, positions, n * sizeof *positions, e));
  for (int i = 0; i < GR_ROPE_TABLES; i++) {
    if (!mg->cosines[i]) continue;
    fill_table(m, i, positions, n, room, room + half * n);
    GR_TRY(gr_plan_write(p, mg->cosines[i], room, bytes, e));
    GR_TRY(gr_plan_write(p, mg->sines[i], room + half * n, bytes, e));
  }
  if (!mg->query_scale) return GR_OK;
  for (size_t t = 0; t < n; t++) room[t] = (float)(1 + hp->query_growth * log(1 + floor((double)positions[t] / hp->rope_original_context)));
  return gr_plan_write(p, mg->query_scale, room, n * sizeof *room, e);
}
