/* The gated units: value and derivatives, as src/ops/glu.h defines them. */
#ifndef GK_GLU_H
#define GK_GLU_H
#include "kernels/gk/index.h"

/* y = act(g) * u and its derivatives. */
struct gk_glu_value {
  float y, dg, du;
};

GK_FN float gk_sigmoid(float x) { return 1.0f / (1.0f + gk_exp(-x)); }

GK_FN gk_glu_value gk_glu_swi(float g, float u)
{
  const float s = gk_sigmoid(g), act = g * s;
  const gk_glu_value v = { act * u, u * s * (1.0f + g * (1.0f - s)), act };
  return v;
}

/* gelu(g) = g (1 + tanh(c (g + k g^3))) / 2, c = sqrt(2 / pi). Where tanh has saturated its slope is 0, whatever g^2 overflows to. */
GK_FN gk_glu_value gk_glu_ge(float g, float u)
{
  const float c = 0.797884560802865356f, k = 0.044715f;
  const float t = gk_tanh(c * (g + k * g * g * g)), flat = 1.0f - t * t;
  const float bend = flat == 0.0f ? 0.0f : 0.5f * g * flat * c * (1.0f + 3.0f * k * g * g);
  const float act = 0.5f * g * (1.0f + t);
  const gk_glu_value v = { act * u, u * (0.5f * (1.0f + t) + bend), act };
  return v;
}

/* Comparisons are written so that a NaN stays one. */
GK_FN gk_glu_value gk_glu_oai(float g, float u)
{
  const float alpha = 1.702f, limit = 7.0f;
  const bool g_cut = g > limit, u_cut = u > limit || u < -limit;
  const float gc = g_cut ? limit : g, uc = u > limit ? limit : u < -limit ? -limit : u;
  const float s = gk_sigmoid(alpha * gc), act = gc * s;
  const gk_glu_value v = { act * (uc + 1.0f), g_cut ? 0.0f : (uc + 1.0f) * s * (1.0f + alpha * gc * (1.0f - s)), u_cut ? 0.0f : act };
  return v;
}

GK_FN gk_glu_value gk_glu(int32_t kind, float g, float u)
{
  return kind == GK_GLU_GEGLU ? gk_glu_ge(g, u) : kind == GK_GLU_SWIGLU_OAI ? gk_glu_oai(g, u) : gk_glu_swi(g, u);
}

#endif
