import pytest

import kvtier
from conftest import RUN
from policies import Lru

EVICTION = "/system/tiers/dram/eviction"


@pytest.fixture(autouse=True)
def python_lru():
    """Lru under a name, and nothing left of what a test registers."""
    kvtier.register_eviction_policy("python_lru", Lru)
    yield
    for name in kvtier.policies()["eviction"]:
        if name not in BUILT_IN:
            kvtier.unregister_eviction_policy(name)


BUILT_IN = kvtier.policies()["eviction"]


@pytest.mark.parametrize("changes", [
    {},
    {"/hardware/dram/capacity": "16GiB", "/workload/sessions": 150},
    {"/system": "attentionstore_fifo", "/hardware/ssd/capacity": "64GiB"},
])
def test_an_lru_of_python_decides_as_that_of_kvtier(changes):
    results = [kvtier.simulate(RUN, {**changes, EVICTION: name}) for name in ("lru", "python_lru")]
    assert results[0]["metrics"]["tiers"]["dram"]["evictions"] > 0
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["workload"] == results[1]["workload"]


def test_every_call_of_a_random_sequence_is_answered_alike():
    untimed = [kvtier.simulate(RUN, {EVICTION: name}, untimed=True)["metrics"]
               for name in ("lru", "python_lru")]
    assert untimed[0] == untimed[1]


def test_it_is_listed():
    assert "python_lru" in kvtier.policies()["eviction"]


@pytest.mark.parametrize("name", ["python_lru", "lru", "scheduler_aware"])
def test_the_conformance_suite_passes(name):
    assert kvtier.check_eviction_policy(name) == []


def test_the_conformance_suite_finds_a_fault():
    class IgnoresOffers(Lru):
        def choose(self, request, victims):
            for entry in self.order:
                if victims.wants_more():
                    victims.add(entry)

    kvtier.register_eviction_policy("ignores_offers", IgnoresOffers)
    problems = kvtier.check_eviction_policy("ignores_offers")
    assert any("is chosen but not offered" in problem for problem in problems)


def test_the_set_of_a_call_ends_with_it():
    kept = []

    class Keeps(Lru):
        def choose(self, request, victims):
            kept.append(victims)
            super().choose(request, victims)

    kvtier.register_eviction_policy("keeps_sets", Keeps)
    kvtier.simulate(RUN, {EVICTION: "keeps_sets"})
    with pytest.raises(RuntimeError, match="its choose.. is over"):
        kept[0].wants_more()


def test_bookkeeping_that_differs_ends_the_run():
    class Forgets(Lru):
        def check_invariants(self, residents):
            assert not residents, "no entry is known"

    kvtier.register_eviction_policy("forgets", Forgets)
    with pytest.raises(kvtier.InternalError, match="forgets.check_invariants.*no entry is known"):
        kvtier.simulate(RUN, {EVICTION: "forgets"})


def test_a_policy_need_not_check_its_bookkeeping():
    class Checks(Lru):
        check_invariants = kvtier.EvictionPolicy.check_invariants

    kvtier.register_eviction_policy("checks_nothing", Checks)
    results = [kvtier.simulate(RUN, {EVICTION: name})["metrics"]
               for name in ("checks_nothing", "lru")]
    assert results[0] == results[1]


def test_a_class_without_the_methods_of_its_kind_is_refused():
    class Forgetful(kvtier.EvictionPolicy):
        def on_insert(self, entry, now):
            pass

    with pytest.raises(TypeError, match="^Forgetful: expected a method on_remove, choose$"):
        kvtier.register_eviction_policy("forgetful", Forgetful)
    assert "forgetful" not in kvtier.policies()["eviction"]


def test_integers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")

    class Chooses(Lru):
        def choose(self, request, victims):
            for entry in self.order:
                if victims.wants_more() and victims.offers(numpy.uint32(entry)):
                    victims.add(numpy.uint32(entry))

    kvtier.register_eviction_policy("numpy_lru", Chooses)
    results = [kvtier.simulate(RUN, {EVICTION: name, "/hardware/gpus": gpus}, seed=seed)
               for name, gpus, seed in (("lru", 2, 3),
                                        ("numpy_lru", numpy.int64(2), numpy.int64(3)))]
    assert results[0]["metrics"] == results[1]["metrics"]
    with pytest.raises(TypeError, match="Object of type object is not JSON serializable"):
        kvtier.simulate(RUN, {"/hardware/gpus": object()})


def test_an_exception_of_a_policy_reaches_the_caller():
    class Raises(Lru):
        def on_insert(self, entry, now):
            raise ZeroDivisionError("of a policy")

    kvtier.register_eviction_policy("raises", Raises)
    with pytest.raises(ZeroDivisionError, match="of a policy"):
        kvtier.simulate(RUN, {EVICTION: "raises"})


def test_the_conformance_suite_names_what_a_policy_raises():
    class RaisesOnHits(Lru):
        def on_hit(self, entry, now):
            raise ZeroDivisionError("of a policy")

    kvtier.register_eviction_policy("raises_on_hits", RaisesOnHits)
    problems = kvtier.check_eviction_policy("raises_on_hits")
    assert problems == [
        "SetsAreOfferedAndWorthTheRoom (defaults): the policy throws "
        "ZeroDivisionError: of a policy",
        "EntriesInUseAreKeptAndNotChosen (defaults): the policy throws ZeroDivisionError: of a "
        "policy",
        "BothPartsOfASplitEntryLeave (defaults): the policy throws ZeroDivisionError: of a policy",
        "TheSameCallsGiveTheSameAnswers (defaults): the policy throws ZeroDivisionError: of a policy"]

    class Interrupted(Lru):
        def on_hit(self, entry, now):
            raise KeyboardInterrupt

    kvtier.register_eviction_policy("interrupted", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        kvtier.check_eviction_policy("interrupted")


def test_a_victim_that_is_no_number_is_refused():
    class Names(Lru):
        def choose(self, request, victims):
            victims.add("the first")

    kvtier.register_eviction_policy("names", Names)
    with pytest.raises(TypeError, match="the first"):
        kvtier.simulate(RUN, {EVICTION: "names"})


def test_parameters_come_from_the_config():
    given = []

    class Takes(Lru):
        def __init__(self, window=7.0):
            super().__init__()
            given.append(window)

    kvtier.register_eviction_policy(
        "takes", Takes,
        parameters=[kvtier.Parameter("window", "how far", "entries", 1, 10, default=7)])
    kvtier.simulate(RUN, {EVICTION: "takes"})
    assert given[-1] == 7
    kvtier.simulate(RUN, {EVICTION: {"policy": "takes", "window": 3}})
    assert given[-1] == 3
    with pytest.raises(kvtier.ConfigError, match="window"):
        kvtier.simulate(RUN, {EVICTION: {"policy": "takes", "window": 11}})


def test_only_look_ahead_sees_the_queue():
    changes = []

    class Looks(Lru):
        def on_queue_change(self, entry, position, waits, first):
            changes.append((entry, position, waits, first))

    for knowledge in ("online", "look_ahead"):
        changes.clear()
        kvtier.register_eviction_policy("looks", Looks, knowledge=knowledge)
        kvtier.simulate(RUN, {EVICTION: "looks", "/workload/arrival_rate": "20/s"})
        assert bool(changes) == (knowledge == "look_ahead")


def test_a_name_of_kvtier_is_refused_and_breaks_no_run():
    with pytest.raises(ValueError, match="kvtier has an eviction policy of the name 'fifo' already"):
        kvtier.register_eviction_policy("fifo", Lru)
    kvtier.simulate(RUN)


@pytest.mark.parametrize("number", [1_000_000_000, 2**32 - 1])
@pytest.mark.parametrize("changes", [{}, {"/system": "pensieve"}])
def test_a_victim_that_is_no_entry_ends_the_run(number, changes):
    class Invents(Lru):
        def choose(self, request, victims):
            victims.add(number)

    kvtier.register_eviction_policy("invents", Invents, parts_of_entries=bool(changes))
    eviction = EVICTION.replace("dram", "hbm") if changes else EVICTION
    with pytest.raises(ValueError, match="^invents.choose: .*a victim that was not offered"):
        kvtier.simulate(RUN, {**changes, "/hardware/dram/capacity": "16GiB", eviction: "invents"})


def test_functions_of_on_start_end_with_their_run():
    kept = []

    class Keeps(Lru):
        def on_start(self, recompute, load):
            kept.extend([recompute, load])
            assert recompute(1000) > 0 and load(1000) > 0

    kvtier.register_eviction_policy("keeps", Keeps)
    kvtier.simulate(RUN, {EVICTION: "keeps"})
    for function in kept:
        with pytest.raises(RuntimeError, match="keeps.on_start: its functions belong to a run that "
                                               "is over"):
            function(1000)


def test_an_interrupt_while_a_policy_is_made_is_one():
    class Interrupted(Lru):
        def __init__(self):
            raise KeyboardInterrupt

    kvtier.register_eviction_policy("interrupted", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        kvtier.simulate(RUN)
    kvtier.unregister_eviction_policy("interrupted")


def test_bad_declarations_are_refused_at_once():
    with pytest.raises(TypeError, match="expected a subclass of kvtier.EvictionPolicy"):
        kvtier.register_eviction_policy("mine", dict)
    with pytest.raises(ValueError, match="small letters"):
        kvtier.register_eviction_policy("My policy", Lru)
    with pytest.raises(ValueError, match="knowledge: expected one of online, look_ahead, oracle"):
        kvtier.register_eviction_policy("mine", Lru, knowledge="all")
    assert "mine" not in kvtier.policies()["eviction"]
