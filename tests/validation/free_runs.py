#!/usr/bin/env python3
"""Runs two points of the validation matrix freely on this machine, with a profile of it measured right before, and judges
them: every value within twice the band that kvtier validate gives it, TTFT as it is or at the runs' pace, as machines that
run such checks are shared and change their pace.

A second attempt, with a profile of its own, is made where the first is out. Exit code 1 if both are."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

POINTS = [["3x", "lru"], ["3x", "pensieve"]]
BANDS = 2
MODEL = ["--device", "cpu:1", "--model", "kvtier-tiny"]
ATTEMPTS = 2


def is_out(row):
    """Rows that are not judged have no band."""
    if row["band"] is None:
        return False
    errors = [row["error"]]
    if not row["metric"].startswith("hit_rate"):
        errors.append(row["error_at_pace"])
    return min(map(abs, errors)) > BANDS * row["band"]


def run(program, *arguments, codes=(0,)):
    done = subprocess.run([program, *arguments], check=False)
    if done.returncode not in codes:
        sys.exit(done.returncode or 1)


def attempt(options, folder):
    """What is out."""
    profile = folder / "profile.json"
    run(options.program, "calibrate", *MODEL, "--storage", folder, "--out", profile)
    problems = []
    for labels in POINTS:
        result = folder / "validation.json"
        run(options.program, "validate", options.configs / "validation" / "matrix.json",
            "--only", ",".join(labels), "--set", f"/hardware/profile={profile}",
            "--storage", folder, "--repetitions", "1", "--json", result, codes=(0, 1))
        for point in json.loads(result.read_text())["points"]:
            for row in filter(is_out, point["validation"]["rows"]):
                problems.append(f"{', '.join(labels)}: {row['metric']}: simulated {row['simulated']:.6g}, "
                                f"measured {row['measured']:.6g}, at the run's pace "
                                f"{row['simulated_at_pace']:.6g}; band {row['band']:.2g}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--configs", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--out", required=True, type=lambda p: pathlib.Path(p).resolve(),
                        help="a folder on a drive, for the profile, results and test files")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("skipped: one processor computes, another moves KV; this machine has one")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for number in range(1, ATTEMPTS + 1):
        problems = attempt(options, options.out)
        if not problems:
            return 0
        print(f"attempt {number} of {ATTEMPTS} is out:", *problems, sep="\n  ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
