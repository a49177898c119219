/// Hits and time: a turn whose history is found is served sooner, one whose history is not found is
/// served as if nothing were stored, and totals follow.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/study/runs/compare.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

const std::vector<std::string> kModest{"/workload/measure=all", "/workload/sessions=600",
                                       "/workload/warmup_turns=0", "/serving/slots=24"};

struct Observed {
  Json result;
  std::map<std::pair<std::int64_t, std::int64_t>, RequestRecord> requests;
};

Observed run(const std::string& system, std::vector<std::string> settings = kModest) {
  settings.insert(settings.begin(), "/system=" + system);
  RequestList list;
  RunOptions options;
  options.observer = &list;
  Observed run{
      simulate(resolved("examples/planner-70.json", settings), builtin_policies(), options), {}};
  expect_result_invariants(run.result);
  for (const RequestRecord& r : list.records) {
    run.requests[{r.session, r.turn}] = r;
  }
  return run;
}

SimDuration service(const RequestRecord& r) { return r.first_token - r.admitted; }

TEST(Hits, ServeATurnSoonerAndMissesServeItAsIfNothingWereStored) {
  // Little storage, so that there are many of both.
  std::vector<std::string> settings = kModest;
  settings.emplace_back("/hardware/dram/capacity=32GiB");
  settings.emplace_back("/hardware/ssd/capacity=64GiB");
  const Observed without = run("recompute", settings);
  for (const char* system : {"attentionstore", "attentionstore_lru", "attentionstore_fifo"}) {
    const Observed with = run(system, settings);
    ASSERT_EQ(with.requests.size(), without.requests.size());
    std::int64_t hits = 0;
    std::int64_t misses = 0;
    for (const auto& [id, r] : with.requests) {
      const RequestRecord& recomputed = without.requests.at(id);
      ASSERT_EQ(r.history, recomputed.history);
      ASSERT_EQ(r.input, recomputed.input);
      ASSERT_EQ(r.output, recomputed.output);
      if (r.found.reused.value == 0) {
        ++misses;
        ASSERT_EQ(service(r).ns, service(recomputed).ns) << "a miss costs what recomputing costs";
        ASSERT_EQ(r.exposed_load.ns, 0);
      } else if (r.found.medium == Medium::hbm ||
                 (r.found.medium == Medium::dram && !r.found.late && r.history.value >= 256)) {
        // The link moves a token of KV in a third of the time that computing it takes. Short
        // prompts cost one reading of the weights either way.
        ++hits;
        ASSERT_LE(service(r).ns, service(recomputed).ns);
        if (r.history.value >= 256) {
          ASSERT_LT(service(r).ns, service(recomputed).ns) << "a hit that changes no latency";
        }
      }
    }
    EXPECT_GT(hits, 300) << system;
    EXPECT_GT(misses, 300) << system;
  }
}

TEST(Hits, SaveGpuTimeAndShortenTheTimeToTheFirstToken) {
  // If the GPUs decode all the time, caching saves them nothing.
  std::vector<std::string> settings = kModest;
  settings.emplace_back("/workload/arrival_rate=0.3/s");
  const Observed without = run("recompute", settings);
  const Observed with = run("attentionstore", settings);
  EXPECT_EQ(number_at(without.result, "/metrics/hit_rate/all_turns/total"), 0);
  EXPECT_GT(number_at(with.result, "/metrics/hit_rate/all_turns/total"), 0.6);
  EXPECT_LT(number_at(with.result, "/metrics/gpu_seconds/prefill"),
            0.7 * number_at(without.result, "/metrics/gpu_seconds/prefill"));
  for (const char* pointer :
       {"/metrics/ttft_seconds_without_queueing/mean", "/metrics/ttft_seconds_without_queueing/p90",
        "/metrics/ttft_seconds/mean", "/metrics/busy_cost_dollars/gpu"}) {
    EXPECT_LT(number_at(with.result, pointer), number_at(without.result, pointer)) << pointer;
  }
  EXPECT_GT(number_at(with.result, "/metrics/prompt_tokens_served_per_prefill_second"),
            1.3 * number_at(without.result, "/metrics/prompt_tokens_served_per_prefill_second"));
}

// Llama-2-13B's KV takes longer to load than a short prompt computes. The buffer that each turn
// sizes hides almost what room for all 40 layers hides, and 15 layers do not.
TEST(ReadBuffer, HidesAlmostAllLoadingAtTheSizeThatEachTurnNeeds) {
  const auto waits = [](const std::string& buffers) {
    const RunConfig config = resolved("papers/attentionstore/llama2-13b.json",
                                      {"/workload/sessions=1500", "/workload/warmup_turns=500",
                                       "/system/load/buffers=" + buffers});
    return number_at(simulate(config, builtin_policies()), "/metrics/gpu_seconds/exposed_load");
  };
  const double whole = waits("40");
  EXPECT_LT(waits("auto"), 1.05 * whole);
  EXPECT_GT(waits("15"), 1.5 * whole);
  EXPECT_GT(waits("0"), 2 * whole);
}

/// Prefill time falls as the share of reused tokens rises, whatever brings the share about.
TEST(Hits, TradePrefillTimeForReusedTokens) {
  double last_reused = -1;
  double last_prefill = 0;
  for (const char* capacity : {"8GiB", "32GiB", "128GiB", "512GiB"}) {
    std::vector<std::string> settings = kModest;
    settings.emplace_back("/system/tiers/ssd=none");
    settings.emplace_back(std::string("/hardware/dram/capacity=") + capacity);
    const Observed r = run("attentionstore_lru", settings);
    const double reused = number_at(r.result, "/metrics/hit_rate/tokens/total");
    const double prefill = number_at(r.result, "/metrics/gpu_seconds/prefill");
    EXPECT_GT(reused, last_reused) << capacity;
    if (last_reused >= 0) {
      EXPECT_LT(prefill, last_prefill) << capacity;
    }
    last_reused = reused;
    last_prefill = prefill;
  }
}

/// A window of no requests is LRU, in time as in untimed replays.
TEST(LookAhead, IsOnlineWithAWindowOfZero) {
  std::vector<std::string> settings = kModest;
  settings.emplace_back("/workload/arrival_rate=1/s");
  settings.emplace_back("/hardware/dram/capacity=32GiB");
  settings.emplace_back("/hardware/ssd/capacity=200GiB");
  const Observed lru = run("attentionstore_lru", settings);
  const Observed aware = run("attentionstore", settings);
  EXPECT_NE(outcome(aware.result), outcome(lru.result)) << "requests wait, so looking ahead shows";
  settings.emplace_back("/system/tiers/dram/eviction/window=0");
  settings.emplace_back("/system/tiers/ssd/eviction/window=0");
  settings.emplace_back("/system/prefetch/window=0");
  EXPECT_EQ(outcome(run("attentionstore", settings).result), outcome(lru.result));
}

TEST(CopyingAhead, CostsNoHitsHoweverSmallHostMemoryIs) {
  const auto hit_tokens = [](const std::string& host_memory, const std::string& below) {
    const Json result =
        simulate(resolved("papers/pensieve/gpt3-13b.json",
                          {"/workload/sessions=150", "/workload/warmup_turns=100",
                           "/workload/request_rate=3/s", "/hardware/dram/capacity=" + host_memory,
                           "/system/tiers/dram/blocks/ahead=" + below}),
                 builtin_policies());
    return number_at(result, "/metrics/hit_rate/tokens/total");
  };
  double less = 0;
  for (const char* host_memory : {"64MiB", "1GiB", "4GiB", "16GiB", "200GiB"}) {
    const double ahead = hit_tokens(host_memory, "0.5");
    EXPECT_GE(ahead, less - 0.01) << host_memory << ": more memory finds no less";
    EXPECT_NEAR(ahead, hit_tokens(host_memory, "0"), 0.02) << host_memory;
    less = ahead;
  }
  EXPECT_GT(less, 0.98) << "in the end all whole blocks are found";
}

/// A drive that is still writing long after the last turn: no tier holds more than it can, and no
/// link is busy for longer than was measured.
TEST(Results, StayPhysicalWhenTransfersOutlastTheLastTurn) {
  (void)run("attentionstore_lru",
            {"/workload/sessions=100", "/workload/warmup_turns=0", "/workload/arrival_rate=2/s",
             "/system/tiers/ssd/write=on_create", "/hardware/ssd/bandwidth/write=20MB/s"});
}

// ---- compare ----

Comparison compared(const std::vector<std::string>& systems, std::int64_t replications,
                    std::vector<std::string> settings = kModest) {
  return compare_systems(request("examples/planner-70.json", settings), systems, replications,
                         false, presets(), builtin_policies(), {}, {});
}

TEST(Compare, GivesTheSameBytesTwice) {
  const std::vector<std::string> systems{"recompute", "attentionstore_lru", "attentionstore"};
  const Comparison first = compared(systems, 2);
  const Comparison second = compared(systems, 2);
  EXPECT_EQ(to_json(first).dump(), to_json(second).dump());
  EXPECT_EQ(to_table(first), to_table(second));
}

TEST(Compare, GivesReplicationsSeedsOfTheirOwnAndSystemsTheSameDraws) {
  const std::vector<std::string> systems{"recompute", "attentionstore"};
  const Comparison comparison = compared(systems, 3);
  ASSERT_EQ(comparison.columns.size(), 2U);
  for (std::size_t i = 0; i < systems.size(); ++i) {
    const auto& column = comparison.columns[i];
    EXPECT_EQ(column.system, systems[i]);
    ASSERT_EQ(column.results.size(), 3U);
    for (std::size_t r = 0; r < 3; ++r) {
      // Replication r of a system equals a single run of that system and seed.
      std::vector<std::string> settings = kModest;
      settings.insert(settings.begin(), "/system=" + systems[i]);
      settings.push_back("/seed=" + std::to_string(1 + r));
      const Json alone =
          simulate(resolved("examples/planner-70.json", settings), builtin_policies());
      EXPECT_TRUE(column.results[r].dump() == alone.dump()) << systems[i] << " " << r;
      // The workload is that of the seed, whatever the system.
      EXPECT_EQ(column.results[r]["workload"], comparison.columns[0].results[r]["workload"]);
    }
    EXPECT_NE(column.results[0]["workload"], column.results[1]["workload"]);
    EXPECT_NE(column.results[1]["workload"], column.results[2]["workload"]);
  }
}

TEST(Compare, DoesNotDependOnTheOtherSystems) {
  const Comparison both = compared({"recompute", "attentionstore"}, 1);
  const Comparison alone = compared({"attentionstore"}, 1);
  EXPECT_EQ(both.columns[1].results[0].dump(), alone.columns[0].results[0].dump());
}

TEST(Compare, SummarizesMeanAndSpread) {
  const Comparison comparison = compared({"attentionstore"}, 3);
  const Json json = to_json(comparison);
  EXPECT_EQ(json["format"], "kvtier.compare/1");
  const Json& column = json["systems"]["attentionstore"];
  const std::string pointer = "/metrics/hit_rate/all_turns/total";
  double sum = 0;
  double least = 1;
  double most = 0;
  for (const Json& result : comparison.columns[0].results) {
    const double value = number_at(result, pointer);
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  EXPECT_DOUBLE_EQ(column["summary"][pointer]["mean"].get<double>(), sum / 3);
  EXPECT_DOUBLE_EQ(column["summary"][pointer]["spread"].get<double>(), most - least);
  EXPECT_GT(most, least);
  EXPECT_EQ(column["results"].size(), 3U);
  EXPECT_EQ(column["verdict"], "load is within capacity");
}

/// A run of which only the means of TTFT and TPOT are known.
Json run_of(double ttft, double tpot) {
  return Json{{"metrics", {{"ttft_seconds", {{"mean", ttft}}}, {"tpot_seconds", {{"mean", tpot}}}}},
              {"load", {{"verdict", "load is within capacity"}}}};
}

// TTFT differs by 2, 3 and 4 where the seeds differ by 40: mean 3, standard error 1 / sqrt(3),
// times 4.303 (2 degrees) 2.484. Unpaired, nothing could be said. TPOT differs by 1, 0 and -1, mean
// 0.
TEST(Compare, PairsRunsOfTheSameSeed) {
  Comparison comparison;
  comparison.columns = {{"a", {run_of(10, 1), run_of(30, 2), run_of(50, 3)}},
                        {"b", {run_of(12, 2), run_of(33, 2), run_of(54, 2)}}};
  const Json json = to_json(comparison);
  EXPECT_FALSE(json["systems"]["a"].contains("differences"));
  EXPECT_EQ(json["systems"]["b"]["difference_from"], "a");
  const Json& differences = json["systems"]["b"]["differences"];
  EXPECT_EQ(differences.size(), 2U);
  const Json& ttft = differences["/metrics/ttft_seconds/mean"];
  EXPECT_DOUBLE_EQ(ttft["mean"].get<double>(), 3);
  EXPECT_NEAR(ttft["low"].get<double>(), 3 - 2.484, 0.001);
  EXPECT_NEAR(ttft["high"].get<double>(), 3 + 2.484, 0.001);
  EXPECT_EQ(ttft["significant"], true);
  EXPECT_EQ(differences["/metrics/tpot_seconds/mean"]["significant"], false);
}

TEST(Compare, ShowsDifferencesOfSeveralSystemsAndSeedsOnly) {
  const auto shows = [](const Comparison& comparison) {
    return to_table(comparison).find("\ndifference from recompute, ") != std::string::npos;
  };
  EXPECT_FALSE(shows(compared({"recompute", "attentionstore"}, 1)));
  EXPECT_FALSE(shows(compared({"recompute"}, 2)));
  const Comparison both = compared({"recompute", "attentionstore"}, 2);
  EXPECT_TRUE(shows(both));
  // Every resumed turn is a hit with both seeds, and without stores there are none.
  const std::string table = to_table(both);
  EXPECT_NE(table.find("+100.0 (+100.0 to +100.0) *\n"), std::string::npos) << table;
}

TEST(Compare, NamesBottlenecksAndSystemsWhoseGpusWaitForLoads) {
  std::vector<std::string> settings = kModest;
  settings.emplace_back("/hardware/dram/capacity=16GiB");
  settings.emplace_back("/serving/slots=4");
  const std::string table = to_table(compared({"recompute", "attentionstore_fifo"}, 2, settings));
  const std::size_t row = table.find("\nbottleneck ");
  ASSERT_NE(row, std::string::npos) << table;
  const std::string line = table.substr(row + 1, table.find('\n', row + 1) - row - 1);
  EXPECT_NE(line.find("batch slots "), std::string::npos) << line;
  EXPECT_EQ(table.find("recompute: GPUs wait"), std::string::npos) << table;
  EXPECT_NE(table.find("\nattentionstore_fifo: GPUs wait for loads "), std::string::npos) << table;
  EXPECT_NE(table.find(" % of the time (host link "), std::string::npos) << table;
}

TEST(Compare, ReportsProgressBeforeTheFirstRunAndAfterEach) {
  std::vector<std::pair<std::int64_t, std::int64_t>> calls;
  (void)compare_systems(
      request("examples/planner-70.json", kModest), {"recompute", "attentionstore"}, 2, false,
      presets(), builtin_policies(), {},
      [&](std::int64_t done, std::int64_t all) { calls.emplace_back(done, all); });
  EXPECT_EQ(calls, (std::vector<std::pair<std::int64_t, std::int64_t>>{
                       {0, 4}, {1, 4}, {2, 4}, {3, 4}, {4, 4}}));
}

template <class Action>
std::vector<std::string> problems_of(Action action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(Compare, FindsBadInputBeforeTheFirstRun) {
  int runs = 0;
  const auto problems = [&](const std::vector<std::string>& systems,
                            const std::vector<std::string>& settings) {
    return problems_of([&] {
      (void)compare_systems(request("examples/planner-70.json", settings), systems, 1, false,
                            presets(), builtin_policies(), {},
                            [&](std::int64_t, std::int64_t) { ++runs; });
    });
  };
  EXPECT_EQ(
      problems({"recompute", "", "recompute"}, {"/system=overflow"}),
      (std::vector<std::string>{"--set: /system: --systems says which systems are compared",
                                "--systems: expected names separated by commas, got an empty one",
                                "--systems: recompute is given twice"}));
  const auto unknown = problems({"recompute", "atentionstore"}, {});
  ASSERT_EQ(unknown.size(), 1U);
  EXPECT_EQ(unknown[0].rfind("--systems: /system: expected one of ", 0), 0U) << unknown[0];
  EXPECT_NE(unknown[0].find("(did you mean \"attentionstore\"?)"), std::string::npos) << unknown[0];
  // A problem of every column is reported once.
  const auto same = problems({"recompute", "attentionstore"}, {"/serving/slots=0"});
  ASSERT_EQ(same.size(), 1U);
  EXPECT_EQ(same[0], "--set: /serving/slots: expected a whole number >= 1 and <= 4096, got 0");
  EXPECT_EQ(runs, 0);
}

TEST(CompareTable, HasAColumnASystemAndSaysWhatTheVerdictMeans) {
  std::vector<std::string> settings = kModest;
  const std::string within = to_table(compared({"recompute", "attentionstore"}, 1, settings));
  EXPECT_EQ(within.rfind("llama2-13b on 2 x A100-80G SXM, 128GiB DRAM, 10TiB SSD\n"
                         "generator sharegpt: 600 sessions, ",
                         0),
            0U)
      << within;
  EXPECT_EQ(within.find("queue grows"), std::string::npos);
  EXPECT_EQ(within.find("mean of"), std::string::npos);
  // Every line of the table is as long as the header.
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < within.size();) {
    const std::size_t end = within.find('\n', at);
    lines.push_back(within.substr(at, end - at));
    at = end + 1;
  }
  ASSERT_GT(lines.size(), 10U);
  EXPECT_EQ(lines[2], "");
  EXPECT_NE(lines[3].find("recompute"), std::string::npos);
  EXPECT_LT(lines[3].find("recompute"), lines[3].find("attentionstore"));
  for (std::size_t i = 4; i < lines.size() && !lines[i].empty(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[3].size()) << lines[i];
  }

  settings.emplace_back("/workload/arrival_rate=5/s");
  const std::string beyond = to_table(compared({"recompute"}, 2, settings));
  EXPECT_NE(beyond.find("mean of 2 seeds (largest - smallest)\n"), std::string::npos) << beyond;
  EXPECT_NE(beyond.find("load exceeds capacity"), std::string::npos);
  EXPECT_NE(beyond.find("every number of this column depends on the length of the run"),
            std::string::npos);
}

TEST(CompareTable, SaysWhatCompressionLeavesOut) {
  const auto table = [](const std::vector<std::string>& more) {
    std::vector<std::string> settings = kModest;
    settings.insert(settings.end(), more.begin(), more.end());
    return to_table(compared({"attentionstore", "attentionstore_lru"}, 1, settings));
  };
  EXPECT_EQ(table({}).find("accuracy"), std::string::npos);
  // 0.775 of the scores are small on average, and half of that goes: 61.25 %.
  const std::string compressed = table({R"(/system/compression={"strength": 0.5})"});
  EXPECT_NE(compressed.find("\n\nattentionstore keeps 61.3 % of the KV that it stores; what that "
                            "costs in accuracy is not simulated.\n"
                            "attentionstore_lru keeps 61.3 % of the KV that it stores; what that "
                            "costs in accuracy is not simulated.\n"),
            std::string::npos)
      << compressed;
}

TEST(CompareTable, ShowsADashForAMissingValue) {
  // One output token a turn: there is no time per output token.
  std::vector<std::string> settings = kModest;
  settings.emplace_back("/workload/sharegpt/assistant_tokens_median=0.001");
  settings.emplace_back("/workload/sharegpt/assistant_tokens_sigma=0");
  settings.emplace_back("/workload/sharegpt/session_scale_sigma=0");
  const Comparison comparison = compared({"attentionstore"}, 1, settings);
  EXPECT_TRUE(comparison.columns[0].results[0]["metrics"]["tpot_seconds"].is_null());
  const std::string table = to_table(comparison);
  const std::size_t row = table.find("TPOT mean ms");
  ASSERT_NE(row, std::string::npos);
  const std::size_t end = table.find('\n', row);
  EXPECT_EQ(table[end - 1], '-') << table.substr(row, end - row);
}

}  // namespace
}  // namespace kvtier::test
