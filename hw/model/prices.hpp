#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"

/// Dated prices of server parts, the sources of the prices in hardware files.
namespace kvtier {

enum class PricedPart { gpu, dram, cxl, ssd };
constexpr auto enum_names(PricedPart) {
  return std::array{std::pair{"gpu", PricedPart::gpu}, std::pair{"dram", PricedPart::dram},
                    std::pair{"cxl", PricedPart::cxl}, std::pair{"ssd", PricedPart::ssd}};
}

struct PriceEntry {
  std::string item;
  PricedPart part = PricedPart::gpu;
  /// As a hardware file writes it: for one GPU or one GiB.
  std::string price;
  /// A year, month or day.
  std::string date;
  std::string source;
};

template <class V>
void describe(V& v, PriceEntry& c) {
  v.field("item", c.item, "The priced product.", required());
  v.field("part", c.part, "The part of a hardware file that it prices.", required());
  v.field("price", c.price, "Price of one GPU or one GiB.", required());
  v.field("date", c.date, "The year, month or day of the price.", required());
  v.field("source", c.source, "Where the price comes from.", required());
}

struct PriceList {
  std::vector<PriceEntry> prices;
};

template <class V>
void describe(V& v, PriceList& c) {
  v.field("prices", c.prices, "The prices.", required());
}

/// Reports prices that a hardware file cannot have, and malformed dates.
void check_prices(const PriceList& list, Problems& problems);

/// Dollars per hour, of one GPU or of a GiB. The price is one that check_prices accepts.
[[nodiscard]] double dollars_per_hour(const PriceEntry& entry);

}  // namespace kvtier
