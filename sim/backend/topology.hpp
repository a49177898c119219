#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hw/model/hardware.hpp"
#include "sim/backend/backend.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// The cause that keeps the next waiting request from admission, or GPUs from computing.
enum class WaitCause : std::uint8_t {
  batch_slots,   // as many requests run as there are slots
  hbm_for_kv,    // its KV has no room in HBM
  gpu_compute,   // the GPUs compute
  host_link,     // they wait for KV that comes over the link to the host
  host_memory,   // the same, where the memory's own bandwidth is the least of the way
  cxl_memory,    // the same
  drive,         // the same
  write_buffer,  // they wait for KV that leaves HBM
};
inline constexpr std::size_t kWaitCauses = 8;
[[nodiscard]] const char* to_string(WaitCause cause);

/// A bus, drive or network that transfers share.
struct Link {
  std::string name;
  /// `forward` is towards the GPUs.
  DuplexLimits limits;
  /// Cause of waiting if this is the slowest link of a load.
  WaitCause wait = WaitCause::host_link;
};

/// The part of an edge on one link.
struct LinkUse {
  std::size_t link;
  bool forward;
};

/// Other work that slows a link down.
struct LinkInterference {
  std::size_t link;
  LinkShares left;
  /// The link whose transfers slow it down; none: computing does.
  std::optional<std::size_t> beside{};
};

/// KV moves from one medium to another over these links, at the rate of the slowest.
struct Edge {
  Medium from;
  Medium to;
  std::vector<LinkUse> uses;
  /// Time of a transfer beyond its bytes at the shared rate: a latency, and additional time for
  /// each of its first bytes, at most `first_bytes`.
  SimDuration latency{};
  Bytes first_bytes{};
  double ns_per_first_byte = 0;
  /// Rate of a transfer when nothing else moves or computes, and the link that limits it (the first
  /// of equal ones).
  BytesPerSecond idle_rate{};
  std::size_t slowest_link = 0;

  [[nodiscard]] SimDuration beginning(Bytes bytes) const {
    return latency +
           ceil_ns(ns_per_first_byte * static_cast<double>(std::min(bytes, first_bytes).value));
  }
  /// Time of a transfer when nothing else moves or computes.
  [[nodiscard]] SimDuration idle_time(Bytes bytes) const {
    return transfer_duration(bytes, idle_rate) + beginning(bytes);
  }
};

/// Media, the links between them, and the edges along which KV moves: any graph, described once.
/// The simulated backend shares its links among transfers. Durations of transfers and causes of
/// waiting come from here.
struct Topology {
  /// Names by Medium. There may be more media than those of one server.
  explicit Topology(std::vector<std::string> names)
      : media(std::move(names)),
        media_count_(media.size()),
        edges_by_media_(media_count_ * media_count_, kNoEdge) {}

  std::vector<std::string> media;
  std::vector<Link> links;
  std::vector<Edge> edges;
  std::vector<LinkInterference> interference;

  /// Appends an edge. All links and their interference must exist. Latencies of links add up.
  Edge& connect(Medium from, Medium to, std::vector<LinkUse> uses);
  static constexpr std::size_t kNoEdge = SIZE_MAX;
  /// The number of an edge between two of the media.
  [[nodiscard]] std::size_t find_edge(Medium from, Medium to) const {
    return edges_by_media_[place(from, to)];
  }
  /// The edge exists.
  [[nodiscard]] const Edge& edge(Medium from, Medium to) const {
    const std::size_t found = find_edge(from, to);
    KVTIER_ASSERT(found != kNoEdge, "KV moves along an edge of the topology");
    return edges[found];
  }
  [[nodiscard]] std::optional<std::size_t> find_link(std::string_view name) const;
  /// A link's limits while GPUs compute or not, and transfers cross the links of `busy`.
  template <class Busy>
  [[nodiscard]] DuplexLimits limits_beside(std::size_t link, bool computing, Busy busy) const {
    DuplexLimits limits = links[link].limits;
    for (const LinkInterference& other : interference) {
      if (other.link == link && (other.beside ? busy(*other.beside) : computing)) {
        limits.forward = limits.forward * other.left.forward;
        limits.backward = limits.backward * other.left.backward;
        limits.both = limits.both * std::max(other.left.forward, other.left.backward);
      }
    }
    return limits;
  }

  /// Cause of waiting for a transfer when nothing else moves.
  [[nodiscard]] WaitCause wait_cause(Medium from, Medium to) const {
    return links[edge(from, to).slowest_link].wait;
  }
  [[nodiscard]] SimDuration idle_time(Medium from, Medium to, Bytes bytes) const {
    return edge(from, to).idle_time(bytes);
  }

 private:
  [[nodiscard]] std::size_t place(Medium from, Medium to) const {
    return static_cast<std::size_t>(from) * media_count_ + static_cast<std::size_t>(to);
  }

  std::size_t media_count_;
  /// Numbers of edges, by `from` and then `to`.
  std::vector<std::size_t> edges_by_media_;
};

/// One server: HBM reaches DRAM and drives over PCIe, the links of all GPUs as one, and CXL memory
/// over a link of its own. `dram` is the host's memory bus, a link where the hardware gives its
/// bandwidth: it carries what goes to or from DRAM, and not what moves between drives or CXL memory
/// and HBM. Only what is installed is there.
[[nodiscard]] Topology server_topology(const HardwareConfig& hardware);

}  // namespace kvtier
