#!/usr/bin/env python3
"""Makes tests/golden/*.gguf: tiny random models, adapters, and what PyTorch + transformers + PEFT say of them.

    tools/make_golden.py [NAME...]          writes the files of these cases, or of all
    tools/make_golden.py --check [NAME...]  makes them anew in a temporary folder and compares them with the committed ones

For each case: NAME.gguf (model), NAME-lora.gguf (adapter, as llama.cpp lays one out) and NAME-expected.gguf (inputs and answers).
tests/golden/README.md says what is in them. Everything is computed in float64 and stored as float32. transformers pins a few steps
to float32 (norms, RoPE angles, routers), so those are given a float64 form here, and every answer is compared with the same model as
transformers itself runs it in float32 before it is written.

Adapters on experts are PEFT's own (target_parameters). Where transformers fuses two matrices that a GGUF holds apart (gate and up), PEFT's
adapter on them has twice the rank, and the halves of B that would join one's rank to the other's rows are held at 0, their gradients
too: that is a pair of adapters, each with its own A, and alpha is doubled so that alpha / rank stays.
"""
import argparse
import copy
import sys
import tempfile
import types
from pathlib import Path

import gguf
import numpy as np
import peft
import torch
import transformers
from gguf import GGMLQuantizationType as Q

import gguf_export as export
from golden_cases import CASES, vocabulary

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
MARGIN = 1e-3  # between the probabilities of the last expert chosen and the first not chosen, for every token and layer
ROUTER_SPREAD = 1.0  # of the logits of experts, about

# Where a block's scale lies, and its minimum's with the ratio that gives decoded values of random codes a mean near zero.
SCALE_AT = {Q.Q4_0: (0,), Q.Q8_0: (0,), Q.Q5_0: (0,), Q.IQ4_NL: (0,), Q.IQ4_XS: (0,), Q.Q3_K: (108,), Q.Q6_K: (208,),
            Q.Q4_1: (0, 2, -7.5), Q.Q5_1: (0, 2, -15.5), Q.Q2_K: (80, 82, 1.5), Q.Q4_K: (0, 2, 7.5), Q.Q5_K: (0, 2, 15.5)}
MXFP4_SPREAD = 34.25**0.5  # of its codes, as they are tabled for a scale of 2^(e - 128)


def random_blocks(random, shape, quant, spread):
    """Random codes of a quantized type, their scales set so that the decoded values spread as asked; (rows of bytes, decoded rows)."""
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    if quant == Q.MXFP4:  # a scale is a power of two: two neighbouring ones
        blocks = random.integers(0, 256, (shape[0] * shape[1] // elements, size), dtype=np.uint8)
        blocks[:, 0] = 128 + np.floor(np.log2(spread / MXFP4_SPREAD) + random.uniform(0, 1, len(blocks)))
        blocks = blocks.reshape(shape[0], -1)
        return blocks, gguf.dequantize(blocks, quant)
    at, *minimum = SCALE_AT[quant]

    def pack(blocks, scale):
        put = lambda offset, values: blocks.__setitem__((slice(None), slice(offset, offset + 2)), values.astype(np.float16).view(np.uint8).reshape(-1, 2))
        put(at, scale)
        if minimum:
            put(minimum[0], scale * minimum[1])
        return gguf.dequantize(blocks.reshape(shape[0], -1), quant)

    blocks = random.integers(0, 256, (shape[0] * shape[1] // elements, size), dtype=np.uint8)
    unit = pack(blocks, np.ones(len(blocks))).std()
    decoded = pack(blocks, spread / unit * random.uniform(0.7, 1.3, len(blocks)))
    return blocks.reshape(shape[0], -1), decoded


def random_router(random, shape, bias):
    """One expert that no token likes, one that most like, the rest at odds. bias: what all tokens have in common."""
    experts, width = shape
    rows = random.normal(0, ROUTER_SPREAD, shape) * random.uniform(0.7, 1.3, (experts, 1))
    dead, popular = random.permutation(experts)[:2]
    rows[dead], rows[popular] = -4 * bias, rows[popular] + 0.6 * bias
    return rows / width**0.5


def random_weight(random, model, config, key, shape, common):
    """A weight far from its default, and its standard deviation: norms spread about 1 with some below 0, biases large, q and k strong
    enough for attention to be uneven."""
    module, last = key.rsplit(".", 1)
    kind = module.split(".")[-1]
    if last == "sinks":
        return random.normal(0.5, 1, shape), 1
    if key.endswith("bias"):
        return random.normal(0, 0.5, shape), 0.5
    if len(shape) == 1:
        return random.normal(1, 0.5, shape) - (config.model_type == "gemma3_text"), 0.5
    if type(model.get_submodule(module)).__name__.endswith("TopKRouter"):
        return random_router(random, shape, common), ROUTER_SPREAD / shape[1] ** 0.5
    inputs = shape[-2] if config.model_type == "gpt_oss" and len(shape) == 3 else shape[-1]
    if config.model_type == "gpt_oss" and kind == "experts" and last == "gate_up_proj":
        inputs /= 9  # so that the clamps are met
    spread = {"q_proj": 1.2, "k_proj": 1.2, "embed_tokens": 0.5 * inputs**0.5}.get(kind, 1.0) / inputs**0.5
    value = random.normal(0, spread, shape)
    if kind == "embed_tokens":
        value = (value + (0 if common is None else 0.35 * common)) / getattr(config, "embedding_multiplier", 1)
    return value, spread


def packed_weight(random, config, key, value, spread, types):
    """The same weight as random blocks of quantized types: GGUF name -> (rows of bytes, type) of each part, and the decoded whole."""
    module, last = export.split_key(key)
    parts, value = {}, np.array(value, np.float32)
    whole = value.swapaxes(1, 2) if config.model_type == "gpt_oss" and value.ndim == 3 else value
    for gguf_stem, rows in export.shares(config, module):
        if last != "weight" or gguf_stem not in types:
            continue
        part = whole[..., rows, :]
        blocks, decoded = random_blocks(random, (part.size // part.shape[-1], part.shape[-1]), types[gguf_stem], spread)
        parts[f"{gguf_stem}.weight"] = blocks.reshape(*part.shape[:-1], -1), types[gguf_stem]
        heads = export.heads_to_permute(config, gguf_stem)
        whole[..., rows, :] = (export.split_halves(decoded, heads) if heads else decoded).reshape(part.shape)
    return parts, value


def random_weights(random, model, config, types):
    """Fills the model; returns GGUF name -> (bytes, type) of what is stored quantized."""
    packed = {}
    common = random.normal(0, 1, config.hidden_size) if export.experts_of(config) else None
    with torch.no_grad():
        for key, weight in model.state_dict().items():
            if key == "lm_head.weight" and config.tie_word_embeddings:
                continue
            value, spread = random_weight(random, model, config, key, tuple(weight.shape), common)
            if types:
                parts, value = packed_weight(random, config, key, value, spread, types)
                packed |= parts
            weight.copy_(torch.from_numpy(np.ascontiguousarray(value, np.float32)))
    return packed


def lora_layers(model):
    """Path -> PEFT's layer: a module's path, or that of an expert stack (a router's weight goes by its module)."""
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            path = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if isinstance(module, peft.tuners.lora.layer.ParamWrapper):
                path = f"{path}.{module.parameter_name}".removesuffix(".weight")
            layers[path] = module
    return layers


def lora_pairs(model, of):
    """Path -> (of(A), of(B))."""
    return {path: (of(layer.lora_A["default"].weight), of(layer.lora_B["default"].weight)) for path, layer in lora_layers(model).items()}


def joints(config, path, b):
    """True where B would join the rank of one part of a fused module to the rows of another."""
    parts = export.shares(config, path)
    mask = np.zeros(b.shape, bool)
    ranks = mask.reshape(b.shape[0], len(parts), -1)  # the rank comes before the expert in a row
    for i, (_, rows) in enumerate(parts):
        ranks[rows, np.arange(len(parts)) != i] = True
    return torch.from_numpy(mask)


def clear_joints(config, model, of):
    for path, (_, b) in lora_pairs(model, of).items():
        b[joints(config, path, b)] = 0


def adapted(model, case, random):
    """PEFT's model over this one, with random A and B in place of its own start."""
    config, lora = model.config, case["lora"]
    wrapped = peft.get_peft_model(model, peft.LoraConfig(lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", **lora))
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if ".lora_A." in name:
                weight.copy_(torch.from_numpy(random.normal(0, weight.shape[1] ** -0.5, tuple(weight.shape)).astype(np.float32)))
            elif ".lora_B." in name:
                rank = weight.shape[1]  # so that the adapter's output is about half of the base's
                if ".experts." in name:
                    rank //= export.experts_of(config)
                spread = 0.5 * rank**0.5 / lora["lora_alpha"]
                weight.copy_(torch.from_numpy(random.normal(0, spread, tuple(weight.shape)).astype(np.float32)))
        clear_joints(config, wrapped, lambda w: w.data)
    for path, layer in lora_layers(wrapped).items():
        rank = layer.r["default"] / len(export.shares(config, path))
        assert abs(layer.scaling["default"] - lora["lora_alpha"] / rank) < 1e-12, f"{path} would not be scaled as a GGUF adapter is"
    return wrapped


class ExactNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + eps) * w in the precision of x; transformers' own squares in float32."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        self.shift = 1.0 if type(norm).__name__.startswith("Gemma3") else 0.0

    def forward(self, x):
        return (self.shift + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class ExactRope(torch.nn.Module):
    """Cosines and sines in the precision of x, at transformers' own frequencies; gemma3 has two sets of them."""

    def __init__(self, rope):
        super().__init__()
        kinds = {f"{kind}_": kind for kind in getattr(rope, "layer_types", ())} or {"": None}
        self.frequencies = {kind: getattr(rope, f"{prefix}inv_freq").double() for prefix, kind in kinds.items()}
        self.scaling = {kind: getattr(rope, f"{prefix}attention_scaling") for prefix, kind in kinds.items()}
        self.copies = 1 if type(rope).__name__.startswith("GptOss") else 2

    def forward(self, x, position_ids, layer_type=None):
        angle = (position_ids[..., None].double() * self.frequencies[layer_type]).repeat(1, 1, self.copies)
        return (angle.cos() * self.scaling[layer_type]).to(x.dtype), (angle.sin() * self.scaling[layer_type]).to(x.dtype)


def exact_router(self, x):
    """Logits, weights and choice of a router in the precision of x."""
    logits = torch.nn.functional.linear(x.reshape(-1, self.weight.shape[1]), self.weight, getattr(self, "bias", None))
    chosen, index = logits.topk(self.top_k)
    whole = not getattr(self, "norm_topk_prob", True)  # olmoe: of all experts' probability
    return logits, logits.softmax(-1).gather(-1, index) if whole else chosen.softmax(-1), index


def routers(model):
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def in_double(model):
    """A float64 copy, with float64 forms of what transformers does in float32 whatever the model's type."""
    exact = copy.deepcopy(model).double()
    for module in list(exact.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, ExactNorm(child))
            elif type(child).__name__.endswith("RotaryEmbedding"):
                setattr(module, name, ExactRope(child))
    for router in routers(exact):
        router.forward = types.MethodType(exact_router, router)
    return exact


class Routing:
    """Watches a model's routers: how close any choice was, how much likelier the first expert was than in an even spread, and how many
    tokens each expert of each layer got."""

    def __init__(self, model):
        self.margin, self.counts, self.peaks = np.inf, [0] * len(routers(model)), []
        self.hooks = [router.register_forward_hook(lambda module, _, out, layer=layer: self.see(layer, module.top_k, *out))
                      for layer, router in enumerate(routers(model))]

    def see(self, layer, used, logits, _, index):
        scores = logits.detach().double().softmax(-1).sort(-1, descending=True).values
        self.margin = min(self.margin, float((scores[:, used - 1] - scores[:, used]).min()))
        self.peaks.append(float((scores[:, 0] - 1 / scores.shape[1]).mean()))
        self.counts[layer] = self.counts[layer] + np.bincount(index.flatten(), minlength=logits.shape[-1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()

    def uneven(self):
        """Some expert of every layer got no token, and some half more than its share."""
        return all(counts.min() == 0 and counts.max() > 1.5 * counts.mean() for counts in self.counts)


def make_inputs(random, lengths, vocab):
    """Packed samples: positions restart; row t is trained on ids[t+1] with weights[t]; a sample's last row has no label."""
    ids = random.integers(3, vocab, sum(lengths)).astype(np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    segments = np.concatenate([np.full(n, i, np.int32) for i, n in enumerate(lengths)])
    weights = random.choice(np.array([0, 1, 1, 1, 0.5, 0.25], np.float32), len(ids))
    labels = np.append(ids[1:], -1).astype(np.int32)
    for end in np.cumsum(lengths):
        labels[end - 1], weights[end - 1] = -1, 0
        weights[end - 3:end - 1] = 1, 0.5
    for start in np.cumsum((0, *lengths[:-1])):
        weights[start:start + 3] = 0  # a prompt
    return dict(ids=ids, positions=positions, segments=segments, labels=labels, weights=weights)


def run(model, inputs):
    """Each sample in a forward pass of its own: nothing can leak. Returns (logits [n, V], nll [n], sum(w nll) / sum(w))."""
    logits, labels = [], torch.from_numpy(inputs["labels"]).long()
    for segment in np.unique(inputs["segments"]):
        ids = torch.from_numpy(inputs["ids"][inputs["segments"] == segment]).long()[None]
        logits.append(model(input_ids=ids, use_cache=False).logits[0])
    logits = torch.cat(logits)
    nll = -logits.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0] * (labels >= 0)
    weights = torch.from_numpy(inputs["weights"]).to(logits.dtype)
    return logits, nll, (weights * nll).sum() / weights.sum()


def backward(model, inputs):
    model.zero_grad()
    logits, nll, loss = run(model, inputs)
    loss.backward()
    clear_joints(model.get_base_model().config, model, lambda w: w.grad)
    return logits, nll, loss


def gradients(model, inputs):
    logits, nll, loss = backward(model, inputs)
    return logits.detach().numpy(), nll.detach().numpy(), loss.item(), lora_pairs(model, lambda w: w.grad.numpy().copy())


def curve(model, inputs, case, steps=20):
    """Losses before each AdamW step, gradient norms before clipping, the last loss, and every A and B after the last step."""
    weights = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(weights, **case["adamw"])
    losses, norms = [], []
    for _ in range(steps):
        loss = backward(model, inputs)[2]
        norms.append(torch.nn.utils.clip_grad_norm_(weights, case["clip"]).item())
        losses.append(loss.item())
        optimizer.step()
    assert sum(norm > case["clip"] for norm in norms) >= 5, f"clipping must be active: {norms}"
    assert losses[-1] < 0.9 * losses[0], f"the curve must fall: {losses}"
    return losses, norms, run(model, inputs)[2].item(), lora_pairs(model, lambda w: w.detach().numpy())


def relative(a, b):
    return float(np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(b))


def agree_with_float32(model, inputs, exact):
    """The double answers against transformers and PEFT as they are: guards the float64 forms above."""
    logits, nll, loss, grads = gradients(model, inputs)
    worst = max(relative(logits, exact[0]), relative(nll, exact[1]), abs(loss / exact[2] - 1))
    for module, pair in grads.items():
        worst = max(worst, *(relative(x, y) for x, y in zip(pair, exact[3][module])))
    assert worst < 2e-5, f"float32 and float64 differ by {worst}"  # a fifth of what the tests allow
    return worst


def attention_is_uneven(model, inputs):
    """Mean over rows of the largest attention weight, less that of an even spread: a test on flat attention tests little."""
    base = model.get_base_model()
    implementation = base.config._attn_implementation
    base.set_attn_implementation("eager")
    seen = torch.arange(1, int((inputs["segments"] == 0).sum()) + 1).clamp(max=getattr(base.config, "sliding_window", None) or 1 << 30)
    ids = torch.from_numpy(inputs["ids"][inputs["segments"] == 0]).long()[None]
    with torch.no_grad():
        maps = torch.stack(model(input_ids=ids, output_attentions=True, use_cache=False).attentions)
    base.set_attn_implementation(implementation)
    return float((maps.amax(-1) - 1 / seen).mean())


def write_expected(path, config, case, inputs, exact, base_nll, descent):
    logits, nll, loss, grads = exact
    losses, norms, last, final = descent
    writer = gguf.GGUFWriter(path, "golden")
    for package in (torch, transformers, peft):
        writer.add_string(f"golden.version.{package.__name__}", package.__version__)
    writer.add_float32("golden.lora_alpha", case["lora"]["lora_alpha"])
    for key in ("lr", "weight_decay", "eps"):
        writer.add_float32(f"golden.adamw.{key}", case["adamw"][key])
    writer.add_float32("golden.adamw.beta1", case["adamw"]["betas"][0])
    writer.add_float32("golden.adamw.beta2", case["adamw"]["betas"][1])
    writer.add_float32("golden.clip", case["clip"])
    for key, array in inputs.items():
        writer.add_tensor(key, array)
    floats = {"logits": logits, "nll": nll, "loss": [loss], "base.nll": base_nll, "curve.loss": losses, "curve.grad_norm": norms,
              "curve.last_loss": [last]}
    floats |= {f"grad.{name}": array for name, array in export.adapter_tensors(config, grads)}
    floats |= {f"final.{name}": [np.linalg.norm(array.astype(np.float64))] for name, array in export.adapter_tensors(config, final)}
    for key, array in floats.items():
        writer.add_tensor(key, np.ascontiguousarray(array, np.float32))
    export.finish(writer)


class Unclear(AssertionError):
    """No inputs were found that routers are sure of."""


def choose_inputs(random, case, config, base, adapted_model, draws=500):
    """Inputs; for experts, the first that leave no choice of a router to rounding, with the adapter and without, and an expert idle."""
    for _ in range(draws):
        inputs = make_inputs(random, case["lengths"], config.vocab_size)
        with torch.no_grad(), Routing(base) as bare, Routing(adapted_model) as with_adapter:
            base_nll = run(base, inputs)[1].numpy()
            run(adapted_model, inputs)
        if not bare.counts or (min(bare.margin, with_adapter.margin) > MARGIN and with_adapter.uneven()):
            return inputs, base_nll, with_adapter
    raise Unclear(f"no inputs are routed clearly: {with_adapter.margin} {with_adapter.counts}")


def build(case):
    shape = {k: v for k, v in case.items() if k not in ("config", "pre", "lora", "lengths", "adamw", "clip", "types", "fused_experts")}
    words = vocabulary(case["pre"])
    config = case["config"](**dict(vocab_size=len(words["tokens"]), num_hidden_layers=2, max_position_embeddings=256, eos_token_id=2) | shape)
    implementations = dict(experts_implementation="eager") if export.experts_of(config) else {}
    attention = "eager" if config.model_type == "gpt_oss" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, **implementations).eval()
    model.config.fused_experts = case.get("fused_experts", False)
    return words, model


def check_special(config, model, inputs):
    """That what is special to a case is really met in it."""
    if config.model_type == "gpt_oss":
        seen = []
        for experts in (module for module in model.modules() if type(module).__name__.endswith("Experts")):
            plain = experts._apply_gate
            experts._apply_gate = lambda x, plain=plain: seen.append(x.detach().flatten(0, -2)) or plain(x)
        run(model, inputs)
        gate_up = torch.cat(seen)
        for share in ((gate_up[:, ::2] > config.swiglu_limit), (gate_up[:, 1::2].abs() > config.swiglu_limit)):
            assert 0.01 < share.double().mean() < 0.3, f"the clamps meet {share.double().mean()} of the values"
    if getattr(config, "sliding_window", None):
        assert min(np.bincount(inputs["segments"])) > config.sliding_window + 4
    if config.rope_parameters.get("rope_type") == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        divisors = export.llama3_divisors(config.rope_parameters, config.head_dim)
        assert relative(plain / divisors, model.model.rotary_emb.inv_freq.numpy()) < 1e-6 and len(set(divisors.round(3))) > 3


def make(name, case, folder):
    random = np.random.default_rng([ord(c) for c in name])
    words, model = build(case)
    config = model.config
    packed = random_weights(random, model, config, case.get("types"))
    state = {key: weight.numpy().copy() for key, weight in model.state_dict().items()}
    if not export.experts_of(config):  # the order of the first golden files: inputs before adapters
        inputs, base_nll, routing = choose_inputs(random, case, config, in_double(model), in_double(model))
    base = in_double(model)
    model = adapted(model, case, random)
    exact_model = in_double(model)
    if export.experts_of(config):
        inputs, base_nll, routing = choose_inputs(random, case, config, base, exact_model)
    check_special(config, copy.deepcopy(model.get_base_model()), inputs)
    exact = gradients(exact_model, inputs)
    worst = agree_with_float32(model, inputs, exact)
    uneven = attention_is_uneven(model, inputs)
    assert uneven > 0.15, f"attention is too flat: {uneven}"
    assert not routing.counts or np.mean(routing.peaks) > 0.15, f"routers are too flat: {routing.peaks}"
    assert relative(exact[1], base_nll) > 0.05, "the adapter must matter"
    pairs = lora_pairs(model, lambda w: w.detach().numpy().copy())
    title = name.replace("phi3", "phi 3")  # llama.cpp takes a model called phi3 for one with Phi-3's own tokens
    export.write_model(folder / f"{name}.gguf", config, state, words, f"golden {title}: random", packed)
    export.write_adapter(folder / f"{name}-lora.gguf", config, pairs, case["lora"]["lora_alpha"], f"golden {name}: random adapter")
    with Routing(exact_model) as along:
        descent = curve(exact_model, inputs, case)
    assert along.margin > MARGIN / 100, f"a choice of experts on the curve is as close as {along.margin}"
    drift = np.abs(np.array(curve(model, inputs, case)[0]) / descent[0] - 1).max()
    assert drift < 2e-4, f"the float32 curve drifts by {drift}: too wild to compare anything with"
    write_expected(folder / f"{name}-expected.gguf", config, case, inputs, exact, base_nll, descent)
    size = sum((folder / f"{name}{part}.gguf").stat().st_size for part in ("", "-lora", "-expected"))
    print(f"{name}: loss {exact[2]:.4f} -> {descent[2]:.4f} in 20 steps, grad norm {descent[1][0]:.2f} (clip {case['clip']}), "
          f"clipped in {sum(n > case['clip'] for n in descent[1])}, float32 within {worst:.1e} and {drift:.1e} on the curve, attention {uneven:.2f} above even, {len(pairs)} adapted matrices, {size / 1000:.0f} kB")
    if routing.counts:
        print(f"  tokens of each expert {[counts.tolist() for counts in routing.counts]}, the likeliest {np.mean(routing.peaks):.2f} above even, margin {routing.margin:.1e}, on the curve {along.margin:.1e}")


def compare(fresh, kept):
    """The largest relative difference of a tensor between two files; every name, type and shape must be equal."""
    a, b = gguf.GGUFReader(fresh), gguf.GGUFReader(kept)
    if [(t.name, t.tensor_type, list(t.shape)) for t in a.tensors] != [(t.name, t.tensor_type, list(t.shape)) for t in b.tensors]:
        return float("inf")
    worst = 0.0
    for x, y in zip(a.tensors, b.tensors):
        if np.array_equal(x.data, y.data):
            continue
        worst = max(worst, relative(x.data, y.data) if x.data.dtype == np.float32 else float("inf"))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these cases only")
    arguments = parser.parse_args()
    cases = {name: CASES[name] for name in arguments.names or CASES}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not arguments.check:
        for name, case in cases.items():
            make(name, case, GOLDEN)
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases.items():
            make(name, case, Path(folder))
        for fresh in sorted(Path(folder).glob("*.gguf")):
            kept = GOLDEN / fresh.name
            difference = compare(fresh, kept) if kept.exists() else float("inf")
            failed += difference > 1e-5
            print(f"{'not ok' if difference > 1e-5 else 'ok'} - {kept.name} remade within {difference:.1e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
