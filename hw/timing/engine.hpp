#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hw/model/hardware.hpp"
#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// How an engine starts the all-reduces of its layers.
enum class AllReduceLaunch {
  fused,  // in a CUDA graph, in one kernel with the norm that follows
  graph,  // captured in a CUDA graph
  eager,  // one by one, by the host
};
constexpr auto enum_names(AllReduceLaunch) {
  return std::array{std::pair{"fused", AllReduceLaunch::fused},
                    std::pair{"graph", AllReduceLaunch::graph},
                    std::pair{"eager", AllReduceLaunch::eager}};
}

/// Work on elements that an engine does in another kernel.
enum class FusedWork {
  quantize,  // in norms and activations
  rope,      // in attention
  kv_write,  // in attention
};
constexpr auto enum_names(FusedWork) {
  return std::array{std::pair{"quantize", FusedWork::quantize}, std::pair{"rope", FusedWork::rope},
                    std::pair{"kv_write", FusedWork::kv_write}};
}

/// The times that a serving engine adds to its kernels, and the memory that it leaves to KV. The
/// presets are fitted to published runs (configs/systems/README.md).
struct EngineConfig {
  std::string version;
  std::string date;
  SimDuration step_time;
  SimDuration request_time;
  double prompt_factor = 1;
  double expert_factor = 1;
  AllReduceLaunch all_reduce = AllReduceLaunch::graph;
  std::string kernels;
  std::vector<FusedWork> fused;
  double memory_share = 1;
  std::optional<Bytes> reserved_memory;
  double kv_share = 1;

  friend bool operator==(const EngineConfig&, const EngineConfig&) = default;
};

template <class V>
void describe(V& v, EngineConfig& c) {
  v.field("version", c.version, "The engine and its version.", required());
  v.field("date", c.date, "The year or the day of the runs that the figures are from.", required());
  v.field("step_time", c.step_time,
          "Host time of an iteration that the GPUs wait for: scheduling, launches, sampling. It "
          "replaces /hardware/efficiency/iteration_overhead, and is divided by "
          "/hardware/host_speed.",
          required(bounds::latency()));
  v.field("request_time", c.request_time,
          "Host time for each request of an iteration, in addition to step_time; divided alike.",
          bounds::latency());
  v.field("prompt_factor", c.prompt_factor,
          "Time of the profile's operations in an iteration of 512 prompt tokens or more, as a "
          "multiple of the profile's. Tables are measured in bursts, and clocks fall under "
          "sustained load. With fewer prompt tokens the factor is in proportion closer to 1.",
          between(0.1, 10));
  v.field("expert_factor", c.expert_factor,
          "Time of routed experts as a multiple of the profile's, which are of another engine's "
          "kernels.",
          between(0.1, 10));
  v.field("all_reduce", c.all_reduce,
          "How the engine launches all-reduces, which selects their times in a profile: fused with "
          "the norm (where the profile has that), in a CUDA graph, or eager.");
  v.field("kernels", c.kernels,
          "The engine of /hardware/engine_profiles whose kernels run; empty: those of "
          "/hardware/profile.");
  v.field("fused", c.fused,
          "Work on elements that takes no time of its own: norms and activations quantize; "
          "attention rotates keys and writes KV.");
  v.field("memory_share", c.memory_share,
          "Share of HBM that weights, reserved_memory and KV take (vLLM: "
          "gpu_memory_utilization).",
          bounds::share());
  v.field("reserved_memory", c.reserved_memory,
          "HBM of each GPU that activations, graphs and buffers take of that share; \"auto\": as "
          "vLLM measures it when it starts, for /serving/token_budget tokens, or for vLLM's "
          "default budget of the card.",
          or_word("auto", between(0, *bounds::gpu_memory().maximum)));
  v.field("kv_share", c.kv_share,
          "Share of what is left that KV takes (TensorRT-LLM: "
          "free_gpu_memory_fraction).",
          bounds::share());
}

/// Host time of an iteration on this hardware.
[[nodiscard]] SimDuration engine_step_time(const std::optional<EngineConfig>& engine,
                                           const HardwareConfig& hardware);
/// The same for each request of the iteration.
[[nodiscard]] double engine_request_seconds(const std::optional<EngineConfig>& engine,
                                            const HardwareConfig& hardware);

/// HBM of each GPU beside weights and KV that an engine takes for an iteration of so many tokens of
/// all ranks together: activations, logits, buffers of communication, graphs. nullopt: vLLM's
/// default budget for the card.
[[nodiscard]] Bytes engine_memory(const ModelConfig& model, const HardwareConfig& hardware,
                                  std::optional<Tokens> token_budget);

}  // namespace kvtier
