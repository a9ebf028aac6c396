/* mistral3: Ministral 3. llama's layer; queries grow with the logarithm of the position, and YaRN's magnitude may be undone.
 * architectures.md 4.2, but the position is counted from 0, as transformers counts it. */
#include <math.h>

#include "model/arch.h"

static gr_tensor *layer(gr_builder *b, gr_tensor *x) { return gr_block_layer(b, x, &(gr_layer_spec){ .glu_kind = GR_GLU_SWIGLU }); }

static void hparams(gr_reader *r)
{
  gr_hparams *hp = &r->model->hp;
  hp->query_growth = gr_reader_real(r, "attention.temperature_scale", GR_GGUF_OPTIONAL, 0, 1e6, 0);
  double share = gr_reader_real(r, "rope.scaling.yarn_log_multiplier", GR_GGUF_OPTIONAL, 0, 1e6, 0);
  if (hp->yarn_ext_factor > 0 && hp->rope_factor > 1) hp->rope_attn_factor /= 1 + 0.1 * share * log(hp->rope_factor);
}

extern const gr_arch gr_arch_mistral3;
const gr_arch gr_arch_mistral3 = {
  .name = "mistral3", .rope_mode = GR_ROPE_NORMAL, .rope_whole_head = true, .hparams = hparams, .layer = layer
};
