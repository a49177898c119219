"""Runs, comparisons, searches and curves."""

import json
import operator
import os
import pathlib
import typing

from . import _core
from .declared import declarations

Path = str | os.PathLike[str]
# A config, sweep or plan: the path of its file, or the file's content as a dict.
Document = Path | dict[str, typing.Any]
Overrides = dict[str, typing.Any] | None
Result = dict[str, typing.Any]
Plugins = typing.Sequence[Path]

_PACKAGE = pathlib.Path(__file__).parent


def config_dir() -> str:
    """The folder of the package's presets."""
    return str(_PACKAGE / "configs")


def include_dir() -> str:
    """The folder of the headers for building a shared library with policies."""
    return str(_PACKAGE / "include")


def setup(given_config_dir: Path | None, plugins: Plugins) -> tuple[str, list[str]]:
    """The folder of presets and the plugins, which most calls of _core take."""
    return (os.fspath(given_config_dir) if given_config_dir else config_dir(),
            [os.fspath(plugin) for plugin in plugins])


def _index(value: typing.Any) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return operator.index(value)


def json_text(value: typing.Any) -> str:
    """JSON of a config. Objects that stand for an int, such as integers of numpy, are numbers."""
    return json.dumps(value, default=_index)


def document(given: Document, name: str) -> tuple[str, str]:
    """The file and text arguments of _core for a path or a dict. Relative paths in a dict start at
    the current folder."""
    return (name, json_text(given)) if isinstance(given, dict) else (os.fspath(given), "")


def _of_config(function: typing.Callable[..., str], config: Document, overrides: Overrides,
               seed: int | None, *more: typing.Any, plugins: Plugins,
               config_dir: Path | None) -> Result:
    file, text = document(config, "")
    pairs = [(pointer, json_text(value)) for pointer, value in (overrides or {}).items()]
    return json.loads(function(file, text, pairs, seed, *more, *setup(config_dir, plugins),
                               declarations()))


def simulate(config: Document, overrides: Overrides = None, seed: int | None = None, *,
             untimed: bool = False, bound: bool = False, plugins: Plugins = (),
             config_dir: Path | None = None) -> Result:
    """Runs one system on one workload. Returns the result of `kvtier simulate --json`.

    `config` is the path of a config, or a dict. Relative paths in a dict start at the current
    folder. `overrides` is a dict of JSON pointers and values, as with --set. With `bound`, the
    result also compares the hit rates with Belady's choice and an upper bound. Raises ConfigError
    with all problems, DeviceError or InternalError. Other Python threads can run meanwhile.
    """
    return _of_config(_core.simulate, config, overrides, seed, untimed, bound, plugins=plugins,
                      config_dir=config_dir)


def bound(config: Document, overrides: Overrides = None, seed: int | None = None, *,
          plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Compares a config's policies with Belady's choice and with an upper bound of all policies, on
    accesses replayed without a clock. Returns `bound` of `kvtier simulate --untimed --bound`."""
    return simulate(config, overrides, seed, untimed=True, bound=True, plugins=plugins,
                    config_dir=config_dir)["bound"]


def compare(config: Document, systems: typing.Iterable[str], overrides: Overrides = None,
            seed: int | None = None, *, replications: int = 1, bound: bool = False,
            plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Runs several systems, given as names of presets, on the same workload. Returns the result
    that `kvtier compare --json` writes. The other arguments are those of `simulate`."""
    return _of_config(_core.compare, config, overrides, seed, list(systems), replications, bound,
                      plugins=plugins, config_dir=config_dir)


def find_capacity(config: Document, slo: str, overrides: Overrides = None,
                  seed: int | None = None, *, replications: int = 1, tolerance: float = 0.01,
                  plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Finds the highest rate that meets an SLO, such as "ttft_seconds.p90<=2". Returns the result
    that `kvtier simulate --find-capacity SLO --json` writes. The other arguments are those of
    `simulate`."""
    return _of_config(_core.find_capacity, config, overrides, seed, slo, replications, tolerance,
                      plugins=plugins, config_dir=config_dir)


def plan(plan: Document, *, jobs: int | None = None, out: Path | None = None,
         resume: bool = False, plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Finds the cheapest configuration that meets an SLO. Returns the result that `kvtier plan
    --json` writes. `plan` is the path of a plan, or a dict. Policies written in Python run one at a
    time, whatever `jobs` is."""
    file, text = document(plan, "plan")
    return json.loads(_core.plan(file, text, jobs or os.cpu_count() or 1,
                                 os.fspath(out) if out else "", resume,
                                 *setup(config_dir, plugins), declarations()))


def mrc(workload: Document, overrides: Overrides = None, seed: int | None = None, *,
        block: int | None = None, whole_blocks: bool = False, policy: str = "lru",
        bound: bool = False, sampling_rate: float = 1.0, capacities: typing.Iterable[str] = (),
        plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Computes the hits of one tier at all sizes, in one pass. Returns the result of `kvtier trace
    mrc --json`.

    `workload` is a config, by path or as a dict, or the path of a trace. The tier caches blocks of
    `block` tokens. Without `block` it caches the blocks that the workload names; if it names none,
    whole sessions of a config, or blocks of 16 tokens of a trace. `capacities` are sizes such as
    "64GiB", for blocks also "5Mitokens".
    """
    options = {"block": block, "whole_blocks": whole_blocks, "policy": policy, "bound": bound,
               "sampling_rate": sampling_rate, "capacities": list(capacities)}
    return _of_config(_core.curve, workload, overrides, seed, options, plugins=plugins,
                      config_dir=config_dir)


def policies(*, plugins: Plugins = ()) -> dict[str, list[str]]:
    """The names of all policies by kind: those of kvtier, of libraries and of Python."""
    return _core.policies(setup(None, plugins)[1], declarations())


def check_eviction_policy(name: str, *, plugins: Plugins = ()) -> list[str]:
    """Checks that an eviction policy keeps the contract with its tier. Returns a line for each
    violation. kvtier's own policies pass the same checks."""
    return _core.check_policy("eviction", name, setup(None, plugins)[1], declarations())


def check_routing_policy(name: str, *, plugins: Plugins = ()) -> list[str]:
    """Checks that a routing policy keeps the contract with its cluster. Returns a line for each
    violation."""
    return _core.check_policy("routing", name, setup(None, plugins)[1], declarations())
