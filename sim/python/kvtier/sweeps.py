"""Sweeps on several processes, or on a cluster of Ray."""

import concurrent.futures
import contextlib
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import typing

import cloudpickle

from . import _core, errors
from .declared import declarations
from .runs import Document, Path, Plugins, document, setup

if typing.TYPE_CHECKING:
    import pandas

_WRITTEN = ("sweep.json", "results.jsonl", "results.csv", "results.jsonl.partial")


def _pickled(declared):
    """Pickles policies by value, because workers may not have their modules."""
    modules = {sys.modules[kind.__module__] for declaration in declared
               for kind in declaration.policy.__mro__
               if kind.__module__.partition(".")[0] not in ("builtins", "__main__", __package__)}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(declared)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def run_shard(sweep, number, of, common, pickled):
    """Runs a shard and returns its result lines."""
    with tempfile.TemporaryDirectory(prefix="kvtier-shard-") as folder:
        answer = _core.run_sweep_shard(*sweep, folder, number, of, [], False, *common,
                                       pickle.loads(pickled))
    return answer["lines"]


def _on_processes(sweep, shards, common, pickled):
    # Workers are new interpreters, because a forked copy of a process with threads may deadlock.
    started = []

    def run(number):
        process = subprocess.Popen([sys.executable, "-m", f"{__package__}.worker"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        answer, _ = process.communicate(
            pickle.dumps((sys.path, (sweep, number, shards, common, pickled))))
        if process.returncode != 0:
            raise errors.DeviceError(
                f"sweep: the process of shard {number}/{shards} ended with {process.returncode}")
        lines = pickle.loads(answer)
        if isinstance(lines, errors.Error):
            raise lines
        return lines

    with concurrent.futures.ThreadPoolExecutor(min(shards, os.cpu_count() or 1)) as pool:
        runs = [pool.submit(run, number) for number in range(1, shards + 1)]
        try:
            return [line for run in runs for line in run.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                process.terminate()
            raise


def _on_ray(sweep, shards, common, pickled, retries):
    import ray

    run = ray.remote(num_cpus=1, max_retries=retries)(run_shard)
    runs = [run.remote(sweep, number, shards, common, pickled) for number in range(1, shards + 1)]
    try:
        return [line for lines in ray.get(runs) for line in lines]
    except BaseException as error:
        # Cancels only pending tasks, without force: otherwise Ray may end this process.
        _, pending = ray.wait(runs, num_returns=len(runs), timeout=0)
        for started in pending:
            ray.cancel(started)
        if isinstance(error, ray.exceptions.WorkerCrashedError):
            raise errors.DeviceError(
                f"sweep: a worker was lost in each of {retries + 1} tries of its shard") from error
        if isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, errors.Error):
            raise error.cause from None
        raise


def _workers(ray_is_used):
    if not ray_is_used:
        return os.cpu_count() or 1
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def sweep(sweep: Document, out: Path | None = None, *, ray: bool = False,
          shards: int | None = None, retries: int = 3, plugins: Plugins = (),
          config_dir: Path | None = None) -> "pandas.DataFrame":
    """Runs a sweep as `kvtier sweep` does. Returns results.csv as a pandas.DataFrame, with columns
    named as in the sweep. Labels that begin like a formula have an apostrophe before them, as in
    results.csv. `sweep` is the path of a sweep, or a dict.

    The points are divided into `shards` (default: the number of processors). Each shard is run by
    one process, on this machine or, with `ray`, on the Ray cluster of this process. Ray retries the
    shard of a lost worker up to `retries` times. Workers read the sweep and its config by their
    paths, so on a cluster the files must be on a shared file system.

    The results do not depend on the number of shards, the workers, or lost workers. `out` gets the
    same bytes as `kvtier sweep --out`. The frame's attrs have "table" (the text that the program
    prints), "jsonl" (a line for each run) and "units" (of the columns). A failed run is a row with
    its error. Raises ConfigError or DeviceError.
    """
    import pandas

    given = document(sweep, "sweep")
    if ray and not given[1]:
        given = (os.path.abspath(given[0]), "")
    common = setup(config_dir, plugins)
    if ray:
        common = (os.path.abspath(common[0]), [os.path.abspath(plugin) for plugin in common[1]])
    declared = declarations()
    points = _core.sweep_points(*given, *common, declared)
    if shards is not None and shards < 1:
        raise errors.ConfigError(f"shards: expected a whole number >= 1, got {shards}")
    if out is not None and any((pathlib.Path(out) / name).exists() for name in _WRITTEN):
        raise errors.ConfigError(f"out: {os.fspath(out)} has results of a sweep already")
    shards = min(points, shards or _workers(ray))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(
            out or stack.enter_context(tempfile.TemporaryDirectory(prefix="kvtier-sweep-")))
        if ray:
            lines = _on_ray(given, shards, common, _pickled(declared), retries)
        else:
            lines = _on_processes(given, shards, common, _pickled(declared))
        answer = _core.run_sweep_shard(*given, os.fspath(folder), 1, 1, lines, False, *common,
                                       declared)
        if answer["problems"]:
            raise errors.ConfigError(answer["problems"])
        # pandas 2 rounds numbers that it reads.
        exactly = {"float_precision": "round_trip"} if pandas.__version__[:2] == "2." else {}
        frame = pandas.read_csv(folder / "results.csv", **exactly)
    frame = frame.rename(columns={header: name for header, name, _ in answer["columns"]})
    frame.attrs["units"] = {name: unit for _, name, unit in answer["columns"]}
    frame.attrs["table"] = answer["table"]
    frame.attrs["jsonl"] = "".join(line + "\n" for line in answer["lines"])
    return frame
