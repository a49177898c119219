"""Builds vLLM's own cache manager, scheduler and CPU offload on a machine without a GPU.

Imported only by Python programs of the virtual environment that has vLLM's wheel.
"""

import json
import os
import pathlib

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Block hashes then do not change between processes.
os.environ.setdefault("PYTHONHASHSEED", "0")

import torch
import vllm
from vllm.config import (CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

VERSION = vllm.__version__
MODEL_LENGTH_MAX = 1 << 20

init_none_hash(sha256)


def cache_config(usable_blocks, block_tokens):
    """One group of full attention. vLLM keeps block 0 for itself, so it gets one block more."""
    spec = FullAttentionSpec(block_size=block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float16)
    return KVCacheConfig(num_blocks=usable_blocks + 1, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])


def make_manager(usable_blocks, block_tokens, caching=True):
    manager = KVCacheManager(cache_config(usable_blocks, block_tokens), max_model_len=MODEL_LENGTH_MAX,
                             scheduler_block_size=block_tokens, hash_block_size=block_tokens, enable_caching=caching,
                             log_stats=False)
    if manager.block_pool.get_num_free_blocks() != usable_blocks:
        raise RuntimeError("this vLLM keeps another number of blocks for itself")
    return manager


class RequestMaker:
    def __init__(self, block_tokens):
        self.hasher = get_request_block_hasher(block_tokens, sha256)

    def make(self, name, tokens, response_max=1, **others):
        sampling = SamplingParams(max_tokens=max(response_max, 1), ignore_eos=True, **others.pop("sampling", {}))
        return Request(request_id=str(name), prompt_token_ids=tokens, sampling_params=sampling, pooling_params=None,
                       block_hasher=self.hasher, **others)


class EvictionCounter:
    """Counts popped blocks that had a hash. `on_block` gets each of them before it loses the hash."""

    def __init__(self, pool, on_block=lambda block: None):
        self.evictions = 0
        self.on_block = on_block
        queue = pool.free_block_queue
        self._pop = queue.popleft_n
        queue.popleft_n = self._count

    def _count(self, blocks):
        popped = self._pop(blocks)
        for block in popped:
            if block.block_hash is not None:
                self.evictions += 1
                self.on_block(block)
        return popped


def model_folder(folder):
    """A model's config of a few bytes: vLLM refuses to run without one, but nothing here depends on it."""
    path = pathlib.Path(folder) / "model"
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 32,
        "max_position_embeddings": MODEL_LENGTH_MAX, "torch_dtype": "float16", "bos_token_id": 0, "eos_token_id": 1}))
    return str(path)


def make_scheduler(folder, gpu_blocks, block_tokens, sequences_max, step_tokens, cpu_chunks=0, eviction="lru",
                   chunk_blocks=1, offload=None):
    """The scheduler, with vLLM's OffloadingConnector behind it if there are CPU chunks."""
    model = model_folder(folder)
    cache = cache_config(gpu_blocks, block_tokens)
    transfer = None
    if cpu_chunks:
        page = cache.kv_cache_groups[0].kv_cache_spec.page_size_bytes * chunk_blocks
        unit = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
        extra = {"cpu_bytes_to_use": -(-page // unit) * unit * cpu_chunks, "eviction_policy": eviction}
        if chunk_blocks > 1:
            extra["blocks_per_chunk"] = chunk_blocks
        transfer = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both",
                                    kv_connector_extra_config=extra | (offload or {}))
    config = VllmConfig(
        model_config=ModelConfig(model=model, tokenizer=model, skip_tokenizer_init=True, dtype="float16", seed=0,
                                 max_model_len=MODEL_LENGTH_MAX),
        cache_config=CacheConfig(block_size=block_tokens, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(max_num_seqs=sequences_max, max_num_batched_tokens=step_tokens,
                                         max_model_len=MODEL_LENGTH_MAX, enable_chunked_prefill=True,
                                         async_scheduling=False, is_encoder_decoder=False),
        device_config=DeviceConfig("cpu"), kv_transfer_config=transfer)
    config.cache_config.num_gpu_blocks = gpu_blocks + 1
    scheduler = Scheduler(vllm_config=config, kv_cache_config=cache,
                          structured_output_manager=StructuredOutputManager(config), block_size=block_tokens,
                          hash_block_size=block_tokens, log_stats=True)
    if cpu_chunks:
        made = getattr(offload_manager(scheduler), "_num_chunks", "no known number of")
        if made != cpu_chunks:
            raise RuntimeError(f"this vLLM makes {made} CPU chunks where {cpu_chunks} were asked for")
    return scheduler


def offload_manager(scheduler):
    return scheduler.connector.connector_scheduler.manager
