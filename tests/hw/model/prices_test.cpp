#include "hw/model/prices.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/load.hpp"

namespace kvtier {
namespace {

using Lines = std::vector<std::string>;

std::vector<PriceList> lists() {
  std::vector<PriceList> lists;
  for (const std::string& name : test::config_names("prices")) {
    lists.push_back(test::read_config_json<PriceList>(test::load_json("prices", name)));
  }
  return lists;
}

TEST(PriceLists, HaveADateAndASourceForEachPrice) {
  ASSERT_FALSE(lists().empty());
  for (const PriceList& list : lists()) {
    EXPECT_FALSE(list.prices.empty());
    Problems problems;
    check_prices(list, problems);
    EXPECT_EQ(problems.lines(), Lines{});
    for (const PriceEntry& entry : list.prices) {
      EXPECT_FALSE(entry.item.empty());
      EXPECT_FALSE(entry.source.empty()) << entry.item;
      EXPECT_GT(dollars_per_hour(entry), 0) << entry.item;
    }
  }
}

TEST(PriceLists, HoldEachPriceOfThePresets) {
  const auto holds = [](PricedPart part, const Json& price) {
    return std::ranges::any_of(lists(), [&](const PriceList& list) {
      return std::ranges::any_of(list.prices, [&](const PriceEntry& entry) {
        return entry.part == part && Json(entry.price) == price;
      });
    });
  };
  for (const std::string& name : test::config_names("hardware")) {
    const Json json = test::load_json("hardware", name);
    EXPECT_TRUE(holds(PricedPart::gpu, json["gpu"]["price"])) << name;
    EXPECT_TRUE(holds(PricedPart::dram, json["dram"]["price"])) << name;
    EXPECT_TRUE(holds(PricedPart::ssd, json["ssd"]["price"])) << name;
  }
}

TEST(PriceLists, RefusePricesThatHardwareCouldNotHave) {
  PriceList list;
  list.prices = {{"a", PricedPart::gpu, "5$/h", "2026", "s"},
                 {"b", PricedPart::ssd, "5$/h", "2026-11", "s"},
                 {"c", PricedPart::gpu, "30000$ over 4y", "2026-11-09", "s"},
                 {"d", PricedPart::dram, "10$/GiB over 4y", "last year", "s"}};
  Problems problems;
  check_prices(list, problems);
  EXPECT_EQ(problems.lines(),
            (Lines{"/prices/1/price: expected a price (by the hour, or bought for 1 to 20 years as "
                   "\"10$/GiB over 4y\") >= 0 such as \"0.0088$/h/GiB\", got \"5$/h\"",
                   "/prices/3/date: expected a date such as \"2026-11\", got \"last year\""}));
}

}  // namespace
}  // namespace kvtier
