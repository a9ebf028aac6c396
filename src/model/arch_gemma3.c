/* gemma3: the embedding is scaled by sqrt(width), each branch is normed again before it is added, heads of q and k are normed, the unit is
 * GeGLU. Five layers of six slide, with a RoPE base of their own. The file's norm weights hold the 1 that the formula adds.
 * architectures.md 4.6. */
#include <math.h>

#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x)
{
  static const gr_layer_spec spec = {
    .attention.qk_norm = GR_QK_NORM_HEAD, .after_attention = "post_attention_norm", .after_ffn = "post_ffw_norm", .glu_kind = GR_GLU_GEGLU
  };
  return gr_block_layer(b, x, &spec);
}

enum { LAYERS_OF_27B = 62 };

static void hparams(gr_reader *r)
{
  gr_hparams *hp = &r->model->hp;
  hp->embedding_scale = sqrtf((float)hp->width);
  if (hp->layers == LAYERS_OF_27B) hp->attention_scale = 1 / sqrtf((float)hp->width / (float)hp->heads);
  gr_reader_window(r, GR_GGUF_OPTIONAL, 6);
  if (hp->window) hp->rope_base_local = gr_reader_real(r, "rope.freq_base_swa", GR_GGUF_OPTIONAL, 1e-3, 1e12, 10000);
}

extern const gr_arch gr_arch_gemma3;
const gr_arch gr_arch_gemma3 = { .name = "gemma3", .rope_mode = GR_ROPE_NEOX, .hparams = hparams, .layer = layer };
