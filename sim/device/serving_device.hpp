#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/device/kv_store.hpp"
#include "sim/serving/config.hpp"

/// A device that serves a config: a decoder of the model's shape and memories for its tiers.
namespace kvtier {

/// Throws ConfigError, all reasons at once, for a config that a device cannot run:
/// clusters, compression, embedded positions, shared blocks, loads that one request waits for, and
/// paging with more than HBM and one tier of memory behind it.
void check_runs_on_device(const RunConfig& config, const Device& device);

/// Memories of the config that the device does not have, and their replacements, as text.
[[nodiscard]] std::vector<std::string> stand_ins(const RunConfig& config);

struct ServingSetup {
  const RunConfig* config = nullptr;
  Device* device = nullptr;
  /// Folder for the drive's file.
  std::string directory;
  bool verify = false;
  /// Called several times a second by the waiting thread. An exception ends the run.
  std::function<void()> check = [] {};
  /// Instead of a file; for tests.
  std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open_storage{};
  /// Contexts for which HBM and host memory have room beyond the tiers, running turns and write
  /// buffer. Ended turns stay in HBM whole until they are saved, while the simulated write buffer
  /// counts only their unmoved bytes.
  std::int64_t spare_contexts = 8;
};

/// Room for every tier's capacity and for KV in flight; lanes for as many threads.
[[nodiscard]] KvStore::Setup store_setup(const ServingSetup& setup, std::int64_t lanes);
[[nodiscard]] std::unique_ptr<Decoder> make_decoder(const ServingSetup& setup);

/// One pass through the model, and the slots of HBM that it fills. Tokens are drawn once for each
/// place in their session.
struct DecoderPass {
  DecoderBatch batch;
  std::vector<std::int32_t> computed;
};
/// Adds the tokens after the past ones of a context with these slots.
void add_prompt(DecoderPass& pass, EntryKey key, const PrefillPart& part,
                const std::vector<std::int32_t>& context, std::int64_t vocabulary);
/// Adds a token of each session after its tokens in HBM, and takes room for it.
void add_decode(DecoderPass& pass, KvStore& store, std::span<const EntryKey> running,
                std::int64_t vocabulary);
/// Computes it and waits for it.
void compute(const DecoderPass& pass, Decoder& decoder, KvStore& store, const MoveLane& lane);

}  // namespace kvtier
