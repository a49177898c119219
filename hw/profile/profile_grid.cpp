#include "hw/profile/profile_grid.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// Not measured.
constexpr double kGap = -1;

double linear(double x0, double y0, double x1, double y1, double x) {
  return y0 + (y1 - y0) * ((x - x0) / (x1 - x0));
}

double power(double x0, double y0, double x1, double y1, double x) {
  if (y0 == y1) {
    return y0;
  }
  return y0 * std::exp(std::log(y1 / y0) * (std::log(x / x0) / std::log(x1 / x0)));
}

void sort_unique(std::vector<double>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

std::size_t index_of(const std::vector<double>& sorted, double value) {
  return static_cast<std::size_t>(std::ranges::lower_bound(sorted, value) - sorted.begin());
}

/// The index (at least 1) of the upper end of the interval of `sorted` that holds `value`, which is
/// inside.
template <class Items, class Projection>
std::size_t upper_end(const Items& sorted, double value, Projection projection) {
  const auto found = std::ranges::lower_bound(sorted, value, {}, projection);
  return std::max<std::size_t>(1, static_cast<std::size_t>(found - sorted.begin()));
}

}  // namespace

ProfileGrid::ProfileGrid(std::span<const ProfileCell> cells, Limit limit, Falls falls)
    : limit_(std::move(limit)) {
  KVTIER_ASSERT(!cells.empty(), "a grid has a cell");
  std::vector<double> xs;
  const auto second = [](const ProfileCell& cell) {
    return cell.at.size() > 1 ? static_cast<double>(cell.at[1]) : 0.0;
  };
  for (const ProfileCell& cell : cells) {
    KVTIER_ASSERT(cell.at.size() == 1 || cell.at.size() == 2, "a grid has one or two axes");
    KVTIER_ASSERT(cell.at[0] > 0, "the first axis is positive");
    xs.push_back(static_cast<double>(cell.at[0]));
    ys_.push_back(second(cell));
  }
  sort_unique(xs);
  sort_unique(ys_);
  std::vector<std::vector<double>> measured(xs.size(), std::vector<double>(ys_.size(), kGap));
  shortest_ = cells.front().median_seconds;
  for (const ProfileCell& cell : cells) {
    measured[index_of(xs, static_cast<double>(cell.at[0]))][index_of(ys_, second(cell))] =
        cell.median_seconds;
    shortest_ = std::min(shortest_, cell.median_seconds);
  }
  for (const double x : xs) {
    rows_.push_back({.x = x, .times = std::vector<Time>(ys_.size())});
  }
  fill_gaps(measured);
  if (falls == Falls::noise) {
    make_monotone();
  }
}

/// Interpolates a gap between measured cells of its row, otherwise between cells of its column.
/// Other gaps take the attained share of the limit at the nearest end of the row.
void ProfileGrid::fill_gaps(std::vector<std::vector<double>>& measured) {
  const auto is_gap = [](double seconds) { return seconds == kGap; };
  for (std::vector<double>& row : measured) {
    std::size_t before = ys_.size();
    for (std::size_t j = 0; j < ys_.size(); ++j) {
      if (is_gap(row[j])) {
        continue;
      }
      for (std::size_t gap = before + 1; before < j && gap < j; ++gap) {
        row[gap] = linear(ys_[before], row[before], ys_[j], row[j], ys_[gap]);
      }
      before = j;
    }
  }
  const std::vector<std::vector<double>> in_rows = measured;
  for (std::size_t j = 0; j < ys_.size(); ++j) {
    std::size_t before = rows_.size();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (is_gap(in_rows[i][j])) {
        continue;
      }
      for (std::size_t gap = before + 1; before < i && gap < i; ++gap) {
        measured[gap][j] =
            power(rows_[before].x, in_rows[before][j], rows_[i].x, in_rows[i][j], rows_[gap].x);
      }
      before = i;
    }
  }
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<double>& row = measured[i];
    auto edge = static_cast<std::size_t>(std::ranges::find_if_not(row, is_gap) - row.begin());
    for (std::size_t j = 0; j < ys_.size(); ++j) {
      if (!is_gap(row[j])) {
        edge = j;
        rows_[i].times[j] = {row[j], false};
        continue;
      }
      const double at_edge = limit_(rows_[i].x, ys_[edge]);
      const double share = at_edge > 0 ? limit_(rows_[i].x, ys_[j]) / at_edge : 1;
      rows_[i].times[j] = {std::max(shortest_, row[edge] * share), true};
    }
  }
}

void ProfileGrid::make_monotone() {
  const std::size_t width = ys_.size();
  const std::size_t height = rows_.size();
  const double none = std::numeric_limits<double>::infinity();
  // The slowest measured cell of no more work, and the fastest of no less, before and after.
  const auto slowest = [&] {
    std::vector<double> most(width * height, 0);
    for (std::size_t i = 0; i < height; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        const Time& time = rows_[i].times[j];
        most[i * width + j] =
            std::max({time.extrapolated ? 0 : time.seconds, i > 0 ? most[(i - 1) * width + j] : 0,
                      j > 0 ? most[i * width + j - 1] : 0});
      }
    }
    return most;
  };
  const auto fastest = [&] {
    std::vector<double> least(width * height, none);
    for (std::size_t i = height; i-- > 0;) {
      for (std::size_t j = width; j-- > 0;) {
        const Time& time = rows_[i].times[j];
        least[i * width + j] = std::min({time.extrapolated ? none : time.seconds,
                                         i + 1 < height ? least[(i + 1) * width + j] : none,
                                         j + 1 < width ? least[i * width + j + 1] : none});
      }
    }
    return least;
  };
  const std::vector<double> most = slowest();
  const std::vector<double> least = fastest();
  for (std::size_t i = 0; i < height; ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      Time& time = rows_[i].times[j];
      const double upper = most[i * width + j];
      const double lower = least[i * width + j];
      if (!time.extrapolated && upper != lower) {
        time.seconds = std::sqrt(upper * lower);
      }
    }
  }
  const std::vector<double> ceiling = fastest();
  for (std::size_t i = 0; i < height; ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      Time& time = rows_[i].times[j];
      if (time.extrapolated) {
        const double floor = std::max(i > 0 ? rows_[i - 1].times[j].seconds : 0,
                                      j > 0 ? rows_[i].times[j - 1].seconds : 0);
        time.seconds = std::min(std::max(time.seconds, floor), ceiling[i * width + j]);
      }
    }
  }
}

ProfileGrid::Time ProfileGrid::in_row(const Row& row, double y) const {
  if (ys_.size() == 1) {
    return row.times[0];
  }
  const std::size_t j = upper_end(ys_, y, std::identity{});
  const Time& below = row.times[j - 1];
  const Time& above = row.times[j];
  if (y == ys_[j]) {
    return above;
  }
  if (y == ys_[j - 1]) {
    return below;
  }
  return {linear(ys_[j - 1], below.seconds, ys_[j], above.seconds, y),
          below.extrapolated || above.extrapolated};
}

ProfileGrid::Time ProfileGrid::inside(double x, double y) const {
  if (rows_.size() == 1) {
    return in_row(rows_[0], y);
  }
  const std::size_t i = upper_end(rows_, x, &Row::x);
  if (x == rows_[i].x) {
    return in_row(rows_[i], y);
  }
  const Time below = in_row(rows_[i - 1], y);
  if (x == rows_[i - 1].x) {
    return below;
  }
  const Time above = in_row(rows_[i], y);
  return {power(rows_[i - 1].x, below.seconds, rows_[i].x, above.seconds, x),
          below.extrapolated || above.extrapolated};
}

ProfileGrid::Time ProfileGrid::at(double first, double second) const {
  const double x = std::clamp(first, rows_.front().x, rows_.back().x);
  const double y = std::clamp(second, ys_.front(), ys_.back());
  Time time = inside(x, y);
  const double limit = limit_(first, second);
  if (x != first || y != second) {
    const double at_edge = limit_(x, y);
    const double share = at_edge > 0 ? limit / at_edge : 1;
    time = {std::max(shortest_, time.seconds * share), true};
  }
  time.seconds = std::max(time.seconds, limit);
  return time;
}

}  // namespace kvtier
