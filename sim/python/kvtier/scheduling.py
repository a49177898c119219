"""Admission, prefetch and order policies written in Python.

Decisions may depend only on a policy's calls and its constructor's arguments. sim/policy/README.md
has the contract. Times are nanoseconds. Positions in the queue are numbers, of which the smaller is
sooner.
"""

from collections.abc import Iterable

from . import _core
from .declared import Parameter, register, unregister


class AdmissionPolicy:
    """Chooses the entries that may enter a tier. Register subclasses with
    `register_admission_policy`. Entries are given by their keys, which stay the same in a run."""

    def on_use(self, entry: int) -> None:
        """A turn has used or made this entry, in any tier."""

    def admits(self, entry: int) -> bool:
        """Whether the entry may enter the tier."""
        raise NotImplementedError

    def replaces(self, newcomer: int, victim: int) -> bool:
        """Whether the newcomer may evict the victim. True for a class without this method."""
        return True


def register_admission_policy(name: str, policy: type[AdmissionPolicy], *,
                              summary: str | None = None, source: str = "Python",
                              parameters: Iterable[Parameter] = ()) -> None:
    """Registers `policy`, a subclass of AdmissionPolicy, as `register_eviction_policy` does."""
    register("admission", AdmissionPolicy, name, policy, summary, source, "online", parameters,
             False)


def unregister_admission_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("admission", name)


class PrefetchPolicy:
    """Chooses the entries that are fetched to a faster tier before requests need them. Register
    subclasses with `register_prefetch_policy`. Entries are numbers, which are reused."""

    def on_demoted(self, entry: int, position: int | None) -> None:
        """The entry, for which a request waits at `position`, moved to a slower tier."""

    def next_fetch(self, queue: _core.QueueView,
                   context: _core.PrefetchContext) -> int | tuple[int, int] | None:
        """Returns the next entry to fetch, `(entry, time)` to fetch it at that time or later, or
        None.

        Called again after every change. Return the same entry until its fetch has started. `queue`
        has first, end, window_end, waiting(position), entry(position) and priority(position).
        `context` has now, memory and mean_entry (bytes), tpot, running, needs_fetch(entry) and
        fetch_duration(entry)."""
        raise NotImplementedError


def register_prefetch_policy(name: str, policy: type[PrefetchPolicy], *, summary: str | None = None,
                             source: str = "Python", knowledge: str = "look_ahead",
                             parameters: Iterable[Parameter] = ()) -> None:
    """Registers `policy`, a subclass of PrefetchPolicy, as `register_eviction_policy` does."""
    register("prefetch", PrefetchPolicy, name, policy, summary, source, knowledge, parameters,
             False)


def unregister_prefetch_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("prefetch", name)


class OrderPolicy:
    """Chooses which waiting request is admitted next. Register subclasses with
    `register_order_policy`. `queue` has first, end, waiting(position), entry(position),
    priority(position) and, in a system of blocks, stored_tokens(position) and common_prefix(a, b).
    A position from first to end - 1 may be empty."""

    # Whether requests preempt running requests of lower priority.
    preempts_by_priority = False

    def begin_batch(self, queue: _core.QueueView) -> None:
        """In a system of blocks: called before `next` chooses the requests of a batch."""

    def next(self, queue: _core.QueueView) -> int:
        """Returns a position at which a request waits. At least one request waits."""
        raise NotImplementedError

    def window_end(self, queue: _core.QueueView) -> int:
        """Returns the end of the window at the queue's head from which `next` chooses. For a class
        without this method it is the queue's end."""
        return queue.end


def register_order_policy(name: str, policy: type[OrderPolicy], *, summary: str | None = None,
                          source: str = "Python", knowledge: str = "online",
                          parameters: Iterable[Parameter] = ()) -> None:
    """Registers `policy`, a subclass of OrderPolicy, as `register_eviction_policy` does."""
    register("order", OrderPolicy, name, policy, summary, source, knowledge, parameters, False)


def unregister_order_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("order", name)
