#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/assert.hpp"
#include "sim/device/serving_device.hpp"

namespace kvtier {

/// Common base of the backends of a device: the KV store, the decoder, and the calls about stored
/// KV.
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
  void decode_next(std::span<const EntryKey> keys) final {
    decoding_.assign(keys.begin(), keys.end());
  }
  void end_request(EntryKey key) final {
    store_.drop_head(key);
    store_.end_request(key);
  }
  void cut(EntryKey key, Tokens kept, Tokens dropped) final {
    store_.cut(key, kept.value, dropped.value);
  }
  void begin_request(EntryKey key, std::span<const KvPiece> context) final {
    store_.begin_request(key, context);
  }
  void share_blocks(EntryKey key, std::span<const KvPiece> blocks) final {
    store_.share_blocks(key, blocks);
  }
  void release_request(EntryKey key) final { store_.release_request(key); }
  void add_blocks(const BlockCopy& copy) final { store_.add_blocks(copy); }
  void remove_blocks(Medium medium, const KvPiece& blocks) final {
    store_.remove_blocks(medium, blocks);
  }
  void drop_arrivals(std::uint64_t cookie) final { store_.drop_arrivals(cookie); }

 protected:
  void on_resident_prefix(Medium medium, EntryKey key, Tokens tokens) final {
    store_.set_resident_prefix(medium, key, tokens.value);
  }

  ServingBackend(const ServingSetup& setup, std::int64_t lanes)
      : Backend(true),
        check_(setup.check),
        layers_(setup.config->model.layers),
        store_(store_setup(setup, lanes)),
        decoder_(make_decoder(setup)) {}

  /// The pass of a prefill, with room for its new KV.
  [[nodiscard]] DecoderPass pass_of(const PrefillCommand& command) {
    DecoderPass pass;
    PrefillPart own = command.part;
    if (prompt_) {
      (prompt_->exists ? own.past : own.added) -= prompt_->tokens;
      if (!prompt_->exists) {
        // The shared prompt is a request of its own, and the turn's request reads its KV. Tokens
        // after it may be resident already.
        add_prompt(pass, store_, prompt_->key, {.added = prompt_->tokens, .past = Tokens(0)},
                   store_.head(command.key), decoder_->shape().vocabulary);
      }
      prompt_.reset();
    }
    add(pass, command.key, own);
    return pass;
  }
  [[nodiscard]] DecoderPass pass_of(const IterationCommand& command) {
    DecoderPass pass;
    for (std::size_t i = 0; i < command.parts.size(); ++i) {
      add(pass, command.keys[i], command.parts[i]);
    }
    if (command.decode_batch > 0) {
      add_decode(pass, store_, decoding(command.decode_batch), decoder_->shape().vocabulary);
    }
    return pass;
  }
  [[nodiscard]] const std::vector<EntryKey>& decoding(std::int64_t batch) const {
    KVTIER_ASSERT(batch == std::ssize(decoding_), "a decode names its sessions");
    return decoding_;
  }

  std::function<void()> check_;
  std::int64_t layers_;
  KvStore store_;
  std::unique_ptr<Decoder> decoder_;
  /// The current decode or iteration, or the next one.
  std::vector<EntryKey> decoding_;

 private:
  /// Shared prompt of the turn that is prefilled next.
  std::optional<TurnPrompt> prompt_;

  void add(DecoderPass& pass, EntryKey key, const PrefillPart& part) {
    add_prompt(pass, store_, key, part, store_.extend(key, part.past.value, part.added.value),
               decoder_->shape().vocabulary);
  }
};

}  // namespace kvtier
