/* llama: Llama 2 and 3, SmolLM, SmolLM2, Mistral 7B, Mixtral. The converter permutes the rows of q and k, so RoPE rotates neighbours
 * (NORMAL). Biases are optional on every linear. architectures.md 4.1. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x) { return gr_block_layer(b, x, &(gr_layer_spec){ .glu_kind = GR_GLU_SWIGLU }); }

extern const gr_arch gr_arch_llama;
const gr_arch gr_arch_llama = { .name = "llama",
                                .rope_mode = GR_ROPE_NORMAL,
                                .rope_whole_head = true,
                                .experts = GR_EXPERTS_OPTIONAL,
                                .gating = GR_GATE_SOFTMAX,
                                .renormalise = true,
                                .layer = layer };
