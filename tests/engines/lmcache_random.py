"""Makes small random traces and records what LMCache's own CPU backend finds in them, for tests without the engine.

Each line of the output is a trace with oracle tables by name, one a policy. Small caches show what large traces do not:
writes that are larger than the cache, and chunks of one write that would evict each other.
"""

import argparse
import json
import pathlib
import random
import types

import lmcache_oracles
import oracle_files

POLICIES = ["lru", "lfu", "fifo"]
CHUNKS = [64, 128, 256, 512]


def random_trace(source):
    """Requests that repeat, extend or fork from the ones before."""
    ids = iter(range(1, 1 << 30))
    known, lines = [], []
    longest = source.choice([3, 6, 12])
    for _ in range(source.randint(8, 40)):
        if lines and source.random() < 0.25:
            lines.append(source.choice(lines))
            continue
        prefix = source.choice(known) if known and source.random() < 0.7 else []
        prefix = prefix[:source.randint(0, len(prefix))]
        whole = prefix + [next(ids) for _ in range(source.randint(0, max(0, longest - len(prefix))))]
        known.append(whole)
        rest = source.choice([0, source.randint(1, oracle_files.TRACE_BLOCK - 1)]) if whole else source.randint(1, 511)
        lines.append({"input_length": len(whole) * oracle_files.TRACE_BLOCK + rest, "output_length": 1,
                      "hash_ids": whole + ([next(ids)] if rest else [])})
    return lines


def record(lines, source):
    """A trace of these lines, and its tables."""
    requests = [oracle_files.Request(index, line) for index, line in enumerate(lines)]
    tables = {}
    for policy in POLICIES:
        chunk = source.choice(CHUNKS)
        table = {"prompt_tokens": [request.prompt_length for request in requests]}
        for capacity in sorted(source.sample([1, 2, 3, 4, 6, 8, 12], 3)):
            tokens = capacity * oracle_files.KIBI
            options = types.SimpleNamespace(policy=policy, chunk=chunk)
            found, evictions, _ = lmcache_oracles.run(options, requests, tokens // chunk)
            size = oracle_files.size_name(tokens)
            table[f"hit_{size}"], table[f"evict_cum_{size}"] = found, evictions
        tables[f"lmcache_{policy}_random_c{chunk}"] = table
    return {"trace": [{"timestamp": 0, **line} for line in lines], "tables": tables}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="JSON lines, compressed by gzip")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = random.Random(options.seed)
    text = "".join(json.dumps(record(random_trace(source), source), separators=(",", ":")) + "\n"
                   for _ in range(options.cases))
    oracle_files.write_packed(options.out, text)
    print(f"{options.out}: {options.cases} traces, by LMCache {lmcache_oracles.VERSION}")


if __name__ == "__main__":
    main()
