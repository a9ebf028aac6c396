/* olmoe: an RMS norm over all heads of q and of k at once, before RoPE (NEOX); the weights of the chosen experts keep the sum that the
 * router gave them. architectures.md 4.9. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  return gr_block_layer(b, x, &(gr_layer_spec){ .attention.qk_norm = GR_QK_NORM_WHOLE, .glu_kind = GR_GLU_SWIGLU });
}

extern const gr_arch gr_arch_olmoe;
const gr_arch gr_arch_olmoe = {
  .name = "olmoe", .rope_mode = GR_ROPE_NEOX, .own_head = true, .experts = GR_EXPERTS_REQUIRED, .gating = GR_GATE_SOFTMAX, .layer = layer
};
