/* phi3: q, k and v in one tensor, gate and up in another; RoPE (NEOX) over a part of each head. As in llama.cpp no layer slides.
 * The long variants, whose frequency factors depend on the context asked for, are refused. architectures.md 4.7. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  return gr_block_layer(b, x, &(gr_layer_spec){ .glu_kind = GR_GLU_SWIGLU, .fused_ffn = true });
}

extern const gr_arch gr_arch_phi3;
const gr_arch gr_arch_phi3 = { .name = "phi3", .rope_mode = GR_ROPE_NEOX, .layer = layer };
