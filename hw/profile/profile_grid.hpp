#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hw/profile/profile.hpp"

namespace kvtier {

/// The time of one operation at any size, from cells measured on a grid. Between cells it is a
/// power of the first axis (log-log) and linear along the second, which gives decode times that are
/// affine in the context and needs no logarithm of "no past". It never falls as a size grows: cells
/// that do, within noise, are replaced by the geometric mean of the slowest cell of no more work
/// and the fastest of no less. With Falls::kept, falls stay, because engines switch kernels.
///
/// Beyond the grid, and in a corner of it that was left out, the share of the limit that is
/// attained at the nearest measured cell is held; such times are marked. No time is below the
/// limit.
class ProfileGrid {
 public:
  /// The shortest time that the device could take for a size: the speed of light.
  using Limit = std::function<double(double, double)>;

  /// Whether times that fall as a size grows are noise, or come from another kernel.
  enum class Falls { noise, kept };

  /// One or two axes; at least one cell, and the first axis is positive.
  ProfileGrid(std::span<const ProfileCell> cells, Limit limit, Falls falls = Falls::noise);

  struct Time {
    double seconds = 0;
    bool extrapolated = false;
  };
  [[nodiscard]] Time at(double first, double second = 0) const;

  /// The largest value of the first axis.
  [[nodiscard]] double first_axis_end() const { return rows_.back().x; }

  /// The values of the second axis, ascending; {0} if there is none.
  [[nodiscard]] const std::vector<double>& second_axis() const { return ys_; }

 private:
  struct Row {
    double x = 0;
    std::vector<Time> times;  // one for each of ys_
  };

  [[nodiscard]] Time in_row(const Row& row, double y) const;
  [[nodiscard]] Time inside(double x, double y) const;
  void fill_gaps(std::vector<std::vector<double>>& measured);
  void make_monotone();

  Limit limit_;
  std::vector<double> ys_;
  std::vector<Row> rows_;
  double shortest_ = 0;
};

}  // namespace kvtier
