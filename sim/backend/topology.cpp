#include "sim/backend/topology.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {

const char* to_string(WaitCause cause) {
  constexpr std::array<const char*, kWaitCauses> names{"batch_slots", "hbm_for_kv",  "gpu_compute",
                                                       "host_link",   "host_memory", "cxl_memory",
                                                       "drive",       "write_buffer"};
  return names[static_cast<std::size_t>(cause)];
}

Edge& Topology::connect(Medium from, Medium to, std::vector<LinkUse> uses) {
  KVTIER_ASSERT(static_cast<std::size_t>(std::max(from, to)) < media_count_,
                "an edge connects media");
  KVTIER_ASSERT(find_edge(from, to) == kNoEdge, "two media have one edge each way");
  KVTIER_ASSERT(!uses.empty(), "an edge has links");
  edges_by_media_[place(from, to)] = edges.size();
  const auto crosses = [&](std::size_t link) {
    return std::ranges::any_of(uses, [&](const LinkUse& use) { return use.link == link; });
  };
  Edge edge{.from = from, .to = to};
  for (const LinkUse& use : uses) {
    const DuplexLimits limits = limits_beside(use.link, false, crosses);
    const BytesPerSecond rate =
        std::min(use.forward ? limits.forward : limits.backward, limits.both);
    if (edge.idle_rate.value == 0 || rate < edge.idle_rate) {
      edge.idle_rate = rate;
      edge.slowest_link = use.link;
    }
    edge.latency += limits.latency;
  }
  edge.uses = std::move(uses);
  edges.push_back(std::move(edge));
  return edges.back();
}

std::optional<std::size_t> Topology::find_link(std::string_view name) const {
  const auto found = std::ranges::find(links, name, &Link::name);
  return found == links.end() ? std::nullopt : std::optional(found - links.begin());
}

Topology server_topology(const HardwareConfig& hardware) {
  std::vector<std::string> media;
  for (std::size_t i = 0; i < kMedia; ++i) {
    media.emplace_back(to_string(static_cast<Medium>(i)));
  }
  Topology topology(std::move(media));
  const auto add_link = [&](const char* name, const DuplexLimits& limits, WaitCause wait) {
    topology.links.push_back({name, limits, wait});
    return topology.links.size() - 1;
  };
  using enum Medium;
  constexpr bool kForward = true;
  constexpr bool kBackward = false;
  const std::size_t pcie = add_link("pcie", host_link(hardware), WaitCause::host_link);
  const std::optional<BytesPerSecond> bandwidth = dram_bandwidth_left(hardware);
  std::optional<std::size_t> drive;
  std::optional<std::size_t> expander;
  std::optional<std::size_t> bus;
  if (hardware.ssd) {
    drive = add_link("ssd", hardware.ssd->bandwidth, WaitCause::drive);
  }
  if (hardware.cxl) {
    expander = add_link("cxl", hardware.cxl->bandwidth, WaitCause::cxl_memory);
  }
  if (bandwidth) {
    bus = add_link("dram", {*bandwidth, *bandwidth, *bandwidth}, WaitCause::host_memory);
  }
  const auto connect = [&](Medium from, Medium to, std::vector<LinkUse> uses) {
    if (bus && (from == dram || to == dram)) {
      uses.push_back({*bus, from == dram});
    }
    topology.connect(from, to, std::move(uses));
  };
  if (hardware.links.pcie.beside_compute != HostLinkShares()) {
    topology.interference.push_back(
        {.link = pcie, .left = hardware.links.pcie.beside_compute, .beside = {}});
  }
  if (hardware.ssd && hardware.ssd->bandwidth.beside_copies != DriveShares()) {
    topology.interference.push_back(
        {.link = *drive, .left = hardware.ssd->bandwidth.beside_copies, .beside = pcie});
  }
  connect(dram, hbm, {{pcie, kForward}});
  connect(hbm, dram, {{pcie, kBackward}});
  if (drive) {
    connect(ssd, hbm, {{pcie, kForward}, {*drive, kForward}});
    connect(hbm, ssd, {{pcie, kBackward}, {*drive, kBackward}});
    connect(ssd, dram, {{*drive, kForward}});
    connect(dram, ssd, {{*drive, kBackward}});
  }
  if (expander) {
    connect(cxl, hbm, {{*expander, kForward}});
    connect(hbm, cxl, {{*expander, kBackward}});
    connect(cxl, dram, {{*expander, kForward}});
    connect(dram, cxl, {{*expander, kBackward}});
  }
  if (drive && expander) {
    connect(ssd, cxl, {{*drive, kForward}, {*expander, kBackward}});
    connect(cxl, ssd, {{*expander, kForward}, {*drive, kBackward}});
  }
  if (!hardware.ssd) {
    return topology;
  }
  const auto begins = [&](Edge& edge, Bytes size, BytesPerSecond by_itself) {
    edge.first_bytes = size;
    edge.ns_per_first_byte = std::max(0.0, 1e9 / by_itself.value - 1e9 / edge.idle_rate.value);
  };
  for (Edge& edge : topology.edges) {
    const auto& one = hardware.ssd->bandwidth.one_request;
    const auto& load = hardware.ssd->bandwidth.one_load;
    if (one && edge.from == ssd) {
      begins(edge, one->size, one->read);
    } else if (one && edge.to == ssd) {
      begins(edge, one->size, one->write);
    }
    if (load && edge.from == ssd && edge.to == hbm) {
      begins(edge, load->size, load->rate);
      edge.latency = load->latency;
    }
  }
  return topology;
}

}  // namespace kvtier
