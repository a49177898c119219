#include "traces/block_statistics.hpp"

#include <algorithm>

#include "traces/statistics.hpp"

namespace kvtier {

void BlockStatistics::add(const SessionSpec& session) {
  for (std::size_t turn = 0; turn < session.contents.size(); ++turn) {
    const TurnContent& content = session.contents[turn];
    add(content.prompt, session.found_when_recorded(turn));
    if (content.whole.stream.valid()) {
      add_response(content.whole);
    }
  }
}

void BlockStatistics::merge(const BlockStatistics& other) {
  requests_.insert(requests_.end(), other.requests_.begin(), other.requests_.end());
  prefixes_.merge(other.prefixes_);
  distinct_ += other.distinct_;
  reused_ += other.reused_;
}

BlockStatistics::Used& BlockStatistics::used(StreamId stream) {
  if (stream.value >= used_.size()) {
    used_.resize(static_cast<std::size_t>(stream.value) + 1);
  }
  return used_[stream.value];
}

/// Only full blocks of a response have KV that a prompt can find.
void BlockStatistics::add_response(const Context& whole) {
  streams_->path(whole.stream, whole.tokens / named_.block, named_.block.value, path_);
  for (const Stretch& stretch : path_) {
    Used& known = used(stretch.stream);
    distinct_ += std::max<std::int64_t>(stretch.end - std::max(known.once, stretch.begin), 0);
    known.once = std::max(known.once, stretch.end);
  }
}

void BlockStatistics::add(const Context& prompt, Tokens found) {
  const std::int64_t block = named_.block.value;
  Request request{.tokens = prompt.tokens.value};
  request.blocks = (request.tokens + (named_.partial ? block - 1 : 0)) / block;
  streams_->path(prompt.stream, request.blocks, block, path_);
  bool runs = true;
  for (const Stretch& stretch : path_) {
    Used& used = this->used(stretch.stream);
    const auto behind = [&](std::int64_t end) {
      return std::max<std::int64_t>(stretch.end - std::max(end, stretch.begin), 0);
    };
    if (runs) {
      request.hit_blocks += stretch.end - stretch.begin - behind(used.once);
      runs = behind(used.once) == 0;
    }
    distinct_ += behind(used.once);
    reused_ += std::min(stretch.end, used.once) > std::max(used.twice, stretch.begin)
                   ? std::min(stretch.end, used.once) - std::max(used.twice, stretch.begin)
                   : 0;
    used.twice = std::max(used.twice, std::min(stretch.end, used.once));
    used.once = std::max(used.once, stretch.end);
  }
  request.hit_tokens = std::min(request.hit_blocks * block, request.tokens);
  const std::int64_t found_blocks = found.value / block;
  request.blocks -= found_blocks;
  request.hit_blocks = std::max<std::int64_t>(request.hit_blocks - found_blocks, 0);
  request.tokens -= found_blocks * block;
  request.hit_tokens = std::max<std::int64_t>(request.hit_tokens - found_blocks * block, 0);
  prefixes_.add(static_cast<std::int64_t>(path_.size()));
  requests_.push_back(request);
}

Json BlockStatistics::report() const {
  struct Sums {
    std::int64_t requests = 0;
    std::int64_t hit_requests = 0;
    Request all;
  };
  const auto sums_from = [&](std::size_t first) {
    Sums sums;
    for (std::size_t i = first; i < requests_.size(); ++i) {
      const Request& request = requests_[i];
      ++sums.requests;
      sums.hit_requests += request.hit_blocks > 0 ? 1 : 0;
      sums.all.blocks += request.blocks;
      sums.all.hit_blocks += request.hit_blocks;
      sums.all.tokens += request.tokens;
      sums.all.hit_tokens += request.hit_tokens;
    }
    return sums;
  };
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const auto rates = [&](const Sums& sums) {
    return Json{{"blocks", share(sums.all.hit_blocks, sums.all.blocks)},
                {"tokens", share(sums.all.hit_tokens, sums.all.tokens)},
                {"requests", share(sums.hit_requests, sums.requests)}};
  };
  const Sums all = sums_from(0);
  return Json{{"block_tokens", named_.block.value},
              {"requests", all.requests},
              {"blocks", all.all.blocks},
              {"distinct_blocks", distinct_},
              {"reused_blocks_fraction", share(reused_, distinct_)},
              {"prompt_tokens", all.all.tokens},
              {"ideal_hits",
               {{"blocks", all.all.hit_blocks},
                {"tokens", all.all.hit_tokens},
                {"requests", all.hit_requests}}},
              {"ideal_hit_rate", rates(all)},
              {"ideal_hit_rate_second_half", rates(sums_from(requests_.size() / 2))},
              {"prefixes_per_request", distribution_report(prefixes_, 1)}};
}

}  // namespace kvtier
