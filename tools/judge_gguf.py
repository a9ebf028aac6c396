#!/usr/bin/env python3
"""Judges src/io by outsiders: the gguf package writes what we read and reads what we write; llama.cpp loads our adapters.

  tools/judge_gguf.py BUILD          compares; exit 1 on any difference. BUILD holds tests/judges/gguf_copy.
                                     (--write, which other judges take, does nothing: no answers are kept)

Run it with the Python of the judges' venv. Prints TAP.

A copy by gguf_copy is made of what our reader understood, value by value, and must be the same bytes as the package's file: a
misread value or a miswritten one would show. Where ../shared/data is at hand, its models are copied too, and each of its
adapters, written anew by us, must move the model's logits in llama.cpp exactly as the original does.
"""
import argparse
import filecmp
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as V

from tap import Tap

HOME = Path(__file__).resolve().parent.parent
SHARED = HOME.parent / "shared" / "data" / "models"
RANDOM_FILES = 200

RANGES = {V.UINT8: (0, 2**8 - 1), V.INT8: (-2**7, 2**7 - 1), V.UINT16: (0, 2**16 - 1), V.INT16: (-2**15, 2**15 - 1),
          V.UINT32: (0, 2**32 - 1), V.INT32: (-2**31, 2**31 - 1), V.UINT64: (0, 2**64 - 1), V.INT64: (-2**63, 2**63 - 1)}
# What tests/gguf_sample.h puts, written down here on its own.
SCALARS = {"t.u8": 200, "t.i8": -100, "t.u16": 60000, "t.i16": -30000, "t.u32": 4000000000, "t.i32": -2000000000, "t.f32": 0.15625,
           "t.bool": True, "t.string": "text", "t.u64": 2**64 - 1, "t.i64": -2**63, "t.f64": 1e300, "t.empty": "", "t.nul": "a\0b"}
ELEMENTS = bytes([1, 0, 1, 1, 0, 0, 0, 1]) + bytes(16)
ARRAYS = {"a.u8": "<u1", "a.i8": "<i1", "a.u16": "<u2", "a.i16": "<i2", "a.u32": "<u4", "a.i32": "<i4", "a.f32": "<f4", "a.bool": "?",
          "a.u64": "<u8", "a.i64": "<i8", "a.f64": "<f8"}
BYTES = bytes([1, 60, 2, 3, 60, 5, 8, 13, 21, 34, 55, 89]) + bytes(1012)
FLOATS = struct.pack("<8f", 0.5, -1.25, 3.0, 0, 1e-20, 7, 65504, -0.0) + bytes(992)
TENSORS = [("norm.weight", Type.F32, [8]), ("half.weight", Type.F16, [8, 5]), ("blk.0.q8.weight", Type.Q8_0, [32, 3]),
           ("blk.0.q4.weight", Type.Q4_0, [64, 2]), ("blk.0.q4k.weight", Type.Q4_K, [256]), ("exps.weight", Type.F32, [4, 2, 3]),
           ("four.weight", Type.BF16, [3, 1, 2, 2]), ("ids", Type.I32, [5]), ("scalar", Type.F32, [])]


def run(tool, *args):
    return subprocess.run([tool, *map(str, args)]).returncode == 0


def random_value(rng, kind):
    if kind in RANGES:
        low, high = RANGES[kind]
        return rng.choice([low, high, rng.randint(low, high)])
    if kind == V.BOOL:
        return rng.random() < 0.5
    if kind == V.FLOAT32:
        return struct.unpack("<f", struct.pack("<f", rng.gauss(0, 10.0 ** rng.randint(-30, 30))))[0]
    if kind == V.FLOAT64:
        return rng.gauss(0, 10.0 ** rng.randint(-200, 200))
    return "".join(chr(rng.choice([0, 10, 97, 0xE9, 0x4E2D, 0x1F600])) for _ in range(rng.randint(0, 12)))


def random_file(path, seed, **split):
    """A file of the package's own writer with every kind of value and tensor."""
    rng = random.Random(seed)
    w = gguf.GGUFWriter(path, "llama", **split)
    kinds = [k for k in V if k != V.ARRAY]
    for i in range(rng.randint(1, 25)):
        kind = rng.choice(kinds)
        if rng.random() < 0.5:
            w.add_key_value(f"k.{i}", random_value(rng, kind), kind)
        else:
            values = [random_value(rng, kind) for _ in range(rng.randint(1, 40))]
            w.add_key_value(f"k.{i}", values, V.ARRAY, sub_type=kind)
    types = [t for t in Type if t not in (Type.Q8_1, Type.Q8_K)]
    for i in range(rng.randint(0, 12)):
        kind = rng.choice(types)
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        shape = [rng.randint(1, 5) for _ in range(rng.randint(0, 3))] + [elems * rng.randint(1, 3)]
        count = int(np.prod(shape)) // elems * size
        w.add_tensor(f"t.{i}", np.frombuffer(rng.randbytes(count), np.uint8).reshape(shape[:-1] + [shape[-1] // elems * size]),
                     raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def content(path):
    reader = gguf.GGUFReader(path)
    return {t.name: (t.tensor_type, t.shape.tolist(), bytes(t.data)) for t in reader.tensors}


def judge_random(tap, tool, folder):
    same = 0
    for seed in range(RANDOM_FILES):
        random_file(folder / "p.gguf", seed)
        same += run(tool, "copy", folder / "p.gguf", folder / "c.gguf") and filecmp.cmp(folder / "p.gguf", folder / "c.gguf", shallow=False)
    tap.check(same == RANDOM_FILES, f"{same} of {RANDOM_FILES} files of the gguf package are the same bytes after a copy")


def judge_split(tap, tool, folder):
    joined = 0
    seeds = [s for s in range(40) if random_file(folder / "p.gguf", s) is None and len(content(folder / "p.gguf")) > 3]
    for seed in seeds:
        for old in folder.glob("s-*"):
            old.unlink()
        random_file(folder / "p.gguf", seed)
        random_file(folder / "s.gguf", seed, split_max_tensors=3)
        first = sorted(folder.glob("s-00001-of-*"))[0]
        joined += run(tool, "copy", first, folder / "c.gguf") and filecmp.cmp(folder / "p.gguf", folder / "c.gguf", shallow=False)
    tap.check(len(seeds) > 10 and joined == len(seeds), f"{joined} of {len(seeds)} split files of the gguf package, joined, are the whole file")


def judge_sample(tap, tool, folder):
    tap.check(run(tool, "sample", folder), "the samples are written")
    reader = gguf.GGUFReader(folder / "model.gguf")
    wrong = [k for k, v in SCALARS.items() if reader.fields[k].contents() != v]
    for key, kind in ARRAYS.items():
        want = np.frombuffer(ELEMENTS, kind)[:3].tolist()
        wrong += [key] if reader.fields[key].contents() != want else []
    wrong += ["a.string"] if reader.fields["a.string"].contents() != ["one", "", "thr\0e"] else []
    wrong += [k for k in ("a.none", "a.nostrings") if reader.fields[k].parts[-1].tolist() != [0]]
    tap.check(not wrong, f"every value of our writer reads as it was meant {' '.join(wrong)}")
    wrong = []
    if [t.name for t in reader.tensors] != [name for name, _, _ in TENSORS]:
        wrong.append("order")
    for t, (name, kind, shape) in zip(reader.tensors, TENSORS):
        source = FLOATS if kind == Type.F32 else BYTES
        if t.tensor_type != kind or t.shape.tolist() != shape or t.data_offset % 64 or bytes(t.data) != source[:t.n_bytes]:
            wrong.append(name)
    tap.check(not wrong and reader.fields["general.alignment"].contents() == 64, f"every tensor of our writer too {' '.join(wrong)}")
    fields = gguf.GGUFReader(folder / "adapter.gguf").fields
    want = {"general.architecture": "llama", "general.type": "adapter", "general.name": "sample", "adapter.type": "lora",
            "adapter.lora.alpha": 8.0, "graft.base.hash": "0123abcd"}
    tap.check(all(fields[k].contents() == v for k, v in want.items()), "an adapter's metadata reads as it was meant")


def judge_real_files(tap, tool, folder):
    for model in sorted(SHARED.glob("**/*.gguf")):
        same = run(tool, "copy", model, folder / "c.gguf") and content(model) == content(folder / "c.gguf")
        fields = [{k: f.contents() for k, f in gguf.GGUFReader(p).fields.items()} for p in (model, folder / "c.gguf")]
        tap.check(same and fields[0] == fields[1], f"{model.stem}: a copy holds the same")


def logits(model, adapter, ids):
    import llama_cpp
    llama = llama_cpp.Llama(str(model), n_ctx=64, n_batch=64, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False,
                            lora_path=str(adapter) if adapter else None)
    llama.eval(ids)
    return np.array(llama.scores[:len(ids)])


def judge_adapters(tap, tool, folder):
    for base, adapter in [("stories260K-f32", "stories260K-lora-r4-a8"), ("tiny/qwen3-tiny-f32", "tiny/lora-qwen3-r4-a8-attn+ffn"),
                          ("tiny/qwen3moe-tiny-f32", "tiny/lora-qwen3moe-r4-a8-attn+experts")]:
        base, adapter, ours = SHARED / f"{base}.gguf", SHARED / f"{adapter}.gguf", folder / "ours.gguf"
        tap.check(run(tool, "adapter", adapter, ours), f"{adapter.stem}: written anew")
        tap.check(list(content(ours).items()) == list(content(adapter).items()), f"{adapter.stem}: the same tensors in the same order")
        ids = [1, 7, 3, 9, 4, 11, 6, 2]
        plain, theirs, mine = logits(base, None, ids), logits(base, adapter, ids), logits(base, ours, ids)
        moved = np.abs(theirs - plain).max()
        tap.check(np.array_equal(theirs, mine) and moved > 1e-3, f"{adapter.stem}: llama.cpp's logits are equal (moved by {moved:.3g})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        return 0
    tool, tap = args.build / "tests" / "judges" / "gguf_copy", Tap()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        judge_random(tap, tool, folder)
        judge_split(tap, tool, folder)
        judge_sample(tap, tool, folder)
        if SHARED.exists():
            judge_real_files(tap, tool, folder)
            judge_adapters(tap, tool, folder)
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
