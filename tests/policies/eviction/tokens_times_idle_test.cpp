#include "policies/eviction/tokens_times_idle.hpp"

#include <cstdint>
#include <optional>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::RandomDriver;
using test::TestTier;

constexpr EntryId kA{0};
constexpr EntryId kB{1};

/// Calls advance the time by one each: A comes at 1 and B at 2, they have their sizes at 4.
TestTier two_entries(std::int64_t a_tokens, std::int64_t b_tokens) {
  TestTier tier("tokens_times_idle");
  tier.insert(kA);
  tier.insert(kB);
  tier.resize(kA, Tokens(a_tokens));
  tier.resize(kB, Tokens(b_tokens));
  return tier;
}

TEST(TokensTimesIdle, TheLargestProductLosesItsTrailingHalf) {
  // At 4: A 10 x 3 = 30, B 16 x 2 = 32.
  TestTier tier = two_entries(10, 16);
  std::optional<Victim> victim = tier.select();
  ASSERT_TRUE(victim);
  EXPECT_EQ(victim->entry, kB);
  EXPECT_EQ(victim->keep, Tokens(8));
  // Scores are taken again. At 5: A 10 x 4 = 40, B 8 x 3 = 24.
  tier.resize(kB, victim->keep);
  victim = tier.select();
  EXPECT_EQ(victim->entry, kA);
  EXPECT_EQ(victim->keep, Tokens(5));
  // At 6: A 5 x 5 = 25, B 8 x 4 = 32.
  tier.resize(kA, victim->keep);
  EXPECT_EQ(tier.select()->entry, kB);
}

TEST(TokensTimesIdle, OneTokenLeavesWhole) {
  TestTier tier = two_entries(1, 1);
  EXPECT_EQ(tier.select()->entry, kA);
  EXPECT_EQ(tier.select()->keep, Tokens(0));
}

TEST(TokensTimesIdle, ALargerEntryOvertakesWithTime) {
  // Last used at 1 and 7: 10 x (t - 1) and 30 x (t - 7), a draw at t = 10, which the first wins.
  TestTier tier = two_entries(10, 30);
  tier.wait(2);
  tier.hit(kB);
  ASSERT_EQ(tier.now(), SimTime(7));
  EXPECT_EQ(tier.select()->entry, kA);
  tier.wait(2);
  EXPECT_EQ(tier.select()->entry, kA);  // at 9: 80 and 60
  tier.wait(1);
  EXPECT_EQ(tier.select()->entry, kA);  // at 10: 90 and 90
  tier.wait(1);
  EXPECT_EQ(tier.select()->entry, kB);  // at 11: 100 and 120
}

TEST(TokensTimesIdle, ChoosesAsAScanOfAllEntriesDoes) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    TestTier tier("tokens_times_idle");
    RandomDriver driver(seed, false);
    int victims = 0;
    for (int step = 0; step < 6'000; ++step) {
      driver.step({&tier}, [&](const RandomDriver::Selection& selection, const auto& sets) {
        std::map<EntryId, Tokens> left;
        for (const auto& [entry, resident] : tier.residents()) {
          if (resident.offered()) {
            left[entry] = resident.view.tokens;
          }
        }
        std::vector<Victim> expected;
        for (Bytes freed; freed < selection.wanted;) {
          auto best = left.end();
          std::int64_t best_score = -1;
          for (auto it = left.begin(); it != left.end(); ++it) {
            const SimTime last_used = tier.residents().at(it->first).view.last_used;
            const std::int64_t score = it->second.value * (tier.now() - last_used).ns;
            if (score > best_score) {
              best = it;
              best_score = score;
            }
          }
          if (best == left.end()) {
            expected.clear();
            break;
          }
          const Tokens keep = best->second / 2;
          expected.push_back({best->first, keep});
          freed += Bytes((best->second - keep).value * 1'000);
          best->second = keep;
          if (keep.value == 0) {
            left.erase(best);
          }
        }
        ASSERT_EQ(sets.front().size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(sets.front()[i].entry, expected[i].entry);
          ASSERT_EQ(sets.front()[i].keep, expected[i].keep);
        }
        victims += static_cast<int>(expected.size());
      });
      if (HasFatalFailure()) {
        return;
      }
    }
    EXPECT_GT(victims, 100);
  }
}

}  // namespace
}  // namespace kvtier
