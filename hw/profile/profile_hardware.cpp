#include "hw/profile/profile_hardware.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/quantity.hpp"
#include "sim/core/statistics.hpp"

namespace kvtier {
namespace {

double rate_of(const ProfileCell& cell) {
  return static_cast<double>(cell.at[0]) / cell.median_seconds;
}

/// The best rate of a group of tables, in bytes per second; the first axis is the bytes of one
/// sample. Tables measured after idle time count only on request.
std::optional<double> best_rate(
    const Profile& profile, OperationId operation, std::optional<std::string_view> variant = {},
    const std::function<bool(const ProfileCell&)>& counts = [](const auto&) { return true; }) {
  std::optional<double> best;
  for (const ProfileTable* table : find_tables(profile, operation, variant)) {
    if (!variant && table->variant == kAfterIdle) {
      continue;
    }
    for (const ProfileCell& cell : table->cells) {
      const double rate = rate_of(cell);
      if (counts(cell) && (!best || rate > *best)) {
        best = rate;
      }
    }
  }
  return best;
}

/// The rates of the copy engine's copies of pieces, by the size of a piece.
std::map<std::int64_t, double> copies_of_pieces(const Profile& profile, OperationId operation) {
  std::map<std::int64_t, double> best;
  for (const ProfileTable* table : find_tables(profile, operation, "pinned")) {
    for (const ProfileCell& cell : table->cells) {
      if (cell.at[1] > 1 && table->method == kCopyEngine) {
        double& rate = best[cell.at[0] / cell.at[1]];
        rate = std::max(rate, rate_of(cell));
      }
    }
  }
  return best;
}

double log_ratio(std::int64_t a, std::int64_t b) {
  return std::log(static_cast<double>(a) / static_cast<double>(b));
}

/// The rate of copies in pieces: log-log interpolation between measured sizes, the nearest size
/// beyond them. Nullopt if no pieces were measured.
std::optional<double> rate_of_pieces(const Profile& profile, OperationId operation, Bytes piece) {
  const std::map<std::int64_t, double> best = copies_of_pieces(profile, operation);
  if (best.empty()) {
    return std::nullopt;
  }
  const auto above = best.lower_bound(piece.value);
  if (above == best.end()) {
    return best.rbegin()->second;
  }
  if (above == best.begin() || above->first == piece.value) {
    return above->second;
  }
  const auto& [size, below] = *std::prev(above);
  return below * std::pow(above->second / below,
                          log_ratio(piece.value, size) / log_ratio(above->first, size));
}

/// One way of a link or drive. Rates are in bytes per second.
struct MeasuredCurve {
  std::optional<double> rate;
  /// The rate of the first `depth` bytes.
  std::optional<double> alone{};
  std::int64_t depth = 0;
};

struct MeasuredLink {
  MeasuredCurve forward;
  MeasuredCurve backward;
  std::optional<double> both{};
  std::optional<double> latency{};  // seconds
};

/// A share of at most 1, in thousandths, because measurements are no more precise.
double share(double beside, double alone) {
  return std::clamp(std::round(1000 * beside / alone), 1.0, 1000.0) / 1000;
}

std::string rate_text(double rate) { return format_quantity(BytesPerSecond(rate)); }

std::string time_text(double seconds) { return format_quantity(duration_from_seconds(seconds)); }

/// A plain rate where nothing else was measured.
Json curve_json(const MeasuredCurve& curve, std::optional<double> latency) {
  Json json{{"rate", rate_text(*curve.rate)}};
  if (latency) {
    json["latency"] = time_text(*latency);
  }
  if (curve.alone) {
    json["alone"] = rate_text(*curve.alone);
    json["depth"] = format_quantity(Bytes(curve.depth));
  }
  return json.size() == 1 ? json["rate"] : json;
}

/// Whether both ways together get an assumed rate if only each alone was measured.
enum class Both : std::uint8_t { unknown, assumed };

Json link_json(const MeasuredLink& link, const char* forward, const char* backward) {
  Json json = Json::object();
  for (const auto& [key, curve] :
       {std::pair{forward, &link.forward}, std::pair{backward, &link.backward}}) {
    if (curve->rate) {
      json[key] = curve_json(*curve, link.latency);
    }
  }
  if (link.both && link.forward.rate && link.backward.rate) {
    json["both"] = rate_text(std::max({*link.both, *link.forward.rate, *link.backward.rate}));
  }
  return json;
}

/// The median, over copy sizes, of the share of the rate that computing leaves.
std::optional<double> share_beside_compute(const Profile& profile, const char* way,
                                           OperationId one_way) {
  std::vector<const ProfileTable*> alone = find_tables(profile, OperationId::copy_duplex, way);
  if (alone.empty()) {
    alone = find_tables(profile, one_way, "pinned");
  }
  std::vector<double> shares;
  for (const ProfileTable* table : find_tables(profile, OperationId::copy_beside_compute, way)) {
    for (const ProfileCell& cell : table->cells) {
      for (const ProfileTable* other : alone) {
        for (const ProfileCell& same : other->cells) {
          const bool in_one_piece = same.at.size() == 1 || same.at[1] == 1;
          if (same.at[0] == cell.at[0] && in_one_piece) {
            shares.push_back(share(same.median_seconds, cell.median_seconds));
          }
        }
      }
    }
  }
  if (shares.empty()) {
    return std::nullopt;
  }
  std::ranges::sort(shares);
  return lower_quantile(shares, 0.5);
}

/// Copies in such pieces are slower than copies in one piece. Both ways together lose the same
/// share.
void limit_to_pieces(MeasuredLink& link, const Profile& profile, Bytes piece) {
  const auto lower = [&](std::optional<double>& limit, OperationId operation) {
    const std::optional<double> rate = rate_of_pieces(profile, operation, piece);
    if (limit && rate) {
      limit = std::min(*limit, *rate);
    }
  };
  const auto one_way = [&] { return *link.forward.rate + *link.backward.rate; };
  const bool has_both = link.both && link.forward.rate && link.backward.rate;
  const double at_once = has_both ? *link.both / one_way() : 0;
  lower(link.forward.rate, OperationId::copy_h2d);
  lower(link.backward.rate, OperationId::copy_d2h);
  if (has_both) {
    link.both = at_once * one_way();
  }
}

/// The overhead of one call (call_overhead).
std::optional<double> overhead(const Profile& profile, const char* variant) {
  std::optional<double> seconds;
  for (const ProfileTable* table : find_tables(profile, OperationId::call_overhead, variant)) {
    if (!table->cells.empty()) {
      seconds = table->cells.front().median_seconds;
    }
  }
  return seconds;
}

Json host_link(const Profile& profile, std::optional<Bytes> piece, Both both) {
  using enum OperationId;
  MeasuredLink link{.forward = {.rate = best_rate(profile, copy_duplex, "to_device")},
                    .backward = {.rate = best_rate(profile, copy_duplex, "to_host")}};
  const auto forward = best_rate(profile, copy_duplex, "to_device_of_both");
  const auto backward = best_rate(profile, copy_duplex, "to_host_of_both");
  if (forward && backward) {
    link.both = *forward + *backward;
  }
  if (!link.forward.rate) {
    link.forward.rate = best_rate(profile, copy_h2d);
  }
  if (!link.backward.rate) {
    link.backward.rate = best_rate(profile, copy_d2h);
  }
  if (both == Both::assumed && !link.both) {
    link.both = link.forward.rate.value_or(0) + link.backward.rate.value_or(0);
  }
  if (piece) {
    limit_to_pieces(link, profile, *piece);
  }
  // A thread that waits for a copy is notified of its end in this way.
  link.latency = overhead(profile, kTransfer);
  if (!link.latency) {
    link.latency = overhead(profile, kEvent);
  }
  Json json = link_json(link, "to_device", "to_host");
  if (!json.empty()) {
    json["of"] = "gpu";
  }
  return json;
}

/// The block that `prefers` ranks first (smallest or largest) among those read or written one at a
/// time, after idle time or in a loop.
template <class Prefers>
const ProfileCell* one_block(const Profile& profile, OperationId operation, bool after_idle,
                             Prefers prefers) {
  const ProfileCell* best = nullptr;
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if ((table->variant == kAfterIdle) != after_idle) {
      continue;
    }
    for (const ProfileCell& cell : table->cells) {
      if (cell.at[1] == 1 && (best == nullptr || prefers(cell.at[0], best->at[0]))) {
        best = &cell;
      }
    }
  }
  return best;
}

const ProfileCell* smallest_block(const Profile& profile, bool after_idle) {
  return one_block(profile, OperationId::drive_read, after_idle, std::less());
}

/// Sets the rate of a single block after idle time, the largest measured, without the latency, if
/// it is lower than the rate at saturation.
void add_start(MeasuredCurve& curve, const Profile& profile, OperationId operation,
               std::optional<double> latency) {
  const ProfileCell* const block = one_block(profile, operation, true, std::greater());
  if (block == nullptr || !latency || !curve.rate) {
    return;
  }
  const auto size = static_cast<double>(block->at[0]);
  const double seconds = block->median_seconds - *latency;
  if (size < *curve.rate * seconds) {
    curve.alone = size / seconds;
    curve.depth = block->at[0];
  }
}

/// The start of loads by the copy engine after idle time, from the smallest and the largest size.
Json load_start(const Profile& profile) {
  std::map<std::int64_t, double> seconds;
  for (const ProfileTable* table : find_tables(profile, OperationId::drive_to_device, kAfterIdle)) {
    if (table->method == kCopyEngine) {
      for (const ProfileCell& cell : table->cells) {
        seconds[cell.at[0]] = cell.median_seconds;
      }
    }
  }
  if (seconds.size() < 2) {
    return nullptr;
  }
  const auto& [small, fast] = *seconds.begin();
  const auto& [large, slow] = *seconds.rbegin();
  if (slow <= fast) {
    return nullptr;
  }
  const double rate = static_cast<double>(large - small) / (slow - fast);
  const double latency = std::max(0.0, fast - static_cast<double>(small) / rate);
  return Json{{"latency", time_text(latency)},
              {"alone", rate_text(rate)},
              {"depth", format_quantity(Bytes(large))}};
}

/// drive_beside_copies does not flush its writes, and a burst does not either.
std::optional<double> share_beside_copies(const Profile& profile, const char* way) {
  using enum OperationId;
  const auto beside = best_rate(profile, drive_beside_copies, way);
  const auto same_block = [](const ProfileCell& cell) { return cell.at[0] == kDriveRequestBytes; };
  const bool reads = std::string_view(way) == "read";
  auto alone = reads ? best_rate(profile, drive_read, {}, same_block)
                     : best_rate(profile, drive_write, "burst", same_block);
  if (!reads && !alone) {
    alone = best_rate(profile, drive_write, {}, same_block);
  }
  return beside && alone ? std::optional(share(*beside, *alone)) : std::nullopt;
}

Json drives(const Profile& profile, Both both) {
  using enum OperationId;
  MeasuredLink link{.forward = {.rate = best_rate(profile, drive_read)},
                    .backward = {.rate = best_rate(profile, drive_write, "sustained")},
                    .both = best_rate(profile, drive_mix, {}, [](const ProfileCell& cell) {
                      return cell.at[2] > 0 && cell.at[2] < 100;
                    })};
  if (!link.backward.rate) {
    link.backward.rate = best_rate(profile, drive_write);
  }
  if (both == Both::assumed && !link.both) {
    link.both = 0;  // at least one way alone
  }
  // Most transfers find the drive idle, so the latency after idle time applies.
  const ProfileCell* first = smallest_block(profile, true);
  if (first == nullptr) {
    first = smallest_block(profile, false);
  }
  if (first != nullptr) {
    link.latency = first->median_seconds;
  }
  add_start(link.forward, profile, drive_read, link.latency);
  add_start(link.backward, profile, drive_write, link.latency);
  Json json = link_json(link, "read", "write");
  if (Json load = load_start(profile); !load.is_null()) {
    json["load"] = std::move(load);
  }
  return json;
}

Json contention(const Profile& profile) {
  using enum OperationId;
  Json list = Json::array();
  const auto add = [&list](const char* on, const char* work, std::optional<double> left) {
    if (left) {
      list.push_back(Json{{"on", on}, {"while", work}, {"left", *left}});
    }
  };
  add("pcie_to_device", "compute", share_beside_compute(profile, "to_device", copy_h2d));
  add("pcie_to_host", "compute", share_beside_compute(profile, "to_host", copy_d2h));
  add("ssd_read", "pcie", share_beside_copies(profile, "read"));
  add("ssd_write", "pcie", share_beside_copies(profile, "write"));
  return list;
}

Json measured_keys(const Profile& profile, std::optional<Bytes> piece, Both both) {
  Json json = Json::object();
  if (Json link = host_link(profile, piece, both); !link.empty()) {
    json["links"]["pcie"] = std::move(link);
  }
  if (Json bandwidth = drives(profile, both); !bandwidth.empty()) {
    json["ssd"]["bandwidth"] = std::move(bandwidth);
    if (const ProfileCell* block = smallest_block(profile, false)) {
      json["ssd"]["block"] = format_quantity(Bytes(block->at[0]));
    }
  }
  if (Json list = contention(profile); !list.empty()) {
    json["contention"] = std::move(list);
  }
  for (const ProfileTable* table :
       find_tables(profile, OperationId::control_step, "scheduler_step")) {
    if (!table->cells.empty()) {
      const ProfileCell& most = *std::ranges::max_element(table->cells, {}, &ProfileCell::at);
      json["efficiency"]["iteration_overhead"] = time_text(most.median_seconds);
    }
  }
  if (const std::optional<double> seconds = overhead(profile, kHandOver)) {
    json["efficiency"]["command_overhead"] = time_text(2 * *seconds);
  }
  return json;
}

}  // namespace

Json measured_hardware(const Profile& profile, std::optional<Bytes> piece) {
  return measured_keys(profile, piece, Both::unknown);
}

Json described_hardware(const Profile& profile, std::optional<Bytes> piece) {
  const ProfileDevice& device = profile.device;
  Json json{
      {"name", profile.name},
      {"source", "Measured " + profile.provenance.date},
      {"gpus", 1},
      {"gpu", {{"name", device.name}, {"peak", format_quantity(device.peak)}, {"price", "0$/h"}}},
      {"hbm",
       {{"capacity", format_quantity(device.memory)},
        {"bandwidth", format_quantity(device.memory_bandwidth)}}}};
  if (profile.host) {
    json["dram"] = Json{{"capacity", format_quantity(profile.host->memory)}, {"price", "0$/h/GiB"}};
  }
  Json measured = measured_keys(profile, piece, Both::assumed);
  if (!profile.storage) {
    measured.erase("ssd");
  } else if (measured.contains("ssd")) {
    json["ssd"] =
        Json{{"capacity", format_quantity(profile.storage->capacity)}, {"price", "0$/h/GiB"}};
  }
  json["links"] = Json{{"pcie", Json::object()}};
  json["efficiency"] =
      Json{{"compute", 1}, {"memory", 1}, {"gpu_link", 1}, {"iteration_overhead", "0ns"}};
  json.merge_patch(measured);
  return json;
}

}  // namespace kvtier
