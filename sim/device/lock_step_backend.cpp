#include "sim/device/lock_step_backend.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"

namespace kvtier {

LockStepBackend::LockStepBackend(Backend& clock, const ServingSetup& setup)
    : ServingBackend(setup, 1),
      clock_(clock),
      stream_(setup.device->make_stream()),
      storage_(store_.open_engine()),
      lane_{.stream = stream_.get(), .storage = storage_.get(), .scratch = store_.scratch(0)} {}

LockStepBackend::~LockStepBackend() = default;

Completion LockStepBackend::wait() {
  check_();
  const Completion completion = clock_.wait();
  now_ = clock_.now();
  switch (completion.kind) {
    case CompletionKind::transfer: {
      const auto found = std::ranges::find_if(transfers_, [&](const auto& transfer) {
        const TransferCommand& command = transfer.second.command;
        return (!command.open || command.notify_when_drained) &&
               command.cookie == completion.payload;
      });
      KVTIER_ASSERT(found != transfers_.end(), "a transfer completes that was started");
      TransferCommand& command = found->second.command;
      if (command.open) {
        command.notify_when_drained = false;  // it may still be extended
        break;
      }
      carry_out(found->second);
      transfers_.erase(found);
      break;
    }
    case CompletionKind::prefill:
      compute(pass_, *decoder_, store_, lane_);
      break;
    case CompletionKind::decode:
      for (std::uint64_t i = 0; i < completion.payload; ++i) {
        DecoderPass pass;
        add_decode(pass, store_, decoding_, decoder_->shape().vocabulary);
        compute(pass, *decoder_, store_, lane_);
      }
      break;
    case CompletionKind::timer:
      break;
  }
  return completion;
}

void LockStepBackend::carry_out(Transfer& transfer) {
  for (const KvMove& move : transfer.moves) {
    store_.move(move, lane_);
    store_.end(move);
  }
  transfer.moves.clear();
}

TransferId LockStepBackend::start_transfer(const TransferCommand& command) {
  const TransferId id = clock_.start_transfer(command);
  Transfer& transfer = transfers_[id.value];
  carry_out(transfer);  // an ended open transfer had the same number
  transfer.command = command;
  transfer.command.pieces = {};
  transfer.moves.push_back(store_.begin(command));
  return id;
}

bool LockStepBackend::extend_transfer(TransferId id, Bytes bytes, Tokens first, Tokens end) {
  const bool extended = clock_.extend_transfer(id, bytes, first, end);
  Transfer& transfer = transfers_.at(id.value);
  if (extended) {
    transfer.command = rest_of(transfer.command, first, end);
    transfer.moves.push_back(store_.begin(transfer.command));
  } else {
    carry_out(transfer);
    transfers_.erase(id.value);
  }
  return extended;
}

void LockStepBackend::start_prefill(const PrefillCommand& command) {
  clock_.start_prefill(command);
  pass_ = pass_of(command);
}

void LockStepBackend::start_iteration(const IterationCommand& command) {
  clock_.start_iteration(command);
  pass_ = pass_of(command);
}

void LockStepBackend::finish() {
  for (auto& [id, transfer] : transfers_) {
    carry_out(transfer);
  }
  transfers_.clear();
  store_.check_invariants();
}

}  // namespace kvtier
