#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/units.hpp"

namespace kvtier {

/// Hits of an engine's own code on a trace, with a row for each request in the trace's order. The
/// columns are `req` (from 0), `prompt_tokens`, and those of the kind (OracleKind).
struct OracleTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::int64_t>> rows;
};
/// Reads a CSV file, plain, gzip or zstd. Throws ConfigError for a malformed file, and for a file
/// without rows or without the first two columns.
[[nodiscard]] OracleTable read_oracle(const std::filesystem::path& path);

enum class OracleEngine : std::uint8_t {
  vllm_manager,    // KVCacheManager, called directly
  vllm_scheduler,  // the scheduler, with or without CPU offload
  sglang,          // RadixCache, UnifiedRadixCache
  sglang_0510,     // version 0.5.10: RadixCache, and HiRadixCache with host memory behind it
  lmcache,         // a cache of chunks
};

/// The parameters of a table, as its name encodes them:
///
///     vllm_mgr_{prompt|output|output_pertoken|fifoHELD}_TRACE_bBLOCK
///     vllm_sched_TRACE_gTOKENS_cTOKENS_{none|lru|arc}_seqsHELD_{prompt|output}
///     sgl_{radix|unified}_{lru|lfu}_{prompt|output}_chunkCHUNK_TRACE_pBLOCK
///     sgl_radix0510_{lru|lfu}_TRACE_pBLOCK_gTOKENS_c0Ki
///     sgl_hiradix_{write_through|write_through_selective}_{lru|lfu}_TRACE_pBLOCK_gTOKENS_cTOKENS
///     lmcache_{lru|lfu|fifo}_TRACE_cBLOCK
///
/// A table with gTOKENS has the columns `hit_gpu` and `hit_cpu`. SGLang's have `host_match`, too:
/// the prompt's tokens in host memory after those on the GPU, loaded or not. Other tables have
/// `hit_C` for each capacity C in tokens (256Ki, 5Mi, inf). Most of them have `evict_cum_C`
/// (blocks) or `evict_tok_cum_C` (tokens): the evictions until the request's prompt has its memory.
struct OracleKind {
  OracleEngine engine = OracleEngine::vllm_manager;
  /// Eviction policy of the only tier or of the slower tier.
  std::string eviction = "lru";
  Tokens block;
  /// Tokens of a chunk of SGLang's chunked prefill; 0: no chunks.
  Tokens chunk{0};
  /// Whether responses take blocks.
  bool with_output = false;
  /// Requests that hold blocks at the same time.
  std::int64_t held = 1;
  /// Number of uses at which SGLang writes to host memory.
  std::int64_t writes_from = 1;
  /// With gTOKENS: tokens on the GPU and in the tier behind it, which may be 0.
  std::int64_t gpu = 0;
  std::int64_t cpu = 0;
};
/// nullopt for another name.
[[nodiscard]] std::optional<OracleKind> oracle_kind(const std::string& name);

/// Tokens of "256Ki", "5Mi" or "inf"; nullopt for other texts.
[[nodiscard]] std::optional<std::int64_t> capacity_tokens(const std::string& text);

}  // namespace kvtier
