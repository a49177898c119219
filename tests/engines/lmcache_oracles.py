"""Makes one oracle file: what LMCache's own CPU backend finds for each request of a trace. Run by check_engines.py.

One request after the other, in the order of LMCacheEngine's lookup, retrieve and store: the leading chunks are looked up and
pinned, read and unpinned, and the chunks behind the first miss are stored one by one. No GPU cache is in front of it.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import time

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import torch

import oracle_files
import stand_ins

stand_ins.install("lmcache", ["lmcache.usage_telemetry", "lmcache.v1.mp_observability"])

from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.paged_tensor_memory_allocator import PagedTensorMemoryAllocator
from lmcache.v1.pin_monitor import PinMonitor
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

VERSION = importlib.metadata.version("lmcache")
# A chunk's memory: one byte, so that capacities are numbers of chunks.
SHAPES, TYPES = [torch.Size([1])], [torch.uint8]


def keys_of(request, chunk):
    """Full chunks only. Chunks of one id of the trace have numbers of their own."""
    parts = oracle_files.TRACE_BLOCK // chunk
    return [CacheEngineKey("model", 1, 0, request.ids[i // parts] * parts + i % parts, torch.float16)
            for i in range(request.prompt_length // chunk)]


def make_backend(policy, chunks):
    config = LMCacheEngineConfig.from_defaults(cache_policy=policy.upper(), local_cpu=True)
    # As LMCacheEngine does; it frees what stays pinned for minutes.
    PinMonitor.GetOrCreate(config)
    allocator = PagedTensorMemoryAllocator(torch.zeros(chunks, dtype=torch.uint8), SHAPES, TYPES)
    return LocalCPUBackend(config, memory_allocator=allocator), allocator


class EvictionCounter:
    def __init__(self, backend):
        self.evictions = 0
        self._remove = backend.batched_remove
        backend.batched_remove = self._count

    def _count(self, keys, *arguments, **named):
        self.evictions += len(keys)
        return self._remove(keys, *arguments, **named)


def serve(backend, keys):
    """Returns the number of chunks that were found."""
    found = 0
    while found < len(keys) and backend.contains(keys[found], pin=True):
        found += 1
    backend.touch_cache()
    for key in keys[:found]:
        backend.get_blocking(key).ref_count_down()
        backend.unpin(key)
    stored, chunks = [], []
    for key in keys[found:]:
        chunk = backend.allocate(SHAPES, TYPES, busy_loop=False)
        if chunk is None:
            # The chunks that had room stay.
            break
        stored.append(key)
        chunks.append(chunk)
    backend.batched_submit_put_task(stored, chunks)
    for chunk in chunks:
        chunk.ref_count_down()
    return found


def run(options, requests, chunks):
    backend, allocator = make_backend(options.policy, chunks)
    counter = EvictionCounter(backend)
    found, evictions = [], []
    for request in requests:
        found.append(serve(backend, keys_of(request, options.chunk)) * options.chunk)
        evictions.append(counter.evictions)
    free = len(allocator.free_blocks)
    if free + len(backend.hot_cache) != chunks:
        raise RuntimeError(f"{free} chunks are free and {len(backend.hot_cache)} are stored, of {chunks}")
    return found, evictions, len(backend.hot_cache)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--policy", choices=["lru", "lfu", "fifo"], default="lru")
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--capacities", default="inf")
    options = parser.parse_args()
    started = time.monotonic()
    requests = oracle_files.read_trace(options.trace)
    name = oracle_files.trace_name(options.trace)
    columns = [("req", [r.index for r in requests]), ("prompt_tokens", [r.prompt_length for r in requests])]
    prompt_tokens = sum(r.prompt_length for r in requests)
    totals = []
    for capacity in options.capacities.split(","):
        tokens = None if capacity == "inf" else int(capacity)
        chunks = sum(r.prompt_length // options.chunk for r in requests) + 1 if tokens is None else tokens // options.chunk
        found, evictions, stored = run(options, requests, chunks)
        size = oracle_files.size_name(tokens)
        columns += [(f"hit_{size}", found), (f"evict_cum_{size}", evictions)]
        totals.append(dict(
            engine=f"lmcache-{VERSION}", what=f"LocalCPUBackend/{options.policy.upper()}", trace=name, n=len(requests),
            block=options.chunk, cap_tokens=capacity, hit_tokens=sum(found), prompt_tokens=prompt_tokens,
            hit_rate=round(sum(found) / prompt_tokens, 6),
            hit_capped=sum(min(hits, r.prompt_length - 1) for hits, r in zip(found, requests)),
            evictions=evictions[-1], cached_blocks_end=stored))
    file_name = f"lmcache_{options.policy}_{name}_c{options.chunk}"
    oracle_files.write_columns(pathlib.Path(options.out) / f"{file_name}.csv.gz", columns)
    print(json.dumps({"file": f"{file_name}.csv.gz", "seconds": round(time.monotonic() - started, 1), "totals": totals}))


if __name__ == "__main__":
    main()
