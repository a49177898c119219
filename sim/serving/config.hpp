#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/timing/engine.hpp"
#include "sim/backend/backend.hpp"
#include "sim/core/config.hpp"
#include "sim/core/key_positions.hpp"
#include "sim/policy/policy.hpp"
#include "sim/serving/cluster_config.hpp"
#include "sim/store/rules.hpp"
#include "sim/store/tier_config.hpp"
#include "traces/workload.hpp"

/// The config of a run. A system is data: every switch here is a key of a preset, and nothing in
/// the engine asks for a system's name.
namespace kvtier {

enum class Batching {
  prefill_first,  // a prefill runs alone and blocks the decoding requests
  unified,        // one iteration mixes prompts and a token of each running request
  separate,       // iterations of several prompts, which block the decoding requests
};
constexpr auto enum_names(Batching) {
  return std::array{std::pair{"prefill_first", Batching::prefill_first},
                    std::pair{"unified", Batching::unified},
                    std::pair{"separate", Batching::separate}};
}

constexpr auto enum_names(KeyPositions) {
  return std::array{std::pair{"decoupled", KeyPositions::decoupled},
                    std::pair{"embedded", KeyPositions::embedded}};
}

enum class LoadDiscipline {
  layer_overlapped,  // a layer computes as soon as its KV is there
  blocking,          // compute starts when all KV is there
};
constexpr auto enum_names(LoadDiscipline) {
  return std::array{std::pair{"layer_overlapped", LoadDiscipline::layer_overlapped},
                    std::pair{"blocking", LoadDiscipline::blocking}};
}

/// Who waits for KV that is loaded.
enum class LoadWait {
  batch,    // the iteration that computes its prompt, and so all requests
  request,  // the request, while others run
};
constexpr auto enum_names(LoadWait) {
  return std::array{std::pair{"batch", LoadWait::batch}, std::pair{"request", LoadWait::request}};
}

/// Sharing among sessions that begin with the same tokens.
enum class Sharing {
  none,     // each session's KV is its own
  prompts,  // the KV of a shared prompt is stored and held once
};
constexpr auto enum_names(Sharing) {
  return std::array{std::pair{"none", Sharing::none}, std::pair{"prompts", Sharing::prompts}};
}

/// The scheduler's prediction of a running response's length.
enum class LengthPrediction {
  exact,     // what it will have: a bound
  noise,     // that, times a lognormal factor around 1
  constant,  // the same for all
};
constexpr auto enum_names(LengthPrediction) {
  return std::array{std::pair{"exact", LengthPrediction::exact},
                    std::pair{"noise", LengthPrediction::noise},
                    std::pair{"constant", LengthPrediction::constant}};
}

/// The charge of a stored entry in a tier's account.
enum class Reservation {
  exact,           // its blocks
  context_window,  // a whole context window, whatever it holds
};
constexpr auto enum_names(Reservation) {
  return std::array{std::pair{"exact", Reservation::exact},
                    std::pair{"context_window", Reservation::context_window}};
}

enum class OverflowTrigger {
  turn,    // history + input + response exceed the window
  prompt,  // history + input (and one token of response) do; the response then ends at the window
};
constexpr auto enum_names(OverflowTrigger) {
  return std::array{std::pair{"turn", OverflowTrigger::turn},
                    std::pair{"prompt", OverflowTrigger::prompt}};
}

/// A turn whose own tokens exceed the window.
enum class LongTurn {
  clamp,  // input to half the window, then the response to what is left
  error,
};
constexpr auto enum_names(LongTurn) {
  return std::array{std::pair{"clamp", LongTurn::clamp}, std::pair{"error", LongTurn::error}};
}

enum class OfferedKnowledge { online, look_ahead };
constexpr auto enum_names(OfferedKnowledge) {
  return std::array{std::pair{"online", OfferedKnowledge::online},
                    std::pair{"look_ahead", OfferedKnowledge::look_ahead}};
}

/// Room for responses beside which requests are admitted (SGLang's new_token_ratio, with the
/// defaults of its version 0.5.23).
struct ResponseRoomConfig {
  double share = 0.7;
  double least_share = 0.7 * 0.14;
  std::int64_t decodes = 600;
  Tokens most{4096};
  std::int64_t after_preemption = 20;
};
template <class V>
void describe(V& v, ResponseRoomConfig& c) {
  v.field("share", c.share,
          "Share of the rest of each running response that room is kept for when the server was "
          "idle. The length of a response is that of /system/length_prediction.",
          between(0, 1));
  v.field("least_share", c.least_share, "The share never falls below this one.", between(0, 1));
  v.field("decodes", c.decodes, "Decodes in which the share falls from the first to the least one.",
          between(1, 1e9));
  v.field("most", c.most, "Room for more of one response is not kept.", at_least(1));
  v.field("after_preemption", c.after_preemption,
          "Tokens of each running request that are made room for when one was preempted, and that "
          "the share is estimated with.",
          between(0, 1e6));
}

/// How long a waiting request is passed over while its KV is fetched from the storage behind nodes
/// (SGLang's hicache_storage_prefetch_policy).
enum class FetchWait {
  best_effort,    // not at all: the fetch ends when the request is reached
  wait_complete,  // until the fetch is complete
  timeout,        // at most for a time, from when it is reached first
};
constexpr auto enum_names(FetchWait) {
  return std::array{std::pair{"best_effort", FetchWait::best_effort},
                    std::pair{"wait_complete", FetchWait::wait_complete},
                    std::pair{"timeout", FetchWait::timeout}};
}

/// Fetches of waiting requests from the storage behind nodes, with the defaults of SGLang 0.5.23.
struct StorageFetchConfig {
  FetchWait wait = FetchWait::timeout;
  SimDuration timeout{1'000'000'000};
  SimDuration timeout_per_1024_tokens{250'000'000};
  std::int64_t batch = 128;
};
template <class V>
void describe(V& v, StorageFetchConfig& c) {
  v.field(
      "wait", c.wait,
      "A request whose KV is fetched is passed over until the fetch is complete "
      "(wait_complete), at most for a time (timeout), or not at all (best_effort). Then it uses "
      "the blocks that have come.");
  v.field("timeout", c.timeout,
          "With timeout: how long a request is passed over after the scheduler has first reached "
          "it.",
          non_negative());
  v.field("timeout_per_1024_tokens", c.timeout_per_1024_tokens,
          "With timeout: additional time for each 1,024 tokens that the fetch looked for.",
          non_negative());
  v.field("batch", c.batch, "Blocks of one read of storage.", between(1, 1e6));
}

/// How often memory behind HBM holds latent rows, which each GPU has.
enum class LatentCopies : std::uint8_t {
  ranks,  // each tensor-parallel rank writes its own: vLLM, SGLang
  one,    // one rank writes them: LMCache (save_only_first_rank)
};
constexpr auto enum_names(LatentCopies) {
  using Name = std::pair<std::string_view, LatentCopies>;
  return std::array{Name{"ranks", LatentCopies::ranks}, Name{"one", LatentCopies::one}};
}

/// KV in hashed blocks, which any request finds that begins with the same tokens (vLLM, LMCache),
/// in nodes of a radix tree (SGLang), or in extents of what comes in together (Pensieve), or whole
/// sequences (AttentionStore). Runs in time need a tier in HBM, in whose blocks requests run.
struct BlocksConfig : SharingRules {
  EvictionUnit unit = EvictionUnit::block;
  LatentCopies latent_copies = LatentCopies::ranks;
  bool partial_blocks = false;
  bool responses = true;
  std::optional<Tokens> chunk;
  bool whole_response = false;
  bool delays_duplicates = false;
  bool whole_prompts = false;
  double watermark = 0;
  ResponseRoomConfig response_room;
  StorageFetchConfig storage_fetch;
};
template <class V>
void describe(V& v, BlocksConfig& c) {
  v.field("unit", c.unit,
          "What is evicted at once: a block; a leaf of the radix tree that requests made (node); "
          "the tail of an extent, which is what came into the tier together or was used "
          "together since; or the whole of a sequence.");
  describe(v, static_cast<SharingRules&>(c));
  v.field(
      "latent_copies", c.latent_copies,
      "Behind HBM, of latent attention (MLA): whether each tensor-parallel rank writes its rows, "
      "or one for all. KV heads of other attention are written by each rank that has them.");
  v.field("partial_blocks", c.partial_blocks,
          "Whether the last block of a prompt that a trace names has a key although it is not full "
          "(Mooncake's).");
  v.field("responses", c.responses, "Whether the KV of responses is stored.");
  v.field(
      "chunk", c.chunk,
      "Tokens of a prompt that one step computes; behind each step KV is found, where it is from "
      "computed on, and written to the tier behind HBM. \"none\": the whole prompt.",
      at_least(1));
  v.field("whole_response", c.whole_response,
          "A request is admitted when there is room for its whole response, beside those of the "
          "requests that run. Lengths are those of /system/length_prediction.");
  v.field("delays_duplicates", c.delays_duplicates,
          "With batching unified: a request waits while another one computes the next block that "
          "it would compute.");
  v.field("whole_prompts", c.whole_prompts,
          "One iteration computes what is not found of a prompt, as before chunked prefill. A "
          "prompt of more than /serving/token_budget has an iteration without other prompts.");
  v.field("watermark", c.watermark,
          "While others run, a request is admitted only if this share of the blocks of HBM stays "
          "available beside it (vLLM's watermark).",
          between(0, 0.9));
  v.field("response_room", c.response_room,
          "Of nodes, with batching separate: the room for responses beside which requests are "
          "admitted.");
  v.field("storage_fetch", c.storage_fetch,
          "How waiting requests fetch from the storage behind nodes in two tiers.");
}

struct LoadConfig {
  LoadDiscipline discipline = LoadDiscipline::layer_overlapped;
  /// Without a value: `request` with blocks, else `batch`.
  std::optional<LoadWait> wait;
  /// Layers; without a value: what the turn at hand needs (ReadBuffer).
  std::optional<std::int64_t> buffers = 0;
};
template <class V>
void describe(V& v, LoadConfig& c) {
  v.field("discipline", c.discipline, "How loading KV into HBM and computing overlap.");
  v.field("wait", c.wait,
          "Who waits for loads: the whole batch, which computes layers as their KV arrives, or the "
          "request alone, which joins the batch when all of its KV is there, while others run. "
          "\"auto\": request with /system/blocks, else batch.",
          or_word("auto"));
  v.field(
      "buffers", c.buffers,
      "Layers of the next request that the HBM read buffer holds, loaded ahead of its turn from "
      "the fastest tier outside of HBM. \"auto\": as many as the turn at hand needs for the others "
      "to arrive while it computes, AttentionStore's S_buf = B (T_load L_hist - T_pref L_new) in "
      "whole layers. HBM is set aside for so many layers of a whole context window; with \"auto\", "
      "for the most that any turn needs. 0 with sharing, and where requests wait for "
      "their own loads.",
      or_word("auto", between(0, 1000)));
}

struct SaveConfig {
  SaveMode mode = SaveMode::async;
  Bytes write_buffer{std::int64_t{4} << 30};
};
template <class V>
void describe(V& v, SaveConfig& c) {
  v.field("mode", c.mode, "Whether saving KV overlaps with later work.");
  v.field(
      "write_buffer", c.write_buffer,
      "HBM that holds KV until it is saved; when it is full the GPUs wait. With /system/blocks: "
      "for each tier that KV leaves before it is written to the next one, which is HBM with "
      "found_from never, and a tier behind HBM whose victims the next one takes (on_evict).",
      non_negative());
}

struct LengthPredictionConfig {
  LengthPrediction kind = LengthPrediction::exact;
  double sigma = 0.5;
  Tokens tokens{256};
};
template <class V>
void describe(V& v, LengthPredictionConfig& c) {
  v.field("kind", c.kind, "How the length of a running response is predicted.");
  v.field("sigma", c.sigma, "Of noise: standard deviation of the logarithm of its factor.",
          between(0, 10));
  v.field("tokens", c.tokens, "Of constant: what is predicted for every response.", at_least(1));
}

/// Quality-aware compression of stored KV (CaR, University of Connecticut): where few attention
/// scores matter, little of the KV is kept. The paper measures the sparsity of each layer (Fig. 4:
/// about 60 % of the scores in the first, rising to about 95 %) and does not say how it becomes a
/// share of KV; keep = 1 - sparsity x strength is a choice.
struct CompressionConfig {
  double strength = 0;
  std::vector<double> sparsity{0.60, 0.95};
};
template <class V>
void describe(V& v, CompressionConfig& c) {
  v.field("strength", c.strength,
          "A layer keeps 1 - sparsity x strength of its KV. 0: all of it, 1: what attention makes "
          "use of.",
          required(between(0, 1)));
  v.field("sparsity", c.sparsity,
          "Share of the attention scores under 1 % of their row's maximum, from the first layer to "
          "the last, which have the first and the last number; those in between are interpolated "
          "(CaR, Fig. 4).",
          between(0, 1));
}

/// A system: what AttentionStore, Pensieve, vLLM are presets of.
struct SystemConfig {
  std::string name = "custom";
  std::string summary;
  std::string source;
  PolicyChoice order{.name = "fcfs", .parameters = {}};
  Batching batching = Batching::prefill_first;
  std::optional<BlocksConfig> blocks;
  KeyPositions positions = KeyPositions::decoupled;
  TiersConfig tiers;
  Sharing sharing = Sharing::none;
  PolicyChoice prefetch{.name = "none", .parameters = {}};
  LengthPredictionConfig length_prediction;
  LoadConfig load;
  SaveConfig save;
  std::optional<CompressionConfig> compression;
  std::optional<EngineConfig> engine;
};
template <class V>
void describe(V& v, SystemConfig& c) {
  v.field("name", c.name, "Name in tables.");
  v.field("summary", c.summary, "One line for lists.");
  v.field("source", c.source, "Paper or project the parts come from.");
  v.field("order", c.order, "Order policy: which waiting request is admitted next.");
  v.field("batching", c.batching, "How prefill and decode share the GPUs.");
  v.gone("paging",
         "use /system/blocks, with unit tail for parts of sessions and found_from never "
         "for KV that is not kept");
  v.field("blocks", c.blocks,
          "KV in blocks that any request may share, as engines cache them; \"none\": the KV of "
          "sessions.");
  v.field(
      "positions", c.positions,
      "Whether stored KV carries its positions. If not (decoupled), what is behind a cut in the "
      "history stays: of sessions and, with /system/blocks, of tails and sequences in tiers with "
      "blocks of one token, of one instance.");
  v.field("tiers", c.tiers, "The tiers used, fastest first; one that is not listed is not used.");
  v.field(
      "sharing", c.sharing,
      "Whether sessions that begin with the same prompt share its KV, which is then stored "
      "once, and once in HBM for all turns that run, where the tier has room for it at once: give "
      "it a free_buffer. Needs a tier in HBM.");
  v.field("prefetch", c.prefetch,
          "Prefetch policy: what is fetched from the slower tiers to the fastest, HBM if it is "
          "one. With /system/blocks: to the second tier from those behind it and, of two tiers, to "
          "HBM from the other one.");
  v.field("length_prediction", c.length_prediction,
          "What policies that look at running requests are told of their lengths.");
  v.field("load", c.load, "Loading stored KV into HBM.");
  v.field("save", c.save, "Saving new KV out of HBM.");
  v.field("compression", c.compression,
          "Compression of stored KV: less room in every tier and less to move. The "
          "KV of running requests stays whole, but for a prompt that they share; compressing takes "
          "no time, and what it costs in "
          "accuracy is not simulated. Layers that are loaded ahead or while others compute arrive "
          "at the pace of their own sizes. With /system/blocks, KV in HBM stays whole. \"none\": "
          "stored as it is.");
  v.rare("engine", c.engine, std::optional<EngineConfig>(),
         "Host times and memory of the serving engine; without it, those of /hardware/efficiency "
         "and all memory that weights leave.");
}

/// Settings that all compared systems share.
struct ServingConfig {
  std::int64_t slots = 256;
  std::optional<Tokens> token_budget;
  std::optional<Bytes> kv_memory;
  Reservation kv_reservation = Reservation::exact;
  std::optional<LongTurn> long_turn;
  OverflowTrigger overflow_trigger = OverflowTrigger::turn;
  double truncation_ratio = 0.5;
  Tokens keep_first_tokens{0};
  double keep_important_share = 0;
  OfferedKnowledge knowledge = OfferedKnowledge::look_ahead;
  bool one_at_a_time = false;
  std::int64_t hold_requests = 0;
};
template <class V>
void describe(V& v, ServingConfig& c) {
  v.field("slots", c.slots, "Requests that run at the same time.", between(1, 4096));
  v.field("token_budget", c.token_budget,
          "Of blocks: tokens that one iteration computes; \"auto\": a context window, "
          "2,560 tokens at least (vLLM 0.2).",
          or_word("auto", at_least(1)));
  v.field("kv_memory", c.kv_memory,
          "HBM that KV may take, all GPUs together; \"auto\": what the weights leave.",
          or_word("auto", positive()));
  v.field(
      "kv_reservation", c.kv_reservation,
      "What a stored entry is charged in a tier's account. With /system/blocks, a sequence is "
      "charged a context window; blocks and tails, and an offload, are charged what they hold.");
  v.field("long_turn", c.long_turn,
          "A turn whose own tokens exceed the context window; \"auto\": clamp for generators, "
          "error for traces.",
          or_word("auto"));
  v.field("overflow_trigger", c.overflow_trigger,
          "What has to exceed the context window for the history to be cut.");
  v.field("truncation_ratio", c.truncation_ratio, "Share of the history that one truncation drops.",
          between(0.01, 1));
  v.field("keep_first_tokens", c.keep_first_tokens,
          "First tokens that truncation keeps (selective preservation, AttentionStore 3.4).",
          non_negative());
  v.field(
      "keep_important_share", c.keep_important_share,
      "Share of what truncation would drop that is kept as important: selective preservation of "
      "tokens wherever they are in the history (AttentionStore 3.4).",
      between(0, 0.99));
  v.field("knowledge", c.knowledge,
          "What the scheduler lets policies see: the past, or also its waiting queue.");
  v.field("one_at_a_time", c.one_at_a_time,
          "Of blocks: a request is admitted when all before it have ended and all that they wrote "
          "is in its tier.");
  v.field("hold_requests", c.hold_requests,
          "Of blocks in an untimed replay: so many requests keep their memory when they have been "
          "computed. The oldest gives way when one more comes, then as many as that one needs. 0: "
          "each gives it back at its end.",
          between(0, 4096));
  v.gone("watermark", "use /system/blocks/watermark");
}

/// Replications take the seeds behind the first, which have to exist, too.
[[nodiscard]] inline Limits seed_limits() { return between(0, 9e18); }

struct RunConfig {
  ModelConfig model;
  HardwareConfig hardware;
  SystemConfig system;
  ServingConfig serving;
  ClusterConfig cluster;
  WorkloadConfig workload;
  std::int64_t seed = 1;
  /// The model's context window, if fit_context_window() has made it shorter.
  std::optional<Tokens> whole_window{};
};
template <class V>
void describe(V& v, RunConfig& c) {
  v.field("model", c.model,
          "Model architecture: a preset's name, a Hugging Face config.json, or an object.",
          required());
  v.field("hardware", c.hardware, "What is installed: a preset's name or an object.", required());
  v.field("system", c.system, "Which tiers are used and how: a preset's name or an object.",
          required());
  v.field("serving", c.serving, "What all compared systems share.");
  v.rare("cluster", c.cluster, ClusterConfig{}, "Several instances behind a router.");
  v.gone("replicas", "write \"cluster\": {\"instances\": N}, whose router is /cluster/router");
  v.field("workload", c.workload, "The conversations.", required());
  v.field("seed", c.seed, "Master seed of every random stream.", seed_limits());
}

/// Whether some tier refuses entries.
[[nodiscard]] bool filters_admission(const SystemConfig& system);

/// Finds what no single key shows: unknown policies, tiers that are not installed, a model or an
/// entry that does not fit. Pointers are those of a whole config.
void check_run_config(const RunConfig& config, const PolicyRegistry& registry, Problems& problems);

/// Whether a run is of several instances, or of one with what only a cluster has.
[[nodiscard]] inline bool is_cluster(const RunConfig& config) {
  const ClusterConfig& cluster = config.cluster;
  return cluster.instances > 1 || !cluster.groups.empty() || cluster.shared ||
         cluster.disaggregation || !cluster.lost.empty() || !cluster.slow.empty();
}
/// Whether all instances have the tier together.
[[nodiscard]] inline bool is_shared(const RunConfig& config, std::string_view tier) {
  return config.cluster.shared && to_string(config.cluster.shared->tier) == tier;
}
/// The config of the instances of a group: with its values. No group: as it is.
[[nodiscard]] RunConfig group_config(const RunConfig& config, std::optional<std::size_t> group);
/// Adds the problems of a group's config at the group's pointer.
void add_of_group(const Problems& of_group, std::size_t group, Problems& problems);
/// By instance: the group that it is of; nullopt: none.
[[nodiscard]] std::vector<std::optional<std::size_t>> instance_groups(const RunConfig& config);
/// How many instances are of each group, and of none.
[[nodiscard]] std::map<std::optional<std::size_t>, std::int64_t> group_sizes(
    const RunConfig& config);
/// Reports a cluster where `what` is of one instance.
void check_one_instance(const RunConfig& config, const std::string& what, Problems& problems);
/// Whether the system stores the KV of each session for this session alone. Other systems store
/// blocks that any request finds, or nothing: any instance can serve any turn, and requests may
/// name their tokens.
[[nodiscard]] bool stores_sessions(const SystemConfig& system);

/// Without tiers nothing is set aside. With blocks, whose tier in HBM running requests share, only
/// the write buffer is, where HBM keeps nothing and saves wait in it.
[[nodiscard]] KvShares hbm_shares(const RunConfig& config);
[[nodiscard]] Bytes running_kv_capacity(const RunConfig& config);
/// With an engine whose memory for KV is its own choice, the context window is at most what HBM of
/// a rank holds in each group of instances (vLLM: --max-model-len auto). If that is less than 2,048
/// tokens, or the model or the ranks have problems, the window stays.
void fit_context_window(RunConfig& config);

/// Bytes of one token's stored KV in the first layer, the first two, and so on to all: in each
/// layer the bytes that compression keeps, at least one.
[[nodiscard]] std::vector<Bytes> stored_layer_sizes(const RunConfig& config);

/// Whether stored KV differs from layer to layer: with compression, or as the model's layers do.
[[nodiscard]] bool has_unequal_layers(const RunConfig& config);

/// KV that fits into HBM beside the weights and what each running request needs whatever its
/// length: at most kv_memory.
[[nodiscard]] Bytes kv_room(const RunConfig& config);

[[nodiscard]] LoadWait load_wait(const SystemConfig& system);

/// Whether a prefill waits for all of what it loads from there, not layer by layer: as
/// /system/load/discipline says, or because the drive's blocks hold several layers of a token.
[[nodiscard]] bool waits_for_whole_load(const RunConfig& config, Medium from);
/// In all layers. With blocks: behind HBM, with all copies.
[[nodiscard]] Bytes stored_kv_bytes_per_token(const RunConfig& config);
/// Copies of a token's KV that tiers behind HBM hold, in layers of one kind: each GPU of a rank
/// writes the heads that it has. 1 for sessions, whose KV counts as spread evenly.
[[nodiscard]] std::int64_t stored_copies(const RunConfig& config, AttentionKind kind);

/// The least that a shared prompt leaves of the context window: a token of input and one of output.
inline constexpr Tokens kLeastRoom{2};

/// The value of `token_budget` for this model.
[[nodiscard]] Tokens token_budget(const RunConfig& config);

/// The meaning of `long_turn` for this workload: generators clamp, traces do not.
[[nodiscard]] bool clamps_long_turns(const RunConfig& config);

/// As the template writes it, compiled in one file.
[[nodiscard]] Json write_value(const RunConfig& config);

}  // namespace kvtier
