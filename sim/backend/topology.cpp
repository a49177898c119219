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

void Edge::add_start(const CurveStart& start) {
  latency += start.latency;
  if (start.alone && *start.alone < idle_rate) {
    slow_starts.push_back(
        {.depth = start.depth, .ns_per_byte = 1e9 / start.alone->value - 1e9 / idle_rate.value});
  }
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
  }
  for (const LinkUse& use : uses) {
    const Link& link = links[use.link];
    edge.add_start(use.forward ? link.forward_start : link.backward_start);
  }
  edge.uses = std::move(uses);
  edges.push_back(std::move(edge));
  return edges.back();
}

std::optional<std::size_t> Topology::find_link(std::string_view name) const {
  const auto found = std::ranges::find(links, name, &Link::name);
  return found == links.end() ? std::nullopt : std::optional(found - links.begin());
}

namespace {

/// The shares of a link's two ways that such work leaves.
LinkShares shares_left(const HardwareConfig& hardware, ContendedWay forward, ContendedWay backward,
                       ContendingWork work) {
  LinkShares shares;
  for (const Contention& item : hardware.contention) {
    if (item.while_work == work && item.on == forward) {
      shares.forward = item.left;
    } else if (item.while_work == work && item.on == backward) {
      shares.backward = item.left;
    }
  }
  return shares;
}

}  // namespace

Topology server_topology(const HardwareConfig& hardware) {
  std::vector<std::string> media;
  for (std::size_t i = 0; i < kMedia; ++i) {
    media.emplace_back(to_string(static_cast<Medium>(i)));
  }
  Topology topology(std::move(media));
  const auto add_link = [&](const char* name, const DuplexCurves& curves, WaitCause wait) {
    topology.links.push_back({.name = name,
                              .limits = {curves.forward.rate, curves.backward.rate, curves.both},
                              .wait = wait,
                              .forward_start = curves.forward,
                              .backward_start = curves.backward});
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
    DuplexCurves curves{.forward = {}, .backward = {}, .both = *bandwidth};
    curves.forward.rate = curves.backward.rate = *bandwidth;
    bus = add_link("dram", curves, WaitCause::host_memory);
  }
  const auto connect = [&](Medium from, Medium to, std::vector<LinkUse> uses) {
    if (bus && (from == dram || to == dram)) {
      uses.push_back({*bus, from == dram});
    }
    topology.connect(from, to, std::move(uses));
  };
  for (const auto& [work, beside] :
       {std::pair{ContendingWork::compute, std::optional<std::size_t>()},
        std::pair{ContendingWork::pcie, std::optional(pcie)}}) {
    const auto slow_down = [&, work = work, beside = beside](std::size_t link, ContendedWay forward,
                                                             ContendedWay backward) {
      if (const LinkShares left = shares_left(hardware, forward, backward, work);
          left != LinkShares()) {
        topology.interference.push_back({.link = link, .left = left, .beside = beside});
      }
    };
    slow_down(pcie, ContendedWay::pcie_to_device, ContendedWay::pcie_to_host);
    if (drive) {
      slow_down(*drive, ContendedWay::ssd_read, ContendedWay::ssd_write);
    }
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
  if (hardware.ssd && hardware.ssd->bandwidth.load) {
    Edge& edge = topology.edges[topology.find_edge(ssd, hbm)];
    edge.latency = {};
    edge.slow_starts.clear();
    edge.add_start(*hardware.ssd->bandwidth.load);
  }
  return topology;
}

}  // namespace kvtier
