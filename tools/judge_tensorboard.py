#!/usr/bin/env python3
"""Judges src/train/tensorboard.c by TensorBoard's own reader (package tensorboard, EventAccumulator).

  tools/judge_tensorboard.py BUILD          exit 1 on any difference. BUILD holds graft and tests/fault/graft_fault.so.
                                            (--write, which other judges take, does nothing: no answers are kept)

Run it with the Python of the judges' venv. Prints TAP. What `graft train --report-to tensorboard` says of a run on the embedded
model in its metrics.jsonl must be what TensorBoard shows: each tag, step and value (as float32, which event files hold), at the
time at which it was written. Also of a run that was killed and gone on with: TensorBoard must forget the steps that were made
twice. Then bytes of the file are changed, and the comparison must fail: else it would prove nothing.
"""
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tap import Tap

HOME = Path(__file__).resolve().parent.parent
TAGS = {"step": {"train/loss": "loss", "train/learning_rate": "lr", "train/grad_norm": "grad_norm", "train/tokens_per_second": "tok_s", "train/epoch": "epoch"},
        "eval": {"eval/loss": "loss", "eval/improvement": "improvement"}}
STEPS = 12


def command(build, folder):
    return [build / "graft", "train", "-m", HOME / "models/tiny.gguf", "-d", HOME / "models/teach.jsonl", "--val-file", HOME / "models/teach-heldout.jsonl",
            "-o", folder / "run.gguf", "-c", "64", "--batch-size", "1", "--lora-r", "2", "--target-modules", "attn_q", "--max-steps", str(STEPS), "--eval-steps", "4",
            "--save-steps", "3", "--report-to", "tensorboard", "--json"]


def train(args):
    return subprocess.run([*map(str, args)], capture_output=True, text=True)


def train_and_kill(build, args):
    """A run that dies by SIGKILL as it opens the checkpoint of step 9: three steps past the last whole one."""
    fault = {"LD_PRELOAD": str(build / "tests/fault/graft_fault.so"), "GRAFT_FAULT": "io:1:kill", "GRAFT_FAULT_PATH": "step-000009.checkpoint.tmp"}
    return subprocess.run([*map(str, args)], capture_output=True, env={**os.environ, **fault}).returncode == -signal.SIGKILL


def told(folder):
    """What metrics.jsonl says: (tag, step) to value."""
    found = {}
    for line in (folder / "run.metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        for tag, key in TAGS[event["event"]].items():
            found[tag, event["step"]] = event[key]
    return found


def shown(folder):
    """What TensorBoard shows: (tag, step, value, wall time) of each scalar."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(tag, s.step, s.value, s.wall_time) for tag in events.Tags()["scalars"] for s in events.Scalars(tag)]


def same(values, scalars):
    """Each value once, and nothing else."""
    have = {(tag, step): value for tag, step, value, _ in scalars}
    return len(have) == len(scalars) and have.keys() == values.keys() and all(np.float32(values[k]) == np.float32(have[k]) for k in have)


def in_time(scalars, began, ended):
    times = sorted((step, t) for tag, step, _, t in scalars if tag == "train/loss")
    return all(began <= t <= ended for *_, t in scalars) and all(a[1] <= b[1] for a, b in zip(times, times[1:]))


def judge_run(tap, build, folder):
    began = time.time()
    run = train(command(build, folder))
    values, scalars = told(folder), shown(folder / "run.tensorboard")
    tap.check(run.returncode == 0, f"a run of {STEPS} steps")
    tap.check({step for tag, step in values if tag == "train/loss"} == set(range(1, STEPS + 1)), f"its metrics.jsonl has {STEPS} steps")
    tap.check({step for tag, step in values if tag == "eval/loss"} == {0, 4, 8, 12}, "and 4 evaluations")
    tap.check(all(math.isfinite(v) for v in values.values()), "every value is finite")
    tap.check(same(values, scalars), f"TensorBoard shows the same {len(values)} scalars: tags, steps and values")
    tap.check(in_time(scalars, began, time.time()), "at times within the run, in order of the steps")


def judge_file(tap, folder):
    """The events one by one: what the first says, and that changed bytes are noticed."""
    path = next((folder / "run.tensorboard").iterdir())
    whole = path.read_bytes()
    events = list(EventFileLoader(str(path)).Load())
    tap.check(events[0].file_version == "brain.Event:2" and events[0].step == 0, "the file begins with its version")
    tap.check(len(events) == 1 + STEPS + 4, "then comes an event for each step and evaluation")
    values, unseen = told(folder), []
    places = [*range(0, 200), *range(200, len(whole), 61), len(whole) - 1]
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
        if len(list(EventFileLoader(str(path)).Load())) == len(events) or (at > 60 and same(values, shown(path.parent))):
            unseen.append(at)
    tap.check(not unseen, f"one changed byte is noticed, at each of {len(places)} places")
    path.write_bytes(whole[:-1])
    tap.check(not same(values, shown(path.parent)), "so is a missing one")
    path.write_bytes(whole)
    tap.check(same(values, shown(path.parent)), "and the file as it was is fine again")


def judge_resumed(tap, build, folder):
    tap.check(train_and_kill(build, command(build, folder)), "a run is killed after step 9")
    before = {step for tag, step, *_ in shown(folder / "run.tensorboard") if tag == "train/loss"}
    run = train([*command(build, folder), "--resume"])
    tap.check(run.returncode == 0 and "after step 6 of" in run.stderr, "and gone on with from step 6")
    values, scalars = told(folder), shown(folder / "run.tensorboard")
    tap.check(before == set(range(1, 10)), "TensorBoard had seen steps 1 to 9")
    tap.check(len(list((folder / "run.tensorboard").iterdir())) == 2, "there are two event files")
    tap.check(same(values, scalars), f"TensorBoard shows each step once, as metrics.jsonl does ({len(values)} scalars)")
    again = train([*command(build, folder), "--overwrite"])
    tap.check(again.returncode == 0 and len(list((folder / "run.tensorboard").iterdir())) == 1, "a run that begins anew removes the older files")


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if "--write" in sys.argv:
        return
    logging.disable(logging.WARNING)
    build, tap = Path(sys.argv[1]).resolve(), Tap()
    with tempfile.TemporaryDirectory() as name:
        for part in ("whole", "killed"):
            (Path(name) / part).mkdir()
        judge_run(tap, build, Path(name) / "whole")
        judge_file(tap, Path(name) / "whole")
        judge_resumed(tap, build, Path(name) / "killed")
    print(f"1..{tap.ran}")
    sys.exit(tap.failed > 0)


if __name__ == "__main__":
    main()
