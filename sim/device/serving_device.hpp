#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/device/kv_store.hpp"
#include "sim/serving/config.hpp"

/// Setup of a device for a config: a decoder of the model's shape, and memories for the tiers.
namespace kvtier {

/// Throws ConfigError with all reasons for a config that a device cannot run: clusters,
/// compression, embedded positions, models that are not dense, and KV of another element size. With
/// blocks also requests outside of HBM, parts of blocks and exclusive tiers; without blocks also
/// loads that stop one request only.
void check_runs_on_device(const RunConfig& config, const Device& device);

/// Texts that name memories of the config that the device lacks, and their replacements.
[[nodiscard]] std::vector<std::string> stand_ins(const RunConfig& config);

struct ServingSetup {
  const RunConfig* config = nullptr;
  Device* device = nullptr;
  /// Folder for the drive's file.
  std::string directory;
  bool verify = false;
  /// After this time without work, a pass is cold.
  SimDuration idle_gap = kUsualIdleGap;
  /// Called several times a second by the waiting thread. An exception ends the run.
  std::function<void()> check = [] {};
  /// Replaces the file; for tests.
  std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open_storage{};
  /// Contexts for which HBM and host memory have room beyond the tiers, running turns and write
  /// buffer. Ended turns stay in HBM whole until they are saved, while the simulated write buffer
  /// counts only their unmoved bytes.
  std::int64_t spare_contexts = 8;
};

/// Setup of a store with room for all tiers and KV in flight, for `lanes` lanes.
[[nodiscard]] KvStore::Setup store_setup(const ServingSetup& setup, std::int64_t lanes);
[[nodiscard]] std::unique_ptr<Decoder> make_decoder(const ServingSetup& setup);
/// Passes of all sizes for which a GPU chooses kernels, and decode steps of all batch sizes until
/// they are captured, in slots without KV. A GPU loads a kernel at its first call. Does nothing on
/// a CPU.
void warm_up(Decoder& decoder, const KvPool& pool, Stream& stream);

/// One pass through the model, and the slots of HBM that it fills. A token is a function of its
/// session or stream, and of its place there.
struct DecoderPass {
  DecoderBatch batch;
  std::vector<std::int32_t> computed;
};
/// Adds the tokens of `part` after its past tokens; `context` has the slots of all tokens.
void add_prompt(DecoderPass& pass, const KvStore& store, EntryKey key, const PrefillPart& part,
                const std::vector<std::int32_t>& context, std::int64_t vocabulary);
/// Adds one token of each session after its tokens in HBM, and takes room for it.
void add_decode(DecoderPass& pass, KvStore& store, std::span<const EntryKey> running,
                std::int64_t vocabulary);
/// Runs the pass and waits for its end.
void compute(const DecoderPass& pass, Decoder& decoder, KvStore& store, const MoveLane& lane);

}  // namespace kvtier
