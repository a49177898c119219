#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "traces/session.hpp"

namespace kvtier::test {

/// Requests of one turn each, written down as the names of their blocks: a name stands for the
/// block and all before it.
class NamedSource final : public SessionSource {
 public:
  struct Request {
    std::vector<std::int64_t> blocks;
    Tokens prompt;
    Tokens output{1};
  };
  NamedSource(std::vector<Request> requests, NamedBlocks named)
      : requests_(std::move(requests)), named_(named) {}

  bool next(SessionSpec& session) override {
    if (next_ == requests_.size()) {
      return false;
    }
    const Request& request = requests_[next_];
    session = {.id = static_cast<std::int64_t>(next_),
               .arrival = SimTime(static_cast<std::int64_t>(next_) * 1'000'000'000)};
    session.turns = {{request.prompt, request.output, SimDuration()}};
    session.contents = {{.prompt = {stream_of(request.blocks), request.prompt}}};
    ++next_;
    return true;
  }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override { return named_; }

 private:
  struct Place {
    StreamId stream;
    std::int64_t end = 0;
  };
  /// Lengthens the stream of the deepest known block at its end, or forks from it.
  StreamId stream_of(const std::vector<std::int64_t>& blocks) {
    std::size_t known = 0;
    while (known < blocks.size() && find(blocks[known]) != nullptr) {
      ++known;
    }
    if (known == blocks.size()) {
      return find(blocks.back())->stream;
    }
    Place place = known == 0 ? Place{} : *find(blocks[known - 1]);
    if (!place.stream.valid()) {
      place.stream = streams_.open();
    } else if (lengths_[place.stream.value] > place.end) {
      place.stream = streams_.open(place.stream, named_.block * place.end);
    }
    for (; known < blocks.size(); ++known) {
      places_[blocks[known]] = {place.stream, static_cast<std::int64_t>(known) + 1};
    }
    lengths_.resize(std::max(lengths_.size(), static_cast<std::size_t>(place.stream.value) + 1));
    lengths_[place.stream.value] = static_cast<std::int64_t>(known);
    return place.stream;
  }
  [[nodiscard]] const Place* find(std::int64_t block) const {
    const auto found = places_.find(block);
    return found == places_.end() ? nullptr : &found->second;
  }

  std::vector<Request> requests_;
  NamedBlocks named_;
  Streams streams_;
  std::unordered_map<std::int64_t, Place> places_;
  std::vector<std::int64_t> lengths_;
  std::size_t next_ = 0;
};

}  // namespace kvtier::test
