#pragma once

#include <cstdint>

#include "sim/core/rng.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// The sessions of a workload that one of several replicas serves. A draw from the stream
/// "replicas/routing" gives each session its replica, the same for all replicas.
class ReplicaSource final : public SessionSource {
 public:
  /// `all` outlives this; replica in 0 .. count-1.
  ReplicaSource(SessionSource& all, std::int64_t replica, std::int64_t count, std::uint64_t seed)
      : all_(all), replica_(replica), count_(count), routing_(seed, "replicas/routing") {}

  bool next(SessionSpec& session) override {
    while (all_.next(session)) {
      if (routing_.index(count_) == replica_) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] Streams* streams() override { return all_.streams(); }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return all_.named_blocks();
  }

 private:
  SessionSource& all_;
  std::int64_t replica_;
  std::int64_t count_;
  RandomStream routing_;
};

}  // namespace kvtier
