#!/usr/bin/env python3
"""Checks and measures a GPU in steps of at most nine minutes: correctness, attention, a calibration, the validation
matrix at Llama-2-13B's shape with a real drive. A folder keeps the state, so that a later run goes on where one ended.

  gpu_check.py --bin build/cuda/bin --out DIR [--device cuda:0] [--minutes N] [--step NAME]
  gpu_check.py ... --quick     the same steps with a tiny model in a few minutes; also for --device cpu:1

The folder gets a log and the results of each step, the profile, and result-DATE.md with where each figure is from. Exit code 1
if a step failed or is still to be done."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

LIMIT_SECONDS = 9 * 60
CALIBRATION_SLICES = 6
LEVELS = ["1x", "1.5x", "3x", "10x"]
SYSTEMS = ["recompute", "lru", "fifo", "scheduler-aware", "pensieve", "car"]
# A model of 16-bit numbers, of which a token's KV is one block of a drive.
TINY = ["/model=" + json.dumps({"preset": "kvtier-tiny", "kv_bytes_per_element": 2, "bytes_per_element": 2, "kv_heads": 4,
                                "layers": 2, "head_dim": 128, "context_window": "256tokens"}),
        "/hardware/unmeasured=roofline"]
SHORT = ["/workload/sessions=4", "/workload/warmup_turns=1", "/workload/sharegpt/turns_max=4",
         "/workload/sharegpt/message_cap=40tokens", "/workload/think_time/mean=200ms", "/workload/arrival_rate=20/s"]


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.state_file = self.out / "state.json"
        self.state = {"setting": self.setting(), "steps": {}}
        if self.state_file.exists():
            self.state = json.loads(self.state_file.read_text())
            if self.state["setting"] != self.setting():
                sys.exit(f"{self.state_file}: is of {self.state['setting']}, this run of {self.setting()}; "
                         "take another folder")
        self.profile = self.out / "profile.json"

    def setting(self):
        return {"device": self.options.device, "quick": self.options.quick}

    def program(self, name):
        return str(self.options.bin / name)

    # ---- Steps: a name and commands, each with the exit codes that are right ----

    def steps(self):
        device = ["--device", self.options.device]
        quick = self.options.quick
        tests = self.options.tests
        on_cuda = self.options.device.startswith("cuda")
        yield "environment", [(["nvidia-smi"], None)] if on_cuda else []
        yield "correctness", [([str(tests), "--gtest_filter=" + ("*CudaChecks*On0" if on_cuda else "*HostChecks*")], (0,))]
        shapes = {"decode": ["--new", "1"], "extend": ["--new", "16"],
                  "grouped": ["--new", "1", "--query-heads", "64", "--kv-heads", "8"]}
        for name, shape in shapes.items():
            if quick:
                shape = ["--new", "1", "--batch", "2", "--past", "64", "--query-heads", "2", "--seconds", "0.01"]
            yield f"attention-{name}", [([self.program("kvtier_attention_bench"), *device, *shape,
                                          "--json", self.out / f"attention-{name}.json"], (0,))]
        model = "kvtier-tiny" if quick else "llama2-13b"
        calibrate = [self.program("kvtier"), "calibrate", *device, "--model", model, "--out", self.profile,
                     *self.storage()]
        yield "calibrate-quick", [(calibrate, (0,))]
        if not quick:
            for slice_ in range(1, CALIBRATION_SLICES + 1):
                yield f"calibrate-full-{slice_}", [([*calibrate, "--full", "--resume"], "slice")]
            yield "calibrate-check", [([self.program("kvtier"), "calibrate", *device, "--model", model, "--check",
                                        self.profile], (0, 1))]
        configs = self.options.configs / "validation"
        one = configs / ("cpu.json" if quick else "llama2-13b.json")
        # Comparing every byte takes its time.
        fewer = [] if quick else ["--set", "/workload/sessions=40"]
        yield "lock-step", [(self.validate(one, "lock-step", ["--lock-step", *fewer]), (0,))]
        yield "verified-run", [(self.validate(one, "verified-run", ["--verify", "--repetitions", "1", *fewer]), (0, 1))]
        matrix = configs / ("matrix.json" if quick else "matrix-llama2-13b.json")
        for level in ["3x"] if quick else LEVELS:
            for system in ["lru"] if quick else SYSTEMS:
                name = f"matrix-{level}-{system}"
                yield name, [(self.validate(matrix, name, ["--only", f"{level},{system}", "--repetitions", "1"]), (0, 1))]

    def storage(self):
        return ["--storage", self.options.storage] if self.options.storage else []

    def validate(self, config, name, more):
        given = [f"/hardware/profile={self.profile}"]
        if self.options.quick:
            # The matrix sets sizes of its own.
            given = SHORT + ["/hardware/dram/capacity=512KiB", "/hardware/ssd/capacity=8MiB"]
            given += TINY if self.options.device.startswith("cuda") else []
        sets = [part for value in given for part in ("--set", value)]
        return [self.program("kvtier"), "validate", config, "--device", self.options.device,
                "--storage", self.options.storage or self.out, "--json", self.out / f"{name}.json", *sets, *more]

    # ---- Running ----

    def keep(self):
        passing = self.state_file.with_suffix(".new")
        passing.write_text(json.dumps(self.state, indent=2) + "\n")
        os.replace(passing, self.state_file)

    def run_command(self, command, log, limit):
        """The exit code, or None if the time was up."""
        log.write("$ " + " ".join(map(str, command)) + "\n")
        log.flush()
        try:
            child = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        except OSError as error:
            log.write(f"{error}\n")
            return 127
        try:
            return child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)  # what was measured is kept
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return None

    def run_step(self, name, commands):
        begin = time.monotonic()
        entry = {"began": utc(), "state": "failed", "codes": []}
        with open(self.out / f"{name}.log", "w", encoding="utf-8") as log:
            for command, right in commands:
                # Half a minute to end in.
                left = self.options.limit - 30 - (time.monotonic() - begin)
                code = self.run_command(command, log, max(1.0, left))
                entry["codes"].append(code)
                if right is not None and not (code in (0, None) if right == "slice" else code in right):
                    break
            else:
                entry["state"] = "done"
        entry["seconds"] = round(time.monotonic() - begin, 1)
        self.state["steps"][name] = entry
        self.keep()
        print(f"{name}: {entry['state']} in {entry['seconds']} s", flush=True)

    def run(self):
        begin = time.monotonic()
        steps = list(self.steps())
        names = [name for name, _ in steps]
        if self.options.list:
            for name in names:
                print(f"{name}: {self.state['steps'].get(name, {}).get('state', 'to do')}")
            return 0
        if self.options.step and self.options.step not in names:
            sys.exit(f"--step: expected one of {', '.join(names)}, got {self.options.step}")
        self.keep()
        for name, commands in steps:
            done = self.state["steps"].get(name, {}).get("state") == "done"
            if name != self.options.step if self.options.step else done:
                continue
            passed = time.monotonic() - begin
            if self.options.minutes and passed + self.options.limit > self.options.minutes * 60:
                print(f"{name}: for another run, {self.options.minutes} minutes are nearly over", flush=True)
                break
            self.run_step(name, commands)
        self.write_page(names)
        states = [self.state["steps"].get(name, {}).get("state") for name in names]
        print(f"{states.count('done')} of {len(names)} steps are done; {self.page()}")
        return 0 if states.count("done") == len(names) else 1

    # ---- The page ----

    def page(self):
        date = min((entry["began"] for entry in self.state["steps"].values()), default=utc())[:10]
        return self.out / f"result-{date}.md"

    def read(self, name):
        try:
            return json.loads((self.out / name).read_text())
        except (OSError, ValueError):
            return None

    def write_page(self, names):
        lines = [f"# Check of {self.options.device}", ""]
        if self.options.quick:
            lines += ["A quick run with a tiny model: no figure here is for use.", ""]
        profile = self.read("profile.json")
        if profile:
            about = profile.get("device", {})
            lines += [f"Device: {about.get('name')}, {about.get('driver')}; profile.json of "
                      f"{profile.get('provenance', {}).get('date')}.", ""]
        lines += [f"Host: {platform.processor() or platform.machine()}, {os.cpu_count()} processors, "
                  f"{platform.system()} {platform.release()}. Source: {revision()}.", ""]
        lines += ["| step | state | began (UTC) | seconds | log |", "|---|---|---|---|---|"]
        for name in names:
            entry = self.state["steps"].get(name)
            lines.append(f"| {name} | {entry['state']} | {entry['began']} | {entry['seconds']} | {name}.log |" if entry
                         else f"| {name} | to do | | | |")
        lines += self.attention_lines() + self.validation_lines(names)
        self.page().write_text("\n".join(lines) + "\n")

    def attention_lines(self):
        lines = []
        for path in sorted(self.out.glob("attention-*.json")):
            bench = self.read(path.name)
            ways = [key for key in bench["cells"][0] if isinstance(bench["cells"][0][key], dict)] if bench["cells"] else []
            lines += ["", f"## {path.stem}: median milliseconds of one layer ({path.name})", "",
                      f"{bench['batch']} requests of {bench['new_tokens']} new tokens, {bench['query_heads']} query heads on "
                      f"{bench['kv_heads']} KV heads of {bench['head_dim']}.", "",
                      "| past tokens | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
            for cell in bench["cells"]:
                values = [f"{cell[way]['median_seconds'] * 1e3:.3f}" + ("*" if cell[way]["disturbed"] else "") for way in ways]
                lines.append(f"| {cell['past_tokens']} | " + " | ".join(values) + " |")
        return lines

    def validation_lines(self, names):
        lines = ["", "## Simulated beside measured", "", "| point | metric | simulated | measured | error | band |",
                 "|---|---|---|---|---|---|"]
        for name in names:
            found = self.read(f"{name}.json") or {}
            points = found.get("points", [{"validation": found}] if "rows" in found else [])
            for point in points:
                for row in point["validation"].get("rows", []):
                    band = "" if row["band"] is None else f"{row['band']:.3g}"
                    lines.append(f"| {name} | {row['metric']} | {row['simulated']:.4g} | {row['measured']:.4g} | "
                                 f"{row['error']:+.3g} | {band} |")
        return lines


def utc():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def revision():
    found = subprocess.run(["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True,
                           check=False)
    return found.stdout.strip() or "unknown"


def main():
    def path(text):
        return pathlib.Path(text).resolve()
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=path, help="folder with kvtier and kvtier_attention_bench")
    parser.add_argument("--tests", required=True, type=path, help="program with the device's tests")
    parser.add_argument("--configs", type=path, default=root / "configs")
    parser.add_argument("--out", required=True, type=path, help="folder that keeps the state and the results")
    parser.add_argument("--storage", type=path, help="folder on the drive to use (--out; the calibration leaves the drive out)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--step", help="this step alone, also if it is done")
    parser.add_argument("--minutes", type=float, help="begin no step that may end later")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a step (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the steps and their states")
    sys.exit(Check(parser.parse_args()).run())


if __name__ == "__main__":
    main()
