#!/usr/bin/env python3
"""Tests of how free_runs.py judges, without running anything."""

import contextlib
import io
import unittest
from unittest import mock

import free_runs


def rounds_of(*errors, metric="ttft_seconds.p50", band=0.1, paces=None):
    paces = paces or [1.0] * len(errors)
    return [{"3x,lru": {"pace": {"prefill": pace}, "rows": [
        {"metric": metric, "band": band, "error_between": 0.9, "error_at_pace": error}]}}
        for error, pace in zip(errors, paces)]


def verdicts(*errors, **row):
    points = free_runs.judge_all(rounds_of(*errors, **row))
    with contextlib.redirect_stdout(io.StringIO()):
        free_runs.show(points)
    return [value.verdict for values in points.values() for value in values]


class Judge(unittest.TestCase):
    def test_takes_the_median_and_neither_the_best_nor_the_worst(self):
        self.assertEqual(free_runs.judge("ttft_seconds.p50", 0.1, [0.02, 0.09, 0.05])[:2], ("in", 0.05))
        # One good round does not help two bad ones.
        self.assertEqual(free_runs.judge("ttft_seconds.p50", 0.1, [0.12, 0.2, 0.22])[:2], ("OUT", 0.2))

    def test_an_error_of_every_round_is_out(self):
        self.assertEqual(free_runs.judge("ttft_seconds.p50", 0.1, [0.3, 0.31, 0.32])[0], "OUT")
        self.assertEqual(free_runs.judge("hit_rate.all_turns.total", 0.01, [-0.02, -0.02, -0.02])[0], "OUT")

    def test_rounds_that_spread_widen_the_band_up_to_a_limit(self):
        verdict, _, band = free_runs.judge("ttft_seconds.p50", 0.1, [0.0, 0.15, 0.1])
        self.assertEqual(verdict, "in")
        # Three times 1.2533 x 1.4826 x 0.05 / sqrt(3).
        self.assertAlmostEqual(band, 0.1609, places=4)
        self.assertEqual(free_runs.judge("ttft_seconds.p50", 0.1, [-0.3, 0.0, 0.4])[0], "TOO NOISY")
        self.assertEqual(free_runs.judge("hit_rate.all_turns.total", 0.01, [-0.03, 0.0, 0.04])[0], "TOO NOISY")

    def test_judges_the_pace_and_the_errors_at_that_pace(self):
        self.assertEqual(verdicts(0.01, 0.02, 0.03), ["in", "in"])
        self.assertEqual(verdicts(0.3, 0.3, 0.3), ["in", "OUT"])
        self.assertEqual(verdicts(0.0, 0.0, 0.0, paces=[1.3, 1.31, 1.3]), ["OUT", "in"])
        self.assertEqual(verdicts(0.9, 0.9, 0.9, band=None), ["in"], "what has no band is not judged")

    def test_makes_the_rounds_that_it_needs_in_the_time_there_is(self):
        def another(*errors, seconds_left=1000.0, limits=free_runs.ROUNDS, **row):
            points = free_runs.judge_all(rounds_of(*errors, **row)) if errors else {}
            return free_runs.another_round(points, len(errors), 260.0, seconds_left, limits)
        self.assertTrue(another(seconds_left=0.0))
        self.assertTrue(another(0.02, seconds_left=0.0), "one round says nothing of the spread")
        # Three times the standard error are 0.039 and 0.118.
        self.assertFalse(another(0.02, 0.04), "the band itself is wide enough")
        self.assertTrue(another(0.02, 0.08))
        self.assertFalse(another(0.02, 0.08, seconds_left=259.0))
        self.assertTrue(another(0.02, 0.04, paces=[1.0, 1.1]), "the pace is a value, too")
        self.assertTrue(another(0.3, 0.31, seconds_left=0.0), "a third round before a value is called out")
        self.assertFalse(another(0.3, 0.31, 0.3))
        self.assertFalse(another(0.0, 0.15, 0.1))
        self.assertTrue(another(-0.3, 0.0, 0.4))
        self.assertFalse(another(-0.3, 0.0, 0.4, seconds_left=259.0))
        self.assertFalse(another(-0.3, 0.0, 0.4, -0.3, 0.4))
        self.assertTrue(another(0.02, 0.04, limits=(3, 3), seconds_left=0.0))
        self.assertFalse(another(-0.3, 0.0, 0.4, limits=(3, 3)))

    def test_compares_a_run_with_the_profiles_before_and_after_it(self):
        rows = [{"metric": "ttft_seconds.p50", "band": 0.1, "simulated": 0.8, "measured": 1.0},
                {"metric": "hit_rate.all_turns.total", "band": 0.01, "simulated": 0.5, "measured": 0.51},
                {"metric": "tpot_seconds.mean", "band": None, "simulated": 1.0, "measured": 1.0}]
        free_runs.add_errors_between(rows, {"ttft_seconds": {"p50": 1.4}, "hit_rate": {"all_turns": {"total": 0.54}}})
        self.assertAlmostEqual(rows[0]["error_between"], 0.1)
        self.assertAlmostEqual(rows[1]["error_between"], 0.01)
        self.assertNotIn("error_between", rows[2])

    def test_measures_a_profile_after_every_three_points(self):
        options = mock.Mock(points=["a", "b", "c", "d"])
        seen = []
        with mock.patch.multiple(free_runs, simulate=lambda _, settings: {p: settings for p in options.points},
                                 validate=lambda _, point, number, settings: {"rows": [], "of": (point, number, settings)},
                                 add_errors_between=lambda _, metrics: seen.append(metrics)):
            validations, last = free_runs.run_round(options, 2, "P4", iter(["P5", "P6", "P7"]))
        self.assertEqual([v["of"] for v in validations.values()],
                         [("a", 2, "P4"), ("b", 2, "P4"), ("c", 2, "P4"), ("d", 2, "P5")])
        self.assertEqual(seen, ["P5", "P5", "P5", "P6"])
        self.assertEqual(last, "P6")

    def test_a_level_stands_for_its_points(self):
        sweep = {"axes": [{"values": [{"label": "1x"}, {"label": "3x"}]}, {"values": [{"label": "lru"}, {"label": "car"}]}]}
        self.assertEqual(free_runs.points_of(sweep, ["3x", "1x,car", "3x,lru"]), ["3x,lru", "3x,car", "1x,car"])
        with self.assertRaises(SystemExit):
            free_runs.points_of(sweep, ["2x"])


if __name__ == "__main__":
    unittest.main()
