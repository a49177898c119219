"""Routing policies written in Python."""

from collections.abc import Iterable

from . import _core
from .declared import Parameter, register, unregister


class RoutingPolicy:
    """Chooses an instance for each request of a cluster. Register subclasses with
    `register_routing_policy`.

    Each group of instances of each run has its own object. Instances and requests are numbers.
    Times are nanoseconds. A block's hash names the block and all tokens before it. Decisions may
    depend only on these calls, the constructor's arguments and the view's random numbers: no clock,
    no other random numbers, no order of a set. sim/policy/README.md has the contract.
    """

    # `blocks` fills RoutedRequest.blocks. `block_events` also enables on_blocks_stored and
    # on_blocks_removed.
    blocks = False
    block_events = False

    def on_start(self, instances: int, block_tokens: int, phase: str) -> None:
        """Called first, with the number of instances, the tokens of a block, and the phase: "both",
        "prefill" or "decode"."""

    def on_joined(self, instance: int, now: int) -> None:
        """The instance begins to serve requests and holds no block. Called for each instance at the
        start, and when a lost instance comes back."""

    def on_lost(self, instance: int, now: int) -> None:
        """The instance and its blocks are lost. on_finished follows for its requests."""

    def on_load(self, instance: int, load: _core.InstanceLoad, now: int) -> None:
        """The instance reports its InstanceLoad. Not called if loads are always current."""

    def choose(self, request: _core.RoutedRequest, view: _core.RoutingView) -> int:
        """Returns the number of an instance among `view.candidates`.

        `request` has id, session (or None), request_class, priority, prompt (tokens) and blocks
        (hashes of full blocks). `view` has now, candidates, load(instance), random() and
        random_index(bound). An InstanceLoad has requests, waiting, prefill_tokens,
        uncached_prefill_tokens, prefill_blocks, decode_blocks, kv_blocks, kv_blocks_capacity and
        alive."""
        raise NotImplementedError

    def on_dispatched(self, request: _core.RoutedRequest, instance: int, now: int) -> None:
        """The request, a RoutedRequest, is sent to the instance."""

    def on_first_token(self, request: int, instance: int, now: int) -> None:
        """The request, given by its id, has its first token."""

    def on_finished(self, request: int, instance: int, now: int) -> None:
        """The request, given by its id, has ended or is lost. Called once for each dispatched
        request."""

    def on_blocks_stored(self, instance: int | None, medium: str, blocks: list[int],
                         now: int) -> None:
        """The medium ("gpu", "host" or "disk") of the instance stores the blocks with these hashes.
        Instance None is a pool that all instances share."""

    def on_blocks_removed(self, instance: int | None, medium: str, blocks: list[int],
                          now: int) -> None:
        """The medium no longer holds the blocks with these hashes."""

    def check_invariants(self, requests_in_flight: int) -> None:
        """Raises AssertionError if the policy counts another number of requests in flight. Called
        at the end of every run."""


def register_routing_policy(name: str, policy: type[RoutingPolicy], *, summary: str | None = None,
                            source: str = "Python", parameters: Iterable[Parameter] = ()) -> None:
    """Registers `policy`, a subclass of RoutingPolicy, as `register_eviction_policy` does."""
    register("routing", RoutingPolicy, name, policy, summary, source, "online", parameters, False)


def unregister_routing_policy(name: str) -> None:
    """Removes a registered policy."""
    unregister("routing", name)
