/* Sigmoid, the gated units, and their gradients; the formulas are those of ops/glu.h, arranged so that nothing cancels. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/vmath.h"
#include "base/mutant.h"

typedef struct unit {
  vf act, slope; /* act(gate) and its derivative */
} unit;

/* sigmoid(x) and sigmoid(x) (1 - sigmoid(x)), both from exp(-|x|), which never overflows. */
static inline vf sigmoid_slope(vf x, vf *slope)
{
  vf e = vexp((vf)((vi)x | INT32_MIN)), d = 1.0f / (1.0f + e);
  *slope = e * d * d;
  return vif_less(x, vset(0), e * d, d);
}

static inline unit silu(vf g, float alpha)
{
  vf slope, s = sigmoid_slope(g * alpha, &slope);
  return (unit){ g * s, s + g * alpha * slope };
}

/* (1 + tanh(u)) / 2 is sigmoid(2u); 2u = c (g + k g^3). */
static inline unit gelu(vf g)
{
  const float c = 1.59576912160573071f, k = 0.044715f;
  vf square = g * g, slope, s = sigmoid_slope(c * g * (1.0f + k * square), &slope);
  return (unit){ g * s, s + g * slope * c * (1.0f + 3.0f * k * square) };
}

static inline vf clamp_up(vf u) { return vmin(vset(7), vmax(vset(-7), u)); }

static inline vf forward(int kind, vf g, vf u)
{
  if (kind == GR_GLU_GEGLU) return gelu(g).act * u;
  if (kind == GR_GLU_SWIGLU_OAI) return silu(vmin(vset(7), g), 1.702f).act * (clamp_up(u) + 1.0f);
  return silu(g, 1.0f).act * u;
}

static inline void backward(int kind, vf g, vf u, vf dy, vf *dg, vf *du)
{
  if (GR_MUTANT(glu_back_ignores_grad)) dy = vset(1);
  if (kind == GR_GLU_SWIGLU_OAI) {
    unit a = silu(vmin(vset(7), g), 1.702f);
    *dg = vif_less(vset(GR_MUTANT(glu_back_no_limit) ? 1e30f : 7.0f), g, vset(0), dy * (clamp_up(u) + 1.0f) * a.slope);
    *du = vif_less(vset(7), u, vset(0), vif_less(u, vset(-7), vset(0), dy * a.act));
    return;
  }
  unit a = kind == GR_GLU_GEGLU ? gelu(g) : silu(g, 1.0f);
  *dg = dy * u * a.slope;
  *du = dy * a.act;
}

static inline __attribute__((always_inline)) void glu_rows(int kind, float *y, const float *gate, const float *up, int64_t n)
{
  int64_t i = 0;
  for (; i + GR_LANES <= n; i += GR_LANES) vstore(y + i, forward(kind, vload(gate + i), vload(up + i)));
  if (i < n) vstore_part(y + i, forward(kind, vload_part(gate + i, n - i), vload_part(up + i, n - i)), n - i);
}

void GR_ISA_FN(glu)(int kind, float *y, const float *gate, const float *up, int64_t n)
{
  if (kind == GR_GLU_GEGLU) glu_rows(GR_GLU_GEGLU, y, gate, up, n);
  else if (kind == GR_GLU_SWIGLU_OAI) glu_rows(GR_GLU_SWIGLU_OAI, y, gate, up, n);
  else glu_rows(GR_GLU_SWIGLU, y, gate, up, n);
}

static inline __attribute__((always_inline)) void glu_back_rows(int kind, float *dgate, float *dup, const float *gate, const float *up,
                                                                const float *dy, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf dg, du;
    if (live == GR_LANES) {
      backward(kind, vload(gate + i), vload(up + i), vload(dy + i), &dg, &du);
      vstore(dgate + i, dg);
      vstore(dup + i, du);
    } else {
      backward(kind, vload_part(gate + i, live), vload_part(up + i, live), vload_part(dy + i, live), &dg, &du);
      vstore_part(dgate + i, dg, live);
      vstore_part(dup + i, du, live);
    }
  }
}

void GR_ISA_FN(glu_back)(int kind, float *dgate, float *dup, const float *gate, const float *up, const float *dy, int64_t n)
{
  if (kind == GR_GLU_GEGLU) glu_back_rows(GR_GLU_GEGLU, dgate, dup, gate, up, dy, n);
  else if (kind == GR_GLU_SWIGLU_OAI) glu_back_rows(GR_GLU_SWIGLU_OAI, dgate, dup, gate, up, dy, n);
  else glu_back_rows(GR_GLU_SWIGLU, dgate, dup, gate, up, dy, n);
}

void GR_ISA_FN(sigmoid)(float *y, const float *x, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf slope;
    vstore_part(y + i, sigmoid_slope(vload_part(x + i, live), &slope), live);
  }
}

void GR_ISA_FN(sigmoid_back)(float *dx, const float *x, const float *dy, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf slope;
    (void)sigmoid_slope(vload_part(x + i, live), &slope);
    vstore_part(dx + i, vload_part(dy + i, live) * slope, live);
  }
}
