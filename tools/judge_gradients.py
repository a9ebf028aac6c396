#!/usr/bin/env python3
"""Judges gradients through quantized weights, of every architecture, by the gguf package and PyTorch.

    tools/judge_gradients.py BUILD [NAME...]    compares, these cases or all; exit 1 when one differs
    tools/judge_gradients.py BUILD --write      also rewrites the tables of docs/quantized-gradients.md

A case is a golden model of golden_cases.py, widened until its rows are whole blocks of every type, in F32. Its gradients must be
PyTorch's. Then BUILD/graft quantizes it to each type: the gradients of the quantized file must equal, at float epsilon, those of the same file
decoded to F32 by the gguf package. How far they are from the original's, by angle and length, is printed and goes into the document.

Run it with the Python of the judges' venv. BUILD holds graft and tests/judges/gradients. Prints one TAP line a check.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch

import decode_gguf
import gguf_export as export
import make_golden
from golden_cases import CASES
from tap import Tap

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "quantized-gradients.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
TYPES = ["Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K"]
NAMES = ["llama", "mistral3", "qwen2", "qwen3", "granite", "gemma3", "phi3", "mixtral", "qwen2moe", "qwen3moe", "qwen3moe-fused", "olmoe", "granitemoe",
         "granitemoe-shared", "gpt-oss"]
WIDE = dict(hidden_size=256, num_attention_heads=4, head_dim=64, intermediate_size=256, moe_intermediate_size=256,
            shared_intermediate_size=256, shared_expert_intermediate_size=256, query_pre_attn_scalar=64)
EPSILON = 1e-6  # relative, of a gradient as a whole: a handful of float epsilons
EXACT = 1e-4    # between ours and PyTorch's in double precision, as in test_golden
DRIFT = 0.02    # of what the document says, on another machine


def widened(name):
    """The case with 256 for every length of a row; an attribute that the configuration has not is not given one."""
    case = {key: value for key, value in CASES[name].items() if key != "types"}
    return case | {key: width for key, width in WIDE.items() if key in case or key in ("hidden_size", "num_attention_heads", "intermediate_size")}


class Case:
    """The F32 model, its adapter and samples in a folder, and PyTorch's gradients in double precision."""

    def __init__(self, name, folder):
        self.model, self.adapter = folder / f"{name}.gguf", folder / f"{name}-lora.gguf"
        for seed in range(20):  # until the routers are sure of some inputs
            try:
                return self.draw(name, widened(name), np.random.default_rng([ord(c) for c in f"{name} wide {seed}"]))
            except make_golden.Unclear:
                pass
        raise AssertionError(f"{name}: no inputs are routed clearly")

    def draw(self, name, case, random):
        words, model = make_golden.build(case)
        config = model.config
        make_golden.random_weights(random, model, config, None)
        state = {key: weight.numpy().copy() for key, weight in model.state_dict().items()}
        base = make_golden.in_double(model)
        model = make_golden.adapted(model, case, random)
        exact = make_golden.in_double(model)
        inputs = make_golden.choose_inputs(random, case, config, base, exact, draws=60)[0]
        pairs = make_golden.lora_pairs(model, lambda w: w.detach().numpy().copy())
        export.write_model(self.model, config, state, words, "wide random")
        export.write_adapter(self.adapter, config, pairs, case["lora"]["lora_alpha"], "wide random adapter")
        self.samples = "".join(sample_line(inputs, segment) for segment in np.unique(inputs["segments"]))
        self.weight = float(inputs["weights"].sum())
        self.truth = {key: array.ravel() for key, array in export.adapter_tensors(config, make_golden.gradients(exact, inputs)[3])}

    def gradients(self, build, model):
        """What ours says: name -> gradient of the mean loss."""
        run = subprocess.run([build / "tests" / "judges" / "gradients", model, self.adapter], input=self.samples.encode(), stdout=subprocess.PIPE)
        if run.returncode:
            return None
        head, _, body = run.stdout.partition(b"\n\n")
        values, at, named = np.frombuffer(body, np.float32).astype(np.float64) / self.weight, 0, {}
        for line in head.decode().splitlines()[1:]:
            name, count = line.split()
            named[name] = values[at:at + int(count)]
            at += int(count)
        assert at == len(values) and all(np.isfinite(g).all() for g in named.values())
        return named


def sample_line(inputs, segment):
    """Row t of a golden input weighs the prediction of token t + 1; here a token carries the weight of its own prediction."""
    rows = inputs["segments"] == segment
    weights = np.append(0, inputs["weights"][rows][:-1])
    return " ".join(f"{i}:{w}" for i, w in zip(inputs["ids"][rows], weights)) + "\n"


def worst(a, b):
    """The largest relative difference of a matrix's gradient."""
    if a is None or b is None or set(a) != set(b):
        return np.inf
    return max(np.linalg.norm(a[name] - b[name]) / np.linalg.norm(b[name]) for name in b)


def angle_and_length(a, b):
    """Degrees between two gradients as wholes, and how long the first is by the second's length."""
    x, y = (np.concatenate([g[name] for name in sorted(b)]) for g in (a, b))
    cosine = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    return np.degrees(np.arccos(min(1, cosine))), np.linalg.norm(x) / np.linalg.norm(y)


def stored_types(path):
    """Types of the matrices that are quantized at all."""
    return {t.tensor_type.name for t in gguf.GGUFReader(path).tensors} - {"F32"}


def judge(tap, build, name, folder):
    """Checks a case; returns type -> (angle, length)."""
    case, table = Case(name, folder), {}
    original = case.gradients(build, case.model)
    off = worst(original, case.truth)
    tap.check(off <= EXACT, f"{name}, widened: PyTorch's gradients in F32 ({len(case.truth)} matrices, worst {off:.1e})")
    if original is None:
        return table
    for kind in TYPES:
        packed, plain = folder / f"{name}-{kind}.gguf", folder / f"{name}-{kind}-f32.gguf"
        subprocess.run([build / "graft", "quantize", case.model, packed, kind], check=True, stderr=subprocess.DEVNULL)
        decode_gguf.decode(packed, plain)
        ours, decoded = case.gradients(build, packed), case.gradients(build, plain)
        off, types = worst(ours, decoded), stored_types(packed)
        same = ours is not None and all(np.array_equal(ours[key], decoded[key]) for key in decoded)
        tap.check(off <= EPSILON and types == {kind}, f"{name} as {'+'.join(sorted(types))}: gradients are those of its decoded weights "
                  + ("(the same bits)" if same else f"(worst {off:.1e})"))
        if ours:
            table[kind] = angle_and_length(ours, original)
        packed.unlink()
        plain.unlink()
    case.model.unlink()
    return table


def as_document(tables):
    lines = ["| model | " + " | ".join(TYPES) + " |", "|---" * (len(TYPES) + 1) + "|"]
    for name, table in tables.items():
        lines.append(f"| `{name}` | " + " | ".join(f"{table[kind][0]:.2f}°, {table[kind][1]:.3f}" for kind in TYPES) + " |")
    return lines


def numbers(text):
    return [float(word.strip(" °,")) for line in text.splitlines() if line.startswith("| `") for cell in line.split("|")[2:-1] for word in cell.split()]


def judge_document(tap, tables, write):
    before, rest = DOC.read_text().split(BEGIN)
    written, after = rest.split(END)
    fresh = "\n" + "\n".join(as_document(tables)) + "\n"
    if write:
        DOC.write_text(before + BEGIN + fresh + END + after)
        written = fresh
    was, now = numbers(written), numbers(fresh)
    off = max((abs(a - b) / max(abs(b), 1) for a, b in zip(was, now)), default=np.inf) if len(was) == len(now) else np.inf
    tap.check(off <= DRIFT, f"{DOC.relative_to(ROOT)} says so (worst {off:.1e})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="rewrite the tables of the document")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tap, tables = Tap(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or NAMES:
            tables[name] = judge(tap, arguments.build, name, Path(folder))
    for line in as_document({name: table for name, table in tables.items() if table}):
        print("#", line)
    if not arguments.names and all(tables.values()):
        judge_document(tap, tables, arguments.write)
    print(f"1..{tap.ran}")
    return 1 if tap.failed or not tap.ran else 0


if __name__ == "__main__":
    sys.exit(main())
