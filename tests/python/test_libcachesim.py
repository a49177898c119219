"""Eviction policies beside those of libCacheSim, request by request: entries of equal size in one
tier, and a replay without a clock.

lru, fifo, sieve and lfu hit the same requests. s3fifo and arc differ from libCacheSim's for reasons
that `s3fifo_model` and `arc_model` state: each has both variants, which give exactly the hits of
kvtier and of libCacheSim."""

import collections
import csv
import json
import random

import pytest

libcachesim = pytest.importorskip(
    "libcachesim", reason="libcachesim is not installed: pip install '.[cachesim]'")

TRACES = 100
REQUESTS = 300
# Tokens of KV that an entry is charged, whatever it holds, and their bytes in llama2-7b.
WINDOW = 4096
ENTRY_BYTES = WINDOW * 2 * 32 * 4096 * 2

SAME = {"lru": libcachesim.LRU, "fifo": libcachesim.FIFO, "sieve": libcachesim.Sieve,
        "lfu": libcachesim.LFU}
OTHER = {"s3fifo": libcachesim.S3FIFO, "arc": libcachesim.ARC}


def random_trace(seed):
    """Requests of objects with Zipf's popularity, and a capacity in entries. libCacheSim's S3-FIFO
    stores nothing where its small queue, a tenth of the cache, has no room for two."""
    draw = random.Random(seed)
    objects = draw.randint(30, 150)
    skew = draw.uniform(0.2, 1.2)
    weights = [(rank + 1) ** -skew for rank in range(objects)]
    return draw.choices(range(objects), weights, k=REQUESTS), draw.randint(20, 59)


def hits_of_libcachesim(policy, requests, capacity):
    cache = {**SAME, **OTHER}[policy](capacity, hashpower=12)
    request = libcachesim.Request()
    request.obj_size = 1
    hits = []
    for number in requests:
        request.obj_id = number
        hits.append(cache.get(request))
    return hits


def hits_of_kvtier(program, folder, policy, requests, capacity):
    """A request is a turn of the session with its number; one in each second."""
    with open(folder / "trace.csv", "w", encoding="utf-8") as file:
        file.write("arrival,session,input_tokens,output_tokens\n")
        file.writelines(f"{second},{number},1,1\n" for second, number in enumerate(requests))
    config = {
        "model": "llama2-7b",
        "hardware": {"preset": "h200", "dram": {"capacity": f"{capacity * ENTRY_BYTES}B"}},
        "system": {"preset": "attentionstore_lru", "prefetch": "none",
                   "tiers": {"ssd": "none", "dram": {"eviction": policy, "free_buffer": "0B"}}},
        "serving": {"kv_reservation": "context_window"},
        "workload": {"trace": "trace.csv", "format": "request_log", "warmup_turns": 0,
                     "arrivals": "trace", "think_time": {"model": "logged"}},
    }
    (folder / "run.json").write_text(json.dumps(config))
    done = program("simulate", folder / "run.json", "--untimed", "--requests", folder / "hits.csv")
    assert done.returncode == 0, done.stderr
    with open(folder / "hits.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Sessions are numbered as they first come.
    numbers = {number: place for place, number in enumerate(dict.fromkeys(requests))}
    assert [int(row["session"]) for row in rows] == [numbers[number] for number in requests]
    return [row["found_in"] == "dram" for row in rows]


def s3fifo_model(requests, capacity, *, of_libcachesim):
    """S3-FIFO (Yang and others, SOSP 2023), a tenth of the cache for the small queue.

    kvtier: the small queue gives up entries while it has a tenth of what is held, and after each
    that goes on to the main queue this is asked anew; a newcomer's ghost is looked up after room was
    made, and every newcomer without one enters the small queue.

    libCacheSim: the main queue gives up entries while it has more than nine tenths, the small queue
    does otherwise, and goes on until one of its entries leaves; the ghost is looked up first; until
    the cache is full for the first time, newcomers for whom the small queue has no room enter the
    main queue. The ghosts are as many, rounded down, in both."""
    small, main = collections.OrderedDict(), collections.OrderedDict()  # to the number of uses
    ghosts = collections.OrderedDict()
    small_room = int(capacity * 0.1)
    has_evicted = False

    def leave_small():
        """Whether the oldest of the small queue left; else it went on to the main queue."""
        number, uses = small.popitem(last=False)
        if uses > 1:
            main[number] = 0
            return False
        ghosts[number] = None
        while len(ghosts) > int((1 - 0.1) * capacity):
            ghosts.popitem(last=False)
        return True

    def leave_main():
        """Whether the oldest of the main queue left; else it went round again."""
        number, uses = main.popitem(last=False)
        if uses > 0:
            main[number] = min(uses, 3) - 1
        return uses == 0

    def make_room():
        if of_libcachesim:
            leave = leave_main if len(main) > capacity - small_room or not small else leave_small
            while len(small) + len(main) == capacity:
                while (small if leave is leave_small else main) and not leave():
                    pass
                leave = leave_main
            return
        while len(small) + len(main) == capacity:
            is_small = small and (len(small) >= 0.1 * capacity or not main)
            (leave_small if is_small else leave_main)()

    hits = []
    for number in requests:
        queue = small if number in small else main
        hits.append(number in queue)
        if hits[-1]:
            queue[number] += 1
            continue
        came_back = of_libcachesim and ghosts.pop(number, 0) is None
        if len(small) + len(main) == capacity:
            has_evicted = True
            make_room()
        came_back = came_back or (not of_libcachesim and ghosts.pop(number, 0) is None)
        fills = of_libcachesim and not has_evicted and len(small) >= small_room
        (main if came_back or fills else small)[number] = 0
    return hits


def arc_model(requests, capacity, *, of_libcachesim):
    """ARC (Megiddo and Modha, FAST 2003): T1 and T2, their ghosts B1 and B2, and T1's target.

    libCacheSim is the paper's: a ghost that comes back moves the target before room is made, and
    one of B2 lets T1 give up an entry where T1 has just its target.

    kvtier makes room before it knows for whom: the target moves after the victim was chosen, by the
    ratio of the lists with the victim among them, T1 gives up an entry where it has more than its
    target, and the lists of ghosts are cut when the newcomer is there."""
    resident = [collections.OrderedDict(), collections.OrderedDict()]  # T1, T2
    ghosts = [collections.OrderedDict(), collections.OrderedDict()]  # B1, B2
    target = 0

    def replace(may_be_equal=False):
        once = len(resident[0])
        which = 0 if once > target or (may_be_equal and once == target) else 1
        which = which if resident[which] else 1 - which
        victim, _ = resident[which].popitem(last=False)
        ghosts[which][victim] = None

    def ghost_of(number):
        return next((which for which in (0, 1) if number in ghosts[which]), None)

    def move_target(which):
        step = max(1, len(ghosts[1 - which]) / len(ghosts[which]))
        return min(capacity, target + step) if which == 0 else max(0, target - step)

    hits = []
    for number in requests:
        hits.append(any(number in queue for queue in resident))
        if hits[-1]:
            for queue in resident:
                queue.pop(number, None)
            resident[1][number] = None
            continue
        full = len(resident[0]) + len(resident[1]) == capacity
        if of_libcachesim:
            which = ghost_of(number)
            if which is not None:
                target = move_target(which)
                replace(may_be_equal=which == 1)
                del ghosts[which][number]
            elif full and len(resident[0]) == capacity:
                resident[0].popitem(last=False)
            elif full:
                if len(resident[0]) + len(ghosts[0]) == capacity:
                    ghosts[0].popitem(last=False)
                elif len(ghosts[0]) + len(ghosts[1]) == capacity:
                    ghosts[1].popitem(last=False)
                replace()
        else:
            if full:
                replace()
            which = ghost_of(number)
            if which is not None:
                target = move_target(which)
                del ghosts[which][number]
        resident[0 if which is None else 1][number] = None
        if not of_libcachesim:
            while len(ghosts[0]) > len(resident[1]):
                ghosts[0].popitem(last=False)
            while len(ghosts[0]) + len(ghosts[1]) > len(resident[0]) + len(resident[1]):
                ghosts[1].popitem(last=False)
    return hits


@pytest.mark.parametrize("policy", SAME)
def test_it_hits_the_requests_that_libcachesim_hits(policy, kvtier_program, tmp_path):
    total = 0
    for seed in range(TRACES):
        requests, capacity = random_trace(seed)
        hits = hits_of_kvtier(kvtier_program, tmp_path, policy, requests, capacity)
        assert hits == hits_of_libcachesim(policy, requests, capacity), f"seed {seed}"
        total += sum(hits)
    # Traces on which nothing is found, or nothing is lost, would show nothing.
    assert 0.2 < total / (TRACES * REQUESTS) < 0.8


@pytest.mark.parametrize("policy, model", [("s3fifo", s3fifo_model), ("arc", arc_model)])
def test_it_differs_from_libcachesim_as_its_model_says(policy, model, kvtier_program, tmp_path):
    different = 0
    for seed in range(TRACES):
        requests, capacity = random_trace(seed)
        ours = hits_of_kvtier(kvtier_program, tmp_path, policy, requests, capacity)
        theirs = hits_of_libcachesim(policy, requests, capacity)
        assert ours == model(requests, capacity, of_libcachesim=False), f"kvtier's, seed {seed}"
        assert theirs == model(requests, capacity, of_libcachesim=True), f"libCacheSim's, seed {seed}"
        different += ours != theirs
    # Else the two variants of the model would not be told apart.
    assert different > 0
