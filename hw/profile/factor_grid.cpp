#include "hw/profile/factor_grid.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvtier {
namespace {

/// Sizes may be 0, and the first tokens change little.
double scale(double size) { return std::log(size + 1); }

}  // namespace

FactorGrid::FactorGrid(const std::vector<Point>& points) {
  for (const Point& point : points) {
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      axes_[axis].push_back(scale(point.at[axis]));
    }
  }
  std::size_t places = 1;
  for (std::vector<double>& values : axes_) {
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    places *= values.size();
  }
  factors_.resize(places);
  for (const Point& point : points) {
    std::array<std::size_t, kAxes> found{};
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      found[axis] = static_cast<std::size_t>(
          std::ranges::lower_bound(axes_[axis], scale(point.at[axis])) - axes_[axis].begin());
    }
    factors_[index(found)] = point.factor;
  }
  fill_gaps();
}

std::optional<double> FactorGrid::between_neighbours(const Index& places, std::size_t axis) const {
  const std::vector<double>& values = axes_[axis];
  const auto measured = [&](std::size_t place) {
    Index other = places;
    other[axis] = place;
    return factors_[index(other)];
  };
  std::size_t below = places[axis];
  while (below > 0 && !measured(below)) {
    --below;
  }
  std::size_t above = places[axis];
  while (above + 1 < values.size() && !measured(above)) {
    ++above;
  }
  if (!measured(below) || !measured(above)) {
    return std::nullopt;
  }
  return std::lerp(*measured(below), *measured(above),
                   (values[places[axis]] - values[below]) / (values[above] - values[below]));
}

void FactorGrid::fill_gaps() {
  std::vector<std::optional<double>> filled = factors_;
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    if (factors_[i]) {
      continue;
    }
    Index places{};
    std::size_t rest = i;
    for (std::size_t axis = kAxes; axis-- > 0;) {
      places[axis] = rest % axes_[axis].size();
      rest /= axes_[axis].size();
    }
    double sum = 0;
    int count = 0;
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      if (const std::optional<double> factor = between_neighbours(places, axis)) {
        sum += *factor;
        ++count;
      }
    }
    if (count > 0) {
      filled[i] = sum / count;
    }
  }
  factors_ = std::move(filled);
}

std::size_t FactorGrid::index(const Index& places) const {
  std::size_t result = 0;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    result = result * axes_[axis].size() + places[axis];
  }
  return result;
}

double FactorGrid::at(const Place& place) const {
  if (factors_.empty()) {
    return 1;
  }
  std::array<std::size_t, kAxes> below{};
  std::array<double, kAxes> weight{};
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    const std::vector<double>& values = axes_[axis];
    const double at = std::clamp(scale(place[axis]), values.front(), values.back());
    const auto above =
        static_cast<std::size_t>(std::ranges::lower_bound(values, at) - values.begin());
    below[axis] = above > 0 ? above - 1 : 0;
    weight[axis] = above > 0 ? (at - values[above - 1]) / (values[above] - values[above - 1]) : 0.0;
  }
  double sum = 0;
  double weights = 0;
  for (unsigned corner = 0; corner < 1U << kAxes; ++corner) {
    std::array<std::size_t, kAxes> places = below;
    double share = 1;
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      const bool upper = (corner >> axis & 1U) != 0;
      share *= upper ? weight[axis] : 1 - weight[axis];
      places[axis] = std::min(below[axis] + (upper ? 1 : 0), axes_[axis].size() - 1);
    }
    if (share > 0) {
      if (const std::optional<double>& factor = factors_[index(places)]) {
        sum += share * *factor;
        weights += share;
      }
    }
  }
  return weights > 0 ? sum / weights : 1;
}

}  // namespace kvtier
