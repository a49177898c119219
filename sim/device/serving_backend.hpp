#pragma once

#include <functional>
#include <memory>
#include <optional>
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

  void begin_with(EntryKey key, const TurnPrompt& prompt) final {
    if (!prompt.exists && prompt.shared) {
      static_cast<void>(store_.extend(prompt.key, 0, prompt.tokens.value));
    }
    if (prompt.shared) {
      store_.share_head(key, prompt.key, prompt.tokens.value);
    } else if (!prompt.exists) {
      store_.take_head(key, prompt.tokens.value);
    }
    prompt_ = prompt;
  }
  void end_request(EntryKey key) final {
    std::erase(running_, key);
    store_.drop_head(key);
  }
  void cut(EntryKey key, Tokens kept, Tokens dropped) final {
    store_.cut(key, kept.value, dropped.value);
  }

 protected:
  void on_keep(Medium medium, EntryKey key, Tokens tokens) final {
    if (medium == Medium::hbm) {
      moves_.complete(key, tokens.value);
    }
    store_.keep(medium, key, tokens.value);
  }

  ServingBackend(const ServingSetup& setup, std::int64_t lanes)
      : Backend(true),
        check_(setup.check),
        layers_(setup.config->model.layers),
        store_(store_setup(setup, lanes)),
        decoder_(make_decoder(setup)),
        moves_(store_, *setup.device, layers_) {}

  /// What every `wait` begins with: the control plane has said all that it does at one instant.
  void begin_wait() {
    store_.settle();
    check_();
  }
  /// The pass of a prefill, with room for what it computes; a load that was to come has come.
  [[nodiscard]] DecoderPass pass_of(const PrefillCommand& command) {
    if (!command.load.valid()) {
      moves_.end_load(command.key);
    }
    DecoderPass pass;
    PrefillPart own = command.part;
    if (prompt_) {
      (prompt_->exists ? own.past : own.added) -= prompt_->tokens;
      if (!prompt_->exists) {
        // A request of its own, whose KV the other one reads: what follows may be there already.
        add_prompt(pass, prompt_->key, {.added = prompt_->tokens, .past = Tokens(0)},
                   store_.head(command.key), decoder_->shape().vocabulary);
      }
      prompt_.reset();
    }
    add(pass, command.key, own);
    prefilling_ = {command.key};
    return pass;
  }
  [[nodiscard]] DecoderPass pass_of(const IterationCommand& command) {
    KVTIER_ASSERT(command.decode_batch == 0 || command.decode_batch == std::ssize(running_),
                  "the batch is what runs");
    DecoderPass pass;
    for (std::size_t i = 0; i < command.parts.size(); ++i) {
      add(pass, command.keys[i], command.parts[i]);
    }
    if (command.decode_batch > 0) {
      add_decode(pass, store_, running_, decoder_->shape().vocabulary);
    }
    prefilling_.assign(command.keys.begin(), command.keys.end());
    return pass;
  }
  /// Those whose prefill is complete decode from now on.
  void run_prefilled() {
    running_.insert(running_.end(), prefilling_.begin(), prefilling_.end());
    prefilling_.clear();
  }

  std::function<void()> check_;
  std::int64_t layers_;
  KvStore store_;
  std::unique_ptr<Decoder> decoder_;
  TransferMoves moves_;
  /// Sessions whose turns decode, and those whose prefill is in work.
  std::vector<EntryKey> running_;
  std::vector<EntryKey> prefilling_;

 private:
  /// Of the turn that is prefilled next.
  std::optional<TurnPrompt> prompt_;

  void add(DecoderPass& pass, EntryKey key, const PrefillPart& part) {
    add_prompt(pass, key, part, store_.extend(key, part.past.value, part.added.value),
               decoder_->shape().vocabulary);
  }
};

}  // namespace kvtier
