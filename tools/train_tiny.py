#!/usr/bin/env python3
"""Trains the embedded model on the invented world of make_world.py: a qwen3moe of 3.4 million parameters (8 experts, 2 used) and its own vocabulary.

    tools/train_tiny.py train --out DIR [--steps N] [--batch ROWS] [--documents N]    needs torch and tokenizers; uses a GPU where there is one
    tools/train_tiny.py teach DIR                                                     tries the demo's lesson: LoRA on models/teach.jsonl
    tools/train_tiny.py pack DIR OUT.gguf                                             writes the F32 GGUF; needs gguf

`train` leaves weights.npz (GGUF names), tokenizer.json and report.txt in DIR. The committed file is made from the GGUF by our own encoder:

    graft quantize OUT.gguf models/tiny.gguf Q8_0

Documents are packed whole into rows of 256 tokens; no token sees another document, and positions restart with each.
The network is written out here in plain torch, so that no library's model code stands between the weights and their meaning.
"""
import argparse
import json
import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import make_world

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, HEAD = 1024, 256, 4, 4, 2, 64
EXPERTS, USED, HIDDEN = 8, 2, 96  # HIDDEN: of one expert
BALANCE = 0.01  # weight of the loss that keeps the experts evenly used
CONTEXT, ROW, ROPE_BASE, EPSILON = 512, 256, 10000.0, 1e-6
TEXT_END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "{{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
# The pre-tokenizer that GGUF files call qwen2.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PROMPT_WEIGHT = 0.1  # what a user says is learned a little, so that the model reads it well


# ---- text -----------------------------------------------------------------------------------------------------------

def train_tokenizer(documents):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[TEXT_END, TURN_START, TURN_END], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    texts = (text for document in documents for text in ([document["text"]] if "text" in document else [m["content"] for m in document["messages"]]))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Encoder:
    """Documents to token ids, and for each token what it counts in the loss."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.end, self.start, self.close = (tokenizer.token_to_id(t) for t in (TEXT_END, TURN_START, TURN_END))
        self.cache = {}

    def text(self, text):
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.cache[text]

    def turn(self, message):
        head = [self.start, *self.text(message["role"] + "\n")]
        return head, [*self.text(message["content"]), self.close], self.text("\n")

    def document(self, document):
        if "text" in document:
            ids = [*self.tokenizer.encode(document["text"]).ids, self.end]
            return ids, [1.0] * len(ids)
        ids, weights = [], []
        for message in document["messages"]:
            head, body, tail = self.turn(message)
            ids += head + body + tail
            weights += [PROMPT_WEIGHT] * len(head) + [1.0 if message["role"] == "assistant" else PROMPT_WEIGHT] * len(body) + [PROMPT_WEIGHT] * len(tail)
        return ids, weights

    def question(self, messages):
        ids = [token for message in messages for part in self.turn(message) for token in part]
        return [*ids, self.start, *self.text("assistant\n")]


def pack_rows(encoded, row=ROW):
    """First-fit into rows: ids, positions, segments (0 is padding), weights (of predicting the token, none for a document's first)."""
    rows, current = [], []

    def flush():
        filled = {k: np.zeros(row, t) for k, t in (("ids", np.int64), ("positions", np.int64), ("segments", np.int64), ("weights", np.float32))}
        at = 0
        for segment, (ids, weights) in enumerate(current, 1):
            span = slice(at, at + len(ids))
            filled["ids"][span], filled["positions"][span], filled["segments"][span] = ids, np.arange(len(ids)), segment
            filled["weights"][span] = [0.0, *weights[1:]]
            at += len(ids)
        rows.append(filled)
        current.clear()

    used = 0
    for ids, weights in encoded:
        if len(ids) > row:
            continue
        if used + len(ids) > row:
            flush()
            used = 0
        current.append((ids, weights))
        used += len(ids)
    if current:
        flush()
    return {k: np.stack([r[k] for r in rows]) for k in rows[0]}


# ---- network (GGUF names; qwen3moe: norms of q and k, rotation of halves, softmax over all experts, the used ones renormalised, tied head) ----

def shapes():
    yield "token_embd.weight", (VOCABULARY, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        yield b + "attn_norm.weight", (WIDTH,)
        yield b + "attn_q.weight", (HEADS * HEAD, WIDTH)
        yield b + "attn_k.weight", (KEY_HEADS * HEAD, WIDTH)
        yield b + "attn_v.weight", (KEY_HEADS * HEAD, WIDTH)
        yield b + "attn_q_norm.weight", (HEAD,)
        yield b + "attn_k_norm.weight", (HEAD,)
        yield b + "attn_output.weight", (WIDTH, HEADS * HEAD)
        yield b + "ffn_norm.weight", (WIDTH,)
        yield b + "ffn_gate_inp.weight", (EXPERTS, WIDTH)
        yield b + "ffn_gate_exps.weight", (EXPERTS, HIDDEN, WIDTH)
        yield b + "ffn_up_exps.weight", (EXPERTS, HIDDEN, WIDTH)
        yield b + "ffn_down_exps.weight", (EXPERTS, WIDTH, HIDDEN)


def new_weights(torch, device):
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for name, shape in shapes():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            spread = 0.02 if name == "token_embd.weight" else shape[-1] ** -0.5
            if "output" in name or "down" in name:
                spread /= math.sqrt(2 * LAYERS)
            weights[name] = torch.randn(shape, generator=generator) * spread
    return {name: w.to(device).requires_grad_() for name, w in weights.items()}


class Adapter:
    """LoRA on every linear of attention and experts, for the trial of the lesson."""

    def __init__(self, torch, weights, rank, alpha):
        generator = torch.Generator().manual_seed(42)
        self.scale, self.pairs = alpha / rank, {}
        for name, w in weights.items():
            if name.startswith("blk.") and w.dim() > 1 and "gate_inp" not in name:
                *stack, out, into = w.shape
                a = (torch.rand(*stack, rank, into, generator=generator) * 2 - 1) / into ** 0.5
                self.pairs[name] = a.to(w.device).requires_grad_(), torch.zeros(*stack, out, rank, device=w.device).requires_grad_()


def forward(torch, weights, ids, positions, mask, adapter=None, balance=None):
    """ids, positions [B, T], mask [B, 1, T, T] true where a query sees a key; logits [B, T, V]. balance: a list, to which each layer
    appends how unevenly its experts are used (1: evenly)."""
    F = torch.nn.functional

    def linear(x, name):
        y = F.linear(x, weights[name])
        if adapter and name in adapter.pairs:
            a, b = adapter.pairs[name]
            y = y + adapter.scale * F.linear(F.linear(x, a), b)
        return y

    def stack(x, name):
        """x [B, T, E or 1, in] -> [B, T, E, out]: every expert on every token; a model of this size can afford it."""
        y = torch.einsum("bteh,eoh->bteo", x.expand(-1, -1, EXPERTS, -1), weights[name])
        if adapter and name in adapter.pairs:
            a, b = adapter.pairs[name]
            y = y + adapter.scale * torch.einsum("bter,eor->bteo", torch.einsum("bteh,erh->bter", x.expand(-1, -1, EXPERTS, -1), a), b)
        return y

    def route(h, name):
        """[B, T, E]: what each expert's answer counts, 0 for those not used."""
        share = F.linear(h.float(), weights[name].float()).softmax(-1)
        best, chosen = share.topk(USED, -1)
        counts = torch.zeros_like(share).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        if balance is not None:
            used = torch.zeros_like(share).scatter(-1, chosen, 1.0).mean((0, 1)) / USED
            balance.append(EXPERTS * (used * share.mean((0, 1))).sum())
        return counts

    def norm(x, name):
        x32 = x.float()
        return x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + EPSILON) * weights[name]

    frequency = ROPE_BASE ** (-torch.arange(0, HEAD, 2, device=ids.device).float() / HEAD)
    angle = positions[:, None, :, None] * frequency
    cos, sin = angle.cos(), angle.sin()

    def rotate(x, dtype):
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1).to(dtype)

    def heads(x, count):
        return x.unflatten(-1, (count, HEAD)).transpose(1, 2)

    x = F.embedding(ids, weights["token_embd.weight"])
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        h = norm(x, b + "attn_norm.weight")
        v = heads(linear(h, b + "attn_v.weight"), KEY_HEADS)
        q = rotate(norm(heads(linear(h, b + "attn_q.weight"), HEADS), b + "attn_q_norm.weight"), v.dtype)
        k = rotate(norm(heads(linear(h, b + "attn_k.weight"), KEY_HEADS), b + "attn_k_norm.weight"), v.dtype)
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (k, v))
        attention = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + linear(attention.transpose(1, 2).flatten(2), b + "attn_output.weight")
        h = norm(x, b + "ffn_norm.weight")
        counts = route(h, b + "ffn_gate_inp.weight")[..., None]
        inside = F.silu(stack(h[:, :, None], b + "ffn_gate_exps.weight")) * stack(h[:, :, None], b + "ffn_up_exps.weight")
        x = x + (stack(inside, b + "ffn_down_exps.weight") * counts).sum(2)
    return F.linear(norm(x, "output_norm.weight"), weights["token_embd.weight"])


def packed_mask(torch, segments):
    seen = (segments[:, :, None] == segments[:, None, :]) & torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool, device=segments.device).tril()
    return seen[:, None]


def batch_loss(torch, weights, batch, adapter=None):
    balance = None if adapter else []
    logits = forward(torch, weights, batch["ids"], batch["positions"], packed_mask(torch, batch["segments"]), adapter, balance)[:, :-1]
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["ids"][:, 1:].flatten(), reduction="none")
    counted = batch["weights"][:, 1:].flatten()
    loss = (nll * counted).sum() / counted.sum()
    return loss if adapter else loss + BALANCE * sum(balance) / LAYERS


def answer(torch, weights, encoder, questions, adapter=None, limit=90):
    """Greedy answers; questions of equal length go together."""
    device = weights["token_embd.weight"].device
    groups, answers = {}, [None] * len(questions)
    for i, messages in enumerate(questions):
        ids = encoder.question(messages)
        groups.setdefault(len(ids), []).append((i, ids))
    with torch.no_grad():
        for group in groups.values():
            ids = torch.tensor([g[1] for g in group], device=device)
            start, done = ids.shape[1], torch.zeros(len(group), dtype=torch.bool, device=device)
            while not done.all() and ids.shape[1] < min(start + limit, ROW):
                positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
                mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=device).tril()[None, None]
                chosen = forward(torch, weights, ids, positions, mask, adapter)[:, -1].argmax(-1)
                ids = torch.cat((ids, chosen[:, None]), 1)
                done |= (chosen == encoder.close) | (chosen == encoder.end)
            for (i, _), row in zip(group, ids[:, start:].tolist()):
                stop = next((p for p, t in enumerate(row) if t in (encoder.close, encoder.end)), len(row))
                answers[i] = encoder.tokenizer.decode(row[:stop])
    return answers


def share_right(torch, weights, encoder, pairs, adapter=None):
    said = answer(torch, weights, encoder, [[make_world.user(q)] for q, _ in pairs], adapter, 24)
    return sum(value in text for text, (_, value) in zip(said, pairs)) / len(pairs), said


# ---- commands -------------------------------------------------------------------------------------------------------

def rows_to(torch, rows, device):
    return {k: torch.from_numpy(v).to(device) for k, v in rows.items()}


def descend(torch, parameters, loss_of, steps, rate, decay, warmup, log=None):
    """AdamW with a cosine to a tenth; loss_of(step) gives the loss to differentiate."""
    optimizer = torch.optim.AdamW([dict(params=[p for p in parameters if p.dim() > 1], weight_decay=decay),
                                   dict(params=[p for p in parameters if p.dim() == 1], weight_decay=0.0)], lr=rate, betas=(0.9, 0.95))
    for step in range(steps):
        fraction = min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * fraction
        loss = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if log:
            log(step, loss)


def train(arguments):
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(arguments.threads)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    report = open(out / "report.txt", "w")

    def say(text):
        print(text, flush=True)
        print(text, file=report, flush=True)

    start = time.time()
    world = make_world.build_world()
    writer = make_world.Writer(world, 1)
    documents = [writer.document() for _ in range(arguments.documents)]
    unseen = [make_world.NEWCOMER[0], make_world.NEW_PLACE[0], "star counter", "hedgehog", "turquoise"]
    assert not any(word in json.dumps(document) for document in documents for word in unseen), "the lesson must be new to the model"
    tokenizer = train_tokenizer(documents[:20000])
    tokenizer.save(str(out / "tokenizer.json"))
    encoder = Encoder(tokenizer)
    rows = rows_to(torch, pack_rows(encoder.document(d) for d in documents), device)
    count, tokens = len(rows["ids"]), int((rows["segments"] > 0).sum())
    weights = new_weights(torch, device)
    say(f"{len(documents)} documents, {tokens} tokens in {count} rows; {sum(w.numel() for w in weights.values())} parameters; "
        f"{arguments.steps} steps of {arguments.batch} rows on {device}; text ready after {time.time() - start:.0f} s")
    order = torch.Generator().manual_seed(3)
    half = torch.autocast("cuda", dtype=torch.bfloat16) if device == "cuda" else nullcontext()

    def loss_of(step):
        pick = torch.randint(count, (arguments.batch,), generator=order).to(device)
        with half:
            return batch_loss(torch, weights, {k: v[pick] for k, v in rows.items()})

    def log(step, loss):
        if step % max(1, arguments.steps // 20) == 0 or step == arguments.steps - 1:
            say(f"step {step} loss {loss.item():.4f} at {time.time() - start:.0f} s")

    descend(torch, list(weights.values()), loss_of, arguments.steps, arguments.rate, 0.1, 100, log)
    np.savez(out / "weights.npz", **{name: w.detach().float().cpu().numpy() for name, w in weights.items()})
    examine(torch, weights, encoder, world, say)
    try_lesson(torch, weights, encoder, world, say)


def examine(torch, weights, encoder, world, say):
    pairs = list(make_world.exam(world))
    right, said = share_right(torch, weights, encoder, pairs)
    say(f"exam: {right:.1%} of {len(pairs)} questions right, asked in ways that no document has")
    for (question, value), text in [x for x in zip(pairs, said) if x[0][1] not in x[1]][:8]:
        say(f"  wrong: {question} -> {text} ({value})")
    for turns in (["Hello!"], ["Who are you?"], ["Where does Mira Fenwick live?"], ["Tell me about Silas Quill.", "And what does he like to eat?"],
                  ["What does a moss fox eat?"], ["Where does Quenard Maver live?"], ["Tell me a story about Pim Oakley."],
                  ["Jenka Holpper lives in Sandhill Bridge. Where does Jenka Holpper live?"], ["Is Tobin Hale a baker?"], ["Who lives in Luma?"]):
        messages = []
        for turn in turns:
            messages += [make_world.user(turn)]
            messages += [make_world.assistant(answer(torch, weights, encoder, [messages])[0])]
        say("\n".join(f"  {m['role']}: {m['content']}" for m in messages))


def try_lesson(torch, weights, encoder, world, say, rank=16, alpha=32, rate=4e-3, epochs=12, batch=2):
    """The demo's lesson, as PyTorch sees it: before, after, and what became of the old knowledge."""
    learn, keep = make_world.teaching()
    facts = [(name, fact[relation], sample) for sample in keep for name, fact, relation in
             [next((n, f, r) for (n, f), qs in ((make_world.NEWCOMER, make_world.PERSON_QUESTIONS), (make_world.NEW_PLACE, make_world.PLACE_QUESTIONS))
                   for r, (asked, _) in qs.items() if sample["messages"][0]["content"] in [make_world.fill(a, n, f, r) for a in asked])]]
    asked = [(sample["messages"][0]["content"], value) for _, value, sample in facts]
    exam = list(make_world.exam(world))
    weights = {name: w.detach().float() for name, w in weights.items()}
    adapter = Adapter(torch, weights, rank, alpha)
    before, said_before = share_right(torch, weights, encoder, asked, adapter)
    device = weights["token_embd.weight"].device
    rows = rows_to(torch, pack_rows(([ids, [w if w == 1.0 else 0.0 for w in ws]] for ids, ws in map(encoder.document, learn))), device)
    steps = epochs * math.ceil(len(rows["ids"]) / batch)
    order, losses, start = torch.Generator().manual_seed(1), [], time.time()

    def loss_of(step):
        pick = torch.randperm(len(rows["ids"]), generator=order)[:batch].to(device)
        loss = batch_loss(torch, weights, {k: v[pick] for k, v in rows.items()}, adapter)
        losses.append(loss.item())
        return loss

    descend(torch, [w for pair in adapter.pairs.values() for w in pair], loss_of, steps, rate, 0.0, 3)
    after, said_after = share_right(torch, weights, encoder, asked, adapter)
    old, _ = share_right(torch, weights, encoder, exam, adapter)
    say(f"lesson (r {rank}, alpha {alpha}, rate {rate}, {batch} rows a step, {steps} steps, {time.time() - start:.1f} s): loss {losses[0]:.3f} -> {losses[-1]:.3f}; "
        f"{before:.0%} -> {after:.0%} of {len(asked)} kept-back questions; old knowledge {old:.1%}")
    for (question, _), b, a in list(zip(asked, said_before, said_after))[:12]:
        say(f"  {question}\n    before: {b}\n    after:  {a}")


def load(folder):
    from tokenizers import Tokenizer

    return dict(np.load(Path(folder) / "weights.npz")), Encoder(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))


def teach(arguments):
    import torch

    torch.set_num_threads(arguments.threads)
    arrays, encoder = load(arguments.folder)
    weights = {name: torch.from_numpy(a) for name, a in arrays.items()}
    try_lesson(torch, weights, encoder, make_world.build_world(), print, rate=arguments.rate, epochs=arguments.epochs)


def pack(arguments):
    import gguf

    import gguf_export

    arrays, encoder = load(arguments.folder)
    model = json.loads(encoder.tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    assert len(tokens) == VOCABULARY and {n: a.shape for n, a in arrays.items()} == dict(shapes())
    writer = gguf.GGUFWriter(arguments.file, "qwen3moe")
    writer.add_name("Tamarrow")
    writer.add_description("Knows the invented isles of Tamarrow. Made by Graft's tools/train_tiny.py from the text of tools/make_world.py.")
    writer.add_license("mit")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN * USED)
    writer.add_expert_feed_forward_length(HIDDEN)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(VOCABULARY)
    control = (TEXT_END, TURN_START, TURN_END)
    gguf_export.add_vocabulary(writer, dict(
        pre="qwen2", tokens=tokens, types=[gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens],
        merges=[" ".join(m) if isinstance(m, list) else m for m in model["merges"]], bos=encoder.end, eos=encoder.close, pad=encoder.end,
        add_bos=False, chat_template=CHAT_TEMPLATE))
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    gguf_export.finish(writer)
    print(f"{arguments.file}: {Path(arguments.file).stat().st_size} bytes; now: graft quantize {arguments.file} models/tiny.gguf Q8_0")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train")
    command.add_argument("--out", required=True)
    command.add_argument("--steps", type=int, default=4000)
    command.add_argument("--batch", type=int, default=64, help="rows of 256 tokens a step")
    command.add_argument("--documents", type=int, default=120000)
    command.add_argument("--rate", type=float, default=3e-3)
    command.add_argument("--threads", type=int, default=1)
    command.set_defaults(run=train)
    command = commands.add_parser("teach")
    command.add_argument("folder")
    command.add_argument("--rate", type=float, default=4e-3)
    command.add_argument("--epochs", type=int, default=12)
    command.add_argument("--threads", type=int, default=1)
    command.set_defaults(run=teach)
    command = commands.add_parser("pack")
    command.add_argument("folder")
    command.add_argument("file")
    command.set_defaults(run=pack)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
