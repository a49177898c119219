"""Comparisons, searches, plans and curves: what the program writes with --json."""

import json

import pytest

import kvtier
from conftest import RUN

SYSTEMS = ["recompute", "attentionstore_lru"]
SLO = "ttft_seconds.mean<=1000"


def of_program(kvtier_program, *arguments):
    done = kvtier_program(*arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_compare_equals_the_program(config, kvtier_program):
    expected = of_program(kvtier_program, "compare", config, "--systems", ",".join(SYSTEMS),
                          "--replications", 2, "--bound", "--seed", 3)
    assert kvtier.compare(config, SYSTEMS, seed=3, replications=2, bound=True) == expected
    assert kvtier.compare(RUN, SYSTEMS, seed=3, replications=2, bound=True) == expected


def test_bound_equals_the_program(config, kvtier_program):
    expected = of_program(kvtier_program, "simulate", config, "--untimed", "--bound")
    assert kvtier.bound(config) == expected["bound"]
    assert kvtier.simulate(RUN, untimed=True, bound=True) == expected


def test_find_capacity_equals_the_program(config, kvtier_program):
    few = ["--set", "/workload/sessions=3000", "--set", "/workload/sharegpt/single_turn_fraction=1"]
    overrides = {"/workload/sessions": 3000, "/workload/sharegpt/single_turn_fraction": 1}
    expected = of_program(kvtier_program, "simulate", config, *few, "--find-capacity",
                          "ttft_seconds.p90<=2", "--replications", 2, "--tolerance", 0.5)
    assert kvtier.find_capacity(config, "ttft_seconds.p90<=2", overrides, replications=2,
                                tolerance=0.5) == expected


def test_find_capacity_refuses_a_malformed_slo():
    with pytest.raises(kvtier.ConfigError, match="slo: "):
        kvtier.find_capacity(RUN, "ttft_seconds.p90<2")


@pytest.fixture
def plan(tmp_path, config):
    """The path of a plan of two points, and a dict of the same."""
    content = {
        "config": str(config),
        "set": {"/workload/sessions": 3000, "/workload/sharegpt/single_turn_fraction": 1},
        "axes": [{"name": "DRAM", "key": "/hardware/dram/capacity", "values": ["16GiB", "32GiB"]}],
        "slo": [SLO],
        "replications": 2,
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    return path, content


def test_plan_equals_the_program(plan, kvtier_program):
    path, content = plan
    expected = of_program(kvtier_program, "plan", path)
    assert kvtier.plan(path) == expected
    assert kvtier.plan(content, jobs=1) == expected


def test_a_sweep_may_be_a_dict(sweep_file, config):
    content = json.loads(sweep_file.read_text())
    content["config"] = str(config)
    frame = kvtier.sweep(content, shards=2)
    assert frame.equals(kvtier.sweep(sweep_file))
    content["config"] = RUN
    assert frame["TTFT"].equals(kvtier.sweep(content, shards=1)["TTFT"])


def test_mrc_equals_the_program(config, kvtier_program):
    assert kvtier.mrc(config) == of_program(kvtier_program, "trace", "mrc", config)
    blocks = of_program(kvtier_program, "trace", "mrc", config, "--block", 16, "--policy", "fifo",
                        "--capacities", "8GiB,1000blocks", "--bound")
    assert kvtier.mrc(RUN, block=16, policy="fifo", bound=True,
                      capacities=["8GiB", "1000blocks"]) == blocks


def test_mrc_takes_a_trace(config, tmp_path, kvtier_program):
    trace = tmp_path / "trace.jsonl"
    assert kvtier_program("trace", "generate", config, "--out", trace).returncode == 0
    expected = of_program(kvtier_program, "trace", "mrc", trace)
    assert kvtier.mrc(trace) == expected
    with pytest.raises(kvtier.ConfigError, match="is a trace"):
        kvtier.mrc(trace, seed=1)


def test_mrc_names_its_own_arguments():
    with pytest.raises(kvtier.ConfigError) as caught:
        kvtier.mrc(RUN, policy="nothing", capacities=["a lot"])
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "capacities", "policy"]
