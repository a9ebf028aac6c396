#!/usr/bin/env python3
"""Judges Graft's inference by a real llama.cpp (llama-cpp-python), token by token.

    tools/judge_llama.py BUILD                                 every model below: llama.cpp against the committed answers, BUILD/graft against llama.cpp
    tools/judge_llama.py BUILD --write                         rewrites tests/golden/llamacpp-*.json instead (needs no program)
    tools/judge_llama.py BUILD --model M [--lora A] [--text T] judges these files alone, on T's lines or on the texts below

llama.cpp is given the model decoded to F32 by the `gguf` package, an F32 cache and no flash attention; Graft runs the file as it is.
Prints TAP. A token's -ln p may differ by 0.002 (by 0.004 where llama.cpp itself is no closer, see COARSE; then
a text's mean may differ by 0.002, and for Gemma 3 270M PyTorch is asked too).
Greedy text must be equal until llama.cpp's own two best logits are closer than that.
With an adapter, the change that it makes is compared too, and must be at least 20 times the tolerance, or nothing was tested.
"""
import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

import decode_gguf

from tap import Tap

HOME = Path(__file__).resolve().parent.parent
GOLDEN = HOME / "tests" / "golden"
SHARED = HOME.parent / "shared" / "data" / "models"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graft"
TOLERANCE = 0.002
MOVE = 20 * TOLERANCE
DRIFT = 2e-4  # between two builds of llama.cpp, on other machines
GREEDY_TOKENS = 48

CHAT = ("<|im_start|>system\nYou answer in one sentence.<|im_end|>\n<|im_start|>user\nWhy do boats float?<|im_end|>\n"
        "<|im_start|>assistant\nBecause the water they push aside weighs as much as they do.<|im_end|>\n")
CODE = "def total(prices):\n    sum = 0\n    for price in prices:\n        sum += price\n    return sum\n\n\nprint(total([3, 4, 5]))  # 12\n"
PROSE = ("The lighthouse keeper wound the clock every evening at six. Nobody had asked her to, for the harbour had been closed for years, "
         "and the ships that still passed did so far out, where the lamp could hardly be seen. But a clock that stops, she used to say, "
         "is a house that has stopped breathing. One night in November the wind tore a shutter loose, and in the morning she found "
         "a boy of about ten asleep on the stairs, his boots full of sand. He would not say where he had come from.")
MIXED = "Zürich – 23 °C, 1013 hPa; naïve café: 日本語, emoji 🚀, tabs\t\tand   spaces.\n\n1. one\n2. two\n"
STORY = "Once upon a time there was a little dog named Max. He liked to run in the park with his friend."
SHORT = "The big dog"

# name: where the model is, its adapter, texts to score, and prompts to continue
SUITE = {
    "smollm2": ("fetch:smollm2", None, [CHAT, CODE, PROSE, MIXED], ["The capital of France is", PROSE[:88]]),
    "smollm2-lora": ("fetch:smollm2", GOLDEN / "smollm2-lora.gguf", [CHAT, CODE, PROSE], ["The capital of France is"]),
    "stories260K-f32": (SHARED / "stories260K-f32.gguf", None, [STORY, SHORT], ["Once upon a time"]),
    "stories260K-q8_0": (SHARED / "stories260K-q8_0.gguf", None, [STORY, SHORT], ["Once upon a time"]),
    "stories260K-q4_0": (SHARED / "stories260K-q4_0.gguf", None, [STORY, SHORT], ["Once upon a time"]),
    "stories260K-lora": (SHARED / "stories260K-f32.gguf", SHARED / "stories260K-lora-r4-a8.gguf", [STORY, SHORT], ["Once upon a time"]),
    "qwen3moe": (GOLDEN / "qwen3moe.gguf", None, [STORY, SHORT], [SHORT]),
    "qwen3moe-lora": (GOLDEN / "qwen3moe.gguf", GOLDEN / "qwen3moe-lora.gguf", [STORY, SHORT], [SHORT]),  # experts and router among its targets
    "qwen3moe-wide": (GOLDEN / "qwen3moe-wide.gguf", None, [STORY, SHORT], [SHORT]),  # stacks of K-quants
    "qwen3moe-wide-lora": (GOLDEN / "qwen3moe-wide.gguf", GOLDEN / "qwen3moe-wide-lora.gguf", [STORY, SHORT], [SHORT]),
    "gemma3-270m": ("fetch:gemma3-270m", None, [STORY, CODE, PROSE], ["The capital of France is"]),
}


# Which of the models in shared/data Graft is held to; the others await their architecture.
JUDGED = ("stories260K", "llama-tiny", "qwen3-tiny", "qwen3moe-tiny", "mixtral-tiny", "gemma3-tiny")

# Golden models of which this llama.cpp loads no file: gate and up of Qwen3's experts in one stack. tools/judge_fused.py judges that one.
NOT_LOADED = ("qwen3moe-fused",)
# Models of which llama.cpp is no exact judge, and what a token may be off by: it takes gemma's GELU from a table of half floats, whose
# errors make a token's nll 0.003 another one and are the whole difference (tools/judge_gelu.py).
COARSE = {"gemma3": 4e-3}


def tolerance_of(model):
    return next((bound for family, bound in COARSE.items() if Path(model).name.startswith(family)), TOLERANCE)


def fetched(name):
    run = subprocess.run([HOME / "tools" / "fetch-model", name], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise SystemExit(run.returncode)
    return Path(run.stdout.strip())


def decoded(model):
    """An F32 copy in the cache, named by what it was made from."""
    with open(model, "rb") as file:
        stamp = hashlib.sha256(file.read(1 << 20) + str(model.stat().st_size).encode()).hexdigest()[:12]
    target = CACHE / "decoded" / f"{model.stem}-{stamp}-f32.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as part:
            pass
        decode_gguf.decode(model, part.name)
        os.replace(part.name, target)
    return target


class Llama:
    """llama.cpp on the decoded model."""

    def __init__(self, model, lora, scale=1.0, context=512):
        f32 = gguf.GGMLQuantizationType.F32
        self.tolerance = tolerance_of(model)
        self.model = llama_cpp.Llama(
            str(decoded(model)), n_ctx=context, n_batch=context, logits_all=True, flash_attn=False, type_k=f32, type_v=f32,
            n_threads=1, n_threads_batch=1, lora_path=str(lora) if lora else None, lora_scale=scale, verbose=False)

    def tokens(self, text):
        return self.model.tokenize(text.encode(), add_bos=True, special=True)

    def logits(self, ids):
        self.model.reset()
        self.model.eval(ids)
        return np.array(self.model.scores[:len(ids)], np.float64)

    def score(self, ids):
        logits = self.logits(ids)
        best = np.partition(logits, -2)[:, -2:]
        shifted = logits - best[:, 1:]
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return dict(ids=ids, nll=[round(-log_p[i, ids[i + 1]], 6) for i in range(len(ids) - 1)],
                    greedy=logits.argmax(-1).tolist(), margin=[round(m, 6) for m in best[:, 1] - best[:, 0]])

    def continue_greedily(self, prompt, count):
        """The ids of prompt and greedy continuation, how sure each choice was, and the continuation's text."""
        ids, margins = self.tokens(prompt), []
        start = len(ids)
        self.model.reset()
        self.model.eval(ids)
        while len(ids) < start + count:
            row = self.model.scores[len(ids) - 1]
            second, best = np.partition(row, -2)[-2:]
            margins.append(round(float(best - second), 6))
            ids = ids + [int(row.argmax())]
            if ids[-1] == self.model.token_eos():
                break
            self.model.eval(ids[-1:])
        sure = start + unsure(margins, self.tolerance)
        text = self.model.detokenize(ids[start:sure], prev_tokens=ids[:start]).decode("utf-8", "ignore")
        return dict(prompt=prompt, prompt_tokens=start, ids=ids, margin=margins, sure_text=text)


def read_by_pytorch(model):
    """transformers' own reading of the file, in double precision."""
    import torch
    import transformers

    import make_golden

    read = transformers.AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32, attn_implementation="sdpa")
    return make_golden.in_double(read.eval())


def pytorch_nll(model, sequences):
    """The arbiter where llama.cpp is coarse."""
    import torch

    exact = read_by_pytorch(model)
    for ids in sequences:
        with torch.no_grad():
            log_p = exact(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].log_softmax(-1)
        yield [round(-float(x), 6) for x in log_p.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]]


def answers(model, lora, texts, prompts):
    llama = Llama(model, lora)
    score = [llama.score(llama.tokens(text)) for text in texts]
    if tolerance_of(model) > TOLERANCE:
        for case, nll in zip(score, pytorch_nll(Path(model), [case["ids"] for case in score])):
            case["pytorch"] = nll
    return dict(score=score, generate=[llama.continue_greedily(prompt, GREEDY_TOKENS) for prompt in prompts])


def graft_json(graft, *arguments):
    run = subprocess.run([graft, *map(str, arguments), "--json"], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise SystemExit(f"not ok - {' '.join(map(str, arguments))}: exit {run.returncode}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def graft_scores(graft, model, lora, sequences, scale=1.0):
    """What `graft eval --ids` says of these token sequences."""
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
        file.writelines(" ".join(map(str, ids)) + "\n" for ids in sequences)
        file.flush()
        adapter = ["--lora-scaled", f"{lora}:{scale}"] if lora else []
        lines = [o for o in graft_json(graft, "eval", "-m", model, *adapter, "--ids", file.name, "--per-token") if "nll" in o]
    assert len(lines) == len(sequences), f"{len(sequences)} sequences in, {len(lines)} answers out"
    return lines


def graft_text(graft, model, lora, prompt):
    """The continuation that `graft generate` prints: raw prompt, no chat template, one token at a time through its cache."""
    adapter = ["--lora", lora] if lora else []
    run = subprocess.run([graft, "generate", "-m", model, *adapter, "-p", prompt, "-n", str(GREEDY_TOKENS), "--temp", "0"], stdout=subprocess.PIPE)
    text = run.stdout.decode("utf-8", "replace") if run.returncode == 0 else f"(exit {run.returncode})"
    return text.removeprefix(prompt)


def worst(a, b):
    """Largest difference; not a number, or another length, is infinitely far."""
    if len(a) != len(b):
        return math.inf
    difference = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    return math.inf if np.isnan(difference).any() else float(difference.max(initial=0))


def unsure(margins, tolerance=TOLERANCE):
    """The first place where llama.cpp's choice is within the tolerance of another one, or the end."""
    return next((i for i, margin in enumerate(margins) if margin < tolerance), len(margins))


def compare_scores(tap, name, scores, truth, tolerance):
    for i, (ours, theirs) in enumerate(zip(scores, truth)):
        off = worst(ours["nll"], theirs["nll"])
        tap.check(off <= tolerance, f"{name}: nll of text {i} within {tolerance} ({len(theirs['nll'])} tokens, worst {off:.1e})")
        if tolerance > TOLERANCE:
            mean = abs(float(np.mean(ours["nll"]) - np.mean(theirs["nll"])))
            tap.check(mean <= TOLERANCE, f"{name}: mean nll of text {i} within {TOLERANCE} ({mean:.1e})")
        if "pytorch" in theirs:
            off = worst(ours["nll"], theirs["pytorch"])
            tap.check(off <= TOLERANCE, f"{name}: nll of text {i} within {TOLERANCE} of PyTorch's (worst {off:.1e})")
        wrong = [p for p, (a, b, m) in enumerate(zip(ours["greedy"], theirs["greedy"], theirs["margin"])) if a != b and m >= tolerance]
        tap.check(not wrong and len(ours["greedy"]) == len(theirs["ids"]), f"{name}: most likely next tokens of text {i} equal {wrong or ''}")


def compare_with_graft(tap, name, graft, model, lora, truth, base):
    scores = graft_scores(graft, model, lora, [case["ids"] for case in truth["score"] + truth["generate"]])
    count = len(truth["score"])
    tolerance = tolerance_of(model)
    compare_scores(tap, name, scores[:count], truth["score"], tolerance)
    for i, (ours, theirs) in enumerate(zip(scores[count:], truth["generate"])):
        start, sure = theirs["prompt_tokens"], unsure(theirs["margin"], tolerance)
        chosen = ours["greedy"][start - 1:start - 1 + sure]
        tap.check(sure > 0 and chosen == theirs["ids"][start:start + sure], f"{name}: greedy continuation {i} equal, {sure} tokens")
        text = graft_text(graft, model, lora, theirs["prompt"])
        tap.check(text.startswith(theirs["sure_text"]), f"{name}: `graft generate` writes the same text {i}")
    if base:
        bare = graft_scores(graft, model, None, [case["ids"] for case in base["score"]])
        for i, (with_it, without, truth_with, truth_without) in enumerate(zip(scores, bare, truth["score"], base["score"])):
            theirs = np.subtract(truth_with["nll"], truth_without["nll"])
            off = worst(np.subtract(with_it["nll"], without["nll"]), theirs)
            move = float(np.abs(theirs).mean())
            tap.check(move >= MOVE and off <= TOLERANCE, f"{name}: the adapter's move of text {i} ({move:.3f} a token) within {TOLERANCE} (worst {off:.1e})")


def compare_with_record(tap, name, truth, record):
    """Guards the committed answers: another llama.cpp must still give them."""
    same_ids = [c["ids"] for c in truth] == [c["ids"] for c in record]
    off = max(worst(a["nll"], b["nll"]) for a, b in zip(truth, record)) if same_ids else math.inf
    tap.check(off <= DRIFT, f"{name}: llama.cpp still answers as recorded (worst {off:.1e})")


def judge_goldens(tap):
    """llama.cpp on PyTorch's golden models: two independent programs must agree, or the golden files are wrong."""
    for path in sorted(GOLDEN.glob("*-expected.gguf")):
        name = path.name.removesuffix("-expected.gguf")
        if name in NOT_LOADED:
            continue
        bound = COARSE.get(name, 1e-4)
        tensors = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
        for lora, key in ((None, "base.nll"), (GOLDEN / f"{name}-lora.gguf", "nll")):
            llama, off = Llama(GOLDEN / f"{name}.gguf", lora), 0.0
            for segment in np.unique(tensors["segments"]):
                rows = tensors["segments"] == segment
                off = max(off, worst(llama.score(tensors["ids"][rows].tolist())["nll"], tensors[key][rows][:-1]))
            tap.check(off < bound, f"golden {name}: llama.cpp gives PyTorch's {key} (worst {off:.1e})")


def shared_answers():
    """The inputs of shared/data/models/*expected.json. The answers recorded there come from llama.cpp's defaults: an F16 cache, and
    activations rounded to 8 bits for quantized weights; honest float arithmetic is up to 0.27 a token away from them. Here are exact ones."""
    groups = {}
    for index in (SHARED / "stories260K-expected.json", SHARED / "tiny" / "expected.json"):
        for case in json.loads(index.read_text()):
            base, _, rest = case["case"].partition(" + ")
            lora, _, scale = rest.partition(" @ ")
            key = (index.parent / base, index.parent / lora if lora else None, float(scale or 1))
            groups.setdefault(key, []).append(case["ids"])
    for (model, lora, scale), sequences in groups.items():
        llama = Llama(model, lora, scale)
        yield model, lora, scale, [llama.score(ids) for ids in sequences]


def judge_shared(tap, graft):
    if not SHARED.exists():
        return tap.check(True, f"the models of shared/data # SKIP {SHARED} is not here")
    record = json.loads(record_path("shared").read_text())["cases"]
    for (model, lora, scale, truth), kept in zip(shared_answers(), record, strict=True):
        name = f"{model.name} + {lora.name} @ {scale}" if lora else model.name
        compare_with_record(tap, name, truth, kept["score"])
        if model.name.startswith(JUDGED):
            compare_scores(tap, name, graft_scores(graft, model, lora, [case["ids"] for case in truth], scale), truth, tolerance_of(model))


def random_adapter(model, target):
    """A small adapter of SmolLM2: everything in layer 12, attention in layer 3; alpha 3, rank 1. A random one moves the nll far."""
    random = np.random.default_rng(135)
    shapes = {t.name: tuple(map(int, t.shape)) for t in gguf.GGUFReader(model).tensors}
    names = [f"blk.3.attn_{part}" for part in ("q", "k", "v", "output")]
    names += [name.replace("blk.3", "blk.12") for name in names] + [f"blk.12.ffn_{part}" for part in ("gate", "up", "down")]
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_type("adapter")
    writer.add_name("random adapter for SmolLM2 135M")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 3.0)
    for name in names:
        width, height = shapes[f"{name}.weight"]
        writer.add_tensor(f"{name}.weight.lora_a", random.normal(0, width**-0.5, (1, width)).astype(np.float32))
        writer.add_tensor(f"{name}.weight.lora_b", random.normal(0, 0.15, (height, 1)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record_path(name):
    return GOLDEN / f"llamacpp-{name}.json"


def located(where):
    return fetched(where.removeprefix("fetch:")) if isinstance(where, str) else where


def write_record(name, record):
    """One line a case: a change of one answer is a change of one line."""
    lines = []
    for key, value in record.items():
        items = [json.dumps(item, ensure_ascii=False) for item in value] if isinstance(value, list) else None
        lines.append(f' {json.dumps(key)}: ' + ("[\n  " + ",\n  ".join(items) + "\n ]" if items else json.dumps(value)))
    record_path(name).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"wrote {record_path(name).relative_to(HOME)}")


def write():
    random_adapter(fetched("smollm2"), GOLDEN / "smollm2-lora.gguf")
    for name, (where, lora, texts, prompts) in SUITE.items():
        record = dict(model=Path(located(where)).name, lora=lora.name if lora else None, llama_cpp_python=llama_cpp.__version__,
                      **answers(located(where), lora, texts, prompts))
        write_record(name, record)
    write_record("shared", dict(llama_cpp_python=llama_cpp.__version__, cases=[
        dict(model=model.relative_to(SHARED).as_posix(), lora=lora.relative_to(SHARED).as_posix() if lora else None, scale=scale, score=score)
        for model, lora, scale, score in shared_answers()]))


def suite(tap, graft):
    judge_goldens(tap)
    judge_shared(tap, graft)
    bases = {}
    for name, (where, lora, texts, prompts) in SUITE.items():
        model = located(where)
        if not model.exists():
            tap.check(True, f"{name} # SKIP {model.name} is not here")
            continue
        truth = answers(model, lora, texts, prompts)
        bases.setdefault(model, truth)
        compare_with_record(tap, name, truth["score"], json.loads(record_path(name).read_text())["score"])
        compare_with_graft(tap, name, graft, model, lora, truth, bases[model] if lora else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="the build folder; the program judged is graft in it")
    parser.add_argument("--write", action="store_true", help="rewrite the committed answers of llama.cpp")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--lora", type=Path)
    parser.add_argument("--text", type=Path, help="a file of lines to score")
    arguments = parser.parse_args()
    if arguments.write:
        return write()
    tap, graft = Tap(), arguments.build / "graft"
    if not graft.exists():
        tap.check(False, f"{graft} is not built: run make first")
    elif arguments.model:
        texts = arguments.text.read_text().splitlines() if arguments.text else [CHAT, CODE, PROSE, MIXED]
        truth = answers(arguments.model, arguments.lora, texts, texts[:1])
        base = answers(arguments.model, None, texts, []) if arguments.lora else None
        compare_with_graft(tap, arguments.model.name, graft, arguments.model, arguments.lora, truth, base)
    else:
        suite(tap, graft)
    print(f"1..{tap.ran}")
    return 1 if tap.failed or not tap.ran else 0


if __name__ == "__main__":
    sys.exit(main())
