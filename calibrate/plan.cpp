#include "calibrate/plan.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "calibrate/bench.hpp"

namespace kvtier::calibrate {
namespace {

constexpr const char* kNoTime = "the time of the whole run was used up";
constexpr const char* kDisturbed = "every sample was disturbed";
constexpr const char* kContradicts = "contradicts its neighbours, twice";
constexpr const char* kMayBeUsed = "MiB may be used";

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

void drop_empty_tables(Profile& profile) {
  std::erase_if(profile.tables, [](const ProfileTable& table) {
    return table.cells.empty() && table.left_out.empty();
  });
}

Bytes allowed_memory(const PlannedTable& planned, const RunOptions& options) {
  return planned.memory.value_or(options.memory);
}

bool is_done(const ProfileTable& table, const std::vector<std::int64_t>& at) {
  const auto here = [&at](const auto& cell) { return cell.at == at; };
  return std::ranges::any_of(table.cells, here) || std::ranges::any_of(table.left_out, here);
}

/// Whether two cells contradict each other, whichever is larger.
bool contradict(const ProfileCell& a, const ProfileCell& b) {
  return contradicts(a, b) || contradicts(b, a);
}

/// Either of two contradicting cells may be wrong. Removes the earlier one, so that it is measured
/// again.
void take_out_contradictions(ProfileTable& table) {
  if (!profile_operation(table.operation).monotone) {
    return;
  }
  std::vector<ProfileCell> kept;
  for (const ProfileCell& cell : table.cells) {
    std::erase_if(kept, [&cell](const ProfileCell& other) { return contradict(cell, other); });
    kept.push_back(cell);
  }
  table.cells = std::move(kept);
}

/// The part of a running calibration that a file may hold. Readers refuse empty tables and
/// contradicting cells.
Profile valid_part(Profile profile) {
  std::ranges::for_each(profile.tables, take_out_contradictions);
  drop_empty_tables(profile);
  return profile;
}

class Run {
 public:
  Run(const RunOptions& options, Clock& clock, DisturbanceMonitor& monitor, Profile& profile)
      : options_(options),
        clock_(clock),
        monitor_(monitor),
        profile_(profile),
        random_(options.seed, "calibrate/visits"),
        begin_ns_(clock.now_ns()) {}

  void all(const std::vector<PlannedTable>& plan) {
    std::vector<Item> items = undone(plan);
    std::ranges::stable_sort(items, {}, &Item::number);
    std::vector<std::size_t> round;
    for (std::size_t i = 0; i < items.size(); ++i) {
      round.insert(round.end(), static_cast<std::size_t>(items[i].planned->visits_in_round), i);
    }
    visits_ = items.size() + round.size() * static_cast<std::size_t>(options_.visits - 1);
    for (std::size_t i = 0; i < items.size(); ++i) {
      visit(items[i], visit_rules(items[i].planned->rules, options_.visits));
      if (i + 1 == items.size() || items[i + 1].number != items[i].number) {
        keep();
      }
    }
    for (int again = 1; again < options_.visits; ++again) {
      for (const std::int32_t i : shuffled(static_cast<std::int64_t>(round.size()), random_)) {
        Item& item = items[round[static_cast<std::size_t>(i)]];
        visit(item, visit_rules(item.planned->rules, options_.visits));
      }
      keep();
    }
    for (const PlannedTable& planned : plan) {
      take_out_contradictions(table_of(profile_, planned.table));
    }
    std::vector<Item> rest = undone(plan);
    visits_ += rest.size();
    for (Item& item : rest) {
      visit(item, item.planned->rules);
      finish(item);
    }
    if (!rest.empty()) {
      keep();
    }
  }

 private:
  struct Item {
    const PlannedTable* planned;
    const PlannedCell* cell;
    /// Index in its table.
    std::size_t number;
    /// The samples of all visits so far.
    Measured measured{};
    /// Reason why nothing has been measured so far.
    std::string why = kDisturbed;
  };

  void keep() const {
    const Profile so_far = valid_part(profile_);
    if (!so_far.tables.empty()) {
      options_.keep(so_far);
    }
  }

  [[nodiscard]] double passed() const {
    return static_cast<double>(clock_.now_ns() - begin_ns_) * 1e-9;
  }

  [[nodiscard]] std::vector<Item> undone(const std::vector<PlannedTable>& plan) {
    std::vector<Item> items;
    for (const PlannedTable& planned : plan) {
      const ProfileTable& table = table_of(profile_, planned.table);
      for (std::size_t i = 0; i < planned.cells.size(); ++i) {
        if (!is_done(table, planned.cells[i].at)) {
          items.push_back({.planned = &planned, .cell = &planned.cells[i], .number = i});
        }
      }
    }
    return items;
  }

  void tell_progress(const Item& item) {
    const ProfileTable& setting = item.planned->table;
    const double rest = std::max(0.0, options_.seconds - passed());
    // A remaining visit is assumed to take as long as one done.
    const double for_visit = done_ == 0 ? rest : passed() / static_cast<double>(done_);
    options_.progress(
        {.done = done_,
         .all = visits_,
         .cell = fmt::format("{} {} [{}]", to_string(setting.operation), setting.variant,
                             fmt::join(item.cell->at, ", ")),
         .seconds_left = std::min(rest, for_visit * static_cast<double>(visits_ - done_))});
  }

  [[nodiscard]] std::optional<std::string> obstacle(const Item& item) const {
    const PlannedCell& cell = *item.cell;
    const Bytes allowed = allowed_memory(*item.planned, options_);
    if (cell.memory > allowed) {
      constexpr double kMebibyte = 1 << 20;
      return fmt::format("needs {:.0f} MiB, {:.0f} {}",
                         static_cast<double>(cell.memory.value) / kMebibyte,
                         static_cast<double>(allowed.value) / kMebibyte, kMayBeUsed);
    }
    if (passed() >= options_.seconds) {
      return kNoTime;
    }
    const auto larger = std::ranges::find_if(too_large_, [&](const auto& known) {
      return same_setting(known.first, item.planned->table) &&
             at_least_as_large(cell.at, known.second);
    });
    if (larger != too_large_.end()) {
      return fmt::format("larger than [{}], which takes too long", fmt::join(larger->second, ", "));
    }
    return std::nullopt;
  }

  /// Takes samples. Earlier samples stay, even if these fail.
  void visit(Item& item, const StopRules& rules) {
    ProfileTable& table = table_of(profile_, item.planned->table);
    const auto leave_out = [&](const std::string& why) {
      if (item.measured.n == 0) {
        table.left_out.push_back({item.cell->at, why});
      }
    };
    const bool left_out = item.measured.n == 0 && is_done(table, item.cell->at);
    if (!left_out) {
      tell_progress(item);
      if (const auto why = obstacle(item)) {
        leave_out(*why);
      } else {
        try {
          sample(item, rules, table);
        } catch (const OverBudget& error) {
          too_large_.emplace_back(item.planned->table, item.cell->at);
          leave_out(error.what());
        } catch (const CannotMeasure& error) {
          leave_out(error.what());
        }
      }
    }
    ++done_;
  }

  void sample(Item& item, const StopRules& rules, ProfileTable& table) {
    NoMonitor none;
    DisturbanceMonitor& monitor =
        item.planned->interference ? static_cast<DisturbanceMonitor&>(none) : monitor_;
    const PlannedCell& cell = *item.cell;
    const Measured now =
        measure(rules, cell.limit_seconds, cell.prepare(), clock_, monitor, options_.check);
    item.measured = pool(item.measured, now);
    const Measured& m = item.measured;
    if (m.n == 0) {
      item.why = m.impossible > m.disturbed
                     ? fmt::format("every sample was shorter than {:.3g} s, which nothing is",
                                   cell.limit_seconds)
                     : kDisturbed;
      return;
    }
    auto place = std::ranges::find(table.cells, cell.at, &ProfileCell::at);
    if (place == table.cells.end()) {
      place = table.cells.emplace(place);
    }
    *place = {.at = cell.at,
              .p25_seconds = m.p25_seconds,
              .median_seconds = m.median_seconds,
              .p75_seconds = m.p75_seconds,
              .n = m.n,
              .disturbed = m.disturbed + m.impossible,
              .parts = cell.parts};
  }

  /// After the last visit, leaves out a cell without samples or with contradictions, and records
  /// the reason.
  void finish(const Item& item) {
    ProfileTable& table = table_of(profile_, item.planned->table);
    const auto cell = std::ranges::find(table.cells, item.cell->at, &ProfileCell::at);
    if (cell == table.cells.end()) {
      if (!is_done(table, item.cell->at)) {
        table.left_out.push_back({item.cell->at, item.why});
      }
    } else if (profile_operation(table.operation).monotone &&
               std::ranges::any_of(table.cells, [&cell](const ProfileCell& other) {
                 return contradict(*cell, other);
               })) {
      table.left_out.push_back({item.cell->at, kContradicts});
      table.cells.erase(cell);
    }
  }

  const RunOptions& options_;
  Clock& clock_;
  DisturbanceMonitor& monitor_;
  Profile& profile_;
  RandomStream random_;
  std::int64_t begin_ns_;
  /// Visits done, of `visits_`.
  std::size_t done_ = 0;
  std::size_t visits_ = 0;
  /// Settings and places of cells that took too long.
  std::vector<std::pair<ProfileTable, std::vector<std::int64_t>>> too_large_;
};

}  // namespace

void run_plan(const std::vector<PlannedTable>& plan, const RunOptions& options, Clock& clock,
              DisturbanceMonitor& monitor, Profile& profile) {
  // Keeps the measured cells of a run that ends early.
  try {
    Run(options, clock, monitor, profile).all(plan);
  } catch (...) {
    profile = valid_part(std::move(profile));
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
  if (cell.memory > allowed_memory(*planned, options)) {
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
      return cell.why == kNoTime || cell.why == kDisturbed || cell.why == kContradicts ||
             cell.why.ends_with(kMayBeUsed);
    });
  }
  drop_empty_tables(profile);
}

}  // namespace kvtier::calibrate
