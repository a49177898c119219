"""kvtier simulates multi-tier KV caches for LLM serving.

    import kvtier
    result = kvtier.simulate("my-run.json", {"/hardware/dram/capacity": "512GiB"}, seed=2)
    result["metrics"]["hit_rate"]["all_turns"]["total"]
"""

from ._core import (Entry, InstanceLoad, PrefetchContext, QueueView, RoomRequest, RoutedRequest,
                    RoutingView, Victims)
from ._core import version as __version__
from .declared import Parameter
from .errors import ConfigError, DeviceError, Error, InternalError
from .eviction import EvictionPolicy, register_eviction_policy, unregister_eviction_policy
from .routing import RoutingPolicy, register_routing_policy, unregister_routing_policy
from .runs import (bound, check_eviction_policy, check_routing_policy, compare, config_dir,
                   find_capacity, include_dir, mrc, plan, policies, simulate)
from .scheduling import (AdmissionPolicy, OrderPolicy, PrefetchPolicy, register_admission_policy,
                         register_order_policy, register_prefetch_policy,
                         unregister_admission_policy, unregister_order_policy,
                         unregister_prefetch_policy)
from .sweeps import sweep

__all__ = [
    "AdmissionPolicy", "ConfigError", "DeviceError", "Entry", "Error", "EvictionPolicy",
    "InstanceLoad", "InternalError", "OrderPolicy", "Parameter", "PrefetchContext",
    "PrefetchPolicy", "QueueView", "RoomRequest", "RoutedRequest", "RoutingPolicy", "RoutingView",
    "Victims", "__version__", "bound", "check_eviction_policy", "check_routing_policy", "compare",
    "config_dir", "find_capacity", "include_dir", "mrc", "plan", "policies",
    "register_admission_policy", "register_eviction_policy", "register_order_policy",
    "register_prefetch_policy", "register_routing_policy", "simulate", "sweep",
    "unregister_admission_policy", "unregister_eviction_policy", "unregister_order_policy",
    "unregister_prefetch_policy", "unregister_routing_policy",
]
