#include "sim/device/lane.hpp"

#include <utility>

namespace kvtier {

Lane::Lane(Setup setup) : setup_(std::move(setup)) {
  add([this](const MoveLane&) {
    stay_on(setup_.processors);
    stream_ = setup_.device->make_stream(setup_.stream);
  });
  wake();
}

Lane::~Lane() { thread_.abandon(); }

void Lane::add(Task task) {
  thread_.add([this, task = std::move(task)] {
    if (failed_) {
      return;
    }
    try {
      task({.stream = stream_.get(), .storage = setup_.storage.get(), .scratch = setup_.scratch});
    } catch (...) {
      failed_ = true;
      setup_.failed(std::current_exception());
    }
  });
}

}  // namespace kvtier
