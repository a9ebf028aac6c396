"""The golden models of tools/make_golden.py: shapes, adapters, and what they are trained with; and the vocabulary that they share."""
import gguf
import transformers
from gguf import GGMLQuantizationType as Q

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ["t h", "h e", "i n", "e r", "a n", "r e", "o n", "Ġ t", "Ġ a", "th e", "Ġt he", "in g", "an d"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)


def plain_rope(base):
    return dict(rope_type="default", rope_theta=base)


def expert_lora(modules, r, alpha, fused=("gate_up_proj",), parameters=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), **ranks):
    """PEFT's configuration with twice the rank and alpha for what a GGUF holds as two tensors."""
    return dict(target_modules=modules, target_parameters=list(parameters), r=r, lora_alpha=alpha,
                rank_pattern={**{name: 2 * r for name in fused}, **ranks}, alpha_pattern={name: 2 * alpha for name in fused})


# Alpha is never the rank, and no two cases adapt the same set. An epsilon of 1e-3 is large enough for a wrong one to show.
CASES = {
    "llama": dict(
        config=transformers.LlamaConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=plain_rope(10000.0),
        pre="llama-bpe", lora=dict(target_modules=ATTENTION + MLP, r=4, lora_alpha=10), lengths=(13, 18),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "llama-scaled": dict(  # Llama 3.1's RoPE scaling, every bias there can be, a single key head
        config=transformers.LlamaConfig, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
        rms_norm_eps=2e-3, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE, attention_bias=True, mlp_bias=True,
        pre="llama-bpe", lora=dict(target_modules=ATTENTION, r=3, lora_alpha=5), lengths=(41, 30),
        adamw=dict(lr=0.004, weight_decay=0.05, betas=(0.9, 0.95), eps=1e-6), clip=0.5),
    "qwen2": dict(  # another rank for q, and layer 0 adapted less than layer 1
        config=transformers.Qwen2Config, hidden_size=64, num_attention_heads=4, num_key_value_heads=1, intermediate_size=64,
        rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=plain_rope(1000000.0),
        pre="qwen2", lora=dict(target_modules=r".*(0\.self_attn\.[qv]_proj|1\.self_attn\.[qv]_proj|1\.mlp\.(gate|down)_proj)", r=5, lora_alpha=3,
                               rank_pattern={"q_proj": 2}), lengths=(11, 16),
        adamw=dict(lr=0.004, weight_decay=0.3, betas=(0.85, 0.98), eps=1e-8), clip=1.5),
    "qwen3": dict(  # heads of 24, so that q is wider than the model; three of them to a key head; the head is adapted too
        config=transformers.Qwen3Config, hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=24, intermediate_size=56,
        rms_norm_eps=1e-3, tie_word_embeddings=False, rope_parameters=plain_rope(1000000.0),
        pre="qwen2", lora=dict(target_modules=ATTENTION + ["up_proj", "down_proj", "lm_head"], r=6, lora_alpha=9), lengths=(17, 9),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "llama-wide": dict(  # rows of 256: the matrices are random blocks of quantized types, and PyTorch runs what the gguf package decodes
        config=transformers.LlamaConfig, hidden_size=256, num_attention_heads=4, num_key_value_heads=1, intermediate_size=256,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=plain_rope(10000.0),
        pre="llama-bpe", lora=dict(target_modules=ATTENTION + MLP, r=2, lora_alpha=3), lengths=(7, 12),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0,
        types={
            "token_embd": Q.Q4_K, "output": Q.Q6_K,
            "blk.0.attn_q": Q.Q4_K, "blk.0.attn_k": Q.Q5_K, "blk.0.attn_v": Q.Q6_K, "blk.0.attn_output": Q.Q3_K,
            "blk.0.ffn_gate": Q.Q4_K, "blk.0.ffn_up": Q.Q2_K, "blk.0.ffn_down": Q.Q6_K,
            "blk.1.attn_q": Q.Q8_0, "blk.1.attn_k": Q.IQ4_XS, "blk.1.attn_v": Q.Q4_1, "blk.1.attn_output": Q.Q5_0,
            "blk.1.ffn_gate": Q.Q4_0, "blk.1.ffn_up": Q.Q5_1, "blk.1.ffn_down": Q.IQ4_NL,
        }),
    "qwen3moe": dict(  # eight experts, three of them a token; attention, experts and router adapted
        config=transformers.Qwen3MoeConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=24, intermediate_size=96,
        moe_intermediate_size=32, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
        rms_norm_eps=1e-3, tie_word_embeddings=False, rope_parameters=plain_rope(1000000.0),
        pre="qwen2", lora=expert_lora(ATTENTION, 4, 6, parameters=("mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight")),
        lengths=(19, 14), adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "qwen3moe-fused": dict(  # gate and up in one stack, as newer files have them: the adapter on it is PEFT's as it is; only experts adapted
        config=transformers.Qwen3MoeConfig, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=64,
        moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, fused_experts=True,
        rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=plain_rope(1000000.0),
        pre="qwen2", lora=expert_lora([], 3, 4, fused=()), lengths=(15, 12),
        adamw=dict(lr=0.008, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8), clip=0.5),
    "qwen3moe-wide": dict(  # rows of 256: stacks of K-quants, random blocks again
        config=transformers.Qwen3MoeConfig, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=512,
        moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        rms_norm_eps=1e-6, tie_word_embeddings=False, rope_parameters=plain_rope(1000000.0),
        pre="qwen2", lora=expert_lora(["q_proj", "v_proj"], 2, 3), lengths=(9, 13),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0,
        types={
            "output": Q.Q6_K,
            "blk.0.attn_q": Q.Q4_K, "blk.0.attn_k": Q.Q5_K, "blk.0.attn_v": Q.Q6_K, "blk.0.attn_output": Q.Q8_0,
            "blk.0.ffn_gate_exps": Q.Q4_K, "blk.0.ffn_up_exps": Q.Q5_K, "blk.0.ffn_down_exps": Q.Q6_K,
            "blk.1.attn_q": Q.Q3_K, "blk.1.attn_k": Q.Q8_0, "blk.1.attn_v": Q.Q4_K, "blk.1.attn_output": Q.Q4_0,
            "blk.1.ffn_gate_exps": Q.Q2_K, "blk.1.ffn_up_exps": Q.Q3_K, "blk.1.ffn_down_exps": Q.IQ4_XS,
        }),
    "qwen2moe": dict(  # biases of q, k and v, weights not renormalised, an expert for all tokens behind a gate, which is adapted too
        config=transformers.Qwen2MoeConfig, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, intermediate_size=80,
        moe_intermediate_size=24, shared_expert_intermediate_size=40, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=plain_rope(1000000.0),
        pre="qwen2", lora=expert_lora(["k_proj", "gate_proj", "up_proj", "down_proj", "shared_expert_gate"], 3, 5, shared_expert_gate=1,
                                      parameters=("mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight")),
        lengths=(15, 13), adamw=dict(lr=0.003, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "mistral3": dict(  # queries that grow with the position, YaRN whose magnitude is undone
        config=transformers.Ministral3Config, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=80,
        pad_token_id=0, bos_token_id=0, eos_token_id=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=16.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.6,
                             original_max_position_embeddings=8, llama_4_scaling_beta=0.3),
        pre="tekken", lora=dict(target_modules=["q_proj", "v_proj", "o_proj", "gate_proj"], r=3, lora_alpha=4), lengths=(29, 19),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "mixtral": dict(  # a llama GGUF with experts
        config=transformers.MixtralConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=plain_rope(1000000.0),
        pre="llama-bpe", lora=expert_lora(ATTENTION, 3, 5, q_proj=2), lengths=(16, 11),
        adamw=dict(lr=0.004, weight_decay=0.2, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "olmoe": dict(  # norms over all of q and k, weights not renormalised; the router is adapted
        config=transformers.OlmoeConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=4, intermediate_size=32,
        num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=plain_rope(10000.0), pre="olmo",
        lora=expert_lora(ATTENTION, 2, 3, parameters=("mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight")),
        lengths=(12, 17), adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.98), eps=1e-8), clip=1.0),
    "granite": dict(  # every multiplier away from what a llama has
        config=transformers.GraniteConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=80,
        attention_multiplier=0.11, embedding_multiplier=5.0, residual_multiplier=0.45, logits_scaling=0.7,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=plain_rope(10000.0),
        pre="refact", lora=dict(target_modules=ATTENTION + MLP, r=4, lora_alpha=6), lengths=(14, 13),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=0.7),
    "granitemoe": dict(
        config=transformers.GraniteMoeConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=1, intermediate_size=24,
        num_local_experts=6, num_experts_per_tok=3, attention_multiplier=0.17, embedding_multiplier=3.0, residual_multiplier=0.6,
        logits_scaling=0.5, rms_norm_eps=1e-4, tie_word_embeddings=True, rope_parameters=plain_rope(10000.0),
        pre="refact", lora=expert_lora(ATTENTION, 4, 7, parameters=(
            "block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj", "block_sparse_moe.router.weight")),
        lengths=(10, 18), adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=0.7),
    "granitemoe-shared": dict(  # an expert for all tokens beside the chosen ones, adapted too
        config=transformers.GraniteMoeSharedConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=32,
        shared_intermediate_size=40, num_local_experts=5, num_experts_per_tok=2, attention_multiplier=0.2, embedding_multiplier=4.0,
        residual_multiplier=0.5, logits_scaling=1.5, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=plain_rope(10000.0),
        pre="refact", lora=expert_lora(["k_proj", "o_proj", "input_linear", "output_linear"], 3, 5, fused=("gate_up_proj", "input_linear"), parameters=(
            "block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj")),
        lengths=(15, 10), adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=0.7),
    "gemma3": dict(  # seven layers: five in windows of 8, one that sees all with RoPE slowed eight times, one in a window
        config=transformers.Gemma3TextConfig, hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=48,
        num_hidden_layers=7, query_pre_attn_scalar=32, sliding_window=8, rms_norm_eps=1e-4, tie_word_embeddings=True,
        rope_parameters=dict(sliding_attention=plain_rope(10000.0), full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0)),
        pre="llama-bpe", lora=dict(target_modules=ATTENTION + MLP, r=2, lora_alpha=3), lengths=(21, 14),
        adamw=dict(lr=0.002, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
    "gpt-oss": dict(  # sinks, biases everywhere, a clamped gate, YaRN, one layer in windows of 8; the experts stored as MXFP4
        config=transformers.GptOssConfig, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=32,
        num_local_experts=6, num_experts_per_tok=2, sliding_window=8, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=True,
                             original_max_position_embeddings=64),
        pre="gpt-4o", lora=expert_lora(ATTENTION, 2, 3), lengths=(19, 13),
        adamw=dict(lr=0.002, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0,
        types={f"blk.{layer}.ffn_{part}_exps": Q.MXFP4 for layer in range(2) for part in ("gate", "up", "down")}),
    "gpt-oss-wide": dict(  # rows of 256: the stacks are eight blocks of MXFP4 a row, in windows of 4, one key head for all
        config=transformers.GptOssConfig, hidden_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=16, intermediate_size=256,
        num_local_experts=4, num_experts_per_tok=2, sliding_window=4, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=True,
                             original_max_position_embeddings=64),
        pre="gpt-4o", lora=expert_lora(["q_proj", "o_proj"], 2, 5), lengths=(11, 9),
        adamw=dict(lr=0.002, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0,
        types={f"blk.{layer}.ffn_{part}_exps": Q.MXFP4 for layer in range(2) for part in ("gate", "up", "down")}),
    "phi3": dict(  # q, k, v in one matrix, gate and up in another, half of each head rotated
        config=transformers.Phi3Config, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, pad_token_id=0,
        original_max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
        pre="llama-bpe", lora=dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], r=3, lora_alpha=5), lengths=(13, 15),
        adamw=dict(lr=0.004, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8), clip=1.0),
}


def vocabulary(pre):
    """A valid byte-level vocabulary of 112: control tokens, the printable ASCII, newline, space, and a few merges."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = control + [chr(c) for c in range(33, 127)] + ["Ċ", "Ġ"] + [m.replace(" ", "") for m in MERGES]
    kinds = [gguf.TokenType.CONTROL] * len(control) + [gguf.TokenType.NORMAL] * (len(tokens) - len(control))
    return dict(pre=pre, tokens=tokens, types=kinds, merges=MERGES, bos=0, eos=2, pad=0, add_bos=False, chat_template=CHAT_TEMPLATE)
