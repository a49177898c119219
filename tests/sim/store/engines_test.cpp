/// What the engines' own code finds, request by request.

#include <gtest/gtest.h>

#include "tests/sim/store/replays.hpp"

namespace kvtier {
namespace {

enum class Engine : std::uint8_t { vllm, sglang, lmcache };

struct OracleCase {
  /// Of the file.
  std::string name;
  std::string trace;
  Engine engine = Engine::vllm;
  std::string eviction = "lru";
  Tokens block;
  Tokens chunk{0};
  bool with_output = false;
  std::size_t held = 1;
};

StoreRules rules_of(const OracleCase& oracle, std::int64_t tokens) {
  StoreRules rules;
  PoolRules pool{
      .capacity = tokens / oracle.block.value, .block = oracle.block, .eviction = oracle.eviction};
  if (oracle.engine == Engine::lmcache) {
    pool.insertion = End::head;
    pool.touch = Touch::lookup;
  } else {
    rules.requests_in_first = true;
    rules.hit_cap = HitCap::last_token;
  }
  if (oracle.engine == Engine::vllm) {
    rules.publication = Publication::scheduling;
    rules.duplicates = Duplicates::kept;
  }
  if (oracle.engine == Engine::sglang) {
    rules.publication = Publication::computed;
    pool.unit = EvictionUnit::node;
    pool.one_block_more = true;
  }
  rules.pools = {pool};
  return rules;
}

void expect_equal(const OracleCase& oracle, const StoreKind& kind) {
  const auto table = read_oracle(oracle.name);
  auto trace = table ? read_hash_trace(oracle.trace, table->rows.size()) : std::nullopt;
  if (!trace) {
    GTEST_SKIP() << "there is no ../shared/data";
  }
  ASSERT_EQ(trace->requests.size(), table->rows.size());
  int capacities = 0;
  for (std::size_t column = 2; column < table->columns.size(); ++column) {
    const std::string& name = table->columns[column];
    if (name.rfind("hit_", 0) != 0) {
      continue;
    }
    ++capacities;
    const bool evictions =
        column + 1 < table->columns.size() && table->columns[column + 1].rfind("evict_", 0) == 0;
    Streams streams = trace->streams;
    const StoreRules rules = rules_of(oracle, tokens_of(name.substr(4)));
    const auto store = kind.make(rules, streams, {});
    VllmReplay vllm{.most_held = oracle.held, .with_output = oracle.with_output, .held = {}};
    std::size_t different = 0;
    std::string first;
    for (std::size_t i = 0; i < trace->requests.size(); ++i) {
      const HashRequest& request = trace->requests[i];
      Replayed replayed;
      switch (oracle.engine) {
        case Engine::vllm:
          replayed = replay_vllm(*store, streams, request, vllm);
          break;
        case Engine::sglang:
          replayed = replay_sglang(*store, streams, request, oracle.block, oracle.chunk,
                                   oracle.with_output);
          replayed.evicted_for_prompt *= oracle.block.value;
          break;
        case Engine::lmcache:
          replayed = replay_cache(*store, request.context());
          replayed.evicted_for_prompt = store->counters(0).evicted;
          break;
      }
      const std::vector<std::int64_t>& row = table->rows[i];
      if (replayed.match.tokens.value != row[column] ||
          (evictions && replayed.evicted_for_prompt != row[column + 1])) {
        if (different++ == 0) {
          first = "request " + std::to_string(i) + ": hit " +
                  std::to_string(replayed.match.tokens.value) + ", evicted " +
                  std::to_string(replayed.evicted_for_prompt);
        }
      }
    }
    store->check_invariants();
    EXPECT_EQ(different, 0) << oracle.name << ", " << name << ", " << kind.name << ": " << first;
  }
  EXPECT_GT(capacities, 0);
}

struct OffloadCase {
  const char* trace;
  /// In the file's name.
  const char* rows;
  const char* gpu;
  const char* cpu;
  const char* eviction;
  bool with_output = false;
};

/// vLLM's scheduler with CPU offload, one request at a time: a step computes 8,192 tokens.
class VllmOffload : public testing::TestWithParam<OffloadCase> {};

TEST_P(VllmOffload, FindsTheSameRequestByRequest) {
  const OffloadCase& oracle = GetParam();
  const std::string name = std::string("vllm_sched_") + oracle.rows + "_g" + oracle.gpu + "_c" +
                           oracle.cpu + "_" + oracle.eviction + "_seqs1_" +
                           (oracle.with_output ? "output" : "prompt");
  const auto table = read_oracle(name);
  auto trace = table ? read_hash_trace(oracle.trace, table->rows.size()) : std::nullopt;
  if (!trace) {
    GTEST_SKIP() << "there is no ../shared/data";
  }
  constexpr Tokens kStep{8192};
  for (const StoreKind& kind : store_kinds()) {
    Streams streams = trace->streams;
    StoreRules rules;
    rules.requests_in_first = true;
    rules.hit_cap = HitCap::last_token;
    rules.publication = Publication::scheduling;
    rules.duplicates = Duplicates::kept;
    rules.pools = {{.capacity = tokens_of(oracle.gpu) / kTraceBlock.value, .block = kTraceBlock}};
    if (const std::int64_t cpu = tokens_of(oracle.cpu); cpu > 0) {
      rules.pools.push_back(
          {.capacity = cpu / kTraceBlock.value, .block = kTraceBlock, .eviction = oracle.eviction});
      rules.edges = {{.write = Write::with_compute, .prompts_only = true}};
    }
    const auto store = kind.make(rules, streams, {});
    std::size_t different = 0;
    std::string first;
    for (std::size_t i = 0; i < trace->requests.size(); ++i) {
      const HashRequest& request = trace->requests[i];
      Match match;
      const auto held = store->acquire(request.context(), request.prompt, match);
      ASSERT_TRUE(held);
      for (Tokens done = match.tokens; done < request.prompt;) {
        done = std::min(request.prompt, done + kStep);
        store->computed(*held, done);
      }
      if (oracle.with_output) {
        ASSERT_TRUE(store->grow(*held, with_response(streams, request)));
      }
      store->release(*held);
      const std::int64_t cpu = match.by_pool.size() > 1 ? match.by_pool[1].value : 0;
      const std::vector<std::int64_t>& row = table->rows[i];
      if ((match.by_pool[0].value != row[2] || cpu != row[3]) && different++ == 0) {
        first = "request " + std::to_string(i) + ": " + std::to_string(match.by_pool[0].value) +
                " and " + std::to_string(cpu) + ", expected " + std::to_string(row[2]) + " and " +
                std::to_string(row[3]);
      }
    }
    store->check_invariants();
    EXPECT_EQ(different, 0) << name << ", " << kind.name << ": " << first;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Oracles, VllmOffload,
    testing::Values(OffloadCase{"mooncake_conversation", "conversation", "1Mi", "0Mi", "none"},
                    OffloadCase{"mooncake_conversation", "conversation", "1Mi", "5Mi", "lru"},
                    OffloadCase{"mooncake_conversation", "conversation300", "1Mi", "5Mi", "lru",
                                true},
                    OffloadCase{"mooncake_1000", "mooncake1000", "1Mi", "0Mi", "none"},
                    OffloadCase{"mooncake_1000", "mooncake1000", "1Mi", "5Mi", "lru"},
                    OffloadCase{"mooncake_1000", "mooncake1000", "256Ki", "1024Ki", "lru"},
                    OffloadCase{"mooncake_conversation", "conversation", "1Mi", "5Mi", "arc"},
                    OffloadCase{"mooncake_1000", "mooncake1000", "1Mi", "5Mi", "arc"},
                    OffloadCase{"mooncake_1000", "mooncake1000", "256Ki", "1024Ki", "arc"}),
    [](const auto& one) {
      return std::string(one.param.rows) + "_" + one.param.gpu + "_" + one.param.cpu + "_" +
             one.param.eviction;
    });

class Engines : public testing::TestWithParam<OracleCase> {};

TEST_P(Engines, FindTheSameRequestByRequest) {
  for (const StoreKind& kind : store_kinds()) {
    expect_equal(GetParam(), kind);
  }
}

std::vector<OracleCase> cases() {
  const auto vllm = [](const char* variant, const char* trace, const char* rows,
                       std::int64_t block) {
    const std::string what = variant;
    return OracleCase{.name = "vllm_mgr_" + what + "_" + rows + "_b" + std::to_string(block),
                      .trace = trace,
                      .engine = Engine::vllm,
                      .block = Tokens(block),
                      .with_output = what.rfind("output", 0) == 0,
                      .held = what == "fifo32" ? std::size_t{32} : 1};
  };
  const auto sglang = [](const std::string& tree, const char* eviction, bool output,
                         std::int64_t chunk, const std::string& trace, std::int64_t page) {
    return OracleCase{.name = "sgl_" + tree + "_" + eviction + (output ? "_output" : "_prompt") +
                              "_chunk" + std::to_string(chunk) + "_" +
                              (trace == "mooncake_1000" ? "mooncake1000" : "conversation") + "_p" +
                              std::to_string(page),
                      .trace = trace,
                      .engine = Engine::sglang,
                      .eviction = eviction,
                      .block = Tokens(page),
                      .chunk = Tokens(chunk),
                      .with_output = output};
  };
  const auto lmcache = [](const char* eviction, const char* trace, const char* rows) {
    return OracleCase{.name = std::string("lmcache_") + eviction + "_" + rows + "_c256",
                      .trace = trace,
                      .engine = Engine::lmcache,
                      .eviction = eviction,
                      .block = Tokens(256)};
  };
  const char* conversation = "mooncake_conversation";
  const char* small = "mooncake_1000";
  return {
      vllm("prompt", conversation, "conversation", 512),
      vllm("output", conversation, "conversation", 512),
      vllm("fifo32", conversation, "conversation", 512),
      vllm("prompt", conversation, "conversation2000", 16),
      vllm("prompt", conversation, "conversation2000", 512),
      vllm("output", conversation, "conversation300", 512),
      vllm("output_pertoken", conversation, "conversation300", 512),
      vllm("prompt", small, "mooncake1000", 512),
      vllm("output", small, "mooncake1000", 512),
      vllm("fifo32", small, "mooncake1000", 512),
      sglang("radix", "lru", false, 8192, conversation, 64),
      sglang("radix", "lru", false, 0, conversation, 64),
      sglang("radix", "lru", false, 0, conversation, 512),
      sglang("radix", "lru", true, 8192, conversation, 64),
      sglang("radix", "lfu", false, 8192, conversation, 64),
      sglang("radix", "lru", true, 0, small, 64),
      sglang("radix", "lru", false, 0, small, 1),
      sglang("radix", "lru", false, 0, small, 64),
      sglang("radix", "lru", false, 0, small, 512),
      sglang("radix", "lfu", false, 8192, small, 64),
      sglang("unified", "lru", false, 8192, conversation, 64),
      sglang("unified", "lru", false, 0, small, 64),
      lmcache("lru", conversation, "conversation"),
      lmcache("lfu", conversation, "conversation"),
      lmcache("lru", small, "mooncake1000"),
  };
}

INSTANTIATE_TEST_SUITE_P(Oracles, Engines, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace kvtier
