#!/usr/bin/env python3
"""Counts the hits of caches of blocks on a trace of Mooncake's, without kvtier: the expected values of tests.

A request hits the longest run of its first blocks that are there. Then it uses all its blocks, from the last to the first, so
that the end of a prefix leaves before its beginning. A cache is an OrderedDict: LRU in the order of the last use, FIFO in the
order of insertion. The blocks of the running request do not leave.

    count_hits.py TRACE CAPACITY..."""

import collections
import gzip
import json
import sys

BLOCK = 512


def hits_of(requests, capacity, is_lru):
    """Hit blocks and hit tokens."""
    cache = collections.OrderedDict()
    blocks = tokens = 0
    for length, ids in requests:
        hit = next((i for i, b in enumerate(ids) if b not in cache), len(ids))
        blocks += hit
        tokens += min(hit * BLOCK, length)
        own = set(ids)
        for b in reversed(ids):
            if b in cache:
                if is_lru:
                    cache.move_to_end(b)
            else:
                if len(cache) >= capacity:
                    cache.pop(next(c for c in cache if c not in own))
                cache[b] = None
    return blocks, tokens


def main():
    with gzip.open(sys.argv[1], "rt") as lines:
        rows = [json.loads(line) for line in lines]
    requests = [(row["input_length"], row["hash_ids"]) for row in rows]
    print("requests", len(requests), "blocks", sum(len(ids) for _, ids in requests), "distinct",
          len({b for _, ids in requests for b in ids}), "tokens", sum(length for length, _ in requests))
    for capacity in map(int, sys.argv[2:]):
        print(capacity, "lru", *hits_of(requests, capacity, True), "fifo", *hits_of(requests, capacity, False))


if __name__ == "__main__":
    main()
