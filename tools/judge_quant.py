#!/usr/bin/env python3
"""Judges src/quant by outsiders: the gguf package decodes, the library of a real llama.cpp (ggml_quantize_chunk) encodes.

  tools/judge_quant.py BUILD             compares; exit 1 if a decoded value differs or an encoder loses
  tools/judge_quant.py BUILD --write     also rewrites tests/golden/quant.txt, which `make test` holds us to without Python,
                                         and the table of docs/quant.md

Run it with the Python of the judges' venv (packages gguf, numpy, llama-cpp-python). BUILD holds tests/judges/quant_codec.
Prints one TAP line a check. Real rows come from ../shared/data/models, from what tools/fetch-model has fetched and from any GGUF named
with --model.

The blocks are pseudo-random and made alike here and in tests/unit/test_quant.c. Word i of a stream is the SplitMix64 output for state
seed + (i + 1) * GAMMA, its bytes little-endian; seed is 16 * (ggml type number) + family:
  random   all bytes as they come: infinite and NaN scales among them
  bounded  bit 14 of every half-precision scale cleared: magnitudes below 2
  extreme  the scales of block i are EXTREME[i % 16] and EXTREME[i / 16 % 16]; MXFP4's exponent is i % 256
The rows that encoders are held to in `make test` are 64 of 256, made likewise with seed 1: bell[i] is the sum of the four 16-bit quarters
of word i, less 131070, over 2^18; tailed[i] its cube, times 16, in double and then rounded.
What ours encode them to is hashed byte by byte, each taken as a float. A hash is the sum over i of mix(word of element i | i << 32); a NaN counts as 0x7fc00000, for neither its sign nor its payload is defined.
"""
import argparse
import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "quant.txt"
DOC = ROOT / "docs" / "quant.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
GAMMA = np.uint64(0x9E3779B97F4A7C15)
EXTREME = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00,
           0x2E66, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF]
FAMILIES = ["random", "bounded", "extreme"]
BLOCKS = 512

# Where the half-precision scales of a block lie. Written down here on its own, as a check on the layouts of src/quant/blocks.h.
SCALES = {"F32": [], "F16": [0], "BF16": [], "F64": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def stream(seed, nbytes):
    i = np.arange(1, (nbytes + 7) // 8 + 1, dtype=np.uint64)
    return mix(np.uint64(seed) + i * GAMMA).astype("<u8").tobytes()[:nbytes]


def sizes(name):
    return (1, 8) if name == "F64" else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def blocks(name, family):
    nbytes = sizes(name)[1]
    seed = 16 * int(gguf.GGMLQuantizationType[name]) + FAMILIES.index(family)
    b = np.frombuffer(stream(seed, BLOCKS * nbytes), np.uint8).reshape(BLOCKS, nbytes).copy()
    i = np.arange(BLOCKS)
    for k, at in enumerate(SCALES[name]):
        half = b[:, at] | b[:, at + 1].astype(np.uint16) << 8
        if family == "bounded":
            half &= 0xBFFF
        elif family == "extreme":
            half = np.array(EXTREME, np.uint16)[i % 16 if k == 0 else i // 16 % 16]
        b[:, at], b[:, at + 1] = half & 255, half >> 8
    if name == "MXFP4" and family == "extreme":
        b[:, 0] = i & 255
    return b


def golden_rows(kind):
    quarters = np.frombuffer(stream(1, 64 * 256 * 8), "<u2").reshape(-1, 4).astype(np.int64)
    bell = (quarters.sum(1) - 131070) / 2.0**18
    return (bell if kind == "bell" else bell * bell * bell * 16).astype(np.float32).reshape(64, 256)


def reference_decode(name, b):
    with np.errstate(all="ignore"):
        if name == "F64":
            return b.reshape(-1).view("<f8").astype(np.float32)
        return gguf.quants.dequantize(b, gguf.GGMLQuantizationType[name]).astype(np.float32).reshape(-1)


def words(values):
    w = np.asarray(values, np.float32).view(np.uint32).copy()
    w[(w & 0x7FFFFFFF) > 0x7F800000] = 0x7FC00000
    return w


def fingerprint(values):
    w = words(values).astype(np.uint64)
    with np.errstate(over="ignore"):
        return int(np.sum(mix(w | np.arange(w.size, dtype=np.uint64) << np.uint64(32)), dtype=np.uint64))


class Codec:
    def __init__(self, build):
        self.program = pathlib.Path(build) / "tests" / "judges" / "quant_codec"

    def run(self, verb, name, data, dtype, *more):
        done = subprocess.run([self.program, verb, name, *more], input=data, stdout=subprocess.PIPE, check=True)
        return np.frombuffer(done.stdout, dtype)

    def decode(self, name, b):
        return self.run("decode", name, b.tobytes(), np.float32)

    def encode(self, name, x):
        return self.run("encode", name, np.ascontiguousarray(x, np.float32).tobytes(), np.uint8)


class Tap:
    count = failed = 0

    def check(self, good, text):
        self.count += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.count} - {text}")


def judge_decoders(codec, tap, golden):
    for name in SCALES:
        for family in FAMILIES:
            b = blocks(name, family)
            want, have = reference_decode(name, b), codec.decode(name, b)
            bad = np.flatnonzero(words(want) != words(have))
            where = f", first at element {bad[0]}: {want[bad[0]]!r} against {have[bad[0]]!r}" if bad.size else ""
            tap.check(bad.size == 0, f"decode {name} {family}: {want.size} values, {bad.size} differ from gguf's{where}")
            golden.append(f"hash {name} {family} {BLOCKS} {fingerprint(want):016x}")
        b = blocks(name, "bounded")[:1]
        golden.append(f"block {name} {b.tobytes().hex()} {words(reference_decode(name, b)).astype('>u4').tobytes().hex()}")
    for name in ("F16", "BF16"):  # every value
        b = np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
        tap.check(np.array_equal(words(reference_decode(name, b)), words(codec.decode(name, b))), f"decode {name}: all 65536 values")


def llama_quantizer():
    """ggml_quantize_chunk of the libggml-base that llama-cpp-python carries, without importing that package."""
    spec = importlib.util.find_spec("llama_cpp")
    lib = ctypes.CDLL(str(pathlib.Path(spec.origin).parent / "lib" / "libggml-base.so"))
    chunk = lib.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

    def quantize(name, x):
        out = np.zeros(x.size // sizes(name)[0] * sizes(name)[1], np.uint8)
        x = np.ascontiguousarray(x, np.float32)
        chunk(int(gguf.GGMLQuantizationType[name]), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
        return out

    return quantize


def model_rows(path, most=1 << 20):
    """Up to `most` weights of the model's F32, F16, BF16 or quantized matrices, in rows of 256."""
    parts, left = [], most
    for t in gguf.GGUFReader(path).tensors:
        if len(t.shape) < 2 or t.n_elements < 4096 or left <= 0:
            continue
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(-1)
        take = min(values.size, left, most // 16) // 256 * 256
        parts.append(values[:take])
        left -= take
    return np.concatenate(parts).reshape(-1, 256)


def rows_by_kind(models):
    rng = np.random.default_rng(20240229)
    shape = (1024, 256)
    sign = rng.choice([-1.0, 1.0], shape)
    kinds = {
        "Gaussian": 0.02 * rng.standard_normal(shape),
        "Laplace": 0.02 * rng.laplace(size=shape),
        "Student t, 3": 0.02 * rng.standard_t(3, shape),
        "log-normal": 0.01 * sign * np.exp(rng.standard_normal(shape)),
        "uniform": rng.uniform(-1, 1, shape),
        "positive": 0.1 + 0.02 * rng.standard_normal(shape),
        "row scales": 0.02 * rng.standard_normal(shape) * np.exp(2 * rng.standard_normal((1, 256))),
    }
    for path in models:
        kinds[path.stem] = model_rows(path)
    return {k: np.ascontiguousarray(v, np.float32) for k, v in kinds.items()}


ENCODED = ["F16", "BF16", "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K", "Q4_1", "Q4_0", "Q4_K", "Q3_K", "Q2_K"]


def relative_rms(name, x, b):
    y = reference_decode(name, b.reshape(-1, sizes(name)[1])).astype(np.float64)
    return float(np.sqrt(np.mean((y - x.reshape(-1)) ** 2) / np.mean(x.astype(np.float64) ** 2)))


def judge_encoders(codec, tap, models, golden):
    """Relative RMS error, ours and llama.cpp's, decoded by the gguf package. Returns the table."""
    quantize = llama_quantizer()
    for name in ENCODED:
        for kind in ("bell", "tailed"):
            x = golden_rows(kind)
            golden.append(f"rms {name} {kind} {relative_rms(name, x, quantize(name, x)):.12e}")
            golden.append(f"bytes {name} {kind} {fingerprint(codec.encode(name, x).astype(np.float32)):016x}")
    kinds = rows_by_kind(models)
    lines = ["| type | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for name in ENCODED:
        cells = []
        for kind, x in kinds.items():
            ours, theirs = relative_rms(name, x, codec.encode(name, x)), relative_rms(name, x, quantize(name, x))
            cells.append(f"{100 * ours:.4g} / {100 * theirs:.4g}")
            tap.check(ours <= theirs, f"encode {name} {kind}: {100 * ours:.5g}% of RMS, llama.cpp {100 * theirs:.5g}% ({ours / theirs:.4f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def judge_files(codec, tap, source):
    """Whole files that ours writes: the gguf package reads them, a real llama.cpp loads them and is hardly moved by eight bits."""
    import llama_cpp

    def nll(path):
        model = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, n_threads=1)
        ids = model.tokenize(b"Once upon a time, there was a little girl named Lily. She loved to play outside in the park.")
        model.eval(ids)
        z = model.scores[: len(ids)].astype(np.float64)
        z -= z.max(1, keepdims=True)
        return -float(np.mean([z[i, ids[i + 1]] - np.log(np.exp(z[i]).sum()) for i in range(len(ids) - 1)]))

    plain = {t.name: t for t in gguf.GGUFReader(source).tensors}
    base = nll(source)
    with tempfile.TemporaryDirectory() as folder:
        for name in ENCODED:
            out = pathlib.Path(folder) / f"{name}.gguf"
            codec.run("file", name, b"", np.uint8, str(source), str(out))
            kinds, same = set(), True
            for t in gguf.GGUFReader(out).tensors:
                x, kind = plain[t.name].data, t.tensor_type.name
                kinds.add(kind)
                same &= list(t.shape) == list(plain[t.name].shape)
                same &= t.data.tobytes() == (x.tobytes() if kind == "F32" else codec.encode(kind, x).tobytes())
            moved = nll(out) - base
            good = same and abs(moved) < (0.01 if sizes(name)[1] / sizes(name)[0] > 1 else 0.5)
            tap.check(good, f"file {name}: holds {', '.join(sorted(kinds))}; llama.cpp's nll {base:.4f} moves by {moved:+.4f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--write", action="store_true")
    p.add_argument("--model", action="append", default=[], type=pathlib.Path, help="a GGUF whose weights are encoded too")
    a = p.parse_args()
    shared = ROOT.parent / "shared" / "data" / "models"
    fetched = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "graft" / "models"
    known = (shared / "stories260K-f32.gguf", fetched / "gemma3-270m.gguf", fetched / "smollm2.gguf")
    models = [m for m in known if m.exists()] + a.model
    codec, tap, golden = Codec(a.build), Tap(), []
    judge_decoders(codec, tap, golden)
    table = "\n".join(judge_encoders(codec, tap, models, golden))
    text = ("# Made by tools/judge_quant.py --write: hash and block by the gguf package's decoders, rms by llama.cpp's encoders;\n"
            "# bytes, by our own encoders, hold other compilers to the same bits.\n" + "\n".join(golden) + "\n")
    if a.write:
        GOLDEN.write_text(text)
        before, rest = DOC.read_text().split(BEGIN)
        DOC.write_text(before + BEGIN + "\n" + table + "\n" + END + rest.split(END)[1])
    if models and models[0].name == "stories260K-f32.gguf":
        judge_files(codec, tap, models[0])
    tap.check(GOLDEN.read_text() == text, f"{GOLDEN.relative_to(ROOT)} is what gguf and llama.cpp give")
    print(f"1..{tap.count}")
    return tap.failed > 0


if __name__ == "__main__":
    sys.exit(main())
