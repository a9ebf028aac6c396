#include "quant/quant.h"

#include "quant/codecs.h"

gr_decode_fn *gr_quant_decoder(gr_dtype t)
{
  static gr_decode_fn *const decoders[GR_DTYPE_COUNT] = {
#define GR_FORMAT(dtype, prefix) [GR_##dtype] = gr_##prefix##_decode,
#define GR_FORMAT_DECODE GR_FORMAT
#include "quant/formats.def"
#undef GR_FORMAT_DECODE
#undef GR_FORMAT
  };
  return (unsigned)t < GR_DTYPE_COUNT ? decoders[t] : NULL;
}

gr_encode_fn *gr_quant_encoder(gr_dtype t)
{
  static gr_encode_fn *const encoders[GR_DTYPE_COUNT] = {
#define GR_FORMAT(dtype, prefix) [GR_##dtype] = gr_##prefix##_encode,
#define GR_FORMAT_DECODE(dtype, prefix)
#include "quant/formats.def"
#undef GR_FORMAT_DECODE
#undef GR_FORMAT
  };
  return (unsigned)t < GR_DTYPE_COUNT ? encoders[t] : NULL;
}
