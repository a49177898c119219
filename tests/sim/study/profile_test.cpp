/// A profile as the hardware of a run.

#include "hw/profile/profile.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/profile/profile_timing.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"
#include "tests/hw/tiny_profile.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

const char* const kModel =
    R"({"name": "small", "source": "made up", "layers": 2, "hidden_size": 64, "attention_heads": 4,
        "kv_heads": 4, "head_dim": 16, "intermediate_size": 128, "gated_mlp": false,
        "vocabulary_size": 100, "tied_embeddings": true, "context_window": "512tokens"})";

/// Times in powers of two of the sizes, up to 256 new and 256 past tokens, 4 requests.
Profile small_profile() {
  Problems problems;
  ModelConfig model;
  read_value(model, parse_json_strictly(kModel, "model"), "", problems);
  problems.throw_if_any();
  Profile profile;
  profile.name = "small-machine";
  profile.provenance = {.date = "2026-01-02T03:04:05Z", .command = "made up"};
  profile.device = {.name = "abacus",
                    .driver = "none",
                    .memory = Bytes(std::int64_t{1} << 30),
                    .peak = FlopsPerSecond(1e12),
                    .memory_bandwidth = BytesPerSecond(1e11),
                    .limits_source = "made up"};
  profile.host = ProfileHost{.cpu = "abacus", .cores = 1, .memory = Bytes(std::int64_t{1} << 30)};
  const auto add = [&profile](OperationId id, std::string variant,
                              std::map<std::string, std::int64_t> shape) -> ProfileTable& {
    profile.tables.push_back({.operation = id,
                              .variant = std::move(variant),
                              .method = {},
                              .cache = CacheState::cold,
                              .shape = std::move(shape),
                              .axes = profile_operation(id).axes,
                              .cells = {},
                              .left_out = {}});
    return profile.tables.back();
  };
  const auto put = [](ProfileTable& table, std::vector<std::int64_t> at, double seconds) {
    table.cells.push_back({std::move(at), seconds, seconds, seconds, 3, 0, {}});
  };
  std::vector<MatrixShape> matrices = layer_matrices(model, 1);
  matrices.push_back(head_matrix(model, 1));
  for (const MatrixShape& matrix : matrices) {
    ProfileTable& table = add(OperationId::gemm, std::string(matrix.name),
                              {{"n", matrix.n}, {"k", matrix.k}, {"element_bytes", 2}});
    for (std::int64_t tokens = 1; tokens <= 256; tokens *= 2) {
      put(table, {tokens}, 1e-5 + 1e-7 * static_cast<double>(tokens));
    }
  }
  const std::map<std::string, std::int64_t> shape{
      {"attention_heads", 4}, {"kv_heads", 4}, {"head_dim", 16}, {"element_bytes", 2}};
  ProfileTable& extend = add(OperationId::prefill_attention, "random_slots", shape);
  for (std::int64_t added = 1; added <= 256; added *= 2) {
    for (std::int64_t past = 0; past <= 256; past = past == 0 ? 16 : 2 * past) {
      put(extend, {added, past}, 1e-5 + 1e-9 * static_cast<double>(added * (added + past)));
    }
  }
  ProfileTable& decode = add(OperationId::decode_attention, "random_slots", shape);
  for (std::int64_t batch = 1; batch <= 4; batch *= 2) {
    for (std::int64_t context = 16; context <= 256; context *= 2) {
      put(decode, {batch, context}, 1e-5 + 1.37e-8 * static_cast<double>(batch * context));
    }
  }
  for (const char* way : {"to_device", "to_host", "to_device_of_both", "to_host_of_both"}) {
    put(add(OperationId::copy_duplex, way, {}), {1 << 20}, 1e-3);
  }
  return profile;
}

class ProfileHardware : public testing::Test {
 protected:
  ProfileHardware() { write_profile(dir_.path("small.json"), small_profile()); }

  [[nodiscard]] RunConfig resolve(const std::string& hardware, const Lines& settings = {}) const {
    ConfigRequest request;
    request.file = dir_.write(
        "run.json", R"({"model": )" + std::string(kModel) + R"(, "hardware": )" + hardware + R"(,
          "system": {"preset": "hbm_dram", "tiers": {"hbm": {"capacity": "4MiB"}},
                     "save": {"write_buffer": "1MiB"}, "load": {"buffers": 0}},
          "serving": {"slots": 4},
          "workload": {"generator": "sharegpt", "sessions": 60, "arrival_rate": "100/s"}})");
    for (const std::string& setting : settings) {
      request.overrides.push_back(parse_override(setting));
    }
    return resolve_config(request, presets(), builtin_policies()).config;
  }
  [[nodiscard]] Lines problems(const std::string& hardware, const Lines& settings = {}) const {
    try {
      (void)resolve(hardware, settings);
    } catch (const ConfigError& error) {
      Lines lines = error.problems();
      const std::string folder = dir_.path("").string();
      for (std::string& line : lines) {
        for (std::size_t at = line.find(folder); at != std::string::npos; at = line.find(folder)) {
          line.erase(at, folder.size());
        }
      }
      return lines;
    }
    return {};
  }

  TempDir dir_;
};

const char* const kProfileAlone = R"({"profile": "./small.json"})";

TEST_F(ProfileHardware, DescribesAServerByItself) {
  const HardwareConfig hardware = resolve(kProfileAlone).hardware;
  EXPECT_EQ(hardware.name, "small-machine");
  EXPECT_EQ(hardware.gpu.name, "abacus");
  // 1 MiB in 1 ms, each way, also at the same time.
  EXPECT_DOUBLE_EQ(hardware.links.pcie.forward.rate.value, 1048576e3);
  EXPECT_DOUBLE_EQ(hardware.links.pcie.both.value, 2 * 1048576e3);
  ASSERT_TRUE(hardware.profile && hardware.profile->loaded);
}

// A token's KV of one layer: keys and values of 4 heads of 16 numbers of 2 bytes.
TEST_F(ProfileHardware, TakesTheLinksRatesOfPiecesOfTheModelsKv) {
  Profile profile = small_profile();
  ProfileTable& pieces = profile.tables.emplace_back();
  pieces.operation = OperationId::copy_h2d;
  pieces.variant = "pinned";
  pieces.method = kCopyEngine;
  pieces.axes = profile_operation(OperationId::copy_h2d).axes;
  for (const auto& [piece, seconds] : {std::pair{128, 1.0}, {256, 0.5}, {512, 0.25}}) {
    const double taken = 32 * seconds;  // of 32 tokens
    pieces.cells.push_back({{32'000 * piece, 1000}, taken, taken, taken, 3, 0, {}});
  }
  write_profile(dir_.path("small.json"), profile);
  const auto rate = [this](const char* hardware, const Lines& settings) {
    return resolve(hardware, settings).hardware.links.pcie.forward.rate.value;
  };
  EXPECT_DOUBLE_EQ(rate(kProfileAlone, {}), 512e3);
  EXPECT_DOUBLE_EQ(rate(R"({"preset": "a100-80g", "gpus": 1, "profile": "./small.json"})", {}),
                   512e3);
  // A key of the model that is set counts like one in the file; the config's own rate over both.
  const Lines fewer_heads{"/hardware/unmeasured=roofline", "/model/kv_heads=2"};
  EXPECT_DOUBLE_EQ(rate(kProfileAlone, fewer_heads), 128e3);
  EXPECT_DOUBLE_EQ(rate(kProfileAlone, {"/hardware/links/pcie/to_device=1MB/s"}), 1e6);
}

// A profile is of one device: on 2 GPUs its link counts twice, and pieces are half as large: a
// token's 256 B on one GPU at 512 kB/s, 128 B on each of two at 128.
TEST_F(ProfileHardware, DescribesOneOfSeveralGpus) {
  Profile profile = small_profile();
  ProfileTable& pieces = profile.tables.emplace_back();
  pieces.operation = OperationId::copy_h2d;
  pieces.variant = "pinned";
  pieces.method = kCopyEngine;
  pieces.axes = profile_operation(OperationId::copy_h2d).axes;
  for (const auto& [piece, seconds] : {std::pair{128, 1.0}, {256, 0.5}}) {
    const double taken = 32 * seconds;  // of 32 tokens
    pieces.cells.push_back({{32'000 * piece, 1000}, taken, taken, taken, 3, 0, {}});
  }
  write_profile(dir_.path("small.json"), profile);
  const char* const hardware = R"({"preset": "a100-80g", "gpus": 1, "profile": "./small.json",
                                   "unmeasured": "roofline", "dram": {"bandwidth": "400GB/s"}})";
  const HardwareConfig one = resolve(hardware).hardware;
  EXPECT_EQ(one.links.pcie.of, HostLinkOf::gpu) << "not the preset's server";
  EXPECT_DOUBLE_EQ(one.links.pcie.forward.rate.value, 512e3);
  const HardwareConfig two = resolve(hardware, {"/hardware/gpus=2"}).hardware;
  EXPECT_DOUBLE_EQ(two.links.pcie.forward.rate.value, 128e3);
  EXPECT_DOUBLE_EQ(host_link(two).forward.rate.value, 256e3);
}

TEST_F(ProfileHardware, GivesMeasuredRatesToAPresetAndKeepsItsOtherKeys) {
  const HardwareConfig hardware =
      resolve(R"({"preset": "a100-80g", "gpus": 1, "profile": "./small.json",
                  "links": {"pcie": {"to_host": "1GB/s"}}})",
              {"/hardware/dram/capacity=3GiB"})
          .hardware;
  EXPECT_EQ(hardware.name, "a100-80g");
  EXPECT_EQ(hardware.gpu.price.value, 5);
  EXPECT_DOUBLE_EQ(hardware.links.pcie.forward.rate.value, 1048576e3);
  EXPECT_DOUBLE_EQ(hardware.links.pcie.backward.rate.value, 1e9);  // the file's own key
  EXPECT_EQ(hardware.dram->capacity.value, std::int64_t{3} << 30);
}

TEST_F(ProfileHardware, GivesInterferenceUnlessTheConfigDoes) {
  EXPECT_TRUE(resolve(kProfileAlone).hardware.contention.empty());
  Profile profile = small_profile();
  for (const char* way : {"to_device", "to_host"}) {  // twice the time of copy_duplex
    add_table(profile, OperationId::copy_beside_compute, way, {cell({1 << 20}, 2e-3)});
  }
  write_profile(dir_.path("busy.json"), profile);
  using enum ContendedWay;
  constexpr ContendingWork kCompute = ContendingWork::compute;
  EXPECT_EQ(resolve(R"({"profile": "./busy.json"})").hardware.contention,
            (std::vector<Contention>{{.on = pcie_to_device, .while_work = kCompute, .left = 0.5},
                                     {.on = pcie_to_host, .while_work = kCompute, .left = 0.5}}));
  // A config's own list replaces that of the profile.
  EXPECT_EQ(resolve(R"({"profile": "./busy.json", "contention":
                        [{"on": "pcie_to_host", "while": "compute", "left": 0.9}]})")
                .hardware.contention,
            (std::vector<Contention>{{.on = pcie_to_host, .while_work = kCompute, .left = 0.9}}));
}

// A key of a curve in place of a plain rate, on the command line and in a file.
TEST_F(ProfileHardware, RatesBecomeCurvesWhereAKeyOfACurveIsSet) {
  for (const HardwareConfig& hardware :
       {resolve(R"("a100-80g")", {"/hardware/ssd/bandwidth/read/latency=1ms"}).hardware,
        resolve(R"({"preset": "a100-80g", "ssd": {"bandwidth": {"read": {"latency": "1ms"}}}})")
            .hardware}) {
    EXPECT_EQ(hardware.ssd->bandwidth.forward.rate, BytesPerSecond(5e9));
    EXPECT_EQ(hardware.ssd->bandwidth.forward.latency, SimDuration(1'000'000));
    EXPECT_EQ(hardware.ssd->bandwidth.backward.latency, SimDuration(0));
  }
}

TEST_F(ProfileHardware, MayBeSetOnTheCommandLine) {
  EXPECT_DOUBLE_EQ(resolve(R"("a100-80g")", {"/hardware/profile=./small.json", "/hardware/gpus=1"})
                       .hardware.links.pcie.forward.rate.value,
                   1048576e3);
}

TEST_F(ProfileHardware, ResolvesToAConfigThatResolvesToItself) {
  for (const char* hardware : {kProfileAlone, R"({"preset": "h100-8x", "gpus": 1})"}) {
    const RunConfig first = resolve(hardware);
    const Json printed = write_value(first);
    ConfigRequest again;
    again.file = dir_.write("again.json", printed.dump());
    const RunConfig second = resolve_config(again, presets(), builtin_policies()).config;
    EXPECT_EQ(write_value(second), printed);
    EXPECT_TRUE(second.hardware.profile->loaded);
  }
}

TEST_F(ProfileHardware, NamesEveryProblemOfTheProfile) {
  EXPECT_EQ(problems(R"({"profile": "./none.json"})"),
            Lines{"run.json: /hardware/profile: no such file: ./none.json"});
  dir_.write("old.json", R"({"format": "kvtier.profile/0"})");
  EXPECT_EQ(problems(R"({"profile": "./old.json"})"),
            Lines{"./old.json: /format: expected \"kvtier.profile/3\", got \"kvtier.profile/0\": "
                  "measure again, or use the release that wrote it"});
}

TEST_F(ProfileHardware, RefusesAModelThatWasNotMeasured) {
  const Lines lines = problems(kProfileAlone, {"/model/hidden_size=96"});
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("profile small-machine has no gemm of 192 x 96 in 2 B (qkv)"),
            std::string::npos)
      << lines[0];
  EXPECT_EQ(problems(kProfileAlone, {"/model/hidden_size=96", "/hardware/unmeasured=roofline"}),
            Lines{});
}

/// One GPU of h100-8x, whose preset names the profile h100-vllm.
Json one_h100(const Json& keys = Json::object()) {
  Json hardware{{"preset", "h100-8x"}, {"gpus", 1}};
  hardware.merge_patch(keys);
  return hardware;
}

TEST_F(ProfileHardware, RefusesToOverrideRatesThatTheProfileReplaces) {
  const auto line = [](const char* origin, const char* pointer, const char* expected,
                       const char* got) {
    return fmt::format(
        "{}: {}: expected {}, got {}: the times are those that profile h100-vllm measured on "
        "H100-80G SXM; set /hardware/profile to \"none\" for times that follow from this key",
        origin, pointer, expected, got);
  };
  EXPECT_EQ(problems(one_h100().dump(),
                     {"/hardware/gpu/peak=1PFLOP/s", "/hardware/hbm/bandwidth=4TB/s",
                      "/hardware/efficiency/compute=0.5", "/hardware/efficiency/memory=0.9"}),
            (Lines{line("--set", "/hardware/efficiency/compute", "0.68", "0.5"),
                   line("--set", "/hardware/efficiency/memory", "0.85", "0.9"),
                   line("--set", "/hardware/gpu/peak", R"("989.4TFLOP/s")", R"("1PFLOP/s")"),
                   line("--set", "/hardware/hbm/bandwidth", R"("3.35TB/s")", R"("4TB/s")")}));
  EXPECT_EQ(
      problems(one_h100({{"gpu", {{"peaks", {{"fp8", "1.5PFLOP/s"}}}}}}).dump()),
      (Lines{
          line("run.json", "/hardware/gpu/peaks/fp8", R"("1.9788PFLOP/s")", R"("1.5PFLOP/s")"),
          line("run.json", "/hardware/gpu/peaks/fp4", R"("1.9788PFLOP/s")", R"("1.5PFLOP/s")")}));
  // The all-reduces of two GPUs are measured.
  const Lines link{"/hardware/gpus=2", "/hardware/links/gpu/bandwidth=900GB/s"};
  EXPECT_EQ(
      problems(one_h100().dump(), link),
      (Lines{line("--set", "/hardware/links/gpu/bandwidth", R"("450GB/s")", R"("900GB/s")")}));
}

TEST_F(ProfileHardware, OverridesRatesThatTheProfileDoesNotReplace) {
  const std::string peak = "/hardware/gpu/peak=2PFLOP/s";
  EXPECT_EQ(problems(one_h100().dump(), {peak, "/hardware/profile=none"}), Lines{});
  // The roofline has all times of a model whose sizes are given by hand.
  EXPECT_EQ(problems(one_h100().dump(), {peak, "/model/total_parameters=1000000"}), Lines{});
  EXPECT_EQ(problems(one_h100().dump(), {"/hardware/gpu/peak=0.9894PFLOP/s"}), Lines{})
      << "the same in another unit";
  EXPECT_EQ(problems(one_h100().dump(), {"/hardware/efficiency/iteration_overhead=1ms",
                                         "/hardware/hbm/capacity=90GiB"}),
            Lines{});
}

TEST_F(ProfileHardware, RefusesAProfileOfAnotherGpu) {
  // As a sibling of the H100 it is accepted.
  Json h20{{"preset", "h20-8x"}, {"gpus", 1}, {"unmeasured", "roofline"}};
  EXPECT_EQ(problems(h20.dump()), Lines{});
  h20["sibling"] = "none";
  EXPECT_EQ(problems(h20.dump(), {"/hardware/profile=h100-vllm"}),
            Lines{"run.json: /hardware/profile: expected a profile of the described GPU, H20-96G "
                  "(148TFLOP/s, 4TB/s), got h100-vllm, measured on H100-80G SXM (989.4TFLOP/s, "
                  "3.35TB/s): describe that GPU, by its preset or by the profile without a preset, "
                  "or set /hardware/profile to \"none\""});
  EXPECT_EQ(problems(R"({"preset": "h200", "gpus": 1, "profile": "h100-vllm",
                         "unmeasured": "roofline"})")
                .size(),
            1U);
  // The driver's clocks give a higher peak than the datasheet.
  EXPECT_EQ(problems(R"({"preset": "h100-80g", "gpus": 1, "profile": "h100-llama2-13b",
                         "unmeasured": "roofline"})"),
            Lines{});
}

TEST_F(ProfileHardware, AcceptsAProcessorBesideAnyDescription) {
  EXPECT_EQ(problems(R"({"preset": "a100-80g", "gpus": 1, "profile": "xeon-2core",
                         "unmeasured": "roofline"})"),
            Lines{});
}

TEST_F(ProfileHardware, ChecksTheHardwareOfGroups) {
  const auto group = [](const Json& hardware) {
    return Lines{
        "/hardware/unmeasured=roofline", "/cluster/instances=2",
        "/cluster/groups=" +
            Json::array({Json{{"first", 0}, {"instances", 1}, {"hardware", hardware}}}).dump()};
  };
  EXPECT_EQ(problems(kProfileAlone, group(one_h100())), Lines{});
  const Lines found = problems(kProfileAlone, group(one_h100({{"hbm", {{"bandwidth", "4TB/s"}}}})));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].starts_with("/cluster/groups/0/hardware/hbm/bandwidth: expected "))
      << found[0];
}

TEST_F(ProfileHardware, IsUsedByASimulation) {
  const RunConfig config = resolve(kProfileAlone);
  const Json result = simulate(config, builtin_policies());
  expect_result_invariants(result);
  const Json& timing = result.at("timing");
  EXPECT_EQ(timing["profile"], "./small.json");
  EXPECT_EQ(timing["prefills"]["total"], result["workload"]["turns"]);
  EXPECT_GT(timing["prefills"]["extrapolated"], 0);  // more than 256 tokens
  EXPECT_LT(timing["prefills"]["extrapolated"], timing["prefills"]["total"]);
  EXPECT_GT(timing["decode_iterations"]["extrapolated"], 0);
  EXPECT_LT(timing["decode_iterations"]["extrapolated"], timing["decode_iterations"]["total"]);
  EXPECT_EQ(timing["from_roofline"], Json::array());
  EXPECT_EQ(timing["left_out"].size(), 7U);
  EXPECT_FALSE(simulate(resolved("examples/planner-70.json",
                                 {"/workload/sessions=20", "/workload/warmup_turns=0"}),
                        builtin_policies())
                   .contains("timing"));
}

TEST_F(ProfileHardware, GivesTheSameBytesInClosedFormAndByIteration) {
  const RunConfig config = resolve(kProfileAlone);
  const Json fast = simulate(config, builtin_policies());
  RunOptions reference;
  reference.stepping = DecodeStepping::per_iteration;
  EXPECT_EQ(simulate(config, builtin_policies(), reference).dump(), fast.dump());
}

}  // namespace
}  // namespace kvtier::test
