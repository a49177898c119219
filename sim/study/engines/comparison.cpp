#include "sim/study/engines/comparison.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/text.hpp"
#include "sim/replay/step_replay.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/engines/replays.hpp"
#include "sim/study/runs/run_threads.hpp"

namespace kvtier {
namespace {

using Value = OracleRun::Column::Value;

/// Tokens that one step of vLLM's scheduler computed for the tables.
constexpr Tokens kStep{8192};

const char* name_of(Value value) {
  switch (value) {
    case Value::hit:
      return "hit";
    case Value::hit_gpu:
      return "hit_gpu";
    case Value::hit_cpu:
      return "hit_cpu";
    case Value::host_match:
      return "host_match";
    case Value::evicted:
      return "evicted";
    case Value::evicted_tokens:
      return "evicted_tokens";
    case Value::forced:
      return "forced";
  }
  return "";
}

/// The outcome of one request.
struct Found {
  std::vector<Tokens> by_pool;
  /// Tokens of the prompt in host memory, before the request took its KV.
  Tokens on_host{0};
  std::int64_t evicted_blocks = 0;
  std::int64_t forced = 0;
};

std::int64_t value_of(const Found& found, Value value, Tokens block) {
  switch (value) {
    case Value::hit:
    case Value::hit_gpu:
      return found.by_pool[0].value;
    case Value::hit_cpu:
      return found.by_pool.size() > 1 ? found.by_pool[1].value : 0;
    case Value::host_match:
      return found.on_host.value;
    case Value::evicted:
      return found.evicted_blocks;
    case Value::evicted_tokens:
      return found.evicted_blocks * block.value;
    case Value::forced:
      return found.forced;
  }
  return 0;
}

/// The preset `vllm` or `vllm_cpu_offload` with tiers of these sizes in tokens. The server's memory
/// sets no limit.
RunConfig preset_config(const OracleKind& kind, std::int64_t gpu, std::int64_t cpu,
                        const HashTrace& trace, const ConfigDirectory& presets) {
  Tokens longest = std::max(kind.block, Tokens(2));
  for (const HashRequest& request : trace.requests) {
    longest = std::max(longest, request.prompt + request.output);
  }
  const auto tokens = [](Tokens count) { return format_quantity(count); };
  const auto tier = [&](std::int64_t capacity) {
    return Json{{"block_size", tokens(kind.block)},
                {"blocks", {{"capacity", tokens(Tokens(capacity))}}}};
  };
  Json system{{"preset", cpu > 0 ? "vllm_cpu_offload" : "vllm"}, {"tiers", {{"hbm", tier(gpu)}}}};
  if (cpu > 0) {
    system["tiers"]["dram"] = tier(cpu);
    system["tiers"]["dram"]["eviction"] = kind.eviction;
  }
  ConfigRequest request;
  request.inline_config = InlineConfig{
      .json = {{"model", {{"preset", "llama3-8b"}, {"context_window", tokens(longest)}}},
               {"hardware", {{"preset", "h100-80g"}, {"hbm", {{"capacity", "16TiB"}}}}},
               {"system", system},
               {"serving",
                {{"slots", kind.held},
                 {"token_budget", tokens(kStep)},
                 {"one_at_a_time", kind.held == 1}}},
               {"workload", {{"trace", "the trace"}, {"arrivals", "trace"}}}},
      .origin = "vllm"};
  return resolve_config(request, presets, builtin_policies()).config;
}

StoreRules rules_of(const OracleKind& kind, std::int64_t tokens, const HashTrace& trace,
                    const ConfigDirectory& presets) {
  if (kind.engine == OracleEngine::vllm_manager || kind.engine == OracleEngine::vllm_scheduler) {
    return store_rules(preset_config(kind, tokens, kind.cpu, trace, presets));
  }
  StoreRules rules;
  rules.hit_cap = HitCap::none;
  PoolRules pool{
      .capacity = tokens / kind.block.value, .block = kind.block, .eviction = kind.eviction};
  if (kind.engine == OracleEngine::lmcache) {
    pool.insertion = End::head;
    pool.touch = Touch::lookup;
    pool.allocation = Allocation::write;
  } else {
    rules.requests_in_first = true;
    rules.hit_cap = HitCap::last_token;
    rules.publication = Publication::computed;
    pool.unit = EvictionUnit::node;
    rules.one_block_more = true;
    rules.whole_need = kind.engine == OracleEngine::sglang_0510;
  }
  rules.pools = {pool};
  if (kind.engine == OracleEngine::sglang_0510 && kind.cpu > 0) {
    pool.name = "dram";
    pool.capacity = kind.cpu / kind.block.value;
    rules.pools.push_back(pool);
    rules.edges = {{.write = kind.writes_from > 1 ? Write::after_uses : Write::on_create,
                    .uses = kind.writes_from,
                    .least_load = Tokens(10)}};
  }
  return rules;
}

/// The first `most` requests of a trace, which all arrive at once.
class AtOnce final : public SessionSource {
 public:
  AtOnce(const HashTrace& trace, std::size_t most, bool responses)
      : trace_(trace), streams_(trace.streams), most_(most), responses_(responses) {}
  bool next(SessionSpec& session) override {
    if (given_ == most_) {
      return false;
    }
    const HashRequest& request = trace_.requests[given_];
    session = {};
    session.id = static_cast<std::int64_t>(given_++);
    session.turns = {{request.prompt, responses_ ? request.output : Tokens(1), SimDuration()}};
    session.contents = {{.prompt = request.context()}};
    return true;
  }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = kTraceBlock, .partial = true};
  }

 private:
  const HashTrace& trace_;
  Streams streams_;
  std::size_t most_;
  bool responses_;
  std::size_t given_ = 0;
};

/// Collects the hits of each request of a run.
class FoundBySession final : public RunObserver {
 public:
  FoundBySession(std::size_t requests, const TiersConfig& tiers)
      : found_(requests, {.by_pool = {Tokens(0)}}) {
    for_each_tier(tiers,
                  [&](const char* name, const TierConfig&) { media_.push_back(medium_of(name)); });
  }
  void on_request(const RequestRecord& request) override {
    std::vector<Tokens>& found = found_[static_cast<std::size_t>(request.session)].by_pool;
    found.clear();
    for (const Medium medium : media_) {
      found.push_back(request.prompt_found[static_cast<std::size_t>(medium)]);
    }
  }
  [[nodiscard]] const std::vector<Found>& found() const { return found_; }

 private:
  std::vector<Found> found_;
  std::vector<Medium> media_;
};

void stop_if_asked(const CompareOptions& options) {
  if (options.stop.stop_requested()) {
    throw Stopped();
  }
}

/// Runs the requests in batches of the scheduler, with at most `kind.held` at once.
std::vector<Found> run_in_steps(const OracleKind& kind, std::size_t requests,
                                const HashTrace& trace, const ConfigDirectory& presets,
                                const CompareOptions& options) {
  AtOnce source(trace, requests, kind.with_output);
  const RunConfig config = preset_config(kind, kind.gpu, kind.cpu, trace, presets);
  FoundBySession found(requests, config.system.tiers);
  RunOptions how;
  how.stepping = options.reference ? DecodeStepping::per_iteration : DecodeStepping::closed_form;
  how.observer = &found;
  how.progress = [&](std::int64_t) { stop_if_asked(options); };
  static_cast<void>(replay_steps(config, source, builtin_policies(), how));
  return found.found();
}

/// Runs one request after the other.
std::vector<Found> run_one_by_one(const OracleKind& kind, std::int64_t tokens, std::size_t requests,
                                  const HashTrace& trace, const ConfigDirectory& presets,
                                  const CompareOptions& options) {
  Streams streams = trace.streams;
  const StoreRules rules = rules_of(kind, tokens, trace, presets);
  const auto store =
      options.reference ? make_reference_store(rules, streams) : make_store(rules, streams);
  VllmReplay manager{.most_held = static_cast<std::size_t>(kind.held),
                     .with_output = kind.with_output,
                     .held = {}};
  std::vector<Found> found;
  found.reserve(requests);
  for (std::size_t i = 0; i < requests; ++i) {
    stop_if_asked(options);
    const HashRequest& request = trace.requests[i];
    Replayed replayed;
    switch (kind.engine) {
      case OracleEngine::vllm_manager:
        replayed = replay_vllm(*store, streams, request, manager);
        break;
      case OracleEngine::vllm_scheduler:
        KVTIER_ASSERT(false, "its requests are batched");
        break;
      case OracleEngine::sglang:
      case OracleEngine::sglang_0510:
        replayed =
            replay_sglang(*store, streams, request, kind.block, kind.chunk, kind.with_output);
        break;
      case OracleEngine::lmcache:
        replayed = replay_cache(*store, request.context());
        break;
    }
    found.push_back({.by_pool = std::move(replayed.match.by_pool),
                     .on_host = replayed.on_host,
                     .evicted_blocks = replayed.evicted_for_prompt,
                     .forced = manager.forced});
  }
  store->check_invariants();
  return found;
}

}  // namespace

void EngineComparison::add_difference(EngineDifference difference) {
  if (++different <= kShown) {
    first.push_back(std::move(difference));
  }
}

std::vector<OracleRun> oracle_runs(const std::string& name, const OracleKind& kind,
                                   const OracleTable& table) {
  const auto unknown = [&](const std::string& column) {
    return ConfigError(
        fmt::format("{}: expected hits of a capacity and evictions, got the column "
                    "{}",
                    name, quote_text(column)));
  };
  const bool tree = kind.engine == OracleEngine::sglang_0510;
  if (kind.engine == OracleEngine::vllm_scheduler || tree) {
    std::vector<std::string> expected{"req", "prompt_tokens", "hit_gpu", "hit_cpu"};
    if (tree) {
      expected.emplace_back("host_match");
    }
    if (table.columns != expected) {
      throw ConfigError(fmt::format("{}: expected the columns {}, got {}", name,
                                    fmt::join(expected, ", "), fmt::join(table.columns, ", ")));
    }
    const auto size = [](std::int64_t tokens) {
      return tokens % (1 << 20) == 0 ? fmt::format("{}Mi", tokens >> 20)
                                     : fmt::format("{}Ki", tokens >> 10);
    };
    OracleRun run{.capacity = kind.cpu > 0 ? size(kind.gpu) + "+" + size(kind.cpu) : size(kind.gpu),
                  .tokens = kind.gpu,
                  .columns = {{Value::hit_gpu, 2}, {Value::hit_cpu, 3}}};
    if (tree) {
      run.columns.push_back({Value::host_match, 4});
    }
    return {run};
  }
  constexpr std::array<std::pair<std::string_view, Value>, 4> kPrefixes{
      {{"hit_", Value::hit},
       {"evict_cum_", Value::evicted},
       {"evict_tok_cum_", Value::evicted_tokens},
       {"forced_cum_", Value::forced}}};
  std::vector<OracleRun> runs;
  for (std::size_t place = 2; place < table.columns.size(); ++place) {
    const std::string& column = table.columns[place];
    const auto prefix = std::ranges::find_if(
        kPrefixes, [&](const auto& known) { return column.starts_with(known.first); });
    if (prefix == kPrefixes.end()) {
      throw unknown(column);
    }
    const std::string capacity = column.substr(prefix->first.size());
    const std::optional<std::int64_t> tokens = capacity_tokens(capacity);
    if (!tokens) {
      throw unknown(column);
    }
    if (prefix->second == Value::hit) {
      runs.push_back({.capacity = capacity, .tokens = *tokens, .columns = {}});
    } else if (runs.empty() || runs.back().capacity != capacity) {
      throw unknown(column);
    }
    runs.back().columns.push_back({prefix->second, place});
  }
  return runs;
}

StoreRules vllm_rules(const ConfigDirectory& presets, bool offloads) {
  const OracleKind kind{.block = Tokens(16), .cpu = offloads ? 1 << 20 : 0};
  return rules_of(kind, 1 << 20, HashTrace{}, presets);
}

bool is_of(const OracleTable& table, const HashTrace& trace) {
  return table.rows.size() <= trace.requests.size() &&
         std::equal(table.rows.begin(), table.rows.end(), trace.requests.begin(),
                    [](const auto& row, const HashRequest& request) {
                      return row[1] == request.prompt.value;
                    });
}

EngineComparison compare_with_oracle(const std::string& name, const OracleKind& kind,
                                     const OracleTable& table, const OracleRun& run,
                                     const HashTrace& trace, const ConfigDirectory& presets,
                                     const CompareOptions& options) {
  KVTIER_ASSERT(is_of(table, trace), "the table is of this trace");
  EngineComparison comparison{.name = name, .capacity = run.capacity};
  const std::size_t requests = table.rows.size();
  const bool batched = kind.engine == OracleEngine::vllm_scheduler;
  const std::vector<Found> found =
      batched ? run_in_steps(kind, requests, trace, presets, options)
              : run_one_by_one(kind, run.tokens, requests, trace, presets, options);
  for (std::size_t i = 0; i < requests; ++i) {
    const std::vector<std::int64_t>& row = table.rows[i];
    const auto got = [&](const OracleRun::Column& column) {
      return value_of(found[i], column.value, kind.block);
    };
    ++comparison.rows;
    if (std::ranges::all_of(run.columns, [&](const OracleRun::Column& column) {
          return row[column.place] == got(column);
        })) {
      continue;
    }
    EngineDifference difference{.row = static_cast<std::int64_t>(i)};
    for (const OracleRun::Column& column : run.columns) {
      difference.expected[name_of(column.value)] = row[column.place];
      difference.got[name_of(column.value)] = got(column);
    }
    comparison.add_difference(std::move(difference));
  }
  return comparison;
}

}  // namespace kvtier
