"""Writes transformers models and PEFT adapters as GGUF, through the `gguf` package: the judges' own way into the format.

It is never the reader under test, and shares no code with it. The names and the transforms of weights are those that
llama.cpp's converter makes:

- `llama`: the rows of q and k (weight, bias, and lora_B) are permuted within each head, because transformers rotates
  (x[i], x[i + dh/2]) and a llama GGUF is run with the rotation of (x[2i], x[2i+1]); qwen2 and qwen3 are stored as they are.
- scaled RoPE of Llama 3.1 becomes a tensor `rope_freqs.weight` of one divisor a pair.
- a tied head is not stored.
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
}


def stem(module):
    """The GGUF stem of a transformers module: model.layers.3.mlp.up_proj -> blk.3.ffn_up."""
    parts = module.split(".")
    layer = next((p for p in parts if p.isdigit()), "")
    return MODULES[".".join("{}" if p.isdigit() else p for p in parts)].format(layer)


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
    if config.model_type != "llama":
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


def add_hyperparameters(writer, config):
    rope = config.rope_parameters
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    elif rope["rope_type"] != "default":
        raise ValueError(f"no rule to write RoPE scaling of type {rope['rope_type']}")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(path, config, state, vocabulary, name, packed=None):
    """state: transformers' names -> float32 arrays. packed: GGUF name -> (bytes of its rows, type), stored in place of the array."""
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_name(name)
    add_hyperparameters(writer, config)
    add_vocabulary(writer, vocabulary)
    for key, array in state.items():
        module, kind = key.rsplit(".", 1)
        if module == "lm_head" and config.tie_word_embeddings:
            continue
        gguf_stem = stem(module)
        gguf_name = f"{gguf_stem}.{kind}"
        if packed and gguf_name in packed:
            rows, quant = packed[gguf_name]
            writer.add_tensor(gguf_name, rows, raw_dtype=quant)
            continue
        heads = heads_to_permute(config, gguf_stem)
        writer.add_tensor(gguf_name, np.ascontiguousarray(interleave(array, heads) if heads else array, np.float32))
    finish(writer)


def adapter_tensors(config, pairs):
    """pairs: module path -> (A [r, in], B [out, r]) as PEFT has them; yields GGUF names and arrays. Gradients go the same way."""
    for module, (a, b) in pairs.items():
        gguf_stem = stem(module)
        heads = heads_to_permute(config, gguf_stem)
        yield f"{gguf_stem}.weight.lora_a", np.ascontiguousarray(a, np.float32)
        yield f"{gguf_stem}.weight.lora_b", np.ascontiguousarray(interleave(b, heads) if heads else b, np.float32)


def write_adapter(path, config, pairs, alpha, name):
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_type("adapter")
    writer.add_name(name)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for gguf_name, array in adapter_tensors(config, pairs):
        writer.add_tensor(gguf_name, array)
    finish(writer)
