/* qwen3moe: qwen3's attention, experts in every layer; the weights of the chosen ones are made to sum to 1. architectures.md 4.5. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  return gr_block_layer(b, x, &(gr_layer_spec){ .attention.qk_norm = GR_QK_NORM_HEAD, .glu_kind = GR_GLU_SWIGLU });
}

extern const gr_arch gr_arch_qwen3moe;
const gr_arch gr_arch_qwen3moe = { .name = "qwen3moe",
                                   .rope_mode = GR_ROPE_NEOX,
                                   .experts = GR_EXPERTS_REQUIRED,
                                   .gating = GR_GATE_SOFTMAX,
                                   .renormalise = true,
                                   .ff_of_all = true,
                                   .layer = layer };
