/* The list of architectures: a file each. */
#include "model/arch.h"

extern const gr_arch gr_arch_llama, gr_arch_qwen2, gr_arch_qwen3;

const gr_arch *const gr_archs[] = { &gr_arch_llama, &gr_arch_qwen2, &gr_arch_qwen3, NULL };
