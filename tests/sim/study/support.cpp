#include "tests/sim/study/support.hpp"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>

namespace kvtier::test {

std::filesystem::path source_dir() { return KVTIER_SOURCE_DIR; }

ConfigDirectory presets() { return ConfigDirectory(source_dir() / "configs"); }

ConfigRequest request(const std::string& config, const std::vector<std::string>& settings) {
  ConfigRequest request;
  request.file = source_dir() / "configs" / config;
  for (const std::string& setting : settings) {
    request.overrides.push_back(parse_override(setting));
  }
  return request;
}

RunConfig resolved(const std::string& config, const std::vector<std::string>& settings) {
  return resolve_config(request(config, settings), presets(), builtin_policies()).config;
}

double number_at(const Json& json, const std::string& pointer) {
  return json.at(Json::json_pointer(pointer)).get<double>();
}

std::string outcome(const Json& result) {
  Json rest = result;
  rest.erase("config");
  return rest.dump(1);
}

void expect_result_invariants(const Json& result) {
  const Json& metrics = result["metrics"];
  const auto turns = metrics["turns"].get<std::int64_t>();
  const auto resumed = metrics["resumed_turns"].get<std::int64_t>();
  const auto warmup = result["config"]["workload"]["warmup_turns"].get<std::int64_t>();
  if (result["config"]["workload"]["measure"] == "all") {
    EXPECT_EQ(result["workload"]["turns"].get<std::int64_t>(), turns + warmup);
  } else {
    EXPECT_GE(result["workload"]["turns"].get<std::int64_t>(), turns + warmup);
  }
  EXPECT_LE(resumed, turns);

  // Tiers' shares make the total, and hits with misses all turns.
  for (const char* over : {"all_turns", "resumed_turns", "tokens"}) {
    const Json& rate = metrics["hit_rate"][over];
    double sum = 0;
    for (const char* medium : {"hbm", "dram", "ssd"}) {
      EXPECT_GE(rate[medium].get<double>(), 0) << over << " " << medium;
      sum += rate[medium].get<double>();
    }
    EXPECT_NEAR(sum, rate["total"].get<double>(), 1e-12) << over;
    EXPECT_LE(sum, 1 + 1e-12) << over;
  }
  const double hits = number_at(metrics, "/hit_rate/all_turns/total") * static_cast<double>(turns);
  EXPECT_NEAR(hits, std::round(hits), 1e-6);
  EXPECT_NEAR(hits,
              number_at(metrics, "/hit_rate/resumed_turns/total") * static_cast<double>(resumed),
              1e-6);
  double lost = 0;
  for (const auto& [cause, count] : metrics["lost_hits"].items()) {
    EXPECT_GE(count.get<std::int64_t>(), 0) << cause;
    lost += count.get<double>();
  }
  // Every miss of a turn with a history has one cause; turns whose whole history was cut away have
  // one too.
  EXPECT_GE(hits + lost, static_cast<double>(resumed) - 1e-6);
  EXPECT_LE(hits + lost, static_cast<double>(turns) + 1e-6);

  // Times.
  const Json& gpu = metrics["gpu_seconds"];
  EXPECT_NEAR(gpu["total"].get<double>(),
              gpu["prefill"].get<double>() + gpu["decode"].get<double>() +
                  gpu["exposed_load"].get<double>() + gpu["exposed_save"].get<double>(),
              1e-9 * gpu["total"].get<double>());
  const double gpus = number_at(result, "/config/hardware/gpus");
  const double busy = number_at(result, "/load/gpu_busy_fraction");
  const double seconds = number_at(result, "/load/measured_seconds");
  EXPECT_GT(seconds, 0);
  EXPECT_LE(busy, 1 + 1e-9);
  EXPECT_NEAR(busy * seconds * gpus, gpu["total"].get<double>(), 1e-6 * seconds * gpus);
  for (const char* share : {"slots_in_use_fraction", "kv_memory_in_use_fraction",
                            "bottleneck/share", "bottleneck/requests_wait_share"}) {
    EXPECT_GE(number_at(result["load"], std::string("/") + share), 0) << share;
    EXPECT_LE(number_at(result["load"], std::string("/") + share), 1 + 1e-9) << share;
  }
  EXPECT_LE(number_at(metrics, "/computed_tokens_per_second"),
            number_at(metrics, "/prompt_tokens_served_per_second"));
  // The split of the time to the first token is exact, turn by turn, so it is in the means.
  EXPECT_NEAR(number_at(metrics, "/ttft_seconds/mean"),
              number_at(metrics, "/queueing_seconds/mean") +
                  number_at(metrics, "/ttft_seconds_without_queueing/mean"),
              1e-9 * (1 + number_at(metrics, "/ttft_seconds/mean")));
  for (const char* name : {"ttft_seconds", "ttft_seconds_without_queueing", "queueing_seconds",
                           "exposed_load_seconds"}) {
    const Json& value = metrics[name];
    EXPECT_LE(value["p50"].get<double>(), value["p90"].get<double>()) << name;
    EXPECT_LE(value["p90"].get<double>(), value["p95"].get<double>()) << name;
    EXPECT_LE(value["p95"].get<double>(), value["p99"].get<double>()) << name;
  }

  // Bytes.
  for (const auto& [name, tier] : metrics["tiers"].items()) {
    const auto capacity = parse_quantity<Bytes>(
        result["config"]["hardware"][name]["capacity"].get_ref<const std::string&>());
    ASSERT_TRUE(capacity) << name;
    EXPECT_LE(number_at(tier, "/occupancy_bytes/max"), static_cast<double>(capacity->value));
    EXPECT_LE(number_at(tier, "/occupancy_bytes/mean"), number_at(tier, "/occupancy_bytes/max"));
    EXPECT_GE(number_at(tier, "/read_bytes"), 0);
    EXPECT_GE(number_at(tier, "/written_bytes"), 0);
  }
  for (const auto& [name, link] : metrics["links"].items()) {
    EXPECT_GE(number_at(link, "/busy_fraction"), 0) << name;
    EXPECT_LE(number_at(link, "/busy_fraction"), 1 + 1e-9) << name;
  }

  // Dollars.
  for (const char* name : {"cost_dollars", "busy_cost_dollars"}) {
    const Json& cost = metrics[name];
    EXPECT_NEAR(cost["total"].get<double>(),
                cost["gpu"].get<double>() + cost["dram"].get<double>() + cost["ssd"].get<double>(),
                1e-9 * cost["total"].get<double>());
  }
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvtier_study_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("mkdtemp failed: " + pattern);
  }
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::write(const std::string& name, const std::string& text) const {
  const std::filesystem::path file = path_ / name;
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

}  // namespace kvtier::test
