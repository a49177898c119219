#include "sim/engine/config.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hw/profile_timing.hpp"

namespace kvtier {
namespace {

constexpr const char* kPolicyKey = "policy";
constexpr const char* kAutomatic = "auto";

template <class Interface>
void check_policy(const PolicyChoice& choice, const std::vector<PolicyKind<Interface>>& kinds,
                  OfferedKnowledge offered, const std::string& pointer, Problems& problems) {
  const PolicyKind<Interface>* kind = find_policy(kinds, choice.name);
  if (kind == nullptr) {
    std::vector<std::string> names;
    for (const auto& known : kinds) {
      names.push_back(known.name);
    }
    problems.add(pointer, fmt::format("expected one of {}, got \"{}\"{}", fmt::join(names, ", "),
                                      choice.name, suggestion(choice.name, names)));
    return;
  }
  std::vector<std::string> known;
  for (const PolicyParameter& parameter : kind->parameters) {
    known.push_back(parameter.name);
    const auto given = choice.parameters.find(parameter.name);
    if (given != choice.parameters.end() &&
        (given->second < parameter.minimum || given->second > parameter.maximum)) {
      problems.add(pointer + "/" + parameter.name,
                   fmt::format("expected {} from {} to {}, got {}", parameter.unit,
                               parameter.minimum, parameter.maximum, given->second));
    }
  }
  for (const auto& [name, value] : choice.parameters) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      problems.add(
          pointer + "/" + escape_pointer(name),
          fmt::format("policy {} has no such parameter{}", choice.name, suggestion(name, known)));
    }
  }
  if (kind->knowledge == Knowledge::look_ahead && offered == OfferedKnowledge::online) {
    problems.add(
        pointer,
        fmt::format("policy {} needs look_ahead knowledge, but /serving/knowledge offers online",
                    choice.name));
  }
  if (kind->knowledge == Knowledge::oracle) {
    problems.add(
        pointer,
        fmt::format("policy {} needs to know the future, which a timed run does not", choice.name));
  }
}

void check_tier(const RunConfig& config, const TierConfig& tier, Bytes capacity,
                const std::string& pointer, Problems& problems) {
  if (tier.free_buffer >= capacity) {
    problems.add(pointer + "/free_buffer",
                 fmt::format("expected less than the capacity, {}, got {}",
                             format_quantity(capacity), format_quantity(tier.free_buffer)));
  }
  if (tier.block_size > config.model.context_window) {
    problems.add(pointer + "/block_size",
                 fmt::format("expected at most the context window, {}, got {}",
                             format_quantity(config.model.context_window),
                             format_quantity(tier.block_size)));
  }
  const Bytes window = kv_bytes_per_token(config.model) * config.model.context_window.value;
  if (config.serving.kv_reservation == Reservation::context_window && window > capacity) {
    problems.add(
        pointer,
        fmt::format("one reserved context window takes {} bytes, more than the capacity, {}",
                    window.value, format_quantity(capacity)));
  }
}

}  // namespace

void read_config(PolicyChoice& choice, const Json& json, const std::string& pointer,
                 Problems& problems) {
  choice = PolicyChoice{};
  if (json.is_string()) {
    choice.name = json.get<std::string>();
    return;
  }
  if (!json.is_object() || !json.contains(kPolicyKey) || !json[kPolicyKey].is_string()) {
    problems.add(pointer, "expected a policy's name or {\"policy\": NAME, parameters}, got " +
                              quote_json(json));
    return;
  }
  choice.name = json[kPolicyKey].get<std::string>();
  for (const auto& [key, value] : json.items()) {
    if (key == kPolicyKey || value == kAutomatic) {
      continue;
    }
    if (!value.is_number()) {
      problems.add(pointer + "/" + escape_pointer(key),
                   "expected a number or \"auto\", got " + quote_json(value));
      continue;
    }
    choice.parameters[key] = value.get<double>();
  }
}

Json write_config(const PolicyChoice& choice) {
  if (choice.parameters.empty()) {
    return choice.name;
  }
  Json json{{kPolicyKey, choice.name}};
  for (const auto& [name, value] : choice.parameters) {
    json[name] = value;
  }
  return json;
}

Json config_schema(const PolicyChoice&) {
  return Json{{"anyOf", Json::array({Json{{"type", "string"}},
                                     Json{{"type", "object"},
                                          {"properties", {{kPolicyKey, {{"type", "string"}}}}},
                                          {"required", Json::array({kPolicyKey})},
                                          {"additionalProperties",
                                           {{"type", Json::array({"number", "string"})}}}}})}};
}

Bytes running_kv_capacity(const RunConfig& config) {
  const Bytes free = kv_capacity(config.model, config.hardware);
  const TiersConfig& tiers = config.system.tiers;
  if (tiers.count() == 0) {
    return free;
  }
  const std::int64_t buffered_layers = std::min(config.system.load.buffers, config.model.layers);
  const Bytes read_buffer = kv_bytes_per_token_layer(config.model) *
                            (config.model.context_window.value * buffered_layers);
  const Bytes tier = tiers.hbm ? std::min(tiers.hbm->capacity, free) : Bytes(0);
  return std::max(Bytes(0), free - tier - config.system.save.write_buffer - read_buffer);
}

bool clamps_long_turns(const RunConfig& config) {
  if (config.serving.long_turn) {
    return *config.serving.long_turn == LongTurn::clamp;
  }
  return !config.workload.trace.has_value();
}

void check_run_config(const RunConfig& config, const PolicyRegistry& registry, Problems& problems) {
  check_model(config.model, "/model", problems);
  check_hardware(config.hardware, "/hardware", problems);
  check(config.workload, "/workload", problems);
  const std::size_t before = problems.lines().size();
  check_fits(config.model, config.hardware, problems);
  check_profile_timing(config.model, config.hardware, problems);
  const OfferedKnowledge offered = config.serving.knowledge;
  const TiersConfig& tiers = config.system.tiers;
  check_policy(config.system.order, registry.order, offered, "/system/order", problems);
  check_policy(config.system.prefetch, registry.prefetch, offered, "/system/prefetch", problems);
  if (config.system.prefetch.name != "none" && tiers.count() < 2) {
    problems.add("/system/prefetch",
                 fmt::format("policy {} fetches from a slower tier to the fastest, but the system "
                             "uses {}",
                             config.system.prefetch.name,
                             tiers.count() == 0 ? "no tier" : "one tier alone"));
  }
  const auto tier = [&](const char* name, const std::optional<TierConfig>& used,
                        std::optional<Bytes> installed) {
    const std::string pointer = std::string("/system/tiers/") + name;
    if (!used) {
      return;
    }
    check_policy(used->eviction, registry.eviction, offered, pointer + "/eviction", problems);
    if (!installed) {
      problems.add(
          pointer,
          fmt::format("the system uses a tier that is not installed (/hardware/{} is \"none\")",
                      name));
      return;
    }
    check_tier(config, *used, *installed, pointer, problems);
  };
  if (tiers.hbm) {
    tier("hbm", *tiers.hbm, tiers.hbm->capacity);
  }
  tier("dram", tiers.dram,
       config.hardware.dram ? std::optional(config.hardware.dram->capacity) : std::nullopt);
  tier("ssd", tiers.ssd,
       config.hardware.ssd ? std::optional(config.hardware.ssd->capacity) : std::nullopt);
  if (config.model.context_window < Tokens(2)) {
    problems.add("/model/context_window", "expected at least 2 tokens");
  }
  const Bytes window = kv_bytes_per_token(config.model) * config.model.context_window.value;
  const auto fits = [&](const RunConfig& any) { return running_kv_capacity(any) >= window; };
  if (problems.lines().size() == before && !fits(config)) {
    RunConfig without = config;
    without.system.tiers.hbm.reset();
    problems.add(fits(without) ? "/system/tiers/hbm/capacity" : "/hardware/hbm/capacity",
                 fmt::format("the weights{} and the read and write buffers leave {:.2f}GiB for "
                             "KV, but one context window of {} takes {:.2f}GiB",
                             tiers.hbm ? ", the hbm tier" : "",
                             static_cast<double>(running_kv_capacity(config).value) / (1 << 30),
                             config.model.name, static_cast<double>(window.value) / (1 << 30)));
  }
  if (config.serving.keep_first_tokens >= config.model.context_window) {
    problems.add("/serving/keep_first_tokens",
                 fmt::format("expected less than the context window, {}, got {}",
                             format_quantity(config.model.context_window),
                             format_quantity(config.serving.keep_first_tokens)));
  }
}

}  // namespace kvtier
