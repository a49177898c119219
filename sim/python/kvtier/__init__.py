"""kvtier: what a multi-tier KV cache does for an LLM server, by simulation.

    import kvtier
    result = kvtier.simulate("my-run.json", {"/hardware/dram/capacity": "512GiB"}, seed=2)
    result["metrics"]["hit_rate"]["all_turns"]["total"]
"""

from ._core import Entry, RoomRequest, Victims
from ._core import version as __version__
from .errors import ConfigError, DeviceError, Error, InternalError
from .eviction import (EvictionPolicy, Parameter, register_eviction_policy,
                       unregister_eviction_policy)
from .runs import check_eviction_policy, config_dir, include_dir, policies, simulate
from .sweeps import sweep

__all__ = [
    "ConfigError", "DeviceError", "Entry", "Error", "EvictionPolicy", "InternalError", "Parameter",
    "RoomRequest", "Victims", "__version__", "check_eviction_policy", "config_dir", "include_dir",
    "policies", "register_eviction_policy", "simulate", "sweep", "unregister_eviction_policy",
]
