#include "hw/model/hardware.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/histogram.hpp"

namespace kvtier {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

double gib(Bytes bytes) { return static_cast<double>(bytes.value) / kGib; }

void check_duplex(const DuplexCurves& curves, const std::string& pointer, Problems& problems) {
  const BytesPerSecond one_way = std::max(curves.forward.rate, curves.backward.rate);
  if (curves.both < one_way) {
    problems.add(pointer + "/both",
                 fmt::format("both ways together ({}) are slower than one way alone ({})",
                             format_quantity(curves.both), format_quantity(one_way)));
  }
}

void check_start(const CurveStart& start, const std::string& pointer, Problems& problems) {
  if (start.alone && start.depth.value == 0) {
    problems.add(pointer + "/depth", "expected the bytes that move at the rate \"alone\", got 0B");
  }
}

void check_curves(const DuplexCurves& curves, const std::string& pointer, const char* forward,
                  const char* backward, Problems& problems) {
  check_duplex(curves, pointer, problems);
  check_start(curves.forward, pointer + forward, problems);
  check_start(curves.backward, pointer + backward, problems);
}

void check_contention(const HardwareConfig& hardware, const std::string& pointer,
                      Problems& problems) {
  for (std::size_t i = 0; i < hardware.contention.size(); ++i) {
    const Contention& item = hardware.contention[i];
    const std::string way = write_value(item.on).get<std::string>();
    const std::string at = fmt::format("{}/{}", pointer, i);
    const bool on_drives = item.on == ContendedWay::ssd_read || item.on == ContendedWay::ssd_write;
    if (!on_drives && item.while_work == ContendingWork::pcie) {
      problems.add(at + "/while",
                   fmt::format("{} is a way of pcie, whose transfers share its rate", way));
    }
    const auto same = [&item](const Contention& other) {
      return other.on == item.on && other.while_work == item.while_work;
    };
    const auto here = hardware.contention.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(hardware.contention.begin(), here, same)) {
      problems.add(at, fmt::format("{} while {} is listed twice", way,
                                   write_value(item.while_work).get<std::string>()));
    }
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

void read_config(ServiceCurve& curve, const Json& json, const std::string& pointer,
                 Problems& problems) {
  ServiceCurve read;
  const std::size_t before = problems.lines().size();
  if (json.is_object()) {
    ServiceCurveKeys keys{read};
    read_value(keys, json, pointer, problems);
  } else {
    read_value(read.rate, json, pointer, problems, bounds::link_rate());
  }
  if (problems.lines().size() == before) {
    curve = read;
  }
}

Json write_config(const ServiceCurve& curve) {
  if (static_cast<const CurveStart&>(curve) == CurveStart()) {
    return write_value(curve.rate);
  }
  ServiceCurve written = curve;
  return write_value(ServiceCurveKeys{written});
}

Json config_schema(const ServiceCurve&) {
  ServiceCurve curve;
  ServiceCurveKeys keys{curve};
  Json object = value_schema(keys);
  object["description"] = "A service curve.";
  return Json{{"anyOf", Json::array({value_schema(curve.rate, bounds::link_rate()), object})}};
}

void check_hardware(const HardwareConfig& hardware, const std::string& pointer,
                    Problems& problems) {
  check_curves(hardware.links.pcie, pointer + "/links/pcie", "/to_device", "/to_host", problems);
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
    check_curves(hardware.cxl->bandwidth, pointer + "/cxl/bandwidth", "/read", "/write", problems);
  }
  if (hardware.ssd) {
    const std::string bandwidth = pointer + "/ssd/bandwidth";
    check_curves(hardware.ssd->bandwidth, bandwidth, "/read", "/write", problems);
    if (hardware.ssd->bandwidth.load) {
      check_start(*hardware.ssd->bandwidth.load, bandwidth + "/load", problems);
    }
  }
  check_contention(hardware, pointer + "/contention", problems);
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

DuplexCurves host_link(const HardwareConfig& hardware) {
  DuplexCurves link = hardware.links.pcie;
  if (hardware.links.pcie.of == HostLinkOf::gpu) {
    const auto links = static_cast<double>(hardware.gpus);
    for (ServiceCurve* way : {&link.forward, &link.backward}) {
      way->rate = way->rate * links;
      way->depth = way->depth * hardware.gpus;
      if (way->alone) {
        way->alone = *way->alone * links;
      }
    }
    link.both = link.both * links;
  }
  return link;
}

Bytes hbm_bytes(const HardwareConfig& hardware) { return hardware.hbm.capacity * hardware.gpus; }

std::int64_t gpus_of_stage(const HardwareConfig& hardware) {
  return std::max<std::int64_t>(1, hardware.gpus / hardware.parallel.pipeline);
}

std::int64_t gpus_of_rank(const HardwareConfig& hardware) {
  return std::max<std::int64_t>(1, gpus_of_stage(hardware) / hardware.parallel.attention_dp);
}

Bytes weight_bytes(const ModelConfig& model, const HardwareConfig& hardware) {
  Bytes sum = weight_bytes(model);
  for (const LayerGroup& group : layer_groups(model)) {
    const Bytes attention =
        weight_bytes_in(model, model.precision.attention, layer_parameters(model, group).attention);
    sum += attention * (group.count * (hardware.parallel.attention_dp - 1));
  }
  return sum;
}

std::int64_t kv_copies(const ModelConfig& model, const HardwareConfig& hardware,
                       AttentionKind kind) {
  const std::int64_t gpus = gpus_of_rank(hardware);
  switch (kind) {
    case AttentionKind::full:
    case AttentionKind::window:
      return std::max<std::int64_t>(1, gpus / model.kv_heads);
    case AttentionKind::latent:
      return gpus;
    case AttentionKind::state:
      break;
  }
  return 1;
}

Bytes kv_capacity(const ModelConfig& model, const HardwareConfig& hardware, std::int64_t requests,
                  Bytes unused) {
  const Bytes taken = weight_bytes(model, hardware) + kv_bytes_per_request(model) * requests +
                      unused * hardware.gpus;
  const Bytes left = std::max(Bytes(0), hbm_bytes(hardware) - taken);
  Bytes once;
  Bytes held;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const Bytes bytes = kv_bytes_per_token_layer(model, layer);
    once += bytes;
    held += bytes * kv_copies(model, hardware, layer_kind(model, layer).attention);
  }
  if (held == once) {
    return left;
  }
  return Bytes(
      static_cast<std::int64_t>(static_cast<Int128>(left.value) * once.value / held.value));
}

void check_parallel(const ModelConfig& model, const HardwareConfig& hardware, Problems& problems) {
  const ParallelConfig& parallel = hardware.parallel;
  const std::size_t before = problems.lines().size();
  const auto divides = [&](const char* pointer, std::int64_t part, const char* of,
                           std::int64_t whole) {
    if (whole % part != 0) {
      problems.add(pointer, fmt::format("expected a divisor of {}, {}, got {}", of, whole, part));
    }
  };
  if (parallel.pipeline > model.layers) {
    problems.add("/hardware/parallel/pipeline",
                 fmt::format("expected at most the model's layers, {}, got {}", model.layers,
                             parallel.pipeline));
  }
  divides("/hardware/parallel/pipeline", parallel.pipeline, "/hardware/gpus", hardware.gpus);
  if (problems.lines().size() == before) {
    const std::int64_t stage = gpus_of_stage(hardware);
    divides("/hardware/parallel/attention_dp", parallel.attention_dp, "the GPUs of a stage", stage);
    if (!model.experts && parallel.expert > 1) {
      problems.add("/hardware/parallel/expert", fmt::format("expected 1: {} has no experts, got {}",
                                                            model.name, parallel.expert));
    } else {
      divides("/hardware/parallel/expert", parallel.expert, "the GPUs of a stage", stage);
      if (model.experts) {
        divides("/hardware/parallel/expert", parallel.expert, "the routed experts",
                model.experts->routed);
      }
    }
  }
  if (problems.lines().size() != before) {
    return;
  }
  const std::int64_t gpus = gpus_of_rank(hardware);
  if (model.attention_heads % gpus != 0) {
    problems.add("/hardware/gpus",
                 fmt::format("{} GPUs of a tensor-parallel rank do not divide {} attention heads",
                             gpus, model.attention_heads));
  } else if (model.kv_heads % gpus != 0 && gpus % model.kv_heads != 0) {
    problems.add("/hardware/gpus",
                 fmt::format("{} GPUs of a tensor-parallel rank neither divide {} KV heads nor are "
                             "a multiple of them",
                             gpus, model.kv_heads));
  }
}

void check_fits(const ModelConfig& model, const HardwareConfig& hardware, Problems& problems) {
  if (kv_capacity(model, hardware) > Bytes(0)) {
    return;
  }
  problems.add("/hardware/hbm/capacity",
               fmt::format("model {} needs {:.1f}GiB for its weights and more for KV, but {} x "
                           "{:.1f}GiB of HBM hold {:.1f}GiB",
                           model.name, gib(weight_bytes(model, hardware)), hardware.gpus,
                           gib(hardware.hbm.capacity), gib(hbm_bytes(hardware))));
}

}  // namespace kvtier
