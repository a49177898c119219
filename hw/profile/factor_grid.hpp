#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

namespace kvtier {

/// A factor over four sizes, interpolated from points on a grid: linear in the logarithms of the
/// sizes, and constant beyond the grid. A point that was not measured is the mean of the lines
/// between its neighbours along each axis; one without neighbours takes no part.
class FactorGrid {
 public:
  static constexpr std::size_t kAxes = 4;
  using Place = std::array<double, kAxes>;
  struct Point {
    Place at{};
    double factor = 1;
  };

  explicit FactorGrid(const std::vector<Point>& points);

  /// 1 if none of the surrounding points was measured.
  [[nodiscard]] double at(const Place& place) const;

 private:
  using Index = std::array<std::size_t, kAxes>;

  [[nodiscard]] std::size_t index(const Index& places) const;
  void fill_gaps();
  [[nodiscard]] std::optional<double> between_neighbours(const Index& places,
                                                         std::size_t axis) const;

  std::array<std::vector<double>, kAxes> axes_;  // logarithms
  std::vector<std::optional<double>> factors_;
};

}  // namespace kvtier
