#!/usr/bin/env python3
"""Judges src/text's tokenizers by a real llama.cpp (llama-cpp-python) and by Hugging Face's `tokenizers`.

  tools/judge_tokenizer.py BUILD [--texts N] [--seed S] [--only WORD]     exit 1 on any difference
  tools/judge_tokenizer.py BUILD --write                                  nothing to write: says so

BUILD holds tests/judges/judge_tokenizer. The vocabularies are those of shared/data (beside the checkout) and of the models that
tools/fetch-model brings; from them variants are written that force every pre-tokenizer and rule. The texts are made from a seed:
words of many scripts, runs of white space, digits, combining marks, emoji, control characters, pieces of special tokens, and
shuffled stretches of all of these. Prints TAP, one line a vocabulary and question.

Where Graft differs on purpose (docs/tokenizers.md) the question is asked otherwise:
  tekken, gpt-4o   llama.cpp replaces the models' expressions by ones that tell case in ASCII alone and leave combining marks out of
                   words: it judges ASCII texts, `tokenizers` with the models' own expression judges all
  equal lengths    of two special tokens of one length that overlap in a text, llama.cpp takes the one that its unstable sort has put
                   first, Graft the one further left: the variants with user-defined tokens take longer ones, which hardly overlap
  bad UTF-8        llama.cpp replaces it, Graft keeps it: the bytes must come back, and each token must stand where it says
  code points that PCRE2's Unicode does not know yet may be cut otherwise; every such code point must be unassigned in Python's too
"""
import argparse
import ctypes
import functools
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import gguf
import llama_cpp
import tokenizers

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
SPECIAL, PARSE = 1, 2

WORDS = """the quick brown fox can't I'LL we've they'd it's 'S 'Re don't O'Neil naïve café Straße ÉCOLE İstanbul ǅ ʼn ß ſ 'ſ K Ω ﬁ ﬀ
привет МИР здравствуйте γειά ΣΊΣΥΦΟΣ שלום مرحبا नमस्ते हिन्दी ภาษาไทย ဗမာ မြန်မာ 日本語 ひらがな カタカナ 한국어 中文字符 繁體 ខ្មែរ አማርኛ ქართული
1 12 123 1234 12345 3.14 1,000,000 ١٢٣ १२३ ½ Ⅷ ² ① 0x1F 1e-9 x1y2 a_b_c fooBar FooBAR HTTPServer __init__ C++ C# $100 €20 100% #tag @name
http://example.com/a?b=c&d=e user@example.org {"a":[1,2.5,null]} <div class="x"> </div> /* c */ // ... ... -- — – “quoted” ‘single’ «guillemets»
😀 🚀 👩‍👩‍👧‍👦 🇳🇴🇺🇳 🏳️‍🌈 ❤️ é é ñ ́ ̂ ् ｆｕｌｌ ａｂｃ ０１２ \u200d \u200b \ufeff \u00ad \u2060 \x00 \x1b[0m \x7f \ufffd \U0001d54f \U00020000 \U0010ffff \u0378
<|im_start|> <|im_end|> <|endoftext|> </s> <s> <unk> <0x0A> <think> </think> <tool_call> [INST] [/INST] <bos> <eos> <end_of_turn> <start_of_turn> <unused7>
<|im_ <|im_end <im_end|> |> <| ▁ ▁▁the <s <|<|im_end|>|> Ġ Ċ Ġthe""".split()
SPACES = [" ", " ", " ", " ", " ", "  ", "   ", "        ", " " * 31, " " * 33, "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ", " \t ",
          "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u180e", "\v", "\f", "\u1680", ""]


def text_of(rng):
    """One text: words and white space, now and then a run of one thing or a shuffled stretch of characters."""
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 60])):
        roll = rng.random()
        word = rng.choice(WORDS).replace("\\u", "\\u")
        if roll < 0.06:
            word = "".join(rng.sample(word, len(word)))
        elif roll < 0.09:
            word = word * rng.randrange(2, 9)
        elif roll < 0.12:
            word = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xa0, 0x2ff), rng.randrange(0x300, 0x3000), rng.randrange(0x3000, 0xd800),
                                            rng.randrange(0xe000, 0x10000), rng.randrange(0x10000, 0x20000)])) for _ in range(rng.randrange(1, 12)))
        elif roll < 0.14:
            word = word.swapcase()
        parts.append(word)
        parts.append(rng.choice(SPACES))
    return "".join(parts)


def unescape(words):
    return [w.encode("ascii").decode("unicode_escape") if w.startswith("\\") else w for w in words]


WORDS = unescape(WORDS)


class Graft:
    """tests/judges/judge_tokenizer on one vocabulary."""

    def __init__(self, build, path):
        self.process = subprocess.Popen([build / "tests/judges/judge_tokenizer", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        count, self.bos, self.eos = self.read(3)
        self.tokens = []
        for _ in range(count):
            eog, control, length = self.read(3)
            self.tokens.append((bool(eog), bool(control), self.process.stdout.read(length)))

    def read(self, n):
        data = self.process.stdout.read(4 * n)
        if len(data) != 4 * n:
            raise RuntimeError("judge_tokenizer ended early")
        return struct.unpack(f"<{n}i", data)

    def encode(self, text, flags):
        self.process.stdin.write(struct.pack("<2I", flags, len(text)) + text)
        self.process.stdin.flush()
        count, = self.read(1)
        ids, at, length = self.read(count), self.read(count), self.read(count)
        lost, n = self.read(2)
        return list(ids), at, length, lost, self.process.stdout.read(n)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class LlamaCpp:
    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.room = (llama_cpp.llama_token * (1 << 20))()

    def encode(self, text, flags):
        n = llama_cpp.llama_tokenize(self.vocab, text, len(text), self.room, len(self.room), bool(flags & SPECIAL), bool(flags & PARSE))
        return list(self.room[:n])

    def token(self, i):
        buffer = ctypes.create_string_buffer(1024)
        n = llama_cpp.llama_token_to_piece(self.vocab, i, buffer, len(buffer), 0, True)
        control = llama_cpp.llama_vocab_get_attr(self.vocab, i) & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN)
        return llama_cpp.llama_vocab_is_eog(self.vocab, i), bool(control), buffer.raw[:n]

    def close(self):
        llama_cpp.llama_model_free(self.model)


@functools.cache
def fields_of(path):
    reader = gguf.GGUFReader(path)
    return {name: field for name, field in reader.fields.items() if name.startswith(("tokenizer.ggml", "general.", "qwen3.", "llama.", "gpt2.", "gemma3."))}


def write_variant(source, target, changes):
    """The vocabulary of `source` with keys changed (None: removed), without tensors."""
    fields = fields_of(source)
    values = {name: (field.contents(), field.types[0], field.types[-1]) for name, field in fields.items()}
    writer = gguf.GGUFWriter(target, values["general.architecture"][0])
    for name, (value, kind, element) in values.items():
        if name in changes or name == "general.architecture":
            continue
        writer.add_key_value(name, value, kind, element if kind == gguf.GGUFValueType.ARRAY else None)
    for name, value in changes.items():
        if value is None:
            continue
        if isinstance(value, list):
            element = gguf.GGUFValueType.STRING if isinstance(value[0], str) else gguf.GGUFValueType.FLOAT32 if isinstance(value[0], float) else gguf.GGUFValueType.INT32
            writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, element)
        else:
            kind = gguf.GGUFValueType.BOOL if isinstance(value, bool) else gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
            writer.add_key_value(name, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def own_expression(words, digits):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{words}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{words}|{digits}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


OWN = {"tekken": own_expression("", r"\p{N}"), "gpt-4o": own_expression(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")}


class HuggingFace:
    """The vocabulary's merges under a model's own expression. Special tokens are not looked for."""

    def __init__(self, path, expression, ignore_merges):
        fields = fields_of(path)
        tokens, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
        model = tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ", 1)) for m in merges], ignore_merges=ignore_merges)
        self.tokenizer = tokenizers.Tokenizer(model)
        self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Judge:
    def __init__(self, args):
        self.args, self.count, self.failed = args, 0, 0

    def say(self, name, problems, asked):
        self.count += 1
        bad = problems or not asked
        self.failed += bool(bad)
        print(f"{'not ok' if bad else 'ok'} {self.count} - {name} ({asked} asked{f', {len(problems)} differ' if problems else ''})", flush=True)
        for problem in problems[:5]:
            print(f"# {problem}")

    def vocabulary(self, name, graft, llama):
        wrong = [f"{i}: {ours} not {theirs}" for i, ours in enumerate(graft.tokens) for theirs in [llama.token(i)] if not agree(ours, theirs)]
        self.say(f"{name}: end-of-generation, control and piece of every token", wrong, len(graft.tokens))

    def texts(self, name, graft, llama, flags, keep=lambda text: True):
        rng, wrong, asked = random.Random(f"{self.args.seed} {name} {flags}"), [], 0
        for _ in range(self.args.texts):
            text = text_of(rng)
            if not keep(text):
                text = text.encode("ascii", "ignore").decode()
            raw = text.encode()
            ids, at, length, lost, back = graft.encode(raw, flags)
            theirs = llama.encode(raw, flags)
            asked += 1
            if ids != theirs:
                wrong.append(first_difference(text, ids, theirs))
            elif not tiled(raw, at, length, lost):
                wrong.append(f"places of {text!r}: {list(zip(at, length))}")
        self.say(f"{name}: flags {flags}", wrong, asked)

    def bad_bytes(self, name, graft):
        rng, wrong = random.Random(f"{self.args.seed} {name} bytes"), []
        for _ in range(self.args.texts):
            raw = bytearray(text_of(rng).replace("▁", "_").encode())
            for _ in range(rng.randrange(1, 6)):
                k = rng.randrange(len(raw) + 1)
                raw[k:k + rng.randrange(0, 3)] = bytes(rng.choice([rng.randrange(256), 0xe2, 0xf0, 0xc0, 0xff, 0xed, 0x80]) for _ in range(rng.randrange(1, 4)))
            raw = bytes(raw).replace("▁".encode(), b"_")
            ids, at, length, lost, back = graft.encode(raw, 0)
            came_back = back == raw if not lost else len(back) == len(raw) - lost  # SmolLM2's vocabulary lacks some bytes, and that is told
            if not came_back or not tiled(raw, at, length, lost):
                wrong.append(f"{raw!r} came back as {back!r}")
        self.say(f"{name}: bytes that are not UTF-8 come back", wrong, self.args.texts)

    def code_points(self, name, graft, llama):
        """Every code point between letters, digits, spaces and marks."""
        def probe(points):
            text = "".join(f"x{chr(p)}x {chr(p)}1{chr(p)}\u0301!{chr(p)}.\n" for p in points).encode()
            return graft.encode(text, 0)[0] == llama.encode(text, 0)

        def differing(points):
            if probe(points):
                return []
            if len(points) == 1:
                return points
            half = len(points) // 2
            return differing(points[:half]) + differing(points[half:])

        points = [p for p in [*range(0x33480), *range(0xe0000, 0xe0200)] if not 0xd800 <= p < 0xe000]  # the planes that hold assigned ones
        differ = [p for i in range(0, len(points), 512) for p in differing(points[i:i + 512])]
        known = [p for p in differ if unicodedata.category(chr(p)) != "Cn"]
        self.say(f"{name}: every code point ({len(differ)} that only one side's Unicode knows)", [f"U+{p:04X} {unicodedata.category(chr(p))}" for p in known], len(points))


def agree(ours, theirs):
    """Two things differ on purpose: llama.cpp prints nothing for unused tokens, and U+2581 for the space in user-defined ones."""
    return ours[:2] == theirs[:2] and (ours[2] == theirs[2] or not theirs[2] or ours[2] == theirs[2].replace("▁".encode(), b" "))


def tiled(raw, at, length, lost):
    place = 0
    for a, n in zip(at, length):
        if a < place or (a > place and not lost):
            return False
        place = a + n
    return place == len(raw) or bool(lost)


def first_difference(text, ours, theirs):
    k = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"{text!r}: at {k} ours {ours[k:k + 6]} theirs {theirs[k:k + 6]}"


def fetch(name):
    """The model's path, or None."""
    run = subprocess.run([sys.executable, ROOT / "tools" / "fetch-model", name], stdout=subprocess.PIPE, text=True)
    return Path(run.stdout.strip()) if run.returncode == 0 else None


def suite(folder, only):
    """Pairs of a name and a file, made when its turn comes."""
    for name in ("smollm2", "gemma3-270m"):
        if only in name:
            yield name, fetch(name)
    vocabularies = SHARED / "tokenizer"
    if not vocabularies.exists():
        return
    qwen3, spm, gpt2 = (vocabularies / f"ggml-vocab-{n}.gguf" for n in ("qwen3", "llama-spm", "gpt-2"))
    result = {"qwen3": qwen3, "gpt-2": gpt2, "llama-spm": spm, "stories260K": SHARED / "models/stories260K-f32.gguf"}
    for name, path in result.items():
        if only in name:
            yield name, path
    pre = "tokenizer.ggml.pre"
    changes = {f"qwen3 as {p}": (qwen3, {pre: p}) for p in ("llama-bpe", "qwen35", "smollm", "gpt-2", "tekken", "gpt-4o", "default")}
    changes["qwen3 without pre"] = (qwen3, {pre: None})
    changes["gpt-2 as tekken"] = (gpt2, {pre: "tekken"})
    changes["gpt-2 as gpt-4o"] = (gpt2, {pre: "gpt-4o"})
    changes["spm without prefix"] = (spm, {"tokenizer.ggml.add_space_prefix": False})
    changes["spm with eos"] = (spm, {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": False})
    changes["spm removing white space"] = (spm, {"tokenizer.ggml.remove_extra_whitespaces": True})
    fields = fields_of(spm)
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    rng = random.Random(5)
    changes["spm with user-defined"] = (spm, {"tokenizer.ggml.token_type": [4 if t == 1 and rng.random() < 0.1 and len(w) > 4 else t
                                                                               for w, t in zip(tokens, types)]})
    changes["spm as Phi-3"] = (spm, {"general.name": "Phi-3 mini", "tokenizer.ggml.tokens": [*tokens[:31000], "<|endoftext|>", *tokens[31001:]],
                                     "tokenizer.ggml.token_type": [*types[:31000], 3, 4, 4, *types[31003:]]})
    fields = fields_of(gpt2)
    texts = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    changes["gpt-2 with user-defined"] = (gpt2, {"tokenizer.ggml.token_type": [4 if i % 40 == 7 and texts[i].isascii() else t for i, t in enumerate(types)]})
    for name, (source, change) in changes.items():
        if only in name:
            path = Path(folder) / (name.replace(" ", "-") + ".gguf")
            write_variant(source, path, change)
            yield name, path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if args.write:
        print("judge_tokenizer: its answers are recorded in shared/data/tokenizer; nothing to write")
        return 0
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    judge = Judge(args)
    if not SHARED.exists():
        print(f"ok 0 - the vocabularies of shared/data and their variants # SKIP {SHARED} is not here")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in suite(folder, args.only):
            if not path:
                judge.say(f"{name}: fetched", ["tools/fetch-model failed"], 1)
                continue
            graft, llama = Graft(args.build, path), LlamaCpp(path)
            approximated = name.split()[-1] in OWN
            judge.vocabulary(name, graft, llama)
            for flags in (0, PARSE, SPECIAL | PARSE):
                judge.texts(name, graft, llama, flags, str.isascii if approximated else lambda text: True)
            judge.bad_bytes(name, graft)
            if approximated:
                pre = name.split()[-1]
                own = HuggingFace(path, OWN[pre], pre == "tekken")
                wrong, rng = [], random.Random(f"{args.seed} {name} own")
                for _ in range(args.texts):
                    text = text_of(rng)
                    for word in WORDS:
                        if word.startswith("<"):
                            text = text.replace(word, "")
                    ids, theirs = graft.encode(text.encode(), 0)[0], own.encode(text)
                    if ids != theirs:
                        wrong.append(first_difference(text, ids, theirs))
                judge.say(f"{name}: the model's own expression", wrong, args.texts)
            elif name in ("qwen3", "gpt-2", "qwen3 as qwen35", "qwen3 as default", "qwen3 as llama-bpe"):
                judge.code_points(name, graft, llama)
            graft.close()
            llama.close()
    return 1 if judge.failed or not judge.count else 0


if __name__ == "__main__":
    sys.exit(main())
