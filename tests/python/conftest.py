import json
import os
import pathlib
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = os.environ.get("KVTIER_PROGRAM", str(ROOT / "build/release/bin/kvtier"))

RUN = {
    "model": "llama2-13b",
    "hardware": {"preset": "a100-80g", "gpus": 2, "dram": {"capacity": "32GiB"}},
    "system": "attentionstore_lru",
    "workload": {"generator": "sharegpt", "sessions": 60, "arrival_rate": "1/s",
                 "warmup_turns": 20},
}


def hear_interrupts():
    """For a child process: what a shell starts in the background ignores SIGINT, and so do its
    children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def config(tmp_path):
    """The path of a small run's config."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUN))
    return path


@pytest.fixture
def sweep_file(tmp_path, config):
    """The path of a sweep of six points, one of which is refused, with two seeds each."""
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({
        "config": config.name,
        "replications": 2,
        "refused": "skip",
        "axes": [
            {"name": "eviction", "key": "/system/tiers/dram/eviction", "values": ["lru", "fifo"]},
            {"name": "DRAM", "key": "/hardware/dram/capacity",
             "values": ["16GiB", "32GiB", "0GiB"]},
        ],
        "columns": [
            {"name": "hit rate", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"},
            {"name": "TTFT", "value": "/metrics/ttft_seconds/mean", "unit": "s"},
        ],
    }))
    return path


@pytest.fixture
def kvtier_program():
    """Runs `kvtier ARGUMENTS...`, built with `make program` and named by KVTIER_PROGRAM."""
    if not os.access(PROGRAM, os.X_OK):
        pytest.fail(f"{PROGRAM} is missing: make program")

    def run(*arguments):
        return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                              check=False)

    return run


@pytest.fixture(scope="session")
def cluster():
    """A cluster of Ray on this machine, with two workers. It outlives this process's connection: a
    process that is still connected when Ray ends is ended by Ray."""
    import ray
    from ray.cluster_utils import Cluster

    machine = Cluster(initialize_head=True,
                      head_node_args={"num_cpus": 2, "include_dashboard": False})
    ray.init(address=machine.address, log_to_driver=False)
    yield ray
    ray.shutdown()
    machine.shutdown()
