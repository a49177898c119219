#pragma once

#include <map>
#include <memory>
#include <vector>

#include "sim/device/serving_backend.hpp"

namespace kvtier {

/// Runs the commands of another backend on a device. It carries out each transfer, prefill or
/// decode when the other backend reports its completion. It changes no time and no decision: the
/// run is the other backend's run, with all bytes moved.
class LockStepBackend final : public ServingBackend {
 public:
  /// Keeps references. Throws as KvStore and Decoder do.
  LockStepBackend(Backend& clock, const ServingSetup& setup);
  ~LockStepBackend() override;

  Completion wait() override;
  [[nodiscard]] bool pending() const override { return clock_.pending(); }
  void set_timer(SimTime at, std::uint64_t payload) override { clock_.set_timer(at, payload); }
  TransferId start_transfer(const TransferCommand& command) override;
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override;
  void start_prefill(const PrefillCommand& command) override;
  void start_iteration(const IterationCommand& command) override;
  [[nodiscard]] IterationTime iteration_time() const override { return clock_.iteration_time(); }
  void start_decode(const DecodeCommand& command) override { clock_.start_decode(command); }
  void stop_decode() override { clock_.stop_decode(); }
  [[nodiscard]] Bytes in_flight(Medium from, Medium to) const override {
    return clock_.in_flight(from, to);
  }

  /// Carries out transfers without a reported completion. Throws InvariantError if slots and
  /// entries do not agree.
  void finish();

 private:
  struct Transfer {
    /// The command without its pieces.
    TransferCommand command;
    std::vector<KvMove> moves;
  };

  void carry_out(Transfer& transfer);

  Backend& clock_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<StorageEngine> storage_;
  MoveLane lane_;
  /// The current prefill or iteration.
  DecoderPass pass_;
  /// Transfers by the other backend's number. A later transfer may reuse the number of an open one.
  std::map<std::uint32_t, Transfer> transfers_;
};

}  // namespace kvtier
