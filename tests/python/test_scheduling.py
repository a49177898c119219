import pytest

import kvtier
from conftest import RUN

KINDS = ("admission", "prefetch", "order")
BUILT_IN = {kind: kvtier.policies()[kind] for kind in KINDS}
ADMISSION = "/system/tiers/dram/admission"
PREFETCH = "/system/prefetch"
ORDER = "/system/order"


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Of what a test registers."""
    yield
    for kind in KINDS:
        for name in kvtier.policies()[kind]:
            if name not in BUILT_IN[kind]:
                getattr(kvtier, f"unregister_{kind}_policy")(name)


def same_metrics(pointer, mine, theirs, changes):
    results = [kvtier.simulate(RUN, {**changes, pointer: name}) for name in (theirs, mine)]
    for result in results:
        # A key of tiers with a policy that may refuse.
        result["metrics"]["lost_hits"].pop("not_admitted", None)
    assert results[0]["metrics"] == results[1]["metrics"]
    return results[0]["metrics"]


class SecondHit(kvtier.AdmissionPolicy):
    """What was used twice may enter."""

    def __init__(self):
        self.uses = {}

    def on_use(self, entry):
        self.uses[entry] = self.uses.get(entry, 0) + 1

    def admits(self, entry):
        return self.uses.get(entry, 0) >= 2


def test_an_admission_policy_decides():
    kvtier.register_admission_policy("mine", SecondHit)
    results = [kvtier.simulate(RUN, {ADMISSION: name}) for name in ("always", "mine")]
    hits = [result["metrics"]["hit_rate"]["all_turns"]["total"] for result in results]
    assert 0 < hits[1] < hits[0]

    class Always(kvtier.AdmissionPolicy):
        def admits(self, entry):
            return True

    kvtier.register_admission_policy("mine", Always)
    same_metrics(ADMISSION, "mine", "always", {})


class First(kvtier.OrderPolicy):
    """The request that has waited longest."""

    def next(self, queue):
        return next(at for at in range(queue.first, queue.end) if queue.waiting(at))


def test_an_order_of_python_is_that_of_kvtier():
    kvtier.register_order_policy("mine", First)
    metrics = same_metrics(ORDER, "mine", "fcfs", {"/workload/arrival_rate": "8/s"})
    assert metrics["queueing_seconds"]["mean"] > 0


def test_an_order_must_be_of_a_request_that_waits():
    class Behind(First):
        def next(self, queue):
            return queue.end + 1

    kvtier.register_order_policy("mine", Behind)
    with pytest.raises(ValueError, match="mine.next: expected a position of the queue, got "):
        kvtier.simulate(RUN, {ORDER: "mine"})


class LookAhead(kvtier.PrefetchPolicy):
    """The first waiting entries that fit into the memory, as many as mean ones."""

    def next_fetch(self, queue, context):
        room = context.memory
        for at in range(queue.first, queue.end):
            entry = queue.entry(at) if queue.waiting(at) else None
            if room < context.mean_entry:
                return None
            room -= context.mean_entry
            if entry is not None and context.needs_fetch(entry):
                assert context.fetch_duration(entry) > 0
                return entry
        return None


SLOWER = {"/system": "attentionstore", "/hardware/dram/capacity": "8GiB",
          "/hardware/ssd/capacity": "64GiB", "/workload/arrival_rate": "4/s"}


def test_a_prefetch_policy_of_python_fetches():
    kvtier.register_prefetch_policy("mine", LookAhead)
    fetched = [kvtier.simulate(RUN, {**SLOWER, PREFETCH: name})["metrics"]["hit_rate"]
               for name in ("none", "mine")]
    assert fetched[1]["all_turns"]["dram"] > fetched[0]["all_turns"]["dram"]


def test_a_fetch_must_be_of_what_needs_one():
    class Wrong(kvtier.PrefetchPolicy):
        def next_fetch(self, queue, context):
            return 4000000

    kvtier.register_prefetch_policy("mine", Wrong)
    with pytest.raises(ValueError, match="mine.next_fetch: expected None, an entry of the queue"):
        kvtier.simulate(RUN, {**SLOWER, PREFETCH: "mine"})


def test_a_position_may_be_an_integer_of_numpy():
    numpy = pytest.importorskip("numpy")

    class Numpy(First):
        def next(self, queue):
            return numpy.int64(super().next(queue))

    kvtier.register_order_policy("mine", Numpy)
    same_metrics(ORDER, "mine", "fcfs", {"/workload/arrival_rate": "8/s"})


@pytest.mark.parametrize("ask, error, message", [
    (lambda context: context.needs_fetch(10**6), IndexError, "there is no entry 1000000"),
    (lambda context: context.fetch_duration(10**6), IndexError, "there is no entry 1000000"),
    (lambda context: context.fetch_duration(0), ValueError, "entry 0 needs no fetch"),
])
def test_questions_about_other_entries_are_errors(ask, error, message):
    class Asks(LookAhead):
        def next_fetch(self, queue, context):
            positions = range(queue.first, queue.end)
            known = any(queue.entry(at) is not None for at in positions if queue.waiting(at))
            if known and not context.needs_fetch(0):
                ask(context)
            return None

    kvtier.register_prefetch_policy("mine", Asks)
    with pytest.raises(error, match=message):
        kvtier.simulate(RUN, {**SLOWER, PREFETCH: "mine"})


def test_what_a_call_showed_may_not_be_used_later():
    class Keeps(First):
        kept = None

        def next(self, queue):
            Keeps.kept = queue
            return super().next(queue)

    kvtier.register_order_policy("mine", Keeps)
    kvtier.simulate(RUN, {ORDER: "mine"})
    with pytest.raises(RuntimeError, match="queue: the call that it was given to is over"):
        _ = Keeps.kept.first
