#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/units.hpp"

namespace kvtier {

/// Hits of an engine's code on a trace: a row of numbers for each request, in the trace's order.
/// The columns are `req` (from 0), `prompt_tokens`, and those of the kind (OracleKind).
struct OracleTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::int64_t>> rows;
};
/// Reads a CSV file, plain, gzip or zstd. Throws ConfigError for a malformed file, one without
/// rows, and one without the first two columns.
[[nodiscard]] OracleTable read_oracle(const std::filesystem::path& path);

enum class OracleEngine : std::uint8_t {
  vllm_manager,    // KVCacheManager, called directly
  vllm_scheduler,  // the scheduler, with or without CPU offload
  sglang,          // RadixCache, UnifiedRadixCache
  sglang_0510,     // version 0.5.10: RadixCache, and HiRadixCache with host memory behind it
  lmcache,         // a cache of chunks
};

/// How a table was made, as its name says:
///
///     vllm_mgr_{prompt|output|output_pertoken|fifoHELD}_TRACE_bBLOCK
///     vllm_sched_TRACE_gTOKENS_cTOKENS_{none|lru|arc}_seqsHELD_{prompt|output}
///     sgl_{radix|unified}_{lru|lfu}_{prompt|output}_chunkCHUNK_TRACE_pBLOCK
///     sgl_radix0510_{lru|lfu}_TRACE_pBLOCK_gTOKENS_c0Ki
///     sgl_hiradix_{write_through|write_through_selective}_{lru|lfu}_TRACE_pBLOCK_gTOKENS_cTOKENS
///     lmcache_{lru|lfu}_TRACE_cBLOCK
///
/// A table with gTOKENS has the columns `hit_gpu` and `hit_cpu`, and of SGLang `host_match`: what
/// of the prompt was in host memory behind the GPU's, whether it was loaded or not. The others
/// have, for each capacity C in tokens (256Ki, 5Mi, inf), `hit_C` and as a rule `evict_cum_C`
/// (blocks) or `evict_tok_cum_C` (tokens), which have left until the request's prompt has its
/// memory.
struct OracleKind {
  OracleEngine engine = OracleEngine::vllm_manager;
  /// Eviction of the only or the slower tier.
  std::string eviction = "lru";
  Tokens block;
  /// Tokens of a prompt that SGLang computes at once; 0: all.
  Tokens chunk{0};
  /// Whether responses take room.
  bool with_output = false;
  /// Requests that hold blocks at the same time.
  std::int64_t held = 1;
  /// Uses from which SGLang writes to host memory.
  std::int64_t writes_from = 1;
  /// With gTOKENS: tokens on the GPU and in the tier behind it, which may be 0.
  std::int64_t gpu = 0;
  std::int64_t cpu = 0;
};
/// nullopt for a name that is none of these.
[[nodiscard]] std::optional<OracleKind> oracle_kind(const std::string& name);

/// Tokens of "256Ki", "5Mi" or "inf"; nullopt for other texts.
[[nodiscard]] std::optional<std::int64_t> capacity_tokens(const std::string& text);

}  // namespace kvtier
