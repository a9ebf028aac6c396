#!/usr/bin/env python3
"""against_llamacpp.py GRAFT MODEL [--threads 1] [--prompt 512] [--gen 64] [--rounds 5] [--precision f32 bf16] [--csv FILE]

Prefill and generation of Graft beside llama.cpp's (the llama-cpp-python of this Python), on one model and one machine, in turns: each
round runs both, so that what else the machine does falls on both alike. Prints tokens a second of every round, then the ratio Graft /
llama.cpp: median and least over the rounds. By the wall clock, and by processor time, which leaves out what other processes took.

llama.cpp keeps its defaults: activations rounded to 8 bits in products with quantized weights, an F16 cache. Graft computes in F32, or, where
--precision names bf16, with operands of products rounded to that. --csv: medians and ratios, a line for each precision, use and clock.
"""
import argparse
import csv
import json
import statistics
import subprocess
import time

import llama_cpp


def clocks():
    return time.monotonic(), time.process_time()


def rates(tokens, threads, start):
    wall, processor = clocks()
    return {"wall": tokens / (wall - start[0]), "processor": tokens * threads / (processor - start[1])}


def their_round(model, args, ids):
    model.reset()
    start = clocks()
    model.eval(ids)
    prefill = rates(len(ids), args.threads, start)
    start = clocks()
    for i in range(args.gen):
        model.eval([ids[i % len(ids)]])
    return {"prefill": prefill, "generation": rates(args.gen, args.threads, start)}


def our_round(args, precision):
    command = [args.graft, "bench", "-m", args.model, "-t", str(args.threads), "--prompt-tokens", str(args.prompt)]
    command += ["--gen-tokens", str(args.gen), "--window", "0", "--runs", "1", "--precision", precision, "--json"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {use: {"wall": said[use]["tokens_s"], "processor": said[use]["tokens_s_processor"]} for use in ("prefill", "generation")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graft")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", nargs="+", choices=("f32", "bf16"), default=["f32"])
    parser.add_argument("--csv")
    args = parser.parse_args()
    model = llama_cpp.Llama(
        args.model, n_ctx=args.prompt + args.gen + 8, n_batch=512, n_ubatch=512, n_threads=args.threads, n_threads_batch=args.threads, verbose=False
    )
    ids = [(i * 7919) % (model.n_vocab() - 1000) + 500 for i in range(args.prompt)]
    their_round(model, args, ids)  # warms up, as graft bench does by itself
    print(f"llama-cpp-python {llama_cpp.__version__}, {args.threads} threads, prompt {args.prompt}, generated {args.gen}; tokens/s")
    print("| round | precision | use | clock | Graft | llama.cpp | ratio |\n|---|---|---|---|---|---|---|")
    rows = {}
    for number in range(args.rounds):
        theirs = their_round(model, args, ids) if number % 2 else None
        ours = {precision: our_round(args, precision) for precision in args.precision}
        theirs = theirs or their_round(model, args, ids)
        for precision in args.precision:
            for use in ("prefill", "generation"):
                for clock in ("wall", "processor"):
                    a, b = ours[precision][use][clock], theirs[use][clock]
                    rows.setdefault((precision, use, clock), []).append((a, b, a / b))
                    print(f"| {number + 1} | {precision} | {use} | {clock} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)
    lines = []
    for key, values in rows.items():
        ours, theirs, ratio = (statistics.median(v[i] for v in values) for i in range(3))
        least = min(v[2] for v in values)
        lines.append([*key, args.threads, args.prompt, args.gen, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.2f}", f"{least:.2f}", len(values)])
        print(f"{', '.join(key)}: ratio {ratio:.2f} median, {least:.2f} least, of {len(values)} rounds")
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as f:
            out = csv.writer(f, lineterminator="\n")
            out.writerow("precision use clock threads prompt generated graft_tokens_s llamacpp_tokens_s ratio ratio_least rounds".split())
            out.writerows(lines)


if __name__ == "__main__":
    main()
