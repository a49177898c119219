"""kvtier: what a multi-tier KV cache does for an LLM server, by simulation.

    import kvtier
    result = kvtier.simulate("my-run.json", {"/hardware/dram/capacity": "512GiB"}, seed=2)
    result["metrics"]["hit_rate"]["all_turns"]["total"]
"""

from ._core import Entry, InstanceLoad, RoomRequest, RoutedRequest, RoutingView, Victims
from ._core import version as __version__
from .declared import Parameter
from .errors import ConfigError, DeviceError, Error, InternalError
from .eviction import EvictionPolicy, register_eviction_policy, unregister_eviction_policy
from .routing import RoutingPolicy, register_routing_policy, unregister_routing_policy
from .runs import (check_eviction_policy, check_routing_policy, config_dir, include_dir, policies,
                   simulate)
from .sweeps import sweep

__all__ = [
    "ConfigError", "DeviceError", "Entry", "Error", "EvictionPolicy", "InstanceLoad",
    "InternalError", "Parameter", "RoomRequest", "RoutedRequest", "RoutingPolicy", "RoutingView",
    "Victims", "__version__", "check_eviction_policy", "check_routing_policy", "config_dir",
    "include_dir", "policies", "register_eviction_policy", "register_routing_policy", "simulate",
    "sweep", "unregister_eviction_policy", "unregister_routing_policy",
]
