/// The checks of routing policies detect the faults of a router.

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/policy/conformance.hpp"
#include "sim/policy/sent_requests.hpp"

namespace kvtier {
namespace {

using Lines = std::vector<std::string>;

enum class Fault {
  none,
  remembers_the_lost,
  goes_by_a_clock,
  forgets_to_finish,
  divides_by_blocks,
  is_for_few,
  needs_change,
  needs_no_instance,
  cannot_decode,
};

/// Sends everything to the first candidate; with one fault.
class FaultyRouting final : public RoutingPolicy {
 public:
  explicit FaultyRouting(Fault fault) : fault_(fault) {}

  [[nodiscard]] RoutingNeeds needs() const override {
    RoutingNeeds needs{.blocks = true};
    needs.block_events = fault_ == Fault::needs_change && requests_ != nullptr;
    needs.instances_max = fault_ == Fault::needs_no_instance ? 0 : needs.instances_max;
    return needs;
  }
  void on_start(const RoutingFacts& facts) override {
    if ((fault_ == Fault::is_for_few && facts.instances > 100) ||
        (fault_ == Fault::cannot_decode && facts.phase == RoutingPhase::decode)) {
      throw std::length_error("not for this group");
    }
    requests_ = std::make_unique<SentRequests<int>>(facts.instances);
  }
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const InstanceId first = view.candidates.front();
    if (fault_ == Fault::remembers_the_lost) {
      known_ = known_.valid() ? known_ : first;
      return known_;
    }
    if (fault_ == Fault::goes_by_a_clock) {
      static int calls = 0;
      const auto at = static_cast<std::size_t>(++calls) / 101;
      return view.candidates[at % view.candidates.size()];
    }
    if (fault_ == Fault::divides_by_blocks && request.blocks.empty()) {
      throw std::domain_error("no blocks");
    }
    return first;
  }
  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime) override {
    requests_->add(request.id, instance, 0);
  }
  void on_finished(std::uint64_t request, InstanceId instance, SimTime) override {
    if (fault_ != Fault::forgets_to_finish) {
      requests_->remove(request, instance);
    }
  }
  void check_invariants(std::int64_t requests_in_flight) const override {
    requests_->check(requests_in_flight);
  }

 private:
  Fault fault_;
  std::unique_ptr<SentRequests<int>> requests_;
  InstanceId known_;
};

/// The names of the checks that fail.
std::set<std::string> failing(Fault fault) {
  const PolicyKind<RoutingPolicy> kind{
      .name = "faulty",
      .summary = "the first candidate",
      .source = "a test",
      .make = [fault](const PolicyParameters&) { return std::make_unique<FaultyRouting>(fault); }};
  std::set<std::string> names;
  for (const std::string& problem : routing_problems(kind)) {
    names.insert(problem.substr(0, problem.find(' ')));
  }
  return names;
}

using Names = std::set<std::string>;

TEST(RoutingConformance, ACorrectRouterHasNoProblems) { EXPECT_EQ(failing(Fault::none), Names{}); }

TEST(RoutingConformance, DetectsThatALostInstanceIsChosen) {
  const Names names = failing(Fault::remembers_the_lost);
  EXPECT_TRUE(names.contains("EveryChoiceIsACandidate"));
  EXPECT_TRUE(names.contains("TheOnlyCandidateIsChosen"));
}

TEST(RoutingConformance, DetectsThatChoicesDependOnMoreThanTheCalls) {
  EXPECT_TRUE(failing(Fault::goes_by_a_clock).contains("TheSameCallsGiveTheSameChoices"));
}

TEST(RoutingConformance, DetectsThatFinishedRequestsAreCounted) {
  const Names names = failing(Fault::forgets_to_finish);
  EXPECT_TRUE(names.contains("EveryChoiceIsACandidate"));
  EXPECT_TRUE(names.contains("PromptsMayBeEmptyOrShort"));
}

TEST(RoutingConformance, DetectsAPromptThatIsNotServed) {
  EXPECT_TRUE(failing(Fault::divides_by_blocks).contains("PromptsMayBeEmptyOrShort"));
}

TEST(RoutingConformance, DetectsAGroupThatIsNotServed) {
  EXPECT_EQ(failing(Fault::is_for_few), Names{"GroupsMayBeSmallOrLarge"});
  EXPECT_EQ(failing(Fault::cannot_decode), Names{"EveryPhaseIsServed"});
}

TEST(RoutingConformance, DetectsNeedsThatChangeOrAllowNothing) {
  EXPECT_EQ(failing(Fault::needs_change), Names{"NeedsFollowFromTheParameters"});
  EXPECT_TRUE(failing(Fault::needs_no_instance).contains("NeedsFollowFromTheParameters"));
}

}  // namespace
}  // namespace kvtier
