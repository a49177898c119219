#include "sim/device/serving_device.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "hw/profile/profile_hardware.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "sim/serving/store_rules.hpp"

namespace kvtier {
namespace {

std::vector<std::int32_t> tokens_of(const KvStore& store, EntryKey key, std::int64_t first,
                                    std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (const auto& [owner, position] : store.names(key, first, count)) {
    const std::uint64_t bits = random_bits_at(owner.value, static_cast<std::uint64_t>(position));
    tokens.push_back(static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(vocabulary)));
  }
  return tokens;
}

}  // namespace

void check_runs_on_device(const RunConfig& config, const Device& device) {
  std::vector<std::string> problems;
  const auto refuse = [&problems](bool wrong, const char* pointer, const std::string& what) {
    if (wrong) {
      problems.push_back(fmt::format("{}: {}", pointer, what));
    }
  };
  const SystemConfig& system = config.system;
  refuse(is_cluster(config), "/cluster",
         fmt::format("a device is one instance, got {}", config.cluster.instances));
  refuse(system.compression.has_value(), "/system/compression", "a device compresses nothing");
  refuse(system.positions == KeyPositions::embedded, "/system/positions",
         "a device keeps keys without positions");
  if (system.blocks) {
    refuse(system.blocks->partial_reuse, "/system/blocks/partial_reuse",
           "a device shares whole blocks");
    refuse(!system.tiers.hbm, "/system/tiers/hbm", "on a device requests run in HBM");
    for_each_tier(system.tiers, [&](const char* name, const TierConfig& tier) {
      refuse(std::string(name) != "hbm" && !tier.inclusive && !has_victims_behind(rules_of(config)),
             fmt::format("/system/tiers/{}/inclusive", name).c_str(),
             "on a device blocks stay in a tier when a faster one takes them");
    });
  }
  refuse(load_wait(system) == LoadWait::request && !system.blocks, "/system/load/wait",
         "on a device the batch waits for loads");
  refuse(!is_dense(config.model), "/model", "a device runs dense models only");
  const Bytes element = device.info().element;
  const std::int64_t expected = kv_bytes_per_token(decoder_shape(config.model), element).value;
  const std::int64_t got = kv_bytes_per_token(config.model).value;
  refuse(got != expected, "/model/kv_bytes_per_element",
         fmt::format("{} computes in numbers of {} bytes, so that a token's KV takes {} bytes; the "
                     "model says {}",
                     device.info().kind, element.value, expected, got));
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

std::vector<std::string> stand_ins(const RunConfig& config) {
  std::vector<std::string> lines;
  if (config.system.tiers.cxl) {
    lines.emplace_back("CXL memory is a region of host memory");
  }
  return lines;
}

KvStore::Setup store_setup(const ServingSetup& setup, std::int64_t lanes) {
  const RunConfig& config = *setup.config;
  const Bytes token = kv_bytes_per_token(config.model);
  const std::int64_t window = config.model.context_window.value;
  const std::int64_t running = config.serving.slots * window;
  // Ended turns in flight to a tier: turns in the write buffer, and turns that end together.
  const std::int64_t saved = config.system.save.write_buffer / token + running + window;
  // A turn loaded ahead of its request, and a victim that moves meanwhile.
  const std::int64_t loaded = (2 + setup.spare_contexts) * window;
  // By medium: tokens of a block, and of all blocks.
  std::array<std::int64_t, kMedia> block{};
  std::array<std::int64_t, kMedia> of_blocks{};
  // KV that leaves HBM at once stands in the write buffer.
  std::int64_t leaving = 0;
  if (config.system.blocks) {
    const StoreRules rules = timed_store_rules(config);
    for (const PoolRules& pool : rules.pools) {
      const auto medium = static_cast<std::size_t>(medium_of(pool.name));
      block[medium] = pool.block.value;
      of_blocks[medium] = pool.capacity * pool.block.value;
    }
    const PoolRules& first = rules.pools.front();
    const bool keeps_nothing = rules.publication == Publication::never;
    if (keeps_nothing || first.idle) {
      // That of requests that end together is idle before it leaves.
      const std::int64_t idle = keeps_nothing ? 0 : running + *first.idle * first.block.value;
      of_blocks[0] = std::min(of_blocks[0], running + idle);
      leaving = rules.edges.empty() ? 0 : saved;
    }
  }
  std::array<std::int64_t, kMedia> slots{};
  const auto set = [&slots](Medium medium, std::int64_t count) {
    slots[static_cast<std::size_t>(medium)] = count;
  };
  const std::optional<HbmTierConfig>& tier = config.system.tiers.hbm;
  const bool has_blocks = config.system.blocks.has_value();
  const std::int64_t between_turns = tier && !has_blocks ? *tier->capacity / token : 0;
  const std::int64_t all = of_blocks.front();
  // Requests may keep the slots of blocks that have left.
  const std::int64_t in_hbm = has_blocks ? all + std::min(all, running) + leaving + loaded
                                         : running + between_turns + saved + loaded;
  set(Medium::hbm, in_hbm);
  // Saves to the fastest tier start before the tier has freed room, from the prompts of running
  // requests on. KV that leaves a tier in HBM moves when the next tier has freed room.
  std::int64_t beyond = tier && !has_blocks ? loaded : in_hbm;
  const auto add_tier = [&](Medium medium, Bytes capacity) {
    set(medium,
        (config.system.blocks ? of_blocks[static_cast<std::size_t>(medium)] : capacity / token) +
            beyond);
    beyond = loaded;
  };
  if (config.system.tiers.dram) {
    add_tier(Medium::dram, config.hardware.dram->capacity);
  }
  if (config.system.tiers.cxl) {
    add_tier(Medium::cxl, config.hardware.cxl->capacity);
  }
  if (config.system.tiers.ssd) {
    add_tier(Medium::ssd, config.hardware.ssd->capacity);
  }
  return {.device = setup.device,
          .shape = decoder_shape(config.model),
          .slots = slots,
          .block = block,
          .directory = setup.directory,
          .lanes = lanes,
          .check = setup.check,
          .open_storage = setup.open_storage,
          .verify = setup.verify};
}

std::unique_ptr<Decoder> make_decoder(const ServingSetup& setup) {
  const RunConfig& config = *setup.config;
  const std::int64_t window = config.model.context_window.value;
  // A shared prompt that must be computed is a request beside its turn's request.
  const std::int64_t slots =
      config.serving.slots + (config.system.sharing == Sharing::prompts ? 1 : 0);
  const bool has_budget = config.system.blocks.has_value();
  const std::int64_t tokens =
      std::max({window, slots, has_budget ? token_budget(config).value : 0});
  return std::make_unique<Decoder>(*setup.device, decoder_shape(config.model),
                                   KeyPositions::decoupled,
                                   DecoderLimits{.requests = slots,
                                                 .tokens = tokens,
                                                 .context = slots * window,
                                                 .longest_context = window},
                                   static_cast<std::uint64_t>(config.seed));
}

void warm_up(Decoder& decoder, const KvPool& pool, Stream& stream) {
  Device& device = decoder.device();
  if (device.info().kind == "cpu") {
    return;
  }
  const DecoderLimits& limits = decoder.limits();
  const std::int64_t largest =
      std::min({limits.tokens, limits.context, limits.requests * limits.longest_context});
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(largest), 0);
  std::vector<std::int32_t> slots(tokens.size());
  std::iota(slots.begin(), slots.end(), 0);
  for (std::int64_t n = 1; n <= largest; ++n) {
    if (device.gemm_rows(n) != n && n != largest) {
      continue;
    }
    DecoderBatch batch;
    for (std::int64_t begin = 0; begin < n; begin += limits.longest_context) {
      const auto count = static_cast<std::size_t>(std::min(limits.longest_context, n - begin));
      batch.add(std::span(tokens).first(count),
                std::span(slots).subspan(static_cast<std::size_t>(begin), count));
    }
    decoder.forward(batch, pool, stream);
  }
  // Contexts that are split: their parts take memory.
  for (const std::int64_t n : {std::int64_t{32}, std::int64_t{128}, std::int64_t{512}}) {
    const std::int64_t context = std::min(limits.longest_context, largest);
    DecoderBatch behind;
    behind.add(std::span(tokens).first(static_cast<std::size_t>(std::min(n, context))),
               std::span(slots).first(static_cast<std::size_t>(context)));
    decoder.forward(behind, pool, stream);
  }
  DecoderBatch step;
  for (std::size_t requests = 0; requests < static_cast<std::size_t>(limits.requests); ++requests) {
    step.add(std::span(tokens).first(1), std::span(slots).subspan(requests, 1));
    decoder.forward(step, pool, stream);
    decoder.forward(step, pool, stream);  // captured
  }
  stream.synchronize();
}

void add_prompt(DecoderPass& pass, const KvStore& store, EntryKey key, const PrefillPart& part,
                const std::vector<std::int32_t>& context, std::int64_t vocabulary) {
  pass.batch.add(tokens_of(store, key, part.past.value, part.added.value, vocabulary), context);
  pass.computed.insert(pass.computed.end(), context.end() - part.added.value, context.end());
}

void add_decode(DecoderPass& pass, KvStore& store, std::span<const EntryKey> running,
                std::int64_t vocabulary) {
  for (const EntryKey key : running) {
    const std::int64_t past = store.tokens(Medium::hbm, key);
    const std::vector<std::int32_t> context = store.extend(key, past, 1);
    pass.batch.add(tokens_of(store, key, past, 1, vocabulary), context);
    pass.computed.push_back(context.back());
  }
}

void compute(const DecoderPass& pass, Decoder& decoder, KvStore& store, const MoveLane& lane) {
  decoder.forward(pass.batch, store.hbm(), *lane.stream);
  lane.stream->synchronize();
  store.note_computed(pass.computed, lane);
}

}  // namespace kvtier
