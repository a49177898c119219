#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "calibrate/check.hpp"
#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/profile/profile.hpp"
#include "sim/core/config.hpp"

/// Makes profiles from tables of kernel times measured elsewhere.
namespace kvtier::calibrate {

/// Operations that a row may time. Each gives one table of a profile for each shape.
enum class TableOperation {
  qkv,
  attention_output,
  mlp_up,
  mlp_down,
  lm_head,
  prefill_attention,
  decode_attention,
  norm,
  residual,
  activation,
  embedding,
  kv_write,
  rope,
  sampling,
  mixed_attention,
  gemm,
  moe,
  mla_prefill,
  mla_decode,
  all_reduce,
  quantize,
  state_prefill,
  state_decode,
  convolution
};
constexpr auto enum_names(TableOperation) {
  using enum TableOperation;
  return std::array{std::pair{"qkv", qkv},
                    std::pair{"attention_output", attention_output},
                    std::pair{"mlp_up", mlp_up},
                    std::pair{"mlp_down", mlp_down},
                    std::pair{"lm_head", lm_head},
                    std::pair{"prefill_attention", prefill_attention},
                    std::pair{"decode_attention", decode_attention},
                    std::pair{"norm", norm},
                    std::pair{"residual", residual},
                    std::pair{"activation", activation},
                    std::pair{"embedding", embedding},
                    std::pair{"kv_write", kv_write},
                    std::pair{"rope", rope},
                    std::pair{"sampling", sampling},
                    std::pair{"mixed_attention", mixed_attention},
                    std::pair{"gemm", gemm},
                    std::pair{"moe", moe},
                    std::pair{"mla_prefill", mla_prefill},
                    std::pair{"mla_decode", mla_decode},
                    std::pair{"all_reduce", all_reduce},
                    std::pair{"quantize", quantize},
                    std::pair{"state_prefill", state_prefill},
                    std::pair{"state_decode", state_decode},
                    std::pair{"convolution", convolution}};
}

/// The columns of one operation in a table. Several rules may read the same row.
struct ColumnRule {
  /// Empty: the column `op_column` names it.
  std::optional<TableOperation> op;
  std::string op_column;
  std::string time;
  /// Unit of the time: "s", "ms" or "us".
  std::string unit = "s";
  /// Subtracted from each time, in the same unit: launches that a CUDA graph hides.
  double less = 0;
  /// Column names; empty: 0 past tokens, a batch of 1, one GPU.
  std::string new_tokens;
  std::string past_tokens;
  std::string batch;
  std::string context;
  std::string tensor_parallel;
  /// For tables over many shapes: sizes of the shape, such as "n", "kv_heads" or "window", to their
  /// columns. Without them the shapes are the model's.
  std::map<std::string, std::string> sizes;
  /// For moe without sizes: the column of the experts that the tokens of a row reach.
  std::string reached_experts;
  /// Column of the numbers' format, as the table writes it.
  std::string dtype;
  /// The variant in the profile and the state of the caches, for all rows.
  std::string variant;
  CacheState cache = CacheState::cold;
  /// Columns and the text that a row must have there, or must not have.
  std::map<std::string, std::string> where;
  std::map<std::string, std::string> where_not;
};
template <class V>
void describe(V& v, ColumnRule& c) {
  v.field("op", c.op, "The operation; \"none\": op_column names it.");
  v.field("op_column", c.op_column, "Column that names the operation.");
  v.field("time", c.time, "Column of the time.", required());
  v.field("unit", c.unit, "Unit of the time: s, ms or us.");
  v.field("less", c.less, "Subtracted from each time: launches that a CUDA graph hides.",
          non_negative());
  v.field("new_tokens", c.new_tokens, "Column of the new tokens of one request, or of the batch.");
  v.field("past_tokens", c.past_tokens, "Column of the past tokens.");
  v.field("batch", c.batch, "Column of the number of requests.");
  v.field("context", c.context, "Column of the context of each request.");
  v.field("tensor_parallel", c.tensor_parallel, "Column of the number of GPUs.");
  v.field("sizes", c.sizes,
          "Sizes of the shape to their columns: n, k, attention_heads, kv_heads, head_dim, window, "
          "hidden_size, intermediate_size, experts, top_k, expert_gpus, bytes, elements, width.");
  v.field("reached_experts", c.reached_experts,
          "For moe of the model: column of the experts that the tokens reach. For each number of "
          "tokens, only the row nearest to random choice counts, on 1, 2, 4 and 8 GPUs with whole "
          "experts.");
  v.field("dtype", c.dtype, "Column of the format of the numbers.");
  v.field("variant", c.variant, "The variant in the profile, for all rows.");
  v.field("cache", c.cache, "Whether the data lay in a cache; hot rows may be faster than memory.");
  v.field("where", c.where, "Rows that count: column to the text in it, or to several: a|b.");
  v.field("where_not", c.where_not,
          "Rows that do not count: column to the text in it, or to several: a|b.");
}

/// kvtier.columns/1: the names of the columns of a foreign table.
struct ColumnMap {
  std::string format = "kvtier.columns/1";
  std::string source;
  std::vector<ColumnRule> rules;
};
template <class V>
void describe(V& v, ColumnMap& c) {
  v.field("format", c.format, "kvtier.columns/1.", required());
  v.field("source", c.source, "Whose tables these are.");
  v.field("rules", c.rules, "One for each operation.", required());
}

/// The columns op, new_tokens, past_tokens, batch, context, tensor_parallel, seconds.
[[nodiscard]] ColumnMap standard_columns();
/// Throws ConfigError.
[[nodiscard]] ColumnMap read_columns(const std::filesystem::path& path);

struct TableFile {
  std::filesystem::path path;
  ColumnMap columns;
};

/// The rows of all tables, by their outcome.
struct ImportCounts {
  std::int64_t times = 0;
  /// Cells that are empty or hold no number (NaN).
  std::int64_t not_numbers = 0;
  std::int64_t not_positive = 0;
  /// Shorter than the device's limits allow.
  std::int64_t beyond_limits = 0;
  /// Prefills of several requests at once, without the times of single ones.
  std::int64_t several_requests = 0;
  /// Rows in a number format that profiles do not have.
  std::int64_t unknown_types = 0;
  /// Cells that other cells of their table contradict (contradicts).
  std::int64_t contradictions = 0;
};

/// Sizes that a compact profile keeps. Heads, requests and contexts: powers of 2, contexts from 64
/// on. Tokens: powers of 2, and three and five times those. n and k: from 256 on, odd multiples of
/// powers of 2 up to seven. Experts: on up to 8 GPUs. Times are rounded to four digits.
enum class Thinning { none, compact };

struct ImportOptions {
  std::string name;
  Thinning thinning = Thinning::none;
  /// GPUs of tables without such a column.
  std::int64_t gpus = 1;
};

struct Imported {
  Profile profile;
  ImportCounts counts;
};

/// Reads CSV files, plain, gzip or zstd, of times on the GPUs of `hardware`, whose peaks are the
/// limits. Rows of one cell are its samples. Throws ConfigError with every bad line (up to a
/// hundred) or missing column. Cells that are no positive number, faster than the device's limits,
/// of an unknown format or contradicted by others are dropped and counted. `model` may be null if
/// every rule has sizes.
[[nodiscard]] Imported import_tables(const std::vector<TableFile>& files, const ModelConfig* model,
                                     const HardwareConfig& hardware, const ImportOptions& options);

/// The errors of one operation: of interpolating one random half of the cells from the other half,
/// and of the roofline on all cells.
struct FitRow {
  std::string operation;
  ErrorStatistics held_out;
  std::int64_t extrapolated = 0;
  ErrorStatistics roofline;
};

/// The rows of a fit: matrices, rows of elements (interpolated only), prefill and decode attention,
/// and for one device the prefill of a whole layer, with its matrices and attention.
[[nodiscard]] std::vector<FitRow> judge_fit(const Profile& profile, const ModelConfig* model,
                                            const HardwareConfig& hardware, std::uint64_t seed);

[[nodiscard]] std::string to_text(const Imported& imported, const std::vector<FitRow>& rows,
                                  const HardwareConfig& hardware);

}  // namespace kvtier::calibrate
