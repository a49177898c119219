#include "calibrate/sparsity.hpp"

#include <fmt/format.h>

#include "calibrate/bench.hpp"
#include "calibrate/calibrate.hpp"
#include "hw/device/cpu_device.hpp"
#include "hw/device/decoder.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"

namespace kvtier::calibrate {

std::vector<double> score_sparsity(const ModelConfig& model, Tokens prompt, std::uint64_t seed) {
  check_heads(model);
  if (prompt > model.context_window) {
    throw ConfigError(fmt::format("--tokens: {} tokens do not fit in the context window of {}, {}",
                                  prompt.value, model.name, model.context_window.value));
  }
  const std::unique_ptr<Device> device = make_cpu_device();
  const DecoderShape shape = decoder_shape(model);
  const std::int64_t count = prompt.value;
  Decoder decoder(*device, shape, KeyPositions::decoupled,
                  {.requests = 1, .tokens = count, .context = count, .longest_context = count},
                  seed);
  const KvPool pool(*device, shape, count);
  RandomStream random(seed, "calibrate/sparsity");
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.index(shape.vocabulary)));
  }
  DecoderBatch batch;
  batch.add(tokens, shuffled(count, random));
  const auto stream = device->make_stream();
  return measure_score_sparsity(decoder, batch, pool, *stream);
}

}  // namespace kvtier::calibrate
