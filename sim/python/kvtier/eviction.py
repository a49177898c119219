"""Eviction policies written in Python."""

from collections.abc import Callable, Iterable

from . import _core
from .declared import Parameter, register, unregister


class EvictionPolicy:
    """Chooses what leaves one tier; a subclass is registered by `register_eviction_policy`.

    Each tier of each run has an object of its own. Entries are small numbers, used again once they
    are free; times are nanoseconds; positions in the queue are numbers, smaller is sooner, or None.
    Decisions may depend on these calls and the constructor's arguments alone: no clock, no random
    numbers without a fixed seed, no order of a set. The contract is that of sim/policy/README.md.
    """

    def on_start(self, recompute: Callable[[int], int], load: Callable[[int], int]) -> None:
        """Called before anything else. Functions of a number of tokens, which give nanoseconds:
        how long computing or loading them takes if nothing else runs."""

    def on_insert(self, entry: _core.Entry, now: int) -> None:
        """`entry` is an Entry: id, key, place (to break ties), tokens, depth (tokens of the context
        before them), bytes, first_inserted (kept
        while any tier holds the entry or a turn uses it), session_began, last_used, queue_position
        (look-ahead knowledge only) and next_use (oracle knowledge only)."""
        raise NotImplementedError

    def on_hit(self, entry: int, now: int) -> None:
        """A turn finds the entry and uses it from here on: uses are counted here. `entry` is a
        number, as in all calls that do not show sizes."""

    def on_release(self, entry: _core.Entry, now: int) -> None:
        """The use is over: recency is taken here. `entry` is an Entry, which may have grown. A
        class without this method gets on_resize instead."""

    def on_resize(self, entry: _core.Entry, now: int) -> None:
        """`entry` is an Entry."""

    def on_split(self, head: _core.Entry, tail: _core.Entry, now: int) -> None:
        """The entry is two from here on, in the state that it was in: it is now `head`, and `tail`,
        which continues it, is new; both are an Entry. A class without this method gets on_resize
        and on_insert instead."""

    def on_remove(self, entry: int, now: int) -> None:
        """The entry leaves for good."""
        raise NotImplementedError

    def on_queue_change(self, entry: int, position: int, waits: bool, first: int | None) -> None:
        """Look-ahead knowledge only: a request for the entry began to wait at `position`, or left
        it; `first` is where the first of its requests waits now, or None."""

    def on_next_use(self, entry: int, at: int | None) -> None:
        """Oracle knowledge only; None if it is not used any more."""

    def choose(self, request: _core.RoomRequest, victims: _core.Victims) -> None:
        """Chooses a set of entries that leave together, or nothing. `victims.add(entry)` adds an
        entry that `victims.offers(entry)`, `victims.add(entry, keep)` what it holds behind its
        first `keep` tokens, until `victims.wants_more()` is false. A set that wants more when this
        returns does not leave. `request` has now, demand ("save", "prefetch", "demotion",
        "background"), incoming, queue_first, window_end and newcomer."""
        raise NotImplementedError

    def check_invariants(self, residents: list[tuple[_core.Entry, bool]]) -> None:
        """`residents` is a list of (Entry, whether it is offered). Raises AssertionError if the
        policy's bookkeeping differs; called at the end of every run."""
        raise NotImplementedError


def register_eviction_policy(name: str, policy: type[EvictionPolicy], *, summary: str | None = None,
                             source: str = "Python", knowledge: str = "online",
                             parameters: Iterable[Parameter] = (),
                             parts_of_entries: bool = False) -> None:
    """Makes `policy`, a subclass of EvictionPolicy, known to configs as `name` from now on.

    A name that is registered already is replaced, so that a notebook's cell can be run again. A
    name of kvtier's own policies is refused.
    """
    register("eviction", EvictionPolicy, name, policy, summary, source, knowledge, parameters,
             parts_of_entries)


def unregister_eviction_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("eviction", name)
