"""Writes transformers models and PEFT adapters as GGUF, through the `gguf` package: the judges' own way into the format.

It is never the reader under test, and shares no code with it. The names and the transforms of weights are those that
llama.cpp's converter makes:

- `llama` (Mixtral too), `mistral3`, `granite`, `granitemoe`: the rows of q and k (weight, bias, and lora_B) are permuted within each head, because
  transformers rotates (x[i], x[i + dh/2]) and these GGUFs are run with the rotation of (x[2i], x[2i+1]); the others are stored as they are.
- scaled RoPE of Llama 3.1 becomes a tensor `rope_freqs.weight` of one divisor a pair; YaRN becomes keys.
- a tied head is not stored.
- what transformers fuses (gate and up of experts and of granite's shared expert) becomes two tensors: the halves, or gpt-oss's even and
  odd rows. An adapter on such a module has twice the rank, half of it for each (`shares`). `fused_experts` keeps the stack in one piece.
- `gemma3`: 1 is added to every norm, as transformers multiplies by 1 + w.
- gpt-oss stores its stacks [expert, in, out]; they are transposed.
"""
import math

import gguf
import numpy as np

# transformers' module path -> GGUF stem; {} is the layer
MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{}.input_layernorm": "blk.{}.attn_norm",
    "model.layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "model.layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "model.layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "model.layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "model.layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "model.layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
    "model.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "model.layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "model.layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    "model.layers.{}.mlp.gate": "blk.{}.ffn_gate_inp",
    "model.layers.{}.mlp.experts.gate_up_proj": ("blk.{}.ffn_gate_exps", "blk.{}.ffn_up_exps"),
    "model.layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps",
}
GRANITEMOE = {
    "model.layers.{}.block_sparse_moe.router": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.experts.gate_up_proj": ("blk.{}.ffn_gate_exps", "blk.{}.ffn_up_exps"),
    "model.layers.{}.block_sparse_moe.experts.down_proj": "blk.{}.ffn_down_exps",
    "model.layers.{}.shared_mlp.input_linear": ("blk.{}.ffn_gate_shexp", "blk.{}.ffn_up_shexp"),
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
}
# what is special to a transformers model type
SPECIAL_MODULES = {
    "granitemoe": GRANITEMOE,
    "granitemoeshared": GRANITEMOE,
    "gemma3_text": {
        "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        "model.layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
        "model.layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
    },
    "gpt_oss": {
        "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        "model.layers.{}.self_attn.sinks": "blk.{}.attn_sinks",
        "model.layers.{}.mlp.router": "blk.{}.ffn_gate_inp",
    },
    "qwen2_moe": {
        "model.layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
        "model.layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
        "model.layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
        "model.layers.{}.mlp.shared_expert_gate": "blk.{}.ffn_gate_inp_shexp",
    },
    "phi3": {
        "model.layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv",
        "model.layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
    },
}
# where GGUF's name of an architecture is not transformers' model type
ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "granitemoeshared": "granitemoe", "gemma3_text": "gemma3",
                 "gpt_oss": "gpt-oss", "ministral3": "mistral3"}
INTERLEAVED_ROPE = ("llama", "mixtral", "ministral3", "granite", "granitemoe", "granitemoeshared")


def architecture(config):
    return ARCHITECTURES.get(config.model_type, config.model_type)


def experts_of(config):
    return getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0)


def split_key(key):
    """A transformers state name -> (module path, "weight" or "bias"); parameters that are no module's weight count as modules."""
    module, last = key.rsplit(".", 1)
    if last in ("weight", "bias"):
        return module, last
    return f"{module}.{last.removesuffix('_bias')}", "bias" if last.endswith("_bias") else "weight"


def shares(config, module):
    """The GGUF stems that a transformers module is stored under, each with the slice of the module's outputs that is its own."""
    parts = module.split(".")
    layer = next((p for p in parts if p.isdigit()), "")
    pattern = ".".join("{}" if p.isdigit() else p for p in parts)
    stems = SPECIAL_MODULES.get(config.model_type, {}).get(pattern) or MODULES[pattern]
    if isinstance(stems, str):
        return [(stems.format(layer), slice(None))]
    if getattr(config, "fused_experts", False):
        return [(f"blk.{layer}.ffn_gate_up_exps", slice(None))]
    if config.model_type == "gpt_oss":
        slices = slice(0, None, 2), slice(1, None, 2)
    else:
        half = config.shared_intermediate_size if "shared" in pattern else expert_width(config)
        slices = slice(0, half), slice(half, None)
    return [(gguf_stem.format(layer), rows) for gguf_stem, rows in zip(stems, slices)]


def expert_width(config):
    return getattr(config, "moe_intermediate_size", None) or config.intermediate_size


def stem(config, module):
    """The GGUF stem of a module that is stored whole: model.layers.3.mlp.up_proj -> blk.3.ffn_up."""
    [(gguf_stem, _)] = shares(config, module)
    return gguf_stem


def interleave(rows, heads):
    """Rows of a q or k projection from half-split to interleaved pairs: per head, row c*dh/2 + i becomes row 2i + c."""
    count = rows.shape[0]
    return rows.reshape(heads, 2, count // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def split_halves(rows, heads):
    """The inverse of interleave."""
    count = rows.shape[0]
    return rows.reshape(heads, count // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def heads_to_permute(config, gguf_stem):
    """How many heads the rows of this module are permuted in, or 0 for none."""
    if config.model_type not in INTERLEAVED_ROPE:
        return 0
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(gguf_stem.split(".")[-1], 0)


def llama3_divisors(rope, head_dim):
    """One divisor a pair, from the factor and the two corner frequencies of Llama 3.1's scaling."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    original = rope["original_max_position_embeddings"]
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / head_dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def add_vocabulary(writer, vocabulary):
    """vocabulary: model, pre, tokens, types, merges, bos, eos, pad, add_bos, chat_template."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary["pre"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_bos_token_id(vocabulary["bos"])
    writer.add_eos_token_id(vocabulary["eos"])
    writer.add_pad_token_id(vocabulary["pad"])
    writer.add_add_bos_token(vocabulary["add_bos"])
    writer.add_chat_template(vocabulary["chat_template"])


def rope_of(config):
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":  # the base of the windowed layers is 10000 in every gemma3 file
        assert rope["sliding_attention"] == dict(rope_type="default", rope_theta=10000.0)
        rope = rope["full_attention"]
    return rope


def add_rope_scaling(writer, rope, head_dim):
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    elif rope["rope_type"] == "yarn":
        assert rope.get("truncate", True), "who reads a GGUF rounds the corners of YaRN"
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "mscale_all_dim" in rope:
            assert rope["mscale"] == 1, "a GGUF has no place for another"
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    elif rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] != "default":
        raise ValueError(f"no rule to write RoPE scaling of type {rope['rope_type']}")


def add_experts(writer, config):
    writer.add_expert_count(experts_of(config))
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("qwen2_moe", "qwen3_moe", "gpt_oss"):
        writer.add_expert_feed_forward_length(expert_width(config))
    if shared := getattr(config, "shared_intermediate_size", 0) or getattr(config, "shared_expert_intermediate_size", 0):
        writer.add_expert_shared_feed_forward_length(shared)


def add_hyperparameters(writer, config):
    kind = config.model_type
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope_of(config)["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim * config.num_attention_heads != config.hidden_size or kind in ("qwen3_moe", "gemma3_text", "gpt_oss"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rope_of(config).get("partial_rotary_factor", 1.0)))
    if kind == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    add_rope_scaling(writer, rope_of(config), head_dim)
    if experts_of(config):
        add_experts(writer, config)
    if kind.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if kind == "ministral3":
        writer.add_float32(f"{architecture(config)}.attention.temperature_scale", rope_of(config)["llama_4_scaling_beta"])
    if kind in ("gemma3_text", "gpt_oss"):
        writer.add_sliding_window(config.sliding_window)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_tensors(config, key, array):
    """What a transformers weight is stored as: pairs of GGUF name and array."""
    module, kind = split_key(key)
    if config.model_type == "gpt_oss" and ".experts." in module and kind == "weight":
        array = array.swapaxes(1, 2)
    if config.model_type == "gemma3_text" and module.endswith("norm"):
        array = array + np.float32(1)
    for gguf_stem, rows in shares(config, module):
        part = array[..., rows, :] if kind == "weight" and array.ndim > 1 else array[..., rows]
        heads = heads_to_permute(config, gguf_stem)
        yield f"{gguf_stem}.{kind}", np.ascontiguousarray(interleave(part, heads) if heads else part, np.float32)


def write_model(path, config, state, vocabulary, name, packed=None):
    """state: transformers' names -> float32 arrays. packed: GGUF name -> (bytes of its rows, type), stored in place of the array."""
    writer = gguf.GGUFWriter(path, architecture(config))
    writer.add_name(name)
    add_hyperparameters(writer, config)
    add_vocabulary(writer, vocabulary)
    for key, array in state.items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for gguf_name, values in model_tensors(config, key, array):
            if packed and gguf_name in packed:
                rows, quant = packed[gguf_name]
                writer.add_tensor(gguf_name, rows, raw_dtype=quant)
            else:
                writer.add_tensor(gguf_name, values)
    finish(writer)


def as_stacks(config, module, a, b):
    """PEFT's pair as it multiplies: A [r, in] and B [out, r], for experts with the expert in front. PEFT flattens (expert, rank) in A
    and (rank, expert) in B."""
    if ".experts." not in module:
        return a, b
    experts = experts_of(config)
    return a.reshape(experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, experts).transpose(2, 0, 1)


def adapter_tensors(config, pairs):
    """pairs: module path -> (A, B) as PEFT has them; yields GGUF names and arrays. Gradients go the same way."""
    for module, pair in pairs.items():
        a, b = as_stacks(config, module, *pair)
        parts = shares(config, module)
        rank = a.shape[-2] // len(parts)
        for i, (gguf_stem, rows) in enumerate(parts):
            own = slice(i * rank, (i + 1) * rank)
            heads = heads_to_permute(config, gguf_stem)
            part = b[..., rows, own]
            yield f"{gguf_stem}.weight.lora_a", np.ascontiguousarray(a[..., own, :], np.float32)
            yield f"{gguf_stem}.weight.lora_b", np.ascontiguousarray(interleave(part, heads) if heads else part, np.float32)


def write_adapter(path, config, pairs, alpha, name):
    writer = gguf.GGUFWriter(path, architecture(config))
    writer.add_type("adapter")
    writer.add_name(name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for gguf_name, array in adapter_tensors(config, pairs):
        writer.add_tensor(gguf_name, array)
    finish(writer)
