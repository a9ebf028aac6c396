/* qwen2: NEOX RoPE, rows of q and k as they are, biases on q, k and v. architectures.md 4.3. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  return gr_block_layer(b, x, &(gr_layer_spec){ .attention.qkv_bias = GR_BIAS_REQUIRED, .glu_kind = GR_GLU_SWIGLU });
}

extern const gr_arch gr_arch_qwen2;
const gr_arch gr_arch_qwen2 = { .name = "qwen2", .rope_mode = GR_ROPE_NEOX, .layer = layer };
