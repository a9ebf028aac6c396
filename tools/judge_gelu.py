#!/usr/bin/env python3
"""Why a token of Gemma 3 may be further from llama.cpp than from PyTorch: proof that the table of its GELU is the whole reason.

    tools/judge_gelu.py BUILD

llama.cpp (F32 weights, F32 cache) is watched while it scores the texts of tests/golden/llamacpp-gemma3-270m.json: every layer's gate, up
and gated result. That result must be, bit for bit, a table's value times up, where the table rounds both the gate and its GELU to half
floats. Then PyTorch, in double, scores the same tokens twice: as it is, and with exactly the errors that the table made of llama.cpp's gates
added to its own GELU. (To round PyTorch's own gates would not do: a gate a millionth away may round to the other neighbour, and after
a few layers half of the errors are others.) With them it must give llama.cpp's nll, token by token, where without it does not.
Prints TAP. Nothing of Graft is judged here: what tools/judge_llama.py allows it for Gemma 3 stands on this. BUILD is not looked at.
"""
import ctypes
import json
import sys

import llama_cpp
import numpy as np
import torch

import judge_llama
import make_golden
from tap import Tap

CLOSE = 1e-4  # of a token's nll, with the table's errors; seen: 1.3e-5
BETTER = 100  # times closer than without, at least; seen: 240
SLACK = 2.0**-20  # of a table's value beyond half a place of a half float: F32's cancellation where GELU is nearly 0


QUIET = llama_cpp.llama_log_callback(lambda *_: None)


def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def read_table():
    """ggml's own, made anew in a copy of its library: the GELU of each half float, as a half float."""
    library = ctypes.CDLL(next(llama_cpp.llama_cpp._base_path.glob("libggml-cpu.*")))
    library.ggml_cpu_init()
    return torch.from_numpy(np.array((ctypes.c_uint16 * 65536).in_dll(library, "ggml_table_gelu_f16"), np.uint16).view(np.float16))


def tabled(table, gate):
    """ggml's GELU of F32 values: 0 and x outside of -10 to 10, within it the table's value at x's nearest half float."""
    place = torch.from_numpy(gate.half().numpy().view(np.uint16).astype(np.int64))
    return torch.where(gate <= -10, 0.0, torch.where(gate >= 10, gate, table[place].float()))


def tensor_functions():
    """Of ggml: name, number of elements and data of a tensor, by its address."""
    base = ctypes.CDLL(next(llama_cpp.llama_cpp._base_path.glob("libggml-base.*")))
    functions = []
    for name, result in (("ggml_get_name", ctypes.c_char_p), ("ggml_nelements", ctypes.c_int64), ("ggml_get_data", ctypes.c_void_p)):
        function = getattr(base, name)
        function.restype, function.argtypes = result, [ctypes.c_void_p]
        functions.append(function)
    return functions


class Watched:
    """llama.cpp's context over a model, with a callback that keeps what the gated units compute."""

    def __init__(self, path, context=512):
        name_of, count_of, data_of = tensor_functions()
        self.kept = {}

        def watch(tensor, ask, _):
            name = name_of(tensor).decode()
            if not name.startswith(("ffn_gate-", "ffn_up-", "ffn_geglu-")):
                return not ask
            if not ask:
                floats = (ctypes.c_float * count_of(tensor)).from_address(data_of(tensor))
                self.kept[name] = np.array(floats, np.float32)
            return True

        self.callback = llama_cpp.ggml_backend_sched_eval_callback(watch)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        p = llama_cpp.llama_context_default_params()
        p.n_ctx = p.n_batch = p.n_ubatch = context
        p.n_threads = p.n_threads_batch = 1
        p.type_k = p.type_v = 0  # F32
        p.flash_attn_type = 0
        p.cb_eval = self.callback
        self.context = llama_cpp.llama_init_from_model(self.model, p)
        self.words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def score(self, ids):
        """-ln p of each token after the first; the layers' values are in self.kept."""
        self.kept.clear()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("judge_gelu: llama_decode failed")
        rows = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (len(ids), self.words)).astype(np.float64)
        llama_cpp.llama_batch_free(batch)
        rows -= rows.max(-1, keepdims=True)
        log_p = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        return np.array([-log_p[i, ids[i + 1]] for i in range(len(ids) - 1)])


def pytorch_nll(exact, ids, errors):
    """By transformers in double. errors: of each layer, what is added to its GELU; None: nothing."""
    kept = []
    for layer, block in enumerate(exact.model.layers):
        kept.append(block.mlp.act_fn.forward)
        extra = None if errors is None else errors[layer]
        block.mlp.act_fn.forward = lambda x, extra=extra: gelu(x) if extra is None else gelu(x) + extra
    with torch.no_grad():
        log_p = exact(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].log_softmax(-1)
    for block, forward in zip(exact.model.layers, kept):
        block.mlp.act_fn.forward = forward
    return -log_p.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def table_errors(table, kept, layers, tokens):
    """What the table was off by at llama.cpp's gates, by layer; and whether its gated results are the table's, bit for bit."""
    errors, same = [], True
    for layer in range(layers):
        gate, up, gated = (torch.from_numpy(kept[f"{name}-{layer}"]).reshape(tokens, -1) for name in ("ffn_gate", "ffn_up", "ffn_geglu"))
        value = tabled(table, gate)
        same = same and torch.equal(value * up, gated)
        errors.append(value.double() - gelu(gate.double()))
    return errors, same


def main():
    tap = Tap()
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    path = judge_llama.fetched("gemma3-270m")
    texts = json.loads(judge_llama.record_path("gemma3-270m").read_text())["score"]
    llama, exact = Watched(judge_llama.decoded(path)), judge_llama.read_by_pytorch(path)
    layers, halves = len(exact.model.layers), read_table()
    every = torch.from_numpy(np.arange(65536, dtype=np.uint16).view(np.float16)).double()
    off = ((halves.double() - gelu(every)).abs() - 2.0**-11 * gelu(every).abs())[every.abs() < 10].max()
    tap.check(off <= SLACK and halves.unique().numel() > 1000, f"the table is GELU, rounded to half floats (beyond that off by {off:.1e} at worst)")
    for i, ids in enumerate(case["ids"] for case in texts):
        truth = llama.score(ids)
        errors, same = table_errors(halves, llama.kept, layers, len(ids))
        tap.check(same, f"text {i}: llama.cpp's gated results are the half table's values times up, bit for bit, in {layers} layers")
        plain = judge_llama.worst(pytorch_nll(exact, ids, None), truth)
        table = judge_llama.worst(pytorch_nll(exact, ids, errors), truth)
        tap.check(table <= CLOSE and BETTER * table <= plain,
                  f"text {i}: a token's nll by PyTorch is {plain:.1e} from llama.cpp's at worst, with the table's errors {table:.1e}")
    print(f"1..{tap.ran}")
    return 1 if tap.failed or not tap.ran else 0


if __name__ == "__main__":
    sys.exit(main())
