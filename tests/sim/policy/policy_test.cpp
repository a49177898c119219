#include "sim/policy/policy.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "sim/policy/ids.hpp"

namespace kvtier {
namespace {

TEST(FindPolicy, FindsByNameAndOnlyByItsWholeName) {
  const std::vector<PolicyKind<OrderPolicy>> kinds{{.name = "first",
                                                    .summary = "",
                                                    .source = "",
                                                    .knowledge = Knowledge::online,
                                                    .parameters = {},
                                                    .make = {}},
                                                   {.name = "second",
                                                    .summary = "",
                                                    .source = "",
                                                    .knowledge = Knowledge::oracle,
                                                    .parameters = {},
                                                    .make = {}}};
  EXPECT_EQ(find_policy(kinds, "second"), &kinds[1]);
  EXPECT_EQ(find_policy(kinds, "sec"), nullptr);
  EXPECT_EQ(find_policy(kinds, ""), nullptr);
  EXPECT_EQ(&known_policy(kinds, "second"), &kinds[1]);
  EXPECT_THROW(static_cast<void>(known_policy(kinds, "sec")), InvariantError);
}

TEST(Knowledge, HasAWordForEachKind) {
  EXPECT_STREQ(to_string(Knowledge::online), "online");
  EXPECT_STREQ(to_string(Knowledge::look_ahead), "look_ahead");
  EXPECT_STREQ(to_string(Knowledge::oracle), "oracle");
}

TEST(Ids, AreInvalidUntilSet) {
  EXPECT_FALSE(EntryId{}.valid());
  EXPECT_EQ(EntryId{}, kNoEntry);
  EXPECT_TRUE(EntryId{0}.valid());
  // Requests that do not wait come after all waiting ones.
  EXPECT_LT(QueuePosition{1'000'000}, kNotQueued);
}

}  // namespace
}  // namespace kvtier
