#include "hw/model/hardware.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace kvtier {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

double gib(Bytes bytes) { return static_cast<double>(bytes.value) / kGib; }

void check_duplex(const DuplexLimits& limits, const std::string& pointer, Problems& problems) {
  const BytesPerSecond one_way = std::max(limits.forward, limits.backward);
  if (limits.both < one_way) {
    problems.add(pointer + "/both",
                 fmt::format("both ways together ({}) are slower than one way alone ({})",
                             format_quantity(limits.both), format_quantity(one_way)));
  }
}

}  // namespace

void read_config(ProfileChoice& choice, const Json& json, const std::string& pointer,
                 Problems& problems) {
  if (!json.is_string() || json.get_ref<const std::string&>().empty()) {
    problems.add(pointer, "expected a profile's name or path, got " + quote_json(json));
    return;
  }
  choice.name = json.get<std::string>();
}

Json write_config(const ProfileChoice& choice) { return choice.name; }

Json config_schema(const ProfileChoice&) { return Json{{"type", "string"}}; }

void check_hardware(const HardwareConfig& hardware, const std::string& pointer,
                    Problems& problems) {
  check_duplex(hardware.links.pcie, pointer + "/links/pcie", problems);
  if (hardware.dram && hardware.dram->host_load.value > 0) {
    const std::string load = pointer + "/dram/host_load";
    const double most = 1 - *bounds::share().minimum;
    if (!hardware.dram->bandwidth) {
      problems.add(load, "a load needs /hardware/dram/bandwidth, which it takes a part of");
    } else if (hardware.dram->host_load > *hardware.dram->bandwidth * most) {
      problems.add(
          load,
          fmt::format("expected at most {}, which leaves a thousandth of the bandwidth, got {}",
                      format_quantity(*hardware.dram->bandwidth * most),
                      format_quantity(hardware.dram->host_load)));
    }
  }
  if (hardware.cxl) {
    check_duplex(hardware.cxl->bandwidth, pointer + "/cxl/bandwidth", problems);
  }
  if (hardware.ssd) {
    check_duplex(hardware.ssd->bandwidth, pointer + "/ssd/bandwidth", problems);
  }
  if (hardware.gpus > 1 && hardware.links.gpu.bandwidth.value < bounds::kSlowestLink) {
    problems.add(pointer + "/links/gpu/bandwidth",
                 fmt::format("{} GPUs need a link between them", hardware.gpus));
  }
  if (hardware.gpus > 1 && hardware.links.pcie.of == HostLinkOf::gpu && hardware.dram &&
      !hardware.dram->bandwidth) {
    problems.add(pointer + "/dram/bandwidth",
                 fmt::format("{} GPUs with a link to the host each need the bandwidth of the "
                             "host's memory, which they share, such as \"400GB/s\"; or set "
                             "/hardware/links/pcie/of to \"server\" if its rates are those of all "
                             "GPUs together",
                             hardware.gpus));
  }
}

std::optional<BytesPerSecond> dram_bandwidth_left(const HardwareConfig& hardware) {
  if (!hardware.dram || !hardware.dram->bandwidth) {
    return std::nullopt;
  }
  return *hardware.dram->bandwidth - hardware.dram->host_load;
}

DuplexLimits host_link(const HardwareConfig& hardware) {
  DuplexLimits link = hardware.links.pcie;
  if (hardware.links.pcie.of == HostLinkOf::gpu) {
    const auto links = static_cast<double>(hardware.gpus);
    link.forward = link.forward * links;
    link.backward = link.backward * links;
    link.both = link.both * links;
  }
  return link;
}

Bytes hbm_bytes(const HardwareConfig& hardware) { return hardware.hbm.capacity * hardware.gpus; }

Bytes kv_capacity(const ModelConfig& model, const HardwareConfig& hardware) {
  return std::max(Bytes(0), hbm_bytes(hardware) - weight_bytes(model));
}

void check_fits(const ModelConfig& model, const HardwareConfig& hardware, Problems& problems) {
  if (kv_capacity(model, hardware) > Bytes(0)) {
    return;
  }
  problems.add("/hardware/hbm/capacity",
               fmt::format("model {} needs {:.1f}GiB for its weights and more for KV, but {} x "
                           "{:.1f}GiB of HBM hold {:.1f}GiB",
                           model.name, gib(weight_bytes(model)), hardware.gpus,
                           gib(hardware.hbm.capacity), gib(hbm_bytes(hardware))));
}

}  // namespace kvtier
