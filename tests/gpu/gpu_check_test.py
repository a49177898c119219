#!/usr/bin/env python3
"""The check's steps on programs that do nothing: what is done is not done again, what fails or takes too long is."""

import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import time
import unittest

CHECK = pathlib.Path(__file__).with_name("gpu_check.py")
PROGRAM = """#!/bin/sh
echo "$0 $*" >> "{folder}/calls"
case "$*" in
  *--gtest_filter*) [ -e "{folder}/slow" ] && sleep 2;;
  *--only*3x,fifo*) [ -e "{folder}/mended" ] || exit 3;;
  *--full*) [ -e "{folder}/slow" ] && exec sleep 60;;
  *--lock-step*) [ -e "{folder}/hangs" ] && {{ trap '' INT; while :; do sleep 1; done; }};;
esac
exit 0
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.calls = self.folder / "calls"
        for name in ("kvtier", "kvtier_attention_bench", "tests"):
            program = self.folder / name
            program.write_text(PROGRAM.format(folder=self.folder))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def tearDown(self):
        self.temporary.cleanup()

    def check(self, *more, device="cuda:0"):
        return subprocess.run([sys.executable, CHECK, "--bin", self.folder, "--tests", self.folder / "tests", "--out",
                               self.folder / "out", "--device", device, *more], capture_output=True, text=True, check=False)

    def state(self, step):
        return json.loads((self.folder / "out" / "state.json").read_text())["steps"].get(step, {}).get("state")

    def count(self):
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def test_has_at_most_40_steps_of_nine_minutes(self):
        listed = self.check("--list").stdout.splitlines()
        self.assertLessEqual(len(listed), 40)
        self.assertIn("matrix-10x-pensieve: to do", listed)
        self.assertIn("--limit", self.check("--help").stdout)
        self.assertIn("seconds of a step (540)", " ".join(self.check("--help").stdout.split()))

    def test_does_again_only_what_failed(self):
        first = self.check()
        self.assertEqual(first.returncode, 1, first.stderr)
        self.assertEqual(self.state("matrix-3x-fifo"), "failed")
        self.assertEqual(self.state("matrix-3x-lru"), "done")
        (self.folder / "mended").touch()
        before = self.count()
        self.assertEqual(self.check().returncode, 0)
        self.assertEqual(self.count(), before + 1)
        self.assertEqual(self.check().returncode, 0)
        self.assertEqual(self.count(), before + 1)
        self.assertEqual(self.check("--step", "correctness").returncode, 0)
        self.assertEqual(self.count(), before + 2)
        page = next((self.folder / "out").glob("result-*.md")).read_text()
        self.assertIn("| matrix-3x-fifo | done |", page)

    def test_ends_what_takes_too_long_and_keeps_a_slice_of_the_calibration(self):
        (self.folder / "slow").touch()
        begin = time.monotonic()
        self.check("--step", "calibrate-full-1", "--limit", "31")
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(self.state("calibrate-full-1"), "done")
        (self.folder / "slow").unlink()
        # A validation that is interrupted is not done.
        (self.folder / "hangs").touch()
        begin = time.monotonic()
        self.check("--step", "lock-step", "--limit", "31")
        self.assertLess(time.monotonic() - begin, 45)
        self.assertEqual(self.state("lock-step"), "failed")

    def test_begins_nothing_that_may_end_too_late(self):
        (self.folder / "slow").touch()
        run = self.check("--minutes", "9.03")
        self.assertEqual(run.returncode, 1)
        self.assertIn("for another run", run.stdout)
        self.assertEqual(self.state("correctness"), "done")
        self.assertEqual(self.count(), 1)

    def test_refuses_the_folder_of_another_device(self):
        self.check("--step", "correctness")
        other = self.check(device="cuda:1")
        self.assertEqual(other.returncode, 1)
        self.assertIn("take another folder", other.stderr)
        self.assertIn("expected one of", self.check("--step", "nothing").stderr)


if __name__ == "__main__":
    unittest.main()
