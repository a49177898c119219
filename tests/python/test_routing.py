import pytest

import kvtier

BUILT_IN = kvtier.policies()["routing"]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Of what a test registers."""
    yield
    for name in kvtier.policies()["routing"]:
        if name not in BUILT_IN:
            kvtier.unregister_routing_policy(name)


class Fewest(kvtier.RoutingPolicy):
    """The instance with the fewest requests goes first, by the router's own count."""

    blocks = True

    def on_start(self, instances, block_tokens, phase):
        self.requests = [0] * instances

    def choose(self, request, view):
        return min(view.candidates, key=lambda instance: (self.requests[instance], instance))

    def on_dispatched(self, request, instance, now):
        self.requests[instance] += 1

    def on_finished(self, request, instance, now):
        self.requests[instance] -= 1

    def check_invariants(self, requests_in_flight):
        assert sum(self.requests) == requests_in_flight, "requests in flight differ"


def problems_of(policy, **declaration):
    kvtier.register_routing_policy("mine", policy, **declaration)
    return kvtier.check_routing_policy("mine")


def test_the_conformance_suite_passes():
    assert problems_of(Fewest) == []
    assert "mine" in kvtier.policies()["routing"]


def test_an_instance_may_be_an_integer_of_numpy():
    numpy = pytest.importorskip("numpy")

    class Numpy(Fewest):
        def choose(self, request, view):
            return numpy.int64(super().choose(request, view))

    assert problems_of(Numpy) == []


@pytest.mark.parametrize("name", ["round_robin", "dynamo_kv"])
def test_the_policies_of_kvtier_are_checked_too(name):
    assert kvtier.check_routing_policy(name) == []


def test_it_is_shown_requests_loads_and_blocks():
    seen = {"blocks": set(), "sessions": set(), "loads": [], "calls": set(), "random": set()}

    class Looks(Fewest):
        block_events = True

        def on_start(self, instances, block_tokens, phase):
            super().on_start(instances, block_tokens, phase)
            seen["calls"].add((instances, block_tokens, phase))

        def on_joined(self, instance, now):
            seen["calls"].add("joined")

        def on_lost(self, instance, now):
            seen["calls"].add("lost")

        def on_first_token(self, request, instance, now):
            seen["calls"].add("first token")

        def on_blocks_stored(self, instance, medium, blocks, now):
            seen["calls"].add(("stored", instance, medium))
            seen["blocks"].update(blocks)

        def on_blocks_removed(self, instance, medium, blocks, now):
            seen["calls"].add("removed")

        def choose(self, request, view):
            assert isinstance(request, kvtier.RoutedRequest)
            assert len(request.blocks) <= request.prompt
            seen["blocks"].update(request.blocks)
            seen["sessions"].add(request.session)
            seen["loads"].append(view.load(view.candidates[0]))
            seen["random"].add(view.random_index(1000))
            assert 0 <= view.random() < 1 and view.now >= 0
            return super().choose(request, view)

    assert problems_of(Looks) == []
    assert {(5, 16, "both"), (3, 16, "decode"), "joined", "lost", "first token", "removed",
            ("stored", None, "gpu"), ("stored", 0, "disk")} <= seen["calls"]
    assert None in seen["sessions"] and 3 in seen["sessions"]
    assert len(seen["blocks"]) > 20 and len(seen["random"]) > 100
    assert max(load.requests for load in seen["loads"]) > 1
    assert all(load.alive and load.prefill_tokens >= load.prefill_blocks for load in seen["loads"])


def test_no_candidate_is_refused():
    class Lost(Fewest):
        def choose(self, request, view):
            return 0

    problems = problems_of(Lost)
    assert any("mine.choose: expected one of the candidates, got 0" in problem
               for problem in problems)

    class Nothing(Fewest):
        def choose(self, request, view):
            return None

    assert "got None" in problems_of(Nothing)[0]


def test_bookkeeping_that_differs_is_found():
    class Forgets(Fewest):
        def on_finished(self, request, instance, now):
            pass

    assert "mine.check_invariants: AssertionError: requests in flight differ" in \
        problems_of(Forgets)[0]


def test_an_exception_is_named():
    class Raises(Fewest):
        def choose(self, request, view):
            raise ZeroDivisionError("of a policy")

    assert problems_of(Raises)[0] == \
        "EveryChoiceIsACandidate (defaults): the policy throws ZeroDivisionError: of a policy"

    class Interrupted(Fewest):
        def choose(self, request, view):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        problems_of(Interrupted)


def test_the_view_of_a_call_ends_with_it():
    kept = []

    class Keeps(Fewest):
        def choose(self, request, view):
            kept.append(view)
            return super().choose(request, view)

    assert problems_of(Keeps) == []
    with pytest.raises(RuntimeError, match="its choose.. is over"):
        kept[0].candidates


def test_parameters_are_arguments_of_the_constructor():
    given = set()

    class Takes(Fewest):
        def __init__(self, window=7.0):
            given.add(window)

    window = kvtier.Parameter("window", "how far", "requests", 1, 10, default=7)
    assert problems_of(Takes, parameters=[window]) == []
    assert given == {7.0, 1.0, 6.0, 10.0}


def test_names_of_kvtier_and_what_is_no_policy_are_refused():
    with pytest.raises(ValueError, match="kvtier has a routing policy of the name 'random'"):
        kvtier.register_routing_policy("random", Fewest)
    with pytest.raises(TypeError, match="a subclass of kvtier.RoutingPolicy"):
        kvtier.register_routing_policy("mine", kvtier.EvictionPolicy)
    # An eviction policy of that name is another policy.
    kvtier.register_routing_policy("lru", Fewest)
    assert kvtier.check_routing_policy("lru") == []
    with pytest.raises(kvtier.ConfigError, match="there is no routing policy"):
        kvtier.check_routing_policy("fifo")
