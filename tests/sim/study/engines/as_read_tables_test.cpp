/// Tables of engines whose code does not run here (as_read/README.md).

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/file.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/untimed_steps.hpp"
#include "sim/store/write_frequencies.hpp"
#include "sim/study/engines/named_tokens.hpp"
#include "sim/study/engines/replays.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

/// Makes the calls of a table on one store.
class Calls {
 public:
  Calls(const StoreRules& rules, const StoreKind& kind)
      : rules_(rules),
        tokens_(streams_),
        store_(kind.make(rules_, streams_, {})),
        steps_(*store_) {}

  Json make(const Json& call) {
    const auto name = call.at("call").get<std::string>();
    Json results = Json::object();
    if (name == "begin") {
      results = begin(call.at("request").get<std::string>(), call);
    } else if (name == "serve") {
      results = begin("", call);
      end("");
    } else if (name == "respond") {
      Request& request = requests_.at(call.at("request").get<std::string>());
      const std::vector<std::int64_t> more = tokens_.of(call.at("tokens"));
      request.computed.insert(request.computed.end(), more.begin(), more.end());
      const Context context{tokens_.stream(request.computed, ""),
                            Tokens(std::ssize(request.computed))};
      EXPECT_TRUE(store_->grow(request.id, context));
      steps_.compute(request.id, context.tokens);
    } else if (name == "end") {
      end(call.at("request").get<std::string>());
    } else if (name == "advance") {
      now_ = now_ + SimDuration(call.at("seconds").get<std::int64_t>() * 1'000'000'000);
      store_->advance(now_);
    } else if (name == "held") {
      results["blocks_held"] = held(call.at("tier").get<std::size_t>(), call.at("prompt"));
    } else if (name == "priorities") {
      for (std::int64_t i = 0; i < call.at("blocks").get<std::int64_t>(); ++i) {
        results["priorities"].push_back(
            priority_of(rules_.pools[call.at("tier").get<std::size_t>()], i));
      }
    } else {
      EXPECT_EQ(name, "check");
    }
    results["free"] = store_->free_blocks().available;
    for (std::size_t i = 0; i < rules_.pools.size(); ++i) {
      results["blocks"].push_back(store_->resident_blocks(i));
    }
    store_->check_invariants();
    return results;
  }

 private:
  struct Request {
    RequestId id;
    std::vector<std::int64_t> computed;
  };

  Json begin(const std::string& name, const Json& call) {
    std::vector<std::int64_t> prompt = tokens_.of(call.at("prompt"));
    const Context context{tokens_.stream(prompt, ""), Tokens(std::ssize(prompt))};
    const Tokens computed(call.value("tokens", context.tokens.value));
    Match match;
    const auto id = store_->acquire(context, {.taken = computed, .needed = context.tokens}, match);
    if (!id) {
      return {{"fits", false}};
    }
    steps_.begin(*id);
    steps_.compute(*id, computed);
    prompt.resize(static_cast<std::size_t>(computed.value));
    requests_[name] = {*id, std::move(prompt)};
    Json found = Json::array();
    for (const Tokens tokens : match.by_pool) {
      found.push_back(tokens.value);
    }
    return {{"fits", true}, {"found", std::move(found)}};
  }
  void end(const std::string& name) {
    const Request request = requests_.at(name);
    requests_.erase(name);
    store_->release(request.id);
    steps_.end(request.id, Tokens(std::ssize(request.computed)));
  }
  std::int64_t held(std::size_t tier, const Json& pieces) {
    const std::vector<std::int64_t> prompt = tokens_.of(pieces);
    const StreamId stream = tokens_.stream(prompt, "");
    const std::int64_t block = rules_.pools[tier].block.value;
    std::set<std::pair<StreamId, std::int64_t>> keys;
    for (const Stretch& one : store_->contents(tier)) {
      keys.emplace(one.stream, one.begin);
    }
    std::int64_t blocks = 0;
    while ((blocks + 1) * block <= std::ssize(prompt) &&
           keys.contains({streams_.stream_at(stream, Tokens((blocks + 1) * block - 1)), blocks})) {
      ++blocks;
    }
    return blocks;
  }

  StoreRules rules_;
  Streams streams_;
  NamedTokens tokens_;
  std::unique_ptr<Store> store_;
  UntimedSteps steps_;
  SimTime now_;
  std::map<std::string, Request> requests_;
};

class AsRead : public testing::TestWithParam<const char*> {};

TEST_P(AsRead, TheTablesOfAnEngineHoldOnBothStores) {
  const std::filesystem::path path =
      source_dir() / "tests/sim/study/engines/as_read" / (std::string(GetParam()) + ".json");
  const Json file = parse_json_strictly(read_text_file(path), path.string());
  EXPECT_EQ(file.at("schema"), "kvtier.as_read_tables/1");
  int expected = 0;
  for (const Json& table : file.at("tables")) {
    std::vector<std::string> settings{"/system=" + file.at("preset").get<std::string>()};
    for (const Json& setting : table.at("set")) {
      settings.push_back(setting.get<std::string>());
    }
    const StoreRules rules = store_rules(resolved("examples/h100-8x.json", settings));
    for (const StoreKind& kind : store_kinds()) {
      Calls calls(rules, kind);
      for (std::size_t i = 0; i < table.at("calls").size(); ++i) {
        const Json& call = table["calls"][i];
        const Json results = calls.make(call);
        if (!call.contains("expect")) {
          continue;
        }
        for (const auto& [name, value] : call["expect"].items()) {
          ++expected;
          EXPECT_EQ(results.value(name, Json("not known")), value)
              << table.at("name") << ", " << kind.name << ", call " << i << ", " << name;
        }
      }
    }
  }
  EXPECT_GT(expected, 20);
}

INSTANTIATE_TEST_SUITE_P(Engines, AsRead,
                         testing::Values("tensorrt_llm", "dynamo_kvbm", "flexkv", "mooncake_store"),
                         [](const auto& engine) { return std::string(engine.param); });

// filter.rs: the count of a block is 1, 2, 4; all fall by one at each interval, and as long as
// there are more than the entries allow.
TEST(WriteFrequencies, DoubleAndFall) {
  const StreamId a{0};
  WriteFrequencies counts(
      FrequencyFilter{.least = 2, .forget_every = SimDuration(600), .entries = 2});
  EXPECT_FALSE(counts.admit(a, 0));
  EXPECT_TRUE(counts.admit(a, 0));
  EXPECT_TRUE(counts.admit(a, 0));
  EXPECT_EQ(counts.count(a, 0), 4);
  counts.advance(SimTime(599));
  EXPECT_EQ(counts.count(a, 0), 4);
  counts.advance(SimTime(1200));
  EXPECT_EQ(counts.count(a, 0), 2);
  EXPECT_FALSE(counts.admit(a, 1));
  EXPECT_FALSE(counts.admit(a, 2));
  EXPECT_EQ(counts.count(a, 0), 1);
  EXPECT_EQ(counts.count(a, 1), 0);
  EXPECT_EQ(counts.count(a, 2), 0);
  EXPECT_TRUE(counts.remembers(a));
  counts.advance(SimTime(1800));
  EXPECT_FALSE(counts.remembers(a));
}

}  // namespace
}  // namespace kvtier::test
