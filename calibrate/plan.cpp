#include "calibrate/plan.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvtier::calibrate {
namespace {

/// Measured again, a cell is kept or left out for good.
constexpr int kAttempts = 2;
constexpr const char* kNoTime = "the time of the whole run was used up";
constexpr const char* kDisturbed = "every sample was disturbed";
constexpr const char* kContradicts = "contradicts its neighbours, twice";

bool at_least(const std::vector<std::int64_t>& larger, const std::vector<std::int64_t>& smaller) {
  return std::ranges::equal(larger, smaller, std::greater_equal());
}

bool same_setting(const ProfileTable& a, const ProfileTable& b) {
  return a.operation == b.operation && a.variant == b.variant && a.method == b.method &&
         a.cache == b.cache && a.shape == b.shape;
}

/// The table in the profile, added if it is new.
ProfileTable& table_of(Profile& profile, const ProfileTable& setting) {
  for (ProfileTable& table : profile.tables) {
    if (same_setting(table, setting)) {
      return table;
    }
  }
  profile.tables.push_back(setting);
  return profile.tables.back();
}

bool is_done(const ProfileTable& table, const std::vector<std::int64_t>& at) {
  const auto here = [&at](const auto& cell) { return cell.at == at; };
  return std::ranges::any_of(table.cells, here) || std::ranges::any_of(table.left_out, here);
}

/// Whether the larger of two cells took less than the least share of the smaller one's time, which
/// no reader of the profile would believe.
bool contradict(const ProfileCell& a, const ProfileCell& b) {
  return (at_least(a.at, b.at) && a.median_seconds < kLeastShareOfSmallerWork * b.median_seconds) ||
         (at_least(b.at, a.at) && b.median_seconds < kLeastShareOfSmallerWork * a.median_seconds);
}

class Run {
 public:
  Run(const RunOptions& options, Clock& clock, DisturbanceMonitor& monitor, Profile& profile)
      : options_(options),
        clock_(clock),
        monitor_(monitor),
        profile_(profile),
        begin_ns_(clock.now_ns()) {}

  void all(const std::vector<PlannedTable>& plan) {
    for (const PlannedTable& planned : plan) {
      const ProfileTable& table = table_of(profile_, planned.table);
      for (const PlannedCell& cell : planned.cells) {
        left_ += is_done(table, cell.at) ? 0 : 1;
      }
    }
    count_ = left_;
    // The second time for cells that another one showed to be wrong.
    for (last_time_ = false; left_ > 0; last_time_ = true) {
      for (const PlannedTable& planned : plan) {
        const std::size_t left_before = left_;
        for (const PlannedCell& cell : planned.cells) {
          next(planned, cell);
        }
        if (left_ != left_before) {
          options_.keep(profile_);
        }
      }
    }
  }

 private:
  [[nodiscard]] double passed() const {
    return static_cast<double>(clock_.now_ns() - begin_ns_) * 1e-9;
  }

  /// What is left takes as long for a cell as what was done.
  [[nodiscard]] double time_left(std::size_t done) const {
    const double rest = std::max(0.0, options_.seconds - passed());
    return done == 0
               ? rest
               : std::min(rest, passed() / static_cast<double>(done) * static_cast<double>(left_));
  }

  void next(const PlannedTable& planned, const PlannedCell& cell) {
    ProfileTable& table = table_of(profile_, planned.table);
    if (is_done(table, cell.at)) {
      return;
    }
    const std::size_t done = count_ - left_;
    options_.progress({.done = done,
                       .all = count_,
                       .cell = fmt::format("{} {} [{}]", to_string(table.operation), table.variant,
                                           fmt::join(cell.at, ", ")),
                       .seconds_left = time_left(done)});
    one(planned, cell, table);
    --left_;
  }

  /// True if the cell fits to the others. Those that it does not fit to are taken out the first
  /// time, as either may be wrong, and measured again at the end.
  bool accept(ProfileTable& table, const ProfileCell& cell) {
    if (!profile_operation(table.operation).monotone) {
      return true;
    }
    const auto wrong = [&cell](const ProfileCell& other) { return contradict(cell, other); };
    if (last_time_) {
      return std::ranges::none_of(table.cells, wrong);
    }
    const std::size_t removed = std::erase_if(table.cells, wrong);
    left_ += removed;
    count_ += removed;
    return true;
  }

  void one(const PlannedTable& planned, const PlannedCell& cell, ProfileTable& table) {
    const auto leave_out = [&](const std::string& why) {
      table.left_out.push_back({cell.at, why});
    };
    if (cell.memory > options_.memory) {
      constexpr double kMebibyte = 1 << 20;
      leave_out(fmt::format("needs {:.0f} MiB, {:.0f} MiB may be used",
                            static_cast<double>(cell.memory.value) / kMebibyte,
                            static_cast<double>(options_.memory.value) / kMebibyte));
      return;
    }
    if (passed() >= options_.seconds) {
      leave_out(kNoTime);
      return;
    }
    const auto larger = std::ranges::find_if(too_large_, [&](const auto& known) {
      return same_setting(known.first, table) && at_least(cell.at, known.second);
    });
    if (larger != too_large_.end()) {
      leave_out(
          fmt::format("larger than [{}], which takes too long", fmt::join(larger->second, ", ")));
      return;
    }
    std::string why = kDisturbed;
    try {
      Sample sample = cell.prepare();
      for (int attempt = 0; attempt < kAttempts; ++attempt) {
        NoMonitor none;
        DisturbanceMonitor& monitor =
            planned.interference ? static_cast<DisturbanceMonitor&>(none) : monitor_;
        const Measured m =
            measure(planned.rules, cell.limit_seconds, sample, clock_, monitor, options_.check);
        if (m.n == 0) {
          why = m.impossible > m.disturbed
                    ? fmt::format("every sample was shorter than {:.3g} s, which nothing is",
                                  cell.limit_seconds)
                    : kDisturbed;
          continue;
        }
        ProfileCell result{.at = cell.at,
                           .p25_seconds = m.p25_seconds,
                           .median_seconds = m.median_seconds,
                           .p75_seconds = m.p75_seconds,
                           .n = m.n,
                           .disturbed = m.disturbed + m.impossible,
                           .parts = cell.parts};
        if (!accept(table, result)) {
          why = kContradicts;
          continue;
        }
        table.cells.push_back(std::move(result));
        return;
      }
    } catch (const OverBudget& error) {
      too_large_.emplace_back(planned.table, cell.at);
      why = error.what();
    } catch (const CannotMeasure& error) {
      why = error.what();
    }
    leave_out(why);
  }

  const RunOptions& options_;
  Clock& clock_;
  DisturbanceMonitor& monitor_;
  Profile& profile_;
  std::int64_t begin_ns_;
  std::size_t left_ = 0;
  std::size_t count_ = 0;
  bool last_time_ = false;
  /// Settings and places of cells that took too long.
  std::vector<std::pair<ProfileTable, std::vector<std::int64_t>>> too_large_;
};

}  // namespace

void run_plan(const std::vector<PlannedTable>& plan, const RunOptions& options, Clock& clock,
              DisturbanceMonitor& monitor, Profile& profile) {
  // What a run that ends early has measured is worth as much as before.
  try {
    Run(options, clock, monitor, profile).all(plan);
  } catch (...) {
    std::erase_if(profile.tables, [](const ProfileTable& table) {
      return table.cells.empty() && table.left_out.empty();
    });
    options.keep(profile);
    throw;
  }
}

std::optional<double> measure_cell(const std::vector<PlannedTable>& plan,
                                   const ProfileTable& setting, const Place& place,
                                   const RunOptions& options, Clock& clock,
                                   DisturbanceMonitor& monitor) {
  const auto planned = std::ranges::find_if(plan, [&setting](const PlannedTable& candidate) {
    return candidate.cell_at && same_setting(candidate.table, setting);
  });
  if (planned == plan.end()) {
    return std::nullopt;
  }
  const PlannedCell cell = planned->cell_at(place);
  if (cell.memory > options.memory) {
    return std::nullopt;
  }
  try {
    NoMonitor none;
    const Measured m = measure(
        planned->rules, cell.limit_seconds, cell.prepare(), clock,
        planned->interference ? static_cast<DisturbanceMonitor&>(none) : monitor, options.check);
    return m.n > 0 ? std::optional(m.median_seconds) : std::nullopt;
  } catch (const OverBudget&) {
    return std::nullopt;
  } catch (const CannotMeasure&) {
    return std::nullopt;
  }
}

void forget_left_out(Profile& profile) {
  for (ProfileTable& table : profile.tables) {
    std::erase_if(table.left_out, [](const LeftOutCell& cell) {
      return cell.why == kNoTime || cell.why == kDisturbed || cell.why == kContradicts;
    });
  }
  std::erase_if(profile.tables, [](const ProfileTable& table) {
    return table.cells.empty() && table.left_out.empty();
  });
}

}  // namespace kvtier::calibrate
