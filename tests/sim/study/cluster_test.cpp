/// Clusters of the systems that the project ships.

#include "sim/serving/cluster.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/profile/profile_timing.hpp"
#include "sim/core/rng.hpp"
#include "sim/policy/routing.hpp"
#include "sim/policy/routing_random.hpp"
#include "sim/replay/miss_ratio_curve.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/result.hpp"
#include "sim/study/runs/bound.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

RunConfig small(const std::string& system, std::vector<std::string> more = {}) {
  std::vector<std::string> settings{
      "/system=" + system,      "/hardware/dram/capacity=16GiB", "/hardware/ssd/capacity=60GiB",
      "/workload/sessions=150", "/workload/arrival_rate=2/s",    "/workload/warmup_turns=0",
      "/serving/slots=24"};
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("examples/planner-70.json", settings);
}

/// All fields of a record, except whether it is measured.
std::string text(const RequestRecord& r) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", r.session,
                     r.turn, r.arrived.ns, r.history.value, r.input.value, r.output.value,
                     r.truncated.value, r.shared.value, r.shared_prompt, r.admitted.ns,
                     r.first_token.ns, r.finished.ns, r.found.reused.value,
                     static_cast<int>(r.found.medium), r.found.late,
                     static_cast<int>(r.found.cause), r.prefill_compute.ns, r.decode_share.ns,
                     r.exposed_load.ns, r.late_wait.ns);
}

const std::vector<std::string> kSystems{
    "recompute", "attentionstore", "pensieve", "vllm_0_2", "vllm", "sglang", "vllm_cpu_offload"};

class ClusterOf : public testing::TestWithParam<std::string> {};

TEST_P(ClusterOf, OneInstanceIsARunWithoutACluster) {
  const RunConfig config = small(GetParam());
  RequestList alone;
  RequestList in_cluster;
  RunOptions options;
  options.observer = &alone;
  const Json single = simulate(config, builtin_policies(), options);
  options.observer = &in_cluster;
  Json cluster = simulate_cluster(config, builtin_policies(), options);
  cluster["metrics"].erase("cluster");
  cluster["metrics"].erase("instances");
  EXPECT_EQ(cluster.dump(), single.dump());
  ASSERT_EQ(in_cluster.records.size(), alone.records.size());
  for (std::size_t i = 0; i < alone.records.size(); ++i) {
    EXPECT_EQ(text(in_cluster.records[i]), text(alone.records[i]));
  }
}

/// The sessions of a workload that the router `session` sends to one instance.
class ShareOf final : public SessionSource {
 public:
  ShareOf(const RunConfig& config, const PolicyRegistry& registry, std::uint32_t instance)
      : all_(make_source(config.workload, static_cast<std::uint64_t>(config.seed), {})),
        policy_(known_policy(registry.routing, "session").make({})),
        random_(RandomStream(1, "unused")),
        instance_(instance) {
    policy_->on_start({.instances = config.cluster.instances, .block_tokens = Tokens(16)});
    for (std::uint32_t i = 0; i < config.cluster.instances; ++i) {
      instances_.push_back(InstanceId{i});
      policy_->on_joined(InstanceId{i}, SimTime());
    }
    loads_.resize(instances_.size());
  }
  bool next(SessionSpec& session) override {
    while (all_->next(session)) {
      const RoutedRequest request{.id = id_++, .session = static_cast<std::uint64_t>(session.id)};
      if (policy_->choose(request,
                          {.candidates = instances_, .loads = loads_, .random = &random_}) ==
          InstanceId{instance_}) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] Streams* streams() override { return all_->streams(); }

 private:
  std::unique_ptr<SessionSource> all_;
  std::unique_ptr<RoutingPolicy> policy_;
  StreamSource random_;
  std::uint32_t instance_;
  std::uint64_t id_ = 0;
  std::vector<InstanceId> instances_;
  std::vector<InstanceLoad> loads_;
};

// Each instance behind the router `session` is a run by itself of the sessions that it gets.
TEST_P(ClusterOf, BehindSessionIsARunForEachInstance) {
  const RunConfig config = small(GetParam(), {"/cluster/instances=3"});
  const PolicyRegistry registry = builtin_policies();
  RequestList together;
  RunOptions options;
  options.observer = &together;
  const Json result = simulate(config, registry, options);
  const auto timing = make_timing(config.model, config.hardware, config.system.positions,
                                  config.serving.slots, config.system.engine);
  RequestList apart;
  RunConfig alone = config;
  alone.cluster = {};
  for (std::uint32_t i = 0; i < 3; ++i) {
    SimulatedBackend backend(alone.hardware, alone.model.layers, *timing,
                             DecodeStepping::closed_form);
    ShareOf share(config, registry, i);
    Instance instance({.config = &alone,
                       .registry = &registry,
                       .backend = &backend,
                       .sessions = &share,
                       .observer = &apart});
    const std::size_t before = apart.records.size();
    instance.run();
    EXPECT_EQ(number_at(result, fmt::format("/metrics/instances/{}/requests", i)),
              static_cast<double>(apart.records.size() - before));
    EXPECT_GT(apart.records.size(), before + 100);
  }
  const auto sort = [](RequestList& list) {
    std::sort(list.records.begin(), list.records.end(), [](const auto& a, const auto& b) {
      return std::tie(a.session, a.turn) < std::tie(b.session, b.turn);
    });
  };
  sort(together);
  sort(apart);
  ASSERT_EQ(together.records.size(), apart.records.size());
  for (std::size_t i = 0; i < apart.records.size(); ++i) {
    ASSERT_EQ(text(together.records[i]), text(apart.records[i]));
  }
}

TEST_P(ClusterOf, SteppingMovesNoResult) {
  const RunConfig config =
      small(GetParam(), {"/cluster/instances=3", "/cluster/router=round_robin"});
  RunOptions stepped;
  stepped.stepping = DecodeStepping::per_iteration;
  const std::string result = simulate(config, builtin_policies()).dump();
  EXPECT_EQ(result, simulate(config, builtin_policies()).dump());
  EXPECT_TRUE(result == simulate(config, builtin_policies(), stepped).dump());
}

INSTANTIATE_TEST_SUITE_P(Systems, ClusterOf, testing::ValuesIn(kSystems),
                         [](const auto& system) { return system.param; });

// Without stored KV every request computes its whole prompt, wherever it runs.
TEST(Clusters, WithoutStoredKvTheLoadIsTheSameBehindAnyRouter) {
  const auto run = [](const char* router) {
    return simulate(
        small("recompute", {"/cluster/instances=4", std::string("/cluster/router=") + router}),
        builtin_policies());
  };
  const Json random = run("random");
  for (const char* router : {"session", "round_robin", "least_requests"}) {
    const Json other = run(router);
    EXPECT_EQ(number_at(random, "/metrics/gpu_seconds/prefill"),
              number_at(other, "/metrics/gpu_seconds/prefill"))
        << router;
    EXPECT_EQ(random["metrics"]["prompt_tokens"], other["metrics"]["prompt_tokens"]);
  }
  EXPECT_LT(number_at(random, "/metrics/cluster/imbalance/requests"), 1.15);
}

TEST(Clusters, ServeEveryTurnOnce) {
  const Json one = simulate(small("attentionstore"), builtin_policies());
  for (const int count : {2, 5}) {
    const Json several = simulate(
        small("attentionstore", {fmt::format("/cluster/instances={}", count)}), builtin_policies());
    for (const char* pointer :
         {"/workload/sessions", "/workload/turns", "/workload/user_tokens_total",
          "/workload/last_arrival_seconds", "/workload/turns_per_session/p90", "/metrics/turns",
          "/metrics/output_tokens"}) {
      EXPECT_EQ(number_at(several, pointer), number_at(one, pointer)) << pointer;
    }
    double requests = 0;
    for (const Json& instance : several["metrics"]["instances"]) {
      requests += instance["requests"].get<double>();
    }
    EXPECT_EQ(requests, number_at(one, "/metrics/turns"));
  }
}

// All instances are paid for as long as the run is measured.
TEST(Clusters, CostAsMuchAsTheirInstances) {
  const Json result =
      simulate(small("attentionstore", {"/cluster/instances=5"}), builtin_policies());
  const double seconds = number_at(result, "/load/measured_seconds");
  const RunConfig config = small("attentionstore");
  EXPECT_NEAR(number_at(result, "/metrics/cost_dollars/gpu"),
              5 * seconds / 3600 * config.hardware.gpu.price.value *
                  static_cast<double>(config.hardware.gpus),
              1e-9 * seconds);
}

TEST(Clusters, HaveOneWarmUp) {
  const double turns = number_at(simulate(small("vllm"), builtin_policies()), "/metrics/turns");
  const Json warm = simulate(small("vllm", {"/cluster/instances=3", "/workload/warmup_turns=100"}),
                             builtin_policies());
  EXPECT_EQ(number_at(warm, "/metrics/turns"), turns - 100);
}

// An instance that is lost in the middle of the run: every turn ends, some were sent twice, and
// what had been stored there is gone.
TEST(Clusters, EveryTurnEndsWhenAnInstanceIsLost) {
  const std::string lost =
      R"(/cluster/lost=[{"instance": 1, "at": "40s", "back": "60s", "noticed_after": "2s"}])";
  const std::vector<std::string> cluster{"/cluster/instances=3", "/cluster/router=session"};
  std::vector<std::string> with = cluster;
  with.push_back(lost);
  const Json whole = simulate(small("vllm", cluster), builtin_policies());
  const Json broken = simulate(small("vllm", with), builtin_policies());
  EXPECT_EQ(broken["metrics"]["turns"], whole["metrics"]["turns"]);
  EXPECT_EQ(broken["metrics"]["output_tokens"], whole["metrics"]["output_tokens"]);
  EXPECT_GT(number_at(broken, "/metrics/cluster/requests_sent_again"), 0);
  EXPECT_LT(number_at(broken, "/metrics/hit_rate/prompt_tokens/total"),
            number_at(whole, "/metrics/hit_rate/prompt_tokens/total"));
  EXPECT_EQ(broken.dump(), simulate(small("vllm", with), builtin_policies()).dump());
}

const std::string kNetwork = R"(/cluster/network={"rate": "2GB/s"})";

/// Three instances that share host memory, and three that prefill and decode apart.
RunConfig sharing(std::vector<std::string> more = {}) {
  std::vector<std::string> settings{"/cluster/instances=3", "/cluster/router=round_robin",
                                    "/system/tiers/hbm/blocks/capacity=20000tokens", kNetwork,
                                    R"(/cluster/shared={"tier": "dram"})"};
  settings.insert(settings.end(), more.begin(), more.end());
  return small("vllm_cpu_offload", settings);
}
RunConfig apart(std::vector<std::string> more = {}) {
  std::vector<std::string> settings{"/cluster/instances=3", "/cluster/router=round_robin", kNetwork,
                                    R"(/cluster/disaggregation={"prefill": 1})"};
  settings.insert(settings.end(), more.begin(), more.end());
  return small("vllm", settings);
}
const std::string kGroups =
    R"(/cluster/groups=[{"first": 1, "hardware": {"preset": "h100-8x", "gpus": 4}}])";

// Each key of the cluster's tiers, network and groups gives other results.
TEST(ClusterKeys, ChangeTheResult) {
  const auto metrics = [](const RunConfig& config) {
    return simulate(config, builtin_policies())["metrics"].dump();
  };
  const std::string shared = metrics(sharing());
  for (const char* change :
       {"/cluster/shared=none", R"(/cluster/shared={"tier": "dram", "capacity": "2GiB"})",
        R"(/cluster/shared={"tier": "dram", "capacity": "48GiB", "rate": "100MB/s"})",
        "/cluster/network/rate=200MB/s", "/cluster/network/latency=5ms",
        "/cluster/network/core=1GB/s"}) {
    std::vector<std::string> changes{change};
    if (std::string_view(change).ends_with("=none")) {
      changes.emplace_back("/cluster/network=none");
    }
    EXPECT_NE(metrics(sharing(changes)), shared) << change;
  }
  const std::string pulled = metrics(apart());
  for (const char* change :
       {"/cluster/disaggregation/transfer=push", "/cluster/disaggregation/prefill=2",
        "/cluster/disaggregation/decide=net_new", "/cluster/network/rate=200MB/s",
        R"(/cluster/groups=[{"slots": 2}])", R"(/cluster/groups=[{"token_budget": "512tokens"}])",
        R"(/cluster/groups=[{"first": 2, "slots": 1}])"}) {
    EXPECT_NE(metrics(apart({change})), pulled) << change;
  }
  EXPECT_NE(metrics(apart({kGroups})), pulled);
}

// Every decode iteration by itself gives the same bytes, with stores of one object per block.
TEST(Clusters, StepAsTheReferenceDoes) {
  RunOptions stepwise;
  stepwise.stepping = DecodeStepping::per_iteration;
  for (const RunConfig& config :
       {sharing(), sharing({R"(/cluster/shared={"tier": "dram", "capacity": "2GiB"})"}),
        sharing({"/cluster/router=prefix_load"}), apart(),
        apart({"/cluster/disaggregation/transfer=push"}),
        apart({"/cluster/disaggregation/transfer=push", kGroups})}) {
    EXPECT_TRUE(simulate(config, builtin_policies(), stepwise).dump() ==
                simulate(config, builtin_policies()).dump())
        << write_value(config.cluster).dump();
  }
}

// Requests find in host memory what other instances have written there.
TEST(Clusters, FindMoreInASharedTier) {
  const Json shared = simulate(sharing(), builtin_policies())["metrics"];
  const Json own = simulate(sharing({"/cluster/shared=none", "/cluster/network=none"}),
                            builtin_policies())["metrics"];
  EXPECT_GT(number_at(shared, "/hit_rate/prompt_tokens/total"),
            number_at(own, "/hit_rate/prompt_tokens/total") + 0.1);
  EXPECT_LE(number_at(shared, "/tiers/dram/occupancy_bytes/mean"),
            number_at(shared, "/tiers/dram/occupancy_bytes/max"));
  EXPECT_LE(number_at(shared, "/tiers/dram/occupancy_bytes/max"), 48.0 * (std::int64_t{1} << 30));
}

TEST(Clusters, RentEachInstancesOwnHardware) {
  const RunConfig alike = small("vllm", {"/cluster/instances=3"});
  const RunConfig differ = small("vllm", {"/cluster/instances=3", kGroups});
  const auto dollars = [](const RunConfig& config) {
    return cost_report(config, 1)["total"].get<double>();
  };
  EXPECT_DOUBLE_EQ(rent_dollars(alike, 2), 6 * dollars(alike));
  EXPECT_DOUBLE_EQ(rent_dollars(differ, 1), dollars(differ) + 2 * dollars(group_config(differ, 0)));
  // A store of its own is rented once, in place of the memory of three servers.
  const RunConfig store = sharing({R"(/cluster/shared={"tier": "dram", "capacity": "24GiB"})"});
  const Json own = cost_report(sharing(), 3);
  EXPECT_NEAR(cost_report(store, 3)["dram"].get<double>(), own["dram"].get<double>() / 2, 1e-4);
}

std::filesystem::path test_data() {
  const char* folder = std::getenv("KVTIER_TEST_DATA");
  return folder == nullptr ? std::filesystem::path() : std::filesystem::path(folder);
}

// Counted by a list of 5,859 blocks per pool: each request is looked up in its pool, then all of
// its blocks are used from the tail to the head. There are 288,500 blocks.
TEST(UntimedClusters, GiveTheCountedHitsOnMooncakesConversations) {
  if (test_data().empty()) {
    GTEST_SKIP() << "KVTIER_TEST_DATA is not set";
  }
  const auto hits = [](std::int64_t instances, std::int64_t blocks, const char* router) {
    RunConfig config = small("vllm");
    config.system.blocks = BlocksConfig{};
    config.system.blocks->hit_cap = HitCap::none;
    config.system.blocks->partial_blocks = true;
    config.system.blocks->responses = false;
    config.system.tiers = {};
    TierConfig tier;
    tier.block_size = Tokens(512);
    tier.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, blocks}};
    config.system.tiers.dram = tier;
    config.workload = {};
    config.workload.trace = (test_data() / "mooncake_conversation.jsonl.gz").string();
    config.workload.arrivals = ArrivalModel::trace;
    config.workload.warmup_turns = 0;
    config.model.context_window = Tokens(131072);
    config.cluster.instances = instances;
    config.cluster.router.name = router;
    const Json metrics = simulate_untimed(config, builtin_policies())["metrics"];
    EXPECT_EQ(metrics["prompt_blocks"], 288'500);
    return metrics["hit_blocks"]["total"].get<std::int64_t>();
  };
  EXPECT_EQ(hits(10, 5'859, "round_robin"), 30'047);
  EXPECT_EQ(hits(10, 5'859, "longest_prefix"), 39'258);
  EXPECT_EQ(hits(1, 58'590, "round_robin"), 103'511);
  EXPECT_NEAR(static_cast<double>(hits(10, 5'859, "random")) / 288'500, 0.102, 0.005);
}

/// Busy time is part of the rented time, and a cache without limit finds all that is found. A
/// command of an instance may run when the measured part begins or ends.
void expect_shares(const Json& result, const std::string& world) {
  const Json& metrics = result["metrics"];
  EXPECT_LE(result["load"]["gpu_busy_fraction"].get<double>(), 1) << world;
  EXPECT_LE(result["load"]["bottleneck"]["requests_wait_share"].get<double>(), 1 + 1e-12) << world;
  for (const auto& [part, dollars] : metrics["busy_cost_dollars"].items()) {
    EXPECT_LE(dollars.get<double>(), metrics["cost_dollars"][part].get<double>() * (1 + 1e-12))
        << world << ", " << part;
  }
  for (const Json& instance : metrics["instances"]) {
    EXPECT_LE(instance["gpu_busy_fraction"].get<double>(), 1) << world;
  }
  if (const Json& found = metrics["hit_rate"]; found.contains("ideal")) {
    const Json& ideal = found["ideal"];
    EXPECT_LE(number_at(found, "/prompt_tokens/total"), number_at(ideal, "/prompt_tokens"))
        << world;
    EXPECT_LE(number_at(found, "/requests_with_hits"), number_at(ideal, "/requests_with_hits"))
        << world;
    if (found.contains("blocks")) {
      EXPECT_LE(number_at(found, "/blocks/total"), number_at(ideal, "/blocks")) << world;
    }
  }
}

TEST(Clusters, AreBusyForNoLongerThanRentedAndFindNoMoreThanACacheWithoutLimit) {
  const PolicyRegistry registry = builtin_policies();
  RandomStream dice(1, "clusters");
  const auto pick = [&](std::initializer_list<const char*> values) {
    return std::string(values.begin()[dice.index(static_cast<std::int64_t>(values.size()))]);
  };
  std::int64_t with_ideal = 0;
  constexpr std::int64_t kWorlds = 80;
  for (std::int64_t world = 0; world < kWorlds; ++world) {
    const std::string& system =
        kSystems[static_cast<std::size_t>(dice.index(std::ssize(kSystems)))];
    const std::int64_t sessions = 8 + dice.index(73);
    std::vector<std::string> settings{
        fmt::format("/cluster/instances={}", 2 + dice.index(3)),
        fmt::format("/workload/sessions={}", sessions),
        fmt::format("/workload/warmup_turns={}", dice.index(sessions)),
        "/workload/measure=" + pick({"all", "auto"}),
        fmt::format("/workload/arrival_rate={}/s", 0.2 + 4 * dice.uniform()),
        fmt::format("/seed={}", world + 1)};
    const bool of_blocks = system == "vllm" || system == "sglang" || system == "vllm_cpu_offload";
    if (of_blocks && dice.index(4) > 0) {
      settings.push_back("/workload/generator=" + pick({"multi_turn", "shared_prefixes"}));
      settings.push_back("/cluster/router=" + pick({"round_robin", "random", "session"}));
    }
    if (of_blocks && dice.index(4) == 0) {
      settings.push_back(R"(/cluster/lost=[{"instance": 1, "at": "20s", "back": "40s"}])");
    }
    const std::string text = fmt::format("{}: {}", system, fmt::join(settings, " "));
    const Json result = simulate(small(system, settings), registry);
    expect_shares(result, text);
    with_ideal +=
        result["metrics"].value("/hit_rate/ideal/requests_with_hits"_json_pointer, 0.0) > 0;
  }
  EXPECT_GT(with_ideal, 10);
}

std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Clusters, RefuseUntimedReplaysOfSessions) {
  const RunConfig two = small("attentionstore_lru", {"/cluster/instances=2"});
  const PolicyRegistry registry = builtin_policies();
  EXPECT_EQ(refused([&] { (void)simulate_untimed(two, registry); }),
            "/cluster/instances: expected 1, an untimed replay of sessions is of one instance, got "
            "2");
  EXPECT_EQ(refused([&] { (void)miss_ratio_curve(two, registry, {}); }),
            "/cluster/instances: expected 1, a miss-ratio curve is of one instance, got 2");
  EXPECT_EQ(untimed_bound(two, registry, {}), Json());
  const RunConfig groups = small("vllm", {"/cluster/instances=3", kGroups});
  EXPECT_EQ(refused([&] { (void)simulate_untimed(groups, registry); }),
            "/cluster/groups: expected none: in an untimed replay instances are alike");
}

// A group's blocks have to fit into its own GPUs, too.
TEST(Clusters, RefuseAGroupWhoseHbmIsTooSmall) {
  const RunConfig config =
      small("vllm", {"/cluster/instances=2", "/hardware=h100-80g", "/model=llama-3.1-8b",
                     "/system/tiers/hbm/blocks/capacity=400000tokens",
                     R"(/cluster/groups=[{"first": 1, "hardware": "a100-40g"}])"});
  const std::string problem = refused([&] { (void)simulate(config, builtin_policies()); });
  EXPECT_TRUE(problem.starts_with("/cluster/groups/0: /system/tiers/hbm/blocks/capacity: "))
      << problem;
  const RunConfig flash = small(
      "vllm_tiering", {"/cluster/instances=2", kNetwork, R"(/cluster/shared={"tier": "ssd"})"});
  EXPECT_EQ(refused([&] { (void)simulate(flash, builtin_policies()); }),
            "/cluster/shared/tier: in a timed run expected dram, got \"ssd\"");
}

// Keys inside a group's hardware can be set, also where it is a preset's name.
TEST(Clusters, SetKeysOfAGroupsHardware) {
  const RunConfig config =
      small("vllm", {"/cluster/instances=2", R"(/cluster/groups=[{"hardware": "h100-8x"}])",
                     "/cluster/groups/0/hardware/gpus=2"});
  EXPECT_EQ(group_config(config, 0).hardware.gpus, 2);
  EXPECT_EQ(group_config(config, 0).hardware.name, "h100-8x");
}

}  // namespace
}  // namespace kvtier::test
