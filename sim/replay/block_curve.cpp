#include "sim/replay/block_curve.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/replay/accesses.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/curves/belady.hpp"
#include "sim/store/curves/prefix_stack.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kTurnsBetweenReports = 8192;

/// A look-up, and the context that is stored after it.
struct Access {
  Context prompt;
  Context stored;
  /// Number of the prompt's first blocks that are used but not asked for.
  std::int64_t found_blocks = 0;
  /// Tokens of the last block behind the prompt's end.
  Tokens beyond;
};

/// Visits the requests of a source in order. `end` gets the streams that no later request names.
template <class Visit, class End>
void for_each_access(Accesses& accesses, const BlockCurveOptions& options,
                     const std::function<void(std::int64_t)>& progress, const Visit& visit,
                     const End& end) {
  if (options.partial_blocks && !accesses.named()) {
    throw ConfigError("partial blocks count only in a trace that names its blocks");
  }
  for (std::int64_t turns = 0; accesses.next(); ++turns) {
    const TurnContent& content = accesses.content();
    Access access{.prompt = content.prompt,
                  .stored = content.whole,
                  .found_blocks = accesses.found_when_recorded().value / options.block.value,
                  .beyond = Tokens(0)};
    if (options.partial_blocks) {
      const std::int64_t block = options.block.value;
      access.prompt.tokens = options.block * ((content.prompt.tokens.value + block - 1) / block);
      access.beyond = access.prompt.tokens - content.prompt.tokens;
    }
    if (!accesses.response_is_known() || options.partial_blocks) {
      access.stored = access.prompt;
    }
    visit(access);
    for (const StreamId stream : accesses.take_ended()) {
      end(stream);
    }
    if (turns % kTurnsBetweenReports == 0 && progress) {
      progress(turns);
    }
  }
}

/// Sums over all requests, or over a sample.
struct Needed {
  std::int64_t requests = 0;
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
};
struct Hits {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
};

/// Four capacities for each doubling.
std::vector<std::int64_t> capacity_grid(std::int64_t last) {
  std::vector<std::int64_t> grid;
  for (std::int64_t power = 4; grid.empty() || grid.back() < last; power *= 2) {
    for (std::int64_t quarter = 4; quarter < 8; ++quarter) {
      grid.push_back(power / 4 * quarter);
    }
  }
  while (grid.size() > 1 && grid[grid.size() - 2] >= last) {
    grid.pop_back();
  }
  return grid;
}

bool evicts_blocks(const std::string& policy) {
  return policy == "lru" || policy == "fifo" || policy == "lfu";
}

Json hits_report(const Hits& hits, const Needed& needed) {
  return Json{{"hit_blocks", hits.blocks},
              {"hit_tokens", hits.tokens},
              {"hit_rate",
               {{"blocks", share(hits.blocks, needed.blocks)},
                {"tokens", share(hits.tokens, needed.tokens)}}}};
}

class Curve {
 public:
  Curve(const std::function<std::unique_ptr<SessionSource>()>& open, const TurnFitter* fitter,
        const BlockCurveOptions& options, const PolicyRegistry& registry,
        const std::function<void(std::int64_t)>& progress)
      : open_(open), fitter_(fitter), options_(options), registry_(registry), progress_(progress) {
    for (const KvSize& size : options.capacities) {
      capacities_.push_back(blocks_of(size, options.block, options.bytes_per_token));
    }
    std::sort(capacities_.begin(), capacities_.end());
    capacities_.erase(std::unique(capacities_.begin(), capacities_.end()), capacities_.end());
  }

  Json report() {
    // Stores first: a policy that asks for a missing fact is refused before the other passes.
    std::vector<Hits> of_policy;
    if (options_.policy != "lru") {
      of_policy = store_pass();
    }
    stack_pass();
    if (!of_policy.empty()) {
      hits_ = std::move(of_policy);
    }
    std::vector<std::int64_t> best;
    if (options_.belady) {
      best = belady_pass();
    }
    Json result = new_result("kvtier.block_curve/1");
    result["policy"] = options_.policy;
    result["block_tokens"] = options_.block.value;
    result["sampling"] = {{"rate", options_.sampling_rate}};
    result["requests"] = needed_.requests;
    result["blocks"] = needed_.blocks;
    result["tokens"] = needed_.tokens;
    result["ideal"] = hits_report(ideal_, needed_);
    result["rows"] = Json::array();
    for (std::size_t i = 0; i < capacities_.size(); ++i) {
      Json row{{"capacity_blocks", capacities_[i]},
               {"capacity_tokens", (options_.block * capacities_[i]).value},
               {"blocks", needed_.blocks},
               {"tokens", needed_.tokens}};
      if (options_.bytes_per_token.value > 0) {
        row["capacity_bytes"] =
            (options_.bytes_per_token * options_.block.value * capacities_[i]).value;
      }
      row.update(hits_report(hits_[i], needed_));
      if (options_.belady) {
        row["belady"] = {{"hit_blocks", best[i]},
                         {"hit_rate", {{"blocks", share(best[i], needed_.blocks)}}}};
      }
      result["rows"].push_back(row);
    }
    return result;
  }

 private:
  /// LRU at all capacities, and the sums of all requests.
  void stack_pass() {
    const auto source = open_();
    Accesses accesses(*source, fitter_);
    PrefixStack stack(accesses.streams(), options_.block, options_.sampling_rate);
    HitCurve curve;
    // Hits of blocks that are not asked for. A look-up of these blocks alone gives their number.
    HitCurve found;
    // Capacities from which on a whole prompt hits, and the tokens by which its last block is not
    // full.
    std::vector<std::pair<std::int64_t, std::int64_t>> lacking;
    std::vector<Stretch> path;
    for_each_access(
        accesses, options_, progress_,
        [&](const Access& access) {
          const std::int64_t capacity = stack.look_up(access.prompt, curve);
          const Tokens found_tokens = options_.block * access.found_blocks;
          if (access.found_blocks > 0) {
            stack.look_up({access.prompt.stream, found_tokens}, found);
          }
          ++needed_.requests;
          if (options_.sampling_rate >= 1) {
            needed_.blocks +=
                access.prompt.tokens.value / options_.block.value - access.found_blocks;
            needed_.tokens += (access.prompt.tokens - access.beyond - found_tokens).value;
            if (access.beyond.value > 0 && capacity > 0) {
              lacking.emplace_back(capacity, access.beyond.value);
            }
          } else {
            accesses.streams().path(access.prompt.stream,
                                    access.prompt.tokens.value / options_.block.value,
                                    options_.block.value, path);
            for (const Stretch& stretch : path) {
              const std::int64_t asked = std::max<std::int64_t>(
                  stretch.end - std::max(stretch.begin, access.found_blocks), 0);
              const std::int64_t blocks = stack.is_sampled(stretch.stream) ? asked : 0;
              needed_.blocks += blocks;
              needed_.tokens += blocks * options_.block.value;
            }
          }
          stack.use(access.stored);
        },
        [&](StreamId stream) {
          stack.forget(stream);
          accesses.streams().close(stream);
        });
    if (needed_.requests == 0) {
      throw ConfigError("the workload has no requests");
    }
    const std::int64_t last = curve.last_bend();  // not before that of `found`
    if (capacities_.empty()) {
      capacities_ = capacity_grid(last);
    }
    std::sort(lacking.begin(), lacking.end());
    std::vector<std::int64_t> at = capacities_;
    at.push_back(std::max(last, at.back()));
    std::vector<std::int64_t> blocks = curve.hits_at(at);
    const std::vector<std::int64_t> not_asked_for = found.hits_at(at);
    std::transform(blocks.begin(), blocks.end(), not_asked_for.begin(), blocks.begin(),
                   std::minus<>());
    std::int64_t lacks = 0;
    auto next = lacking.begin();
    for (std::size_t i = 0; i < at.size(); ++i) {
      for (; next != lacking.end() && next->first <= at[i]; ++next) {
        lacks += next->second;
      }
      const Hits hits{blocks[i], blocks[i] * options_.block.value - lacks};
      if (i < capacities_.size()) {
        hits_.push_back(hits);
      } else {
        ideal_ = hits;
      }
    }
  }

  /// One store for each capacity.
  std::vector<Hits> store_pass() {
    const auto source = open_();
    Accesses accesses(*source, fitter_);
    std::vector<std::unique_ptr<Store>> stores;
    for (const std::int64_t capacity : capacities_) {
      StoreRules rules;
      rules.hit_cap = HitCap::none;
      rules.pools.push_back(
          {.capacity = capacity,
           .block = options_.block,
           .unit = evicts_blocks(options_.policy) ? EvictionUnit::block : EvictionUnit::tail,
           .eviction = options_.policy,
           .facts = options_.facts});
      stores.push_back(make_store(rules, accesses.streams(), registry_));
    }
    std::vector<Hits> hits(capacities_.size());
    for_each_access(
        accesses, options_, progress_,
        [&](const Access& access) {
          for (std::size_t i = 0; i < stores.size(); ++i) {
            Match match;
            stores[i]->advance(accesses.now());
            const auto request = stores[i]->acquire(access.prompt, access.prompt.tokens, match);
            if (access.stored.tokens > access.prompt.tokens) {
              static_cast<void>(stores[i]->grow(*request, access.stored));
            }
            stores[i]->release(*request);
            const bool whole = match.tokens == access.prompt.tokens;
            const Tokens hit =
                std::max(match.tokens - options_.block * access.found_blocks, Tokens(0));
            hits[i].blocks += hit.value / options_.block.value;
            hits[i].tokens += (hit - (whole ? access.beyond : Tokens(0))).value;
          }
        },
        [](StreamId) {});
    return hits;
  }

  std::vector<std::int64_t> belady_pass() {
    const auto source = open_();
    Accesses accesses(*source, fitter_);
    Belady belady(accesses.streams(), options_.block);
    for_each_access(
        accesses, options_, progress_,
        [&](const Access& access) {
          if (access.found_blocks > 0) {
            throw ConfigError(
                "the bound needs requests for whole prompts, but the trace's requests ask for "
                "parts: the recorded server had the earlier blocks");
          }
          belady.add(access.prompt, access.stored);
        },
        [](StreamId) {});
    std::vector<std::int64_t> hits;
    for (const std::int64_t capacity : capacities_) {
      hits.push_back(belady.hits(capacity));
    }
    return hits;
  }

  const std::function<std::unique_ptr<SessionSource>()>& open_;
  const TurnFitter* fitter_;
  const BlockCurveOptions& options_;
  const PolicyRegistry& registry_;
  const std::function<void(std::int64_t)>& progress_;
  std::vector<std::int64_t> capacities_;
  Needed needed_;
  Hits ideal_;
  std::vector<Hits> hits_;
};

}  // namespace

Json block_curve(const std::function<std::unique_ptr<SessionSource>()>& open,
                 const TurnFitter* fitter, const BlockCurveOptions& options,
                 const PolicyRegistry& registry,
                 const std::function<void(std::int64_t)>& progress) {
  return Curve(open, fitter, options, registry, progress).report();
}

}  // namespace kvtier
