/// Blocks as the entries of a policy, beside the plain set of blocks that may leave.

#include "sim/store/entries/block_entries.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

/// The calls that a policy has had, by key.
struct Told {
  std::map<EntryKey, int> hits;
  std::map<EntryKey, int> releases;
  std::map<EntryKey, Tokens> sizes;
};

/// The entry that was used least recently leaves first.
class Recorder final : public EvictionPolicy {
 public:
  explicit Recorder(Told& told) : told_(told) {}

  void on_insert(const EntryView& entry, SimTime) override {
    order_.push_back(entry.id);
    keys_[entry.id] = entry.key;
    told_.sizes[entry.key] = entry.tokens;
  }
  void on_hit(EntryId entry, SimTime) override { ++told_.hits[keys_.at(entry)]; }
  void on_release(const EntryView& entry, SimTime now) override {
    ++told_.releases[entry.key];
    order_.remove(entry.id);
    order_.push_back(entry.id);
    on_resize(entry, now);
  }
  void on_resize(const EntryView& entry, SimTime) override {
    told_.sizes[entry.key] = entry.tokens;
  }
  void on_remove(EntryId entry, SimTime) override {
    order_.remove(entry);
    told_.sizes.erase(keys_.at(entry));
    keys_.erase(entry);
  }
  void choose(const RoomRequest&, Victims& victims) override {
    for (auto at = order_.begin(); at != order_.end() && victims.wants_more(); ++at) {
      if (victims.offers(*at)) {
        victims.add(*at);
      }
    }
  }
  void check_invariants(const TierView&) const override {}

 private:
  Told& told_;
  std::list<EntryId> order_;
  std::map<EntryId, EntryKey> keys_;
};

PolicyRegistry recorders(Told& told) {
  PolicyRegistry registry;
  registry.eviction.push_back({.name = "recorder", .make = [&told](const PolicyParameters&) {
                                 return std::make_unique<Recorder>(told);
                               }});
  return registry;
}

constexpr Tokens kBlock(4);

PoolRules pool_of(EvictionUnit unit) {
  return {.capacity = 1'000, .block = kBlock, .unit = unit, .eviction = "recorder"};
}

using Key = std::pair<StreamId, std::int64_t>;

BlockRun run_of(const Key& key) { return {key.first, key.second, key.second + 1, End::head}; }

/// Entries of one unit, and their blocks.
struct Pool {
  Pool(EvictionUnit unit, const Streams& streams)
      : entries(pool_of(unit), Bytes(1), streams, recorders(told)) {}

  void insert(StreamId stream, std::int64_t block) {
    numbers[{stream, block}] = entries.insert(run_of({stream, block}));
    offer({stream, block}, true);
  }
  void offer(const Key& key, bool may) {
    entries.offer(run_of(key), numbers.at(key), may);
    may ? static_cast<void>(may_leave.insert(key)) : static_cast<void>(may_leave.erase(key));
  }
  void use(const Context& context, const std::vector<Key>& path) {
    entries.begin_use(context);
    for (const Key& key : path) {
      if (numbers.contains(key)) {
        entries.hit(run_of(key), numbers.at(key));
        entries.release(run_of(key), numbers.at(key));
      }
    }
    entries.end_use();
  }
  std::vector<Key> take_chosen() {
    std::vector<Key> left;
    for (const auto& [run, number] : entries.take_chosen()) {
      for (std::int64_t block = run.begin; block < run.end; ++block) {
        left.emplace_back(run.stream, block);
      }
    }
    for (const Key& key : left) {
      entries.remove(run_of(key), numbers.at(key));
      numbers.erase(key);
      may_leave.erase(key);
    }
    return left;
  }
  [[nodiscard]] std::set<Key> blocks() const {
    std::set<Key> all;
    for (const auto& [key, number] : numbers) {
      all.insert(key);
    }
    return all;
  }

  Told told;
  BlockEntries entries;
  std::map<Key, std::uint32_t> numbers;
  std::set<Key> may_leave;
};

TEST(BlockEntries, AUseOfManyBlocksIsOneUse) {
  Streams streams;
  const StreamId parent = streams.open();
  const StreamId child = streams.open(parent, Tokens(12));
  for (const EvictionUnit unit : {EvictionUnit::tail, EvictionUnit::sequence}) {
    Pool pool(unit, streams);
    std::vector<Key> path;
    for (std::int64_t block = 0; block < 8; ++block) {
      path.emplace_back(block < 3 ? parent : child, block);
      pool.insert(path.back().first, block);
    }
    pool.use({child, kBlock * 8}, path);
    pool.use({child, kBlock * 8}, path);
    const std::map<EntryKey, int> twice{{key_of(parent, 0), 2}, {key_of(child, 3), 2}};
    EXPECT_EQ(pool.told.hits, twice);
    EXPECT_EQ(pool.told.releases, twice);
    const std::map<EntryKey, Tokens> sizes{{key_of(parent, 0), kBlock * 3},
                                           {key_of(child, 3), kBlock * 5}};
    EXPECT_EQ(pool.told.sizes, sizes);
  }
}

TEST(BlockEntries, AUseCutsATailWhereItEnds) {
  Streams streams;
  const StreamId stream = streams.open();
  Pool pool(EvictionUnit::tail, streams);
  for (std::int64_t block = 0; block < 6; ++block) {
    pool.insert(stream, block);
  }
  pool.use({stream, kBlock * 2}, {{stream, 0}, {stream, 1}});
  // The rest was not used, so it leaves first.
  ASSERT_TRUE(pool.entries.choose(5, Demand::save, nullptr));
  EXPECT_EQ(pool.take_chosen(),
            (std::vector<Key>{{stream, 2}, {stream, 3}, {stream, 4}, {stream, 5}, {stream, 1}}));
}

TEST(BlockEntries, TheEntryThatANewcomerExtendsStays) {
  Streams streams;
  const StreamId stream = streams.open();
  const StreamId other = streams.open();
  for (const EvictionUnit unit : {EvictionUnit::tail, EvictionUnit::sequence}) {
    Pool pool(unit, streams);
    pool.insert(stream, 0);
    pool.insert(other, 0);
    const BlockRun newcomer{stream, 1, 2, End::head};
    EXPECT_FALSE(pool.entries.choose(2, Demand::save, &newcomer));
    ASSERT_TRUE(pool.entries.choose(1, Demand::save, &newcomer));
    EXPECT_EQ(pool.take_chosen(), (std::vector<Key>{{other, 0}}));
  }
}

/// Blocks that may leave of streams that are not used: of a sequence all or none, of a tail at
/// least those behind the last one that has to stay.
std::int64_t least_evictable(const Pool& pool, bool in_part, const std::vector<Key>& path) {
  std::map<StreamId, std::vector<bool>> of_stream;
  std::map<StreamId, Stretch> ends;
  for (const auto& [key, number] : pool.numbers) {
    of_stream[key.first].push_back(pool.may_leave.contains(key));
    ends.try_emplace(key.first, Stretch{key.first, key.second, 0}).first->second.end = key.second;
  }
  std::int64_t least = 0;
  for (const auto& [stream, may_leave] : of_stream) {
    const auto behind = std::find(may_leave.rbegin(), may_leave.rend(), false);
    const bool counts = in_part || behind == may_leave.rend();
    const bool used = std::ranges::any_of(path, [&, id = stream](const Key& key) {
      return key.first == id && ends.at(id).begin <= key.second && key.second <= ends.at(id).end;
    });
    least += used || !counts ? 0 : behind - may_leave.rbegin();
  }
  return least;
}

/// Random blocks of streams and their forks: some may leave, some are removed. Uses and choices.
TEST(BlockEntries, LeaveAsTheirUnitSays) {
  constexpr std::int64_t kFork = 3;
  for (const EvictionUnit unit : {EvictionUnit::tail, EvictionUnit::sequence}) {
    const bool in_part = unit == EvictionUnit::tail;
    std::int64_t left = 0;
    std::int64_t refused = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      RandomStream random(seed, "tests/block_entries");
      Streams streams;
      for (int i = 0; i < 3; ++i) {
        const StreamId root = streams.open();
        streams.open(root, kBlock * kFork);
      }
      Pool pool(unit, streams);
      for (int step = 0; step < 80; ++step) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " step " << step);
        const StreamId stream{static_cast<std::uint32_t>(random.index(6))};
        const std::int64_t end = 1 + random.index(10);
        std::vector<Key> path;
        for (std::int64_t block = 0; block < end; ++block) {
          path.emplace_back(streams.stream_at(stream, kBlock * (block + 1) - Tokens(1)), block);
        }
        const Context context{stream, kBlock * end};
        const std::int64_t action = random.index(6);
        if (action == 0) {
          for (const Key& key : path) {
            if (!pool.numbers.contains(key)) {
              pool.insert(key.first, key.second);
            }
          }
        } else if (action == 1) {
          pool.use(context, path);
        } else if (action == 2 && pool.numbers.contains(path.back())) {
          pool.offer(path.back(), random.index(2) == 0);
        } else if (action == 3 && pool.numbers.contains(path.back())) {
          pool.entries.remove(run_of(path.back()), pool.numbers.at(path.back()));
          pool.numbers.erase(path.back());
          pool.may_leave.erase(path.back());
        } else if (action >= 4) {
          const bool in_use = random.index(2) == 0;
          if (in_use) {
            pool.entries.begin_use(context);
          }
          const BlockRun newcomer = run_of(path.back());
          const bool for_newcomer = random.index(3) == 0 && !pool.numbers.contains(path.back());
          const std::set<Key> before = pool.blocks();
          const std::set<Key> could = pool.may_leave;
          const std::int64_t evictable = pool.entries.evictable();
          const std::int64_t least =
              least_evictable(pool, in_part, in_use ? path : std::vector<Key>{});
          EXPECT_GE(evictable, least);
          EXPECT_TRUE(in_part || evictable == least);
          const std::int64_t wanted = 1 + random.index(8);
          const bool chosen =
              pool.entries.choose(wanted, Demand::save, for_newcomer ? &newcomer : nullptr);
          EXPECT_TRUE(chosen == (wanted <= evictable) || (for_newcomer && !chosen))
              << "all that may leave can be chosen";
          refused += chosen ? 0 : 1;
          const std::vector<Key> gone = pool.take_chosen();
          left += std::ssize(gone);
          EXPECT_TRUE(!chosen ||
                      (in_part ? std::ssize(gone) == wanted : std::ssize(gone) >= wanted));
          for (const Key& key : gone) {
            EXPECT_TRUE(could.contains(key)) << "it may leave";
            EXPECT_FALSE(in_use && std::ranges::count(path, key) > 0) << "it is not used";
            EXPECT_FALSE(for_newcomer && !in_part && key.first == newcomer.stream)
                << "it is not what the newcomer extends";
            for (const Key& other : before) {
              EXPECT_TRUE(in_part || other.first != key.first ||
                          std::ranges::count(gone, other) > 0)
                  << "a sequence leaves whole";
            }
          }
          if (in_use) {
            pool.entries.end_use();
          }
        }
        pool.entries.check_invariants();
      }
    }
    EXPECT_GT(left, 1'000);
    EXPECT_GT(refused, 100);
  }
}

}  // namespace
}  // namespace kvtier
