#pragma once

#include "sim/backend/backend.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// One completed transfer, for timelines.
struct TransferRecord {
  Medium from;
  Medium to;
  Bytes bytes;
  EntryKey key;
  SimTime begin;
  SimTime end;
};

/// Receives each transfer when it is complete.
class TransferObserver {
 public:
  virtual ~TransferObserver() = default;
  virtual void on_transfer(const TransferRecord&) {}
};

}  // namespace kvtier
