"""Eviction policies written in Python."""

from collections.abc import Callable, Iterable

from . import _core
from .declared import Parameter, register, unregister


class EvictionPolicy:
    """Chooses the entries that leave one tier. Register subclasses with `register_eviction_policy`.

    Each tier of each run has its own object. Entries are small numbers, which are reused after
    `on_remove`. Times are nanoseconds. Positions in the queue are numbers, of which the smaller is
    sooner, or None. Decisions may depend only on these calls and the constructor's arguments: no
    clock, no random numbers without a fixed seed, no order of a set. sim/policy/README.md has the
    contract.
    """

    def on_start(self, recompute: Callable[[int], int], load: Callable[[int], int]) -> None:
        """Called first. `recompute` and `load` take a number of tokens and return nanoseconds: the
        duration of computing or loading them if nothing else runs."""

    def on_insert(self, entry: _core.Entry, now: int) -> None:
        """The entry comes into the tier. An Entry has id, key, place (to break ties), tokens, depth
        (tokens of the context before them), bytes, first_inserted (kept while any tier holds the
        entry or a turn uses it), session_began, last_used, queue_position (look-ahead knowledge
        only) and next_use (oracle knowledge only)."""
        raise NotImplementedError

    def on_hit(self, entry: int, now: int) -> None:
        """A turn finds the entry and begins to use it. Count uses here. `entry` is the entry's
        id."""

    def on_release(self, entry: _core.Entry, now: int) -> None:
        """The use is over. Update recency here. `entry` is an Entry, which may have grown. A class
        without this method gets on_resize instead."""

    def on_resize(self, entry: _core.Entry, now: int) -> None:
        """The size of the entry, an Entry, has changed."""

    def on_split(self, head: _core.Entry, tail: _core.Entry, now: int) -> None:
        """The entry is split in two. `head` keeps its id, and `tail`, which continues it, is new.
        Both are an Entry in the state of the old one. A class without this method gets on_resize
        and on_insert instead."""

    def on_remove(self, entry: int, now: int) -> None:
        """The entry leaves the tier for good."""
        raise NotImplementedError

    def on_queue_change(self, entry: int, position: int, waits: bool, first: int | None) -> None:
        """Look-ahead knowledge only. A request for the entry began to wait at `position` (`waits`),
        or left it. `first` is the position of the first request that waits for it, or None."""

    def on_next_use(self, entry: int, at: int | None) -> None:
        """Oracle knowledge only. The entry is used next at `at`; None means never again."""

    def choose(self, request: _core.RoomRequest, victims: _core.Victims) -> None:
        """Chooses a set of entries that leave together, or nothing.

        `victims.add(entry)` adds an entry for which `victims.offers(entry)` is true.
        `victims.add(entry, keep)` adds its tokens after the first `keep` ones. The set is complete
        when `victims.wants_more()` is false. An incomplete set does not leave. `request` has now,
        demand ("save", "prefetch", "demotion", "background"), incoming, queue_first, window_end and
        newcomer."""
        raise NotImplementedError

    def check_invariants(self, residents: list[tuple[_core.Entry, bool]]) -> None:
        """Raises AssertionError if the policy's bookkeeping differs from `residents`, a list of
        (Entry, whether it is offered). Called at the end of every run. Without this method nothing
        is checked."""


def register_eviction_policy(name: str, policy: type[EvictionPolicy], *, summary: str | None = None,
                             source: str = "Python", knowledge: str = "online",
                             parameters: Iterable[Parameter] = (),
                             parts_of_entries: bool = False) -> None:
    """Registers `policy`, a subclass of EvictionPolicy, so that configs can name it `name`.

    Registering a name again replaces its policy, so that a notebook's cell can run again. Names of
    kvtier's own policies raise ValueError.
    """
    register("eviction", EvictionPolicy, name, policy, summary, source, knowledge, parameters,
             parts_of_entries)


def unregister_eviction_policy(name: str) -> None:
    """Removes a registered policy."""
    unregister("eviction", name)
