"""Routing policies written in Python."""

from collections.abc import Iterable

from . import _core
from .declared import Parameter, register, unregister


class RoutingPolicy:
    """Chooses an instance for each request of a cluster; a subclass is registered by
    `register_routing_policy`.

    Each group of instances of each run has an object of its own. Instances and requests are
    numbers; times are nanoseconds; a block's hash names the block and all tokens before it.
    Decisions may depend on these calls, the constructor's arguments and the view's random numbers
    alone: no clock, no other random numbers, no order of a set. The contract is that of
    sim/policy/README.md.
    """

    # Whether RoutedRequest.blocks is filled; whether there are calls about blocks (then both are).
    blocks = False
    block_events = False

    def on_start(self, instances: int, block_tokens: int, phase: str) -> None:
        """Called before anything else: the number of instances, the size of a block, and "both",
        "prefill" or "decode"."""

    def on_joined(self, instance: int, now: int) -> None:
        """The instance serves requests and holds no block: for each at the start, and when a lost
        one comes back."""

    def on_lost(self, instance: int, now: int) -> None:
        """The instance is lost, and its blocks with it. on_finished follows for its requests."""

    def on_load(self, instance: int, load: _core.InstanceLoad, now: int) -> None:
        """The instance reports its InstanceLoad; not called where loads are always current."""

    def choose(self, request: _core.RoutedRequest, view: _core.RoutingView) -> int:
        """The number of an instance among `view.candidates`. `request` is a RoutedRequest: id,
        session (or None), request_class, priority, prompt (tokens), blocks (hashes of full blocks).
        `view` has now, candidates, load(instance), random() and random_index(bound); an
        InstanceLoad has requests, waiting, prefill_tokens, uncached_prefill_tokens, prefill_blocks,
        decode_blocks, kv_blocks, kv_blocks_capacity and alive."""
        raise NotImplementedError

    def on_dispatched(self, request: _core.RoutedRequest, instance: int, now: int) -> None:
        """The request, a RoutedRequest, goes to the instance."""

    def on_first_token(self, request: int, instance: int, now: int) -> None:
        """`request` is the request's id, as in on_finished."""

    def on_finished(self, request: int, instance: int, now: int) -> None:
        """Called once for each dispatched request, also for one that is lost."""

    def on_blocks_stored(self, instance: int | None, medium: str, blocks: list[int],
                         now: int) -> None:
        """The medium ("gpu", "host" or "disk") of the instance holds these hashes from now on;
        instance None is a pool that all share."""

    def on_blocks_removed(self, instance: int | None, medium: str, blocks: list[int],
                          now: int) -> None:
        """The medium does not hold them any more."""

    def check_invariants(self, requests_in_flight: int) -> None:
        """Raises AssertionError if the policy counts other requests in flight; called at the end
        of every run."""


def register_routing_policy(name: str, policy: type[RoutingPolicy], *, summary: str | None = None,
                            source: str = "Python", parameters: Iterable[Parameter] = ()) -> None:
    """Makes `policy`, a subclass of RoutingPolicy, known to configs as `name` from now on; the rest
    is as for `register_eviction_policy`."""
    register("routing", RoutingPolicy, name, policy, summary, source, "online", parameters, False)


def unregister_routing_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("routing", name)
