"""SGLang's own radix trees on a machine without a GPU, in pools that only count tokens.

0.5.23 has RadixCache and UnifiedRadixCache; 0.5.10 has RadixCache and HiRadixCache. Both have the same interface here.
Imported only by Python programs of the virtual environment that has SGLang's wheel.
"""

import hashlib
import importlib.metadata
import importlib.util
import queue
import time
from array import array
from types import SimpleNamespace

import torch

import stand_ins

UNUSED = ["configs", "constrained", "entrypoints", "function_call", "layers", "model_executor", "model_loader", "models",
          "multimodal", "parser", "sampling"]
stand_ins.install("sglang", [f"sglang.srt.{name}" for name in UNUSED])
stand_ins.skip_init("sglang")

from sglang.srt.mem_cache import radix_cache
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

# HiRadixCache is what later versions no longer have.
HAS_HIRADIX = importlib.util.find_spec("sglang.srt.mem_cache.hiradix_cache") is not None
if HAS_HIRADIX:
    from sglang.srt.mem_cache import hiradix_cache
    from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
else:
    from sglang.srt.managers.cache_controller import PrefetchAck
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.mem_cache import utils as cache_utils

VERSION = importlib.metadata.version("sglang")
KINDS = ("radix", "hiradix") if HAS_HIRADIX else ("radix", "unified")
# As in HiRadixCache.__init__ and UnifiedRadixCache.init_hicache.
LEAST_LOAD_TOKENS = 10
USES_BEFORE_WRITE = {"write_through": 1, "write_through_selective": 2, "write_back": 2}

torch.set_num_threads(1)


def chained_hash(token_ids, prior_digest=None, page_size=None):
    """SHA-256 of all tokens, or a chain with one for each page. SGLang compiles its own in C++ when it is first called."""
    tokens = getattr(token_ids, "token_ids", token_ids)[:len(token_ids)]
    digests = [prior_digest or b""]
    for start in range(0, len(tokens), page_size or max(1, len(tokens))):
        page = array("q", tokens[start:start + (page_size or len(tokens))])
        digests.append(hashlib.sha256(digests[-1] + page.tobytes()).digest())
    names = [digest.hex() for digest in digests[1:]]
    return names if page_size else names[-1]


if not HAS_HIRADIX:
    cache_utils.get_native_hash = chained_hash


class Clock:
    """Stands in for the module time: each call is later than the one before, in the same order in every run."""

    def __init__(self):
        self.calls = 0

    def monotonic(self):
        self.calls += 1
        return float(self.calls)

    def __getattr__(self, name):
        return getattr(time, name)


class Pool(BaseTokenToKVPoolAllocator):
    """Counts the tokens that are allocated, in whole pages."""

    def __init__(self, tokens, page):
        super().__init__(tokens // page * page, page, torch.float16, "cpu", None, False)
        self.available = self.size

    def available_size(self):
        return self.available

    def alloc(self, need_size):
        if need_size > self.available:
            return None
        self.available -= need_size
        return torch.zeros(need_size, dtype=torch.int64)

    def free(self, free_index):
        self.available += -(-len(free_index) // self.page_size) * self.page_size

    def free_segment(self, free_index, *, start_pos=0):
        # A page that begins before the segment belongs to somebody else.
        first, last = -(-start_pos // self.page_size), -(-(start_pos + len(free_index)) // self.page_size)
        self.available += (last - first) * self.page_size if len(free_index) else 0

    def clear(self):
        self.available = self.size


class HostPool:
    """Counts the tokens that the host has."""

    # UnifiedRadixCache asks whether other pools share the memory.
    anchor_entry = SimpleNamespace(host_pool=SimpleNamespace(shared_allocation_domain=None), host_evict_fn=None)

    def __init__(self, tokens, page):
        self.page_size = page
        self.size = self.logical_size = self.available = tokens // page * page

    def available_size(self):
        return self.available

    def alloc(self, tokens):
        if tokens > self.available:
            return None
        self.available -= tokens
        return torch.zeros(tokens, dtype=torch.int64)

    def free(self, indices, pool=None):
        self.available += len(indices)

    def clear(self):
        self.available = self.size


class Done:
    """The event of a copy that is done."""

    def query(self):
        return True

    def synchronize(self):
        pass


class Copies:
    """Stands in for HiCacheController: it takes and frees memory as that does, and copies nothing.

    A copy is done when the cache looks for finished copies.
    """

    enable_storage = False
    pp_prefetch_command_group = None

    def __init__(self, pool, host, write_policy):
        self.mem_pool_device_allocator = pool
        self.mem_pool_host = host
        self.write_policy = write_policy
        self.written = 0
        self.refused = 0
        self.reset()

    def reset(self):
        self.ack_write_queue, self.ack_load_queue = [], []
        self.write_queue, self.load_queue = [], []

    @staticmethod
    def acknowledge(node_ids):
        return SimpleNamespace(finish_event=Done(), node_ids=node_ids)

    def write(self, device_indices, node_id=-1, **others):
        host_indices = self.mem_pool_host.alloc(len(device_indices))
        if host_indices is None:
            self.refused += 1
            return None
        self.written += len(host_indices)
        self.write_queue.append(node_id)
        if others.get("flush", True):
            self.start_writing()
        return host_indices

    def start_writing(self):
        self.ack_write_queue += [self.acknowledge([node_id]) for node_id in self.write_queue]
        self.write_queue = []

    def load(self, host_indices, node_id=-1, **others):
        device_indices = self.mem_pool_device_allocator.alloc(len(host_indices))
        if device_indices is not None:
            self.load_queue.append(node_id)
        return device_indices

    def start_loading(self):
        if self.load_queue:
            self.ack_load_queue.append(self.acknowledge(self.load_queue))
            self.load_queue = []
        return 0

    def evict_device(self, device_indices):
        self.mem_pool_device_allocator.free(device_indices)
        return len(device_indices)

    def evict_host(self, host_indices):
        self.mem_pool_host.free(host_indices)
        return len(host_indices)


class OldCopies(Copies):
    """0.5.10 has an acknowledgement as a tuple."""

    @staticmethod
    def acknowledge(node_ids):
        return None, Done(), node_ids


def with_storage(pool, host, write_policy):
    """Copies, and the part of SGLang's controller that decides what is fetched from storage. Storage has no limit."""

    class StoredCopies(Copies, HybridCacheController):
        enable_storage = True

        def __init__(self):
            Copies.__init__(self, pool, host, write_policy)
            self.page_size = host.page_size
            self.host_memory_mode = "cache"
            self.storage_backend = self
            self.stored = set()
            self.backup_queue, self.prefetch_queue, self.prefetch_buffer = queue.Queue(), queue.Queue(), queue.Queue()
            self.ack_backup_queue, self.ack_prefetch_queue = queue.Queue(), queue.Queue()
            self.prefetch_hit_queue, self.host_mem_release_queue = queue.Queue(), queue.Queue()
            self.extra_host_mem_release_queues, self.pp_prefetch_decisions = {}, {}
            self.prefetch_hits_sync_groups = []
            # As in HiCacheController.attach_storage_backend.
            self.prefetch_capacity_limit = host.logical_size // 2
            self.prefetch_tokens_occupied = 0

        def batch_exists(self, hashes, extra_info=None):
            return next((place for place, value in enumerate(hashes) if value not in self.stored), len(hashes))

        def work(self):
            """Does the work of the controller's threads: writes, and look-ups of fetches."""
            while not self.backup_queue.empty():
                operation = self.backup_queue.get()
                self.stored.update(operation.hash_value)
                self.ack_backup_queue.put(operation)
            while not self.prefetch_queue.empty():
                operation = self.prefetch_queue.get()
                hashes, found = self._storage_hit_query(operation)
                operation.storage_hit_count = self._sync_prefetch_hit_query(operation, found)
                operation.hash_value = hashes[:operation.storage_hit_count // self.page_size]
                self.prefetch_hit_queue.put(operation)

    return StoredCopies()


class Rows:
    """Slots of the running requests. Pools that count need no slot's number, so all share a row."""

    def __init__(self, tokens):
        self.req_to_token = torch.zeros((1, tokens), dtype=torch.int64)

    def write(self, place, values):
        self.req_to_token[place] = values


class Request:
    """A request that holds what it found. `hits` were on the GPU, `loaded` came from the host, `end` tokens have slots.

    `view` is what SGLang's trees read of a request.
    """

    def __init__(self, name, tokens, salt, match, hits):
        self.tokens = tokens
        self.hits = self.end = hits
        self.host_hits = match.host_hit_length
        self.loaded = 0
        self.view = SimpleNamespace(
            rid=str(name), extra_key=salt, cache_salt=None, priority=0, session=None, session_id=None, req_pool_idx=0,
            output_ids=[], origin_input_ids=tokens, last_node=match.last_device_node, cache_protected_len=hits,
            kv=SimpleNamespace(req_pool_idx=0, cache_inserted_len=0, cache_protected_len=hits, swa_evict_floor=0,
                               mamba_pool_idx=None),
            kv_rotation_base=None, finished_reason=None, skip_radix_cache_insert=False)


class AnyTree:
    """A tree of either version. `page` and `rows` are tokens; `host` is 0 without host memory."""

    def __init__(self, kind, page, gpu, policy="lru", host=0, write="write_through", rows=1 << 16, core=None, storage=False):
        if kind not in KINDS or (host > 0 and kind == "radix"):
            raise ValueError(f"SGLang {VERSION} has no {kind} with this host memory")
        self.page = page
        self.pool = Pool(gpu, page)
        self.rows = Rows(rows)
        self.host = HostPool(host, page) if host else None
        radix_cache.time = Clock()
        self.storage = storage
        self.copies = self.make_copies(write) if self.host is not None else None
        named = dict(disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.pool, page_size=page,
                     eviction_policy=policy)
        self.cache = RadixCache(CacheInitParams(**named)) if kind == "radix" else self.make_cache(named, write, core)
        self.evicted = 0
        self._count_evictions("_evict" if kind == "unified" else "evict")

    def _count_evictions(self, name):
        evict = getattr(self.cache, name)

        def counted(*arguments, **named):
            result = evict(*arguments, **named)
            self.evicted += result.num_tokens_evicted
            return result

        setattr(self.cache, name, counted)

    def rounded(self, tokens):
        return -(-tokens // self.page) * self.page

    def free_tokens(self):
        """Slots that requests may take: free ones, and those of nodes that may leave."""
        return self.pool.available_size() + self.cache.evictable_size()

    def match(self, tokens, salt, limit=None):
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens[:limit], salt)))

    def begin(self, name, tokens, first=None, limit=None, salt=None):
        """Finds at most `limit` tokens and holds them. Returns None without room for the `first` tokens behind them."""
        tokens = self.as_tokens(tokens)
        match = self.match(tokens, salt, limit)
        request = Request(name, tokens, salt, match, self.hits_of(match))
        self.hold(request)
        # A host hit needs room for its whole length.
        found = request.hits + request.host_hits
        end = len(tokens) if first is None else min(len(tokens), found + first)
        if self.rounded(end) - request.hits > self.free_tokens():
            self.let_go(request)
            return None
        if request.host_hits:
            self.load(request, match)
            self.cache.ready_to_load_host_cache()
        request.end += request.loaded
        request.view.cache_protected_len = request.view.kv.cache_protected_len = request.end
        return request if self.grow(request, end) else None

    def grow(self, request, end):
        """Gives the request slots up to token `end`, as alloc_token_slots and alloc_paged_token_slots_extend do."""
        new = end - request.end
        if new <= 0:
            return True
        evict_from_tree_cache(self.cache, new if self.page == 1 else new + self.page)
        if self.pool.alloc(self.rounded(end) - self.rounded(request.end)) is None:
            return False
        request.end = end
        return True

    def respond(self, request, response):
        """Gives slots to all tokens of the response but the last, which no later token needs. Returns whether they fit."""
        request.tokens = request.tokens + self.as_tokens(response)
        return self.grow(request, len(request.tokens) - 1)

    def end_copies(self):
        if self.copies is not None:
            self.cache.check_hicache_events()

    def check(self):
        """Every slot is free or in the tree when no request runs."""
        counted = self.pool.available_size() + self.cache.evictable_size() + self.cache.protected_size()
        if counted != self.pool.size:
            raise RuntimeError(f"{counted} slots are free or in the tree, of {self.pool.size}")


class OldTree(AnyTree):
    """RadixCache and HiRadixCache of 0.5.10."""

    as_tokens = list

    def make_copies(self, write):
        return OldCopies(self.pool, self.host, write)

    def make_cache(self, named, write, core):
        hiradix_cache.time = radix_cache.time
        return make_hiradix(CacheInitParams(**named), self.copies, write)

    def hits_of(self, match):
        return len(match.device_indices)

    def hold(self, request):
        self.cache.inc_lock_ref(request.view.last_node)

    def let_go(self, request):
        self.cache.dec_lock_ref(request.view.last_node)

    def load(self, request, match):
        loaded, last = self.cache.init_load_back(InitLoadBackParams(
            last_host_node=match.last_host_node, host_hit_length=request.host_hits, req=request.view))
        request.loaded = len(loaded)
        self.let_go(request)
        request.view.last_node = last
        self.hold(request)

    def publish(self, request):
        """The tokens with slots are computed and can be found."""
        request.view.fill_ids = request.tokens[:request.end]
        self.cache.cache_unfinished_req(request.view, chunked=True)

    def finish(self, request):
        """The tokens with slots stay in the tree, and the request lets go of them."""
        request.view.origin_input_ids = request.tokens
        request.view.pop_committed_kv_cache = lambda: request.end
        self.cache.cache_finished_req(request.view)


class NewTree(AnyTree):
    """RadixCache and UnifiedRadixCache of 0.5.23."""

    @staticmethod
    def as_tokens(tokens):
        return array("q", tokens)

    def make_copies(self, write):
        return (with_storage if self.storage else Copies)(self.pool, self.host, write)

    def make_cache(self, named, write, core):
        cache = UnifiedRadixCache(CacheInitParams(**named, tree_components=(ComponentType.FULL,), tree_core_backend=core))
        if self.host is not None:
            attach_host(cache, self.copies, write)
        return cache

    def core_name(self):
        """The implementation of UnifiedRadixCache's tree."""
        return "rust" if "rust" in type(self.cache.tree_core).__module__ else "python"

    def hits_of(self, match):
        return match.device_prefix_len

    def hold(self, request):
        request.view.lock = self.cache.lock(request.view.last_node)

    def let_go(self, request):
        self.cache.unlock(request.view.lock)

    def load(self, request, match):
        request.loaded, last = self.cache.init_load_back(InitLoadBackParams(
            best_match_node=match.best_match_node, host_hit_length=request.host_hits, req=request.view))
        before = request.view.lock
        request.view.last_node = last
        self.hold(request)
        self.cache.unlock(before)

    def publish(self, request, finished=False):
        """The tokens with slots are computed and can be found."""
        request.view.full_untruncated_fill_ids = request.tokens
        request.view.finished = lambda: finished
        self.cache.checkpoint(request.view, up_to=request.end)

    def finish(self, request):
        """The tokens with slots stay in the tree, and the request lets go of them."""
        self.publish(request, finished=True)
        protected = request.view.kv.cache_protected_len
        self.pool.free_segment(self.rows.req_to_token[0, protected:request.end], start_pos=protected)
        self.let_go(request)

    def end_copies(self):
        super().end_copies()
        if self.storage:
            self._use_storage()

    def _use_storage(self):
        self.copies.work()
        self.cache.check_hicache_events()

    def prefetch(self, name, tokens, salt=None):
        """Looks in storage for what the tree lacks, as Scheduler does. Returns the tokens that have room on the host."""
        tokens = self.as_tokens(tokens)
        match = self.match(tokens, salt)
        found = match.device_prefix_len + match.host_hit_length
        handle = CacheRequestHandle(name, 0)
        self.cache.prefetch_from_storage(
            handle, match.last_host_node, tokens[found:], self.cache.get_last_hash_value(match.last_host_node),
            matched_prefix_tokens=tokens[:found], extra_key=salt)
        self._use_storage()
        under_way = self.cache.ongoing_prefetch.get(handle)
        return 0 if under_way is None else len(under_way.host_indices)

    def end_prefetch(self, name, tokens):
        """So many tokens have come. Returns those that the host did not have."""
        handle = CacheRequestHandle(name, 0)
        operation = self.cache.ongoing_prefetch[handle].operation
        for part in ({"completed_tokens": tokens}, {"completed_req": True}):
            self.copies.ack_prefetch_queue.put(PrefetchAck(rid=name, operation=operation, **part))
        self.cache.check_hicache_events()
        # Room for what has not come is given back then.
        self.cache.check_hicache_events()
        return self.cache.pop_prefetch_loaded_tokens(handle)

    def stored_tokens(self, tokens, salt=None):
        """The leading tokens that storage has."""
        hashes = cache_utils.get_storage_hash_str(RadixKey(self.as_tokens(tokens), salt), None, page_size=self.page)
        return self.copies.batch_exists(hashes) * self.page


Tree = OldTree if HAS_HIRADIX else NewTree


def make_hiradix(params, copies, write):
    """HiRadixCache without its __init__, which makes pools of real memory and threads."""

    class Cache(hiradix_cache.HiRadixCache):
        def __init__(self):
            self._enable_metrics_flag = False
            self.page_size = params.page_size
            self.token_to_kv_pool_host = copies.mem_pool_host
            self.tp_group, self.tp_world_size = None, 1
            self.pp_rank, self.pp_size = 0, 1
            self.enable_storage = self.enable_storage_metrics = False
            self.cache_controller = copies
            self.ongoing_write_through, self.ongoing_load_back = {}, {}
            self.ongoing_prefetch, self.ongoing_backup, self.prefetch_loaded_tokens_by_reqid = {}, {}, {}
            self.write_through_threshold = USES_BEFORE_WRITE[write]
            self.load_back_threshold = LEAST_LOAD_TOKENS
            self.evictable_host_leaves = set()
            RadixCache.__init__(self, params)

    return Cache()


def attach_host(cache, copies, write):
    """What UnifiedRadixCache.init_hicache does, without pools of real memory and threads."""
    cache.cache_controller = copies
    cache.host_pool_group = copies.mem_pool_host
    cache.components[ComponentType.FULL]._full_kv_pool_host = copies.mem_pool_host
    cache.tree_core.set_hicache_enabled()
    cache.write_through_threshold = USES_BEFORE_WRITE[write]
    cache.is_write_back = write == "write_back"
    cache.load_back_threshold = LEAST_LOAD_TOKENS
    cache.enable_storage = cache.tree_core.enable_storage = copies.enable_storage
