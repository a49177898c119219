"""Admission, prefetch and order policies written in Python. A policy keeps to what the classes of
eviction policies keep to: decisions depend on its calls and its constructor's arguments alone, and
the contract is that of sim/policy/README.md. Times are nanoseconds, positions in the queue numbers
of which the smaller is sooner."""

from collections.abc import Iterable

from . import _core
from .declared import Parameter, register, unregister


class AdmissionPolicy:
    """Chooses what may enter a tier; a subclass is registered by `register_admission_policy`.
    Entries are their keys, which stay the same over a whole run."""

    def on_use(self, entry: int) -> None:
        """A turn has used or made this entry, wherever it is."""

    def admits(self, entry: int) -> bool:
        """Whether the entry may come in."""
        raise NotImplementedError

    def replaces(self, newcomer: int, victim: int) -> bool:
        """Whether the newcomer may cost the victim its place. A class without this method says
        yes."""
        return True


def register_admission_policy(name: str, policy: type[AdmissionPolicy], *,
                              summary: str | None = None, source: str = "Python",
                              parameters: Iterable[Parameter] = ()) -> None:
    """Makes `policy`, a subclass of AdmissionPolicy, known to configs as `name` from now on; the
    rest is as for `register_eviction_policy`."""
    register("admission", AdmissionPolicy, name, policy, summary, source, "online", parameters,
             False)


def unregister_admission_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("admission", name)


class PrefetchPolicy:
    """Chooses what is brought nearer before it is asked for; a subclass is registered by
    `register_prefetch_policy`. Entries are numbers, used again once they are free."""

    def on_demoted(self, entry: int, position: int | None) -> None:
        """The entry of the request that waits at `position` was moved to a slower tier."""

    def next_fetch(self, queue: _core.QueueView,
                   context: _core.PrefetchContext) -> int | tuple[int, int] | None:
        """The next entry to fetch, `(entry, time)` for one that is not to be fetched before that
        time, or None. Called again after every change, so an answer may be repeated until the fetch
        has started. `queue` is a QueueView: first, end, window_end, waiting(position),
        entry(position), priority(position). `context` is a PrefetchContext: now, memory and
        mean_entry (bytes), tpot, running, needs_fetch(entry), fetch_duration(entry)."""
        raise NotImplementedError


def register_prefetch_policy(name: str, policy: type[PrefetchPolicy], *, summary: str | None = None,
                             source: str = "Python", knowledge: str = "look_ahead",
                             parameters: Iterable[Parameter] = ()) -> None:
    """Makes `policy`, a subclass of PrefetchPolicy, known to configs as `name` from now on; the
    rest is as for `register_eviction_policy`."""
    register("prefetch", PrefetchPolicy, name, policy, summary, source, knowledge, parameters,
             False)


def unregister_prefetch_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("prefetch", name)


class OrderPolicy:
    """Chooses which waiting request is admitted next; a subclass is registered by
    `register_order_policy`. `queue` is a QueueView: first, end, waiting(position), entry(position),
    priority(position) and, in a system of blocks, stored_tokens(position) and common_prefix(a, b).
    A position from first to end - 1 may be empty."""

    # Whether running requests give way by priority.
    preempts_by_priority = False

    def begin_batch(self, queue: _core.QueueView) -> None:
        """In a system of blocks: requests are about to be chosen for a batch, one by one."""

    def next(self, queue: _core.QueueView) -> int:
        """A position at which a request waits; there is one."""
        raise NotImplementedError

    def window_end(self, queue: _core.QueueView) -> int:
        """The end of the window at the queue's head from which `next` chooses. A class without this
        method chooses from all of the queue."""
        return queue.end


def register_order_policy(name: str, policy: type[OrderPolicy], *, summary: str | None = None,
                          source: str = "Python", knowledge: str = "online",
                          parameters: Iterable[Parameter] = ()) -> None:
    """Makes `policy`, a subclass of OrderPolicy, known to configs as `name` from now on; the rest
    is as for `register_eviction_policy`."""
    register("order", OrderPolicy, name, policy, summary, source, knowledge, parameters, False)


def unregister_order_policy(name: str) -> None:
    """Forgets a policy that was registered."""
    unregister("order", name)
