#!/usr/bin/env python3
"""Checks and measures a GPU in six steps, in about eight minutes: correctness, a probe of passes and copies, attention behind
long contexts, a calibration, a validation at ten times the memory, and the kernels.

  gpu_check.py --out DIR                                   the programs that `make gpu-carry` packed beside this file
  gpu_check.py --bin build/cuda/bin --tests PROGRAM --out DIR   those of a build
  gpu_check.py ... --quick                                 the same steps with a tiny model; also for --device cpu:1

A step has a budget and may also use the seconds that earlier steps left. A step beyond its budget is interrupted, which keeps its
finished measurements, and the next step begins. After each step, DIR has results.tar.gz, summary.txt and profile.json of all
steps so far. `gpu_page.py DIR` makes a page and a profile of them. The exit code is 1 if a step failed or did not run."""

import argparse
import ctypes
import datetime
import io
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

sys.dont_write_bytecode = True
import gpu_page

ARCHIVE = "programs.tar.gz"
# Seconds, in the order of the steps.
BUDGETS = {"correctness": 20, "probe": 110, "attention": 60, "calibrate": 90, "validate": 200, "kernels": 20}
QUICK_BUDGETS = {"correctness": 60, "probe": 60, "attention": 60, "calibrate": 120, "validate": 120, "kernels": 60}
# A run has about 14 seconds of requests. Loading, warm-up and the drive's file take the rest.
RUN_SECONDS = 40
SYSTEMS = ["scheduler-aware", "recompute", "car", "pensieve", "lru"]
HEADS = [(32, 8), (8, 1), (64, 8)]
MODEL = "llama2-13b"
# The profile of validations if there was no calibration.
PROFILE = "h100-llama2-13b"
CLOCKS = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,pstate"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Time to end after an interrupt.
GRACE_SECONDS = 8
# A model of 16-bit numbers, of which a token's KV is one block of a drive.
TINY = ["/model=" + json.dumps({"preset": "kvtier-tiny", "kv_bytes_per_element": 2, "bytes_per_element": 2, "kv_heads": 4,
                                "layers": 2, "head_dim": 128, "context_window": "256tokens"}),
        "/hardware/unmeasured=roofline"]
SHORT = ["/workload/sessions=4", "/workload/warmup_turns=1", "/workload/sharegpt/turns_max=4",
         "/workload/sharegpt/message_cap=40tokens", "/workload/think_time/mean=200ms", "/workload/arrival_rate=20/s"]


class Stopped(Exception):
    """The programme was asked to end."""


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-", dir=options.work))
        self.results = self.work / "results"
        self.results.mkdir()
        self.storage = options.storage or self.work
        self.on_cuda = options.device.startswith("cuda")
        self.environment = dict(os.environ)
        self.source = {}
        self.find_programs()
        self.profile = self.results / "profile.json"
        self.summary = []
        self.child = None
        self.left = 0.0
        self.state = {"format": "kvtier.gpu_check/1", "device": options.device, "quick": options.quick, "began": utc(),
                      "source": self.source, "host": host(), "steps": {}}

    def find_programs(self):
        here = pathlib.Path(__file__).resolve().parent
        if self.options.bin:
            self.bin = self.options.bin
            self.tests = self.options.tests
            self.configs = self.options.configs or here.parents[1] / "configs"
            self.source = {"commit": revision(here)}
            return
        if not (here / ARCHIVE).is_file():
            sys.exit(f"gpu_check: {here / ARCHIVE} is missing; make it with `make gpu-carry`, or name --bin and --tests")
        root = self.work / "programs"
        with tarfile.open(here / ARCHIVE) as archive:
            archive.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        self.bin = root / "bin"
        self.tests = self.bin / "device_tests"
        self.configs = root / "share/kvtier/configs"
        self.source = json.loads((root / "source.json").read_text())
        folders = [str(root / "so"), os.environ.get("LD_LIBRARY_PATH", ""), "/usr/local/cuda/lib64"]
        self.environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)

    # ---- Steps: commands with their right exit codes and limits ----

    def steps(self):
        yield "correctness", self.correctness
        yield "probe", self.probe
        yield "attention", self.attention
        yield "calibrate", self.calibrate
        yield "validate", self.validate
        yield "kernels", self.kernels

    def program(self, name):
        return self.bin / name

    def device(self):
        return ["--device", self.options.device]

    def model(self):
        return "kvtier-tiny" if self.options.quick else MODEL

    def correctness(self, _):
        tests = "*CudaChecks*On0" if self.on_cuda else "*HostChecks*"
        yield [self.tests, f"--gtest_filter={tests}"], (0,), None

    def probe(self, seconds):
        small = ["--longest", 24, "--samples", 2, "--copy-bytes", 1 << 18] if self.options.quick else []
        yield [self.program("kvtier_device_probe"), *self.device(), "--model", self.model(), "--json",
               self.results / "probe.json", "--seconds", max(1, round(0.9 * seconds)), *small], (0,), None

    def attention(self, _):
        # FlashInfer's kernels are in a module of their own beside a second copy of the program.
        other = self.bin.parent / "flashinfer/bin/kvtier_attention_bench"
        for name, ways in {"own": ["multi_query", "gather_limit"], "flashinfer": ["flashinfer"]}.items():
            program = self.program("kvtier_attention_bench") if name == "own" else other
            if not program.is_file():
                continue
            for query_heads, kv_heads in HEADS[:1] if self.options.quick else HEADS:
                sizes = ["--new", 1, 4, "--past", 64] if self.options.quick else \
                    ["--new", 1, 16, 128, 512, "--past", 1024, 16384, 65536]
                heads = (4, 2) if self.options.quick else (query_heads, kv_heads)
                yield [program, *self.device(), "--batch", 1, *sizes, "--query-heads", heads[0],
                       "--kv-heads", heads[1], "--seconds", 0.05, "--ways", *ways, "--json",
                       self.results / f"attention-{query_heads}x{kv_heads}-{name}.json"], (0,), None

    def calibrate(self, _):
        yield [self.program("kvtier"), "calibrate", *self.device(), "--model", self.model(), "--storage", self.storage, "--out",
               self.profile], (0,), None

    def validate(self, _):
        for turn in range(1, 2 if self.options.quick else 3):
            for system in SYSTEMS:
                yield self.validation(turn, system), (0, 1), RUN_SECONDS

    def validation(self, turn, system):
        folder = self.configs / "validation"
        if self.options.quick:
            # The matrix sets sizes of its own.
            given = [*SHORT, "/hardware/dram/capacity=512KiB", "/hardware/ssd/capacity=8MiB", "/system/save/write_buffer=16MiB"]
            given += TINY if self.on_cuda else []
            config, only = folder / "matrix.json", f"3x,{system}"
        else:
            given = [f"/hardware/profile={self.profile_for_runs()}", "/hardware/unmeasured=roofline"]
            config, only = folder / "quarter-hour.json", system
        sets = [part for value in given for part in ("--set", value)]
        return [self.program("kvtier"), "validate", config, *self.device(), "--storage", self.storage, "--only", only,
                "--repetitions", 1, "--json", self.results / f"validate-{turn}-{system}.json", *sets]

    def profile_for_runs(self):
        """An interrupted calibration leaves a profile of its finished cells."""
        partial = self.profile.with_name("profile.json.partial")
        return next((path for path in (self.profile, partial) if path.is_file()), PROFILE)

    def kernels(self, _):
        shapes = {"decode": ["--new", 1], "extend": ["--new", 16], "grouped": ["--new", 1, "--query-heads", 64, "--kv-heads", 8]}
        for name, shape in shapes.items():
            if self.options.quick:
                shape = ["--new", 1, "--batch", 2, "--past", 64, "--query-heads", 2]
            yield [self.program("kvtier_attention_bench"), *self.device(), *shape, "--seconds", 0.05, "--json",
                   self.results / f"kernels-{name}.json"], (0,), None

    # ---- Running ----

    def run_command(self, command, log, limit):
        """The exit code, or None if the time was up."""
        command = [str(part) for part in command]
        log.write("$ " + " ".join(command) + "\n")
        log.flush()
        try:
            self.child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                          env=self.environment, preexec_fn=end_with_parent)
        except OSError as error:
            log.write(f"{error}\n")
            return 127
        try:
            return self.child.wait(timeout=max(0.1, limit))
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end_child()

    def end_child(self):
        child, self.child = self.child, None
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGINT)  # finished measurements are kept
        try:
            child.wait(timeout=GRACE_SECONDS * min(1, self.options.scale))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def run_step(self, name, commands, budget):
        begin = time.monotonic()
        limit = budget + self.left
        before = set(self.results.iterdir())
        entry = {"state": "stopped", "began": utc(), "budget": budget, "commands": []}
        self.state["steps"][name] = entry
        states = []
        longest = 0.0
        try:
            with open(self.results / f"{name}.log", "w", encoding="utf-8") as log:
                for command, right, most in commands(limit):
                    left = limit - (time.monotonic() - begin)
                    # A run needs its whole time.
                    if left <= (longest if most else 0):
                        states.append("cut")
                        break
                    started = time.monotonic()
                    code = self.run_command(command, log, min(left, most or left))
                    states.append("cut" if code is None else "done" if code in right else "failed")
                    longest = max(longest, time.monotonic() - started)
                    entry["commands"].append({"command": " ".join(map(str, command)), "code": code,
                                              "seconds": round(time.monotonic() - started, 1)})
            made = {path for path in self.results.iterdir() if path.suffix != ".log"} - before
            cut = "cut" if made else "failed"
            entry["state"] = "failed" if "failed" in states else cut if "cut" in states else "done"
        finally:
            entry["seconds"] = round(time.monotonic() - begin, 1)
            self.left = max(0.0, limit - (time.monotonic() - begin))
            self.tell(name, entry)
            self.keep()

    def tell(self, name, entry):
        lines = [f"== {name}: {entry['state']} in {entry['seconds']} s"]
        try:
            lines += gpu_page.short(name, gpu_page.Results(self.results))
        except Exception as error:  # pylint: disable=broad-except
            lines.append(f"no table: {error!r}")
        if entry["state"] == "failed":
            log = self.results / f"{name}.log"
            lines += log.read_text(errors="replace").splitlines()[-8:] if log.is_file() else []
        self.summary += lines
        print("\n".join(lines), flush=True)

    def keep(self):
        """Rewrites the files in --out, each at once."""
        (self.results / "state.json").write_text(json.dumps(self.state, indent=2) + "\n")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(self.results, arcname="results")
        replace(self.out / "results.tar.gz", packed.getvalue())
        replace(self.out / "summary.txt", ("\n".join(self.summary) + "\n").encode())
        if self.profile.is_file():
            replace(self.out / "profile.json", self.profile.read_bytes())

    def record_device(self):
        """Clocks, power and temperature while the programme runs."""
        if not self.on_cuda or not shutil.which("nvidia-smi"):
            return None
        with open(self.results / "nvidia-smi.txt", "wb") as text:
            subprocess.run(["nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE,TEMPERATURE"], stdout=text, stderr=text,
                           check=False)
        with open(self.results / "clocks.csv", "wb") as table:
            return subprocess.Popen(["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv", "-lms", "50"], stdout=table,
                                    stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)

    def run(self):
        budgets = QUICK_BUDGETS if self.options.quick else BUDGETS
        names = [name for name, _ in self.steps()]
        unknown = set(self.options.steps or []) - set(names)
        if unknown:
            sys.exit(f"--steps: expected some of {', '.join(names)}, got {', '.join(sorted(unknown))}")
        recorder = None
        try:
            recorder = self.record_device()
            for name, commands in self.steps():
                if not self.options.steps or name in self.options.steps:
                    self.run_step(name, commands, budgets[name] * self.options.scale)
        except Stopped:
            print("stopped; the results so far are kept", flush=True)
        finally:
            self.end_child()
            if recorder:
                recorder.terminate()
                recorder.wait()
            self.keep()
            shutil.rmtree(self.work, ignore_errors=True)
        states = [self.state["steps"].get(name, {}).get("state", "to do") for name in self.options.steps or names]
        good = sum(state in ("done", "cut") for state in states)
        print(f"{good} of {len(states)} steps have results: {self.out / 'results.tar.gz'}")
        return 0 if good == len(states) else 1


def end_with_parent():
    """A program is interrupted if this one is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)


def replace(path, content):
    passing = path.with_name(path.name + ".new")
    passing.write_bytes(content)
    os.replace(passing, path)


def utc():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def host():
    name = platform.processor() or platform.machine()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return {"cpu": name, "processors": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}


def revision(folder):
    found = subprocess.run(["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
                           capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def stop(*_):
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


def main():
    def path(text):
        return pathlib.Path(text).resolve()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=path, help="folder for the results")
    parser.add_argument("--bin", type=path, help="folder with the programs of a build, in place of the packed ones")
    parser.add_argument("--tests", type=path, help="with --bin: the program with the device's tests")
    parser.add_argument("--configs", type=path, help="with --bin: the folder with configs (that of this source)")
    parser.add_argument("--work", type=path, help="folder for programs and results in progress (that of temporary files)")
    parser.add_argument("--storage", type=path, help="folder on the drive to use (--work)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="a tiny model: no figure is for use")
    parser.add_argument("--scale", type=float, default=1, help="factor on all budgets, together 500 seconds (%(default)s)")
    parser.add_argument("--steps", nargs="+", metavar="STEP", help="only these: " + ", ".join(BUDGETS))
    options = parser.parse_args()
    if bool(options.bin) != bool(options.tests):
        parser.error("--bin and --tests belong together")
    for number in STOPS:
        signal.signal(number, stop)
    sys.exit(Check(options).run())


if __name__ == "__main__":
    main()
