#include "hw/device/ring_load.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"

namespace kvtier {

PartRequests::PartRequests(StorageEngine& engine, std::size_t parts)
    : engine_(engine), requests_(parts) {
  KVTIER_ASSERT(engine.in_flight() == 0, "every request of the move before has ended");
}

void PartRequests::submit(IoRequest request, std::size_t part) {
  if (!has_room()) {
    wait();
  }
  request.tag = part;
  ++requests_[part];
  engine_.submit({&request, 1});
}

void PartRequests::wait_for(std::size_t part) {
  while (requests_[part] > 0) {
    wait();
  }
}

void PartRequests::wait() {
  const std::vector<IoCompletion> ended = engine_.wait();
  KVTIER_ASSERT(!ended.empty(), "a drive that is waited for ends a request");
  for (const IoCompletion& completion : ended) {
    --requests_.at(completion.tag);
  }
}

void load_through_ring(StorageEngine& engine, const RingLoad& load) {
  PartRequests requests(engine, load.parts);
  load.synchronize();  // earlier copies have left the ring
  std::size_t copied = 0;
  std::size_t submitted = 0;
  for (std::size_t part = 0; part < load.parts; ++part) {
    const bool half_empty = submitted <= part + kRingParts / 2;
    while (half_empty && submitted < std::min(load.parts, part + kRingParts) &&
           (submitted == part || requests.has_room())) {
      if (submitted == copied + kRingParts) {
        load.synchronize();
        copied = part;
      }
      load.read(submitted, requests);
      ++submitted;
    }
    requests.wait_for(part);
    load.copy(part);
  }
}

}  // namespace kvtier
