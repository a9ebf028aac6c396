/* Private to the room: prototypes of every codec, expanded from formats.def. */
#ifndef GR_QUANT_CODECS_H
#define GR_QUANT_CODECS_H
#include "quant/blocks.h"
#include "quant/quant.h"

#define GR_FORMAT_DECODE(dtype, prefix) gr_decode_fn gr_##prefix##_decode;
#define GR_FORMAT(dtype, prefix) GR_FORMAT_DECODE(dtype, prefix) gr_encode_fn gr_##prefix##_encode;
#include "quant/formats.def"
#undef GR_FORMAT
#undef GR_FORMAT_DECODE

#endif
