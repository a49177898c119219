#include "sim/study/runs/upper_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// Numbers of windows of gaps, each with one price: kFirstWindows, then kFiner times as many from
/// the prices found, and so on.
constexpr std::int64_t kFirstWindows = 256;
constexpr std::int64_t kFiner = 8;
constexpr std::int64_t kMostSteps = 5000;
constexpr std::int64_t kLeastSteps = 30;
/// Limit of intervals plus windows, summed over the steps, for each number of windows.
constexpr std::int64_t kMostWork = 10'000'000;
/// More than the rounding error of a dual's sums.
constexpr double kRounding = 1e-9;

/// A place of the trace: its window, and its offset in the window.
struct Place {
  std::int32_t window = 0;
  std::int32_t offset = 0;
};
struct Item {
  Place begin;
  Place end;
  double bytes = 0;
  double value = 0;
};

class Dual {
 public:
  Dual(const std::vector<StoredInterval>& intervals, double capacity)
      : intervals_(intervals), capacity_(capacity) {
    // Gaps before the first interval and after the last one hold nothing.
    first_ = intervals.front().begin;
    std::int64_t last = intervals.front().end;
    for (const StoredInterval& interval : intervals) {
      first_ = std::min(first_, interval.begin);
      last = std::max(last, interval.end);
      best_ += static_cast<double>(interval.value);  // the bound with all prices 0
    }
    gaps_ = last - first_;
  }

  [[nodiscard]] double least() {
    cut((gaps_ + kFirstWindows - 1) / kFirstWindows);
    start_from_knapsack();
    descend();
    // Windows are not more than intervals, because a step takes time for both.
    while (length_ > 1 && gaps_ / length_ < std::ssize(items_)) {
      const std::int64_t before = length_;
      const std::vector<double> prices = prices_;
      cut((length_ + kFiner - 1) / kFiner);
      for (std::size_t w = 0; w < prices_.size(); ++w) {
        prices_[w] =
            prices[static_cast<std::size_t>(static_cast<std::int64_t>(w) * length_ / before)];
      }
      descend();
    }
    return best_;
  }

 private:
  /// Cuts the trace into windows of `length` gaps.
  void cut(std::int64_t length) {
    length_ = length;
    const auto place = [&](std::int64_t at) {
      return Place{static_cast<std::int32_t>((at - first_) / length_),
                   static_cast<std::int32_t>((at - first_) % length_)};
    };
    items_.clear();
    for (const StoredInterval& interval : intervals_) {
      items_.push_back({place(interval.begin), place(interval.end), interval.bytes,
                        static_cast<double>(interval.value)});
    }
    prices_.assign(static_cast<std::size_t>((gaps_ + length_ - 1) / length_), 0);
  }

  /// PFOO-L: one price for all gaps, at which the intervals with a gain fill capacity x gaps.
  void start_from_knapsack() {
    std::vector<std::size_t> order(items_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto footprint = [&](const Item& item) {
      const std::int64_t gaps =
          (item.end.window - item.begin.window) * length_ + item.end.offset - item.begin.offset;
      return item.bytes * static_cast<double>(gaps);
    };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const double left = items_[a].value * footprint(items_[b]);
      const double right = items_[b].value * footprint(items_[a]);
      return left != right ? left > right : a < b;
    });
    double room = capacity_ * static_cast<double>(gaps_);
    for (const std::size_t i : order) {
      room -= footprint(items_[i]);
      if (room < 0) {
        std::fill(prices_.begin(), prices_.end(), items_[i].value / footprint(items_[i]));
        return;
      }
    }
  }

  /// The dual's value at `prices_`. Also sets the subgradient and the sum of its squares.
  double evaluate() {
    const std::size_t windows = prices_.size();
    before_.assign(windows + 1, 0);
    for (std::size_t w = 0; w < windows; ++w) {
      before_[w + 1] = before_[w] + prices_[w] * static_cast<double>(gaps_of(w));
    }
    whole_.assign(windows + 1, 0);
    part_.assign(windows + 1, 0);
    double dual = capacity_ * before_[windows];
    for (const Item& item : items_) {
      const double gain =
          item.value - item.bytes * (price_before(item.end) - price_before(item.begin));
      if (gain > 0) {
        dual += gain;
        use_up_to(item.end, item.bytes);
        use_up_to(item.begin, -item.bytes);
      }
    }
    slope_.assign(windows, 0);
    squares_ = 0;
    double behind = 0;  // bytes of intervals that end in later windows
    for (std::size_t w = windows; w-- > 0;) {
      behind += whole_[w + 1];
      const auto gaps = static_cast<double>(gaps_of(w));
      slope_[w] = capacity_ * gaps - behind * gaps - part_[w];
      if (prices_[w] == 0 && slope_[w] > 0) {
        slope_[w] = 0;  // a price is never below 0
      }
      squares_ += slope_[w] * slope_[w];
    }
    return dual;
  }

  /// Takes Polyak's steps towards a target below the best bound, and moves the target closer if it
  /// is not reached. Sets `prices_` to those of the best bound.
  void descend() {
    constexpr double kFirstTarget = 0.1;
    constexpr double kNearest = 1e-5;
    constexpr std::int64_t kPatience = 20;
    const std::int64_t steps =
        std::clamp(kMostWork / static_cast<std::int64_t>(items_.size() + prices_.size()),
                   kLeastSteps, kMostSteps);
    double below = kFirstTarget;
    std::int64_t in_vain = 0;
    std::vector<double> best_prices = prices_;
    double here = std::numeric_limits<double>::infinity();  // the best of these windows
    for (std::int64_t step = 0; step < steps && below > kNearest; ++step) {
      double dual = evaluate();
      in_vain = dual < here * (1 - below / 4) ? 0 : in_vain + 1;
      if (dual < here) {
        here = dual;
        best_prices = prices_;
      }
      if (squares_ == 0) {
        break;  // the minimum
      }
      if (in_vain > kPatience) {
        in_vain = 0;
        below /= 2;
        prices_ = best_prices;
        dual = evaluate();
      }
      const double length = (dual - here * (1 - below)) / squares_;
      for (std::size_t w = 0; w < prices_.size(); ++w) {
        prices_[w] = std::max(0.0, prices_[w] - length * slope_[w]);
      }
    }
    prices_ = best_prices;
    best_ = std::min(best_, here);
  }

  [[nodiscard]] std::int64_t gaps_of(std::size_t window) const {
    return std::min(length_, gaps_ - static_cast<std::int64_t>(window) * length_);
  }
  [[nodiscard]] double price_before(Place place) const {
    const auto window = static_cast<std::size_t>(place.window);
    return before_[window] + (place.offset > 0 ? prices_[window] * place.offset : 0);
  }
  void use_up_to(Place place, double bytes) {
    const auto window = static_cast<std::size_t>(place.window);
    whole_[window] += bytes;
    part_[window] += bytes * place.offset;
  }

  const std::vector<StoredInterval>& intervals_;
  double capacity_;
  std::int64_t first_ = 0;
  std::int64_t gaps_ = 0;
  std::int64_t length_ = 1;
  std::vector<Item> items_;
  double best_ = 0;
  /// Price of a byte in each gap of a window.
  std::vector<double> prices_;
  /// Sums of prices over all gaps before a window.
  std::vector<double> before_;
  /// Bytes that fill all gaps of earlier windows, and bytes x gaps in the window itself.
  std::vector<double> whole_;
  std::vector<double> part_;
  std::vector<double> slope_;
  double squares_ = 0;
};

}  // namespace

std::int64_t most_value(const std::vector<StoredInterval>& intervals, double capacity) {
  if (intervals.empty()) {
    return 0;
  }
  for (const StoredInterval& interval : intervals) {
    KVTIER_ASSERT(interval.begin < interval.end && interval.bytes > 0 && interval.value > 0,
                  "an interval has a length, a size and a value");
  }
  // Values are whole numbers, so their largest sum is one, too.
  return static_cast<std::int64_t>(std::floor(Dual(intervals, capacity).least() * (1 + kRounding)));
}

}  // namespace kvtier
