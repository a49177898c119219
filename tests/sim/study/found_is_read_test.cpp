#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/model/model.hpp"
#include "sim/backend/topology.hpp"
#include "sim/core/errors.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/store_rules.hpp"
#include "tests/sim/study/support.hpp"

// KV that a request finds behind HBM was written there, is read from there, and links carry no more
// than their rates allow: for every preset, with tiers too small and drives too slow, too.
namespace kvtier::test {
namespace {

constexpr int kConfigsPerSystem = 91;  // 2,002 of 22 systems

/// A server with all media, and a short workload.
RunConfig config_of(const std::string& system, const std::vector<std::string>& more) {
  std::vector<std::string> settings{
      R"(/hardware/cxl={"capacity": "16GiB", "price": "0$/h/GiB", "bandwidth": {"read": "10GB/s", "write": "10GB/s", "both": "10GB/s"}})",
      "/system=" + system};
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("examples/planner-70.json", settings);
}

/// Settings of a random server and workload that any system runs on.
std::vector<std::string> random_settings(std::mt19937_64& random) {
  const auto one_of = [&](const std::vector<std::string>& values) {
    return values[random() % values.size()];
  };
  const std::string rate = one_of({"0.01GB/s", "0.02GB/s", "0.2GB/s", "2GB/s"});
  const std::string read = one_of({"0.05GB/s", "0.5GB/s", "5GB/s"});
  return {"/model=" + one_of({"llama2-13b", "llama3-8b"}),
          "/hardware/dram/capacity=" + one_of({"2GiB", "8GiB", "24GiB", "128GiB"}),
          "/hardware/ssd/capacity=" + one_of({"3GiB", "30GiB", "1TiB"}),
          "/hardware/ssd/bandwidth/write=" + rate,
          "/hardware/ssd/bandwidth/read=" + read,
          "/hardware/links/pcie/to_device=" + one_of({"2GB/s", "26GB/s"}),
          "/workload/sessions=" + one_of({"6", "12", "24"}),
          "/workload/arrival_rate=" + one_of({"0.1/s", "1/s", "4/s"}),
          "/workload/think_time/mean=" + one_of({"1s", "20s"}),
          "/workload/warmup_turns=0",
          "/workload/measure=all",
          "/serving/kv_memory=" + one_of({"none", "12GiB", "24GiB"}),
          fmt::format("/seed={}", random() % 1000 + 1)};
}

/// Tokens of all requests that were found in each medium.
std::array<std::int64_t, kMedia> found_tokens(const std::vector<RequestRecord>& records,
                                              bool of_blocks) {
  std::array<std::int64_t, kMedia> sum{};
  for (const RequestRecord& record : records) {
    const auto found = of_blocks ? record.prompt_found : record.found.by_medium();
    for (std::size_t i = 0; i < kMedia; ++i) {
      sum[i] += found[i].value;
    }
  }
  return sum;
}

/// KV is found in a tier only when it is written: no more tokens of one session than had been
/// written there, and no more of a drive than it can have written until then. Sessions of this
/// workload share nothing, so what two of them find are different tokens.
void expect_found_is_written(const RunConfig& config, const std::vector<RequestRecord>& records,
                             bool of_blocks, const Json& result) {
  const std::int64_t token = kv_bytes_per_token(config.model).value;
  std::map<std::int64_t, std::array<std::int64_t, kMedia>> most;
  for (const RequestRecord& record : records) {
    const auto found = of_blocks ? record.prompt_found : record.found.by_medium();
    auto& of_session = most[record.session];
    for (std::size_t i = 0; i < kMedia; ++i) {
      of_session[i] = std::max(of_session[i], found[i].value);
    }
    const auto on_drive = found[static_cast<std::size_t>(Medium::ssd)].value * token;
    if (of_blocks && on_drive > 0) {
      EXPECT_LE(static_cast<double>(on_drive),
                config.hardware.ssd->bandwidth.backward.rate.value * record.admitted.seconds() + 1);
    }
  }
  for (const auto& [name, tier] : result["metrics"]["tiers"].items()) {
    if (name == "hbm") {
      continue;
    }
    std::int64_t found = 0;
    for (const auto& [session, tokens] : most) {
      found += tokens[static_cast<std::size_t>(medium_of(name))];
    }
    EXPECT_LE(found * token, tier["written_bytes"].get<std::int64_t>()) << name;
  }
}

void expect_links_keep_their_rates(const RunConfig& config, const Json& result) {
  const double seconds = result["load"]["measured_seconds"].get<double>();
  for (const Link& link : server_topology(config.hardware).links) {
    const Json& carried = result["metrics"]["links"][link.name];
    const auto forward = carried["towards_gpu_bytes"].get<double>();
    const auto backward = carried["from_gpu_bytes"].get<double>();
    const double rounding = 1 + 1e-9;
    EXPECT_LE(forward, link.limits.forward.value * seconds * rounding + 1) << link.name;
    EXPECT_LE(backward, link.limits.backward.value * seconds * rounding + 1) << link.name;
    EXPECT_LE(forward + backward, link.limits.both.value * seconds * rounding + 2) << link.name;
  }
  const Json& tiers = result["metrics"]["tiers"];
  if (tiers.contains("ssd")) {
    EXPECT_LE(tiers["ssd"]["written_bytes"].get<double>(),
              config.hardware.ssd->bandwidth.backward.rate.value * seconds + 1);
  }
}

TEST(AllSystems, FindBehindHbmWhatIsWrittenAndReadItWithinTheRatesOfTheirLinks) {
  const std::vector<std::string> systems = presets().names("systems");
  ASSERT_EQ(systems.size(), 24U);
  std::mt19937_64 random(1);
  std::set<std::string> found_on_drives;
  for (const std::string& system : systems) {
    int runs = 0;
    for (int i = 0; i < kConfigsPerSystem; ++i) {
      const std::vector<std::string> settings = random_settings(random);
      SCOPED_TRACE(fmt::format("{}", fmt::join(settings, " --set ")));
      RequestList requests;
      std::optional<RunConfig> resolved_config;
      Json result;
      try {
        resolved_config = config_of(system, settings);
        result = simulate(*resolved_config, builtin_policies(), {.observer = &requests});
      } catch (const ConfigError&) {
        continue;  // a turn or a buffer has no room
      }
      const RunConfig& config = *resolved_config;
      ++runs;
      const bool of_blocks = config.system.blocks.has_value();
      const bool of_nodes = of_blocks && config.system.blocks->unit == EvictionUnit::node;
      const auto found = found_tokens(requests.records, of_blocks);
      const std::int64_t token = kv_bytes_per_token(config.model).value;
      const Json& links = result["metrics"]["links"];
      const auto loaded = links["pcie"]["towards_gpu_bytes"].get<std::int64_t>() +
                          links["cxl"]["towards_gpu_bytes"].get<std::int64_t>();
      const auto from_drive = links["ssd"]["towards_gpu_bytes"].get<std::int64_t>();
      const std::int64_t on_drive = found[static_cast<std::size_t>(Medium::ssd)] * token;
      const std::int64_t behind =
          (std::accumulate(found.begin(), found.end(), std::int64_t{0}) - found.front()) * token;
      // Prefetches read more than is found, and a preempted request loads again.
      EXPECT_GE(loaded, behind);
      EXPECT_GE(from_drive, on_drive);
      const bool prefetches = config.system.prefetch.name != "none";
      if (of_blocks && !prefetches && result["metrics"]["preemptions"] == 0) {
        EXPECT_EQ(loaded, behind);
        EXPECT_TRUE(from_drive == on_drive || of_nodes) << from_drive << " of " << on_drive;
      }
      expect_links_keep_their_rates(config, result);
      expect_found_is_written(config, requests.records, of_blocks, result);
      if (on_drive > 0) {
        found_on_drives.insert(system);
      }
    }
    EXPECT_GT(runs, kConfigsPerSystem / 4) << system;
  }
  EXPECT_TRUE(found_on_drives.contains("vllm_lmcache"));
  EXPECT_TRUE(found_on_drives.contains("attentionstore"));
  EXPECT_GT(found_on_drives.size(), 6U);
}

TEST(AllSystems, FindOnASlowDriveWhatItHasWritten) {
  for (const std::string system :
       {"vllm_tiering", "vllm_lmcache", "dynamo_kvbm", "flexkv", "mooncake_store"}) {
    SCOPED_TRACE(system);
    const auto found_with = [&](const std::string& rate) {
      RequestList requests;
      const RunConfig config = config_of(
          system, {"/model=llama2-13b", "/serving/kv_memory=12GiB", "/hardware/dram/capacity=8GiB",
                   "/hardware/ssd/capacity=1TiB", "/hardware/ssd/bandwidth/write=" + rate,
                   "/workload/sessions=100", "/workload/arrival_rate=1/s", "/workload/measure=all",
                   "/workload/warmup_turns=0"});
      const Json result = simulate(config, builtin_policies(), {.observer = &requests});
      expect_found_is_written(config, requests.records, true, result);
      return found_tokens(requests.records, true)[static_cast<std::size_t>(Medium::ssd)];
    };
    EXPECT_LT(found_with("0.01GB/s"), found_with("5GB/s") / 10);
  }
}

// An iteration without work waits for copies. The next one is planned when they have ended.
TEST(AllSystems, GoOnAfterAnIterationThatOnlyWaitsForCopies) {
  const RunConfig config = config_of(
      "vllm_cpu_offload",
      {"/model=llama2-13b", "/model/context_window=2048tokens", "/serving/kv_memory=4GiB",
       "/hardware/dram/capacity=64GiB", "/hardware/links/pcie/to_host=0.01GB/s",
       "/workload/sessions=16", "/workload/arrival_rate=1/s", "/workload/think_time/mean=20s",
       "/workload/warmup_turns=0", "/workload/measure=all"});
  const Json result = simulate(config, builtin_policies());
  EXPECT_EQ(result["metrics"]["turns"], result["workload"]["turns"]);
}

TEST(AllSystems, CountHitsOfTheTableAndOfTheJsonInTheSameTiers) {
  for (const std::string& system : presets().names("systems")) {
    const RunConfig config = config_of(
        system, {"/hardware/dram/capacity=16GiB", "/hardware/ssd/capacity=60GiB",
                 "/workload/sessions=60", "/workload/arrival_rate=1/s", "/workload/measure=all"});
    if (!config.system.blocks) {
      continue;
    }
    const Json metrics = simulate(config, builtin_policies())["metrics"];
    const Json& history = metrics["hit_rate"]["tokens"];
    for (const auto& [tier, tokens] : metrics["hit_tokens"].items()) {
      // Sessions share nothing in this workload, so all that is found is history.
      EXPECT_EQ(history[tier].get<double>() > 0, tokens.get<std::int64_t>() > 0)
          << system << " " << tier;
    }
  }
}

/// A workload that is larger than all tiers.
std::vector<std::string> settings_of_small_tiers() {
  return {"/model=llama2-13b",
          "/serving/kv_memory=12GiB",
          "/hardware/dram/capacity=8GiB",
          "/hardware/ssd/capacity=10GiB",
          "/workload/sessions=12",
          "/workload/arrival_rate=1/s",
          "/workload/think_time/mean=1s",
          "/workload/warmup_turns=0",
          "/workload/measure=all",
          "/serving/knowledge=look_ahead"};
}

TEST(AllSystems, OfBlocksTakeAnyPolicyOfTheRegistryInAnyTier) {
  const PolicyRegistry registry = builtin_policies();
  std::map<std::string, std::int64_t> evicted;
  std::map<std::string, std::int64_t> runs;
  for (const std::string& system : presets().names("systems")) {
    const RunConfig preset = config_of(system, {});
    if (!preset.system.blocks) {
      continue;
    }
    for_each_tier(preset.system.tiers, [&](const char* tier, const TierConfig& of_preset) {
      const std::string pointer = std::string("/system/tiers/") + tier;
      const auto run = [&](const std::string& key, const std::string& policy) {
        std::vector<std::string> settings = settings_of_small_tiers();
        settings.push_back(pointer + "/" + key + "=" + policy);
        if (of_preset.blocks && of_preset.blocks->bucket) {
          settings.push_back(pointer + "/blocks/bucket=none");
        }
        SCOPED_TRACE(fmt::format("{} {}", system, settings.back()));
        const RunConfig config = config_of(system, settings);
        RequestList requests;
        const Json result = simulate(config, registry, {.observer = &requests});
        const auto found = found_tokens(requests.records, true);
        const std::int64_t token = kv_bytes_per_token(config.model).value;
        const Json& links = result["metrics"]["links"];
        const std::int64_t behind =
            (std::accumulate(found.begin(), found.end(), std::int64_t{0}) - found.front()) * token;
        if (result["metrics"]["preemptions"] == 0 && config.system.prefetch.name == "none") {
          EXPECT_EQ(links["pcie"]["towards_gpu_bytes"].get<std::int64_t>(), behind);
        }
        static_cast<void>(simulate_untimed(config, registry));
        evicted[policy] += result["metrics"]["tiers"][tier]["evictions"].get<std::int64_t>();
        ++runs[policy];
      };
      for (const auto& kind : registry.eviction) {
        const bool fits =
            !kind.parts_of_entries || preset.system.blocks->unit != EvictionUnit::sequence;
        if (kind.knowledge != Knowledge::oracle && fits) {
          run("eviction", kind.name);
        }
      }
      for (const auto& kind : registry.admission) {
        run("admission", kind.name);
      }
      EXPECT_THROW(static_cast<void>(config_of(system, {pointer + "/eviction=belady"})),
                   ConfigError);
    });
  }
  for (const auto& [policy, count] : evicted) {
    EXPECT_GT(count, runs[policy]) << policy;
  }
  EXPECT_EQ(runs.size(), registry.eviction.size() - 1 + registry.admission.size());
}

}  // namespace
}  // namespace kvtier::test
