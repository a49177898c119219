"""Makes the calls of unit_tables.py on vLLM's own classes."""

import tempfile

import numpy
import vllm_engine
import vllm_worker
from unit_tables import Tokens
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.tiering.example.manager import ExampleSecondaryTierManager
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

VERSION = vllm_engine.VERSION
STEPS_MAX = 1000
STATES = {LookupResult.HIT: "hit", LookupResult.HIT_PENDING: "writing", LookupResult.MISS: "miss"}


class Gpu:
    def __init__(self, system):
        self.block_tokens = system["block_tokens"]
        self.manager = vllm_engine.make_manager(system["gpu_blocks"], self.block_tokens, system.get("caching", True))
        self.maker = vllm_engine.RequestMaker(self.block_tokens)
        self.tokens = Tokens()
        self.requests = {}
        self.hits = {}
        self.popped = []
        vllm_engine.EvictionCounter(self.manager.block_pool, lambda block: self.popped.append(self.hash_of(block)))

    @staticmethod
    def hash_of(block):
        return get_block_hash(block.block_hash)

    def request(self, request, prompt, salt=None, skip_lookup=False):
        # Requests with log probabilities of their prompt are the ones that vLLM looks up nothing for.
        sampling = {"prompt_logprobs": 1} if skip_lookup else {}
        self.requests[request] = self.maker.make(request, self.tokens.of(prompt), 1, cache_salt=salt, sampling=sampling)

    def keys_of(self, request):
        return list(self.requests[request].block_hashes)

    def lookup(self, request):
        blocks, tokens = self.manager.get_computed_blocks(self.requests[request])[:2]
        self.hits[request] = (blocks, tokens)
        return {"hit_tokens": tokens}

    def allocate(self, request, tokens, whole_prompt_must_fit=False):
        entry = self.requests[request]
        blocks, hits = self.hits.pop(request, (None, 0))
        self.popped.clear()
        new = self.manager.allocate_slots(entry, tokens, hits, blocks, full_sequence_must_fit=whole_prompt_must_fit)
        if new is None:
            return {"fits": False}
        entry.num_computed_tokens += hits + tokens
        return {"fits": True, "new_blocks": len(new.blocks[0]), "evicted": list(self.popped)}

    def respond(self, request, tokens):
        self.requests[request].append_output_token_ids(self.tokens.of(tokens))

    def free(self, request):
        self.manager.free(self.requests[request])

    def reset(self):
        return {"done": self.manager.reset_prefix_cache()}

    def state(self):
        pool = self.manager.block_pool
        free = pool.free_block_queue.get_all_free_blocks()
        return {"free_blocks": pool.get_num_free_blocks(), "findable_keys": len(pool.cached_block_hash_to_block),
                "free_without_key": sum(block.block_hash is None for block in free),
                "free_keys": [self.hash_of(block) for block in free if block.block_hash is not None]}


class Cpu:
    def __init__(self, system):
        self.manager = self.tier = CPUOffloadingManager(
            num_chunks=system["cpu_chunks"], cache_policy=system["eviction"],
            store_threshold=system.get("store_threshold", 0), max_tracker_size=system.get("tracker_entries", 64000))
        self.keys = {}
        self.contexts = {}

    def key(self, key):
        made = make_offload_key(str(key).encode(), 0)
        self.keys[made] = key
        return made

    def made(self, keys):
        return [self.key(key) for key in keys]

    def named(self, keys):
        return [self.keys[key] for key in keys]

    def context(self, request):
        if request not in self.contexts:
            self.contexts[request] = ReqContext(req_id=request)
            self.manager.on_new_request(self.contexts[request])
        return self.contexts[request]

    def request(self, request, keys):
        for place, key in enumerate(keys):
            self.context(request).set_offload_key_position(self.key(key), place + 1)

    def lookup(self, keys, request="r"):
        return {"states": [STATES[self.manager.lookup(key, self.context(request))] for key in self.made(keys)]}

    def prepare_store(self, keys, request="r"):
        result = self.manager.prepare_store(self.made(keys), self.context(request))
        if result is None:
            return {"refused": True}
        return {"refused": False, "stored": self.named(result.keys_to_store), "evicted": self.named(result.evicted_keys)}

    def complete_store(self, keys, request="r", good=True):
        self.manager.complete_store(self.made(keys), self.context(request), good)

    def prepare_load(self, keys, request="r"):
        self.manager.prepare_load(self.made(keys), self.context(request))

    def complete_load(self, keys, request="r"):
        self.manager.complete_load(self.made(keys), self.context(request))

    def touch(self, keys, request="r"):
        self.manager.touch(self.made(keys), self.context(request))

    def finish(self, request="r"):
        self.manager.on_request_finished(self.context(request))

    def set_target(self, target):
        self.tier._policy.target_t1_size = target

    def reset(self):
        self.manager.reset_cache()

    def state(self):
        tier = self.tier
        state = {"evictable_chunks": tier._num_evictable_cache_chunks, "free_chunks": tier._get_num_free_chunks(),
                 "offers": {str(self.keys[key]): count for key, count in (tier.counts or {}).items()}}
        if hasattr(tier._policy, "t1"):
            state |= {name: self.named(getattr(tier._policy, name)) for name in ("t1", "t2", "b1", "b2")}
            state["target"] = tier._policy.target_t1_size
        return state


class Region:
    """The memory that the CPU tier shares with the tiers behind it, one row a chunk."""

    def __init__(self, chunks):
        self.rows = numpy.zeros((chunks, 16), dtype=numpy.int8)

    def create_kv_memoryview(self):
        return memoryview(self.rows)


class Tiers(Cpu):
    def __init__(self, system):
        region = Region(system["cpu_chunks"])
        self.tier = CPUPrimaryTierOffloadingManager(num_chunks=system["cpu_chunks"], mmap_region=region,
                                                    cache_policy=system["eviction"])
        self.secondary = [ExampleSecondaryTierManager(offloading_spec=None, primary_kv_view=region.create_kv_memoryview(),
                                                      tier_type="example") for _ in range(system["secondary_tiers"])]
        self.manager = TieringOffloadingManager(primary_tier=self.tier, secondary_tiers=self.secondary)
        self.keys = {}
        self.contexts = {}

    def put(self, tier, keys):
        self.secondary[tier].chunks |= {key: True for key in self.made(keys)}

    def end_step(self):
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))

    def reset_done(self):
        self.manager.on_reset_flushed()

    def state(self):
        return super().state() | {"tiers": [sorted(self.named(tier.chunks)) for tier in self.secondary]}


class Scheduler:
    """The whole scheduler with the CPU offload, and a worker that computes nothing."""

    def __init__(self, system):
        offload = {"offload_prompt_only": system["prompt_only"]} if "prompt_only" in system else None
        with tempfile.TemporaryDirectory() as folder:
            self.scheduler = vllm_engine.make_scheduler(
                folder, system["gpu_blocks"], system["block_tokens"], system["sequences_max"], system["step_tokens"],
                cpu_chunks=system.get("cpu_chunks", 0), eviction=system.get("eviction", "lru"),
                chunk_blocks=system.get("chunk_blocks", 1), offload=offload)
        self.offloading = system.get("cpu_chunks", 0) > 0
        self.worker = vllm_worker.Worker(self.scheduler, self.offloading)
        self.maker = vllm_engine.RequestMaker(system["block_tokens"])
        self.tokens = Tokens()
        self.stored = {}
        if self.offloading:
            manager = vllm_engine.offload_manager(self.scheduler)
            prepare = manager.prepare_store

            def prepared(keys, context):
                result = prepare(keys, context)
                if result is not None and result.keys_to_store:
                    self.stored[context.req_id] = self.stored.get(context.req_id, 0) + len(result.keys_to_store)
                return result

            manager.prepare_store = prepared

    def submit(self, request, prompt, response):
        self.worker.submit(self.maker.make(request, self.tokens.of(prompt), response),
                           self.tokens.of([[f"{request}.response", response]]))

    def step(self, transfers=True):
        self.stored = {}
        preemptions = self.worker.preemptions
        plan = self.worker.step(transfers)
        jobs = plan.kv_connector_metadata.load_jobs.values() if self.offloading else ()
        return {"scheduled": dict(plan.num_scheduled_tokens), "stored_chunks": dict(self.stored),
                "loaded_chunks": {job.req_id: len(job.src_spec.chunk_ids) for job in jobs},
                "preemptions": self.worker.preemptions - preemptions}

    def run(self):
        """Steps until all requests and stores are done; results are totals."""
        totals = {"stored_chunks": {}, "loaded_chunks": {}, "preemptions": 0}
        for _ in range(STEPS_MAX):
            if not self.worker.busy():
                return totals
            step = self.step()
            totals["preemptions"] += step["preemptions"]
            for name in ("stored_chunks", "loaded_chunks"):
                for request, count in step[name].items():
                    totals[name][request] = totals[name].get(request, 0) + count
        raise RuntimeError(f"not done after {STEPS_MAX} steps")

    def reset_gpu(self):
        return {"done": self.scheduler.reset_prefix_cache()}

    def state(self):
        return {"found": {name: [hits, self.worker.found_cpu.get(name, 0)]
                          for name, hits in self.worker.found_gpu.items()},
                "running": [request.request_id for request in self.scheduler.running],
                "waiting": [request.request_id for request in self.scheduler.waiting] +
                           [request.request_id for request in getattr(self.scheduler, "skipped_waiting", ())],
                "free_blocks": self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()}


SYSTEMS = {"gpu": Gpu, "cpu": Cpu, "tiers": Tiers, "scheduler": Scheduler}
