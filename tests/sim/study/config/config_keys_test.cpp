/// Changes every key of a run's config once, and fails if no result changes: a key without effect
/// is not connected. Settings of how a run is executed must change nothing.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/profile/profile.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/study/runs/recorders.hpp"
#include "tests/sim/study/support.hpp"
#include "traces/trace_format.hpp"

namespace kvtier::test {
namespace {

using Settings = std::vector<std::string>;

enum class Effect {
  moves,    // another result
  rejects,  // no result: the config or its workload is refused
  none,     // the same result; only for keys that are exempt
};

/// One key moved: `setting` over the base and `around`, against the base and `around` alone.
struct Move {
  std::string base;
  std::string setting;
  Settings around{};
  Effect effect = Effect::moves;
};

/// A key that is not moved, and why that is right.
struct Exemption {
  std::string pointer;
  std::string reason;
};

constexpr const char* kNothingStored = R"(/system={"name": "nothing is stored"})";
constexpr const char* kCxl =
    R"(/hardware/cxl={"capacity": "24GiB", "price": "0.005$/h/GiB",
       "bandwidth": {"read": "6GB/s", "write": "5GB/s", "both": "7GB/s"}})";
constexpr const char* kFirstStay = R"([{"from": "0tokens", "to": "200tokens", "priority": 90}])";
constexpr const char* kRelief = R"({"from": 0.5, "share": 0.2, "in_background": true})";
constexpr const char* kRead =
    R"(/hardware/ssd/bandwidth/read={"rate": "5GB/s", "alone": "1GB/s", "depth": "100MiB"})";
constexpr const char* kWrite =
    R"(/hardware/ssd/bandwidth/write={"rate": "5GB/s", "alone": "1GB/s", "depth": "100MiB"})";
constexpr const char* kToDevice =
    R"(/hardware/links/pcie/to_device={"rate": "26GB/s", "alone": "9GB/s", "depth": "100MiB"})";
constexpr const char* kToHost =
    R"(/hardware/links/pcie/to_host={"rate": "26GB/s", "alone": "9GB/s", "depth": "100MiB"})";
constexpr const char* kLoad =
    R"(/hardware/ssd/bandwidth/load={"latency": "1ms", "alone": "1GB/s", "depth": "100MiB"})";

/// Small runs in which a tier overflows, histories are cut and requests queue.
class Bases {
 public:
  Bases() {
    const RunConfig generated = config("stored", {});
    TraceWriter writer(dir_.path("timed.jsonl"), {.arrivals = true, .think_times = true});
    TraceWriter other(dir_.path("other.jsonl"), {.arrivals = true, .think_times = true});
    std::string table = "conv,turn,user_tokens,assistant_tokens\n";
    std::string log = "ns,conv,user_tokens,assistant_tokens\n";
    Json texts = Json::array();
    const auto source = make_source(generated.workload, 7, dir_.path(""));
    SessionSpec session;
    while (source->next(session)) {
      for (Turn& turn : session.turns) {
        turn.user = std::min(turn.user, Tokens(900));
        turn.assistant = std::min(turn.assistant, Tokens(900));
      }
      writer.write(session);
      for (std::size_t i = 0; i < session.turns.size(); ++i) {
        table += fmt::format("c{},{},{},{}\n", session.id, i, session.turns[i].user.value,
                             session.turns[i].assistant.value);
      }
      SimTime at = session.arrival;
      for (const Turn& turn : session.turns) {
        at = at + turn.think;
        log +=
            fmt::format("{},{},{},{}\n", at.ns, session.id, turn.user.value, turn.assistant.value);
      }
      Json messages = Json::array();
      for (const Turn& turn : session.turns) {
        const auto letters = [](Tokens tokens) {
          return std::string(static_cast<std::size_t>(3 * tokens.value), 'x');
        };
        messages.push_back({{"from", "human"}, {"value", letters(turn.user)}});
        messages.push_back({{"from", "gpt"}, {"value", letters(turn.assistant)}});
      }
      texts.push_back({{"id", std::to_string(session.id)}, {"conversations", messages}});
      session.turns.front().user += Tokens(5);
      other.write(session);
    }
    writer.commit();
    other.commit();
    dir_.write("table.csv", table);
    dir_.write("log.csv", log);
    dir_.write("texts.json", texts.dump());
    write_profile(dir_.path("measured.json"), head_of(generated));
  }

  [[nodiscard]] RunConfig config(const std::string& base, const Settings& settings) const {
    // The SSD is slow and its limits bind in turn: reads, writes, and both together.
    Settings all{"/hardware/dram/capacity=16GiB",
                 "/hardware/ssd/capacity=60GiB",
                 "/hardware/ssd/bandwidth/both=7GB/s",
                 "/model/context_window=2048tokens",
                 "/workload/sessions=250",
                 "/workload/arrival_rate=2/s",
                 "/workload/warmup_turns=200",
                 "/system/save/write_buffer=2GiB",
                 "/serving/slots=24"};
    const auto add = [&](const Settings& more) { all.insert(all.end(), more.begin(), more.end()); };
    if (base == "plain") {
      all.insert(all.begin(), kNothingStored);
    } else if (base == "tails") {
      all.insert(all.begin(), "/system=pensieve");
      add({"/hardware/dram/capacity=8GiB", "/serving/kv_memory=6GiB",
           "/hardware/links/pcie/both=30GB/s", "/workload/arrival_rate=0.6/s",
           "/serving/slots=64"});
    } else if (base == "timed") {
      all.insert(all.begin(), "/system=attentionstore_lru");
      add({"/workload/generator=none", "/workload/trace=timed.jsonl", "/workload/sessions=all",
           "/workload/arrivals=trace", "/workload/arrival_rate=none",
           "/workload/think_time/model=trace"});
    } else if (base == "table") {
      add({"/workload/generator=none", "/workload/trace=table.csv", "/workload/sessions=all"});
    } else if (base == "log") {
      add({"/workload/generator=none", "/workload/trace=log.csv", "/workload/sessions=all",
           "/workload/arrivals=trace", "/workload/arrival_rate=none",
           "/workload/think_time/model=logged",
           "/workload/columns=time=ns:ns,input=user_tokens,output=assistant_tokens,session=conv"});
    } else if (base == "texts") {
      add({"/workload/generator=none", "/workload/trace=texts.json", "/workload/sessions=all",
           "/workload/tokenizer=chars:3"});
    } else if (base == "measured") {
      add({"/hardware/profile=" + dir_.path("measured.json").string(),
           "/hardware/unmeasured=roofline",
           R"(/system/engine={"version": "an engine", "date": "2026", "step_time": "3ms",
                              "request_time": "20us", "prompt_factor": 1.2, "memory_share": 0.95,
                              "reserved_memory": "1GiB"})"});
    } else if (base == "curves") {
      add({kRead, kWrite, kToDevice, kToHost});
    } else if (base == "loads") {
      add({kLoad});
    } else if (base == "hbm") {
      add({R"(/system/tiers/hbm={"capacity": "4GiB", "eviction": "lru"})"});
    } else if (base == "car") {
      all.insert(all.begin(), "/system=car");
      add({kCxl, "/system/tiers/hbm/blocks/idle=2GiB", "/serving/slots=4",
           "/workload/generator=shared_prompts"});
    } else if (base == "compressed") {
      add({R"(/system/compression={"strength": 0.5})"});
    } else if (base == "cxl") {
      add({"/hardware/dram/bandwidth=30GB/s", "/hardware/dram/host_load=10GB/s", kCxl,
           R"(/system/tiers/cxl={"eviction": "lru"})"});
    } else if (base == "tree") {
      all.insert(all.begin(), "/system=sglang_hicache");
      add({"/workload/generator=shared_prompts", "/hardware/ssd/bandwidth/read=0.2GB/s",
           "/system/tiers/hbm/blocks/capacity=12000tokens",
           "/system/tiers/dram/blocks/capacity=60000tokens",
           "/system/tiers/ssd/blocks/capacity=100000tokens"});
    } else if (base == "windows") {
      add({R"(/model/attention=["window", "full"])", "/model/window=300tokens",
           "/model/resume_every=700tokens",
           R"(/model/experts={"routed": 8, "active": 2, "shared": 1, "intermediate_size": 3000,
                              "shared_intermediate_size": 4000})",
           R"(/model/precision={"attention": "fp8", "mlp": "nvfp4", "experts": "mxfp4",
                                "kv": "int8"})",
           R"(/hardware/gpu/peaks={"fp8": "700TFLOP/s", "fp4": "1200TFLOP/s"})"});
    } else if (base == "latents") {
      add({R"(/model/attention=["latent"])",
           R"(/model/latent={"rank": 512, "rope_dim": 32, "query_rank": 700, "value_dim": 96})",
           R"(/model/sparse={"top_k": "300tokens", "index_heads": 30, "index_dim": 64})",
           R"(/model/experts={"routed": 8, "active": 2, "intermediate_size": 3000})",
           "/hardware/gpus=4", "/hardware/parallel/attention_dp=2"});
    } else if (base == "states") {
      add({R"(/model/attention=["state", "full"])", "/model/resume_every=700tokens",
           R"(/model/state={"key_heads": 16, "value_heads": 32, "key_dim": 64, "value_dim": 96,
                            "convolution": 4})"});
    } else if (base == "by_hand") {
      add({R"(/model/experts={"routed": 8, "active": 2, "intermediate_size": 3000})",
           "/model/total_parameters=12000000000", "/model/active_parameters=5000000000",
           "/model/kv_bytes_per_token=500000B"});
    } else if (base == "blocks" || base == "hbm_blocks") {
      // Untimed: block systems have no clock.
      all.insert(all.begin(), kNothingStored);
      add({"/workload/generator=shared_prompts", "/system/blocks={}",
           "/model/context_window=4096tokens"});
      const std::string tier =
          R"("block_size": "64tokens", "inclusive": true, "write": "on_create")";
      if (base == "blocks") {
        add({"/system/tiers/dram={" + tier + R"(, "blocks": {"capacity": "400blocks"}})",
             "/system/tiers/ssd={" + tier + R"(, "blocks": {"capacity": "1200blocks"}})"});
      } else {
        add({R"(/system/tiers/hbm={"capacity": "shared", "block_size": "64tokens",
                                   "blocks": {"capacity": "200blocks"}})",
             "/system/tiers/dram={" + tier + R"(, "blocks": {"capacity": "150blocks"}})"});
      }
    } else {
      EXPECT_EQ(base, "stored");
    }
    add(settings);
    return resolved("examples/planner-70.json", all);
  }

  /// The result without its config, or nullopt if the run was refused.
  [[nodiscard]] std::optional<std::string> run(const std::string& base,
                                               const Settings& settings) const {
    try {
      RunOptions options;
      options.base_dir = dir_.path("");
      const RunConfig run = config(base, settings);
      const bool is_timed =
          !run.system.blocks || base == "tree" || base == "tails" || base == "car";
      return outcome(!is_timed ? simulate_untimed(run, builtin_policies(), options)
                               : simulate(run, builtin_policies(), options));
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

 private:
  /// A profile of the head alone, which takes a millisecond.
  static Profile head_of(const RunConfig& config) {
    const MatrixShape head = head_matrix(config.model, config.hardware.gpus);
    Profile profile;
    profile.name = "head";
    profile.device = {.name = "device",
                      .driver = "none",
                      .memory = Bytes(1),
                      .peak = config.hardware.gpu.peak,
                      .memory_bandwidth = config.hardware.hbm.bandwidth,
                      .limits_source = "none"};
    profile.tables.push_back(
        {.operation = OperationId::gemm,
         .variant = "lm_head",
         .method = {},
         .cache = CacheState::cold,
         .shape = {{"n", head.n}, {"k", head.k}, {"element_bytes", 2}},
         .axes = {"tokens"},
         .cells = {{{1}, 1e-3, 1e-3, 1e-3, 1, 0, {}}, {{64}, 1e-3, 1e-3, 1e-3, 1, 0, {}}},
         .left_out = {}});
    return profile;
  }

  TempDir dir_;
};

const std::vector<std::string> kBases{
    "stored", "plain",   "hbm",     "cxl",      "car",        "tails",  "timed",
    "table",  "log",     "texts",   "measured", "compressed", "blocks", "hbm_blocks",
    "tree",   "windows", "latents", "states",   "by_hand",    "curves", "loads"};

const std::vector<Move>& moves() {
  static const Settings lru_tiers{"/system/tiers/dram/eviction=lru",
                                  "/system/tiers/ssd/eviction=lru", "/system/prefetch=none"};
  static const Settings scarce_hbm{"/hardware/hbm/capacity=20GiB"};
  static const Settings proportional{"/workload/think_time/model=output_proportional"};
  static const Settings documents{"/workload/generator=long_documents",
                                  "/workload/long_documents/document_tokens_min=500tokens",
                                  "/workload/long_documents/document_tokens_max=1000tokens",
                                  "/workload/sessions=60"};
  static const Settings prompts{"/workload/generator=shared_prompts"};
  static const Settings nodes{"/system/blocks/unit=node", "/system/tiers/dram=none"};
  static const Settings contexts{
      "/workload/generator=long_contexts", "/workload/long_contexts/context_tokens_min=500tokens",
      "/workload/long_contexts/context_tokens_max=1000tokens", "/workload/sessions=80"};
  static const Settings lognormal{"/workload/think_time/model=lognormal"};
  static const Settings mixed{
      R"(/workload/think_time={"model": "mixed", "mixed": {"away_share": 0.5,
         "soon": {"model": "lognormal", "mean": "10s"}, "away": {"model": "exponential", "mean": "100s"}}})"};
  static const Settings diurnal{"/workload/arrivals=diurnal", "/workload/diurnal/period=100s"};
  static const Settings clients{"/workload/generator=multi_turn", "/workload/sessions=100"};
  static const Settings groups{"/workload/generator=shared_prefixes",
                               "/workload/shared_prefixes/user_popularity_exponent=1"};
  static const Settings rag{"/workload/generator=rag", "/workload/rag/documents=50",
                            "/workload/rag/document_tokens_max=1500tokens"};
  static const Settings agents{"/workload/generator=agents", "/workload/sessions=60",
                               R"(/workload/agents={"prompts": 5, "prompt_tokens_min": "500tokens",
         "prompt_tokens_max": "900tokens", "first_tokens": {"median": 100, "sigma": 1},
         "requests": {"median": 12, "sigma": 1}, "requests_max": 40,
         "message_tokens_max": "700tokens", "response_tokens_max": "300tokens",
         "summary_tokens": "300tokens", "context_max": "4000tokens",
         "subagents": {"share": 0.1, "prompt_tokens": "400tokens"}})"};
  static const Settings mix{
      "/workload/generator=none",
      R"(/workload/mix=[{"name": "chat", "workload": {"generator": "sharegpt"}},
                        {"name": "more", "workload": {"generator": "sharegpt"}}])"};
  static const std::vector<Move> all{
      // The model.
      {"stored", "/model/layers=30"},
      {"stored", "/model/hidden_size=4096"},
      {"stored", "/model/attention_heads=80"},
      {"stored", "/model/kv_heads=20"},
      {"stored", "/model/head_dim=64"},
      {"stored", "/model/intermediate_size=12000"},
      {"stored", "/model/gated_mlp=false"},
      {"stored", "/model/vocabulary_size=64000"},
      {"stored", "/model/tied_embeddings=true", scarce_hbm},
      {"stored", "/model/bytes_per_element=1"},
      {"stored", "/model/kv_bytes_per_element=1"},
      {"stored", "/model/context_window=3000tokens"},
      {"stored", "/model/output_gate=true"},
      {"latents", "/model/norm_over_heads=true"},
      {"windows", R"(/model/attention=["window"])"},
      {"windows", "/model/window=200tokens"},
      {"windows", "/model/resume_every=900tokens"},
      {"windows", "/model/experts/routed=10"},
      {"windows", "/model/experts/active=3"},
      {"windows", "/model/experts/shared=2"},
      {"windows", "/model/experts/intermediate_size=2500"},
      {"windows", "/model/experts/shared_intermediate_size=3500"},
      {"windows", "/model/experts/dense_layers=3"},
      {"windows", "/model/experts/every=2"},
      {"windows", "/model/precision/attention=bf16"},
      {"windows", "/model/precision/mlp=fp8"},
      {"windows", "/model/precision/experts=int4"},
      {"windows", "/model/precision/kv=nvfp4"},
      {"windows", "/model/precision/compute=bf16"},
      {"windows", "/hardware/gpu/peaks/fp8=500TFLOP/s"},
      {"windows", "/hardware/gpu/peaks/fp4=800TFLOP/s"},
      {"latents", "/model/latent/rank=300"},
      {"latents", "/model/latent/rope_dim=64"},
      {"latents", "/model/latent/query_rank=0"},
      {"latents", "/model/latent/value_dim=64"},
      {"latents", "/model/sparse/top_k=200tokens"},
      {"latents", "/model/sparse/index_heads=60"},
      {"latents", "/model/sparse/index_dim=128"},
      {"latents", "/hardware/parallel/pipeline=2"},
      {"latents", "/hardware/parallel/attention_dp=4"},
      {"latents", "/hardware/parallel/expert=4"},
      {"states", "/model/state/key_heads=20"},
      {"states", "/model/state/value_heads=16"},
      {"states", "/model/state/key_dim=128"},
      {"states", "/model/state/value_dim=64"},
      {"states", "/model/state/convolution=9"},
      {"states", "/model/state/bytes_per_element=2"},
      {"by_hand", "/model/total_parameters=13000000000"},
      {"by_hand", "/model/active_parameters=4000000000"},
      {"by_hand", "/model/kv_bytes_per_token=400000B"},
      // The hardware.
      {"stored", "/hardware/gpus=4"},
      {"stored", "/hardware/gpu/peak=200TFLOP/s"},
      {"stored", "/hardware/gpu/price=6$/h"},
      {"stored", "/hardware/hbm/capacity=20GiB"},
      {"stored", "/hardware/hbm/bandwidth=1500GB/s"},
      {"stored", "/hardware/dram/capacity=20GiB"},
      {"stored", "/hardware/dram/price=0.01$/h/GiB"},
      {"stored", "/hardware/dram/bandwidth=10GB/s"},
      {"cxl", "/hardware/dram/host_load=25GB/s"},
      {"stored", kCxl},
      {"cxl", "/hardware/cxl/capacity=20GiB"},
      {"cxl", "/hardware/cxl/price=0.01$/h/GiB"},
      {"cxl", "/hardware/cxl/bandwidth/read=2GB/s"},
      {"cxl", "/hardware/cxl/bandwidth/write=2GB/s"},
      {"cxl", "/hardware/cxl/bandwidth/both=6GB/s"},
      {"cxl", "/hardware/cxl/bandwidth/read/latency=1ms"},
      {"cxl", "/hardware/cxl/bandwidth/write/latency=1ms"},
      {"stored", "/hardware/ssd/capacity=50GiB"},
      {"stored", "/hardware/ssd/price=0.0001$/h/GiB"},
      {"stored", "/hardware/ssd/bandwidth/read=4GB/s"},
      {"stored", "/hardware/ssd/bandwidth/write=4GB/s"},
      {"stored", "/hardware/ssd/bandwidth/both=5GB/s"},
      {"stored", "/hardware/ssd/bandwidth/read/latency=1ms"},
      {"stored", "/hardware/ssd/bandwidth/write/latency=1ms"},
      {"stored", kRead},
      {"stored", kWrite},
      {"stored", kLoad},
      {"loads", "/hardware/ssd/bandwidth/load/latency=2ms"},
      {"loads", "/hardware/ssd/bandwidth/load/alone=1.5GB/s"},
      {"loads", "/hardware/ssd/bandwidth/load/depth=400MiB"},
      {"curves", "/hardware/ssd/bandwidth/read/rate=4GB/s"},
      {"curves", "/hardware/ssd/bandwidth/read/latency=1ms"},
      {"curves", "/hardware/ssd/bandwidth/read/alone=1.5GB/s"},
      {"curves", "/hardware/ssd/bandwidth/read/depth=400MiB"},
      {"curves", "/hardware/ssd/bandwidth/write/rate=4GB/s"},
      {"curves", "/hardware/ssd/bandwidth/write/latency=1ms"},
      {"curves", "/hardware/ssd/bandwidth/write/alone=0.5GB/s"},
      {"curves", "/hardware/ssd/bandwidth/write/depth=400MiB"},
      {"curves", "/hardware/links/pcie/to_device/rate=20GB/s"},
      {"curves", "/hardware/links/pcie/to_device/latency=1ms"},
      {"curves", "/hardware/links/pcie/to_device/alone=2GB/s"},
      {"curves", "/hardware/links/pcie/to_device/depth=400MiB"},
      {"curves", "/hardware/links/pcie/to_host/rate=20GB/s"},
      {"curves", "/hardware/links/pcie/to_host/latency=1ms"},
      {"curves", "/hardware/links/pcie/to_host/alone=2GB/s"},
      {"curves", "/hardware/links/pcie/to_host/depth=400MiB"},
      {"stored", R"(/hardware/contention=[{"on": "ssd_read", "while": "pcie", "left": 0.5}])"},
      {"stored", R"(/hardware/contention=[{"on": "ssd_write", "while": "pcie", "left": 0.5}])"},
      {"stored", R"(/hardware/contention=[{"on": "ssd_read", "while": "compute", "left": 0.5}])"},
      {"stored", R"(/hardware/contention=[{"on": "ssd_write", "while": "compute", "left": 0.5}])"},
      {"stored",
       R"(/hardware/contention=[{"on": "pcie_to_device", "while": "compute", "left": 0.5}])"},
      {"stored",
       R"(/hardware/contention=[{"on": "pcie_to_host", "while": "compute", "left": 0.5}])"},
      {"stored", "/hardware/ssd/block=64KiB", {"/system/prefetch=none"}},
      {"stored", "/hardware/links/pcie/of=gpu", {"/hardware/dram/bandwidth=600GB/s"}},
      {"stored", "/hardware/links/pcie/to_device=20GB/s"},
      {"stored", "/hardware/links/pcie/to_host=20GB/s"},
      {"stored", "/hardware/links/pcie/both=28GB/s"},
      {"stored", "/hardware/links/pcie/to_device/latency=1ms"},
      {"stored", "/hardware/links/pcie/to_host/latency=1ms"},
      {"stored", "/hardware/links/gpu/bandwidth=200GB/s"},
      {"stored", "/hardware/links/gpu/latency=5000ns"},
      {"stored", "/hardware/efficiency/compute=0.5"},
      {"stored", "/hardware/efficiency/memory=0.7"},
      {"stored", "/hardware/efficiency/gpu_link=0.5"},
      {"stored", "/hardware/efficiency/iteration_overhead=6ms"},
      {"stored", "/hardware/efficiency/command_overhead=1ms"},
      {"measured", "/hardware/profile=none"},
      {"measured", "/hardware/sibling=2"},
      {"measured", "/system/engine/step_time=5ms"},
      {"measured", "/hardware/host_speed=0.5"},
      {"measured", "/system/engine/request_time=70us"},
      {"measured", "/system/engine/prompt_factor=1.6"},
      {"measured", "/system/engine/memory_share=0.8", scarce_hbm},
      {"measured", "/system/engine/reserved_memory=2GiB", scarce_hbm},
      {"measured", "/system/engine/kv_share=0.7", scarce_hbm},
      {"measured", "/hardware/unmeasured=refuse", {}, Effect::rejects},
      // The system.
      {"stored", "/system/positions=embedded"},
      {"stored", "/system/tiers/dram/eviction=fifo"},
      {"stored", "/system/tiers/dram/inclusive=true"},
      {"stored", "/system/tiers/dram/block_size=256tokens"},
      {"stored", "/system/tiers/dram/free_buffer=4GiB"},
      {"stored", "/system/tiers/dram/ttl=20s"},
      {"stored", "/system/tiers/ssd/eviction=lru"},
      {"stored", "/system/tiers/dram/admission=second_hit"},
      {"stored", "/system/tiers/ssd/admission=second_hit"},
      {"stored", "/system/tiers/ssd/inclusive=false"},
      {"stored", "/system/tiers/ssd/write=on_create"},
      {"stored", "/system/tiers/ssd/block_size=256tokens"},
      {"stored", "/system/tiers/ssd/free_buffer=4GiB"},
      {"stored", "/system/tiers/ssd/ttl=20s"},
      {"plain", R"(/system/tiers/hbm={"capacity": "4GiB", "eviction": "lru"})"},
      {"hbm", "/system/tiers/hbm/capacity=8GiB"},
      {"hbm", "/system/tiers/hbm/eviction=fifo"},
      {"hbm", "/system/tiers/hbm/admission=second_hit"},
      {"hbm", "/system/tiers/hbm/block_size=256tokens"},
      {"hbm", "/system/tiers/hbm/free_buffer=2GiB"},
      {"hbm", "/system/tiers/hbm/ttl=20s"},
      {"hbm", "/system/tiers/dram/write=on_create"},
      {"plain", R"(/system/tiers/cxl={"eviction": "lru"})", {kCxl}},
      {"cxl", "/system/tiers/cxl/eviction=fifo"},
      {"cxl", "/system/tiers/cxl/admission=second_hit"},
      {"cxl", "/system/tiers/cxl/inclusive=true"},
      {"cxl", "/system/tiers/cxl/write=on_create"},
      {"cxl", "/system/tiers/cxl/block_size=256tokens"},
      {"cxl", "/system/tiers/cxl/free_buffer=4GiB"},
      {"cxl", "/system/tiers/cxl/ttl=20s"},
      {"plain", R"(/system/tiers/dram={"eviction": "lru"})"},
      {"plain", R"(/system/tiers/ssd={"eviction": "lru"})"},
      {"blocks", "/system/blocks=none", {}, Effect::rejects},  // its tiers are of blocks
      {"blocks", "/system/blocks/unit=node", {}, Effect::rejects},
      {"blocks", "/system/blocks/unit=sequence"},
      {"blocks", "/system/tiers/ssd/blocks/round=7"},
      {"blocks", "/system/tiers/ssd/blocks/lease=1h"},
      {"blocks", "/system/tiers/dram/blocks/round=7"},
      {"blocks", "/system/tiers/dram/blocks/lease=1h"},
      {"hbm_blocks", "/system/tiers/hbm/blocks/round=7"},
      {"hbm_blocks", "/system/tiers/hbm/blocks/lease=1h", {}, Effect::rejects},
      {"hbm_blocks", "/system/blocks/keyless=in_order"},
      {"hbm_blocks", "/system/blocks/found_from=never"},
      {"blocks", "/system/blocks/partial_blocks=true", {}, Effect::rejects},
      {"blocks", "/system/blocks/responses=false"},
      {"blocks",
       "/system/blocks/latent_copies=one",
       {R"(/model/attention=["latent"])",
        R"(/model/latent={"rank": 512, "rope_dim": 32, "query_rank": 700, "value_dim": 96})",
        "/system/tiers/dram/blocks/capacity=1GiB"}},
      {"hbm_blocks", "/system/blocks/chunk=128tokens", {"/system/tiers/dram/eviction=arc"}},
      {"hbm_blocks", "/system/blocks/whole_need=true", nodes},
      {"tree", "/system/blocks/response_room/share=0.1"},
      {"tree", "/system/blocks/response_room/least_share=0.6"},
      {"tree", "/system/blocks/response_room/decodes=1000000"},
      {"tree", "/system/blocks/response_room/most=1tokens"},
      {"tree", "/system/blocks/response_room/after_preemption=400"},
      {"tree", "/system/blocks/storage_fetch/wait=best_effort"},
      {"tree", "/system/blocks/storage_fetch/timeout=0s"},
      {"tree", "/system/blocks/storage_fetch/timeout_per_1024_tokens=0s"},
      {"tree", "/system/blocks/storage_fetch/batch=1"},
      {"tree", "/system/tiers/dram/blocks/least_load=600tokens"},
      {"tree", "/system/tiers/ssd/blocks/least_load=900tokens"},
      {"tree", "/system/tiers/ssd/blocks/most_in_flight=0.01"},
      {"hbm_blocks", "/system/blocks/one_block_more=true", nodes},
      {"hbm", "/system/tiers/hbm/blocks={}", {}, Effect::rejects},
      {"stored", "/system/tiers/dram/blocks={}", {}, Effect::rejects},
      {"cxl", "/system/tiers/cxl/blocks={}", {}, Effect::rejects},
      {"stored", "/system/tiers/ssd/blocks={}", {}, Effect::rejects},
      {"hbm_blocks",
       "/system/blocks/partial_reuse=true",
       {"/system/tiers/dram=none", "/system/blocks/keyless=in_order"}},
      {"tree", "/system/blocks/whole_response=true", {}, Effect::rejects},
      {"tree", "/system/blocks/delays_duplicates=true", {}, Effect::rejects},
      {"hbm_blocks", std::string("/system/tiers/hbm/blocks/retention=") + kFirstStay},
      {"blocks", std::string("/system/tiers/dram/blocks/retention=") + kFirstStay},
      {"blocks", std::string("/system/tiers/ssd/blocks/retention=") + kFirstStay},
      {"hbm_blocks",
       "/system/tiers/hbm/blocks/leaves_only=true",
       {"/system/tiers/hbm/eviction=fifo"}},
      {"blocks",
       "/system/tiers/dram/blocks/leaves_only=true",
       {"/system/tiers/dram/eviction=fifo"}},
      {"blocks", "/system/tiers/ssd/blocks/leaves_only=true", {"/system/tiers/ssd/eviction=fifo"}},
      {"hbm_blocks", std::string("/system/tiers/hbm/blocks/relief=") + kRelief},
      {"blocks", std::string("/system/tiers/dram/blocks/relief=") + kRelief},
      {"blocks", std::string("/system/tiers/ssd/blocks/relief=") + kRelief},
      {"hbm_blocks", "/system/tiers/hbm/blocks/allocation=per_write", {}, Effect::rejects},
      {"blocks",
       "/system/tiers/dram/blocks/allocation=per_write",
       {"/system/tiers/dram/eviction=lfu"}},
      {"blocks", "/system/tiers/ssd/blocks/allocation=per_write", {}, Effect::rejects},
      {"hbm_blocks", "/system/tiers/hbm/blocks/lease_newcomers=false", {}, Effect::rejects},
      {"blocks",
       "/system/tiers/dram/blocks/lease_newcomers=false",
       {"/system/tiers/dram/blocks/lease=1h"}},
      {"blocks",
       "/system/tiers/ssd/blocks/lease_newcomers=false",
       {"/system/tiers/ssd/blocks/lease=1h"}},
      {"hbm_blocks", "/system/tiers/hbm/blocks/least_priority=50", {}, Effect::rejects},
      {"hbm_blocks",
       "/system/tiers/dram/blocks/least_priority=50",
       {"/system/tiers/dram/inclusive=false", "/system/tiers/dram/write=on_evict",
        "/system/load/wait=batch"}},
      {"hbm_blocks",
       "/system/tiers/dram/blocks/after_uses=2",
       {"/system/tiers/dram/inclusive=false", "/system/tiers/dram/write=on_evict",
        "/system/load/wait=batch"},
       Effect::rejects},
      {"hbm_blocks",
       "/system/load/wait=request",
       {"/system/tiers/dram/inclusive=false", "/system/tiers/dram/write=on_evict",
        "/system/load/wait=batch"},
       Effect::rejects},
      {"blocks",
       "/system/tiers/ssd/blocks/least_priority=50",
       {"/system/tiers/ssd/inclusive=false", "/system/tiers/ssd/write=on_evict"}},
      {"hbm_blocks", "/system/tiers/hbm/blocks/frequency={}", {}, Effect::rejects},
      {"hbm_blocks", "/system/tiers/dram/blocks/frequency={}", {}, Effect::rejects},
      {"hbm_blocks",
       "/system/tiers/ssd/blocks/frequency={}",
       {R"(/system/tiers/ssd={"block_size": "64tokens", "inclusive": true, "write": "on_create",
                              "blocks": {"capacity": "300blocks"}})"}},
      {"hbm_blocks",
       R"(/system/tiers/hbm/blocks/bucket={"blocks": 9})",
       {"/system/tiers/hbm/eviction=fifo"}},
      {"blocks",
       R"(/system/tiers/dram/blocks/bucket={"blocks": 9})",
       {"/system/tiers/dram/eviction=fifo"}},
      {"blocks",
       R"(/system/tiers/ssd/blocks/bucket={"blocks": 9})",
       {"/system/tiers/ssd/eviction=fifo"}},
      {"hbm_blocks", "/system/tiers/hbm/blocks/capacity=100blocks"},
      {"hbm_blocks", "/system/tiers/hbm/blocks/insertion=head_first"},
      {"hbm_blocks", "/system/tiers/hbm/blocks/ahead=0.5", {}, Effect::rejects},
      {"hbm_blocks", "/system/tiers/hbm/blocks/touch=lookup", {}, Effect::rejects},
      {"hbm_blocks", "/system/tiers/hbm/blocks/after_uses=2", {}, Effect::rejects},
      {"blocks", "/system/tiers/dram/blocks/capacity=100blocks"},
      {"blocks", "/system/tiers/dram/blocks/insertion=head_first"},
      {"blocks", "/system/tiers/dram/blocks/touch=lookup"},
      {"blocks", "/system/tiers/dram/blocks/after_uses=2", {}, Effect::rejects},
      {"hbm_blocks", "/system/tiers/dram/blocks/responses=computed"},
      {"blocks", "/system/tiers/ssd/blocks/capacity=1000blocks"},
      {"blocks", "/system/tiers/ssd/blocks/ahead=0.5", {}, Effect::rejects},
      {"blocks", "/system/tiers/ssd/blocks/touch=lookup"},
      {"blocks", "/system/tiers/ssd/blocks/after_uses=2"},
      {"blocks", "/system/tiers/ssd/blocks/no_room=skip"},
      {"blocks", "/system/tiers/ssd/blocks/promotes=false"},
      {"tails", "/system/batching=separate"},
      {"tails", "/system/blocks/watermark=0.4"},
      {"tails", "/system/blocks/whole_prompts=false"},
      {"tails", "/system/tiers/dram/blocks/ahead=0"},
      {"tails", "/system/tiers/hbm/eviction=lru"},
      {"tails", "/system/tiers/dram/eviction=lru"},
      {"tails", "/system/load/discipline=blocking"},
      {"tails", "/system/load/wait=request", {}, Effect::rejects},  // found in hbm at once
      {"tails", "/serving/token_budget=2100tokens"},
      {"tails", "/serving/kv_memory=5GiB"},
      {"stored", "/serving/kv_memory=12GiB"},
      {"stored", "/system/prefetch=none"},
      {"stored", "/system/order=shuffled_window"},
      {"car", "/system/order/policy=fcfs", {}, Effect::rejects},  // which has no parameters
      {"car", "/system/order/requests=3"},
      {"hbm",
       "/system/sharing=prompts",
       {"/workload/generator=shared_prompts", "/system/load/buffers=0"}},
      {"car", "/system/tiers/hbm/blocks/idle=1GiB"},
      {"car", "/system/length_prediction/kind=exact"},
      {"car", "/system/length_prediction/sigma=2"},
      {"car",
       "/system/length_prediction/tokens=2000tokens",
       {"/system/length_prediction/kind=constant"}},
      {"stored", "/system/load/discipline=blocking"},
      {"stored", "/system/load/buffers=2"},
      {"stored", "/system/load/buffers=auto", {"/system/load/buffers=2"}},
      {"stored", "/system/save/mode=blocking"},
      {"stored", R"(/system/compression={"strength": 0.5})"},
      {"compressed", "/system/compression/strength=0.7"},
      {"compressed", "/system/compression/sparsity=[0.5, 0.95]"},
      {"stored", "/system/save/write_buffer=200MiB"},
      // Parameters of policies, which a config names only where they are not automatic.
      {"stored", "/system/prefetch/window=1"},
      {"stored", "/system/tiers/dram/eviction/window=0"},
      {"stored", "/system/tiers/ssd/eviction/window=2"},
      {"stored",
       "/system/tiers/dram/eviction/protected_share=0.1",
       {"/system/tiers/dram/eviction=slru"}},
      {"stored",
       "/system/tiers/dram/eviction/small_share=0.7",
       {"/system/tiers/dram/eviction=s3fifo"}},
      {"stored", "/system/tiers/dram/eviction/recompute=0", {"/system/tiers/dram/eviction=gdsf"}},
      {"stored",
       "/system/tiers/ssd/eviction/protected_share=0.1",
       {"/system/tiers/ssd/eviction=slru"}},
      {"stored",
       "/system/tiers/ssd/eviction/small_share=0.7",
       {"/system/tiers/ssd/eviction=s3fifo"}},
      {"stored", "/system/tiers/ssd/eviction/recompute=0", {"/system/tiers/ssd/eviction=gdsf"}},
      {"stored",
       "/system/tiers/dram/admission/remembered=3",
       {"/system/tiers/dram/admission=second_hit"}},
      {"stored",
       "/system/tiers/dram/admission/counters=2",
       {"/system/tiers/dram/admission=frequency_sketch"}},
      // Settings that all systems share.
      {"stored", "/serving/slots=8"},
      {"stored", "/serving/kv_reservation=context_window"},
      {"stored", "/serving/long_turn=error", {}, Effect::rejects},
      {"stored", "/serving/overflow_trigger=prompt"},
      {"stored", "/serving/truncation_ratio=0.25"},
      {"stored", "/serving/keep_first_tokens=64tokens"},
      {"stored", "/serving/keep_important_share=0.3"},
      {"stored", "/serving/knowledge=online", {}, Effect::rejects},
      {"hbm_blocks", "/serving/hold_requests=8"},
      // The workload.
      {"timed", "/workload/trace=other.jsonl"},
      {"stored", "/workload/sessions=240"},
      {"timed", "/workload/arrivals=poisson", {}, Effect::rejects},  // a rate is needed then
      {"stored", "/workload/arrival_rate=1/s"},
      {"stored", "/workload/arrival_cv=3", {"/workload/arrivals=gamma"}},
      {"timed", "/workload/speed_up=2"},
      {"log", "/workload/columns=time=ns:ns,input=user_tokens,output=assistant_tokens"},
      // Keys of traces whose requests name their blocks, and of agent sessions.
      {"log", "/workload/loop=closed", {}, Effect::rejects},
      {"log", "/workload/session_start/every=1s", {}, Effect::rejects},
      {"log", "/workload/session_start/rate=1/s", {}, Effect::rejects},
      {"stored", "/cluster/instances=2"},
      {"stored", "/cluster/router=random", {"/cluster/instances=3"}},
      {"stored",
       "/cluster/report_interval=10s",
       {"/cluster/instances=3", "/cluster/router=least_tokens"}},
      {"stored", R"(/cluster/slow=[{"instance": 1, "factor": 3}])", {"/cluster/instances=3"}},
      {"stored", R"(/cluster/lost=[{"instance": 1, "at": "9s"}])", {}, Effect::rejects},
      {"stored",
       "/workload/request_rate=1/s",
       {"/workload/arrival_rate=none", "/workload/request_rate=11/s"}},
      {"stored", "/workload/filter/turns_min=3"},
      {"stored", "/workload/filter/context_max=3000tokens"},
      {"stored", "/workload/warmup_turns=100"},
      {"stored", "/workload/measure=all", {"/workload/arrival_rate=0.02/s"}},
      {"table", "/workload/replay=bootstrap", {"/workload/sessions=200"}},
      {"table", "/workload/tokens_per_message_overhead=1tokens"},
      {"table", "/workload/input_tokens=total", {}, Effect::rejects},  // they do not grow
      {"texts", "/workload/tokenizer=chars:5"},
      {"stored", "/workload/think_time/model=constant"},
      {"stored", "/workload/think_time/mean=30s"},
      {"stored", "/workload/think_time/minimum=20s", proportional},
      {"stored", "/workload/think_time/per_output_token=200ms", proportional},
      {"stored", "/workload/sharegpt/single_turn_fraction=0.5"},
      {"stored", "/workload/sharegpt/turns_median=6"},
      {"stored", "/workload/sharegpt/turns_sigma=0.5"},
      {"stored", "/workload/sharegpt/turns_min=4"},
      {"stored", "/workload/sharegpt/turns_max=10"},
      {"stored", "/workload/sharegpt/session_scale_sigma=0.2"},
      {"stored", "/workload/sharegpt/user_tokens_median=100"},
      {"stored", "/workload/sharegpt/user_tokens_sigma=1"},
      {"stored", "/workload/sharegpt/assistant_tokens_median=200"},
      {"stored", "/workload/sharegpt/assistant_tokens_sigma=0.5"},
      {"stored", "/workload/sharegpt/message_cap=700tokens"},
      {"stored", "/workload/generator=long_documents"},
      {"stored", "/workload/long_documents/document_tokens_min=700tokens", documents},
      {"stored", "/workload/long_documents/document_tokens_max=800tokens", documents},
      {"stored", "/workload/long_documents/tasks=4", documents},
      {"stored", "/workload/long_documents/task_input_tokens=100tokens", documents},
      {"stored", "/workload/long_documents/task_output_tokens=90tokens", documents},
      {"stored", "/workload/shared_prompts/prompts=5", prompts},
      {"stored", "/workload/shared_prompts/tokens_min=300tokens", prompts},
      {"stored", "/workload/shared_prompts/tokens_max=900tokens", prompts},
      {"stored", "/workload/shared_prompts/popularity_exponent=0.5", prompts},
      {"stored", "/workload/long_contexts/context_tokens_min=700tokens", contexts},
      {"stored", "/workload/long_contexts/context_tokens_max=800tokens", contexts},
      {"stored", "/workload/long_contexts/questions=3", contexts},
      {"stored", "/workload/long_contexts/question_tokens=100tokens", contexts},
      {"stored", "/workload/long_contexts/answer_tokens=90tokens", contexts},
      {"stored", "/workload/diurnal/amplitude=0.9", diurnal},
      {"stored", "/workload/diurnal/period=70s", diurnal},
      {"stored", "/workload/think_time/median=20s", lognormal},
      {"stored", "/workload/think_time/sigma=2", lognormal},
      {"stored", "/workload/think_time/mixed/away_share=0.2", mixed},
      {"stored", "/workload/think_time/mixed/soon/model=constant", mixed},
      {"stored", "/workload/think_time/mixed/soon/mean=20s", mixed},
      {"stored", "/workload/think_time/mixed/soon/median=30s", mixed},
      {"stored", "/workload/think_time/mixed/soon/sigma=2", mixed},
      {"stored", "/workload/think_time/mixed/away/model=constant", mixed},
      {"stored", "/workload/think_time/mixed/away/mean=50s", mixed},
      {"stored",
       "/workload/think_time/mixed/away/median=70s",
       {mixed.front(), "/workload/think_time/mixed/away/model=lognormal"}},
      {"stored",
       "/workload/think_time/mixed/away/sigma=2",
       {mixed.front(), "/workload/think_time/mixed/away/model=lognormal"}},
      {"blocks", "/workload/multi_turn/rounds=3", clients},
      {"blocks", "/workload/multi_turn/common_prefix_tokens=100tokens", clients},
      {"blocks", "/workload/multi_turn/client_prefix_tokens=90tokens", clients},
      {"blocks", "/workload/multi_turn/user_tokens=300tokens", clients},
      {"blocks", "/workload/multi_turn/response_tokens=90tokens", clients},
      {"blocks", "/workload/shared_prefixes/groups=9", groups},
      {"blocks", "/workload/shared_prefixes/users=3", groups},
      {"blocks", "/workload/shared_prefixes/group_tokens=1000tokens", groups},
      {"blocks", "/workload/shared_prefixes/user_tokens=100tokens", groups},
      {"blocks", "/workload/shared_prefixes/question_tokens=100tokens", groups},
      {"blocks", "/workload/shared_prefixes/response_tokens=90tokens", groups},
      {"blocks", "/workload/shared_prefixes/group_popularity_exponent=0.5", groups},
      {"blocks", "/workload/shared_prefixes/user_popularity_exponent=0.5", groups},
      {"blocks", "/workload/rag/documents=40", rag},
      {"blocks", "/workload/rag/popularity_exponent=0.5", rag},
      {"blocks", "/workload/rag/documents_per_request=3", rag},
      {"blocks", "/workload/rag/order=sorted", rag},
      {"blocks", "/workload/rag/instruction_tokens=100tokens", rag},
      {"blocks", "/workload/rag/document_tokens_median=500", rag},
      {"blocks", "/workload/rag/document_tokens_sigma=1", rag},
      {"blocks", "/workload/rag/document_tokens_max=1200tokens", rag},
      {"blocks", "/workload/rag/question_tokens=100tokens", rag},
      {"blocks", "/workload/rag/response_tokens=90tokens", rag},
      {"blocks", "/workload/agents/prompts=3", agents},
      {"blocks", "/workload/agents/popularity_exponent=2", agents},
      {"blocks", "/workload/agents/prompt_tokens_min=600tokens", agents},
      {"blocks", "/workload/agents/prompt_tokens_max=800tokens", agents},
      {"blocks", "/workload/agents/requests/median=9", agents},
      {"blocks", "/workload/agents/requests/sigma=0.5", agents},
      {"blocks", "/workload/agents/requests_max=20", agents},
      {"blocks", "/workload/agents/first_tokens/median=50", agents},
      {"blocks", "/workload/agents/first_tokens/sigma=0.5", agents},
      {"blocks", "/workload/agents/tool_share=0.5", agents},
      {"blocks", "/workload/agents/tool_tokens/median=100", agents},
      {"blocks", "/workload/agents/tool_tokens/sigma=1", agents},
      {"blocks", "/workload/agents/human_tokens/median=100", agents},
      {"blocks", "/workload/agents/human_tokens/sigma=1", agents},
      {"blocks", "/workload/agents/response_tokens/median=100", agents},
      {"blocks", "/workload/agents/response_tokens/sigma=0.5", agents},
      {"blocks", "/workload/agents/message_tokens_max=500tokens", agents},
      {"blocks", "/workload/agents/response_tokens_max=200tokens", agents},
      {"blocks", "/workload/agents/tool_seconds/median=5", agents},
      {"blocks", "/workload/agents/tool_seconds/sigma=0.5", agents},
      {"blocks", "/workload/agents/human_seconds/median=50", agents},
      {"blocks", "/workload/agents/human_seconds/sigma=1", agents},
      {"blocks", "/workload/agents/context_max=3500tokens", agents},
      {"blocks", "/workload/agents/summary_tokens=200tokens", agents},
      {"blocks", "/workload/agents/response_time=90s", agents},
      {"blocks", "/workload/agents/subagents/share=0.3", agents},
      {"blocks", "/workload/agents/subagents/fork=context", agents},
      {"blocks", "/workload/agents/subagents/prompt_tokens=300tokens", agents},
      {"blocks", "/workload/agents/subagents/requests/median=5", agents},
      {"blocks", "/workload/agents/subagents/requests/sigma=1", agents},
      {"blocks", "/workload/agents/subagents/task_tokens/median=100", agents},
      {"blocks", "/workload/agents/subagents/task_tokens/sigma=0.5", agents},
      {"blocks", "/workload/agents/subagents/tool_tokens/median=300", agents},
      {"blocks", "/workload/agents/subagents/tool_tokens/sigma=1", agents},
      {"blocks", "/workload/agents/subagents/tool_seconds/median=2", agents},
      {"blocks", "/workload/agents/subagents/tool_seconds/sigma=0.5", agents},
      {"stored",
       R"(/workload/mix=[{"name": "chat", "weight": 3, "workload": {"generator": "sharegpt"}},
                         {"name": "more", "workload": {"generator": "sharegpt"}}])",
       mix},
      {"stored",
       R"(/workload/mix=[{"name": "chat", "priority": 1, "workload": {"generator": "sharegpt"}},
                         {"name": "more", "workload": {"generator": "sharegpt"}}])",
       {mix.front(), mix.back(), "/system/order=priority"}},
      {"stored", "/seed=2"},
      // The same keys where only they decide.
      {"stored", "/system/tiers/ssd/eviction=fifo", lru_tiers},
      {"timed", "/serving/keep_first_tokens=64tokens"},
      // Exempt ones that could still have an effect by mistake.
      {"stored", "/model/name=other", {}, Effect::none},
      // All of a link is what it has where nothing interferes.
      {"stored",
       R"(/hardware/contention=[{"on": "pcie_to_device", "while": "compute", "left": 1}])",
       {},
       Effect::none},
      {"stored",
       R"(/hardware/contention=[{"on": "ssd_write", "while": "pcie", "left": 1}])",
       {},
       Effect::none},
      {"stored", "/hardware/name=other", {}, Effect::none},
      {"stored", "/hardware/gpu/name=other", {}, Effect::none},
      {"stored", "/system/name=other", {}, Effect::none},
      {"stored", "/system/tiers/dram/write=on_create", {}, Effect::none},
      {"table", "/workload/format=turns_table", {}, Effect::none},
  };
  return all;
}

std::vector<Exemption> exemptions() {
  std::vector<Exemption> all{
      {"/model/name", "read by people"},
      {"/model/source", "read by people"},
      {"/hardware/name", "read by people"},
      {"/hardware/source", "read by people"},
      {"/hardware/sources", "read by people"},
      {"/hardware/gpu/name", "read by people"},
      {"/system/name", "read by people"},
      {"/system/summary", "read by people"},
      {"/system/source", "read by people"},
      {"/system/engine/version", "read by people"},
      {"/system/engine/date", "read by people"},
      {"/system/tiers/dram/blocks/idle", "of hbm alone"},
      {"/system/tiers/ssd/blocks/idle", "of hbm alone"},
      {"/system/engine/expert_factor", "the profile has no experts (ProfileLayers)"},
      {"/system/engine/kernels", "the hardware has no engine_profiles (EngineProfiles)"},
      {"/system/engine/fused", "the profile has no such work (ProfileLayers)"},
      {"/system/engine/all_reduce", "the profile has no all-reduces (ProfileLayers)"},
      {"/serving/one_at_a_time", "turns of an untimed replay come one after the other"},
      {"/system/blocks/longest_hit", "generators repeat no whole prompt"},
      {"/system/blocks/duplicates", "generators repeat no whole prompt"},
      {"/system/blocks/longest_hit_behind", "generators repeat no whole prompt"},
      {"/system/tiers/hbm/blocks/no_room", "nothing is above the tier"},
      {"/system/tiers/hbm/blocks/promotes", "nothing is above the tier"},
      {"/system/tiers/hbm/blocks/responses", "nothing is above the tier"},
      {"/system/tiers/hbm/blocks/least_load", "nothing is above the tier"},
      {"/system/tiers/hbm/blocks/most_in_flight", "nothing is above the tier"},
      {"/system/tiers/dram/blocks/most_in_flight", "only storage behind nodes is fetched from"},
      {"/system/tiers/dram/blocks/no_room",
       "it is the fastest tier, or behind HBM, where what finds no room is not written"},
      {"/system/tiers/dram/blocks/promotes",
       "it is the fastest tier, or behind HBM, where running requests load what they find"},
      {"/system/tiers/ssd/blocks/insertion", "blocks come in order of the tier above"},
      {"/system/tiers/ssd/blocks/responses", "it is not behind HBM"},
      {"/workload/precision", "of \"auto\" sessions, whose number a result states"},
      {"/workload/format", "auto finds the same format, and any other is refused"},
  };
  const Json of_blocks = write_value(BlockTierConfig{});
  for (const auto& [key, value] : of_blocks.items()) {
    all.push_back({"/system/tiers/cxl/blocks/" + key, "as in dram"});
  }
  return all;
}

bool below(const std::string& pointer, const std::string& parent) {
  return pointer == parent || pointer.starts_with(parent + "/");
}

void add_leaves(const Json& json, const std::string& pointer, std::set<std::string>& leaves) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      add_leaves(value, pointer + "/" + escape_pointer(key), leaves);
    }
  } else {
    leaves.insert(pointer);
  }
}

std::string pointer_of(const Move& move) { return parse_override(move.setting).pointer; }

TEST(ConfigKeys, MoveAResultEach) {
  const Bases bases;
  std::map<std::pair<std::string, Settings>, std::string> unmoved;
  for (const Move& move : moves()) {
    SCOPED_TRACE(move.base + " " + move.setting);
    const std::pair key(move.base, move.around);
    if (!unmoved.contains(key)) {
      const auto result = bases.run(move.base, move.around);
      ASSERT_TRUE(result) << "the base runs";
      unmoved[key] = *result;
    }
    Settings settings = move.around;
    settings.push_back(move.setting);
    std::optional<std::string> moved;
    EXPECT_NO_THROW(moved = bases.run(move.base, settings));
    switch (move.effect) {
      case Effect::moves:
        ASSERT_TRUE(moved) << "refused";
        EXPECT_FALSE(*moved == unmoved[key]) << "no result moved";
        break;
      case Effect::rejects:
        EXPECT_FALSE(moved) << "not refused";
        break;
      case Effect::none:
        ASSERT_TRUE(moved) << "refused";
        EXPECT_TRUE(*moved == unmoved[key]) << "a result moved: the key needs no exemption";
        break;
    }
  }
}

TEST(ConfigKeys, AreEachMovedOrExempt) {
  const Bases bases;
  std::set<std::string> leaves;
  for (const std::string& base : kBases) {
    add_leaves(write_value(bases.config(base, {})), "", leaves);
  }
  EXPECT_GT(leaves.size(), 70U);
  for (const std::string& leaf : leaves) {
    bool known = false;
    for (const Move& move : moves()) {
      known = known || (move.effect != Effect::none && pointer_of(move) == leaf);
    }
    bool exempt = false;
    for (const Exemption& exemption : exemptions()) {
      exempt = exempt || below(leaf, exemption.pointer);
    }
    EXPECT_TRUE(known || exempt) << leaf << " has neither a move nor an exemption";
    EXPECT_FALSE(known && exempt) << leaf << " is moved: its exemption can go";
  }
  for (const Exemption& exemption : exemptions()) {
    bool found = false;
    for (const std::string& leaf : leaves) {
      found = found || below(leaf, exemption.pointer);
    }
    EXPECT_TRUE(found) << exemption.pointer << " is no key any more";
  }
}

/// Parameters that are automatic stand in no config, so they are asked of the policies.
TEST(ConfigKeys, IncludeEachParameterOfPolicies) {
  const auto moved = [](const std::string& begin, const std::string& parameter) {
    bool found = false;
    for (const Move& move : moves()) {
      const std::string pointer = pointer_of(move);
      found = found || (pointer.starts_with(begin) && pointer.ends_with("/" + parameter));
    }
    return found;
  };
  const PolicyRegistry registry = builtin_policies();
  std::size_t parameters = 0;
  const auto check = [&](const auto& kinds, const std::string& begin) {
    for (const auto& kind : kinds) {
      for (const PolicyParameter& parameter : kind.parameters) {
        ++parameters;
        EXPECT_TRUE(moved(begin, parameter.name)) << kind.name << " " << parameter.name;
      }
    }
  };
  check(registry.eviction, "/system/tiers/dram/eviction/");
  check(registry.eviction, "/system/tiers/ssd/eviction/");
  check(registry.admission, "/system/tiers/dram/admission/");
  check(registry.prefetch, "/system/prefetch/");
  // It orders what waits in a timed run of blocks, and has tests for each of its parameters.
  std::vector<PolicyKind<OrderPolicy>> orders = registry.order;
  std::erase_if(orders, [](const auto& kind) { return kind.name == "longest_prefix"; });
  check(orders, "/system/order/");
  EXPECT_GE(parameters, 3U);
}

/// The base runs have the pressure that their comment states. Otherwise, keys might be moved in
/// runs on which they have no effect.
TEST(ConfigKeys, AreMovedInRunsUnderPressure) {
  const Bases bases;
  const Json result = Json::parse(*bases.run("stored", {}));
  for (const char* tier : {"dram", "ssd"}) {
    EXPECT_GT(result["metrics"]["tiers"][tier]["evictions"].get<std::int64_t>(), 50) << tier;
    EXPECT_GT(number_at(result, std::string("/metrics/hit_rate/all_turns/") + tier), 0) << tier;
  }
  EXPECT_GT(result["metrics"]["truncated_turns"].get<std::int64_t>(), 50);
  EXPECT_GT(number_at(result, "/metrics/queueing_seconds/p90"), 1);
  EXPECT_GT(number_at(result, "/metrics/gpu_seconds/exposed_load"), 0);
}

TEST(PerformanceSettings, MoveNoResult) {
  const Bases bases;
  const TempDir dir;
  for (const char* system : {"recompute", "attentionstore_fifo", "attentionstore", "overflow",
                             "vllm_0_2", "pensieve_gpu", "pensieve"}) {
    const RunConfig config =
        resolved("examples/planner-70.json",
                 {std::string("/system=") + system, "/hardware/dram/capacity=16GiB",
                  "/hardware/ssd/capacity=60GiB", "/workload/sessions=200",
                  "/workload/arrival_rate=2/s", "/workload/warmup_turns=100", "/serving/slots=24"});
    const std::string plain = simulate(config, builtin_policies()).dump();
    EXPECT_EQ(plain, simulate(config, builtin_policies()).dump()) << system << ", twice";

    RunOptions reference;
    reference.stepping = DecodeStepping::per_iteration;
    EXPECT_TRUE(plain == simulate(config, builtin_policies(), reference).dump())
        << system << ", one event an iteration";

    Recorders recorders;
    recorders.requests = std::make_unique<RequestRecorder>(dir.path("requests.csv"), config.system);
    recorders.iterations = std::make_unique<IterationRecorder>(dir.path("iterations.jsonl"));
    recorders.timeline = std::make_unique<TimelineRecorder>(dir.path("timeline.json"));
    recorders.decisions = std::make_unique<DecisionRecorder>(dir.path("decisions.jsonl"));
    RunOptions watched;
    watched.observer = &recorders;
    watched.decisions = recorders.decisions.get();
    std::int64_t calls = 0;
    watched.progress = [&](std::int64_t) { ++calls; };
    EXPECT_TRUE(plain == simulate(config, builtin_policies(), watched).dump())
        << system << ", watched";
  }
}

}  // namespace
}  // namespace kvtier::test
