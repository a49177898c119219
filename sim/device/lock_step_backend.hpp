#pragma once

#include <map>
#include <memory>
#include <vector>

#include "sim/device/serving_backend.hpp"

namespace kvtier {

/// Does on a device what another backend has the time for: when that one reports a transfer, a
/// prefill or a decode complete, it is carried out and waited for. Changes no time and no decision,
/// so that a run is the other backend's run, with every byte where the control plane says that it
/// is.
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

  /// Carries out what no completion was reported of, and checks that slots and entries agree.
  void finish();

 private:
  struct Transfer {
    /// Without pieces.
    TransferCommand command;
    std::vector<KvMove> moves;
  };

  void carry_out(Transfer& transfer);

  Backend& clock_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<StorageEngine> storage_;
  MoveLane lane_;
  /// Of the prefill or iteration in work.
  DecoderPass pass_;
  /// By the other backend's number, which an open transfer may lose unnoticed to a later one.
  std::map<std::uint32_t, Transfer> transfers_;
};

}  // namespace kvtier
