#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <utility>

#include "sim/backend/backend.hpp"

namespace kvtier {

/// A backend without a clock: each iteration takes one step, whatever it computes. Transfers that
/// start with a step complete before it ends. Time is only the order of events; one step is kStep
/// of the units of now().
class StepBackend final : public Backend {
 public:
  static constexpr SimDuration kStep{2};

  Completion wait() override;
  [[nodiscard]] bool pending() const override {
    return busy_ || !transfers_.empty() || !timers_.empty();
  }
  void set_timer(SimTime at, std::uint64_t payload) override;
  TransferId start_transfer(const TransferCommand& command) override;
  /// Throws InvariantError: no transfer stays open.
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override;
  void start_prefill(const PrefillCommand& command) override;
  void start_iteration(const IterationCommand& command) override;
  [[nodiscard]] IterationTime iteration_time() const override { return {kStep, SimDuration(0)}; }
  void start_decode(const DecodeCommand& command) override;
  void stop_decode() override;

 private:
  void start(CompletionKind kind, std::int64_t iterations);

  struct Transfer {
    SimTime end;
    std::uint64_t cookie;
  };
  struct Timer {
    SimTime at;
    std::uint64_t number;
    std::uint64_t payload;
    bool operator<(const Timer& other) const {
      return std::pair(at, number) < std::pair(other.at, other.number);
    }
  };

  bool busy_ = false;
  CompletionKind command_ = CompletionKind::decode;
  SimTime command_began_;
  std::int64_t iterations_ = 0;
  std::deque<Transfer> transfers_;
  std::set<Timer> timers_;
  std::uint64_t timers_set_ = 0;
  std::uint32_t transfers_started_ = 0;
};

}  // namespace kvtier
