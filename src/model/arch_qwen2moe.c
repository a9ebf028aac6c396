/* qwen2moe: qwen2's attention; each layer has experts, whose weights keep the sum that the router gave them, and a shared expert behind a
 * gate of its own. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  return gr_block_layer(b, x, &(gr_layer_spec){ .attention.qkv_bias = GR_BIAS_REQUIRED, .glu_kind = GR_GLU_SWIGLU });
}

static void hparams(gr_reader *r)
{
  gr_hparams *hp = &r->model->hp;
  if (!hp->shared_ff) hp->shared_ff = hp->ff;
}

extern const gr_arch gr_arch_qwen2moe;
const gr_arch gr_arch_qwen2moe = { .name = "qwen2moe",
                                   .rope_mode = GR_ROPE_NEOX,
                                   .experts = GR_EXPERTS_REQUIRED,
                                   .gating = GR_GATE_SOFTMAX,
                                   .ff_of_all = true,
                                   .shared_gate = true,
                                   .hparams = hparams,
                                   .layer = layer };
