/// The KV store of extents beside a plain list of blocks, without a clock: LRU in one pool, on
/// Mooncake's conversation trace. Compare rates of one run: the list's and the store's.

#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "sim/store/blocks/stores.hpp"
#include "sim/store/curves/prefix_stack.hpp"
#include "sim/study/engines/replays.hpp"
#include "tests/sim/store/test_data.hpp"

namespace kvtier::bench {
namespace {

constexpr std::int64_t kCapacityTokens = 10'000 * 512;

const HashTrace& conversation() {
  static const HashTrace trace = read_hash_trace(oracle_data() / "mooncake_conversation.jsonl.gz");
  return trace;
}

/// LRU over dense block numbers: a doubly linked list in arrays.
class BlockList {
 public:
  BlockList(std::size_t blocks, std::int64_t capacity)
      : capacity_(capacity), links_(blocks + 1, {kAbsent, kAbsent}) {
    links_[blocks] = {end(), end()};
  }
  /// Returns the leading run that is here; all blocks come in, the last one first.
  std::int64_t use(const std::vector<std::uint32_t>& blocks) {
    std::int64_t hits = 0;
    while (static_cast<std::size_t>(hits) < blocks.size() &&
           links_[blocks[static_cast<std::size_t>(hits)]].next != kAbsent) {
      ++hits;
    }
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const std::uint32_t block = blocks[i];
      if (links_[block].next != kAbsent) {
        unlink(block);
      } else if (size_ == capacity_) {
        const std::uint32_t oldest = links_[end()].next;
        unlink(oldest);
        links_[oldest].next = kAbsent;
      } else {
        ++size_;
      }
      links_[block] = {links_[end()].previous, end()};
      links_[links_[block].previous].next = block;
      links_[end()].previous = block;
    }
    return hits;
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;
  struct Links {
    std::uint32_t previous;
    std::uint32_t next;
  };
  [[nodiscard]] std::uint32_t end() const { return static_cast<std::uint32_t>(links_.size() - 1); }
  void unlink(std::uint32_t block) {
    links_[links_[block].previous].next = links_[block].next;
    links_[links_[block].next].previous = links_[block].previous;
  }

  std::int64_t capacity_;
  std::int64_t size_ = 0;
  std::vector<Links> links_;
};

/// Numbers of each request's blocks.
std::vector<std::vector<std::uint32_t>> block_numbers(const HashTrace& trace, Tokens block,
                                                      std::size_t& count) {
  std::vector<std::vector<std::uint32_t>> requests;
  std::vector<std::vector<std::uint32_t>> numbers(trace.streams.size());
  std::vector<Stretch> path;
  count = 0;
  for (const HashRequest& request : trace.requests) {
    const Context context = request.whole_blocks();
    trace.streams.path(context.stream, context.tokens.value / block.value, block.value, path);
    std::vector<std::uint32_t>& blocks = requests.emplace_back();
    for (const Stretch& stretch : path) {
      std::vector<std::uint32_t>& own = numbers[stretch.stream.value];
      const std::int64_t first = trace.streams.first_of(stretch.stream) / block.value;
      for (std::int64_t i = stretch.begin; i < stretch.end; ++i) {
        while (static_cast<std::int64_t>(own.size()) <= i - first) {
          own.push_back(static_cast<std::uint32_t>(count++));
        }
        blocks.push_back(own[static_cast<std::size_t>(i - first)]);
      }
    }
  }
  return requests;
}

void report(benchmark::State& state, const HashTrace& trace, std::int64_t hit_tokens) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(trace.requests.size()));
  state.counters["hit_tokens"] = static_cast<double>(hit_tokens);
}

void BM_BlockList(benchmark::State& state) {
  const HashTrace& trace = conversation();
  const Tokens block(state.range(0));
  std::size_t count = 0;
  const auto requests = block_numbers(trace, block, count);
  std::int64_t hits = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto list = std::make_unique<BlockList>(count, kCapacityTokens / block.value);
    state.ResumeTiming();
    hits = 0;
    for (const auto& request : requests) {
      hits += list->use(request);
    }
    state.PauseTiming();
    list.reset();
    state.ResumeTiming();
  }
  report(state, trace, hits * block.value);
}
BENCHMARK(BM_BlockList)->Arg(512)->Arg(16)->Unit(benchmark::kMillisecond);

void BM_ExtentStore(benchmark::State& state) {
  const HashTrace& trace = conversation();
  StoreRules rules;
  rules.hit_cap = HitCap::none;
  rules.pools = {{.capacity = kCapacityTokens / state.range(0), .block = Tokens(state.range(0))}};
  std::int64_t hits = 0;
  for (auto _ : state) {
    const auto store = make_store(rules, trace.streams);
    hits = 0;
    Match match;
    for (const HashRequest& request : trace.requests) {
      const Context context = request.whole_blocks();
      store->release(*store->acquire(context, context.tokens, match));
      hits += match.tokens.value;
    }
  }
  report(state, trace, hits);
}
BENCHMARK(BM_ExtentStore)->Arg(512)->Arg(16)->Unit(benchmark::kMillisecond);

void BM_LruCurve(benchmark::State& state) {
  const HashTrace& trace = conversation();
  std::int64_t hits = 0;
  for (auto _ : state) {
    PrefixStack stack(trace.streams, Tokens(state.range(0)));
    HitCurve curve;
    for (const HashRequest& request : trace.requests) {
      stack.look_up(request.whole_blocks(), curve);
      stack.use(request.whole_blocks());
    }
    hits = curve.hits_at({kCapacityTokens / state.range(0)}).front();
  }
  report(state, trace, hits * state.range(0));
}
BENCHMARK(BM_LruCurve)->Arg(512)->Arg(16)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvtier::bench
