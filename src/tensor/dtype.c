#include "tensor/dtype.h"

#include <strings.h>

static const gr_dtype_info infos[GR_DTYPE_COUNT] = {
#define GR_DTYPE(id, name, ggml, elems, bytes, kind) [GR_##id] = { name, ggml, elems, bytes, GR_KIND_##kind },
#include "tensor/dtypes.def"
#undef GR_DTYPE
};

const gr_dtype_info *gr_dtype_get(gr_dtype t) { return &infos[t]; }

bool gr_dtype_from_ggml(uint32_t ggml_id, gr_dtype *out)
{
  for (int t = 0; t < GR_DTYPE_COUNT; t++)
    if (infos[t].ggml_id >= 0 && (uint32_t)infos[t].ggml_id == ggml_id) {
      *out = (gr_dtype)t;
      return true;
    }
  return false;
}

bool gr_dtype_from_name(const char *name, gr_dtype *out)
{
  for (int t = 0; t < GR_DTYPE_COUNT; t++)
    if (strcasecmp(infos[t].name, name) == 0) {
      *out = (gr_dtype)t;
      return true;
    }
  return false;
}

const char *gr_ggml_type_name(uint32_t ggml_id)
{
  static const char *const others[] = {
    [9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [21] = "IQ3_S",
    [22] = "IQ2_S", [29] = "IQ1_M", [34] = "TQ1_0",   [35] = "TQ2_0",  [40] = "NVFP4",   [41] = "Q1_0",  [42] = "Q2_0",
  };
  gr_dtype t;
  if (gr_dtype_from_ggml(ggml_id, &t)) return infos[t].name;
  return ggml_id < sizeof others / sizeof *others ? others[ggml_id] : NULL;
}
