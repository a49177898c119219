/// How a run's config is put together: defaults, preset, file, command line.

#include "sim/study/config/resolve.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

class Resolving : public testing::Test {
 protected:
  [[nodiscard]] ConfigRequest request_of(const std::string& json, const Lines& settings) const {
    ConfigRequest request;
    request.file = dir_.write("run.json", json);
    for (const std::string& setting : settings) {
      request.overrides.push_back(parse_override(setting));
    }
    return request;
  }
  [[nodiscard]] Json resolve(const std::string& json, const Lines& settings = {}) const {
    return write_value(
        resolve_config(request_of(json, settings), presets(), builtin_policies()).config);
  }
  [[nodiscard]] Lines problems(const std::string& json, const Lines& settings = {}) const {
    try {
      (void)resolve(json, settings);
    } catch (const ConfigError& error) {
      Lines lines = error.problems();
      for (std::string& line : lines) {
        const std::string folder = dir_.path("").string();
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

/// A whole run in which `more` (which ends in a comma) stands first.
std::string run_json(const std::string& more = "") {
  return "{" + more +
         R"("model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2},
            "workload": {"generator": "sharegpt", "sessions": 10, "arrival_rate": "1/s"}})";
}
const std::string kSystem = R"("system": "attentionstore",)";

TEST_F(Resolving, PutsTheFileOverThePresetKeyByKey) {
  const Json plain = resolve(run_json(kSystem));
  const Json json = resolve(run_json(
      R"("system": {"preset": "attentionstore", "name": "mine",
                    "tiers": {"ssd": {"block_size": "64tokens"}}},)"));
  Json expected = plain;
  expected["system"]["name"] = "mine";
  expected["system"]["tiers"]["ssd"]["block_size"] = "64tokens";
  EXPECT_EQ(json, expected);
  EXPECT_EQ(json["hardware"]["gpus"], 2);
  EXPECT_EQ(json["hardware"]["gpu"]["name"], "A100-80G SXM");
}

TEST_F(Resolving, ReplacesValuesThatAreNotObjects) {
  const Json json = resolve(run_json(
      R"("system": {"preset": "attentionstore", "prefetch": "none", "tiers": {"ssd": "none"}},)"));
  EXPECT_EQ(json["system"]["tiers"]["ssd"], "none");
  EXPECT_TRUE(json["system"]["tiers"]["dram"].is_object());
}

/// Parameters belong to their policy: those of another one must not linger.
TEST_F(Resolving, ReplacesAPolicyWhole) {
  const std::string with_window =
      R"("system": {"preset": "attentionstore", "prefetch": {"policy": "look_ahead", "window": 7}},)";
  EXPECT_EQ(resolve(run_json(with_window))["system"]["prefetch"]["window"], 7);
  const Json other =
      resolve(run_json(with_window), {R"(/system/prefetch={"policy": "look_ahead"})"});
  EXPECT_EQ(other["system"]["prefetch"], "look_ahead");
}

TEST_F(Resolving, KeepsAPolicyWhoseParameterIsSet) {
  EXPECT_EQ(resolve(run_json(kSystem), {"/system/prefetch/window=3"})["system"]["prefetch"],
            Json::parse(R"({"policy": "look_ahead", "window": 3.0})"));
  EXPECT_EQ(resolve(run_json(kSystem), {"/system/prefetch/window=auto"})["system"]["prefetch"],
            "look_ahead");
}

TEST_F(Resolving, TurnsNoneIntoAnObjectWhoseKeyIsSet) {
  const Json json =
      resolve(run_json(R"("system": {"name": "mine"},)"), {"/system/tiers/dram/eviction=fifo"});
  EXPECT_EQ(json["system"]["tiers"]["dram"]["eviction"], "fifo");
  EXPECT_EQ(json["system"]["tiers"]["dram"]["block_size"], "16tokens") << "the default";
}

TEST_F(Resolving, TakesTheLastOfTwoOverrides) {
  EXPECT_EQ(
      resolve(run_json(kSystem), {"/serving/slots=8", "/serving/slots=9"})["serving"]["slots"], 9);
}

/// A section is replaced before its keys are set, in whatever order the command line has them.
TEST_F(Resolving, ReplacesSectionsBeforeItSetsTheirKeys) {
  const Json first = resolve(run_json(kSystem), {"/system=overflow", "/system/name=mine"});
  const Json last = resolve(run_json(kSystem), {"/system/name=mine", "/system=overflow"});
  EXPECT_EQ(first, last);
  EXPECT_EQ(first["system"]["name"], "mine");
  EXPECT_EQ(first["system"]["positions"], "embedded");
}

TEST_F(Resolving, ReplacesTheSystemOfTheFileWithItsOverrides) {
  ConfigRequest one = request_of(
      run_json(R"("system": {"preset": "attentionstore", "load": {"buffers": 3}},)"), {});
  one.system = "attentionstore_lru";
  const RunConfig config = resolve_config(one, presets(), builtin_policies()).config;
  EXPECT_EQ(config.system.name, "attentionstore_lru");
  EXPECT_EQ(config.system.load.buffers, std::nullopt);
}

TEST_F(Resolving, PutsTheSeedOptionOverEverything) {
  ConfigRequest one = request_of(run_json(R"("seed": 3,)" + kSystem), {"/seed=4"});
  EXPECT_EQ(resolve_config(one, presets(), builtin_policies()).config.seed, 4);
  one.seed = 5;
  EXPECT_EQ(resolve_config(one, presets(), builtin_policies()).config.seed, 5);
  // The seeds behind it have to exist.
  one.seed = INT64_MAX;
  try {
    (void)resolve_config(one, presets(), builtin_policies());
    ADD_FAILURE() << "a seed without seeds behind it";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems(),
              Lines{"--seed: /seed: expected a whole number >= 0 and <= 9e+18, got "
                    "9223372036854775807"});
  }
}

TEST_F(Resolving, IsDoneWithItsOwnOutput) {
  for (const std::string& system : presets().names("systems")) {
    const Json once = resolve(run_json("\"system\": \"" + system + "\","),
                              {"/hardware={\"preset\": \"a100-40g\", \"gpus\": 2}"});
    EXPECT_EQ(resolve(once.dump()), once) << system;
  }
}

TEST_F(Resolving, TakesAModelFileFromTheConfigsFolder) {
  Json model = resolve(run_json(kSystem))["model"];
  model["layers"] = 20;
  dir_.write("mine.json", model.dump());
  const Json json = resolve(run_json(kSystem), {"/model=mine.json"});
  EXPECT_EQ(json["model"]["layers"], 20);
}

TEST_F(Resolving, SaysWhereEachWrongValueComesFrom) {
  dir_.write("broken.json", R"({"name": "broken", "layers": -1})");
  const std::string json = run_json(
      R"("system": {"preset": "attentionstore", "load": {"bufers": 3}}, "serving": {"slots": 0},)");
  const Lines lines = problems(json, {"/hardware/gpu/peak=fast", "/model=broken.json"});
  const auto has = [&](const std::string& begin) {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& line) { return line.starts_with(begin); });
  };
  std::string all;
  for (const std::string& line : lines) {
    all += line + "\n";
  }
  EXPECT_TRUE(has("broken.json: /model/layers: expected ")) << all;
  EXPECT_TRUE(has("broken.json: /model/source: missing key")) << all;
  EXPECT_TRUE(has("run.json: /system/load/bufers: unknown key (did you mean \"buffers\"?)")) << all;
  EXPECT_TRUE(has("run.json: /serving/slots: expected ")) << all;
  EXPECT_TRUE(has("--set: /hardware/gpu/peak: expected ")) << all;
}

TEST_F(Resolving, ChecksTheRestIfAPresetIsUnknown) {
  const Lines lines = problems(run_json(R"("system": "nonesuch", "serving": {"slots": 0},)"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].starts_with("run.json: /system: expected one of ")) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("run.json: /serving/slots: expected ")) << lines[1];
}

TEST_F(Resolving, PresetsBuildOnPresets) {
  const auto write = [&](const char* name, const char* text) {
    static_cast<void>(dir_.write(name, text));
  };
  write("a.json", R"({"preset": "attentionstore", "name": "a", "tiers": {"dram": {"ttl": "5s"}}})");
  write("b.json", R"({"preset": "./a.json", "name": "b", "prefetch": "none"})");
  const auto resolved = [&](const std::string& system) {
    return resolve(run_json(R"("system": )" + system + ","));
  };
  Json expected = resolved(R"({"preset": "attentionstore", "name": "b", "prefetch": "none",
                               "tiers": {"dram": {"ttl": "5s"}}})");
  EXPECT_EQ(resolved(R"("./b.json")"), expected);
  expected["system"]["prefetch"] = "look_ahead";
  EXPECT_EQ(resolved(R"({"preset": "./b.json", "prefetch": "look_ahead"})"), expected);

  write("c.json", R"({"preset": "./d.json"})");
  write("d.json", R"({"preset": "./c.json"})");
  EXPECT_EQ(problems(run_json(R"("system": "./c.json",)")),
            Lines{"run.json: /system: expected presets that do not build on themselves, got c.json "
                  "-> d.json -> c.json"});
  write("e.json", R"({"preset": 3})");
  EXPECT_EQ(problems(run_json(R"("system": "./e.json",)")),
            Lines{"./e.json: /preset: expected a preset's name, got 3"});
}

TEST(Overrides, AreJsonOrElseText) {
  EXPECT_EQ(parse_override("/a=3").value, 3);
  EXPECT_EQ(parse_override("/a=true").value, true);
  EXPECT_EQ(parse_override("/a=\"3\"").value, "3");
  EXPECT_EQ(parse_override("/a=128GiB").value, "128GiB");
  EXPECT_EQ(parse_override("/a/b=x=y").value, "x=y");
  EXPECT_EQ(parse_override("/a/b=x=y").pointer, "/a/b");
  EXPECT_EQ(parse_override(R"(/a={"b": [1]})").value["b"][0], 1);
  EXPECT_EQ(parse_override("/a=").value, "");
  for (const char* text : {"", "a=3", "/a", "=3", "/=3"}) {
    EXPECT_THROW((void)parse_override(text), ConfigError) << text;
  }
}

TEST_F(Resolving, NeedsNoOtherSectionForAWorkload) {
  const ConfigRequest one = request_of(
      R"({"workload": {"generator": "sharegpt", "sessions": 10, "arrival_rate": "1/s"}})",
      {"/workload/sessions=20", "/seed=6"});
  const ResolvedWorkload resolved = resolve_workload(one);
  EXPECT_EQ(resolved.config.sessions, 20);
  EXPECT_EQ(resolved.seed, 6);
  EXPECT_THROW((void)resolve_workload(request_of("{}", {})), ConfigError);
}

TEST(JsonIfValid, TellsTextFromJson) {
  EXPECT_EQ(parse_json_if_valid("[1, 2]", "x"), Json({1, 2}));
  EXPECT_EQ(parse_json_if_valid("attentionstore", "x"), std::nullopt);
  EXPECT_EQ(parse_json_if_valid("", "x"), std::nullopt);
  EXPECT_THROW((void)parse_json_if_valid(R"({"a": 1, "a": 2})", "x"), ConfigError);
}

}  // namespace
}  // namespace kvtier::test
