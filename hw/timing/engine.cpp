#include "hw/timing/engine.hpp"

#include <algorithm>

#include "hw/timing/operation_time.hpp"

namespace kvtier {
namespace {

/// vLLM's defaults for a server (engine/arg_utils.py, get_batch_defaults). It gives the larger ones
/// to cards of 70 GiB, but for the A100.
struct StartDefaults {
  std::int64_t tokens;
  std::int64_t requests;
};
StartDefaults start_defaults(const HardwareConfig& hardware) {
  const bool is_large = hardware.hbm.capacity >= Bytes(std::int64_t{70} << 30) &&
                        hardware.gpu.name.find("A100") == std::string::npos;
  return is_large ? StartDefaults{8192, 1024} : StartDefaults{2048, 256};
}

/// Context of CUDA, graphs, and what allocators lose. Fitted to the KV capacity in four logs of
/// vLLM (H100, H200, L40S; two H100).
constexpr Bytes kBase{std::int64_t{1536} << 20};
/// Work space of all-reduces, fitted to the log of two H100.
constexpr Bytes kAllReduce{std::int64_t{768} << 20};
/// Buffers of NCCL (github.com/ai-dynamo/aiconfigurator @ 095f58a, systems: nccl_mem).
Bytes nccl_memory(std::int64_t gpus) {
  return Bytes(gpus == 1 ? 0 : gpus == 2 ? 358'612'992 : 411'041'792);
}

/// Logits in 16 and 32 bits, and probabilities in 32 bits.
constexpr std::int64_t kLogitBytes = 10;

/// Elements on a GPU of the widest operation of a layer, for one token.
std::int64_t widest(const ModelConfig& model, const HardwareConfig& hardware) {
  const std::int64_t inner = model.gated_mlp ? 3 : 2;
  const std::int64_t of_rank = gpus_of_rank(hardware);
  const std::int64_t of_stage = gpus_of_stage(hardware);
  std::int64_t width =
      std::max(inner * model.intermediate_size / of_stage,
               (model.attention_heads + 2 * model.kv_heads) * model.head_dim / of_rank);
  if (model.experts) {
    const std::int64_t ranks = std::max<std::int64_t>(1, hardware.parallel.expert);
    const std::int64_t slices = std::max<std::int64_t>(1, of_stage / ranks);
    width = std::max(
        width, model.experts->active *
                   (inner * model.experts->intermediate_size / slices + model.hidden_size) / ranks);
  }
  return width;
}

}  // namespace

SimDuration engine_step_time(const std::optional<EngineConfig>& engine,
                             const HardwareConfig& hardware) {
  return engine ? duration_from_seconds(engine->step_time.seconds() / hardware.host_speed)
                : hardware.efficiency.iteration_overhead;
}

double engine_request_seconds(const std::optional<EngineConfig>& engine,
                              const HardwareConfig& hardware) {
  return engine ? engine->request_time.seconds() / hardware.host_speed : 0;
}

Bytes engine_memory(const ModelConfig& model, const HardwareConfig& hardware,
                    std::optional<Tokens> token_budget) {
  const StartDefaults defaults = start_defaults(hardware);
  const std::int64_t tokens =
      token_budget ? token_budget->value / hardware.parallel.attention_dp : defaults.tokens;
  const std::int64_t of_stage = gpus_of_stage(hardware);
  const Bytes activations(tokens * static_cast<std::int64_t>(kActivationBytes) *
                          (2 * model.hidden_size + widest(model, hardware)));
  const Bytes logits(kLogitBytes * defaults.requests * model.vocabulary_size);
  return kBase + activations + logits + nccl_memory(of_stage) +
         (of_stage > 1 ? kAllReduce : Bytes(0));
}

}  // namespace kvtier
