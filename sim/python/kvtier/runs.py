"""Runs, comparisons, searches and curves."""

import json
import os
import pathlib
import typing

from . import _core
from .declared import declarations

Path = str | os.PathLike[str]
# A config, sweep or plan: its path, or what the file would hold.
Document = Path | dict[str, typing.Any]
Overrides = dict[str, typing.Any] | None
Result = dict[str, typing.Any]
Plugins = typing.Sequence[Path]

_PACKAGE = pathlib.Path(__file__).parent


def config_dir() -> str:
    """The folder of the presets that come with the package."""
    return str(_PACKAGE / "configs")


def include_dir() -> str:
    """The headers that a shared library with policies is built with."""
    return str(_PACKAGE / "include")


def setup(given_config_dir: Path | None, plugins: Plugins) -> tuple[str, list[str]]:
    """The arguments that end every call of _core."""
    return (os.fspath(given_config_dir) if given_config_dir else config_dir(),
            [os.fspath(plugin) for plugin in plugins])


def document(given: Document, name: str) -> tuple[str, str]:
    """The file and the text of what may be a path or a dict. Relative paths in a dict start at the
    current folder."""
    return (name, json.dumps(given)) if isinstance(given, dict) else (os.fspath(given), "")


def _of_config(function: typing.Callable[..., str], config: Document, overrides: Overrides,
               seed: int | None, *more: typing.Any, plugins: Plugins,
               config_dir: Path | None) -> Result:
    file, text = document(config, "")
    pairs = [(pointer, json.dumps(value)) for pointer, value in (overrides or {}).items()]
    return json.loads(function(file, text, pairs, seed, *more, *setup(config_dir, plugins),
                               declarations()))


def simulate(config: Document, overrides: Overrides = None, seed: int | None = None, *,
             untimed: bool = False, bound: bool = False, plugins: Plugins = (),
             config_dir: Path | None = None) -> Result:
    """Runs one system on one workload and gives the result that `kvtier simulate --json` writes.

    `config` is the path of a config, or a dict; relative paths in a dict start at the current
    folder. `overrides` is a dict of JSON pointers and values, as with --set. With `bound` the
    result has how far the policies are from what is possible. Raises ConfigError with every
    problem, DeviceError, InternalError. Other threads of Python go on meanwhile.
    """
    return _of_config(_core.simulate, config, overrides, seed, untimed, bound, plugins=plugins,
                      config_dir=config_dir)


def bound(config: Document, overrides: Overrides = None, seed: int | None = None, *,
          plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """How far a config's policies are from Belady's choice and from an upper bound of all policies,
    on accesses replayed without a clock: the `bound` of `kvtier simulate --untimed --bound`."""
    return simulate(config, overrides, seed, untimed=True, bound=True, plugins=plugins,
                    config_dir=config_dir)["bound"]


def compare(config: Document, systems: typing.Iterable[str], overrides: Overrides = None,
            seed: int | None = None, *, replications: int = 1, bound: bool = False,
            plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Runs several systems, presets by name, on the same workload, and gives what `kvtier compare
    --json` writes. The rest is as for `simulate`."""
    return _of_config(_core.compare, config, overrides, seed, list(systems), replications, bound,
                      plugins=plugins, config_dir=config_dir)


def find_capacity(config: Document, slo: str, overrides: Overrides = None,
                  seed: int | None = None, *, replications: int = 1, tolerance: float = 0.01,
                  plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Finds the highest rate that meets an SLO, such as "ttft_seconds.p90<=2", and gives what
    `kvtier simulate --find-capacity SLO --json` writes. The rest is as for `simulate`."""
    return _of_config(_core.find_capacity, config, overrides, seed, slo, replications, tolerance,
                      plugins=plugins, config_dir=config_dir)


def plan(plan: Document, *, jobs: int | None = None, out: Path | None = None,
         resume: bool = False, plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Finds the cheapest configuration that meets an SLO, and gives what `kvtier plan --json`
    writes. `plan` is the path of a plan, or a dict. Policies written in Python run one at a time,
    however many `jobs` there are."""
    file, text = document(plan, "plan")
    return json.loads(_core.plan(file, text, jobs or os.cpu_count() or 1,
                                 os.fspath(out) if out else "", resume,
                                 *setup(config_dir, plugins), declarations()))


def mrc(workload: Document, overrides: Overrides = None, seed: int | None = None, *,
        block: int | None = None, whole_blocks: bool = False, policy: str = "lru",
        bound: bool = False, sampling_rate: float = 1.0, capacities: typing.Iterable[str] = (),
        plugins: Plugins = (), config_dir: Path | None = None) -> Result:
    """Hits of one tier at all sizes, in one pass, as `kvtier trace mrc --json` writes them.

    `workload` is a config, by path or as a dict, or the path of a trace. Of a config
    without blocks, whole sessions are cached; otherwise blocks of `block` tokens, or those that the
    trace names. `capacities` are sizes such as "64GiB", for blocks also "5Mitokens".
    """
    options = {"block": block, "whole_blocks": whole_blocks, "policy": policy, "bound": bound,
               "sampling_rate": sampling_rate, "capacities": list(capacities)}
    return _of_config(_core.curve, workload, overrides, seed, options, plugins=plugins,
                      config_dir=config_dir)


def policies(*, plugins: Plugins = ()) -> dict[str, list[str]]:
    """The names of all policies by kind: of kvtier, of libraries, of Python."""
    return _core.policies(setup(None, plugins)[1], declarations())


def check_eviction_policy(name: str, *, plugins: Plugins = ()) -> list[str]:
    """What the policy does not keep of what every eviction policy owes its tier: a list of lines,
    empty if all is well. The same checks run over the policies of kvtier."""
    return _core.check_policy("eviction", name, setup(None, plugins)[1], declarations())


def check_routing_policy(name: str, *, plugins: Plugins = ()) -> list[str]:
    """What the policy does not keep of what every router owes its cluster, as
    `check_eviction_policy`."""
    return _core.check_policy("routing", name, setup(None, plugins)[1], declarations())
