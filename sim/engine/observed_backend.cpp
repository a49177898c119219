#include "sim/engine/observed_backend.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {

Completion ObservedBackend::wait() {
  const Completion completion = backend_.wait();
  now_ = backend_.now();
  if (completion.kind == CompletionKind::transfer) {
    const auto found = in_flight_.find(completion.payload);
    KVTIER_ASSERT(found != in_flight_.end(), "a transfer completes that was started");
    found->second.end = backend_.now();
    observer_.on_transfer(found->second);
    in_flight_.erase(found);
  }
  return completion;
}

TransferId ObservedBackend::start_transfer(const TransferCommand& command) {
  const TransferId id = backend_.start_transfer(command);
  const bool added = in_flight_
                         .insert({command.cookie,
                                  {.from = command.from,
                                   .to = command.to,
                                   .bytes = command.bytes,
                                   .key = command.key,
                                   .begin = backend_.now(),
                                   .end = SimTime()}})
                         .second;
  KVTIER_ASSERT(added, "no two transfers in flight have the same cookie");
  cookie_of_[id.value] = command.cookie;
  return id;
}

void ObservedBackend::extend_transfer(TransferId transfer, Bytes bytes) {
  backend_.extend_transfer(transfer, bytes);
  in_flight_.at(cookie_of_.at(transfer.value)).bytes += bytes;
}

}  // namespace kvtier
