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
  batch_slots,   // all batch slots are taken
  hbm_for_kv,    // its KV does not fit in HBM
  gpu_compute,   // the GPUs compute
  host_link,     // the GPUs wait for a load whose slowest link is the host link
  host_memory,   // the same for the bandwidth of host memory
  cxl_memory,    // the same for CXL memory
  drive,         // the same for the drives
  write_buffer,  // the GPUs wait for KV that leaves HBM
};
inline constexpr std::size_t kWaitCauses = 8;
[[nodiscard]] const char* to_string(WaitCause cause);

/// Three limits of a shared link or drive: one way, the other way, and both together. Transfers
/// share them by max-min fair rates (shared_links.hpp). `forward` is towards the GPUs.
struct DuplexLimits {
  BytesPerSecond forward;
  BytesPerSecond backward;
  BytesPerSecond both;

  friend bool operator==(const DuplexLimits&, const DuplexLimits&) = default;
};

/// A bus, drive or network that transfers share.
struct Link {
  std::string name;
  DuplexLimits limits;
  /// Cause of waiting if this is the slowest link of a load.
  WaitCause wait = WaitCause::host_link;
  /// Starts of the service curves each way.
  CurveStart forward_start{};
  CurveStart backward_start{};
};

/// Shares of a link's limits, in (0, 1], that other work leaves, one way and the other. Both ways
/// together keep the larger share.
struct LinkShares {
  double forward = 1;
  double backward = 1;

  friend bool operator==(const LinkShares&, const LinkShares&) = default;
};

/// One link of an edge, and the direction on it.
struct LinkUse {
  std::size_t link;
  bool forward;
};

/// Other work that slows a link down.
struct LinkInterference {
  std::size_t link;
  LinkShares left;
  /// The link whose transfers slow this link down; nullopt: computing slows it down.
  std::optional<std::size_t> beside{};
};

/// The extra time for each of the first `depth` bytes of a transfer over one link.
struct SlowStart {
  Bytes depth;
  double ns_per_byte;
};

/// A way of KV from one medium to another: its links. The slowest link limits the rate.
struct Edge {
  Medium from;
  Medium to;
  std::vector<LinkUse> uses;
  /// Time of a transfer in addition to its bytes at the shared rate: a latency, and the largest
  /// extra time of its links, which move the bytes at once.
  SimDuration latency{};
  std::vector<SlowStart> slow_starts{};
  /// Rate of a transfer without other transfers and computing, and the link that limits it (the
  /// first of equal ones).
  BytesPerSecond idle_rate{};
  std::size_t slowest_link = 0;

  [[nodiscard]] SimDuration beginning(Bytes bytes) const {
    double extra_ns = 0;
    for (const SlowStart& start : slow_starts) {
      extra_ns = std::max(
          extra_ns, start.ns_per_byte * static_cast<double>(std::min(bytes, start.depth).value));
    }
    return latency + ceil_ns(extra_ns);
  }
  /// Time of a transfer without other transfers and computing.
  [[nodiscard]] SimDuration idle_time(Bytes bytes) const {
    return transfer_duration(bytes, idle_rate) + beginning(bytes);
  }
  /// Adds the start of a link's curve. A rate `alone` above the idle rate has no extra time.
  void add_start(const CurveStart& start);
};

/// Media, the links between them, and the edges along which KV moves; any graph. The simulated
/// backend shares its links among transfers. Times of transfers and causes of waiting follow from
/// it.
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
  /// The number of the edge between two media, or kNoEdge.
  [[nodiscard]] std::size_t find_edge(Medium from, Medium to) const {
    return edges_by_media_[place(from, to)];
  }
  /// The edge between two media, which must exist.
  [[nodiscard]] const Edge& edge(Medium from, Medium to) const {
    const std::size_t found = find_edge(from, to);
    KVTIER_ASSERT(found != kNoEdge, "KV moves along an edge of the topology");
    return edges[found];
  }
  [[nodiscard]] std::optional<std::size_t> find_link(std::string_view name) const;
  /// A link's limits if `computing` tells that GPUs compute, and `busy` tells the links with
  /// transfers.
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

  /// Cause of waiting for a transfer without other transfers.
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
/// over a link of its own. Link `dram` is the host's memory bus, and exists if the hardware gives
/// its bandwidth. It carries transfers to and from DRAM, but not those between HBM and drives or
/// CXL memory. Only installed media have links and edges.
[[nodiscard]] Topology server_topology(const HardwareConfig& hardware);

}  // namespace kvtier
