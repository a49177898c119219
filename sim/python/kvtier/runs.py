"""One run."""

import json
import os
import pathlib

from . import _core
from .declared import declarations

_PACKAGE = pathlib.Path(__file__).parent


def config_dir():
    """The folder of the presets that come with the package."""
    return str(_PACKAGE / "configs")


def include_dir():
    """The headers that a shared library with policies is built with."""
    return str(_PACKAGE / "include")


def setup(given_config_dir, plugins):
    """The arguments that end every call of _core."""
    return (os.fspath(given_config_dir) if given_config_dir else config_dir(),
            [os.fspath(plugin) for plugin in plugins])


def simulate(config, overrides=None, seed=None, *, untimed=False, plugins=(), config_dir=None):
    """Runs one system on one workload and gives the result that `kvtier simulate --json` writes.

    `config` is the path of a config, or a dict; relative paths in a dict start at the current
    folder. `overrides` is a dict of JSON pointers and values, as with --set. Raises ConfigError
    with every problem, DeviceError, InternalError. Other threads of Python go on meanwhile.
    """
    is_file = not isinstance(config, dict)
    pairs = [(pointer, json.dumps(value)) for pointer, value in (overrides or {}).items()]
    text = _core.simulate(os.fspath(config) if is_file else "",
                          "" if is_file else json.dumps(config), pairs, seed, untimed,
                          *setup(config_dir, plugins), declarations())
    return json.loads(text)


def policies(*, plugins=()):
    """The names of all policies by kind: of kvtier, of libraries, of Python."""
    return _core.policies(setup(None, plugins)[1], declarations())


def check_eviction_policy(name, *, plugins=()):
    """What the policy does not keep of what every eviction policy owes its tier: a list of lines,
    empty if all is well. The same checks run over the policies of kvtier."""
    return _core.check_policy("eviction", name, setup(None, plugins)[1], declarations())


def check_routing_policy(name, *, plugins=()):
    """What the policy does not keep of what every router owes its cluster, as
    `check_eviction_policy`."""
    return _core.check_policy("routing", name, setup(None, plugins)[1], declarations())
