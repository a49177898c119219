#include "sim/policy/conformance.hpp"

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

using Lines = std::vector<std::string>;

enum class Fault {
  none,
  ignores_offers,
  invents_entries,
  keeps_an_entry,
  forgets_a_set_in_vain,
  remembers_the_removed,
  loses_the_released,
  keeps_all_tokens,
  adds_all_entries,
  checks_nothing,
  throws_on_hits,
};

/// Last in, first out, by entry number; with one fault.
class FaultyEviction final : public EvictionPolicy {
 public:
  explicit FaultyEviction(Fault fault) : fault_(fault) {}

  void on_insert(const EntryView& entry, SimTime) override { entries_.insert(entry.id); }
  void on_hit(EntryId entry, SimTime) override {
    if (fault_ == Fault::throws_on_hits) {
      throw std::out_of_range("no such entry: " + std::to_string(entry.value));
    }
  }
  void on_release(const EntryView& entry, SimTime) override {
    if (fault_ == Fault::loses_the_released) {
      entries_.erase(entry.id);
    }
  }
  void on_remove(EntryId entry, SimTime) override {
    if (fault_ != Fault::remembers_the_removed) {
      entries_.erase(entry);
    }
  }
  void choose(const RoomRequest&, Victims& victims) override {
    if (fault_ == Fault::invents_entries) {
      victims.add(EntryId{999});
    }
    std::vector<EntryId> chosen;
    const std::size_t kept = fault_ == Fault::keeps_an_entry ? 1 : 0;
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (!victims.wants_more() && fault_ != Fault::adds_all_entries) {
        break;
      }
      const bool stays = chosen.size() + kept >= entries_.size();
      if (!stays && (victims.offers(*entry) || fault_ == Fault::ignores_offers)) {
        const Tokens keep(fault_ == Fault::keeps_all_tokens ? 1'000'000 : 0);
        static_cast<void>(victims.add(*entry, keep));
        chosen.push_back(*entry);
      }
    }
    if (fault_ == Fault::forgets_a_set_in_vain && !victims.complete()) {
      for (const EntryId entry : chosen) {
        entries_.erase(entry);
      }
    }
  }
  void check_invariants(const TierView& tier) const override {
    if (fault_ == Fault::checks_nothing) {
      return;
    }
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool) {
      ++residents;
      KVTIER_ASSERT(entries_.contains(entry.id), "every entry is known");
    });
    KVTIER_ASSERT(residents == entries_.size(), "no other entry is known");
  }

 private:
  Fault fault_;
  std::set<EntryId> entries_;
};

PolicyKind<EvictionPolicy> kind_with(Fault fault) {
  return {
      .name = "faulty",
      .summary = "the last entry leaves first",
      .source = "a test",
      .make = [fault](const PolicyParameters&) { return std::make_unique<FaultyEviction>(fault); }};
}

/// The names of the checks that fail.
std::set<std::string> failing(Fault fault) {
  std::set<std::string> names;
  for (const std::string& problem : eviction_problems(kind_with(fault))) {
    names.insert(problem.substr(0, problem.find(' ')));
  }
  return names;
}

TEST(Conformance, ACorrectPolicyHasNoProblems) {
  EXPECT_EQ(eviction_problems(kind_with(Fault::none)), Lines{});
}

TEST(Conformance, DetectsVictimsThatAreNotOffered) {
  const std::set<std::string> names = failing(Fault::ignores_offers);
  EXPECT_TRUE(names.contains("SetsAreOfferedAndWorthTheRoom"));
  EXPECT_TRUE(names.contains("EntriesThatMoveNeverLeave"));
  EXPECT_TRUE(names.contains("EntriesInUseAreKeptAndNotChosen"));
}

TEST(Conformance, DetectsAVictimThatIsNotResident) {
  const Lines problems = eviction_problems(kind_with(Fault::invents_entries));
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems.front(),
            "SetsAreOfferedAndWorthTheRoom (defaults): entry 999 is chosen but not here");
  EXPECT_TRUE(failing(Fault::invents_entries).contains("AnEmptyTierHasNoVictim"));
}

TEST(Conformance, DetectsThatASetIsForgottenThoughItStays) {
  EXPECT_TRUE(failing(Fault::forgets_a_set_in_vain).contains("ASetLeavesWholeOrNotAtAll"));
}

TEST(Conformance, DetectsUnneededVictims) {
  const Lines problems = eviction_problems(kind_with(Fault::adds_all_entries));
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems.front().find("a policy adds no victim to a set that wants no more"),
            std::string::npos);
}

TEST(Conformance, DetectsAnEntryThatNeverLeaves) {
  EXPECT_TRUE(failing(Fault::keeps_an_entry).contains("EveryEntryLeavesExactlyOnce"));
}

TEST(Conformance, DetectsThatRemovedEntriesAreRemembered) {
  EXPECT_TRUE(
      failing(Fault::remembers_the_removed).contains("InvariantsHoldOnlyIfNoEntryIsTooMuch"));
}

TEST(Conformance, DetectsThatAnEntryIsLostInItsTurn) {
  EXPECT_TRUE(failing(Fault::loses_the_released).contains("EntriesInUseAreKeptAndNotChosen"));
}

TEST(Conformance, DetectsAVictimThatKeepsMoreThanItHas) {
  EXPECT_TRUE(failing(Fault::keeps_all_tokens).contains("SetsAreOfferedAndWorthTheRoom"));
}

TEST(Conformance, DetectsUndeclaredParts) {
  PolicyKind<EvictionPolicy> kind = kind_with(Fault::keeps_all_tokens);
  EXPECT_EQ(eviction_problems(kind).front(),
            "SetsAreOfferedAndWorthTheRoom (defaults): entry 19 keeps a part, but parts_of_entries "
            "is not declared");
  kind.parts_of_entries = true;
  EXPECT_NE(eviction_problems(kind).front().find("1000000 of the "), std::string::npos);
}

TEST(Conformance, DetectsACheckWithoutChecks) {
  EXPECT_EQ(failing(Fault::checks_nothing),
            (std::set<std::string>{"InvariantsHoldOnlyIfNoEntryIsMissing",
                                   "InvariantsHoldOnlyIfNoEntryIsTooMuch"}));
}

// Entries are hit in four checks alone: the others still pass.
TEST(Conformance, NamesExceptionsOfAPolicy) {
  EXPECT_EQ(
      failing(Fault::throws_on_hits),
      (std::set<std::string>{"SetsAreOfferedAndWorthTheRoom", "EntriesInUseAreKeptAndNotChosen",
                             "BothPartsOfASplitEntryLeave", "TheSameCallsGiveTheSameAnswers"}));
  const Lines problems = eviction_problems(kind_with(Fault::throws_on_hits));
  ASSERT_EQ(problems.size(), 4U);
  const std::string expected =
      "SetsAreOfferedAndWorthTheRoom (defaults): the policy throws "
      "std::out_of_range: no such entry: ";
  EXPECT_EQ(problems.front().substr(0, expected.size()), expected);
}

TEST(Conformance, NamesExceptionsOfAConstructor) {
  PolicyKind<EvictionPolicy> kind = kind_with(Fault::none);
  PolicyParameter& window = kind.parameters.emplace_back();
  window.name = "window";
  window.unit = "entries";
  window.documentation = "how many";
  window.default_value = 2;
  window.minimum = 1;
  window.maximum = 3;
  kind.make = [](const PolicyParameters& parameters) {
    const auto given = parameters.find("window");
    if (given != parameters.end() && given->second >= 3) {
      throw std::length_error("too wide");
    }
    return std::make_unique<FaultyEviction>(Fault::none);
  };
  EXPECT_EQ(
      declaration_problems(kind),
      Lines{"no policy is made of the ends of window: it throws std::length_error: too wide"});
  const Lines problems = eviction_problems(kind);
  ASSERT_EQ(problems.size(), eviction_checks().size());
  EXPECT_EQ(problems.front(),
            "SetsAreOfferedAndWorthTheRoom (window_minimum_plus_5): the policy "
            "throws std::length_error: too wide");
}

TEST(Conformance, LetsItsCallerNameExceptionsAndThrowThemOn) {
  const auto kind = kind_with(Fault::throws_on_hits);
  const Lines named = eviction_problems(kind, [](const std::exception&) { return "mine"; });
  ASSERT_EQ(named.size(), 4U);
  EXPECT_EQ(named.back(), "TheSameCallsGiveTheSameAnswers (defaults): the policy throws mine");
  EXPECT_THROW(static_cast<void>(
                   eviction_problems(kind, [](const std::exception&) -> std::string { throw; })),
               std::out_of_range);
}

TEST(Conformance, LooksAtEachParameterAtItsMinimumAndALittleAbove) {
  const std::vector<ConformanceCase> cases =
      conformance_cases({{.name = "window", .minimum = 1, .maximum = 3}});
  ASSERT_EQ(cases.size(), 3U);
  EXPECT_EQ(cases[0].parameters, PolicyParameters{});
  EXPECT_EQ(cases[1].parameters, (PolicyParameters{{"window", 1}}));
  EXPECT_EQ(cases[2].parameters, (PolicyParameters{{"window", 3}}));
}

TEST(Conformance, ListsAllThatADeclarationLacks) {
  PolicyKind<EvictionPolicy> kind;
  kind.name = "My-Policy";
  kind.parameters = {{.name = "a", .documentation = "x", .unit = "y", .minimum = 2, .maximum = 1},
                     {.name = "a", .minimum = 0, .maximum = 1, .default_value = 2}};
  const std::string word = "is no word of small letters, digits and underscores";
  EXPECT_EQ(declaration_problems(kind),
            (Lines{"name: \"My-Policy\" " + word, "summary: is empty", "source: is empty",
                   "parameter \"a\": its minimum is above its maximum",
                   "parameter \"a\": is declared twice", "parameter \"a\": has no documentation",
                   "parameter \"a\": has no unit", "parameter \"a\": its default is out of range",
                   "nothing makes the policy"}));
}

}  // namespace
}  // namespace kvtier
