import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import kvtier
from conftest import RUN, hear_interrupts


def cli_result(kvtier_program, *arguments):
    done = kvtier_program("simulate", *arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_equals_the_json_of_the_program(config, kvtier_program):
    expected = cli_result(kvtier_program, config)
    assert expected["metrics"]["hit_rate"]["all_turns"]["total"] > 0
    assert kvtier.simulate(config) == expected


def test_overrides_and_seed_are_those_of_the_program(config, kvtier_program):
    expected = cli_result(kvtier_program, config, "--set", "/hardware/dram/capacity=64GiB", "--set",
                          "/serving/slots=7", "--seed", "5")
    overrides = {"/hardware/dram/capacity": "64GiB", "/serving/slots": 7}
    result = kvtier.simulate(str(config), overrides, seed=5)
    assert result == expected
    assert result != kvtier.simulate(config, overrides, seed=6)


def test_a_dict_is_a_config(config):
    assert kvtier.simulate(RUN) == kvtier.simulate(config)


def test_untimed_equals_the_program(config, kvtier_program):
    assert kvtier.simulate(config, untimed=True) == cli_result(kvtier_program, config, "--untimed")


def test_every_problem_is_reported_as_by_the_program(config, kvtier_program):
    overrides = {"/hardware/dram/capacity": "64 foo", "/serving/slot": 3}
    done = kvtier_program("simulate", config, "--set", "/hardware/dram/capacity=64 foo", "--set",
                          "/serving/slot=3")
    with pytest.raises(kvtier.ConfigError) as caught:
        kvtier.simulate(config, overrides)
    expected = [line.removeprefix("kvtier: ").replace("--set: ", "overrides: ")
                for line in done.stderr.splitlines()]
    assert len(expected) == 2
    assert caught.value.problems == expected
    assert str(caught.value) == "\n".join(expected)


@pytest.mark.parametrize("pointer", ["hardware/gpus", "/", ""])
def test_an_override_needs_a_pointer(pointer):
    with pytest.raises(kvtier.ConfigError) as caught:
        kvtier.simulate(RUN, {pointer: 1})
    assert caught.value.problems == [
        f'overrides: expected a JSON pointer such as /hardware/gpus, got "{pointer}"']


def test_a_missing_config_is_bad_input(tmp_path):
    with pytest.raises(kvtier.ConfigError, match="nowhere.json: no such file"):
        kvtier.simulate(tmp_path / "nowhere.json")


def test_an_unreadable_trace_is_a_failure_or_bad_input(tmp_path):
    trace = {"/workload": {"trace": str(tmp_path / "none.jsonl"), "arrival_rate": "1/s"}}
    with pytest.raises(kvtier.Error):
        kvtier.simulate(RUN, trace)


def test_a_device_failure_is_an_exception_of_its_own(tmp_path, sweep_file):
    # Nobody may make a folder there, not even root.
    with pytest.raises(kvtier.DeviceError, match="cannot make the folder"):
        kvtier.sweep(sweep_file, "/proc/kvtier", shards=1)


def test_errors_cross_processes():
    for error in (kvtier.ConfigError(["a", "b"]), kvtier.DeviceError("c")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert copy.problems == error.problems
        assert str(copy) == str(error)


LONG = {**RUN, "workload": {**RUN["workload"], "sessions": 2_000_000}}


def test_other_threads_go_on_during_a_run():
    # While the run holds the interpreter, no other thread counts.
    counted = 0
    over = threading.Event()

    def count():
        nonlocal counted
        while not over.wait(0.001):
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    begin = time.monotonic()
    kvtier.simulate(RUN, {"/workload/sessions": 4000, "/hardware/dram/capacity": "128GiB"})
    seconds = time.monotonic() - begin
    over.set()
    thread.join()
    assert counted > 20 * seconds


def test_ctrl_c_ends_a_long_run():
    script = (f"import kvtier\nprint('begins', flush=True)\n"
              f"try:\n    kvtier.simulate({LONG!r})\nexcept KeyboardInterrupt:\n"
              f"    print('interrupted')\n")
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                               preexec_fn=hear_interrupts)
    assert process.stdout.readline() == "begins\n"
    time.sleep(1)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=120)[0] == "interrupted\n"
    assert process.returncode == 0
