#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/device/serving_device.hpp"
#include "sim/device/transfer_moves.hpp"
#include "sim/engine/backend.hpp"

namespace kvtier {

/// What the backends of a device share: the KV's places, the decoder, and what the control plane
/// says of stored KV.
class ServingBackend : public Backend {
 public:
  [[nodiscard]] const KvStore& store() const { return store_; }

  IterationTime start_iteration(const IterationCommand&) final {
    KVTIER_ASSERT(false, "a device runs prefill_first batching");
  }
  void end_request(EntryKey key) final { std::erase(running_, key); }
  void keep(Medium medium, EntryKey key, Tokens tokens) final {
    store_.keep(medium, key, tokens.value);
  }
  void cut(EntryKey key, Tokens kept, Tokens dropped) final {
    store_.cut(key, kept.value, dropped.value);
  }

 protected:
  ServingBackend(const ServingSetup& setup, std::int64_t lanes)
      : check_(setup.check),
        layers_(setup.config->model.layers),
        store_(store_setup(setup, lanes)),
        decoder_(make_decoder(setup)),
        moves_(store_, *setup.device, layers_) {}

  /// What every `wait` begins with: the control plane has said all that it does at one instant.
  void begin_wait() {
    store_.settle();
    check_();
  }
  /// Room for what a turn computes, behind what it has; a load that was to come has come.
  [[nodiscard]] std::vector<std::int32_t> extend_for(const PrefillCommand& command) {
    if (!command.load.valid()) {
      moves_.end_load(command.key);
    }
    return store_.extend(command.key, command.part.past.value, command.part.added.value);
  }
  /// Of a context, what the prefill computed.
  [[nodiscard]] static std::span<const std::int32_t> computed(
      const PrefillCommand& command, const std::vector<std::int32_t>& context) {
    return std::span(context).subspan(static_cast<std::size_t>(command.part.past.value));
  }

  std::function<void()> check_;
  std::int64_t layers_;
  KvStore store_;
  std::unique_ptr<Decoder> decoder_;
  TransferMoves moves_;
  /// Sessions whose turns decode.
  std::vector<EntryKey> running_;
};

}  // namespace kvtier
