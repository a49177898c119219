#!/usr/bin/env python3
"""Judges the simulation on this machine: two points of the validation matrix, simulated and run freely on the device.

Each round measures a profile of the machine, then runs each point once. How fast the machine computes changes between the
profile and the run, so two things are judged: the pace of the run's prefills, and the errors at that pace. Each is judged by
the median over the rounds. It may be off by its band, PACE or the one that `kvtier validate` gives, or by three times the
standard error of the median, if that is more. While that is more than LIMITS there are further rounds, up to ROUNDS[1]; then
the value is not judged: the machine is too busy. All rounds are shown.

The exit code is 1 if a value is out, 75 if none is and some cannot be judged."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

POINTS = [["3x", "lru"], ["3x", "pensieve"]]
MODEL = ["--device", "cpu:1", "--model", "kvtier-tiny"]
ROUNDS = (3, 5)
NOISES = 3
# Of prefills in a run, against the profile measured before it.
PACE = 0.15
# The widest band: points of hit rates, shares of times.
LIMITS = {"rate": 0.05, "time": 0.5}
NOT_JUDGED = 75


def judge(metric, band, errors):
    """The verdict ("in", "OUT" or "TOO NOISY"), the median of the errors, and the band that counts."""
    error = statistics.median(errors)
    # Of a normal distribution, by the median absolute deviation.
    deviation = 1.4826 * statistics.median(abs(e - error) for e in errors)
    wide = max(band, NOISES * 1.2533 * deviation / len(errors) ** 0.5)
    if wide > LIMITS["rate" if metric.startswith("hit_rate") else "time"]:
        return "TOO NOISY", error, wide
    return "in" if abs(error) <= wide else "OUT", error, wide


def run(program, *arguments, codes=(0,)):
    done = subprocess.run([program, *arguments], check=False, stdout=subprocess.DEVNULL)
    if done.returncode not in codes:
        sys.exit(done.returncode or 1)


def run_round(options):
    """The validation of each point, with a profile of its own."""
    profile = options.out / "profile.json"
    run(options.program, "calibrate", *MODEL, "--storage", options.out, "--out", profile)
    validations = {}
    for labels in POINTS:
        result = options.out / "validation.json"
        # Code 1 says that this one run is out of band, which the median of the rounds decides.
        run(options.program, "validate", options.configs / "validation" / "matrix.json",
            "--only", ",".join(labels), "--set", f"/hardware/profile={profile}",
            "--set", f"/workload/sessions={options.sessions}",
            "--storage", options.out, "--repetitions", "1", "--json", result, codes=(0, 1))
        for point in json.loads(result.read_text())["points"]:
            validations[", ".join(labels)] = point["validation"]
    return validations


def judge_all(rounds):
    """Of each point: name, then (metric, verdict, median, band, errors of the rounds, those without the pace or None)."""
    points = {}
    for name in rounds[0]:
        paces = [r[name]["pace"]["prefill"] - 1 for r in rounds]
        points[name] = [("pace of prefills", *judge("pace", PACE, paces), paces, None)]
        for index, row in enumerate(rounds[0][name]["rows"]):
            if row["band"] is not None:
                rows = [r[name]["rows"][index] for r in rounds]
                errors = [r["error_at_pace"] for r in rows]
                points[name].append((row["metric"], *judge(row["metric"], row["band"], errors), errors,
                                     [r["error"] for r in rows]))
    return points


def show(points):
    for name, values in points.items():
        print(name)
        for metric, verdict, median, band, errors, raw in values:
            listed = ", ".join(f"{100 * e:+.1f}" for e in errors)
            at_own_pace = "" if raw is None else f" ({', '.join(f'{100 * e:+.1f}' for e in raw)} at the profile's pace)"
            print(f"  {metric:<26} {verdict:<9} median {100 * median:+.1f} %, band {100 * band:.1f} %; "
                  f"rounds: {listed}{at_own_pace}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--configs", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--out", required=True, type=lambda p: pathlib.Path(p).resolve(),
                        help="a folder on a drive, for the profile, results and test files")
    parser.add_argument("--sessions", type=int, default=100, help="of each run (100)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("skipped: one processor computes, another moves KV; this machine has one")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    rounds = []
    verdicts = set()
    while len(rounds) < ROUNDS[0] or ("TOO NOISY" in verdicts and len(rounds) < ROUNDS[1]):
        rounds.append(run_round(options))
        points = judge_all(rounds)
        verdicts = {value[1] for values in points.values() for value in values}
    show(points)
    if "OUT" in verdicts:
        return 1
    return NOT_JUDGED if "TOO NOISY" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
