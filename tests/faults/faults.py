"""Lets calls of the system fail, kills kvtier and fills its disk, and checks what is left behind.

    python3 tests/faults/faults.py --program KVTIER --inject LIBRARY --configs CONFIGS [--all]

Every output is afterwards as it was or as a run without a fault leaves it, messages name the file,
no temporary file stays, and --resume ends with the bytes of a run that was never interrupted.
Without --all a sample of the faults, in about 15 seconds.
"""

import argparse
import errno
import gzip
import itertools
import os
import pty
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEMPORARY = re.compile(r"\.kvtier-tmp-\w{6}$")
OLD = "an old result\n"

RUN = """{
  "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2}, "system": "attentionstore",
  "workload": {"generator": "sharegpt", "sessions": 60, "arrival_rate": "1/s", "warmup_turns": 20}
}"""
SWEEP = """{
  "config": "run.json",
  "axes": [
    {"name": "system", "key": "/system", "values": ["recompute", "attentionstore"]},
    {"name": "DRAM", "key": "/hardware/dram/capacity", "values": ["16GiB", "64GiB", "128GiB"]}
  ],
  "replications": 2,
  "columns": [{"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"}]
}"""
# Long enough for a plan to trust its runs.
STEADY = """{
  "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2}, "system": "attentionstore",
  "workload": {
    "generator": "sharegpt", "sessions": 1500, "arrival_rate": "0.5/s", "warmup_turns": 20,
    "think_time": {"mean": "1s"},
    "sharegpt": {"user_tokens_median": 30, "assistant_tokens_median": 5,
                 "message_cap": "60tokens", "turns_max": 4}
  }
}"""
PLAN = """{
  "config": "steady.json",
  "axes": [
    {"name": "DRAM", "key": "/hardware/dram/capacity", "values": ["16GiB", "64GiB", "128GiB"]}
  ],
  "capacities": ["DRAM"], "slo": ["ttft_seconds.p90<=100"], "replications": 2
}"""


def without_dates(file):
    """Profiles say when they were made."""
    return re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+Z", b"", file.read_bytes())


class Command:
    """Arguments, the files that it writes, and of one that resumes, its folder."""

    def __init__(self, name, arguments, outputs, folder=None, codes=(0,), slow=False):
        self.name = name
        self.arguments = arguments
        self.outputs = outputs
        self.folder = folder
        self.codes = codes
        self.slow = slow


def commands(configs):
    one = ["simulate", "run.json"]
    return [
        Command("simulate", one + ["--json", "o.json", "--requests", "o.csv", "--timeline",
                                   "t.json", "--decisions", "d.jsonl"],
                ["o.json", "o.csv", "t.json", "d.jsonl"]),
        Command("simulate --untimed", one + ["--untimed", "--json", "o.json"], ["o.json"]),
        Command("simulate --find-capacity",
                ["simulate", "steady.json", "--find-capacity", "ttft_seconds.p90<=0.1",
                 "--tolerance", "0.5", "--json", "o.json"], ["o.json"]),
        Command("compare", ["compare", "run.json", "--systems", "recompute,attentionstore",
                            "--json", "o.json"], ["o.json"]),
        Command("sweep", ["sweep", "sweep.json", "--out", "out", "--jobs", "1"],
                ["sweep.json", "results.jsonl", "results.csv"], folder="out"),
        Command("plan", ["plan", "plan.json", "--out", "out", "--jobs", "1", "--json", "o.json"],
                ["plan.json", "results.jsonl", "plan-result.json"], folder="out", codes=(0, 1)),
        Command("report", ["report", "in.json", "done", "--out", "o.html"], ["o.html"]),
        Command("trace generate", ["trace", "generate", "run.json", "--out", "o.jsonl"],
                ["o.jsonl"]),
        Command("trace generate, gzip", ["trace", "generate", "run.json", "--out", "o.jsonl.gz"],
                ["o.jsonl.gz"]),
        Command("trace import", ["trace", "import", f"{configs}/examples/turns.csv", "--out",
                                 "o.jsonl.zst", "--json", "o.json"], ["o.jsonl.zst", "o.json"]),
        Command("trace stats", ["trace", "stats", "in.jsonl", "--json", "o.json"], ["o.json"]),
        Command("trace mrc", ["trace", "mrc", "run.json", "--json", "o.json"], ["o.json"]),
        Command("calibrate --from-table",
                ["calibrate", "--from-table", f"{configs}/examples/kernel_times.csv", "--model",
                 "llama2-7b", "--out", "o.json"], ["o.json"]),
        Command("new policy", ["new", "policy", "mine", "--library", "--out", "mine"], []),
        Command("validate --lock-step",
                ["validate", f"{configs}/validation/cpu.json", "--lock-step", "--set",
                 "/workload/sessions=2", "--set", "/workload/warmup_turns=0", "--json", "o.json"],
                ["o.json"], slow=True),
        Command("reproduce", ["reproduce", "car", "--replications", "1", "--json", "o.json"],
                ["o.json"], codes=(0, 1), slow=True),
    ]


class Faults:
    def __init__(self, options):
        self.program = str(Path(options.program).resolve())
        self.inject = str(Path(options.inject).resolve())
        self.configs = str(Path(options.configs).resolve())
        self.all = options.all
        self.random = random.Random(options.seed)
        self.root = Path(tempfile.mkdtemp(prefix="kvtier-faults-")).resolve()
        self.failures = []
        self.counts = {}
        self.given_up = time.monotonic() + options.seconds if options.seconds else None

    def out_of_time(self):
        return self.given_up is not None and time.monotonic() > self.given_up

    def fail(self, what, why, outcome=None):
        self.failures.append(f"{what}: {why}")
        print(f"FAILED {what}: {why}", flush=True)
        if outcome is not None:
            print(f"  exit {outcome.returncode}; {outcome.stderr.decode(errors='replace')[-400:]}")

    def count(self, kind):
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def run(self, arguments, where, fault=None, **more):
        environment = dict(os.environ)
        mark = self.root / "mark"
        mark.unlink(missing_ok=True)
        if fault:
            environment.update(LD_PRELOAD=self.inject, KVTIER_FAULT=f"{fault}:{where}/",
                               KVTIER_FAULT_MARK=str(mark))
        return subprocess.run([self.program, *arguments], cwd=where, env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=600, check=False, **more)

    def marked(self):
        mark = self.root / "mark"
        return Path(mark.read_text()) if mark.exists() else None

    def folder(self, name, command=None):
        """A new folder with inputs and, of a command, an old file under each of its outputs."""
        where = self.root / name
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(self.root / "inputs", where)
        if command and not command.folder:
            for output in command.outputs:
                (where / output).write_text(OLD)
        return where

    def prepare(self):
        inputs = self.root / "inputs"
        inputs.mkdir()
        (inputs / "run.json").write_text(RUN)
        (inputs / "sweep.json").write_text(SWEEP)
        (inputs / "steady.json").write_text(STEADY)
        (inputs / "plan.json").write_text(PLAN)
        for arguments in (["simulate", "run.json", "--json", "in.json"],
                          ["sweep", "sweep.json", "--out", "done"],
                          ["trace", "generate", "run.json", "--out", "in.jsonl"]):
            outcome = self.run(arguments, inputs)
            if outcome.returncode != 0:
                sys.exit(f"cannot prepare: {outcome.stderr.decode()}")

    def check_left(self, what, where, command, good, must_be_new):
        """Each output is the old one or that of `good`, and nothing else was added."""
        at = where / (command.folder or ".")
        for output in command.outputs:
            file, expected = at / output, good / (command.folder or ".") / output
            is_new = file.exists() and without_dates(file) == without_dates(expected)
            is_old = not file.exists() if command.folder else (
                file.exists() and file.read_bytes() == OLD.encode())
            if not is_new and (must_be_new or not is_old):
                self.fail(what, f"{output} is neither the old nor the whole new one")
        self.check_no_leftovers(what, where)

    def check_no_leftovers(self, what, where):
        left = [p.name for p in where.rglob("*") if TEMPORARY.search(p.name)]
        if left:
            self.fail(what, f"left behind: {left}")

    def check_resumes(self, what, where, command, good):
        """Runs the command again after a fault, in the same folder."""
        arguments = command.arguments + (["--resume"] if command.folder else [])
        outcome = self.run(arguments, where)
        if outcome.returncode not in command.codes:
            self.fail(what + ", then again", "does not end well", outcome)
            return
        if not command.name.startswith("new"):
            self.check_left(what + ", then again", where, command, good, must_be_new=True)

    def whole(self, command):
        """A run without a fault."""
        good = self.folder("good", command)
        outcome = self.run(command.arguments, good)
        if outcome.returncode not in command.codes:
            self.fail(command.name, "does not run", outcome)
            return None
        return good

    def call_faults(self, command, good):
        once, stays = str, lambda e: f"{e}+"
        kinds = [("write", how) for how in (once(errno.EIO), stays(errno.ENOSPC),
                                            once(errno.EINTR), "short")]
        kinds += [("fsync", once(errno.EIO)), ("fsync", stays(errno.ENOSPC)),
                  ("fsync", once(errno.EINTR)), ("rename", once(errno.EIO)),
                  ("rename", stays(errno.ENOSPC)), ("open", once(errno.EIO)),
                  ("open", stays(errno.ENOSPC)), ("open", once(errno.EINTR)),
                  ("close", stays(errno.EIO)), ("close", once(errno.EINTR)),
                  ("read", once(errno.EIO))]
        if not self.all:
            kinds = self.random.sample(kinds, 3)
        for call, how in kinds:
            numbers = itertools.count(1) if self.all else (1, self.random.randint(2, 6))
            for number in numbers:
                if self.out_of_time() or not self.one_fault(command, good, call, number, how):
                    break

    def one_fault(self, command, good, call, number, how):
        where = self.folder("faulty", command)
        what = f"{command.name}, {call} {number} fails with {how}"
        outcome = self.run(command.arguments, where, fault=f"{call}:{number}:{how}")
        file = self.marked()
        if file is None:  # there are fewer such calls
            return False
        self.count(f"{call} {how if how == 'short' else errno.errorcode[int(how.rstrip('+'))]}")
        # Reading a file by the standard library does not try again after EINTR; the rest must.
        harmless = call == "close" or how == "short" or (how == str(errno.EINTR) and call != "open")
        if outcome.returncode != 3 and outcome.returncode not in command.codes:
            self.fail(what, "expected exit code 0 or 3", outcome)
        elif harmless and outcome.returncode == 3:
            self.fail(what, "expected it to go on", outcome)
        elif outcome.returncode == 3:
            # A folder is synced for a file in it, which the message names.
            name = "" if file.is_dir() else TEMPORARY.sub("", file.name)
            lines = outcome.stderr.decode().splitlines()
            if not any(line.startswith("kvtier: ") and name in line for line in lines):
                self.fail(what, f"no message names {name}", outcome)
        done = outcome.returncode != 3
        if not command.name.startswith("new"):
            self.check_left(what, where, command, good, must_be_new=done)
        else:
            self.check_no_leftovers(what, where)
        if not done or command.folder:
            self.check_resumes(what, where, command, good)
        return True

    def full_disks(self, command, good):
        """A limit of a file's size everywhere; a file system of some KiB where one can be made."""
        sizes = [0, 1, 100, 4096, 65536] if self.all else [self.random.choice([0, 100, 4096])]
        for size in sizes:
            where = self.folder("faulty", command)
            what = f"{command.name}, files of at most {size} bytes"
            outcome = self.run(command.arguments, where, preexec_fn=lambda size=size: (
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))))
            self.after_full_disk(what, command, good, where, outcome, "limit of file size")
        if not self.all:
            return
        for size in (16, 40, 64, 128, 512):
            where = self.root / "disk"
            where.mkdir(exist_ok=True)
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", where],
                                     stderr=subprocess.DEVNULL, check=False)
            if mounted.returncode != 0:
                self.counts.setdefault("full tmpfs (cannot be mounted here)", 0)
                return
            try:
                try:
                    shutil.copytree(self.root / "inputs", where, dirs_exist_ok=True,
                                    ignore=shutil.ignore_patterns("done", "in.*"))
                    for output in [] if command.folder else command.outputs:
                        (where / output).write_text(OLD)
                except OSError:
                    continue
                if command.name in ("report", "trace stats"):
                    continue
                what = f"{command.name}, disk of {size} KiB"
                outcome = self.run(command.arguments, where)
                self.after_full_disk(what, command, good, where, outcome, "full tmpfs", again=False)
            finally:
                subprocess.run(["umount", where], check=False)

    def after_full_disk(self, what, command, good, where, outcome, kind, again=True):
        self.count(kind)
        done = outcome.returncode in command.codes
        if not done and outcome.returncode != 3:
            self.fail(what, "expected exit code 0 or 3", outcome)
        if not done and b"kvtier: " not in outcome.stderr:
            self.fail(what, "no message", outcome)
        if not command.name.startswith("new"):
            self.check_left(what, where, command, good, must_be_new=done)
        else:
            self.check_no_leftovers(what, where)
        if again and (not done or command.folder):
            self.check_resumes(what, where, command, good)

    def kills(self, command, times):
        """Signals at random moments, of which the last run is told nothing."""
        good = self.whole(command)
        begin = time.monotonic()
        self.run(command.arguments, self.folder("faulty", command))
        seconds = time.monotonic() - begin
        for _ in range(times):
            if self.out_of_time():
                return
            where = self.folder("faulty", command)
            names = []
            for more in range(self.random.choice((1, 1, 2, 3))):
                arguments = command.arguments + (
                    ["--resume"] if command.folder and more > 0 else [])
                process = subprocess.Popen([self.program, *arguments], cwd=where,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE)
                number = self.random.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
                names.append(number.name)
                time.sleep(self.random.uniform(0, seconds))
                process.send_signal(number)
                _, messages = process.communicate()
                self.count(f"{number.name} of {command.name}")
                allowed = [-number] if number == signal.SIGKILL else [130, -number]
                if process.returncode not in (*allowed, *command.codes):
                    self.fail(f"{command.name}, {number.name}",
                              f"exit {process.returncode}: {messages.decode()}")
                if number != signal.SIGKILL and process.returncode != -number:
                    self.check_no_leftovers(f"{command.name}, {number.name}", where)
                if process.returncode != -signal.SIGKILL and not command.folder:
                    break
            self.check_resumes(f"{command.name} after {', '.join(names)}", where, command, good)

    def streams(self):
        """Standard streams that are closed or full."""
        where = self.folder("faulty")
        simulate = [self.program, "simulate", "run.json", "--json", "o.json"]
        quiet = [*simulate[:-1], "-"]
        bad = [self.program, "simulate", "nowhere.json"]
        self.run(simulate[1:], where)
        good = (where / "o.json").read_bytes()
        cases = [
            ("2>&-", simulate, 0), ("2>/dev/full", simulate, 0), (">&-", simulate, 3),
            (">/dev/full", simulate, 3), ("<&-", simulate, 0), ("<&- 2>&-", simulate, 0),
            ("<&- >&- 2>&-", simulate, 3), ("2>&-", bad, 2), ("2>/dev/full", bad, 2),
            (">&- 2>&-", bad, 2), (">/dev/full 2>/dev/full", simulate, 3), (">&-", quiet, 3),
            (">/dev/full", quiet, 3), (">&-", [self.program, "--version"], 3),
            (">/dev/full", [self.program, "list", "--help"], 3),
            ("2>/dev/full", [self.program, "nothing"], 2),
            (">&-", [self.program, "trace", "generate", "run.json", "--out", "t.jsonl"], 3)]
        for redirection, arguments, code in cases:
            self.count("closed or full standard streams")
            what = f"{' '.join(arguments[1:])} {redirection}"
            (where / "o.json").unlink(missing_ok=True)
            outcome = subprocess.run(["/bin/sh", "-c", f'exec "$@" {redirection}', "sh",
                                      *arguments], cwd=where, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            if outcome.returncode != code:
                self.fail(what, f"expected exit code {code}", outcome)
            if code == 3 and "2>" not in redirection and b"standard output: " not in outcome.stderr:
                self.fail(what, "no message names standard output", outcome)
            if arguments is simulate and (not (where / "o.json").exists() or
                                          (where / "o.json").read_bytes() != good):
                self.fail(what, "the result is not what it is otherwise", outcome)
            self.check_no_leftovers(what, where)
        self.count("closed or full standard streams")
        reading, writing = os.pipe()
        os.close(reading)
        outcome = subprocess.run(simulate, cwd=where, stdout=subprocess.DEVNULL, stderr=writing,
                                 check=False)
        os.close(writing)
        if outcome.returncode != 0:
            self.fail("standard error without a reader", f"exit {outcome.returncode}")

    def terminal(self, arguments, where, width=None):
        """Standard output and standard error as a terminal gets them."""
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(where)
            os.execv(self.program, [self.program, *arguments])
        if width:
            import fcntl
            import struct
            import termios
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 25, width, 0, 0))
        got = b""
        while True:
            select.select([terminal], [], [])
            try:
                more = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            got += more
        os.close(terminal)
        os.waitpid(process, 0)
        return got.replace(b"\r\n", b"\n")

    def progress(self):
        where = self.folder("faulty")
        self.count("runs on a terminal")
        got = self.terminal(["sweep", "sweep.json", "--out", "out", "--jobs", "1"], where)
        if b"[" not in got or b" runs, " not in got:
            self.fail("progress", f"no bar: {got[:300]!r}")
        # A line as it stands once the terminal has obeyed: only what follows the last erasure.
        for line in got.split(b"\n"):
            if b"\r\x1b[K" in line and b" of 12 runs" in line.rsplit(b"\r\x1b[K", 1)[1]:
                self.fail("progress", f"other output follows the bar: {line!r}")
        self.count("runs on a terminal")
        long = ["/workload/sessions=8000"]
        got = self.terminal(["compare", "run.json", "--systems",
                             "recompute,attentionstore,attentionstore_lru,attentionstore_fifo",
                             "--set", *long], where)
        if b" left\r" not in got and b" left" not in got:
            self.fail("progress", f"no time left is shown: {got[:300]!r}")

    def names(self):
        """Names that are no UTF-8, or would command a terminal."""
        where = self.folder("faulty")
        latin = b"caf\xe9\x1b[31m"
        shutil.copy(where / "run.json", os.fsencode(where) + b"/" + latin + b".json")
        cases = [
            (["simulate", latin + b".json", "--json", latin + b".out"], 0),
            (["simulate", latin], 2),
            (["simulate", "run.json", "--set", b"/workload/trace=" + latin], 2),
            (["simulate", "run.json", "--set", b"/" + latin + b"=1"], 2),
            (["compare", "run.json", "--systems", b"recompute," + latin], 2),
            (["report", latin + b".out", "--out", latin + b".html"], 0),
            (["trace", "generate", latin + b".json", "--out", latin + b".jsonl"], 0),
            (["trace", "import", latin + b".csv", "--out", "o.jsonl", "--json", "-"], 0),
            (["trace", "import", "bad.csv", "--out", "o.jsonl"], 2),
            (["trace", "import", "bad.sharegpt", "--out", "o.jsonl", "--tokenizer", "chars:4"], 2),
            (["simulate", "bad.json"], 2),
            (["sweep", "sweep.json", "--out", latin + b".dir"], 0),
            (["sweep", "sweep.json", "--out", latin + b".dir", "--resume"], 0),
            (["plan", "plan.json", "--out", latin + b".plan"], 0),
            ([latin], 2), ([b"--" + latin], 2)]
        table = Path(f"{self.configs}/examples/turns.csv").read_bytes()
        Path(os.fsdecode(os.fsencode(where) + b"/" + latin + b".csv")).write_bytes(table)
        first, rest = table.split(b"\n", 1)
        (where / "bad.csv").write_bytes(first + b"\ns\xe9" + rest)
        (where / "bad.sharegpt").write_bytes(
            b'[{"id": "a", "conversations": [{"from": "human", "value": "caf\xe9"}]}]')
        (where / "bad.json").write_bytes(RUN.encode().replace(b"attentionstore", b"caf\xe9"))
        for arguments, code in cases:
            self.count("names that are no UTF-8")
            what = " ".join(os.fsdecode(a).encode(errors="replace").decode() for a in arguments)
            outcome = self.run([os.fsencode(a) for a in arguments], where)
            if outcome.returncode != code:
                self.fail(ascii(what), f"expected exit code {code}", outcome)
            shown = outcome.stdout + outcome.stderr
            try:
                shown.decode()
            except UnicodeDecodeError:
                self.fail(ascii(what), "prints what is no UTF-8", outcome)
            if b"\x1b" in shown:
                self.fail(ascii(what), "a control character reaches the terminal", outcome)
            if any(name in what for name in ("bad.", "--set")) and b"expected UTF-8" not in shown:
                self.fail(ascii(what), "expected UTF-8 is not said", outcome)

    def memory(self):
        """A log whose rows do not fit into the memory that the program may have."""
        where = self.folder("faulty")
        with gzip.open(where / "log.csv.gz", "wb", compresslevel=1) as log:
            log.write(b"arrival,input_tokens,output_tokens\n" + b"1,1,1\n" * 8_000_000)
        limit = 160 << 20
        self.count("too little memory")
        outcome = subprocess.run(
            [self.program, "trace", "stats", "log.csv.gz"], cwd=where, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        if outcome.returncode != 3 or b"log.csv.gz: out of memory after " not in outcome.stderr:
            self.fail("trace stats of 8,000,000 rows", "expected exit code 3", outcome)

    def everything(self):
        self.prepare()
        self.streams()
        self.names()
        self.memory()
        self.progress()
        every = commands(self.configs)
        sweep = next(c for c in every if c.name == "sweep")
        simulate = next(c for c in every if c.name == "simulate")
        two = Command("sweep", sweep.arguments[:-1] + ["2"], sweep.outputs, sweep.folder)
        long = Command("simulate", simulate.arguments + ["--set", "/workload/sessions=600"],
                       simulate.outputs)
        for command, times in ((two, 100 if self.all else 2), (long, 50 if self.all else 1)):
            begin = time.monotonic()
            self.kills(command, times)
            print(f"killing {command.name}: {time.monotonic() - begin:.1f} s", flush=True)
        for command in every:
            if (command.slow and not self.all) or self.out_of_time():
                continue
            begin = time.monotonic()
            good = self.whole(command)
            if good:
                self.call_faults(command, good)
                self.full_disks(command, good)
            print(f"{command.name}: {time.monotonic() - begin:.1f} s", flush=True)

    def report(self):
        print(f"{sum(self.counts.values())} faults:")
        for kind, number in sorted(self.counts.items()):
            print(f"  {number:6} {kind}")
        if self.out_of_time():
            print("there was no time for the others")
        print(f"{len(self.failures)} failures")
        return 1 if self.failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--inject", required=True, help="the library made of inject.cpp")
    parser.add_argument("--configs", required=True)
    parser.add_argument("--all", action="store_true", help="every fault, instead of a sample")
    parser.add_argument("--seed", type=int, default=1, help="of moments and of the sample")
    parser.add_argument("--seconds", type=float, help="begin no further fault after this time")
    faults = Faults(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what cleans up
    try:
        faults.everything()
        return faults.report()
    finally:
        shutil.rmtree(faults.root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
