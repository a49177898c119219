#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hw/model/model.hpp"
#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

/// One server as installed: GPUs, memories, drives, links, prices, and how much of the peaks is
/// attained.
namespace kvtier {

/// Bounds of hardware keys in a config. They enclose every machine that is sold or announced for
/// the next years, with room, so that a figure in the wrong unit is refused. They also keep rates
/// high enough for simulated times to stay in range. They bound single keys: two keys can still
/// make a run that takes too long, and it ends with an error.
namespace bounds {

/// From a processor core to twice what is announced for one GPU of 2027: 100 PFLOP/s in 4 bits.
[[nodiscard]] inline Limits gpu_peak() { return between(1e8, 2e17); }
/// Up to 30 times what is announced for one GPU of 2027 (32 TB/s). Chips that hold KV in memory of
/// their own (wafers) are not described.
[[nodiscard]] inline Limits gpu_memory_bandwidth() { return between(1e7, 1e15); }
/// Announced for 2027: 1 TB.
[[nodiscard]] inline Limits gpu_memory() {
  return {.minimum = 0, .maximum = 16.0 * (std::int64_t{1} << 40), .minimum_excluded = true};
}
/// A memory or store that one server reaches, its own or a rack's.
[[nodiscard]] inline Limits capacity() {
  return {.minimum = 0, .maximum = 256.0 * (std::int64_t{1} << 50), .minimum_excluded = true};
}
inline constexpr double kSlowestLink = 1e5;
/// A link, a drive or a memory behind a link. One way of a GPU's link to others in 2027: 1.8 TB/s.
[[nodiscard]] inline Limits link_rate() { return between(kSlowestLink, 1e13); }
/// The rate of one request or load by itself, on a drive that others use, too.
[[nodiscard]] inline Limits lone_rate() { return between(1e3, 1e13); }
/// 0.6 TB/s in servers of two processors of 2023, 43 TB/s in a rack of 36 of 2026.
[[nodiscard]] inline Limits host_memory_bandwidth() { return between(kSlowestLink, 1e14); }
/// Bytes in flight: 1 TiB at most.
[[nodiscard]] inline Limits depth() {
  return {.minimum = 0, .maximum = static_cast<double>(std::int64_t{1} << 40)};
}
/// The fixed time of one transfer, operation or iteration.
[[nodiscard]] inline Limits latency() { return between(0, 10e9); }
/// The lower bound keeps the product of a rate and a share in range.
[[nodiscard]] inline Limits share() { return between(0.001, 1); }
/// One GPU: 12 $/h is the most that large clouds ask for an H100.
[[nodiscard]] inline Limits gpu_price() { return between(0, 1000); }
/// 100 times the price of host memory in AttentionStore, the highest that is known.
[[nodiscard]] inline Limits memory_price() { return between(0, 1); }

}  // namespace bounds

/// Dense matrix peaks of one GPU below 16 bits. A format that the GPU lacks has the peak of the
/// next wider one: it is computed in that.
struct PeaksConfig {
  std::optional<FlopsPerSecond> eight_bits;
  std::optional<FlopsPerSecond> four_bits;

  friend bool operator==(const PeaksConfig&, const PeaksConfig&) = default;
};

template <class V>
void describe(V& v, PeaksConfig& c) {
  v.field("fp8", c.eight_bits,
          "Peak in 8 bits; \"auto\": twice /gpu/peak. For a GPU without 8-bit units, set it to "
          "/gpu/peak.",
          or_word("auto", bounds::gpu_peak()));
  v.field("fp4", c.four_bits, "Peak in 4 bits; \"auto\": the peak in 8 bits.",
          or_word("auto", bounds::gpu_peak()));
}

struct GpuConfig {
  std::string name;
  /// Dense matrix peak of one GPU in 16 bits.
  FlopsPerSecond peak;
  PeaksConfig peaks;
  /// One GPU.
  DollarsPerHour price;

  friend bool operator==(const GpuConfig&, const GpuConfig&) = default;
};

template <class V>
void describe(V& v, GpuConfig& c) {
  v.field("name", c.name, "The product.", required());
  v.field("peak", c.peak, "Dense matrix peak of one GPU in 16 bits.", required(bounds::gpu_peak()));
  v.rare("peaks", c.peaks, PeaksConfig{}, "Datasheet peaks of one GPU in fewer bits.");
  v.field("price", c.price,
          "Price of one GPU, including the parts of its server that have no price of their own.",
          required(bounds::gpu_price()));
}

struct HbmConfig {
  /// One GPU.
  Bytes capacity;
  /// One GPU, datasheet peak.
  BytesPerSecond bandwidth;

  friend bool operator==(const HbmConfig&, const HbmConfig&) = default;
};

template <class V>
void describe(V& v, HbmConfig& c) {
  v.field("capacity", c.capacity, "Memory of one GPU.", required(bounds::gpu_memory()));
  v.field("bandwidth", c.bandwidth, "Datasheet bandwidth of one GPU's memory.",
          required(bounds::gpu_memory_bandwidth()));
}

struct DramConfig {
  Bytes capacity;
  DollarsPerGibHour price;
  /// Reads and writes together; unset: never the limit.
  std::optional<BytesPerSecond> bandwidth;
  /// Bandwidth that other programs of the host take all the time.
  BytesPerSecond host_load;

  friend bool operator==(const DramConfig&, const DramConfig&) = default;
};

template <class V>
void describe(V& v, DramConfig& c) {
  v.field("capacity", c.capacity, "Host memory that can hold KV.", required(bounds::capacity()));
  v.field("price", c.price, "Price of host memory.", required(bounds::memory_price()));
  v.field("bandwidth", c.bandwidth,
          "Reads and writes of host memory together; \"none\": never the limit. Needed where "
          "several GPUs have a link to the host each (/hardware/links/pcie/of).",
          or_word("none", bounds::host_memory_bandwidth()));
  v.field("host_load", c.host_load,
          "Bandwidth of host memory that other programs of the host take; KV moves with the rest.",
          non_negative());
}

/// The start of a service curve: the first `depth` bytes of a transfer move at the rate `alone`,
/// after the latency.
struct CurveStart {
  /// Time of a single transfer from its start to its first byte.
  SimDuration latency{};
  /// Throughput at queue depth 1. Unset, or no lower than the transfer's rate at saturation: that
  /// rate.
  std::optional<BytesPerSecond> alone;
  Bytes depth{};

  friend bool operator==(const CurveStart&, const CurveStart&) = default;
};

template <class V>
void describe(V& v, CurveStart& c) {
  v.field("latency", c.latency, "Fixed time of each transfer, added to the time of its bytes.",
          bounds::latency());
  v.rare("alone", c.alone, {},
         "Throughput at queue depth 1, at which the first `depth` bytes of a transfer move; "
         "\"none\": all bytes move at the rate at saturation.",
         or_word("none", bounds::lone_rate()));
  v.rare(
      "depth", c.depth, {},
      "Bytes in flight from which the rate at saturation is reached; needed with `alone`, without "
      "effect otherwise.",
      bounds::depth());
}

/// A service curve: the time of a single transfer one way. The first `depth` bytes move at the rate
/// `alone` (queue depth 1), the others at `rate` (saturation), which concurrent transfers share. A
/// config has a plain rate in place of a curve without latency and `alone`.
struct ServiceCurve : CurveStart {
  BytesPerSecond rate;

  friend bool operator==(const ServiceCurve&, const ServiceCurve&) = default;
};
/// The keys of a curve as an object.
struct ServiceCurveKeys {
  ServiceCurve& curve;
};

template <class V>
void describe(V& v, ServiceCurveKeys& c) {
  v.field("rate", c.curve.rate, "Throughput at saturation, which concurrent transfers share.",
          required(bounds::link_rate()));
  describe(v, static_cast<CurveStart&>(c.curve));
}

void read_config(ServiceCurve& curve, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const ServiceCurve& curve);
[[nodiscard]] Json config_schema(const ServiceCurve& curve);

/// The curves of a link or drive each way, and the most of both ways together. `forward` is towards
/// the GPU.
struct DuplexCurves {
  ServiceCurve forward;
  ServiceCurve backward;
  BytesPerSecond both;

  friend bool operator==(const DuplexCurves&, const DuplexCurves&) = default;
};

/// A drive or a memory behind its own link: `forward` reads, `backward` writes.
struct DriveCurves : DuplexCurves {
  friend bool operator==(const DriveCurves&, const DriveCurves&) = default;
};

template <class V>
void describe(V& v, DriveCurves& c) {
  v.field("read", c.forward, "Reads alone: a rate, or a service curve.", required());
  v.field("write", c.backward, "Writes alone: a rate, or a service curve.", required());
  v.field("both", c.both, "Sum of reads and writes at the same time.",
          required(bounds::link_rate()));
  v.gone("latency", "write it into the curves \"read\" and \"write\"");
}

/// Memory behind CXL that the GPUs access directly: its traffic crosses neither the host's memory
/// nor the link between host and GPUs.
struct CxlConfig {
  Bytes capacity;
  DollarsPerGibHour price;
  DriveCurves bandwidth;

  friend bool operator==(const CxlConfig&, const CxlConfig&) = default;
};

template <class V>
void describe(V& v, CxlConfig& c) {
  v.field("capacity", c.capacity, "CXL memory that can hold KV.", required(bounds::capacity()));
  v.field("price", c.price, "Price of CXL memory.", required(bounds::memory_price()));
  v.field("bandwidth", c.bandwidth, "Sustained rates of the memory and its link.", required());
}

/// Scope of the host link's rates: the link of each GPU, or one link that all GPUs of a server
/// share.
enum class HostLinkOf { gpu, server };
constexpr auto enum_names(HostLinkOf) {
  return std::array{std::pair{"gpu", HostLinkOf::gpu}, std::pair{"server", HostLinkOf::server}};
}

/// The link between host and GPUs: `forward` goes to the device, `backward` to the host.
struct HostLinkCurves : DuplexCurves {
  HostLinkOf of = HostLinkOf::gpu;

  friend bool operator==(const HostLinkCurves&, const HostLinkCurves&) = default;
};

template <class V>
void describe(V& v, HostLinkCurves& c) {
  v.field("of", c.of,
          "Scope of the rates: \"gpu\": each GPU has such a link, and KV moves over all of them at "
          "once, within the bandwidth of host memory; \"server\": all GPUs share one.");
  v.field("to_device", c.forward, "Host to GPU alone: a rate, or a service curve.", required());
  v.field("to_host", c.backward, "GPU to host alone: a rate, or a service curve.", required());
  v.field("both", c.both, "Sum of both ways at the same time.", required(bounds::link_rate()));
  v.gone("latency", "write it into the curves \"to_device\" and \"to_host\"");
  v.gone("beside_compute", "write /hardware/contention, with \"while\": \"compute\"");
}

struct SsdCurves : DriveCurves {
  /// The start of a load from the drives into HBM, in place of those of `read` and of the host
  /// link. Reading and copying overlap in long loads only.
  std::optional<CurveStart> load;

  friend bool operator==(const SsdCurves&, const SsdCurves&) = default;
};

template <class V>
void describe(V& v, SsdCurves& c) {
  describe(v, static_cast<DriveCurves&>(c));
  v.field("load", c.load,
          "Start of the curve of a load from the drives into HBM, in place of the starts of `read` "
          "and of the host link; \"none\": those two.");
  v.gone("beside_copies", "write /hardware/contention, with \"while\": \"pcie\"");
  v.gone("one_request", "write \"alone\" and \"depth\" into the curves \"read\" and \"write\"");
  v.gone("one_load", "write \"load\": {\"latency\", \"alone\", \"depth\"}");
}

struct SsdConfig {
  Bytes capacity;
  DollarsPerGibHour price;
  SsdCurves bandwidth;
  /// Size of the smallest read or write.
  Bytes block{};

  friend bool operator==(const SsdConfig&, const SsdConfig&) = default;
};

template <class V>
void describe(V& v, SsdConfig& c) {
  v.field("capacity", c.capacity, "Storage that can hold KV.", required(bounds::capacity()));
  v.field("price", c.price, "Price of storage.", required(bounds::memory_price()));
  v.field("bandwidth", c.bandwidth, "Sustained rates of all drives together.", required());
  v.field("block", c.block,
          "Size of the smallest read. If a token's KV of one layer is smaller, all its layers "
          "arrive together, and loading does not overlap with compute.",
          non_negative());
}

/// The link between GPUs of one tensor-parallel group.
struct GpuLinkConfig {
  /// One way, one GPU.
  BytesPerSecond bandwidth;
  /// One step of a ring all-reduce, whatever its size.
  SimDuration latency;

  friend bool operator==(const GpuLinkConfig&, const GpuLinkConfig&) = default;
};

template <class V>
void describe(V& v, GpuLinkConfig& c) {
  v.field("bandwidth", c.bandwidth, "Peak of one GPU's links, one way; 0 on one GPU alone.",
          required(between(0, *bounds::link_rate().maximum)));
  v.field("latency", c.latency, "Fixed time of one step of a ring all-reduce.",
          required(bounds::latency()));
}

struct LinksConfig {
  HostLinkCurves pcie;
  GpuLinkConfig gpu;

  friend bool operator==(const LinksConfig&, const LinksConfig&) = default;
};

template <class V>
void describe(V& v, LinksConfig& c) {
  v.field("pcie", c.pcie, "Between host and GPUs.", required());
  v.field("gpu", c.gpu, "Between GPUs; needed for more than one.");
}

/// One way of a link or drive that other work slows down.
enum class ContendedWay : std::uint8_t { pcie_to_device, pcie_to_host, ssd_read, ssd_write };
constexpr auto enum_names(ContendedWay) {
  using enum ContendedWay;
  return std::array{std::pair{"pcie_to_device", pcie_to_device},
                    std::pair{"pcie_to_host", pcie_to_host}, std::pair{"ssd_read", ssd_read},
                    std::pair{"ssd_write", ssd_write}};
}

/// The work that slows it down: computing of the GPUs, or transfers over the link between host and
/// GPUs.
enum class ContendingWork : std::uint8_t { compute, pcie };
constexpr auto enum_names(ContendingWork) {
  return std::array{std::pair{"compute", ContendingWork::compute},
                    std::pair{"pcie", ContendingWork::pcie}};
}

/// The share of the rate of `on` that is left while other work runs.
struct Contention {
  ContendedWay on = ContendedWay::pcie_to_device;
  ContendingWork while_work = ContendingWork::compute;
  double left = 1;

  friend bool operator==(const Contention&, const Contention&) = default;
};

template <class V>
void describe(V& v, Contention& c) {
  v.field("on", c.on, "The way that is slowed down.", required());
  v.field("while", c.while_work,
          "The work that slows it down: \"compute\" of the GPUs, or any transfer over the link "
          "between host and GPUs (\"pcie\").",
          required());
  v.field("left", c.left, "Share of the rate that is left.", required(bounds::share()));
}

/// Shares of the peaks that the analytic timing model attains, at most 1.
struct EfficiencyConfig {
  double compute = 1;
  double memory = 1;
  double gpu_link = 1;
  SimDuration iteration_overhead;
  /// Time of each prefill, iteration with prompts, or run of decode iterations: half before, half
  /// after.
  SimDuration command_overhead;

  friend bool operator==(const EfficiencyConfig&, const EfficiencyConfig&) = default;
};

template <class V>
void describe(V& v, EfficiencyConfig& c) {
  v.field("compute", c.compute, "Attained share of the peak of /gpu/peak.",
          required(bounds::share()));
  v.field("memory", c.memory, "Attained share of the HBM bandwidth.", required(bounds::share()));
  v.field("gpu_link", c.gpu_link, "Attained share of the bandwidth between GPUs.",
          required(bounds::share()));
  v.field("iteration_overhead", c.iteration_overhead,
          "Fixed time of each iteration: launches, sampling, scheduling.",
          required(bounds::latency()));
  v.field("command_overhead", c.command_overhead,
          "Time that each prefill, iteration with prompts, or run of decode iterations takes from "
          "the scheduler to the GPU and back; it counts as time of the GPU.",
          bounds::latency());
}

struct Profile;

/// The profile whose measured times a run uses: a name in configs/profiles or the path of a file.
struct ProfileChoice {
  std::string name;
  /// Its content, read when the config is resolved.
  std::shared_ptr<const Profile> loaded;

  friend bool operator==(const ProfileChoice& a, const ProfileChoice& b) {
    return a.name == b.name;
  }
};
void read_config(ProfileChoice& choice, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const ProfileChoice& choice);
[[nodiscard]] Json config_schema(const ProfileChoice& choice);

/// Handling of work that a profile has not measured.
enum class Unmeasured { refuse, roofline };
constexpr auto enum_names(Unmeasured) {
  return std::array{std::pair{"refuse", Unmeasured::refuse},
                    std::pair{"roofline", Unmeasured::roofline}};
}

/// How a server's GPUs share a model. They form `pipeline` stages of gpus / pipeline GPUs. In a
/// stage, each of `attention_dp` groups of GPUs (ranks) runs the attention of its own requests,
/// which are dealt to the ranks in turn. All GPUs of a stage run the MLPs and experts of all
/// requests in lock step. The GPUs of a rank split heads (tensor parallel).
struct ParallelConfig {
  std::int64_t pipeline = 1;
  std::int64_t attention_dp = 1;
  std::int64_t expert = 1;

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

template <class V>
void describe(V& v, ParallelConfig& c) {
  v.field("pipeline", c.pipeline, "Stages of layers, one behind the other.", between(1, 1024));
  v.field("attention_dp", c.attention_dp,
          "Ranks of a stage that run the attention of their own requests; requests are dealt to "
          "them in turn. The GPUs of a rank are tensor parallel: gpus / pipeline / attention_dp.",
          between(1, 1024));
  v.field(
      "expert", c.expert,
      "Groups of a stage's GPUs that hold whole routed experts of their own; 1: every GPU holds "
      "a slice of each expert.",
      between(1, 1024));
}

/// `dram`, `cxl` and `ssd` without a value ("none") are not installed.
struct HardwareConfig {
  std::string name;
  std::string source;
  std::int64_t gpus = 1;
  ParallelConfig parallel;
  GpuConfig gpu;
  HbmConfig hbm;
  std::optional<DramConfig> dram;
  std::optional<CxlConfig> cxl;
  std::optional<SsdConfig> ssd;
  LinksConfig links;
  std::vector<Contention> contention;
  EfficiencyConfig efficiency;
  /// Measured times; unset: the analytic model gives all times.
  std::optional<ProfileChoice> profile;
  /// By engine (/system/engine/kernels): the profile whose tables replace those of `profile`.
  std::map<std::string, std::string> engine_profiles;
  /// Set if the profile is of a related GPU: a factor on its scaled times.
  std::optional<double> sibling;
  /// Speed of a host core, relative to that of the boxes that engines' times are from.
  double host_speed = 1;
  Unmeasured unmeasured = Unmeasured::refuse;
  /// Figure to its source. The program does not use it.
  std::map<std::string, std::string> sources;

  friend bool operator==(const HardwareConfig&, const HardwareConfig&) = default;
};

template <class V>
void describe(V& v, HardwareConfig& c) {
  v.field("name", c.name, "The name in results and messages.", required());
  v.field("source", c.source, "The machine that is described.", required());
  v.field("gpus", c.gpus, "GPUs that serve one model together.", required(between(1, 1024)));
  v.rare("parallel", c.parallel, ParallelConfig{},
         "How the GPUs share the model; by default all GPUs are tensor parallel.");
  v.field("gpu", c.gpu, "One GPU.", required());
  v.field("hbm", c.hbm, "One GPU's memory.", required());
  v.field("dram", c.dram, "Host memory, or none.");
  v.field("cxl", c.cxl, "Memory behind CXL that the GPUs reach without the host, or none.");
  v.field("ssd", c.ssd, "Storage, or none.");
  v.field("links", c.links, "Links between host and GPUs, and between GPUs.", required());
  v.rare("contention", c.contention, {},
         "Rates that other work lowers: a list of {\"on\", \"while\", \"left\"}. Shares of one way "
         "multiply; both ways of a link together keep the larger share of the two. Items on drives "
         "have no effect without /hardware/ssd.");
  v.field("efficiency", c.efficiency, "Attained shares of the peaks, and fixed times.", required());
  v.field("profile", c.profile,
          "Measured times in place of the analytic ones: a profile's name or path.");
  v.rare("engine_profiles", c.engine_profiles, {},
         "Engine (/system/engine/kernels) to the profile whose tables replace those of `profile`.");
  v.rare("sibling", c.sibling, std::optional<double>(),
         "The profile is of a related GPU. Its times are scaled by rooflines, and by this factor.",
         or_word("none", between(0.1, 10)));
  v.rare("host_speed", c.host_speed, 1.0,
         "Speed of a host core: /system/engine's host times are divided by it. 1: the Xeon of an "
         "H100 box.",
         between(0.05, 20));
  v.field("unmeasured", c.unmeasured,
          "Matrices and attention that the profile lacks: an error, or the analytic time.");
  v.field("sources", c.sources, "Where each figure comes from.");
}

/// Reports problems that no single key shows: a limit of both ways together below that of one way
/// alone, `alone` without `depth`, contention that is listed twice, several GPUs without a link
/// between them, or with a host link each but no bandwidth of host memory. `pointer` is where the
/// hardware stands in the config, "/hardware" in a run's config and "" in a file of its own.
void check_hardware(const HardwareConfig& hardware, const std::string& pointer, Problems& problems);

/// Bandwidth of host memory that other programs leave; nullopt if it is never the limit.
[[nodiscard]] std::optional<BytesPerSecond> dram_bandwidth_left(const HardwareConfig& hardware);

/// The host links of all GPUs together, over which a server's KV moves.
[[nodiscard]] DuplexCurves host_link(const HardwareConfig& hardware);

/// HBM of all GPUs together.
[[nodiscard]] Bytes hbm_bytes(const HardwareConfig& hardware);

/// GPUs of one pipeline stage, and of one rank of it, which are tensor parallel.
[[nodiscard]] std::int64_t gpus_of_stage(const HardwareConfig& hardware);
[[nodiscard]] std::int64_t gpus_of_rank(const HardwareConfig& hardware);

/// Weights on all GPUs: each rank of attention_dp has its own weights of attention.
[[nodiscard]] Bytes weight_bytes(const ModelConfig& model, const HardwareConfig& hardware);

/// Copies of a token's KV that the GPUs of a rank hold in layers of one kind. Each GPU holds all
/// latent rows. KV heads are replicated if there are fewer of them than GPUs.
[[nodiscard]] std::int64_t kv_copies(const ModelConfig& model, const HardwareConfig& hardware,
                                     AttentionKind kind);

/// KV that fits into the HBM of all GPUs beside weights and `requests` running requests
/// (kv_bytes_per_request). Each token counts once. Zero if weights and requests do not fit.
/// `unused` is other HBM that each GPU sets aside, such as for activations.
[[nodiscard]] Bytes kv_capacity(const ModelConfig& model, const HardwareConfig& hardware,
                                std::int64_t requests = 0, Bytes unused = Bytes(0));

/// Reports GPUs that the parallel groups do not divide, and heads, layers or experts that do not
/// divide into them, at /hardware/parallel and /hardware/gpus.
void check_parallel(const ModelConfig& model, const HardwareConfig& hardware, Problems& problems);

/// Reports a model whose weights leave no HBM for KV, at /hardware/hbm/capacity.
void check_fits(const ModelConfig& model, const HardwareConfig& hardware, Problems& problems);

}  // namespace kvtier
