#pragma once

#include <optional>
#include <vector>

#include "hw/model/model.hpp"
#include "hw/profile/profile.hpp"
#include "hw/timing/operation_time.hpp"

/// Tables for shapes that were not measured themselves, interpolated from those that were.
namespace kvtier {

/// The upper limits of the profile's device for numbers of a type. For hot caches, memory is no
/// limit.
[[nodiscard]] Rates device_rates(const Profile& profile, std::optional<DataType> type,
                                 CacheState cache);

/// The heads of a table of attention, and the tokens that each one sees at most; 0: all of them.
[[nodiscard]] AttentionShape attention_of(const ProfileTable& table);
[[nodiscard]] std::int64_t window_of(const ProfileTable& table);

/// A table, measured or interpolated.
struct ShapedTable {
  ProfileTable table;
  /// Beyond the shapes that were measured.
  bool extrapolated = false;
  /// Times after past tokens are not measured but computed by the law of past_law_seconds.
  bool past_by_law = false;
};

/// The times of an n x k matrix from a table over many n and k (gemm_grid), at the tokens that the
/// table has: bilinear in the logarithms of n, k and the time. A matrix takes no longer than a
/// larger one with no fewer tokens, which it can be padded to. A place that was not measured is the
/// geometric mean of the lines between its neighbours along n and along k. Beyond the grid the
/// share of the limit that is attained at its edge is held. None without such a table.
[[nodiscard]] std::optional<ShapedTable> interpolate_matrix(const Profile& profile, std::int64_t n,
                                                            std::int64_t k, DataType type);
/// The same from one table and some of its cells.
[[nodiscard]] std::optional<ShapedTable> interpolate_matrix(const Profile& profile,
                                                            const ProfileTable& grid,
                                                            std::int64_t n, std::int64_t k);

/// Attention of heads that were not measured, from tables that differ in attention_heads alone:
/// linear in the logarithms of the heads and the time. More heads than measured take time in
/// proportion, fewer take no less than the fewest measured. None without such a table.
[[nodiscard]] std::optional<ShapedTable> interpolate_attention(const Profile& profile,
                                                               OperationId operation,
                                                               const AttentionShape& shape,
                                                               std::int64_t window, DataType type);

/// Prefill tables without past tokens lack cached prefixes. The law gives the additional time of
/// attention of n new tokens after P past tokens:
///
///     max(4 heads d n P / (rate of the longest measured prefill, attained_flops),
///         2 d e P / 24 GB/s),
///
/// with d elements of e bytes in a head. A block of threads reads the past tokens of one KV head,
/// and all heads run at once. Fitted to the tables with past tokens of LLMServingSim (RTX PRO 6000)
/// and Frontier (A800); configs/profiles/README.md has the error.
[[nodiscard]] double past_law_seconds(const ProfileTable& table, double flops_per_second,
                                      double added, double past);
/// The operations per second that the longest prefill of a table attains.
[[nodiscard]] double attained_flops(const ProfileTable& table);
/// Adds cells after past tokens by the law to a table that has none; false if it has some.
bool add_past_by_law(ProfileTable& table);

}  // namespace kvtier
