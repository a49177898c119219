#include "sim/backend/observed_backend.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {

Completion ObservedBackend::wait() {
  while (true) {
    const Completion completion = backend_.wait();
    now_ = backend_.now();
    if (completion.kind != CompletionKind::transfer) {
      return completion;
    }
    const auto found = in_flight_.find(completion.payload);
    KVTIER_ASSERT(found != in_flight_.end(), "a transfer completes that was started");
    InFlight done = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) {
      in_flight_.erase(found);
    }
    done.record.end = now_;
    observer_.on_transfer(done.record);
    if (!done.open) {
      return completion;
    }
  }
}

TransferId ObservedBackend::start_transfer(const TransferCommand& command) {
  TransferCommand telling = command;
  telling.notify_when_drained = true;
  const TransferId id = backend_.start_transfer(telling);
  in_flight_[command.cookie].push_back({.record = {.from = command.from,
                                                   .to = command.to,
                                                   .bytes = command.bytes,
                                                   .key = command.key,
                                                   .begin = backend_.now(),
                                                   .end = SimTime()},
                                        .open = command.open});
  cookie_of_[id.value] = command.cookie;
  return id;
}

bool ObservedBackend::extend_transfer(TransferId transfer, Bytes bytes, Tokens first, Tokens end) {
  if (!backend_.extend_transfer(transfer, bytes, first, end)) {
    return false;
  }
  InFlight& extended = in_flight_.at(cookie_of_.at(transfer.value)).back();
  extended.record.bytes += bytes;
  extended.open = false;
  return true;
}

}  // namespace kvtier
