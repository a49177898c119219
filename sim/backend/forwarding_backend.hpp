#pragma once

#include <cstdint>
#include <span>

#include "sim/backend/backend.hpp"

namespace kvtier {

/// Passes every command on to another backend.
class ForwardingBackend : public Backend {
 public:
  Completion wait() override {
    const Completion completion = backend_.wait();
    now_ = backend_.now();
    return completion;
  }
  [[nodiscard]] bool pending() const override { return backend_.pending(); }
  void set_timer(SimTime at, std::uint64_t payload) override { backend_.set_timer(at, payload); }
  TransferId start_transfer(const TransferCommand& command) override {
    return backend_.start_transfer(command);
  }
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override {
    return backend_.extend_transfer(transfer, bytes, first, end);
  }
  void start_prefill(const PrefillCommand& command) override { backend_.start_prefill(command); }
  void start_iteration(const IterationCommand& command) override {
    backend_.start_iteration(command);
  }
  [[nodiscard]] IterationTime iteration_time() const override { return backend_.iteration_time(); }
  void start_decode(const DecodeCommand& command) override { backend_.start_decode(command); }
  void stop_decode() override { backend_.stop_decode(); }
  [[nodiscard]] Bytes in_flight(Medium from, Medium to) const override {
    return backend_.in_flight(from, to);
  }
  [[nodiscard]] SimTime iteration_end(std::int64_t iteration) const override {
    return backend_.iteration_end(iteration);
  }
  void begin_with(EntryKey key, const TurnPrompt& prompt) override {
    backend_.begin_with(key, prompt);
  }
  void decode_next(std::span<const EntryKey> keys) override { backend_.decode_next(keys); }
  void decode_contexts(std::span<const Tokens> contexts) override {
    backend_.decode_contexts(contexts);
  }
  void end_request(EntryKey key) override { backend_.end_request(key); }
  void cut(EntryKey key, Tokens kept, Tokens dropped) override { backend_.cut(key, kept, dropped); }
  void begin_request(EntryKey key, std::span<const KvPiece> context) override {
    backend_.begin_request(key, context);
  }
  void share_blocks(EntryKey key, std::span<const KvPiece> blocks) override {
    backend_.share_blocks(key, blocks);
  }
  void release_request(EntryKey key) override { backend_.release_request(key); }
  void add_blocks(const BlockCopy& copy) override { backend_.add_blocks(copy); }
  void remove_blocks(Medium medium, const KvPiece& blocks) override {
    backend_.remove_blocks(medium, blocks);
  }
  void drop_arrivals(std::uint64_t cookie) override { backend_.drop_arrivals(cookie); }

 protected:
  /// Keeps a reference.
  explicit ForwardingBackend(Backend& backend)
      : ForwardingBackend(backend, backend.has_bytes(), backend.wants_contexts()) {}
  /// Does not use the backend yet, which may be a member of the class that is made.
  ForwardingBackend(Backend& backend, bool has_bytes, bool wants_contexts)
      : Backend(has_bytes, wants_contexts), backend_(backend) {}

  void on_resident_prefix(Medium medium, EntryKey key, Tokens tokens) override {
    backend_.set_resident_prefix(medium, key, tokens);
  }

  Backend& backend_;
};

}  // namespace kvtier
