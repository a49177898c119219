#include "sim/study/runs/hit_curve.hpp"

#include <functional>
#include <memory>

#include <fmt/format.h>

#include "sim/core/file.hpp"
#include "sim/core/text.hpp"
#include "sim/replay/block_curve.hpp"
#include "sim/replay/miss_ratio_curve.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/store_rules.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using OpenSource = std::function<std::unique_ptr<SessionSource>()>;

/// Checks all options and returns the capacities.
std::vector<KvSize> read_capacities(const HitCurveOptions& options, const PolicyRegistry& registry,
                                    bool of_blocks, bool has_model) {
  std::vector<std::string> problems;
  const auto refuse = [&](const char* option, const std::string& why) {
    problems.push_back(fmt::format("{}{}: {}", options.prefix, option, why));
  };
  std::vector<KvSize> sizes;
  for (const std::string& text : options.capacities) {
    const std::optional<KvSize> size = parse_kv_size(text);
    const bool in_bytes = size && size->unit == KvSize::Unit::bytes;
    if (!size || size->count == 0 || (!of_blocks && !in_bytes)) {
      refuse("capacities",
             fmt::format("expected a size such as \"128GiB\"{}, got {}",
                         of_blocks ? ", \"5Mitokens\" or \"1000blocks\"" : "", quote_text(text)));
    } else if (of_blocks && in_bytes && !has_model) {
      refuse("capacities",
             fmt::format("expected tokens or blocks (\"5Mitokens\", \"1000blocks\"), since a trace "
                         "alone does not say how many bytes a token has, got {}",
                         quote_text(text)));
    } else {
      sizes.push_back(*size);
    }
  }
  const bool is_lru = options.policy == "lru";
  const auto* kind = find_policy(registry.eviction, options.policy);
  if (kind == nullptr || kind->knowledge == Knowledge::oracle) {
    refuse("policy", fmt::format("expected an eviction policy that does not know the future "
                                 "(kvtier list policies), got {}",
                                 quote_text(options.policy)));
  } else if (!of_blocks && !is_lru) {
    refuse("policy", fmt::format("expected lru without {}block: other policies are of blocks",
                                 options.prefix));
  }
  if (!of_blocks && options.bound) {
    refuse("bound",
           fmt::format("expected {}block beside it: the bound is of blocks", options.prefix));
  }
  if (!is_lru && options.capacities.empty()) {
    refuse("policy", fmt::format("{} needs {}capacities: only LRU has all of them in one pass",
                                 options.policy, options.prefix));
  }
  if (!is_lru && options.sampling_rate < 1) {
    refuse("sampling-rate",
           fmt::format("expected 1 with {}policy {}", options.prefix, options.policy));
  }
  if (options.bound && options.sampling_rate < 1) {
    refuse("sampling-rate", fmt::format("expected 1 with {}bound", options.prefix));
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return sizes;
}

/// The facts of a tier without a medium, and without a machine if `config` is null. A missing fact
/// throws when the policy asks for it, so that policies of plug-ins are refused, too.
TierFacts facts_of(const HitCurveOptions& options, const RunConfig* config) {
  const auto missing = [&](const char* fact, const char* why) {
    return [message = fmt::format("{}policy: {} needs {}: {}", options.prefix, options.policy, fact,
                                  why)](Tokens) -> SimDuration { throw ConfigError(message); };
  };
  TierFacts facts{.load = missing("the time to load tokens from its tier",
                                  "the tier of a curve has no medium, expected another policy")};
  if (config != nullptr) {
    facts.recompute = store_facts(*config).recompute;
  } else {
    facts.recompute = missing("the time to recompute tokens",
                              "a trace alone has no model and no hardware, expected a config with "
                              "this /workload/trace");
  }
  return facts;
}

Json curve_of_blocks(const HitCurveOptions& options, std::vector<KvSize> capacities,
                     const SessionSource& first, const OpenSource& open, const RunConfig* config,
                     const PolicyRegistry& registry, const RunOptions& run) {
  constexpr Tokens kUsualBlock{16};
  const std::optional<NamedBlocks> named = first.named_blocks();
  BlockCurveOptions curve{.policy = options.policy,
                          .capacities = std::move(capacities),
                          .facts = facts_of(options, config),
                          .sampling_rate = options.sampling_rate,
                          .belady = options.bound};
  curve.block = options.block ? Tokens(*options.block) : named ? named->block : kUsualBlock;
  curve.partial_blocks =
      named && named->partial && !options.whole_blocks && curve.block == named->block;
  std::optional<TurnFitter> fitter;
  if (config != nullptr) {
    curve.bytes_per_token = stored_kv_bytes_per_token(*config);
    fitter.emplace(*config);
  }
  return block_curve(open, fitter ? &*fitter : nullptr, curve, registry, run.progress);
}

}  // namespace

bool is_config_file(const std::string& path) {
  if (!path.ends_with(".json")) {
    return false;
  }
  const Json json = Json::parse(read_text_file(path), nullptr, false);
  return json.is_discarded() || (json.is_object() && !json.contains("requests"));
}

Json hit_curve(const RunConfig& config, const PolicyRegistry& registry,
               const HitCurveOptions& options, const RunOptions& run) {
  const OpenSource open = [&]() -> std::unique_ptr<SessionSource> {
    return make_source(config.workload, static_cast<std::uint64_t>(config.seed), run.base_dir);
  };
  const auto first = open();
  const bool of_blocks = options.block || first->streams() != nullptr;
  const std::vector<KvSize> capacities = read_capacities(options, registry, of_blocks, true);
  if (of_blocks) {
    Json result = curve_of_blocks(options, capacities, *first, open, &config, registry, run);
    result["config"] = write_value(config);
    return result;
  }
  MissRatioOptions sessions{.sampling_rate = options.sampling_rate};
  for (const KvSize& capacity : capacities) {
    sessions.capacities.emplace_back(capacity.count);
  }
  return miss_ratio_curve(config, registry, sessions, run);
}

Json hit_curve(const std::string& trace, const ImportOptions& import,
               const PolicyRegistry& registry, const HitCurveOptions& options,
               const RunOptions& run) {
  const OpenSource open = [&]() -> std::unique_ptr<SessionSource> {
    return open_trace(trace, import);
  };
  const auto first = open_trace(trace, import);
  const std::vector<KvSize> capacities = read_capacities(options, registry, true, false);
  if (!first->has_arrivals()) {
    throw ConfigError(trace +
                      ": a trace without times of arrival has no order of requests, expected a "
                      "config with this /workload/trace and /workload/arrival_rate");
  }
  return curve_of_blocks(options, capacities, *first, open, nullptr, registry, run);
}

}  // namespace kvtier
