#include "hw/profile/profile_shapes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// One block of threads reads the past tokens of a head at this rate (bytes per second).
constexpr double kPastBytesPerSecond = 24e9;

/// Past tokens for which the law gives cells.
constexpr std::array<std::int64_t, 9> kPastTokens{512,   2048,  4096,   8192,  16384,
                                                  32768, 65536, 131072, 262144};

/// Two neighbours on an axis and the weight of the upper one.
struct Bracket {
  std::size_t below = 0;
  std::size_t above = 0;
  double weight = 0;
  bool outside = false;
};

double log_of(std::int64_t value) { return std::log(static_cast<double>(value)); }

Bracket bracket(const std::vector<std::int64_t>& values, std::int64_t value) {
  const auto found = std::ranges::lower_bound(values, value);
  const auto index = static_cast<std::size_t>(found - values.begin());
  if (found == values.end()) {
    return {.below = index - 1, .above = index - 1, .weight = 0, .outside = true};
  }
  if (*found == value) {
    return {.below = index, .above = index, .weight = 0, .outside = false};
  }
  if (index == 0) {
    return {.below = 0, .above = 0, .weight = 0, .outside = true};
  }
  return {.below = index - 1,
          .above = index,
          .weight = (log_of(value) - log_of(values[index - 1])) /
                    (log_of(values[index]) - log_of(values[index - 1])),
          .outside = false};
}

std::vector<std::int64_t> axis_values(const std::vector<ProfileCell>& cells, std::size_t axis) {
  std::vector<std::int64_t> values;
  values.reserve(cells.size());
  for (const ProfileCell& cell : cells) {
    values.push_back(cell.at[axis]);
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

/// Logarithms of times over n and k for one number of tokens.
class Plane {
 public:
  Plane(const std::vector<std::int64_t>& ns, const std::vector<std::int64_t>& ks)
      : ns_(&ns), ks_(&ks), logs_(ns.size() * ks.size(), kGap) {}

  void set(std::size_t i, std::size_t j, double seconds) {
    logs_[i * ks_->size() + j] = std::log(seconds);
  }

  /// No measured place takes longer than one of no smaller n and k, here or in `more_tokens`.
  void bound(const Plane* more_tokens) {
    const std::size_t width = ks_->size();
    shortest_ = more_tokens != nullptr ? more_tokens->shortest_ : logs_;
    for (std::size_t i = ns_->size(); i-- > 0;) {
      for (std::size_t j = width; j-- > 0;) {
        double& least = shortest_[i * width + j];
        least = std::min({least, logs_[i * width + j],
                          i + 1 < ns_->size() ? shortest_[(i + 1) * width + j] : kGap,
                          j + 1 < width ? shortest_[i * width + j + 1] : kGap});
        double& own = logs_[i * width + j];
        own = own == kGap ? kGap : least;
      }
    }
  }

  /// The time at (i, j) as a logarithm; none where the neighbours were not measured either.
  [[nodiscard]] std::optional<double> at(std::size_t i, std::size_t j) const {
    if (const double measured = get(i, j); measured != kGap) {
      return measured;
    }
    const auto along_n = between(*ns_, i, [&](std::size_t other) { return get(other, j); });
    const auto along_k = between(*ks_, j, [&](std::size_t other) { return get(i, other); });
    if (along_n && along_k) {
      return (*along_n + *along_k) / 2;
    }
    return along_n ? along_n : along_k;
  }

 private:
  static constexpr double kGap = std::numeric_limits<double>::infinity();

  [[nodiscard]] double get(std::size_t i, std::size_t j) const {
    return logs_[i * ks_->size() + j];
  }

  template <class Get>
  static std::optional<double> between(const std::vector<std::int64_t>& values, std::size_t place,
                                       Get get) {
    std::size_t below = place;
    while (below > 0 && get(below) == kGap) {
      --below;
    }
    std::size_t above = place;
    while (above + 1 < values.size() && get(above) == kGap) {
      ++above;
    }
    if (get(below) == kGap || get(above) == kGap) {
      return std::nullopt;
    }
    return std::lerp(get(below), get(above),
                     (log_of(values[place]) - log_of(values[below])) /
                         (log_of(values[above]) - log_of(values[below])));
  }

  const std::vector<std::int64_t>* ns_;
  const std::vector<std::int64_t>* ks_;
  std::vector<double> logs_;
  /// For each place the shortest time of all sizes that are no smaller.
  std::vector<double> shortest_;
};

ProfileCell cell_of(std::vector<std::int64_t> at, double seconds) {
  return {.at = std::move(at),
          .p25_seconds = seconds,
          .median_seconds = seconds,
          .p75_seconds = seconds,
          .n = 1};
}

const ProfileTable* find_grid(const Profile& profile, DataType type) {
  for (const ProfileTable* table : find_tables(profile, OperationId::gemm_grid)) {
    if (!table->cells.empty() && table->dtype == type) {
      return table;
    }
  }
  return nullptr;
}

std::int64_t size_or(const ProfileTable& table, const char* key, std::int64_t absent) {
  const auto found = table.shape.find(key);
  return found == table.shape.end() ? absent : found->second;
}

}  // namespace

Rates device_rates(const Profile& profile, std::optional<DataType> type, CacheState cache) {
  const ProfileDevice& device = profile.device;
  double peak = device.peak.value;
  if (type && bytes_of(*type) <= 1) {
    const FlopsPerSecond eight = device.peak_8bit.value_or(device.peak);
    const bool four = *type == DataType::nvfp4 || *type == DataType::mxfp4;
    peak = (four ? device.peak_4bit.value_or(eight) : eight).value;
  }
  return {.flops_per_second = peak,
          .bytes_per_second = cache == CacheState::hot ? std::numeric_limits<double>::infinity()
                                                       : device.memory_bandwidth.value};
}

AttentionShape attention_of(const ProfileTable& table) {
  return {.attention_heads = table.shape.at("attention_heads"),
          .kv_heads = table.shape.at("kv_heads"),
          .head_dim = table.shape.at("head_dim"),
          .element_bytes = table.shape.at("element_bytes")};
}

std::int64_t window_of(const ProfileTable& table) { return size_or(table, "window", 0); }

std::optional<ShapedTable> interpolate_matrix(const Profile& profile, const ProfileTable& grid,
                                              std::int64_t n, std::int64_t k) {
  KVTIER_ASSERT(grid.operation == OperationId::gemm_grid && grid.dtype, "matrices of any shape");
  const std::vector<std::int64_t> tokens = axis_values(grid.cells, 0);
  const std::vector<std::int64_t> ns = axis_values(grid.cells, 1);
  const std::vector<std::int64_t> ks = axis_values(grid.cells, 2);
  if (tokens.empty()) {
    return std::nullopt;
  }
  std::vector<Plane> planes(tokens.size(), Plane(ns, ks));
  const auto index = [](const std::vector<std::int64_t>& values, std::int64_t value) {
    return static_cast<std::size_t>(std::ranges::lower_bound(values, value) - values.begin());
  };
  for (const ProfileCell& cell : grid.cells) {
    planes[index(tokens, cell.at[0])].set(index(ns, cell.at[1]), index(ks, cell.at[2]),
                                          cell.median_seconds);
  }
  for (std::size_t i = planes.size(); i-- > 0;) {
    planes[i].bound(i + 1 < planes.size() ? &planes[i + 1] : nullptr);
  }
  const Bracket in_n = bracket(ns, n);
  const Bracket in_k = bracket(ks, k);
  const Rates rates = device_rates(profile, grid.dtype, grid.cache);
  const double bytes = bytes_of(*grid.dtype);
  ShapedTable result{.table = grid, .extrapolated = in_n.outside || in_k.outside};
  result.table.operation = OperationId::gemm;
  result.table.axes = profile_operation(OperationId::gemm).axes;
  result.table.shape = {
      {"n", n}, {"k", k}, {"element_bytes", std::max<std::int64_t>(1, std::llround(bytes))}};
  result.table.cells.clear();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double log_time = 0;
    bool known = true;
    for (const auto& [row, row_weight] :
         {std::pair{in_n.below, 1 - in_n.weight}, std::pair{in_n.above, in_n.weight}}) {
      for (const auto& [column, column_weight] :
           {std::pair{in_k.below, 1 - in_k.weight}, std::pair{in_k.above, in_k.weight}}) {
        if (const double weight = row_weight * column_weight; weight > 0) {
          const std::optional<double> corner = planes[i].at(row, column);
          known = known && corner;
          log_time += weight * corner.value_or(0);
        }
      }
    }
    if (!known) {
      continue;
    }
    double seconds = std::exp(log_time);
    if (result.extrapolated) {
      const auto rows = static_cast<double>(tokens[i]);
      const MatrixShape nearest{"", std::clamp(n, ns.front(), ns.back()),
                                std::clamp(k, ks.front(), ks.back())};
      seconds *= matrix_seconds({"", n, k}, bytes, rows, rates) /
                 matrix_seconds(nearest, bytes, rows, rates);
    }
    result.table.cells.push_back(cell_of({tokens[i]}, seconds));
  }
  return result.table.cells.empty() ? std::nullopt : std::optional(std::move(result));
}

std::optional<ShapedTable> interpolate_matrix(const Profile& profile, std::int64_t n,
                                              std::int64_t k, DataType type) {
  const ProfileTable* grid = find_grid(profile, type);
  return grid == nullptr ? std::nullopt : interpolate_matrix(profile, *grid, n, k);
}

std::optional<ShapedTable> interpolate_attention(const Profile& profile, OperationId operation,
                                                 const AttentionShape& shape, std::int64_t window,
                                                 DataType type) {
  const ProfileTable* below = nullptr;
  const ProfileTable* above = nullptr;
  const auto heads = [](const ProfileTable& table) { return table.shape.at("attention_heads"); };
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if (table->cells.empty() || table->shape.at("kv_heads") != shape.kv_heads ||
        table->shape.at("head_dim") != shape.head_dim || window_of(*table) != window ||
        type_of(*table) != type) {
      continue;
    }
    if (heads(*table) <= shape.attention_heads &&
        (below == nullptr || heads(*table) > heads(*below))) {
      below = table;
    }
    if (heads(*table) >= shape.attention_heads &&
        (above == nullptr || heads(*table) < heads(*above))) {
      above = table;
    }
  }
  if (below == nullptr && above == nullptr) {
    return std::nullopt;
  }
  const bool outside = below == nullptr || above == nullptr;
  const ProfileTable& nearest = below == nullptr ? *above : *below;
  ShapedTable result{.table = nearest, .extrapolated = outside};
  result.table.shape["attention_heads"] = shape.attention_heads;
  if (outside) {
    // More heads on the same KV compute more and read the same; fewer heads take no longer.
    const double ratio =
        static_cast<double>(shape.attention_heads) / static_cast<double>(heads(nearest));
    for (ProfileCell& cell : result.table.cells) {
      const double seconds = cell.median_seconds * std::max(1.0, ratio);
      cell = cell_of(cell.at, seconds);
    }
  } else if (heads(*below) != shape.attention_heads) {
    std::map<std::vector<std::int64_t>, double> upper;
    for (const ProfileCell& cell : above->cells) {
      upper[cell.at] = cell.median_seconds;
    }
    const double weight = (log_of(shape.attention_heads) - log_of(heads(*below))) /
                          (log_of(heads(*above)) - log_of(heads(*below)));
    result.table.cells.clear();
    for (const ProfileCell& cell : below->cells) {
      if (const auto other = upper.find(cell.at); other != upper.end()) {
        result.table.cells.push_back(cell_of(
            cell.at,
            std::exp(std::lerp(std::log(cell.median_seconds), std::log(other->second), weight))));
      }
    }
    if (result.table.cells.empty()) {
      return std::nullopt;
    }
  }
  return result;
}

double attained_flops(const ProfileTable& table) {
  const ProfileCell* longest = nullptr;
  for (const ProfileCell& cell : table.cells) {
    if (cell.at[1] == 0 && (longest == nullptr || cell.at[0] > longest->at[0])) {
      longest = &cell;
    }
  }
  KVTIER_ASSERT(longest != nullptr, "a prefill without past tokens was measured");
  return 4.0 * static_cast<double>(table.shape.at("attention_heads") * table.shape.at("head_dim")) *
         attention_pairs(static_cast<double>(longest->at[0]), 0, window_of(table)) /
         longest->median_seconds;
}

double past_law_seconds(const ProfileTable& table, double flops_per_second, double added,
                        double past) {
  const std::int64_t window = window_of(table);
  const double head = static_cast<double>(table.shape.at("head_dim"));
  const double pairs = attention_pairs(added, past, window) - attention_pairs(added, 0, window);
  const double walked = window == 0 ? past : std::min(past, static_cast<double>(window));
  return std::max(
      4 * static_cast<double>(table.shape.at("attention_heads")) * head * pairs / flops_per_second,
      2 * head * static_cast<double>(table.shape.at("element_bytes")) * walked /
          kPastBytesPerSecond);
}

bool add_past_by_law(ProfileTable& table) {
  const auto has_past = [](const ProfileCell& cell) { return cell.at[1] > 0; };
  if (table.cells.empty() || std::ranges::any_of(table.cells, has_past)) {
    return false;
  }
  const double flops = attained_flops(table);
  const std::vector<ProfileCell> measured = table.cells;
  // The law has a kink at the length with a full window.
  std::vector<std::int64_t> pasts(kPastTokens.begin(), kPastTokens.end());
  if (const std::int64_t window = window_of(table);
      window > 0 && std::ranges::find(pasts, window) == pasts.end()) {
    pasts.push_back(window);
  }
  for (const ProfileCell& cell : measured) {
    for (const std::int64_t past : pasts) {
      const double longer = past_law_seconds(table, flops, static_cast<double>(cell.at[0]),
                                             static_cast<double>(past));
      table.cells.push_back(cell_of({cell.at[0], past}, cell.median_seconds + longer));
    }
  }
  return true;
}

}  // namespace kvtier
