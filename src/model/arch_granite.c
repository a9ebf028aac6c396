/* granite and granitemoe: llama's layer with four factors from the metadata; granitemoe with experts, and perhaps a shared one, not gated.
 * architectures.md 4.8. */
#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x) { return gr_block_layer(b, x, &(gr_layer_spec){ .glu_kind = GR_GLU_SWIGLU }); }

static void hparams(gr_reader *r)
{
  gr_hparams *hp = &r->model->hp;
  hp->embedding_scale = (float)gr_reader_real(r, "embedding_scale", GR_GGUF_REQUIRED, 1e-6, 1e6, 1);
  hp->residual_scale = (float)gr_reader_real(r, "residual_scale", GR_GGUF_REQUIRED, 1e-6, 1e6, 1);
  hp->attention_scale = (float)gr_reader_real(r, "attention.scale", GR_GGUF_REQUIRED, 1e-6, 1e6, 1);
  hp->head_scale = (float)(1 / gr_reader_real(r, "logit_scale", GR_GGUF_REQUIRED, 1e-6, 1e6, 1));
  hp->rope = gr_reader_bool(r, "rope.scaling.finetuned", true); /* the key that says whether positions are rotated in at all */
}

extern const gr_arch gr_arch_granite, gr_arch_granitemoe;
const gr_arch gr_arch_granite = {
  .name = "granite", .rope_mode = GR_ROPE_NORMAL, .rope_whole_head = true, .hparams = hparams, .layer = layer
};
const gr_arch gr_arch_granitemoe = { .name = "granitemoe",
                                     .rope_mode = GR_ROPE_NORMAL,
                                     .rope_whole_head = true,
                                     .experts = GR_EXPERTS_REQUIRED,
                                     .gating = GR_GATE_SOFTMAX,
                                     .renormalise = true,
                                     .hparams = hparams,
                                     .layer = layer };
