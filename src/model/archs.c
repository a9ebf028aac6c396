/* The list of architectures. */
#include "model/arch.h"

extern const gr_arch gr_arch_llama, gr_arch_qwen2, gr_arch_qwen2moe, gr_arch_qwen3, gr_arch_qwen3moe, gr_arch_olmoe, gr_arch_granite,
    gr_arch_granitemoe, gr_arch_gemma3, gr_arch_gpt_oss, gr_arch_phi3, gr_arch_mistral3;

const gr_arch *const gr_archs[] = { &gr_arch_llama,
                                    &gr_arch_qwen2,
                                    &gr_arch_qwen2moe,
                                    &gr_arch_qwen3,
                                    &gr_arch_qwen3moe,
                                    &gr_arch_olmoe,
                                    &gr_arch_granite,
                                    &gr_arch_granitemoe,
                                    &gr_arch_gemma3,
                                    &gr_arch_gpt_oss,
                                    &gr_arch_phi3,
                                    &gr_arch_mistral3,
                                    NULL };
