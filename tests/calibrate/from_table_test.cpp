#include "calibrate/from_table.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "sim/core/errors.hpp"
#include "tests/hw/load.hpp"
#include "tests/hw/tiny_profile.hpp"

namespace kvtier::calibrate {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

/// 1,000 FLOP/s and 1,000 B/s, of which all is attained.
HardwareConfig slow_hardware() {
  HardwareConfig hardware;
  hardware.name = "slow";
  hardware.gpu = {.name = "abacus", .peak = FlopsPerSecond(1000), .price = {}};
  hardware.hbm = {.capacity = Bytes(1 << 20), .bandwidth = BytesPerSecond(1000)};
  return hardware;
}

class Tables : public testing::Test {
 protected:
  Tables() { fs::create_directories(folder_); }
  ~Tables() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  Imported import(const std::string& text, const ColumnMap& columns = standard_columns()) {
    const ModelConfig model = test::tiny_model();
    return import_tables({{write("t.csv", text), columns}}, &model, slow_hardware(),
                         {.name = "imported"});
  }
  Lines problems(const std::string& text, const ColumnMap& columns = standard_columns()) {
    try {
      static_cast<void>(import(text, columns));
    } catch (const ConfigError& error) {
      Lines lines = error.problems();
      for (std::string& line : lines) {
        const std::string prefix = folder_.string() + "/";
        if (const std::size_t at = line.find(prefix); at != std::string::npos) {
          line.erase(at, prefix.size());
        }
      }
      return lines;
    }
    return {};
  }

  fs::path folder_ = fs::path(testing::TempDir()) / ("kvtier_tables_" + std::to_string(::getpid()));
};

const std::string kHeader = "op,new_tokens,past_tokens,batch,context,tensor_parallel,seconds\n";

TEST_F(Tables, BecomeTheTablesOfTheModelsShapes) {
  const Imported imported = import(kHeader +
                                   "qkv,4,,,,1,3\n"
                                   "qkv,4,,,,1,5\n"
                                   "qkv,4,,,,1,4\n"
                                   "mlp_down,2,,2,,2,1.5\n"  // 2 requests of 2 tokens
                                   "prefill_attention,4,8,1,,1,2\n"
                                   "decode_attention,1,,3,7,1,0.5\n"
                                   "norm,4,,,,1,0.25\n"
                                   "rope,4,,,,1,0.25\n");
  const Profile& profile = imported.profile;
  Problems found;
  check_profile(profile, found);
  EXPECT_EQ(found.lines(), Lines{});
  ASSERT_EQ(profile.tables.size(), 6U);
  const ProfileTable& qkv = profile.tables[0];
  EXPECT_EQ(qkv.shape,
            (std::map<std::string, std::int64_t>{{"n", 8}, {"k", 4}, {"element_bytes", 2}}));
  ASSERT_EQ(qkv.cells.size(), 1U);
  EXPECT_EQ(qkv.cells[0].at, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(qkv.cells[0].median_seconds, 4);
  EXPECT_EQ(qkv.cells[0].n, 3);
  EXPECT_EQ(profile.tables[1].shape.at("k"), 4);  // 8 / 2
  EXPECT_EQ(profile.tables[1].cells[0].at, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(profile.tables[2].cells[0].at, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(profile.tables[3].cells[0].at, (std::vector<std::int64_t>{3, 7}));
  EXPECT_EQ(profile.tables[4].variant, "norm");
  EXPECT_EQ(profile.tables[5].shape.at("heads"), 3);
  EXPECT_EQ(imported.counts.times, 8);
}

TEST_F(Tables, LoseRowsThatNoDeviceCanReach) {
  // qkv of 4 tokens: 2 x 4 x 32 = 256 FLOP, 0.256 s.
  const Imported imported = import(kHeader +
                                   "qkv,4,,,,1,0.257\n"
                                   "qkv,8,,,,1,0.5\n"
                                   "qkv,16,,,,1,0\n"
                                   "prefill_attention,4,8,2,,1,9\n");
  EXPECT_EQ(imported.counts.times, 4);
  EXPECT_EQ(imported.counts.beyond_limits, 1);
  EXPECT_EQ(imported.counts.not_positive, 1);
  EXPECT_EQ(imported.counts.several_requests, 1);
  EXPECT_EQ(imported.profile.tables[0].cells.size(), 1U);
}

TEST_F(Tables, LoseCellsWithoutAUsableTime) {
  const Imported imported = import(kHeader +
                                   "qkv,4,,,,1,\n"
                                   "qkv,4,,,,1,nan\n"
                                   "qkv,4,,,,1,-3\n"
                                   "qkv,4,,,,1,4\n");
  EXPECT_EQ(imported.counts.times, 4);
  EXPECT_EQ(imported.counts.not_numbers, 2);
  EXPECT_EQ(imported.counts.not_positive, 1);
  ASSERT_EQ(imported.profile.tables[0].cells.size(), 1U);
  EXPECT_EQ(imported.profile.tables[0].cells[0].median_seconds, 4);
}

TEST_F(Tables, LoseCellsThatOthersContradict) {
  // Twice the tokens in a tenth of the time, against two neighbours.
  const Imported imported = import(kHeader +
                                   "qkv,1,,,,1,4\n"
                                   "qkv,2,,,,1,5\n"
                                   "qkv,4,,,,1,0.5\n"
                                   "qkv,8,,,,1,6\n");
  EXPECT_EQ(imported.counts.contradictions, 1);
  EXPECT_EQ(imported.profile.tables[0].cells.size(), 3U);
}

TEST_F(Tables, HotTablesMayBeFasterThanMemory) {
  // Weights of 8 x 4 x 2 B take 0.064 s from memory, and one token's 64 FLOP take as long.
  const char* const kMap = R"({"format": "kvtier.columns/1", "rules": [
      {"op": "qkv", "time": "s", "new_tokens": "m", "cache": "%"}]})";
  const auto counts = [&](const std::string& cache) {
    std::string map = kMap;
    map.replace(map.find('%'), 1, cache);
    HardwareConfig hardware = slow_hardware();
    hardware.hbm.bandwidth = BytesPerSecond(100);
    const ModelConfig model = test::tiny_model();
    return import_tables(
               {{write("t.csv", "m,s\n1,0.1\n1,0.7\n"), read_columns(write("map.json", map))}},
               &model, hardware, {.name = "x"})
        .counts.beyond_limits;
  };
  EXPECT_EQ(counts("cold"), 1);
  EXPECT_EQ(counts("hot"), 0);
}

TEST_F(Tables, TablesWithShapesNeedNoModel) {
  const ColumnMap map = read_columns(write("map.json", R"({"format": "kvtier.columns/1", "rules": [
      {"op": "gemm", "time": "s", "new_tokens": "m", "sizes": {"n": "n", "k": "k"},
       "dtype": "type"}]})"));
  const fs::path table = write("t.csv",
                               "m,n,k,type,s\n1,2,4,bfloat16,1\n1,2,8,bfloat16,2\n"
                               "1,2,4,fp8_block,3\n1,2,4,fp6,3\n");
  const Imported imported = import_tables({{table, map}}, nullptr, slow_hardware(), {.name = "x"});
  EXPECT_EQ(imported.counts.unknown_types, 1);
  ASSERT_EQ(imported.profile.tables.size(), 2U);
  EXPECT_EQ(imported.profile.tables[0].operation, OperationId::gemm_grid);
  EXPECT_EQ(imported.profile.tables[0].dtype, DataType::bf16);
  EXPECT_EQ(imported.profile.tables[0].cells[1].at, (std::vector<std::int64_t>{1, 2, 8}));
  EXPECT_EQ(imported.profile.tables[1].dtype, DataType::fp8_block);
  try {
    static_cast<void>(
        import_tables({{write("o.csv", kHeader + "qkv,4,,,,1,3\n"), standard_columns()}}, nullptr,
                      slow_hardware(), {.name = "x"}));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.problems()[0].find("needs --model or columns of its sizes"), std::string::npos);
  }
}

TEST_F(Tables, ReadsForeignTablesByAMapOfTheirColumns) {
  const ColumnMap map = read_columns(write("map.json", R"({"format": "kvtier.columns/1", "rules": [
      {"op": "decode_attention", "time": "us", "unit": "us", "batch": "b", "context": "c",
       "where": {"kind": "d"}},
      {"op": "prefill_attention", "time": "us", "unit": "us", "new_tokens": "b",
       "past_tokens": "c", "where": {"kind": "p"}}]})"));
  const Imported imported = import("kind,b,c,us\nd,2,8,5e6\np,4,8,3e6\nx,1,1,1\n", map);
  ASSERT_EQ(imported.profile.tables.size(), 2U);
  EXPECT_EQ(imported.profile.tables[0].operation, OperationId::decode_attention);
  EXPECT_DOUBLE_EQ(imported.profile.tables[0].cells[0].median_seconds, 5);
  EXPECT_EQ(imported.profile.tables[1].operation, OperationId::prefill_attention);
}

TEST_F(Tables, ReportEveryBadLine) {
  EXPECT_EQ(
      problems(kHeader + "qvk,4,,,,1,3\n"
                         "qkv,4.5,,,,1,3\n"
                         "qkv,4,,,,1,fast\n"
                         "qkv,4,3\n"
                         "qkv,4,,,,0,3\n"),
      (Lines{"t.csv:2: /op: expected one of qkv, attention_output, mlp_up, mlp_down, lm_head, "
             "prefill_attention, decode_attention, norm, residual, activation, embedding, "
             "kv_write, rope, sampling, mixed_attention, gemm, moe, mla_prefill, mla_decode, "
             "all_reduce, quantize, state_prefill, state_decode, convolution, got \"qvk\"",
             "t.csv:3: new_tokens: expected a whole number, got \"4.5\"",
             "t.csv:5: expected 7 fields as in line 1, got 3",
             "t.csv:6: expected at least one GPU and one request"}));
  EXPECT_EQ(problems("op,new_token,past_tokens,batch,context,tensor_parallel,seconds\n"),
            Lines{"t.csv:1: no column \"new_tokens\" (did you mean \"new_token\"?)"});
  EXPECT_EQ(problems(""), Lines{"t.csv: the file is empty"});
  EXPECT_EQ(problems(kHeader), Lines{"t.csv: no row has a time that counts"});
}

TEST_F(Tables, AMissingTableIsBadInput) {
  const ModelConfig model = test::tiny_model();
  EXPECT_THROW(static_cast<void>(import_tables({{folder_ / "none.csv", standard_columns()}}, &model,
                                               slow_hardware(), {.name = "x"})),
               ConfigError);
}

TEST_F(Tables, MapsOfColumnsAreReadStrictly) {
  try {
    static_cast<void>(read_columns(write("map.json", R"({"format": "kvtier.columns/2", "rules": [
        {"time": "t", "unit": "min"}, {"op": "qkv", "op_column": "o", "time": "t"}]})")));
    FAIL();
  } catch (const ConfigError& error) {
    const std::string origin = (folder_ / "map.json").string() + ": ";
    EXPECT_EQ(error.problems(),
              (Lines{origin + "/format: expected \"kvtier.columns/1\", got \"kvtier.columns/2\"",
                     origin + "/rules/0: expected either op or op_column",
                     origin + "/rules/0/unit: expected one of s, ms, us, got \"min\"",
                     origin + "/rules/1: expected either op or op_column"}));
  }
}

TEST_F(Tables, AreJudgedOnTheHalfThatWasNotFitted) {
  // qkv at twice the roofline of tokens x 64 FLOP: its error is half. A power law is interpolated
  // exactly, but beyond either end the limit counts, which is as straight.
  std::string text = kHeader;
  for (std::int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    text +=
        "qkv," + std::to_string(tokens) + ",,,,1," + std::to_string(0.128 * double(tokens)) + "\n";
  }
  const Imported imported = import(text);
  const ModelConfig model = test::tiny_model();
  const std::vector<FitRow> rows = judge_fit(imported.profile, &model, slow_hardware(), 1);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].operation, "matrices");
  EXPECT_GT(rows[0].held_out.count, 3);
  EXPECT_LT(rows[0].held_out.count, 10);
  EXPECT_NEAR(rows[0].held_out.p90, 0, 1e-9);
  EXPECT_EQ(rows[0].roofline.count, 13);
  EXPECT_NEAR(rows[0].roofline.p50, 0.5, 1e-9);
}

TEST_F(Tables, SubtractLaunchesAndHaveStateLayers) {
  const std::map<std::string, std::string> sizes{
      {"key_heads", "k"}, {"value_heads", "v"}, {"key_dim", "dk"}, {"value_dim", "dv"}};
  ColumnMap columns;
  for (const TableOperation operation :
       {TableOperation::state_prefill, TableOperation::state_decode, TableOperation::convolution}) {
    columns.rules.push_back({.op = operation,
                             .time = "ms",
                             .unit = "ms",
                             .less = 0.5,
                             .new_tokens = "n",
                             .batch = "b",
                             .sizes = sizes});
  }
  const Imported imported = import("n,b,k,v,dk,dv,ms\n64,1,2,4,8,16,20000.5\n", columns);
  ASSERT_EQ(imported.profile.tables.size(), 3U);
  const ProfileTable& prefill = imported.profile.tables[0];
  EXPECT_EQ(prefill.operation, OperationId::state_prefill);
  EXPECT_EQ(prefill.shape.at("value_heads"), 4);
  EXPECT_EQ(prefill.cells[0].at, std::vector<std::int64_t>{64});
  EXPECT_NEAR(prefill.cells[0].median_seconds, 20, 1e-9);
  EXPECT_EQ(imported.profile.tables[1].cells[0].at, std::vector<std::int64_t>{1});
  // Queries and keys of 2 heads of 8, and values of 4 heads of 16.
  EXPECT_EQ(imported.profile.tables[2].shape.at("width"), 2 * 2 * 8 + 4 * 16);
}

/// Rows of published tables (tests/data).
class PublishedTables : public testing::Test {
 protected:
  static fs::path table(const std::string& name) {
    return fs::path(KVTIER_SOURCE_DIR) / "tests/data" / name;
  }
  static ColumnMap columns(const std::string& name) {
    return read_columns(fs::path(KVTIER_SOURCE_DIR) / "configs/columns" / name);
  }
};

TEST_F(PublishedTables, FitsTheA100WithinFivePercent) {
  // The roofline's two shares, once for this device.
  HardwareConfig hardware = test::load_hardware();
  hardware.efficiency.compute = 0.63;
  hardware.efficiency.memory = 0.72;
  for (const std::string name : {"llama2-7b", "llama2-70b"}) {
    SCOPED_TRACE(name);
    const ModelConfig model = test::load_model(name);
    std::vector<TableFile> files{{table(name == "llama2-7b" ? "a100_llama2_7b_linear.csv.gz"
                                                            : "a100_llama2_70b_linear.csv.gz"),
                                  columns("vidur_linear_medians.json")}};
    if (name == "llama2-7b") {
      files.push_back(
          {table("a800_llama2_7b_attention.csv.gz"), columns("vidur_attention_medians.json")});
    }
    const Imported imported = import_tables(files, &model, hardware, {.name = name});
    Problems problems;
    check_profile(imported.profile, problems);
    EXPECT_EQ(problems.lines(), Lines{});
    const std::vector<FitRow> rows = judge_fit(imported.profile, &model, hardware, 1);
    std::cout << to_text(imported, rows, hardware);
    for (const FitRow& row : rows) {
      SCOPED_TRACE(row.operation);
      EXPECT_LE(row.held_out.p50, 0.05);
      EXPECT_LE(row.held_out.p90, 0.15);
      if (row.operation == "matrices" || row.operation == "prefill of a layer") {
        EXPECT_LE(row.roofline.p50, 0.15);
      }
      if (row.operation == "decode attention") {
        EXPECT_LE(row.roofline.p50, 0.25);
      }
    }
  }
}

TEST_F(PublishedTables, ReadsShapesAndFormatsOfAiconfigurator) {
  HardwareConfig hardware = test::load_hardware("h100-8x");
  const Imported imported = import_tables(
      {{table("aiconfigurator_h100_gemm.csv"), columns("aiconfigurator_gemm.json")},
       {table("aiconfigurator_h100_context_attention.csv"),
        columns("aiconfigurator_context_attention.json")},
       {table("aiconfigurator_h100_allreduce.csv"), columns("aiconfigurator_allreduce.json")}},
      nullptr, hardware, {.name = "h100"});
  Problems problems;
  check_profile(imported.profile, problems);
  EXPECT_EQ(problems.lines(), Lines{});
  // bf16 and fp8 matrices, three counts of heads, all-reduces in a graph and outside.
  ASSERT_EQ(imported.profile.tables.size(), 7U);
  EXPECT_EQ(imported.counts.several_requests, 15);
  EXPECT_EQ(imported.counts.beyond_limits, 0);
  const ProfileTable& gemm = imported.profile.tables[0];
  EXPECT_EQ(gemm.axes, (Lines{"tokens", "n", "k"}));
  const ProfileTable& graph = *find_tables(imported.profile, OperationId::all_reduce, "graph")[0];
  // 128 elements of 2 bytes between 2 GPUs.
  EXPECT_EQ(graph.cells[0].at, (std::vector<std::int64_t>{2, 256}));
}

TEST_F(PublishedTables, ReadsMixedIterationsOfLLMServingSim) {
  HardwareConfig hardware = test::load_hardware("rtxpro6000-8x");
  const ModelConfig model = test::load_model("llama3-8b");
  const Imported imported = import_tables(
      {{table("llmservingsim_attention.csv"), columns("llmservingsim_attention.json")}}, &model,
      hardware, {.name = "rtxpro6000"});
  ASSERT_EQ(imported.profile.tables.size(), 3U);
  const ProfileTable& mixed = *find_tables(imported.profile, OperationId::mixed_attention).front();
  EXPECT_EQ(mixed.axes, (Lines{"new_tokens", "past_tokens", "batch", "context"}));
  EXPECT_FALSE(mixed.cells.empty());
  const ProfileTable& prefill =
      *find_tables(imported.profile, OperationId::prefill_attention).front();
  EXPECT_TRUE(
      std::ranges::any_of(prefill.cells, [](const ProfileCell& cell) { return cell.at[1] > 0; }));
}

TEST_F(PublishedTables, ReadsTheColumnsThatVidurPublishes) {
  HardwareConfig hardware = test::load_hardware();
  const ModelConfig model = test::load_model("opt-6.7b");
  const Imported imported = import_tables({{table("vidur_mlp.csv"), columns("vidur_linear.json")}},
                                          &model, hardware, {.name = "vidur"});
  // One empty cell and one NaN of 20.
  EXPECT_EQ(imported.counts.times, 20);
  EXPECT_EQ(imported.counts.not_numbers, 2);
}

TEST_F(Tables, RowsNearestToRandomChoiceBecomeTheTimesOfExperts) {
  const ModelConfig model = test::load_model("qwen3-30b-a3b");
  const ColumnMap map = read_columns(test::config_folder("columns") / "llmservingsim_moe.json");
  const auto read = [&](const ModelConfig& of, const ColumnMap& columns, const std::string& text) {
    return import_tables({{write("moe.csv", "tokens,activated_experts,time_us\n" + text), columns}},
                         &of, slow_hardware(), {.name = "experts"});
  };
  // 16 tokens that choose 8 of 128 experts reach 82 of them; 32 tokens on two GPUs reach 56 of 64.
  const Imported imported = read(model, map, "16,40,100000000\n16,80,200000000\n16,56,300000000\n");
  std::vector<std::int64_t> tokens;
  std::vector<double> seconds;
  for (const ProfileTable* table : find_tables(imported.profile, OperationId::moe)) {
    ASSERT_EQ(table->cells.size(), 1U);
    EXPECT_EQ(table->shape.at("experts"), 128);
    EXPECT_EQ(table->cells[0].at[0], 16 * table->shape.at("expert_gpus"));
    tokens.push_back(table->cells[0].at[0]);
    seconds.push_back(table->cells[0].median_seconds);
  }
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{16, 32, 64, 128}));
  ASSERT_EQ(seconds.size(), 4U);
  EXPECT_DOUBLE_EQ(seconds[0], 200);
  EXPECT_DOUBLE_EQ(seconds[1], 300);
  EXPECT_TRUE(find_tables(imported.profile, OperationId::rotation).empty());
  // A misspelt column is an error, and so is a model without experts.
  ColumnMap misspelt = map;
  misspelt.rules[0].reached_experts = "reached";
  EXPECT_THROW(static_cast<void>(read(model, misspelt, "1,8,1000000\n")), ConfigError);
  EXPECT_THROW(static_cast<void>(read(test::load_model("llama-3.1-8b"), map, "1,8,1000000\n")),
               ConfigError);
}

}  // namespace
}  // namespace kvtier::calibrate
