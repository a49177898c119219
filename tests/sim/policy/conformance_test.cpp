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
  forgets_pins,
  invents_entries,
  keeps_an_entry,
  remembers_the_removed,
  loses_the_released,
  keeps_all_tokens,
  checks_nothing,
  throws_on_hits,
};

/// Last in, first out, by entry number; with one fault.
class FaultyEviction final : public EvictionPolicy {
 public:
  explicit FaultyEviction(Fault fault) : fault_(fault) {}

  void on_insert(const EntryView& entry, SimTime) override { unpinned_.insert(entry.id); }
  void on_hit(EntryId entry, SimTime) override {
    if (fault_ == Fault::throws_on_hits) {
      throw std::out_of_range("no such entry: " + std::to_string(entry.value));
    }
  }
  void on_release(const EntryView& entry, SimTime) override {
    if (fault_ == Fault::loses_the_released) {
      unpinned_.erase(entry.id);
      pinned_.erase(entry.id);
    }
  }
  void on_remove(EntryId entry, SimTime) override {
    if (fault_ != Fault::remembers_the_removed) {
      unpinned_.erase(entry);
    }
  }
  void on_pin(EntryId entry) override {
    if (fault_ != Fault::forgets_pins) {
      unpinned_.erase(entry);
      pinned_.insert(entry);
    }
  }
  void on_unpin(EntryId entry) override {
    if (pinned_.erase(entry) > 0 || fault_ != Fault::loses_the_released) {
      unpinned_.insert(entry);
    }
  }
  std::optional<Victim> select_victim(const EvictionContext&) override {
    if (fault_ == Fault::invents_entries) {
      return Victim{EntryId{999}, Tokens(0)};
    }
    const std::size_t kept = fault_ == Fault::keeps_an_entry ? 1 : 0;
    if (unpinned_.size() <= kept) {
      return std::nullopt;
    }
    return Victim{*unpinned_.rbegin(), Tokens(fault_ == Fault::keeps_all_tokens ? 1'000'000 : 0)};
  }
  void check_invariants(const TierView& tier) const override {
    if (fault_ == Fault::checks_nothing) {
      return;
    }
    std::size_t unpinned = 0;
    tier.for_each_resident([&](const EntryView& entry, bool pinned) {
      unpinned += pinned ? 0 : 1;
      KVTIER_ASSERT(unpinned_.contains(entry.id) != pinned, "every unpinned entry is known");
    });
    KVTIER_ASSERT(unpinned == unpinned_.size(), "no other entry is known");
  }

 private:
  Fault fault_;
  std::set<EntryId> unpinned_;
  std::set<EntryId> pinned_;
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

TEST(Conformance, APolicyThatDoesItsPartHasNoProblems) {
  EXPECT_EQ(eviction_problems(kind_with(Fault::none)), Lines{});
}

TEST(Conformance, SeesThatPinsAreForgotten) {
  const std::set<std::string> names = failing(Fault::forgets_pins);
  EXPECT_TRUE(names.contains("PinnedEntriesNeverLeave"));
  EXPECT_TRUE(names.contains("InvariantsHoldOnlyIfNoEntryIsMissing"));
}

TEST(Conformance, SeesAVictimThatIsNotThere) {
  const Lines problems = eviction_problems(kind_with(Fault::invents_entries));
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems.front(),
            "VictimsAreResidentAndUnpinnedUntilNoneIsLeft (defaults): entry 999 is selected but "
            "not here");
  EXPECT_TRUE(failing(Fault::invents_entries).contains("AnEmptyTierHasNoVictim"));
}

TEST(Conformance, SeesAnEntryThatNeverLeaves) {
  EXPECT_TRUE(failing(Fault::keeps_an_entry).contains("EveryEntryLeavesExactlyOnce"));
}

TEST(Conformance, SeesThatRemovedEntriesAreRemembered) {
  EXPECT_TRUE(
      failing(Fault::remembers_the_removed).contains("ARemovedEntryIsNotSelectedAndCanComeBack"));
}

TEST(Conformance, SeesThatWhatComesBackFromItsTurnIsLost) {
  EXPECT_TRUE(failing(Fault::loses_the_released).contains("EntriesInUseAreKeptAndNotSelected"));
}

TEST(Conformance, SeesAVictimThatKeepsMoreThanItHas) {
  EXPECT_TRUE(
      failing(Fault::keeps_all_tokens).contains("VictimsAreResidentAndUnpinnedUntilNoneIsLeft"));
}

TEST(Conformance, SeesACheckThatChecksNothing) {
  EXPECT_EQ(failing(Fault::checks_nothing),
            (std::set<std::string>{"InvariantsHoldOnlyIfNoEntryIsMissing",
                                   "InvariantsHoldOnlyIfNoEntryIsTooMuch",
                                   "InvariantsHoldOnlyIfPinsAgree"}));
}

// Entries are hit in three checks alone: the others still pass.
TEST(Conformance, NamesWhatAPolicyThrows) {
  EXPECT_EQ(failing(Fault::throws_on_hits),
            (std::set<std::string>{"VictimsAreResidentAndUnpinnedUntilNoneIsLeft",
                                   "EntriesInUseAreKeptAndNotSelected",
                                   "TheSameCallsGiveTheSameAnswers"}));
  const Lines problems = eviction_problems(kind_with(Fault::throws_on_hits));
  ASSERT_EQ(problems.size(), 3U);
  const std::string expected =
      "VictimsAreResidentAndUnpinnedUntilNoneIsLeft (defaults): the policy throws "
      "std::out_of_range: no such entry: ";
  EXPECT_EQ(problems.front().substr(0, expected.size()), expected);
}

TEST(Conformance, NamesWhatAConstructorThrows) {
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
            "VictimsAreResidentAndUnpinnedUntilNoneIsLeft (window_minimum_plus_5): the policy "
            "throws std::length_error: too wide");
}

TEST(Conformance, LetsItsCallerNameExceptionsAndThrowThemOn) {
  const auto kind = kind_with(Fault::throws_on_hits);
  const Lines named = eviction_problems(kind, [](const std::exception&) { return "mine"; });
  ASSERT_EQ(named.size(), 3U);
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

TEST(Conformance, ListsEverythingThatADeclarationLacks) {
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
