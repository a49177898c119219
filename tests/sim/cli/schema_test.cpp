/// The JSON Schema files and the key reference equal what the program prints, and every config of
/// the repository satisfies both the schema and the program.

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Checks a value against the keywords of JSON Schema that the program uses; throws for any other.
/// Returns where the first problem is, or "" if there is none.
std::string problem(const json& value, const json& schema, const std::string& at) {
  const auto has_type = [&](const std::string& type) {
    return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
           (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
           (type == "integer" && value.is_number_integer()) ||
           (type == "boolean" && value.is_boolean());
  };
  for (const auto& [keyword, argument] : schema.items()) {
    if (keyword == "type") {
      bool holds = false;
      for (const json& type : argument.is_array() ? argument : json::array({argument})) {
        holds = holds || has_type(type);
      }
      if (!holds) {
        return at + ": not " + argument.dump();
      }
    } else if (keyword == "anyOf") {
      std::string first;
      bool holds = false;
      for (const json& choice : argument) {
        const std::string found = problem(value, choice, at);
        holds = holds || found.empty();
        first = found.empty() ? first : found;
      }
      if (!holds) {
        return first;
      }
    } else if (keyword == "const") {
      if (value != argument) {
        return at + ": not " + argument.dump();
      }
    } else if (keyword == "enum") {
      if (std::find(argument.begin(), argument.end(), value) == argument.end()) {
        return at + ": not of " + argument.dump();
      }
    } else if (keyword == "required") {
      for (const json& key : argument) {
        if (!value.contains(key.get<std::string>())) {
          return at + ": lacks " + key.dump();
        }
      }
    } else if (keyword == "properties" || keyword == "additionalProperties") {
      if (!value.is_object()) {
        continue;
      }
      const json& properties =
          schema.contains("properties") ? schema["properties"] : json::object();
      for (const auto& [key, item] : value.items()) {
        const bool named = properties.contains(key);
        if (named != (keyword == "properties")) {
          continue;
        }
        if (!named && argument.is_boolean()) {
          if (!argument.get<bool>()) {
            return at + "/" + key + ": unknown";
          }
          continue;
        }
        const std::string below = problem(item, named ? argument[key] : argument, at + "/" + key);
        if (!below.empty()) {
          return below;
        }
      }
    } else if (keyword == "items") {
      for (const json& item : value) {
        const std::string below = problem(item, argument, at + "/-");
        if (!below.empty()) {
          return below;
        }
      }
    } else if (keyword == "propertyNames") {
      if (value.is_object()) {
        for (const auto& [key, item] : value.items()) {
          const std::string below = problem(key, argument, at + "/" + key);
          if (!below.empty()) {
            return below;
          }
        }
      }
    } else if (keyword == "pattern") {
      if (value.is_string() &&
          !std::regex_search(value.get<std::string>(), std::regex(argument.get<std::string>()))) {
        return at + ": does not match " + argument.get<std::string>();
      }
    } else if (keyword == "minimum" || keyword == "exclusiveMinimum" || keyword == "maximum") {
      if (!value.is_number()) {
        continue;
      }
      const auto number = value.get<double>();
      const auto limit = argument.get<double>();
      if (keyword == "maximum" ? number > limit
                               : (keyword == "minimum" ? number < limit : number <= limit)) {
        return at + ": " + keyword + " is " + argument.dump();
      }
    } else if (keyword != "description" && keyword != "examples" && keyword != "title" &&
               keyword != "$schema") {
      throw std::runtime_error("unknown keyword " + keyword);
    }
  }
  return "";
}

const std::vector<std::string> kSchemas{"run",     "model", "hardware", "system",
                                        "profile", "sweep", "plan"};

class Schemas : public ProgramTest {
 protected:
  [[nodiscard]] json schema(const std::string& which) const {
    return json::parse(kvtier({"schema", which}).out);
  }
};

TEST_F(Schemas, InTheRepositoryEqualTheProgramsOutput) {
  for (const std::string& which : kSchemas) {
    const Outcome outcome = kvtier({"schema", which});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_file_holds(configs() / "schema" / (which + ".schema.json"), outcome.out);
  }
}

TEST_F(Schemas, DescribeTheConfigOfARunByDefault) {
  EXPECT_EQ(kvtier({"schema"}).out, kvtier({"schema", "run"}).out);
}

/// A paper's figures and the list of its runs are no configs: `kvtier reproduce` reads them. Nor
/// are the names of a table's columns, price lists, tables of engines, nor what results are
/// expected to be.
bool is_config(const fs::path& file) {
  return file.extension() == ".json" && file.filename() != "reproduction.json" &&
         file.parent_path().filename() != "figures" && file.parent_path().filename() != "columns" &&
         file.parent_path().filename() != "prices" && file.parent_path().filename() != "engines" &&
         file.stem().extension() != ".expect";
}

TEST_F(Schemas, AcceptEveryConfigOfTheRepository) {
  const std::map<std::string, std::string> kinds{
      {"models", "model"},     {"hardware", "hardware"}, {"systems", "system"},
      {"profiles", "profile"}, {"papers", "run"},        {"examples", "run"},
      {"sweeps", "run"},       {"plans", "run"},         {"validation", "run"}};
  std::map<std::string, int> seen;
  for (const auto& file : fs::recursive_directory_iterator(configs())) {
    if (!is_config(file.path())) {
      continue;
    }
    const std::string folder = (*fs::relative(file.path(), configs()).begin()).string();
    if (folder == "schema") {
      continue;
    }
    ASSERT_TRUE(kinds.contains(folder)) << file.path();
    const json config = json::parse(read_file(file.path()));
    // Beside a sweep or a plan lies the run that it varies.
    const std::string kind = config.contains("slo")    ? "plan"
                             : config.contains("axes") ? "sweep"
                                                       : kinds.at(folder);
    ++seen[kind];
    EXPECT_EQ(problem(config, schema(kind), ""), "") << file.path();
    if (config.contains("$schema")) {
      const fs::path named = file.path().parent_path() / config["$schema"].get<std::string>();
      EXPECT_TRUE(fs::exists(named)) << named;
      EXPECT_EQ(named.filename(), kind + ".schema.json") << file.path();
    }
  }
  for (const char* which : {"run", "model", "hardware", "system", "sweep", "plan"}) {
    EXPECT_GT(seen[which], 0) << which;
  }
}

TEST_F(Schemas, AcceptTheResolvedConfig) {
  write_run();
  const json config = json::parse(kvtier({"simulate", "run.json", "--print-config"}).out);
  EXPECT_EQ(problem(config, schema("run"), ""), "");
}

TEST_F(Schemas, RefuseWhatTheProgramRefuses) {
  const json run = schema("run");
  const auto changed = [](const char* pointer, const json& value) {
    json config = json::parse(read_file(configs() / "examples" / "planner-70.json"));
    config[json::json_pointer(pointer)] = value;
    return config;
  };
  EXPECT_EQ(problem(changed("/hardware/dram/capacity", "64GiB"), run, ""), "");
  EXPECT_NE(problem(changed("/hardware/dram/capacity", "64"), run, ""), "");
  EXPECT_NE(problem(changed("/hardware/dram/capacity", 64), run, ""), "");
  EXPECT_NE(problem(changed("/hardware/dram/capcity", "64GiB"), run, ""), "");
  EXPECT_NE(problem(changed("/serving/slots", 0), run, ""), "");
  EXPECT_NE(problem(changed("/serving/long_turn", "cut"), run, ""), "");
  EXPECT_NE(problem(changed("/workload/generator", "sharegpd"), run, ""), "");
  EXPECT_NE(problem(changed("/seed", -1), run, ""), "");
}

TEST_F(Schemas, EveryRunOfTheRepositoryResolves) {
  int runs = 0;
  for (const char* folder : {"papers", "examples"}) {
    for (const auto& file : fs::recursive_directory_iterator(configs() / folder)) {
      if (is_config(file.path()) && !json::parse(read_file(file.path())).contains("axes")) {
        ++runs;
        const Outcome outcome = kvtier({"simulate", file.path().string(), "--print-config"});
        EXPECT_EQ(outcome.code, 0) << file.path() << "\n" << outcome.err;
      }
    }
  }
  EXPECT_GT(runs, 0);
}

TEST_F(Schemas, EveryPresetResolvesInARun) {
  write_run();
  for (const auto& [folder, section] :
       {std::pair{"models", "/model"}, std::pair{"hardware", "/hardware"},
        std::pair{"systems", "/system"}}) {
    for (const auto& file : fs::directory_iterator(configs() / folder)) {
      if (file.path().extension() == ".json") {
        const Outcome outcome =
            kvtier({"simulate", "run.json", "--print-config", "--set",
                    std::string(section) + "=" + file.path().stem().string(), "--set",
                    "/hardware/gpus=4", "--set", "/hardware/hbm/capacity=1TiB", "--set",
                    R"(/hardware/cxl={"capacity": "512GiB", "price": "0$/h/GiB",
                                           "bandwidth": {"read": "64GB/s", "write": "64GB/s",
                                                         "both": "128GB/s"}})"});
        EXPECT_EQ(outcome.code, 0) << file.path() << "\n" << outcome.err;
      }
    }
  }
}

class Reference : public ProgramTest {
 protected:
  const fs::path page_ = fs::path(KVTIER_SOURCE_DIR) / "docs/reference/config.md";
};

TEST_F(Reference, InTheRepositoryEqualsTheProgramsOutput) {
  const Outcome outcome = kvtier({"schema", "run", "--markdown"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::string page = read_file(page_);
  const Part part = marked_part(page, "kvtier schema --markdown");
  page.replace(part.begin, part.text.size(), outcome.out);
  expect_file_holds(page_, page);
}

/// Every key of the schema, as a pointer.
void collect_keys(const json& schema, const std::string& at, std::vector<std::string>& keys) {
  if (schema.contains("properties")) {
    for (const auto& [key, value] : schema["properties"].items()) {
      if (key != "$schema" && key != "preset" && key != "policy") {
        keys.push_back(at + "/" + key);
        collect_keys(value, at + "/" + key, keys);
      }
    }
  }
  if (schema.contains("anyOf")) {
    for (const json& choice : schema["anyOf"]) {
      // The reference has the keys of service curves once.
      const bool is_curve = choice.value("description", "") == "A service curve.";
      collect_keys(choice, is_curve ? "" : at, keys);
    }
  }
}

/// The page without the marks of keys to start with.
std::string unmarked(std::string page) {
  for (const std::string mark : {"**`", "`**"}) {
    for (std::size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at)) {
      page.replace(at, mark.size(), "`");
    }
  }
  return page;
}

TEST_F(Reference, BeginsWithTheKeysOfAFirstConfig) {
  const std::string out = kvtier({"schema", "run", "--markdown"}).out;
  const std::string start = out.substr(0, out.find("\n### /workload"));
  const std::string rest = out.substr(start.size());
  std::istringstream lines(start);
  std::size_t keys = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| **")) {
      ++keys;
      EXPECT_NE(rest.find("\n" + line + "\n"), std::string::npos) << line;
    }
  }
  EXPECT_EQ(keys, 25U);
}

TEST_F(Reference, HasEveryKeyOfTheSchema) {
  const std::string page = unmarked(read_file(page_));
  const std::set<std::string> curve_keys{"/rate", "/latency", "/alone", "/depth"};
  std::vector<std::string> keys;
  collect_keys(json::parse(kvtier({"schema"}).out), "", keys);
  EXPECT_GT(keys.size(), 80U);
  for (const std::string& key : keys) {
    const bool is_section = key.find('/', 1) == std::string::npos && !curve_keys.contains(key);
    EXPECT_NE(page.find(is_section ? "### " + key + "\n" : "| `" + key + "` |"), std::string::npos)
        << key;
  }
}

}  // namespace
}  // namespace kvtier::test
