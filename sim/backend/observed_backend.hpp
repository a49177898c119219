#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "sim/backend/forwarding_backend.hpp"
#include "sim/backend/transfer_observer.hpp"

namespace kvtier {

/// Reports each complete transfer of another backend to an observer. It also reports open
/// transfers, whose ends the control plane does not see. It changes no time and no decision.
class ObservedBackend final : public ForwardingBackend {
 public:
  /// Keeps references to both.
  ObservedBackend(Backend& backend, TransferObserver& observer)
      : ForwardingBackend(backend), observer_(observer) {}

  Completion wait() override;
  TransferId start_transfer(const TransferCommand& command) override;
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override;

 private:
  TransferObserver& observer_;
  struct InFlight {
    TransferRecord record;
    bool open;
  };
  /// Transfers by cookie, in the order of their starts. Of transfers with one cookie, all but the
  /// last are open and complete but not yet reported. Looked up only, never iterated.
  std::unordered_map<std::uint64_t, std::deque<InFlight>> in_flight_;
  std::unordered_map<std::uint32_t, std::uint64_t> cookie_of_;
};

}  // namespace kvtier
