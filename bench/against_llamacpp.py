#!/usr/bin/env python3
"""against_llamacpp.py GRAFT MODEL [--threads 1] [--prompt 512] [--gen 64] [--rounds 5]

Prefill and generation of Graft beside llama.cpp's (the llama-cpp-python of this Python), on one model and one machine, in turns: each
round runs both, so that what else the machine does falls on both alike. Prints tokens a second of every round, then the ratio Graft /
llama.cpp: median and least over the rounds. By the wall clock, and by processor time, which leaves out what other processes took.

llama.cpp keeps its defaults: activations rounded to 8 bits in products with quantized weights, an F16 cache. Graft computes in F32.
"""
import argparse
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


def our_round(args):
    command = [args.graft, "bench", "-m", args.model, "-t", str(args.threads), "--prompt-tokens", str(args.prompt)]
    command += ["--gen-tokens", str(args.gen), "--window", "0", "--runs", "1", "--json"]
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
    args = parser.parse_args()
    model = llama_cpp.Llama(
        args.model, n_ctx=args.prompt + args.gen + 8, n_batch=512, n_ubatch=512, n_threads=args.threads, n_threads_batch=args.threads, verbose=False
    )
    ids = [(i * 7919) % (model.n_vocab() - 1000) + 500 for i in range(args.prompt)]
    their_round(model, args, ids)  # warms up, as graft bench does by itself
    print(f"llama-cpp-python {llama_cpp.__version__}, {args.threads} threads, prompt {args.prompt}, generated {args.gen}; tokens/s")
    print("| round | use | clock | Graft | llama.cpp | ratio |\n|---|---|---|---|---|---|")
    ratios = {}
    for number in range(args.rounds):
        pair = (our_round(args), their_round(model, args, ids)) if number % 2 == 0 else (their_round(model, args, ids), our_round(args))[::-1]
        for use in ("prefill", "generation"):
            for clock in ("wall", "processor"):
                ours, theirs = pair[0][use][clock], pair[1][use][clock]
                ratios.setdefault((use, clock), []).append(ours / theirs)
                print(f"| {number + 1} | {use} | {clock} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)
    for (use, clock), values in ratios.items():
        print(f"{use}, {clock}: ratio {statistics.median(values):.2f} median, {min(values):.2f} least, of {len(values)} rounds")


if __name__ == "__main__":
    main()
