"""Makes one oracle file: what vLLM's own code finds for each request of a trace. Run by check_engines.py."""

import argparse
import json
import pathlib
import tempfile
import time

import oracle_files
import vllm_engine
import vllm_worker

HELD_REQUESTS = 32
STEP_TOKENS = 8192
IDLE_STEPS_MAX = 50


def run_manager(requests, variant, block, usable_blocks):
    """The cache manager without a scheduler, one request after the other.

    prompt   a request frees its blocks as soon as its prompt is allocated
    output   the same after its response, whose last token is never written
    fifo32   32 requests keep their blocks; a new one frees the oldest, and more until it fits
    """
    manager = vllm_engine.make_manager(usable_blocks, block)
    counter = vllm_engine.EvictionCounter(manager.block_pool)
    maker = vllm_engine.RequestMaker(block)
    found, evictions, forced, held = [], [], [], []
    forced_frees = 0
    for line in requests:
        request = maker.make(line.index, line.prompt(), line.response_length)
        if variant == "fifo32" and len(held) == HELD_REQUESTS:
            manager.free(held.pop(0))
        while True:
            blocks, hits = manager.get_computed_blocks(request)[:2]
            if manager.allocate_slots(request, line.prompt_length - hits, hits, blocks) is not None:
                break
            if not held:
                raise RuntimeError(f"request {line.index} does not fit an empty cache of {usable_blocks} blocks")
            manager.free(held.pop(0))
            forced_frees += 1
        request.num_computed_tokens = line.prompt_length
        found.append(hits)
        evictions.append(counter.evictions)
        forced.append(forced_frees)
        if variant == "output":
            request.append_output_token_ids(line.response())
            if line.response_length > 1:
                if manager.allocate_slots(request, line.response_length - 1) is None:
                    raise RuntimeError(f"the response of request {line.index} does not fit")
                request.num_computed_tokens += line.response_length - 1
        if variant == "fifo32":
            held.append(request)
        else:
            manager.free(request)
    return found, evictions, forced, counter.evictions, len(manager.block_pool.cached_block_hash_to_block)


def manager_file(options, requests, name):
    columns = [("req", [r.index for r in requests]), ("prompt_tokens", [r.prompt_length for r in requests])]
    prompt_tokens = sum(r.prompt_length for r in requests)
    totals = []
    for capacity in options.capacities.split(","):
        tokens = None if capacity == "inf" else int(capacity)
        usable = tokens // options.block if tokens is not None else 64 + sum(
            -(-(r.prompt_length + r.response_length) // options.block) for r in requests)
        found, evictions, forced, last_evictions, cached = run_manager(requests, options.variant, options.block, usable)
        size = oracle_files.size_name(tokens)
        columns += [(f"hit_{size}", found), (f"evict_cum_{size}", evictions)]
        if options.variant == "fifo32":
            columns.append((f"forced_cum_{size}", forced))
        totals.append(dict(
            engine=f"vllm-{vllm_engine.VERSION}", what=f"KVCacheManager/{options.variant}", trace=name, n=len(requests),
            block=options.block, cap_tokens=capacity, usable_blocks=usable, hit_tokens=sum(found),
            prompt_tokens=prompt_tokens, hit_rate=round(sum(found) / prompt_tokens, 6), evictions=last_evictions,
            forced_frees=forced[-1], cached_blocks_end=cached))
    return f"vllm_mgr_{options.variant}_{name}_b{options.block}", columns, totals


def run_scheduler(options, requests):
    block = options.block
    with tempfile.TemporaryDirectory() as folder:
        scheduler = vllm_engine.make_scheduler(folder, options.gpu // block, block, options.sequences, STEP_TOKENS,
                                               cpu_chunks=options.cpu // block, eviction=options.policy)
    worker = vllm_worker.Worker(scheduler, offloading=options.cpu > 0)
    counter = vllm_engine.EvictionCounter(scheduler.kv_cache_manager.block_pool)
    stores = StoreCounter(vllm_engine.offload_manager(scheduler)) if options.cpu else StoreCounter(None)
    maker = vllm_engine.RequestMaker(block)
    following, idle = 0, 0
    while following < len(requests) or worker.busy():
        # One at a time: the next request comes when all transfers of the one before are done, since the scheduler would
        # admit it during a load. Else enough of them wait for the scheduler never to see the end of its queue.
        while following < len(requests) and (
                not worker.busy() if options.sequences == 1 else
                len(scheduler.waiting) < 2 * options.sequences + 8):
            line = requests[following]
            response = line.response() if options.variant == "output" else []
            response = response or [oracle_files.FIRST_GENERATED_TOKEN + line.index * oracle_files.GENERATED_TOKENS_MAX]
            worker.submit(maker.make(line.index, line.prompt(), len(response), arrival_time=float(line.index)), response)
            following += 1
        plan = worker.step()
        idle = 0 if plan.num_scheduled_tokens or worker.moved else idle + 1
        if idle == IDLE_STEPS_MAX:
            raise RuntimeError(f"nothing happened in {IDLE_STEPS_MAX} steps")
    return worker, counter, stores


class StoreCounter:
    def __init__(self, manager):
        self.stored = self.evicted = self.refused = 0
        if manager is None:
            return
        prepare = manager.prepare_store

        def counted(*arguments, **named):
            result = prepare(*arguments, **named)
            if result is None:
                self.refused += 1
            else:
                self.stored += len(result.keys_to_store)
                self.evicted += len(result.evicted_keys)
            return result

        manager.prepare_store = counted


def scheduler_file(options, requests, name):
    worker, counter, stores = run_scheduler(options, requests)
    gpu = [worker.found_gpu[str(r.index)] for r in requests]
    cpu = [worker.found_cpu.get(str(r.index), 0) for r in requests]
    prompt_tokens = sum(r.prompt_length for r in requests)
    policy = options.policy if options.cpu else "none"
    offload = f"+OffloadingConnector/{policy}" if options.cpu else ""
    totals = [dict(
        engine=f"vllm-{vllm_engine.VERSION}", what=f"Scheduler{offload}/seqs{options.sequences}/{options.variant}",
        trace=name, n=len(requests), block=options.block, gpu_tokens=options.gpu, cpu_tokens=options.cpu,
        hit_gpu=sum(gpu), hit_cpu=sum(cpu), hit_tokens=sum(gpu) + sum(cpu), prompt_tokens=prompt_tokens,
        hit_rate=round((sum(gpu) + sum(cpu)) / prompt_tokens, 6), hit_rate_gpu=round(sum(gpu) / prompt_tokens, 6),
        hit_rate_cpu=round(sum(cpu) / prompt_tokens, 6), evictions=counter.evictions, cpu_evictions=stores.evicted,
        cpu_stores=stores.stored, failed_stores=stores.refused, preemptions=worker.preemptions, steps=worker.steps)]
    sizes = oracle_files.tier_sizes_name(options.gpu, options.cpu)
    columns = [("req", [r.index for r in requests]), ("prompt_tokens", [r.prompt_length for r in requests]),
               ("hit_gpu", gpu), ("hit_cpu", cpu)]
    return f"vllm_sched_{name}_{sizes}_{policy}_seqs{options.sequences}_{options.variant}", columns, totals


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["manager", "scheduler"])
    parser.add_argument("--trace", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--variant", choices=["prompt", "output", "fifo32"], required=True)
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--capacities", default="inf")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--sequences", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    requests = oracle_files.read_trace(options.trace)
    name = oracle_files.trace_name(options.trace)
    make = manager_file if options.what == "manager" else scheduler_file
    file_name, columns, totals = make(options, requests, name)
    out = pathlib.Path(options.out)
    oracle_files.write_columns(out / f"{file_name}.csv.gz", columns)
    print(json.dumps({"file": f"{file_name}.csv.gz", "seconds": round(time.monotonic() - started, 1), "totals": totals}))


if __name__ == "__main__":
    main()
