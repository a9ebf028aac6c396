#!/usr/bin/env python3
"""A second judge of experts whose gate and up are one stack, which this llama.cpp does not load: the same model with the stack in two.

    tools/judge_fused.py BUILD

The `gguf` package cuts the fused stack of the golden model qwen3moe-fused, and the adapter on it, into gate and up: the adapter's A is both
parts' and its B is cut like the stack. Of that model llama.cpp is asked for the nll of the golden tokens. BUILD/graft must give
the same, token by token, for the fused files and for the cut ones, with the adapter and without; so must PyTorch's recorded answers.
Prints TAP.
"""
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

import judge_llama
from judge_llama import GOLDEN, worst
from tap import Tap

NAME = "qwen3moe-fused"
FUSED, PARTS = "ffn_gate_up_exps", ("ffn_gate_exps", "ffn_up_exps")
BOUND = 1e-4  # llama.cpp's of the other golden models; theirs are off by 1e-5 at most
MOVE = 0.05  # what the adapter must move a token's nll by on average, or it was not judged


def cut(source, target):
    """Copies a file; of every fused tensor, and of lora_b on one, each part has half of the rows, and lora_a goes to both. Gives how many."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, sub_type=inner[-1] if inner else None)
    count = 0
    for tensor in reader.tensors:
        if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            raise SystemExit(f"judge_fused: {tensor.name} of {source} is not in F32")
        if FUSED not in tensor.name:
            writer.add_tensor(tensor.name, np.array(tensor.data))
            continue
        count += 1
        half = tensor.data.shape[1] // 2  # [experts, rows, columns]
        for part, name in enumerate(PARTS):
            rows = tensor.data if tensor.name.endswith("lora_a") else tensor.data[:, part * half:(part + 1) * half]
            writer.add_tensor(tensor.name.replace(FUSED, name), np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return count


def judge(tap, graft, model, lora):
    golden = {t.name: t.data for t in gguf.GGUFReader(GOLDEN / f"{NAME}-expected.gguf").tensors}
    rows = [golden["segments"] == segment for segment in np.unique(golden["segments"])]
    ids = [golden["ids"][row].tolist() for row in rows]
    answers = {}
    for with_it, key in ((False, "base.nll"), (True, "nll")):
        llama = judge_llama.Llama(model, lora if with_it else None)
        truth = answers[with_it] = [llama.score(sequence)["nll"] for sequence in ids]
        what = "with the adapter" if with_it else "alone"

        def hold(name, nlls):
            off = max(worst(a, b) for a, b in zip(nlls, truth, strict=True))
            tap.check(off <= BOUND, f"{what}: {name} gives the nll that llama.cpp has for the stack in two (worst {off:.1e})")

        hold("PyTorch on the fused stack", [golden[key][row][:-1] for row in rows])
        for name, base, adapter in (("graft on the fused stack", GOLDEN / f"{NAME}.gguf", GOLDEN / f"{NAME}-lora.gguf"), ("graft on the stack in two", model, lora)):
            hold(name, [case["nll"] for case in judge_llama.graft_scores(graft, base, adapter if with_it else None, ids)])
    move = float(np.mean([np.abs(np.subtract(a, b)).mean() for a, b in zip(answers[True], answers[False])]))
    tap.check(move >= MOVE, f"the adapter moves the nll by {move:.3f} a token")


def main():
    tap, graft = Tap(), Path(sys.argv[1]) / "graft"
    with tempfile.TemporaryDirectory() as folder:
        model, lora = Path(folder) / "cut.gguf", Path(folder) / "cut-lora.gguf"
        stacks, factors = cut(GOLDEN / f"{NAME}.gguf", model), cut(GOLDEN / f"{NAME}-lora.gguf", lora)
        tap.check(stacks >= 1 and factors == 2 * stacks, f"{stacks} fused stacks and the {factors} factors on them were cut")
        judge(tap, graft, model, lora)
    print(f"1..{tap.ran}")
    return 1 if tap.failed or not tap.ran else 0


if __name__ == "__main__":
    sys.exit(main())
