#include <algorithm>
#include <chrono>
#include <thread>

#include "calibrate/measure.hpp"
#include "hw/device/decoder.hpp"
#include "hw/profile/profile_timing.hpp"

namespace kvtier::calibrate {
namespace {

/// A step: its requests, and the new and past tokens of each.
struct Step {
  std::int64_t requests;
  std::int64_t added;
  std::int64_t past;

  [[nodiscard]] std::int64_t context() const { return requests * (added + past); }
};

/// The work before a step: idle time in which other work uses the caches, one step after such a
/// time, or many steps.
enum class After { idle, one_pass, run };

/// The model with random weights, and KV in random slots, as in a server.
class Server {
 public:
  Server(const Target& target, const Step& largest)
      : device_(target.device),
        decoder_(device_, decoder_shape(target.model), KeyPositions::decoupled,
                 {.requests = largest.requests,
                  .tokens = largest.requests * largest.added,
                  .context = largest.context(),
                  .longest_context = largest.added + largest.past},
                 target.seed),
        pool_(device_, decoder_.shape(), 2 * largest.context()),
        stream_(device_.make_stream()),
        first_(device_.make_event()),
        last_(device_.make_event()) {
    RandomStream random(target.seed, "calibrate/steps");
    slots_ = shuffled(2 * largest.context(), random);
  }

  Sample prepare(const Step& step, After after) {
    const auto batch = batch_of(step);
    if (after == After::run) {
      // Decode iterations follow prefills of other requests, which use the caches.
      const auto other = step.added == 1 ? batch_of(kLong) : nullptr;
      return [this, batch, other] { return one_of_a_run(*batch, other.get()); };
    }
    const auto first = after == After::one_pass ? batch_of(kFirst) : nullptr;
    return [this, batch, first] {
      std::this_thread::sleep_for(kLongPause);
      if (first != nullptr) {
        forward(*first, 1);
      }
      return forward(*batch, 1);
    };
  }

  /// The host's time until a step is queued, or before and after the device's time.
  Sample prepare_host_time(bool submits) {
    const auto batch = batch_of(kLong);
    return [this, batch, submits] {
      const std::int64_t begin = steady_clock().now_ns();
      device_.record(*first_, *stream_);
      decoder_.forward(*batch, pool_, *stream_);
      device_.record(*last_, *stream_);
      const std::int64_t queued = steady_clock().now_ns();
      stream_->synchronize();
      const std::int64_t end = steady_clock().now_ns();
      constexpr double kNanosecond = 1e-9;
      return submits ? static_cast<double>(queued - begin) * kNanosecond
                     : static_cast<double>(end - begin) * kNanosecond -
                           device_.seconds_between(*first_, *last_);
    };
  }

  /// A small step after so long without work, which follows back-to-back steps.
  Sample prepare_after(std::chrono::microseconds idle) {
    const auto batch = batch_of(kFirst);
    return [this, batch, idle] {
      constexpr std::int64_t kPasses = 3;
      forward(*batch, kPasses);
      std::this_thread::sleep_for(idle);
      return forward(*batch, 1);
    };
  }

 private:
  /// A pass that reads all weights and does little else.
  static constexpr Step kFirst{.requests = 1, .added = 8, .past = 0};
  static constexpr Step kLong{.requests = 1, .added = 128, .past = 1024};

  [[nodiscard]] std::shared_ptr<const DecoderBatch> batch_of(const Step& step) const {
    auto batch = std::make_shared<DecoderBatch>();
    for (std::int64_t r = 0; r < step.requests; ++r) {
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = 0; i < step.added; ++i) {
        tokens.push_back(static_cast<std::int32_t>((r + i) % decoder_.shape().vocabulary));
      }
      const std::int64_t length = step.added + step.past;
      batch->add(tokens, std::span(slots_).subspan(static_cast<std::size_t>(r * length),
                                                   static_cast<std::size_t>(length)));
    }
    return batch;
  }

  /// The time of one pass of several, which follow `other`, or else each other.
  double one_of_a_run(const DecoderBatch& batch, const DecoderBatch* other) {
    constexpr double kRun = 0.02;  // seconds
    constexpr double kMost = 8;
    const double first = forward(batch, 1);
    const auto times = static_cast<std::int64_t>(std::clamp(kRun / first, 1.0, kMost));
    if (other != nullptr) {
      forward(*other, 1);
    }
    return forward(batch, times) / static_cast<double>(times);
  }

  double forward(const DecoderBatch& batch, std::int64_t times) {
    const std::int64_t begin = steady_clock().now_ns();
    for (std::int64_t i = 0; i < times; ++i) {
      decoder_.forward(batch, pool_, *stream_);
      stream_->synchronize();
    }
    return static_cast<double>(steady_clock().now_ns() - begin) * 1e-9;
  }

  Device& device_;
  Decoder decoder_;
  KvPool pool_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> first_;
  std::unique_ptr<Event> last_;
  std::vector<std::int32_t> slots_;
};

constexpr Step kLargest{.requests = 4, .added = 128, .past = 1024};

}  // namespace

Bytes memory_of_steps(const ModelConfig& model, Bytes element) {
  return parameters(model) * element +
         2 * kLargest.context() * kv_bytes_per_token(decoder_shape(model), element);
}

/// Prefills of one request after idle time, right after another pass, and back to back. Decode
/// iterations back to back after a prefill. A small prefill after several idle times. The host's
/// part of a prefill.
std::vector<PlannedTable> plan_steps(const Target& target) {
  const ModelConfig& model = target.model;
  const std::int64_t element = target.device.info().element.value;
  const Bytes memory = memory_of_steps(model, Bytes(element));
  const auto server = std::make_shared<std::shared_ptr<Server>>();
  const auto opened = [server, target]() -> Server& {
    if (*server == nullptr) {
      *server = std::make_shared<Server>(target, kLargest);
    }
    return **server;
  };
  const auto table = [&](OperationId operation, const char* variant, CacheState cache) {
    return ProfileTable{.operation = operation,
                        .variant = variant,
                        .method = "decoder with random weights, by the host's clock",
                        .cache = cache,
                        .shape = step_shape(model, element),
                        .axes = profile_operation(operation).axes};
  };
  const auto plan = [&](const char* variant, After after, const std::vector<Step>& steps) {
    const bool runs = after == After::run;
    PlannedTable planned{.rules = runs ? rules_of(target) : rules_with_pauses(target),
                         .visits_in_round = runs ? kManyVisits : kManyVisits / 2,
                         .memory = target.model_memory};
    planned.table =
        table(OperationId::model_step, variant, runs ? CacheState::hot : CacheState::cold);
    for (const Step& step : steps) {
      planned.cells.push_back(
          {.at = {step.requests, step.added, step.past},
           .memory = memory,
           .prepare = [opened, step, after] { return opened().prepare(step, after); }});
    }
    return planned;
  };
  std::vector<Step> prefills;
  for (const std::int64_t added : {8, 32, 128}) {
    for (const std::int64_t past : {0, 1024}) {
      prefills.push_back({1, added, past});
    }
  }
  // Three steps suffice: their time beyond that of back-to-back steps is about the same for all
  // sizes.
  const std::vector<Step> seconds{prefills[0], prefills[3], prefills[4]};
  std::vector<Step> decodes;
  for (const std::int64_t requests : {1, 4}) {
    for (const std::int64_t past : {127, 1023}) {
      decodes.push_back({requests, 1, past});
    }
  }
  PlannedTable idle{.rules = rules_with_pauses(target),
                    .visits_in_round = kManyVisits / 2,
                    .memory = target.model_memory};
  idle.table = table(OperationId::idle_pass, "prefill", CacheState::hot);
  for (const std::int64_t idle_us : {1'000, 3'000, 10'000, 30'000, 100'000}) {
    idle.cells.push_back({.at = {idle_us}, .memory = memory, .prepare = [opened, idle_us] {
                            return opened().prepare_after(std::chrono::microseconds(idle_us));
                          }});
  }
  std::vector<PlannedTable> tables{
      plan(kCold, After::idle, prefills), plan(kSecond, After::one_pass, seconds),
      plan(kWarm, After::run, prefills), plan(kDecodeWarm, After::run, decodes), std::move(idle)};
  for (const bool submits : {true, false}) {
    PlannedTable host{.rules = rules_of(target), .memory = target.model_memory};
    host.table = {.operation = OperationId::call_overhead,
                  .variant = submits ? kPassSubmission : kPassEnd,
                  .method = "128 new tokens after 1,024, decoder with random weights",
                  .cache = CacheState::hot,
                  .axes = profile_operation(OperationId::call_overhead).axes};
    host.cells = {{.at = {}, .memory = memory, .prepare = [opened, submits] {
                     return opened().prepare_host_time(submits);
                   }}};
    tables.push_back(std::move(host));
  }
  return tables;
}

}  // namespace kvtier::calibrate
