#include "traces/block_statistics.hpp"

#include <algorithm>

#include "traces/statistics.hpp"

namespace kvtier {

void BlockStatistics::add(const SessionSpec& session) {
  for (const TurnContent& content : session.contents) {
    add(content.prompt);
  }
}

void BlockStatistics::add(const Context& prompt) {
  const std::int64_t block = named_.block.value;
  Request request{.tokens = prompt.tokens.value};
  request.blocks = (request.tokens + (named_.partial ? block - 1 : 0)) / block;
  streams_.path(prompt.stream, request.blocks, block, path_);
  bool runs = true;
  for (const Stretch& stretch : path_) {
    if (stretch.stream.value >= used_.size()) {
      used_.resize(static_cast<std::size_t>(stretch.stream.value) + 1);
    }
    Used& used = used_[stretch.stream.value];
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
