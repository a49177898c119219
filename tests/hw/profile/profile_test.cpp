#include "hw/profile/profile.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "tests/hw/tiny_profile.hpp"

namespace kvtier {
namespace {

using Lines = std::vector<std::string>;
using test::cell;
using test::tiny_profile;

Json valid() { return parse_json_strictly(profile_text(tiny_profile()), "p"); }

/// The problems of the valid profile after one change.
Lines problems_after(const std::function<void(Json&)>& change) {
  Json json = valid();
  change(json);
  try {
    static_cast<void>(profile_from_json(json, "p.json"));
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(ProfileFile, ReadsWhatItWrote) {
  Profile profile = tiny_profile();
  profile.host = ProfileHost{.cpu = "some \"cpu\"", .cores = 2, .memory = Bytes(1 << 30)};
  profile.storage = ProfileStorage{
      .file_system = "ext4", .engine = "io_uring", .file = Bytes(4096), .capacity = Bytes(1 << 20)};
  profile.provenance.libraries["openblas"] = "0.3.21";
  profile.provenance.notes = {"a note"};
  profile.tables[0].left_out.push_back({.at = {64}, .why = "time budget"});
  ProfileTable ragged{.operation = OperationId::ragged_attention, .axes = {"case"}};
  ragged.shape = profile.tables.back().shape;
  ragged.cells.push_back(cell({0}, 0.25));
  ragged.cells.back().parts = {{3, 5}, {1, 7}};
  for (ProfileTable& table : profile.tables) {
    if (table.operation == OperationId::prefill_attention) {
      ragged.shape = table.shape;
    }
  }
  profile.tables.push_back(ragged);
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "kvtier_profile_test.json";
  write_profile(path, profile);
  EXPECT_EQ(read_profile(path), profile);
  std::filesystem::remove(path);
}

TEST(ProfileFile, HasOneLineForEachCell) {
  const std::string text = profile_text(tiny_profile());
  EXPECT_NE(text.find("\n        {\"at\":[1],\"p25_seconds\":"), std::string::npos) << text;
}

TEST(ProfileFile, ReportsOnlyTheVersionIfItDiffers) {
  EXPECT_EQ(problems_after([](Json& json) {
              json["format"] = "kvtier.profile/4";
              json["cells"] = 1;
            }),
            Lines{"p.json: /format: expected \"kvtier.profile/3\", got \"kvtier.profile/4\": "
                  "measure again, or use the release that wrote it"});
}

TEST(ProfileFile, RefusesEarlierFormatsWithTheCommandThatConvertsThem) {
  for (const char* format : {"kvtier.profile/1", "kvtier.profile/2"}) {
    EXPECT_EQ(
        problems_after([format](Json& json) { json["format"] = format; }),
        Lines{fmt::format("p.json: /format: expected \"kvtier.profile/3\", got \"{}\": convert "
                          "it with kvtier calibrate --convert p.json --out NEW",
                          format)});
  }
}

TEST(ConvertProfile, RenamesOperationsAndVariants) {
  const Json old = Json::parse(R"({"format": "kvtier.profile/2", "tables": [
      {"operation": "model_step", "variant": "step"},
      {"operation": "model_step", "variant": "prefill_second"},
      {"operation": "model_step", "variant": "prefill_run"},
      {"operation": "model_step", "variant": "decode_run", "cells": [1]},
      {"operation": "drive_read", "variant": "after_pause"},
      {"operation": "G1", "variant": "step"},
      {"operation": "drive_write", "variant": "burst"}, 3],
      "provenance": {"notes": ["idle"]}})");
  EXPECT_EQ(convert_profile(old, "p.json"),
            Json::parse(R"({"format": "kvtier.profile/3", "tables": [
      {"operation": "model_step", "variant": "cold"},
      {"operation": "model_step", "variant": "second"},
      {"operation": "model_step", "variant": "warm"},
      {"operation": "model_step", "variant": "decode_warm", "cells": [1]},
      {"operation": "drive_read", "variant": "after_idle"},
      {"operation": "gemm", "variant": "step"},
      {"operation": "drive_write", "variant": "burst"}, 3],
      "provenance": {"notes": ["idle", "converted: decode_warm was measured in a loop, not after )"
                        R"(prefills of other requests"]}})"));
}

TEST(ConvertProfile, RefusesOtherFormats) {
  const auto problems = [](const Json& json) {
    try {
      (void)convert_profile(json, "p.json");
    } catch (const ConfigError& error) {
      return error.problems();
    }
    return Lines{};
  };
  const std::string expected =
      "p.json: /format: expected one of kvtier.profile/1, kvtier.profile/2, got ";
  EXPECT_EQ(problems({{"format", "kvtier.profile/3"}}), Lines{expected + "\"kvtier.profile/3\""});
  EXPECT_EQ(problems(Json::array()), Lines{expected + "none"});
}

TEST(ProfileFile, ReportsEveryBadValueAtOnce) {
  EXPECT_EQ(problems_after([](Json& json) {
              json["tables"][0]["cells"][0]["median_seconds"] = -1;
              json["tables"][0]["cells"][1]["n"] = 0;
              json["tables"][0]["cels"] = 1;
              json["device"].erase("peak");
            }),
            (Lines{"p.json: /device/peak: missing key",
                   "p.json: /tables/0/cells/0/median_seconds: expected a number > 0, got -1",
                   "p.json: /tables/0/cells/1/n: expected a whole number >= 1, got 0",
                   "p.json: /tables/0/cels: unknown key (did you mean \"cells\"?)"}));
}

TEST(ProfileFile, RefusesAxesShapesAndVariantsOfOtherOperations) {
  EXPECT_EQ(problems_after([](Json& json) { json["tables"][0]["axes"] = Json::array({"batch"}); }),
            Lines{"p.json: /tables/0/axes: the axes of gemm are [tokens], got [batch]"});
  EXPECT_EQ(
      problems_after([](Json& json) { json["tables"][0]["shape"].erase("k"); }),
      Lines{"p.json: /tables/0/shape: the shape of gemm is given by [element_bytes, k, n], got "
            "[element_bytes, n]"});
  EXPECT_EQ(
      problems_after([](Json& json) {
        json["tables"][0]["operation"] = "elementwise";
        json["tables"][0]["variant"] = "nrm";
        json["tables"][0]["shape"] = Json{{"width", 4}, {"element_bytes", 2}};
      }),
      Lines{
          "p.json: /tables/0/variant: the variants of elementwise are norm, activation, residual, "
          "embedding, sampling, kv_write, convolution, got \"nrm\" (did you mean \"norm\"?)"});
  EXPECT_EQ(problems_after([](Json& json) { json["tables"][0]["cells"] = Json::array(); }),
            Lines{"p.json: /tables/0/cells: no cell was measured and none is said to be left out"});
}

TEST(ProfileFile, RefusesCellsThatAreNotOnTheGridOrTwice) {
  EXPECT_EQ(problems_after([](Json& json) {
              json["tables"][0]["cells"][0]["at"] = Json::array({1, 2});
            }),
            Lines{"p.json: /tables/0/cells/0/at: gemm has 1 axes, got [1, 2]"});
  EXPECT_EQ(
      problems_after([](Json& json) {
        json["tables"][0]["left_out"].push_back(Json{{"at", Json::array({1})}, {"why", "memory"}});
      }),
      Lines{"p.json: /tables/0/left_out/0/at: this cell is there twice: [1]"});
}

TEST(ProfileFile, RefusesWorkOfNoTokens) {
  EXPECT_EQ(
      problems_after([](Json& json) { json["tables"][0]["cells"][0]["at"] = Json::array({0}); }),
      Lines{"p.json: /tables/0/cells/0/at: tokens has to be at least 1, got 0"});
}

TEST(ProfileFile, RefusesStepsOfNoRequestsAndRunsOfMoreThanDecode) {
  const auto with = [](const char* variant, const Json& at) {
    return problems_after([&](Json& json) {
      Json& table = json["tables"][0];
      table["operation"] = "model_step";
      table["variant"] = variant;
      table["axes"] = Json::array({"requests", "new_tokens", "past_tokens"});
      for (const char* size : {"layers", "hidden_size", "attention_heads", "kv_heads", "head_dim",
                               "intermediate_size", "gated_mlp", "vocabulary_size"}) {
        table["shape"][size] = 1;
      }
      table["shape"].erase("n");
      table["shape"].erase("k");
      Json cell = table["cells"][0];
      cell["at"] = at;
      table["cells"] = Json::array({cell});
    });
  };
  EXPECT_EQ(with("cold", Json::array({1, 4, 0})), Lines{});
  EXPECT_EQ(with("decode_warm", Json::array({4, 1, 0})), Lines{});
  EXPECT_EQ(
      with("cold", Json::array({0, 4, 0})),
      Lines{"p.json: /tables/0/cells/0/at: expected at least one request and at least one new "
            "token of each, got [0, 4, 0]"});
  EXPECT_EQ(
      with("decode_warm", Json::array({1, 2, 0})),
      Lines{"p.json: /tables/0/cells/0/at: expected at least one request and one new token of "
            "each, got [1, 2, 0]"});
}

TEST(ProfileFile, RefusesQuartilesOutOfOrder) {
  EXPECT_EQ(problems_after([](Json& json) { json["tables"][0]["cells"][0]["p25_seconds"] = 9.0; }),
            Lines{"p.json: /tables/0/cells/0: quartiles out of order: 9, 1, 1"});
}

TEST(ProfileFile, RefusesTimesThatFallBeyondNoiseAsWorkGrows) {
  const auto with_drop_to = [](double seconds) {
    return problems_after([seconds](Json& json) {
      for (const char* key : {"p25_seconds", "median_seconds", "p75_seconds"}) {
        json["tables"][0]["cells"][1][key] = seconds;
      }
    });
  };
  // The cell before takes 1 s: half of it is still noise.
  EXPECT_EQ(with_drop_to(0.5), Lines{});
  EXPECT_EQ(with_drop_to(0.25),
            Lines{"p.json: /tables/0/cells/1/median_seconds: more work takes less time, beyond "
                  "noise: 0.25 s at [4], but 1 s at [1]"});
}

TEST(ProfileFile, KeepsPartsForRaggedBatches) {
  EXPECT_EQ(problems_after([](Json& json) {
              json["tables"][0]["cells"][0]["parts"] = Json::array({Json::array({1, 2})});
            }),
            Lines{"p.json: /tables/0/cells/0/parts: only ragged_attention has parts, not gemm"});
  EXPECT_EQ(problems_after([](Json& json) {
              for (Json& table : json["tables"]) {
                if (table["operation"] == "prefill_attention") {
                  table["operation"] = "ragged_attention";
                  table["axes"] = Json::array({"case"});
                  table["cells"] = Json::array({table["cells"][0]});
                  table["cells"][0]["at"] = Json::array({0});
                  json["tables"] = Json::array({table});
                  return;
                }
              }
            }),
            Lines{"p.json: /tables/0/cells/0/parts: a ragged batch lists its requests as [new "
                  "tokens, past tokens]"});
}

TEST(ProfileOperations, AreInTheOrderOfTheirIds) {
  std::size_t i = 0;
  for (const auto& [name, id] : enum_names(OperationId{})) {
    ASSERT_LT(i, profile_operations().size());
    EXPECT_EQ(profile_operations()[i++].id, id) << name;
    EXPECT_STREQ(to_string(id), name);
  }
  EXPECT_EQ(i, profile_operations().size());
}

TEST(Profile, AnOverlayReplacesWholeKindsOfTables) {
  const auto table = [](OperationId operation, std::string variant, std::int64_t width,
                        std::int64_t heads, double seconds) {
    return ProfileTable{.operation = operation,
                        .variant = std::move(variant),
                        .shape = {{"head_dim", width}, {"attention_heads", heads}},
                        .cells = {{.at = {1, 1}, .median_seconds = seconds}}};
  };
  using enum OperationId;
  Profile own;
  own.name = "own";
  own.tables = {table(decode_attention, "a", 128, 8, 1), table(all_reduce, "fused", 0, 0, 1)};
  Profile rest;
  rest.tables = {table(decode_attention, "b", 128, 16, 2), table(decode_attention, "b", 64, 8, 2),
                 table(all_reduce, "graph", 0, 0, 2), table(all_reduce, "fused", 0, 0, 2)};
  const Profile both = overlay(own, rest);
  EXPECT_EQ(both.name, "own");
  ASSERT_EQ(both.tables.size(), 4U);
  EXPECT_EQ(both.tables[2], rest.tables[1]);  // heads of another width
  EXPECT_EQ(both.tables[3], rest.tables[2]);  // another variant
}

}  // namespace
}  // namespace kvtier
