import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pandas
import pytest

import kvtier
from conftest import hear_interrupts
from policies import Lru


def cli_sweep(kvtier_program, sweep_file, folder):
    done = kvtier_program("sweep", sweep_file, "--out", folder, "--jobs", 1)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


@pytest.mark.parametrize("shards", [None, 1, 3, 50])
def test_writes_the_bytes_of_the_program(sweep_file, tmp_path, kvtier_program, shards):
    table = cli_sweep(kvtier_program, sweep_file, tmp_path / "cli")
    frame = kvtier.sweep(sweep_file, tmp_path / "python", shards=shards)
    expected = contents(tmp_path / "cli")
    assert set(expected) == {"sweep.json", "results.jsonl", "results.csv"}
    assert contents(tmp_path / "python") == expected
    assert frame.attrs["table"] == table
    assert frame.attrs["jsonl"].encode() == expected["results.jsonl"]


def test_gives_a_row_a_run(sweep_file):
    frame = kvtier.sweep(sweep_file, shards=2)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["point", "replication", "seed", "eviction", "DRAM",
                                   "hit rate", "TTFT", "error"]
    assert frame.attrs["units"] == {"hit rate": "%", "TTFT": "s"}
    assert len(frame) == 12
    refused = frame[frame["DRAM"] == "0GiB"]
    assert len(refused) == 4
    assert refused["error"].str.startswith("refused: ").all()
    done = frame[frame["DRAM"] != "0GiB"]
    assert done["hit rate"].between(0, 100).all()
    one = kvtier.simulate(sweep_file.parent / "run.json",
                          {"/system/tiers/dram/eviction": "fifo",
                           "/hardware/dram/capacity": "16GiB"})
    row = done[(done["eviction"] == "fifo") & (done["DRAM"] == "16GiB")].iloc[0]
    assert row["TTFT"] == one["metrics"]["ttft_seconds"]["mean"]


def test_goes_to_parquet_and_back(sweep_file, tmp_path):
    frame = kvtier.sweep(sweep_file)
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path)
    whole = pandas.read_parquet(path)
    pandas.testing.assert_frame_equal(whole, frame)
    assert whole.attrs == frame.attrs
    assert whole["seed"].dtype == frame["seed"].dtype
    with_lines = path.stat().st_size
    frame.attrs.clear()
    frame.to_parquet(path)
    assert path.stat().st_size < with_lines
    rows = pandas.read_parquet(path)
    assert rows.equals(frame)
    assert rows.attrs == {}


def test_bad_input_is_found_before_a_run(sweep_file, tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(kvtier.ConfigError, match="/axes: missing key"):
        kvtier.sweep(tmp_path / "bad.json")
    with pytest.raises(kvtier.ConfigError, match="shards: expected a whole number >= 1, got 0"):
        kvtier.sweep(sweep_file, shards=0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.csv").write_text("x")
    with pytest.raises(kvtier.ConfigError, match="has results of a sweep already"):
        kvtier.sweep(sweep_file, tmp_path / "out")
    assert contents(tmp_path / "out") == {"results.csv": b"x"}


def mortal_lru(marker, deaths):
    """An LRU whose process is killed in the middle of a run, the first `deaths` times."""

    class MortalLru(Lru):
        def on_remove(self, entry, now):
            super().on_remove(entry, now)
            for death in range(deaths):
                try:
                    os.close(os.open(f"{marker}{death}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)

    return MortalLru


@pytest.fixture
def python_sweep(sweep_file):
    """The same sweep with a policy of Python in place of fifo."""
    path = sweep_file.with_name("python-sweep.json")
    path.write_text(sweep_file.read_text().replace('"fifo"', '"python_lru"'))
    yield path
    kvtier.unregister_eviction_policy("python_lru")


def test_a_policy_of_python_runs_in_the_processes(python_sweep):
    kvtier.register_eviction_policy("python_lru", Lru)
    frame = kvtier.sweep(python_sweep, shards=3)
    own, builtin = (frame[frame["eviction"] == name].reset_index(drop=True)
                    for name in ("python_lru", "lru"))
    for column in ("hit rate", "TTFT"):
        pandas.testing.assert_series_equal(own[column], builtin[column])


def test_a_lost_process_is_reported(python_sweep, tmp_path):
    kvtier.register_eviction_policy("python_lru", mortal_lru(tmp_path / "died", 1))
    with pytest.raises(kvtier.DeviceError, match="sweep: the process of shard ./2 ended with -9"):
        kvtier.sweep(python_sweep, shards=2)


def test_ctrl_c_ends_a_sweep_and_its_processes(sweep_file, tmp_path):
    long_sweep = tmp_path / "long.json"
    long_sweep.write_text(sweep_file.read_text().replace(
        '"replications"', '"set": {"/workload/sessions": 2000000}, "replications"'))
    script = (f"import kvtier\nprint('begins', flush=True)\n"
              f"try:\n    kvtier.sweep({str(long_sweep)!r}, shards=2)\n"
              f"except KeyboardInterrupt:\n    print('interrupted')\n")
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                               start_new_session=True, preexec_fn=hear_interrupts)
    assert process.stdout.readline() == "begins\n"
    time.sleep(3)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    # Standard output ends when the last process that has it does.
    assert process.communicate(timeout=120)[0] == "interrupted\n"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("processes of the sweep are left")


def test_a_cluster_gives_the_same_bytes(cluster, sweep_file, tmp_path, kvtier_program):
    table = cli_sweep(kvtier_program, sweep_file, tmp_path / "cli")
    frame = kvtier.sweep(sweep_file, tmp_path / "ray", ray=True, shards=3)
    assert contents(tmp_path / "ray") == contents(tmp_path / "cli")
    assert frame.attrs["table"] == table


def test_a_worker_that_is_killed_in_the_middle_changes_nothing(cluster, python_sweep, tmp_path):
    kvtier.register_eviction_policy("python_lru", Lru)
    kvtier.sweep(python_sweep, tmp_path / "undisturbed", shards=1)
    kvtier.register_eviction_policy("python_lru", mortal_lru(tmp_path / "died", 1))
    kvtier.sweep(python_sweep, tmp_path / "disturbed", ray=True, shards=2)
    assert (tmp_path / "died0").exists()
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "undisturbed")


@pytest.fixture
def instances_sweep(python_sweep):
    """The same sweep of two instances behind two routers."""
    path = python_sweep.with_name("instances-sweep.json")
    sweep = json.loads(python_sweep.read_text())
    sweep["set"] = {"/cluster/instances": 2}
    sweep["axes"].append({"name": "router", "key": "/cluster/router",
                          "values": ["session", "round_robin"]})
    path.write_text(json.dumps(sweep))
    return path


def test_a_killed_worker_changes_no_sweep_over_instances(cluster, instances_sweep, tmp_path):
    kvtier.register_eviction_policy("python_lru", Lru)
    kvtier.sweep(instances_sweep, tmp_path / "undisturbed", shards=1)
    kvtier.register_eviction_policy("python_lru", mortal_lru(tmp_path / "died", 1))
    kvtier.sweep(instances_sweep, tmp_path / "disturbed", ray=True, shards=2)
    assert (tmp_path / "died0").exists()
    assert contents(tmp_path / "disturbed") == contents(tmp_path / "undisturbed")


def test_a_shard_that_loses_every_worker_is_reported(cluster, python_sweep, tmp_path):
    kvtier.register_eviction_policy("python_lru", mortal_lru(tmp_path / "died", 50))
    with pytest.raises(kvtier.DeviceError, match="a worker was lost in each of 2 tries"):
        kvtier.sweep(python_sweep, ray=True, shards=1, retries=1)
    assert (tmp_path / "died1").exists()


def test_errors_of_workers_are_those_of_kvtier(cluster, sweep_file, tmp_path, monkeypatch):
    from kvtier import sweeps

    def fails(file, *rest):
        raise kvtier.ConfigError(["one", "two"])

    monkeypatch.setattr(sweeps, "run_shard", fails)
    with pytest.raises(kvtier.ConfigError) as caught:
        kvtier.sweep(sweep_file, ray=True)
    assert caught.value.problems == ["one", "two"]
