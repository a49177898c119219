#include "sim/policy/conformance.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <tuple>
#include <typeinfo>

#include <cxxabi.h>
#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/policy/random_driver.hpp"
#include "sim/policy/trial_tier.hpp"

namespace kvtier {
namespace {

using Kind = PolicyKind<EvictionPolicy>;
using Check = ConformanceCheck<EvictionPolicy>;
using Entries = std::vector<std::uint32_t>;

constexpr int kSteps = 6'000;

template <class... Values>
void require(bool holds, fmt::format_string<Values...> what, Values&&... values) {
  if (!holds) {
    throw ConformanceError(fmt::format(what, std::forward<Values>(values)...));
  }
}

/// Six entries: 0 and 3 move; requests for 1, 3 and 4 wait.
TrialTier six_entries(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier(kind, parameters);
  for (std::uint32_t entry = 0; entry < 6; ++entry) {
    tier.insert(EntryId{entry});
  }
  tier.change_queue(EntryId{1}, QueuePosition{7});
  tier.change_queue(EntryId{3}, QueuePosition{8});
  tier.change_queue(EntryId{4}, QueuePosition{9});
  tier.set_queue_first(QueuePosition{7});
  tier.begin_move(EntryId{0});
  tier.begin_move(EntryId{3});
  // A choice may change the policy's state of the queue's head.
  tier.choose_in_vain();
  return tier;
}

void require_leaving(TrialTier& tier, const Entries& expected) {
  Entries left = tier.evict_all();
  std::ranges::sort(left);
  require(left == expected, "expected entries {} to leave once each, got {}",
          fmt::join(expected, " "), fmt::join(left, " "));
}

/// Expects check_invariants to reject a false view.
void require_refusal(const TrialTier& tier, const FalseView& falsehood, const std::string& what) {
  try {
    tier.check_against(falsehood);
  } catch (const InvariantError&) {
    return;
  }
  throw ConformanceError("check_invariants does not notice " + what);
}

void sets_are_offered_and_worth_the_room(const Kind& kind, const PolicyParameters& parameters) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TrialTier tier(kind, parameters);
    RandomDriver driver(seed, tier.sees_queue());
    int sets = 0;
    int refusals = 0;
    for (int step = 0; step < kSteps; ++step) {
      driver.step({&tier}, [&](const RandomDriver::Selection& selection, const auto& chosen) {
        if (!chosen.front().empty()) {
          ++sets;
          return;
        }
        ++refusals;
        // A policy may refuse if too few bytes are offered. With look-ahead knowledge it also
        // spares entries that run before the newcomer of a prefetch or demotion.
        const bool may_refuse = tier.sees_queue() && (selection.demand == Demand::prefetch ||
                                                      selection.demand == Demand::demotion);
        Bytes available;
        for (const auto& [entry, resident] : tier.residents()) {
          const bool runs_before = may_refuse && resident.view.queue_position < selection.incoming;
          available += resident.offered() && !runs_before ? resident.view.bytes : Bytes(0);
        }
        require(available < selection.wanted,
                "{} bytes could have left for the {} wanted, but nothing does", available.value,
                selection.wanted.value);
      });
      tier.check();
    }
    require(sets > 100 && refusals > 0, "only {} sets and {} refusals", sets, refusals);
  }
}

/// A set that is too small, or refused, changes nothing about what leaves next.
void a_set_leaves_whole_or_not_at_all(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  for (int i = 0; i < 20; ++i) {
    tier.choose_in_vain();
    tier.check();
    require(tier.select().has_value(), "no victim is left, though none was removed");
    tier.check();
  }
  const Bytes all = tier.offered_bytes();
  tier.remove(tier.choose(all));
  require(tier.offered_bytes().value == 0, "a set worth all {} bytes leaves {} here", all.value,
          tier.offered_bytes().value);
  require(tier.holds(EntryId{0}) && tier.holds(EntryId{3}), "what moves is chosen");
  tier.check();
}

void every_entry_leaves_exactly_once(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  tier.end_move(EntryId{0});
  tier.end_move(EntryId{3});
  require_leaving(tier, {0, 1, 2, 3, 4, 5});
  tier.check();
}

void an_empty_tier_has_no_victim(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier(kind, parameters);
  for (const Demand demand :
       {Demand::save, Demand::prefetch, Demand::demotion, Demand::background}) {
    require(!tier.select(demand) && !tier.select(demand, QueuePosition{3}),
            "an entry of an empty tier is chosen");
  }
  tier.check();
}

void entries_that_move_never_leave(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  require_leaving(tier, {1, 2, 4, 5});
  require(!tier.select(), "an entry that moves is chosen");
  tier.end_move(EntryId{3});
  require(tier.evict() == EntryId{3}, "the entry that does not move any more does not leave");
  tier.check();
}

void entries_in_use_are_kept(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  tier.begin_turn(EntryId{2});
  tier.begin_turn(EntryId{4});
  tier.begin_turn(EntryId{5});
  tier.hit(EntryId{5});  // found again before it is back
  tier.check();
  require_leaving(tier, {1});
  require(!tier.select(), "an entry that a turn has is chosen");
  tier.end_turn(EntryId{2}, Tokens(150));
  tier.end_turn(EntryId{5}, Tokens(100));
  tier.lose(EntryId{4});
  tier.check();
  require_leaving(tier, {2, 5});
  tier.insert(EntryId{4});
  require_leaving(tier, {4});
  tier.check();
}

void both_parts_of_a_split_entry_leave(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  tier.split(EntryId{2}, EntryId{6}, Tokens(40));
  tier.check();
  tier.hit(EntryId{2});
  tier.begin_turn(EntryId{5});
  tier.split(EntryId{5}, EntryId{7}, Tokens(60));
  tier.check();
  tier.end_turn(EntryId{5}, Tokens(60));
  tier.end_turn(EntryId{7}, Tokens(80));
  tier.check();
  require_leaving(tier, {1, 2, 4, 5, 6, 7});
  tier.check();
}

void a_removed_entry_can_come_back(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  tier.remove(EntryId{2});
  tier.check();
  tier.insert(EntryId{2});
  tier.remove(EntryId{5});
  require_leaving(tier, {1, 2, 4});
}

void entry_numbers_may_be_sparse(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier(kind, parameters);
  tier.insert(EntryId{100'000});
  tier.insert(EntryId{3});
  tier.check();
  require_leaving(tier, {3, 100'000});
}

void the_same_calls_give_the_same_answers(const Kind& kind, const PolicyParameters& parameters) {
  using Answer = std::tuple<std::uint32_t, std::int64_t>;
  const auto answers_of = [&](std::uint64_t seed) {
    TrialTier tier(kind, parameters);
    RandomDriver driver(seed, tier.sees_queue());
    std::vector<Answer> all;
    for (int step = 0; step < kSteps; ++step) {
      driver.step({&tier}, [&](const auto&, const auto& answers) {
        for (const Victim& victim : answers.front()) {
          all.emplace_back(victim.entry.value, victim.keep.value);
        }
        all.emplace_back(UINT32_MAX, 0);
      });
    }
    return all;
  };
  const std::vector<Answer> first = answers_of(11);
  require(first.size() > 100, "only {} selections", first.size());
  require(answers_of(12) != first, "other calls give the same answers");
  require(answers_of(11) == first, "the same calls give other answers");
}

void invariants_see_a_missing_entry(const Kind& kind, const PolicyParameters& parameters) {
  const TrialTier tier = six_entries(kind, parameters);
  tier.check();
  for (const auto& [entry, resident] : tier.residents()) {
    if (resident.offered()) {
      FalseView lost(tier);
      lost.residents.erase(entry);
      require_refusal(tier, lost, fmt::format("that entry {} is missing", entry.value));
    }
  }
  FalseView nothing(tier);
  nothing.residents.clear();
  require_refusal(tier, nothing, "that every entry is missing");
}

void invariants_see_an_entry_too_much(const Kind& kind, const PolicyParameters& parameters) {
  TrialTier tier = six_entries(kind, parameters);
  tier.remove(EntryId{5});
  // An entry that was there, the next new one, and one far beyond.
  for (const std::uint32_t entry : {5U, 6U, 1'000'000U}) {
    FalseView more(tier);
    more.residents[EntryId{entry}].view.id = EntryId{entry};
    require_refusal(tier, more, fmt::format("entry {}, which is not there", entry));
  }
}

void invariants_see_a_wrong_place_in_the_queue(const Kind& kind,
                                               const PolicyParameters& parameters) {
  const TrialTier tier = six_entries(kind, parameters);
  if (!tier.sees_queue()) {
    return;
  }
  for (const auto& [entry, resident] : tier.residents()) {
    FalseView other(tier);
    QueuePosition& position = other.residents[entry].view.queue_position;
    position = position == kNotQueued ? QueuePosition{20} : kNotQueued;
    require_refusal(tier, other, fmt::format("a wrong place in the queue of {}", entry.value));
  }
}

constexpr std::array kChecks{
    Check{"SetsAreOfferedAndWorthTheRoom", sets_are_offered_and_worth_the_room},
    Check{"ASetLeavesWholeOrNotAtAll", a_set_leaves_whole_or_not_at_all},
    Check{"EveryEntryLeavesExactlyOnce", every_entry_leaves_exactly_once},
    Check{"AnEmptyTierHasNoVictim", an_empty_tier_has_no_victim},
    Check{"EntriesThatMoveNeverLeave", entries_that_move_never_leave},
    Check{"EntriesInUseAreKeptAndNotChosen", entries_in_use_are_kept},
    Check{"BothPartsOfASplitEntryLeave", both_parts_of_a_split_entry_leave},
    Check{"ARemovedEntryIsNotChosenAndCanComeBack", a_removed_entry_can_come_back},
    Check{"EntryNumbersMayBeSparse", entry_numbers_may_be_sparse},
    Check{"TheSameCallsGiveTheSameAnswers", the_same_calls_give_the_same_answers},
    Check{"InvariantsHoldOnlyIfNoEntryIsMissing", invariants_see_a_missing_entry},
    Check{"InvariantsHoldOnlyIfNoEntryIsTooMuch", invariants_see_an_entry_too_much},
    Check{"InvariantsHoldOnlyIfQueuePositionsAgree", invariants_see_a_wrong_place_in_the_queue}};

}  // namespace

std::vector<ConformanceCase> conformance_cases(const std::vector<PolicyParameter>& parameters) {
  std::vector<ConformanceCase> cases{{"defaults", {}}};
  for (const PolicyParameter& parameter : parameters) {
    for (const double above : {0.0, 5.0}) {
      const double value = std::min(parameter.minimum + above, parameter.maximum);
      cases.push_back({parameter.name + (above == 0 ? "_minimum" : "_minimum_plus_5"),
                       {{parameter.name, value}}});
    }
  }
  return cases;
}

std::span<const ConformanceCheck<EvictionPolicy>> eviction_checks() { return kChecks; }

std::string exception_name(const std::exception& error) {
  const char* const mangled = typeid(error).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return fmt::format("{}: {}", status == 0 ? readable.get() : mangled, error.what());
}

std::vector<std::string> eviction_problems(const PolicyKind<EvictionPolicy>& kind,
                                           const ExceptionName& name_exception) {
  return detail::problems_in_checks(kind, eviction_checks(), name_exception);
}

bool is_policy_name(const std::string& name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && is_letter(name.front()) && std::ranges::all_of(name, [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
  });
}

namespace detail {
std::vector<std::string> declaration_problems(const std::string& name, const std::string& summary,
                                              const std::string& source,
                                              const std::vector<PolicyParameter>& parameters) {
  std::vector<std::string> problems;
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds) {
      problems.push_back(what);
    }
  };
  const std::string word = "is no word of small letters, digits and underscores";
  expect(is_policy_name(name), fmt::format("name: \"{}\" {}", name, word));
  expect(!summary.empty(), "summary: is empty");
  expect(!source.empty(), "source: is empty");
  std::set<std::string> seen;
  for (const PolicyParameter& p : parameters) {
    const auto expect_of = [&](bool holds, const std::string& what) {
      expect(holds, fmt::format("parameter \"{}\": {}", p.name, what));
    };
    expect_of(is_policy_name(p.name), word);
    expect_of(seen.insert(p.name).second, "is declared twice");
    expect_of(!p.documentation.empty(), "has no documentation");
    expect_of(!p.unit.empty(), "has no unit");
    expect_of(p.minimum <= p.maximum, "its minimum is above its maximum");
    expect_of(!p.default_value || (*p.default_value >= p.minimum && *p.default_value <= p.maximum),
              "its default is out of range");
  }
  return problems;
}
}  // namespace detail

}  // namespace kvtier
