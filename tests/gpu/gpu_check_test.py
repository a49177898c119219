#!/usr/bin/env python3
"""The check's steps with programs that copy prepared results, hang or fail; the archive, the page and the packed folder."""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
# Writes its prepared result, if it has one. A file `hang-WORD` makes the call with that word wait, `deaf-WORD` also ignores
# interrupts, `fail-WORD` makes it fail.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "{folder}/calls"
all="$*"
while [ $# -gt 0 ]; do
  case $1 in --json|--out) target=$2;; esac
  shift
done
for file in "{folder}"/hang-* "{folder}"/deaf-* "{folder}"/fail-*; do
  [ -e "$file" ] || continue
  word=${{file##*/}}
  case "$(basename "$0") $all" in *"${{word#*-}}"*) ;; *) continue;; esac
  case "$file" in
    */fail-*) exit 3;;
    */deaf-*) trap '' INT;;
    */hang-*) [ -z "$target" ] || cp "{folder}/prepared/partial" "$target.partial";;
  esac
  echo $$ > "{folder}/hanging"
  exec sleep 60
done
[ -z "$target" ] || cp "{folder}/prepared/$(basename "$0")-$(echo "$all" | cut -d' ' -f1)" "$target" 2>/dev/null ||
  cp "{folder}/prepared/$(basename "$0")" "$target"
echo "[==========] 1 test from 1 test suite ran."
echo "[  PASSED  ] 1 test."
"""
TIME = {"p25_seconds": 1e-3, "median_seconds": 1e-3, "p75_seconds": 1e-3, "samples": 5, "disturbed": False}
PROBE = {"schema": "kvtier.device_probe/1", "device": "A GPU", "driver": "1.2", "libraries": {"cublas": "13.1"}, "model": "m",
         "complete": True, "tables": [{"name": "new_sizes", "title": "passes of new sizes", "columns": ["tokens", "first wall"],
                                       "rows": [[21, 1234.5]]}]}
BENCH = {"schema": "kvtier.attention_bench/2", "batch": 1, "query_heads": 32, "kv_heads": 8, "head_dim": 128,
         "cells": [{"new_tokens": 16, "past_tokens": 65536, "kv_bytes": 268000000, "multi_query": TIME}]}
PROFILE = {"format": "kvtier.profile/3", "provenance": {"notes": ["a note"], "libraries": {"cudart": "13.0"}},
           "device": {"name": "A GPU", "driver": "CUDA 13.0"}, "tables": [
               {"operation": "gemm", "variant": "qkv", "method": "a call", "axes": ["tokens"], "cells": [
                   {"at": [1], "median_seconds": 5e-5}, {"at": [2048], "median_seconds": 2e-3}], "left_out": []}]}
ROW = {"metric": "ttft_seconds.p50", "simulated": 0.020, "measured": 0.025, "error": -0.2, "simulated_at_pace": 0.024,
       "error_at_pace": -0.04, "band": 0.1, "in_band": False}
VALIDATION = {"points": [{"validation": {"occupied_fraction": 0.5, "pace": {"prefill": 1.25, "decode": 1.5}, "in_band": False,
                                         "rows": [ROW], "measured": [{"metrics": {"turns": 127},
                                                                      "load": {"measured_seconds": 12.5}}]}}]}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.out = self.folder / "out"
        (self.folder / "bin").mkdir()
        for name in ("kvtier", "kvtier_attention_bench", "kvtier_device_probe", "tests"):
            program = self.folder / "bin" / name
            program.write_text(PROGRAM.format(folder=self.folder))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        prepared = {"kvtier_device_probe": PROBE, "kvtier_attention_bench": BENCH, "kvtier-calibrate": PROFILE,
                    "partial": PROFILE, "kvtier-validate": VALIDATION}
        (self.folder / "prepared").mkdir()
        for name, content in prepared.items():
            (self.folder / "prepared" / name).write_text(json.dumps(content))

    def tearDown(self):
        self.temporary.cleanup()

    def command(self, *more):
        return [sys.executable, HERE / "gpu_check.py", "--bin", self.folder / "bin", "--tests", self.folder / "bin/tests", "--out",
                self.out, "--work", self.folder, *more]

    def check(self, *more):
        return subprocess.run(self.command(*more), capture_output=True, text=True, check=False)

    def start(self, *more):
        return subprocess.Popen(self.command(*more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def mark(self, name):
        (self.folder / name).touch()

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    def states(self):
        with tarfile.open(self.out / "results.tar.gz") as archive:
            state = json.load(archive.extractfile("results/state.json"))
        return {name: entry["state"] for name, entry in state["steps"].items()}

    def page(self, *more):
        made = self.folder / "page.md"
        run = subprocess.run([sys.executable, HERE / "gpu_page.py", self.out, "--out", made, *more], capture_output=True, text=True,
                             check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        return made.read_text()

    def wait_until_one_hangs(self):
        for _ in range(300):
            if (self.folder / "hanging").exists() and (self.folder / "hanging").read_text().strip():
                return int((self.folder / "hanging").read_text())
            time.sleep(0.1)
        self.fail("no program hangs")

    def assert_ends(self, process):
        for _ in range(100):
            try:
                # A process that nobody has waited for is no longer at work.
                if pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                    return
            except (OSError, IndexError):
                return
            time.sleep(0.1)
        self.fail("a program outlived the check")

    def test_runs_six_steps_in_order_and_leaves_few_files(self):
        run = self.check()
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(list(self.states()), ["correctness", "probe", "attention", "calibrate", "validate", "kernels"])
        self.assertEqual(set(self.states().values()), {"done"})
        self.assertEqual(sorted(file.name for file in self.out.iterdir()), ["profile.json", "results.tar.gz", "summary.txt"])
        systems = [call.split("--only ")[1].split()[0] for call in self.calls() if call.startswith("kvtier validate")]
        self.assertEqual(systems, 2 * ["scheduler-aware", "recompute", "car", "pensieve", "lru"])
        self.assertIn("== validate: done", run.stdout)
        self.assertEqual(run.stdout.splitlines()[:-1], (self.out / "summary.txt").read_text().splitlines())
        self.assertLess(len(run.stdout), 12000)
        self.assertFalse(list(self.folder.glob("gpu-check-*")))
        page = self.page("--profiles", self.folder / "stored.json")
        for text in ("All steps ran.", "| device | A GPU |", "| 21 | 1,234 |", "1.000 (33.5)", "| 1-lru | 127 | 12.5 | 50 | 1.250",
                     "| 1-car | TTFT p50 | 20.0 ms | 25.0 ms | -20.0 % | out | 24.0 ms | -4.0 % |", "* a note",
                     "| gemm | qkv | a call | 2 | 0 | tokens 1: 50 | tokens 2,048: 2,000 |"):
            self.assertIn(text, page)
        self.assertEqual(json.loads((self.folder / "stored.json").read_text()), PROFILE)

    def test_interrupts_a_step_at_its_budget_and_runs_the_next(self):
        self.mark("deaf-attention_bench")
        run = self.check("--steps", "attention", "validate", "--scale", "0.05")
        self.assertEqual(run.returncode, 1)
        self.assertEqual(self.states(), {"attention": "failed", "validate": "done"})
        self.assert_ends(int((self.folder / "hanging").read_text()))
        page = self.page()
        self.assertIn("Steps without results: correctness, probe, calibrate, kernels.", page)
        self.assertIn("| 1-lru | 127 |", page)
        self.assertNotIn("## Attention", page)

    def test_uses_the_finished_cells_of_an_interrupted_calibration(self):
        self.mark("hang-calibrate")
        run = self.check("--steps", "calibrate", "validate", "--scale", "0.05")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(self.states(), {"calibrate": "cut", "validate": "done"})
        self.assertIn("profile.json.partial", self.calls()[1])
        page = self.page("--profiles", self.folder / "stored.json")
        self.assertIn("The calibration was interrupted.", page)
        self.assertEqual(json.loads((self.folder / "stored.json").read_text()), PROFILE)

    def test_goes_on_after_a_failure(self):
        self.mark("fail-gtest_filter")
        self.mark("fail-recompute")
        run = self.check()
        self.assertEqual(run.returncode, 1)
        self.assertEqual([name for name, state in self.states().items() if state == "failed"], ["correctness", "validate"])
        page = self.page()
        self.assertIn("| 1-lru | 127 |", page)
        self.assertNotIn("1-recompute", page)

    def test_keeps_the_finished_steps_if_it_is_killed(self):
        self.mark("hang-calibrate")
        for number, states in ((signal.SIGKILL, {"probe": "done"}), (signal.SIGTERM, {"probe": "done", "calibrate": "stopped"}),
                               (signal.SIGINT, {"probe": "done", "calibrate": "stopped"})):
            with self.subTest(number):
                (self.folder / "hanging").unlink(missing_ok=True)
                check = self.start("--steps", "probe", "calibrate", "kernels")
                program = self.wait_until_one_hangs()
                check.send_signal(number)
                self.assertNotEqual(check.wait(timeout=30), 0)
                self.assertEqual(self.states(), states)
                self.assert_ends(program)
                self.assertIn("| 21 | 1,234 |", self.page())

    def test_refuses_unknown_steps_and_results(self):
        self.assertIn("--steps: expected some of correctness, probe,", self.check("--steps", "nothing").stderr)
        run = subprocess.run([sys.executable, HERE / "gpu_page.py", self.folder / "none", "--out", self.folder / "page.md"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 1)
        self.assertIn("No such file", run.stderr)

    @unittest.skipUnless(all(shutil.which(tool) for tool in ("ldd", "strip")), "needs ldd and strip")
    def test_runs_from_a_packed_folder(self):
        build = self.folder / "build"
        for name in ("bin/kvtier", "bin/kvtier_attention_bench", "bin/kvtier_device_probe",
                     "tests/tests_hw_device_cuda_device_test", "lib/kvtier/kvtier_cuda.so"):
            (build / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("/bin/true", build / name)
        packed = self.folder / "packed"
        run = subprocess.run([sys.executable, HERE / "gpu_carry.py", "--build", build, "--flashinfer",
                              build / "lib/kvtier/kvtier_cuda.so", "--out", packed], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(sorted(file.name for file in packed.iterdir()), ["gpu_check.py", "gpu_page.py", "programs.tar.gz"])
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self.folder)}
        run = subprocess.run([sys.executable, packed / "gpu_check.py", "--out", self.out], capture_output=True, text=True,
                             check=False, env=environment)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        with tarfile.open(self.out / "results.tar.gz") as archive:
            state = json.load(archive.extractfile("results/state.json"))
        self.assertTrue(state["source"]["commit"])
        self.assertEqual(len(state["steps"]["attention"]["commands"]), 6)


if __name__ == "__main__":
    unittest.main()
