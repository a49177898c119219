#include "sim/engine/observed_backend.hpp"

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
    found->second.record.end = now_;
    observer_.on_transfer(found->second.record);
    const bool open = found->second.open;
    in_flight_.erase(found);
    if (!open) {
      return completion;
    }
  }
}

TransferId ObservedBackend::start_transfer(const TransferCommand& command) {
  TransferCommand closed = command;
  closed.open = false;
  const TransferId id = backend_.start_transfer(closed);
  const bool added = in_flight_
                         .insert({command.cookie,
                                  {.record = {.from = command.from,
                                              .to = command.to,
                                              .bytes = command.bytes,
                                              .key = command.key,
                                              .begin = backend_.now(),
                                              .end = SimTime()},
                                   .open = command.open}})
                         .second;
  KVTIER_ASSERT(added, "no two transfers in flight have the same cookie");
  cookie_of_[id.value] = command.cookie;
  return id;
}

bool ObservedBackend::extend_transfer(TransferId transfer, Bytes bytes, Tokens tokens) {
  const auto found = in_flight_.find(cookie_of_.at(transfer.value));
  if (found == in_flight_.end()) {
    return false;
  }
  found->second.record.bytes += bytes;
  found->second.open = false;
  return backend_.extend_transfer(transfer, bytes, tokens);
}

}  // namespace kvtier
