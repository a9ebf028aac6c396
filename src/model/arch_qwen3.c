/* qwen3: NEOX RoPE after an RMS norm of each head of q and k; the head size is a key of its own. architectures.md 4.4. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  return gr_block_layer(b, x, &(gr_layer_spec){ .attention.qk_norm = GR_QK_NORM_HEAD, .glu_kind = GR_GLU_SWIGLU });
}

extern const gr_arch gr_arch_qwen3;
const gr_arch gr_arch_qwen3 = { .name = "qwen3", .rope_mode = GR_ROPE_NEOX, .layer = layer };
