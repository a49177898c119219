#include "hw/model/prices.hpp"

#include "hw/model/hardware.hpp"
#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// "2026", "2026-11" or "2026-11-09".
bool is_date(const std::string& text) {
  constexpr std::string_view kShape = "0000-00-00";
  if (text.size() != 4 && text.size() != 7 && text.size() != kShape.size()) {
    return false;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == '0' ? !digit : text[i] != kShape[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

void check_prices(const PriceList& list, Problems& problems) {
  for (std::size_t i = 0; i < list.prices.size(); ++i) {
    const PriceEntry& entry = list.prices[i];
    const std::string pointer = "/prices/" + std::to_string(i);
    if (entry.part == PricedPart::gpu) {
      DollarsPerHour price;
      read_value(price, Json(entry.price), pointer + "/price", problems, bounds::gpu_price());
    } else {
      DollarsPerGibHour price;
      read_value(price, Json(entry.price), pointer + "/price", problems, bounds::memory_price());
    }
    if (!is_date(entry.date)) {
      problems.add(pointer + "/date",
                   "expected a date such as \"2026-11\", got " + quote_json(Json(entry.date)));
    }
  }
}

double dollars_per_hour(const PriceEntry& entry) {
  if (entry.part == PricedPart::gpu) {
    const auto price = parse_quantity<DollarsPerHour>(entry.price);
    KVTIER_ASSERT(price, "the price has been checked");
    return price->value;
  }
  const auto price = parse_quantity<DollarsPerGibHour>(entry.price);
  KVTIER_ASSERT(price, "the price has been checked");
  return price->value;
}

}  // namespace kvtier
