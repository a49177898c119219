#include "sim/study/papers/experiments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/profile_timing.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/study/papers/batch_experiments.hpp"

namespace kvtier {
namespace {

using Context = ExperimentContext;

constexpr double kMostTokens = 1e7;

/// Parameters with a request length, which must fit into the model's context window.
template <class Parameters>
concept WithRequests = requires(const Parameters& parameters) {
  { parameters.request_tokens() } -> std::same_as<Tokens>;
};

/// Parameters with a medium for the stored history, which the hardware must have.
template <class Parameters>
concept WithSource = requires(const Parameters& parameters) {
  { parameters.source() } -> std::same_as<Medium>;
};

/// Parameters with a check of their own.
template <class Parameters>
concept WithCheck = requires(const Parameters& parameters, const std::string& pointer,
                             Problems& problems) {
  parameters.check(pointer, problems);
};

bool is_installed(const HardwareConfig& hardware, Medium medium) {
  switch (medium) {
    case Medium::hbm:
      return true;
    case Medium::dram:
      return hardware.dram.has_value();
    case Medium::cxl:
      return hardware.cxl.has_value();
    case Medium::ssd:
      return hardware.ssd.has_value();
  }
  return false;
}

/// An experiment that reads its parameters strictly into `Parameters`.
template <class Parameters>
Experiment experiment(const char* name, const char* summary,
                      Json (*function)(const RunConfig&, const Parameters&, const Context&)) {
  return {name, summary,
          [function](const Json& json, const RunConfig& checked, const std::string& pointer,
                     Problems& problems) -> Experiment::Function {
            Parameters parameters;
            const std::size_t before = problems.lines().size();
            read_value(parameters, json, pointer, problems);
            if constexpr (WithRequests<Parameters>) {
              const Tokens tokens = parameters.request_tokens();
              if (problems.lines().size() == before && tokens > checked.model.context_window) {
                problems.add(pointer,
                             fmt::format("a request of {} does not fit into the context window of "
                                         "{}, {}",
                                         format_quantity(tokens), checked.model.name,
                                         format_quantity(checked.model.context_window)));
              }
            }
            if constexpr (WithCheck<Parameters>) {
              if (problems.lines().size() == before) {
                parameters.check(pointer, problems);
              }
            }
            if constexpr (WithSource<Parameters>) {
              if (!is_installed(checked.hardware, parameters.source())) {
                problems.add(pointer + "/from", fmt::format("/hardware/{} is \"none\"",
                                                            to_string(parameters.source())));
              }
            }
            return [function, parameters](const RunConfig& config, const Context& context) {
              return function(config, parameters, context);
            };
          }};
}

// ---- Time for prefill to fill the memories ----

struct FillParameters {
  Tokens prompt;

  [[nodiscard]] Tokens request_tokens() const { return prompt; }
};
template <class V>
void describe(V& v, FillParameters& p) {
  v.field("prompt", p.prompt, "Tokens of each prompt; prompts are prefilled one by one.",
          required(between(1, kMostTokens)));
}

Json kv_fill_times(const RunConfig& config, const FillParameters& p, const Context&) {
  const auto timing =
      make_timing(config.model, config.hardware, config.system.positions, 1, config.system.engine);
  const PrefillPart part{.added = p.prompt, .past = Tokens(0)};
  const double seconds = timing->prefill({&part, 1}).total.seconds();
  const double rate = static_cast<double>(kv_bytes(config.model, p.prompt).value) / seconds;
  const auto free =
      static_cast<double>((hbm_bytes(config.hardware) - weight_bytes(config.model)).value);
  Json json{{"prefill_seconds", seconds},
            {"kv_bytes_per_second", rate},
            {"hbm_left_bytes", free},
            {"hbm_fill_seconds", free / rate}};
  if (config.hardware.dram) {
    json["dram_fill_seconds"] = static_cast<double>(config.hardware.dram->capacity.value) / rate;
  }
  return json;
}

// ---- Prefill and decode of one batch ----

struct PhaseParameters {
  std::int64_t batch = 1;
  Tokens prompt;
  Tokens past{0};
  Tokens response{1};

  [[nodiscard]] Tokens request_tokens() const { return past + prompt + response; }
};
template <class V>
void describe(V& v, PhaseParameters& p) {
  v.field("batch", p.batch, "Requests that are prefilled together and then decode together.",
          between(1, 4096));
  v.field("prompt", p.prompt, "Tokens of each prompt that are computed.",
          required(between(1, kMostTokens)));
  v.field("past", p.past, "Tokens before the prompt, whose KV is in HBM.", between(0, kMostTokens));
  v.field("response", p.response, "Tokens that each request generates.", between(1, kMostTokens));
}

Json phase_times(const RunConfig& config, const PhaseParameters& p, const Context&) {
  const auto timing = make_timing(config.model, config.hardware, config.system.positions, p.batch,
                                  config.system.engine);
  const std::vector<PrefillPart> parts(static_cast<std::size_t>(p.batch),
                                       {.added = p.prompt, .past = p.past});
  const std::int64_t ticks =
      sum_equal_decode_ticks(*timing, p.batch, (p.past + p.prompt) * p.batch, p.response.value);
  constexpr double kSecondsPerTick = 1e-9 / kTicksPerNs;
  const double decode = static_cast<double>(ticks) * kSecondsPerTick;
  return Json{{"prefill_seconds", timing->prefill(parts).total.seconds()},
              {"decode_seconds", decode},
              {"decode_seconds_per_iteration", decode / static_cast<double>(p.response.value)}};
}

// ---- A batch that finds its history in host memory ----

struct BatchParameters : BatchPrefill {
  [[nodiscard]] Tokens request_tokens() const { return history + added; }
};
template <class V>
void describe(V& v, BatchParameters& p) {
  v.field("batch", p.batch, "Requests that are prefilled together.", between(1, 4096));
  v.field("history", p.history, "Tokens of each request whose KV is in host memory.",
          required(between(1, kMostTokens)));
  v.field("added", p.added, "Tokens of each request that are computed.",
          required(between(1, kMostTokens)));
}

Json batch_prefill(const RunConfig& config, const BatchParameters& p, const Context&) {
  const BatchPrefillTimes times = batch_prefill_times(config, p);
  Json by_layers = Json::object();
  for (std::size_t layers = 0; layers < times.preloading_seconds.size(); ++layers) {
    by_layers[std::to_string(layers)] = times.preloading_seconds[layers];
  }
  return Json{{"recompute_seconds", times.recompute_seconds},
              {"blocking_seconds", times.blocking_seconds},
              {"preloading_seconds", by_layers}};
}

// ---- Reusing the KV of a long prompt or computing it again ----

enum class Source { dram, cxl, ssd };
constexpr auto enum_names(Source) {
  return std::array{std::pair{"dram", Source::dram}, std::pair{"cxl", Source::cxl},
                    std::pair{"ssd", Source::ssd}};
}

struct ReuseParameters {
  Tokens history;
  Tokens added{1};
  Tokens response{1};
  Source from = Source::dram;

  [[nodiscard]] Tokens request_tokens() const { return history + added + response; }
  [[nodiscard]] Medium source() const {
    constexpr std::array media{Medium::dram, Medium::cxl, Medium::ssd};
    return media[static_cast<std::size_t>(from)];
  }
};
template <class V>
void describe(V& v, ReuseParameters& p) {
  v.field("history", p.history, "Tokens whose KV is stored.", required(between(1, kMostTokens)));
  v.field("added", p.added, "Tokens that are computed in any case.", between(1, kMostTokens));
  v.field("response", p.response, "Tokens that are generated.", between(1, kMostTokens));
  v.field("from", p.from, "Medium of the stored KV: dram, cxl or ssd.");
}

Json reuse_or_recompute(const RunConfig& config, const ReuseParameters& p, const Context&) {
  const ReuseTimes times = reuse_times(
      config, {.batch = 1, .history = p.history, .added = p.added, .source = p.source()},
      p.response);
  const auto way = [&](double ttft) {
    return Json{{"ttft_seconds", ttft}, {"ttet_seconds", ttft + times.decode_seconds}};
  };
  return Json{{"recompute", way(times.recompute_seconds)},
              {"reload", way(times.reload_seconds)},
              {"overlapped", way(times.overlapped_seconds)},
              {"loaded_bytes", times.loaded.value},
              {"bandwidth_bytes_per_second", times.bandwidth.value}};
}

// ---- Number of requests that HBM holds ----

struct HbmParameters {
  Tokens request;

  [[nodiscard]] Tokens request_tokens() const { return request; }
};
template <class V>
void describe(V& v, HbmParameters& p) {
  v.field("request", p.request, "Tokens of each request.", required(between(1, kMostTokens)));
}

Json hbm_requests(const RunConfig& config, const HbmParameters& p, const Context&) {
  const Bytes request = kv_bytes(config.model, p.request);
  const Bytes left = kv_capacity(config.model, config.hardware);
  return Json{{"weight_bytes", weight_bytes(config.model).value},
              {"hbm_left_bytes", left.value},
              {"request_bytes", request.value},
              {"requests", left / request}};
}

// ---- A batch whose KV is saved ----

struct SaveParameters {
  std::int64_t batch = 1;
  Tokens prompt;
  std::int64_t iterations = 1;

  [[nodiscard]] Tokens request_tokens() const { return prompt + Tokens(iterations); }
};
template <class V>
void describe(V& v, SaveParameters& p) {
  v.field("batch", p.batch, "Requests that are prefilled together and then decode together.",
          between(1, 4096));
  v.field("prompt", p.prompt, "Tokens of each prompt.", required(between(1, kMostTokens)));
  v.field("iterations", p.iterations, "Decode iterations.", between(1, kMostTokens));
}

Json batch_save(const RunConfig& config, const SaveParameters& p, const Context&) {
  const BatchSaveTimes times = batch_save_times(config, p.batch, p.prompt, p.iterations);
  return Json{
      {"prefill_seconds", times.prefill_seconds},   {"decode_seconds", times.decode_seconds},
      {"save_seconds", times.save_seconds},         {"unsaved_bytes", times.unsaved.value},
      {"blocking_seconds", times.blocking_seconds}, {"async_seconds", times.async_seconds}};
}

// ---- Share of the prompts that is history, turn by turn ----

struct NoParameters {};
template <class V>
void describe(V&, NoParameters&) {}

Json repeated_prompts(const RunConfig& config, const NoParameters&, const Context& context) {
  struct Sums {
    double history = 0;
    double prompt = 0;
    std::int64_t sessions = 0;
  };
  std::map<std::size_t, Sums> turns;
  const auto source =
      make_source(config.workload, static_cast<std::uint64_t>(config.seed), context.run.base_dir);
  SessionSpec session;
  while (source->next(session)) {
    Tokens history;
    for (std::size_t i = 0; i < session.turns.size(); ++i) {
      const Turn& turn = session.turns[i];
      Sums& sums = turns[i + 1];
      sums.history += static_cast<double>(history.value);
      sums.prompt += static_cast<double>((history + turn.user).value);
      ++sums.sessions;
      history += turn.user + turn.assistant;
    }
  }
  Json json{{"largest_share", 0.0}, {"share", 0.0}, {"turn", Json::object()}};
  double history = 0;
  double prompt = 0;
  double largest = 0;
  for (const auto& [turn, sums] : turns) {
    const double share = sums.history / sums.prompt;
    json["turn"][std::to_string(turn)] = Json{{"share", share}, {"sessions", sums.sessions}};
    largest = std::max(largest, share);
    history += sums.history;
    prompt += sums.prompt;
  }
  json["largest_share"] = largest;
  json["share"] = history / prompt;
  return json;
}

// ---- Hit rate against storage for each distinct session ----

struct StorageParameters {
  SimDuration ttl;
  std::vector<double> ratios;
};
template <class V>
void describe(V& v, StorageParameters& p) {
  v.field("ttl", p.ttl,
          "Time to live of an entry, and length of the spans in which sessions are counted.",
          required(positive()));
  v.field("ratios", p.ratios,
          "Storage sizes, as shares of a context window for each distinct session.",
          required({.minimum = 0, .maximum = 1000, .minimum_excluded = true}));
}

/// Counts the distinct sessions with a turn in each span. Counts only whole spans in which sessions
/// arrive.
class DistinctSessions final : public RunObserver {
 public:
  explicit DistinctSessions(SimDuration span) : span_(span) {}

  void on_request(const RequestRecord& record) override {
    const std::int64_t span = record.arrived.ns / span_.ns;
    seen_[span].push_back(record.session);
    if (record.turn == 0) {
      last_ = std::max(last_, record.arrived);
    }
  }

  [[nodiscard]] double mean() {
    const std::int64_t whole = std::max<std::int64_t>(1, last_.ns / span_.ns);
    std::size_t sum = 0;
    for (std::int64_t i = 0; i < whole; ++i) {
      std::vector<std::int64_t>& sessions = seen_[i];
      std::sort(sessions.begin(), sessions.end());
      sum += static_cast<std::size_t>(std::unique(sessions.begin(), sessions.end()) -
                                      sessions.begin());
    }
    return static_cast<double>(sum) / static_cast<double>(whole);
  }

 private:
  SimDuration span_;
  SimTime last_;
  std::map<std::int64_t, std::vector<std::int64_t>> seen_;
};

Json storage_per_session(const RunConfig& config, const StorageParameters& p,
                         const Context& context) {
  DistinctSessions distinct(p.ttl);
  RunOptions counting = context.run;
  counting.observer = &distinct;
  (void)simulate(config, *context.registry, counting);
  const double sessions = distinct.mean();
  const double window =
      static_cast<double>(kv_bytes(config.model, config.model.context_window).value);
  Json json{{"distinct_sessions", sessions},
            {"bytes_for_all", sessions * window},
            {"ratio", Json::object()}};
  for (const double ratio : p.ratios) {
    RunConfig limited = config;
    const Bytes bytes(static_cast<std::int64_t>(ratio * sessions * window));
    // The faster tiers are part of the storage. The SSD has the rest, and room for at least one
    // entry.
    Bytes storage;
    TiersConfig& tiers = limited.system.tiers;
    if (tiers.hbm) {
      tiers.hbm->ttl = p.ttl;
      storage += tiers.hbm->capacity.value_or(running_kv_capacity(limited));
    }
    if (tiers.dram) {
      tiers.dram->ttl = p.ttl;
      storage += limited.hardware.dram->capacity;
    }
    if (tiers.ssd) {
      tiers.ssd->ttl = p.ttl;
      limited.hardware.ssd->capacity =
          std::max(bytes - storage, Bytes(static_cast<std::int64_t>(window)));
      storage += limited.hardware.ssd->capacity;
    }
    const Json result = simulate(limited, *context.registry, context.run);
    json["ratio"][fmt::format("{}", ratio)] =
        Json{{"storage_bytes", storage.value}, {"metrics", result["metrics"]}};
  }
  return json;
}

// ---- Latency against load ----

/// A curve that does not cross a bound within its rates gets up to kMostBeyond more rates, each
/// higher or lower than the last one by the factor kBeyond.
constexpr double kBeyond = 1.15;
constexpr int kMostBeyond = 12;

struct LoadParameters {
  std::vector<PerSecond> request_rates;
  std::vector<SimDuration> latencies;

  void check(const std::string& pointer, Problems& problems) const {
    if (request_rates.empty()) {
      problems.add(pointer + "/request_rates", "expected one rate at least, got []");
    }
  }
};
template <class V>
void describe(V& v, LoadParameters& p) {
  v.field("request_rates", p.request_rates,
          "Request rates; up to 12 more are added for each bound that the curve does not cross.",
          required(positive()));
  v.field("latencies", p.latencies,
          "Bounds of the 90th percentile of latency per token, at which the curve is read.",
          positive());
}

/// The rate at which the curve (latency by rate) first rises above `bound`. Interpolates linearly
/// over the logarithm of the latency. Null if there is no such rate.
Json rate_at(const std::map<double, double>& curve, double bound) {
  for (auto next = std::next(curve.begin()); next != curve.end(); ++next) {
    const auto& [rate, latency] = *std::prev(next);
    const auto& [next_rate, next_latency] = *next;
    if (latency <= bound && next_latency > bound) {
      const double share = std::log(bound / latency) / std::log(next_latency / latency);
      return rate + share * (next_rate - rate);
    }
  }
  return nullptr;
}

Json latency_over_load(const RunConfig& config, const LoadParameters& p, const Context& context) {
  Json json{{"rate", Json::object()}, {"rate_at", Json::object()}};
  std::map<double, double> latency_at;
  const auto run = [&](double rate) {
    RunConfig loaded = config;
    loaded.workload.arrival_rate.reset();
    loaded.workload.request_rate = PerSecond(rate);
    const Json result = simulate(loaded, *context.registry, context.run);
    const Json& metrics = result["metrics"];
    const double latency = metrics["normalized_latency_seconds_per_token"]["p90"].get<double>();
    latency_at[rate] = latency;
    json["rate"][fmt::format("{}", rate)] =
        Json{{"p90_seconds_per_token", latency},
             {"requests_per_second", metrics["requests_per_second"]}};
  };
  for (const PerSecond rate : p.request_rates) {
    run(rate.value);
  }
  for (const SimDuration bound : p.latencies) {
    for (int i = 0; i < kMostBeyond && latency_at.rbegin()->second <= bound.seconds(); ++i) {
      run(latency_at.rbegin()->first * kBeyond);
    }
    for (int i = 0; i < kMostBeyond && latency_at.begin()->second > bound.seconds(); ++i) {
      run(latency_at.begin()->first / kBeyond);
    }
    json["rate_at"][fmt::format("{}", bound.seconds())] = rate_at(latency_at, bound.seconds());
  }
  return json;
}

}  // namespace

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> table{
      experiment("batch_prefill", "ways to prefill a batch whose history is in host memory",
                 batch_prefill),
      experiment("batch_save", "prefill and decode of a batch whose KV is saved", batch_save),
      experiment("hbm_requests", "number of requests of one length that fit into HBM",
                 hbm_requests),
      experiment("kv_fill_times", "how fast prefill fills HBM and DRAM with KV", kv_fill_times),
      experiment("latency_over_load", "normalized latency at several request rates",
                 latency_over_load),
      experiment("phase_times", "prefill and decode of one batch", phase_times),
      experiment("repeated_prompts", "share of the prompts that is history, by turn",
                 repeated_prompts),
      experiment("reuse_or_recompute", "loading the KV of a long prompt against computing it",
                 reuse_or_recompute),
      experiment("storage_per_session", "hit rate against storage for each distinct session",
                 storage_per_session)};
  return table;
}

const Experiment* find_experiment(const std::string& name) {
  const auto found =
      std::find_if(experiments().begin(), experiments().end(),
                   [&](const Experiment& candidate) { return name == candidate.name; });
  return found == experiments().end() ? nullptr : &*found;
}

}  // namespace kvtier
