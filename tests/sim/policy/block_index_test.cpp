/// The indexes of blocks, against plain maps on random operations.

#include "sim/policy/block_index.hpp"

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "sim/policy/sent_blocks.hpp"
#include "sim/policy/stored_blocks.hpp"

namespace kvtier {
namespace {

using Pairs = std::set<std::pair<std::uint64_t, std::uint32_t>>;

std::vector<BlockHash> hashes(const std::vector<std::uint64_t>& values) {
  std::vector<BlockHash> blocks;
  for (const std::uint64_t value : values) {
    blocks.push_back(BlockHash{value});
  }
  return blocks;
}

/// The matches by instance.
std::map<std::uint32_t, std::int64_t> matches(const BlockIndex& index,
                                              const std::vector<BlockHash>& blocks) {
  std::map<std::uint32_t, std::int64_t> found;
  index.match(blocks, [&](InstanceId instance, std::int64_t count) {
    EXPECT_TRUE(found.emplace(instance.value, count).second) << "an instance ends once";
  });
  return found;
}

std::map<std::uint32_t, std::int64_t> brute_force(const Pairs& pairs,
                                                  const std::vector<BlockHash>& blocks,
                                                  std::uint32_t instances) {
  std::map<std::uint32_t, std::int64_t> found;
  for (std::uint32_t i = 0; i < instances; ++i) {
    std::int64_t count = 0;
    while (count < std::ssize(blocks) &&
           pairs.contains({blocks[static_cast<std::size_t>(count)].value, i})) {
      ++count;
    }
    if (count > 0) {
      found[i] = count;
    }
  }
  return found;
}

void expect_holders(const BlockIndex& index, const Pairs& pairs, std::uint64_t values) {
  std::size_t blocks = 0;
  for (std::uint64_t value = 0; value < values; ++value) {
    std::vector<std::uint32_t> expected;
    for (auto pair = pairs.lower_bound({value, 0}); pair != pairs.end() && pair->first == value;
         ++pair) {
      expected.push_back(pair->second);
    }
    std::vector<std::uint32_t> got;
    for (const BlockIndex::Holder& holder : index.holders(BlockHash{value})) {
      got.push_back(holder.instance);
    }
    EXPECT_EQ(got, expected) << value;
    blocks += expected.empty() ? 0 : 1;
  }
  EXPECT_EQ(index.blocks(), blocks);
  EXPECT_EQ(index.pairs(), pairs.size());
}

TEST(BlockIndex, AgreesWithASetOfPairs) {
  constexpr std::uint32_t kInstances = 70;
  constexpr std::uint64_t kValues = 300;
  RandomStream stream(1, "block index");
  BlockIndex index;
  Pairs pairs;
  for (int step = 0; step < 60'000; ++step) {
    const auto value = static_cast<std::uint64_t>(stream.index(kValues));
    // A few blocks have many holders, most have few.
    const std::int64_t bound = value < 10 ? kInstances : 3;
    const InstanceId instance{static_cast<std::uint32_t>(stream.index(bound))};
    // It fills up and is drained in turn.
    const bool adds = stream.index(10) < (step / 5'000 % 2 == 0 ? 8 : 2);
    const bool there = pairs.contains({value, instance.value});
    EXPECT_EQ(index.find(BlockHash{value}, instance) != nullptr, there);
    if (adds) {
      const BlockIndex::Holder& holder = index.add(BlockHash{value}, instance);
      EXPECT_EQ(holder.instance, instance.value);
      pairs.insert({value, instance.value});
    } else {
      EXPECT_EQ(index.erase(BlockHash{value}, instance), there);
      pairs.erase({value, instance.value});
    }
    if (step % 500 == 0) {
      expect_holders(index, pairs, kValues);
      std::vector<BlockHash> blocks;
      for (std::int64_t i = stream.index(12); i > 0; --i) {
        blocks.push_back(BlockHash{static_cast<std::uint64_t>(stream.index(14))});
      }
      EXPECT_EQ(matches(index, blocks), brute_force(pairs, blocks, kInstances));
    }
    if (step % 7'919 == 0) {
      index.erase_all(instance);
      std::erase_if(pairs, [&](const auto& pair) { return pair.second == instance.value; });
    }
  }
}

TEST(BlockIndex, KeepsTheUsersNoteOfAPair) {
  BlockIndex index;
  index.add(BlockHash{7}, InstanceId{2}).tag = 22;
  index.add(BlockHash{7}, InstanceId{1}).tag = 11;
  index.add(BlockHash{7}, InstanceId{3}).tag = 33;
  index.erase(BlockHash{7}, InstanceId{1});
  EXPECT_EQ(index.find(BlockHash{7}, InstanceId{2})->tag, 22U);
  EXPECT_EQ(index.find(BlockHash{7}, InstanceId{3})->tag, 33U);
  index.erase(BlockHash{7}, InstanceId{2});
  EXPECT_EQ(index.add(BlockHash{7}, InstanceId{3}).tag, 33U);
  // The table grows.
  for (std::uint64_t value = 100; value < 2'000; ++value) {
    index.add(BlockHash{value}, InstanceId{5}).tag = static_cast<std::uint32_t>(value);
  }
  EXPECT_EQ(index.find(BlockHash{7}, InstanceId{3})->tag, 33U);
  EXPECT_EQ(index.find(BlockHash{1'234}, InstanceId{5})->tag, 1'234U);
}

TEST(BlockIndex, AnInstanceBehindAGapIsNotCounted) {
  BlockIndex index;
  for (const std::uint64_t value : {1U, 2U, 4U}) {
    index.add(BlockHash{value}, InstanceId{0});
  }
  for (const std::uint64_t value : {2U, 3U, 4U}) {
    index.add(BlockHash{value}, InstanceId{1});
  }
  EXPECT_EQ(matches(index, hashes({1, 2, 3, 4})), (std::map<std::uint32_t, std::int64_t>{{0, 2}}));
  EXPECT_TRUE(matches(index, {}).empty());
}

TEST(BlockIndex, HoldsThePoolBesideTheLastInstance) {
  BlockIndex index;
  const InstanceId last{static_cast<std::uint32_t>(BlockIndex::kInstancesMax) - 1};
  index.add(BlockHash{1}, kNoInstance);
  index.add(BlockHash{1}, last);
  EXPECT_EQ(matches(index, hashes({1})),
            (std::map<std::uint32_t, std::int64_t>{{last.value, 1}, {kNoInstance.value, 1}}));
}

/// The blocks of an instance, the oldest first.
using Order = std::list<std::pair<std::uint64_t, SimTime>>;

TEST(SentBlocks, AgreesWithAListForEachInstance) {
  constexpr std::uint32_t kInstances = 5;
  RandomStream stream(2, "sent blocks");
  SentBlocks sent(kInstances);
  std::vector<Order> orders(kInstances);
  SimTime now;
  for (int step = 0; step < 20'000; ++step) {
    now = now + SimDuration(stream.index(3));
    const InstanceId instance{static_cast<std::uint32_t>(stream.index(kInstances))};
    Order& order = orders[instance.value];
    switch (stream.index(20)) {
      case 0: {
        const std::int64_t most = stream.index(60);
        sent.trim(instance, most);
        while (std::ssize(order) > most) {
          order.pop_front();
        }
        break;
      }
      case 1: {
        const SimTime before = now - SimDuration(stream.index(200));
        sent.expire(before);
        for (Order& each : orders) {
          std::erase_if(each, [&](const auto& block) { return block.second < before; });
        }
        break;
      }
      case 2: {
        const auto value = static_cast<std::uint64_t>(stream.index(80));
        sent.remove(instance, BlockHash{value});
        std::erase_if(order, [&](const auto& block) { return block.first == value; });
        break;
      }
      default: {
        const auto value = static_cast<std::uint64_t>(stream.index(80));
        sent.touch(instance, BlockHash{value}, now);
        std::erase_if(order, [&](const auto& block) { return block.first == value; });
        order.emplace_back(value, now);
        break;
      }
    }
    Pairs pairs;
    for (std::uint32_t i = 0; i < kInstances; ++i) {
      EXPECT_EQ(sent.size(InstanceId{i}), std::ssize(orders[i]));
      if (!orders[i].empty()) {
        EXPECT_EQ(sent.oldest(InstanceId{i}).value, orders[i].front().first);
      }
      for (const auto& [value, at] : orders[i]) {
        pairs.insert({value, i});
      }
    }
    if (step % 200 == 0) {
      expect_holders(sent.index(), pairs, 80);
    }
  }
}

// llm-d's indexer tests: two blocks fit an instance, and the third takes the first's place.
TEST(SentBlocks, KeepsTheNewestBlocksOfAnInstance) {
  SentBlocks sent(1);
  for (const std::uint64_t value : {1U, 2U, 3U}) {
    sent.touch(InstanceId{0}, BlockHash{value}, SimTime());
    sent.trim(InstanceId{0}, 2);
  }
  EXPECT_EQ(sent.size(InstanceId{0}), 2);
  EXPECT_TRUE(sent.index().holders(BlockHash{1}).empty());
  EXPECT_EQ(sent.index().holders(BlockHash{3}).size(), 1U);
}

// llm-d's indexer tests: ten blocks on two instances; one more for the first forgets its block 0;
// without the second, nothing holds block 0 and ten blocks are left.
TEST(SentBlocks, ForgetsByInstance) {
  SentBlocks sent(2);
  for (std::uint64_t value = 0; value < 10; ++value) {
    sent.touch(InstanceId{0}, BlockHash{value}, SimTime());
    sent.touch(InstanceId{1}, BlockHash{value}, SimTime());
  }
  sent.touch(InstanceId{0}, BlockHash{10}, SimTime());
  sent.trim(InstanceId{0}, 10);
  ASSERT_EQ(sent.index().holders(BlockHash{0}).size(), 1U);
  EXPECT_EQ(sent.index().holders(BlockHash{0}).front().instance, 1);
  sent.lose(InstanceId{1});
  EXPECT_TRUE(sent.index().holders(BlockHash{0}).empty());
  EXPECT_EQ(sent.index().blocks(), 10U);
  EXPECT_EQ(sent.index().pairs(), 10U);
}

TEST(StoredBlocks, HoldsABlockUntilItsLastMediumDropsIt) {
  StoredBlocks stored;
  const std::vector<BlockHash> blocks = hashes({1, 2});
  stored.store(InstanceId{0}, BlockMedium::gpu, blocks);
  stored.store(InstanceId{0}, BlockMedium::host, blocks);
  stored.remove(InstanceId{0}, BlockMedium::gpu, blocks);
  ASSERT_EQ(stored.index().holders(BlockHash{1}).size(), 1U);
  EXPECT_EQ(stored.index().holders(BlockHash{1}).front().media, media_bit(BlockMedium::host));
  stored.remove(InstanceId{0}, BlockMedium::host, blocks);
  EXPECT_EQ(stored.index().blocks(), 0U);
}

TEST(StoredBlocks, ForgetsTheBlockThatWasUsedLeastRecently) {
  StoredBlocks stored({.blocks = 3});
  stored.store(InstanceId{0}, BlockMedium::gpu, hashes({1, 2, 3}));
  stored.store(InstanceId{1}, BlockMedium::gpu, hashes({2}));
  stored.look_up(hashes({1}));
  // 3 was used least recently, then 2, then 1.
  stored.store(InstanceId{0}, BlockMedium::gpu, hashes({4}));
  EXPECT_TRUE(stored.index().holders(BlockHash{3}).empty());
  EXPECT_EQ(stored.index().holders(BlockHash{2}).size(), 2U);
  stored.store(InstanceId{0}, BlockMedium::gpu, hashes({5}));
  EXPECT_TRUE(stored.index().holders(BlockHash{2}).empty());
  EXPECT_EQ(stored.index().holders(BlockHash{1}).size(), 1U);
  // Blocks that are removed leave their places.
  stored.remove(InstanceId{0}, BlockMedium::gpu, hashes({4, 5}));
  stored.store(InstanceId{0}, BlockMedium::gpu, hashes({6, 7}));
  EXPECT_EQ(stored.index().blocks(), 3U);
  EXPECT_EQ(stored.index().holders(BlockHash{1}).size(), 1U);
}

TEST(StoredBlocks, ForgetsTheInstanceThatStoredABlockLeastRecently) {
  StoredBlocks stored({.holders = 2});
  for (const std::uint32_t instance : {4U, 3U, 4U, 5U}) {
    stored.store(InstanceId{instance}, BlockMedium::gpu, hashes({1}));
  }
  std::vector<std::uint16_t> left;
  for (const BlockIndex::Holder& holder : stored.index().holders(BlockHash{1})) {
    left.push_back(holder.instance);
  }
  EXPECT_EQ(left, (std::vector<std::uint16_t>{4, 5}));
}

}  // namespace
}  // namespace kvtier
