#!/usr/bin/env python3
"""Judges the simulation on this machine: points of the validation matrix, simulated and run freely on the device.

Each round runs each point once. A profile of the machine is measured before the first round and after every three points, so
that each run lies between two profiles. How fast the machine computes changes between a profile and a run, so two things are
judged: the pace of the run's prefills, and the errors at that pace. Each is judged by the median over the rounds. It may be
off by its band, PACE or the one that `kvtier validate` gives, or by three times the standard error of the median, if that is
more. Where three standard errors are within the band of every value, two rounds are enough. Otherwise there are three, and
while three standard errors are more than LIMITS further ones, up to ROUNDS[1]; then the value is not judged: the machine is
too busy. All rounds are shown, and beside them the errors between two profiles: of the mean of both simulated values.

With --minutes a further round begins only if it will end in that time. Two rounds are always made, and a third one before a
value is called out. With --rounds there are exactly so many.

The exit code is 1 if a value is out, 75 if none is and some cannot be judged."""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import typing

POINTS = ["3x,lru", "3x,pensieve"]
MODEL = ["--device", "cpu:1", "--model", "kvtier-tiny"]
ROUNDS = (2, 5)
# Points between two profiles.
POINTS_AT_ONCE = 3
NOISES = 3
# The pace of prefills in a run, against the profile measured before it.
PACE = 0.15
# The widest band: points of hit rates, shares of times.
LIMITS = {"rate": 0.05, "time": 0.5}
NOT_JUDGED = 75


def judge(metric, band, errors):
    """The verdict ("in", "OUT" or "TOO NOISY"), the median of the errors, and the band that counts."""
    error = statistics.median(errors)
    # The standard deviation of a normal distribution, by the median absolute deviation.
    deviation = 1.4826 * statistics.median(abs(e - error) for e in errors)
    wide = max(band, NOISES * 1.2533 * deviation / len(errors) ** 0.5)
    if wide > LIMITS["rate" if metric.startswith("hit_rate") else "time"]:
        return "TOO NOISY", error, wide
    return "in" if abs(error) <= wide else "OUT", error, wide


def run(program, *arguments, codes=(0,)):
    done = subprocess.run([program, *arguments], check=False, stdout=subprocess.PIPE)
    if done.returncode not in codes:
        sys.exit(done.returncode or 1)
    return done.stdout


def cxl_bandwidth(options, profile):
    """The rates of the profile's host link: CXL memory is a region of host memory here."""
    config = run(options.program, "simulate", options.configs / "validation" / "cpu.json",
                 "--set", f"/hardware/profile={profile}", "--print-config")
    link = json.loads(config)["hardware"]["links"]["pcie"]
    return {"read": link["to_device"], "write": link["to_host"], "both": link["both"]}


def matrix(options):
    """The matrix, whose config has its own path."""
    folder = options.configs / "validation"
    sweep = json.loads((folder / "matrix.json").read_text())
    sweep["config"] = str(folder / sweep["config"])
    return sweep


def points_of(sweep, labels):
    """The points with these labels; a level stands for all its points."""
    points = [",".join(value["label"] for value in values)
              for values in itertools.product(*(axis["values"] for axis in sweep["axes"]))]
    found = {label: [point for point in points if label in (point, *point.split(","))] for label in labels}
    unknown = [label for label in labels if not found[label]]
    if unknown:
        sys.exit(f"--points: no such point: {' '.join(unknown)}")
    return list(dict.fromkeys(itertools.chain.from_iterable(found.values())))


def measure_profiles(options):
    """Measures a profile at each step, and yields the settings of runs with it."""
    for number in itertools.count(1):
        profile = options.out / f"profile-{number}.json"
        run(options.program, "calibrate", *MODEL, "--storage", options.out, "--out", profile)
        yield {"/hardware/profile": str(profile), "/hardware/cxl/bandwidth": cxl_bandwidth(options, profile),
               "/workload/sessions": options.sessions}


def simulate(options, settings):
    """The metrics of each point."""
    sweep = matrix(options)
    sweep["set"] |= settings
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        config = pathlib.Path(folder) / "matrix.json"
        config.write_text(json.dumps(sweep))
        run(options.program, "sweep", config, "--out", f"{folder}/out", "--jobs", "1")
        lines = (pathlib.Path(folder) / "out" / "results.jsonl").read_text().splitlines()
    return {",".join(point["axes"].values()): point["metrics"] for point in map(json.loads, lines)}


def validate(options, point, number, settings):
    result = options.out / f"{point}-{number}.json"
    sets = itertools.chain.from_iterable(("--set", f"{pointer}={value if isinstance(value, str) else json.dumps(value)}")
                                         for pointer, value in settings.items())
    # Code 1 says that this one run is out of band, which the median of the rounds decides.
    run(options.program, "validate", options.configs / "validation" / "matrix.json", "--only", point, *sets,
        "--storage", options.out, "--repetitions", "1", "--json", result, codes=(0, 1))
    return json.loads(result.read_text())["points"][0]["validation"]


def add_errors_between(rows, metrics):
    """Adds the error of the mean of two simulated values, where `metrics` are of the profile after the run."""
    for row in rows:
        if row["band"] is not None:
            after = metrics
            for key in row["metric"].split("."):
                after = after[key]
            mean = (row["simulated"] + after) / 2
            row["error_between"] = (mean - row["measured"] if row["metric"].startswith("hit_rate")
                                    else mean / row["measured"] - 1)


def run_round(options, number, before, profiles):
    """The validation of each point, and the profile's settings after the last one. `before` has those before the first."""
    validations = {}
    for first in range(0, len(options.points), POINTS_AT_ONCE):
        runs = {point: validate(options, point, number, before)
                for point in options.points[first:first + POINTS_AT_ONCE]}
        before = next(profiles)
        simulated = simulate(options, before)
        for point, validated in runs.items():
            add_errors_between(validated["rows"], simulated[point])
        validations |= runs
    return validations, before


class Value(typing.NamedTuple):
    """A metric of a point over the rounds."""
    metric: str
    verdict: str
    median: float
    wide: float
    band: float
    errors: list
    # Those between two profiles; None of the pace.
    between: list | None


def judge_all(rounds):
    """The values of each point."""
    points = {}
    for name in rounds[0]:
        paces = [r[name]["pace"]["prefill"] - 1 for r in rounds]
        points[name] = [Value("pace of prefills", *judge("pace", PACE, paces), PACE, paces, None)]
        for index, row in enumerate(rounds[0][name]["rows"]):
            if row["band"] is not None:
                rows = [r[name]["rows"][index] for r in rounds]
                errors = [r["error_at_pace"] for r in rows]
                points[name].append(Value(row["metric"], *judge(row["metric"], row["band"], errors), row["band"], errors,
                                          [r["error_between"] for r in rows]))
    return points


def another_round(points, rounds, round_seconds, seconds_left, limits=ROUNDS):
    """Whether there has to be one more after `rounds`, which the points are the values of."""
    if rounds >= limits[1]:
        return False
    values = [value for of_point in points.values() for value in of_point]
    verdicts = {value.verdict for value in values}
    if rounds < limits[0] or (rounds == limits[0] and "OUT" in verdicts):
        return True
    if rounds == limits[0]:
        needed = any(value.wide > value.band for value in values)
    else:
        needed = "TOO NOISY" in verdicts
    return needed and round_seconds <= seconds_left


def rounds_text(errors):
    return f"rounds: {', '.join(f'{100 * e:+.1f}' for e in errors)}"


def show(points):
    for name, values in points.items():
        print(name)
        for value in values:
            between = ("" if value.between is None else
                       f" (between two profiles: median {100 * statistics.median(value.between):+.1f} %, "
                       f"{rounds_text(value.between)})")
            print(f"  {value.metric:<26} {value.verdict:<9} median {100 * value.median:+.1f} %, "
                  f"band {100 * value.wide:.1f} %; {rounds_text(value.errors)}{between}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--configs", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--out", required=True, type=lambda p: pathlib.Path(p).resolve(),
                        help="a folder on a drive, for the profiles, results and test files")
    parser.add_argument("--points", nargs="+", default=POINTS, metavar="POINT",
                        help=f"of configs/validation/matrix.json ({' '.join(POINTS)})")
    parser.add_argument("--rounds", type=int, metavar="N",
                        help=f"exactly so many ({ROUNDS[0]} to {ROUNDS[1]}, as the spread needs)")
    parser.add_argument("--sessions", type=int, default=100, help="of each run (100)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of all rounds (as long as they take)")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    limits = ROUNDS if options.rounds is None else (options.rounds, options.rounds)
    if len(os.sched_getaffinity(0)) < 2:
        print("skipped: one processor computes, another moves KV; this machine has one")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    options.points = points_of(matrix(options), options.points)
    profiles = measure_profiles(options)
    rounds = []
    longest = 0
    points = {}
    before = next(profiles)
    while another_round(points, len(rounds), longest, end - time.monotonic(), limits):
        begin = time.monotonic()
        validations, before = run_round(options, len(rounds) + 1, before, profiles)
        rounds.append(validations)
        longest = max(longest, time.monotonic() - begin)
        points = judge_all(rounds)
    show(points)
    verdicts = {value.verdict for values in points.values() for value in values}
    if "OUT" in verdicts:
        return 1
    return NOT_JUDGED if "TOO NOISY" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
