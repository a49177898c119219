#include "sim/study/runs/break_even.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "hw/profile/profile_timing.hpp"
#include "sim/backend/topology.hpp"
#include "sim/serving/prompt_prefill.hpp"

namespace kvtier {
namespace {

constexpr Tokens kShortest(512);

std::vector<Tokens> lengths_up_to(Tokens window) {
  std::vector<Tokens> lengths;
  for (Tokens tokens = kShortest; tokens < window; tokens = tokens * 2) {
    lengths.push_back(tokens);
  }
  lengths.push_back(window);
  return lengths;
}

/// The ranges where `wins(tokens)` is true. Bisects between neighbouring lengths that differ, as if
/// it changed once between them.
template <class Wins>
std::vector<std::pair<Tokens, Tokens>> ranges(const std::vector<Tokens>& lengths, Wins wins) {
  std::vector<std::pair<Tokens, Tokens>> found;
  bool inside = false;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const bool here = wins(lengths[i]);
    if (here == inside) {
      continue;
    }
    // The first length with the new value.
    Tokens first = lengths[i];
    if (i > 0) {
      Tokens before = lengths[i - 1];
      while (first - before > Tokens(1)) {
        const Tokens middle = before + (first - before) / 2;
        (wins(middle) == here ? first : before) = middle;
      }
    }
    if (here) {
      found.emplace_back(first, lengths.back());
    } else {
      found.back().second = first - Tokens(1);
    }
    inside = here;
  }
  return found;
}

/// "always", "never", or the ranges.
std::string describe_wins(const BreakEven& found, const TierBreakEven& tier) {
  if (tier.loading_wins.empty()) {
    return "never";
  }
  std::string text;
  for (const auto& [first, last] : tier.loading_wins) {
    const bool from_first = first == found.tokens.front();
    const bool to_last = last == found.tokens.back();
    text += text.empty() ? "" : ", ";
    text += from_first && to_last ? "always"
            : to_last             ? fmt::format("from {} tokens", first.value)
            : from_first          ? fmt::format("up to {} tokens", last.value)
                                  : fmt::format("from {} to {} tokens", first.value, last.value);
  }
  return text;
}

double ratio(const BreakEven& found, const TierBreakEven& tier, std::size_t i) {
  return found.recompute[i].seconds() / tier.loads[i].seconds();
}

/// Four digits, without an exponent.
std::string digits(double value) {
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:#.4g}", value);
}

}  // namespace

BreakEven break_even(const RunConfig& config) {
  const HardwareConfig& hardware = config.hardware;
  const Bytes bytes_per_token = stored_kv_bytes_per_token(config);
  const auto timing =
      make_timing(config.model, hardware, config.system.positions, 1, config.system.engine);
  BreakEven found{
      .model = config.model.name,
      .hardware = fmt::format("{} x {}", hardware.gpus, hardware.gpu.name),
      .system = config.system.name,
      .times = hardware.profile ? fmt::format("profile {}", hardware.profile->name) : "roofline",
      .kv_bytes_per_token = bytes_per_token,
      .tokens = lengths_up_to(config.model.context_window),
      .recompute = {},
      .extrapolated = {},
      .tiers = {}};
  if (config.system.engine) {
    found.times += fmt::format(", engine {}", config.system.engine->version);
  }
  for (const Tokens tokens : found.tokens) {
    const PromptPrefill prefill = prompt_prefill(config, *timing, tokens);
    found.recompute.push_back(prefill.time);
    found.extrapolated.push_back(prefill.extrapolated);
  }
  const Topology topology = server_topology(hardware);
  const auto add = [&](bool installed, Medium tier) {
    if (!installed) {
      return;
    }
    const Edge& edge = topology.edge(tier, Medium::hbm);
    const auto load = [&](Tokens tokens) { return edge.idle_time(bytes_per_token * tokens.value); };
    TierBreakEven one{.tier = tier,
                      .rate = edge.idle_rate,
                      .slowest_link = topology.links[edge.slowest_link].name,
                      .loads = {},
                      .loading_wins = {}};
    std::ranges::transform(found.tokens, std::back_inserter(one.loads), load);
    one.loading_wins = ranges(found.tokens, [&](Tokens tokens) {
      return load(tokens) < prompt_prefill(config, *timing, tokens).time;
    });
    found.tiers.push_back(std::move(one));
  };
  add(hardware.dram.has_value(), Medium::dram);
  add(hardware.cxl.has_value(), Medium::cxl);
  add(hardware.ssd.has_value(), Medium::ssd);
  if (found.tiers.empty()) {
    throw ConfigError("/hardware: expected dram, cxl or ssd to load KV from, got none of them");
  }
  return found;
}

Json to_json(const BreakEven& found) {
  Json lengths = Json::array();
  for (std::size_t i = 0; i < found.tokens.size(); ++i) {
    Json loads = Json::object();
    for (const TierBreakEven& tier : found.tiers) {
      loads[to_string(tier.tier)] = {{"seconds", tier.loads[i].seconds()},
                                     {"recompute_over_load", ratio(found, tier, i)}};
    }
    lengths.push_back({{"tokens", found.tokens[i].value},
                       {"kv_bytes", (found.kv_bytes_per_token * found.tokens[i].value).value},
                       {"recompute_seconds", found.recompute[i].seconds()},
                       {"extrapolated", bool(found.extrapolated[i])},
                       {"load", std::move(loads)}});
  }
  Json tiers = Json::object();
  for (const TierBreakEven& tier : found.tiers) {
    Json wins = Json::array();
    for (const auto& [first, last] : tier.loading_wins) {
      wins.push_back({{"from_tokens", first.value}, {"to_tokens", last.value}});
    }
    tiers[to_string(tier.tier)] = {{"bytes_per_second", tier.rate.value},
                                   {"slowest_link", tier.slowest_link},
                                   {"loading_wins", describe_wins(found, tier)},
                                   {"loading_wins_ranges", std::move(wins)}};
  }
  return {{"format", "kvtier.breakeven/1"}, {"model", found.model},
          {"hardware", found.hardware},     {"system", found.system},
          {"times", found.times},           {"kv_bytes_per_token", found.kv_bytes_per_token.value},
          {"lengths", std::move(lengths)},  {"tiers", std::move(tiers)}};
}

std::string to_table(const BreakEven& found) {
  std::string text =
      fmt::format("{} on {}, system {}, {} bytes of KV per token\nprefills: {}\n\n", found.model,
                  found.hardware, found.system, found.kv_bytes_per_token.value, found.times);
  text += fmt::format("{:>8}{:>12}{:>16}", "tokens", "KV MiB", "recompute ms");
  for (const TierBreakEven& tier : found.tiers) {
    text += fmt::format("{:>16}{:>10}", fmt::format("load {} ms", to_string(tier.tier)), "ratio");
  }
  text += "\n";
  bool extrapolated = false;
  for (std::size_t i = 0; i < found.tokens.size(); ++i) {
    const double mebibytes =
        static_cast<double>((found.kv_bytes_per_token * found.tokens[i].value).value) / (1 << 20);
    extrapolated = extrapolated || found.extrapolated[i];
    text += fmt::format(
        "{:>8}{:>12}{:>16}", found.tokens[i].value, digits(mebibytes),
        digits(found.recompute[i].seconds() * 1e3) + (found.extrapolated[i] ? "*" : ""));
    for (const TierBreakEven& tier : found.tiers) {
      text += fmt::format("{:>16}{:>10}", digits(tier.loads[i].seconds() * 1e3),
                          digits(ratio(found, tier, i)));
    }
    text += "\n";
  }
  text += "\nratio: time to recompute over time to load, on an idle server\nloading is faster\n";
  for (const TierBreakEven& tier : found.tiers) {
    text += fmt::format("  from {:<6}{} ({:.4g} GB/s, limited by the link {})\n",
                        fmt::format("{}:", to_string(tier.tier)), describe_wins(found, tier),
                        tier.rate.value * 1e-9, tier.slowest_link);
  }
  if (extrapolated) {
    text += "* This time is extrapolated from what the profile measured.\n";
  }
  return text;
}

}  // namespace kvtier
