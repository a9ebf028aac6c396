/* gpt-oss: a learnt sink in every head's softmax, biases on every linear, experts chosen before their softmax, every other layer sliding.
 * The norm before the experts is named post_attention_norm. architectures.md 4.10. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  static const gr_layer_spec spec = { .attention = { .qkv_bias = GR_BIAS_REQUIRED, .out_bias = GR_BIAS_REQUIRED, .sinks = true },
                                      .ffn_norm = "post_attention_norm",
                                      .glu_kind = GR_GLU_SWIGLU_OAI,
                                      .expert_bias = GR_BIAS_REQUIRED };
  return gr_block_layer(b, x, &spec);
}

static void hparams(gr_reader *r) { gr_reader_window(r, GR_GGUF_REQUIRED, 2); }

extern const gr_arch gr_arch_gpt_oss;
const gr_arch gr_arch_gpt_oss = { .name = "gpt-oss",
                                  .rope_mode = GR_ROPE_NEOX,
                                  .own_head = true,
                                  .experts = GR_EXPERTS_REQUIRED,
                                  .gating = GR_GATE_SELECTED,
                                  .hparams = hparams,
                                  .layer = layer };
