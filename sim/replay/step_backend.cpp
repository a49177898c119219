#include "sim/replay/step_backend.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"

namespace kvtier {

Completion StepBackend::wait() {
  KVTIER_ASSERT(pending(), "something is to come");
  const SimTime command = command_began_ + kStep * iterations_;
  const bool has_timer = !timers_.empty();
  const bool has_transfer = !transfers_.empty();
  const bool timer_is_first = has_timer && (!busy_ || timers_.begin()->at < command) &&
                              (!has_transfer || timers_.begin()->at < transfers_.front().end);
  if (timer_is_first) {
    const Timer timer = *timers_.begin();
    timers_.erase(timers_.begin());
    now_ = timer.at;
    return {CompletionKind::timer, timer.payload};
  }
  if (has_transfer && (!busy_ || transfers_.front().end < command)) {
    const Transfer transfer = transfers_.front();
    transfers_.pop_front();
    now_ = transfer.end;
    return {CompletionKind::transfer, transfer.cookie};
  }
  busy_ = false;
  now_ = command;
  return {command_, command_ == CompletionKind::decode ? static_cast<std::uint64_t>(iterations_)
                                                       : static_cast<std::uint64_t>(kStep.ns)};
}

void StepBackend::set_timer(SimTime at, std::uint64_t payload) {
  timers_.insert({std::max(at, now_), timers_set_++, payload});
}

TransferId StepBackend::start_transfer(const TransferCommand& command) {
  KVTIER_ASSERT(!command.open, "no transfer stays open");
  transfers_.push_back({now_ + SimDuration(1), command.cookie});
  return {transfers_started_++ & 0x7fffffffU};
}

bool StepBackend::extend_transfer(TransferId, Bytes, Tokens, Tokens) {
  KVTIER_ASSERT(false, "no transfer stays open");
  return false;
}

void StepBackend::start(CompletionKind kind, std::int64_t iterations) {
  KVTIER_ASSERT(!busy_, "one GPU command runs at a time");
  busy_ = true;
  command_ = kind;
  command_began_ = now_;
  iterations_ = iterations;
}

void StepBackend::start_prefill(const PrefillCommand&) { start(CompletionKind::prefill, 1); }

void StepBackend::start_iteration(const IterationCommand&) { start(CompletionKind::prefill, 1); }

void StepBackend::start_decode(const DecodeCommand& command) {
  start(CompletionKind::decode, command.iterations);
}

void StepBackend::stop_decode() {
  const std::int64_t begun = ((now_ - command_began_).ns + kStep.ns - 1) / kStep.ns;
  iterations_ = std::clamp<std::int64_t>(begun, 1, iterations_);
}

}  // namespace kvtier
