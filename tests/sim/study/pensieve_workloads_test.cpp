/// The synthetic workloads of configs/papers/pensieve are fitted to what the paper (arXiv
/// 2312.05516, section 6.1) says of its filtered data sets, and to nothing else.

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "sim/study/papers/paper.hpp"
#include "tests/sim/study/support.hpp"
#include "traces/statistics.hpp"

namespace kvtier::test {
namespace {

struct Published {
  const char* name;
  double turns;
  double user_tokens;
  double assistant_tokens;
};

TEST(PensieveWorkloads, HaveThePublishedMeans) {
  for (const Published& published :
       {Published{"sharegpt", 7.58, 31.26, 180.44}, Published{"lmsys", 7.73, 22.49, 100.67}}) {
    SCOPED_TRACE(published.name);
    RunConfig config =
        resolved(std::string("papers/pensieve/workloads/") + published.name + ".json");
    // As many as the smaller data set has.
    config.workload.sessions = 15553;
    const auto source = make_source(config.workload, 1, {});
    WorkloadStatistics statistics;
    SessionSpec session;
    while (source->next(session)) {
      statistics.add(session);
      for (std::size_t i = 1; i < session.turns.size(); ++i) {
        // max(5 s, 0.1 s x tokens of the response before).
        ASSERT_EQ(session.turns[i].think.ns,
                  std::max<std::int64_t>(50, session.turns[i - 1].assistant.value) * 100000000);
      }
    }
    EXPECT_NEAR(statistics.turns_per_session().mean() / published.turns, 1, 0.02);
    EXPECT_NEAR(statistics.user_tokens().mean() / published.user_tokens, 1, 0.02);
    EXPECT_NEAR(statistics.assistant_tokens().mean() / published.assistant_tokens, 1, 0.02);
    EXPECT_GE(statistics.turns_per_session().minimum(), 5);
    EXPECT_LE(statistics.session_tokens().maximum(), 2048);
    // One request a second at the mean turns.
    EXPECT_NEAR(static_cast<double>(statistics.turns()) / statistics.last_arrival().seconds(), 1,
                0.03);
  }
}

TEST(PensieveWorkloads, AreThoseOfTheReproduction) {
  const auto conversations = [](const std::string& config) {
    return write_value(resolved("papers/pensieve/" + config + ".json").workload.sharegpt);
  };
  for (const char* model : {"gpt3-6.7b", "gpt3-13b"}) {
    EXPECT_EQ(conversations(model), conversations("workloads/sharegpt"));
  }
  int runs = 0;
  for (const auto& [name, run] : load_paper(presets(), "pensieve", {"8"}).runs.by_name) {
    for (const Override& change : run.set.list) {
      if (change.pointer == "/workload/sharegpt") {
        ++runs;
        const bool lmsys = name.find("LMSYS") != std::string::npos;
        ShareGptParameters parameters;
        Problems problems;
        read_value(parameters, change.value, "", problems);
        EXPECT_EQ(write_value(parameters),
                  conversations(lmsys ? "workloads/lmsys" : "workloads/sharegpt"))
            << name;
      }
    }
  }
  EXPECT_EQ(runs, 12);
}

}  // namespace
}  // namespace kvtier::test
