#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/kv_size.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/policy.hpp"
#include "sim/store/rules.hpp"

/// How the tiers of a system are used: the keys of /system/tiers and the policies that they
/// name.
namespace kvtier {

/// A policy and its parameters: `"lru"` or `{"policy": "look_ahead", "window": 64}`.
struct PolicyChoice {
  std::string name;
  PolicyParameters parameters;

  friend bool operator==(const PolicyChoice&, const PolicyChoice&) = default;
};
void read_config(PolicyChoice& choice, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const PolicyChoice& choice);
[[nodiscard]] Json config_schema(const PolicyChoice& choice);

/// When an entry is written to a tier from the tier above.
enum class WriteMoment {
  on_evict,   // when it leaves the tier above
  on_create,  // as soon as it is in the tier above
};
constexpr auto enum_names(WriteMoment) {
  return std::array{std::pair{"on_evict", WriteMoment::on_evict},
                    std::pair{"on_create", WriteMoment::on_create}};
}

enum class SaveMode {
  async,     // while later work runs, through the HBM write buffer
  blocking,  // the GPUs wait at the end of the turn
};
constexpr auto enum_names(SaveMode) {
  return std::array{std::pair{"async", SaveMode::async}, std::pair{"blocking", SaveMode::blocking}};
}

inline constexpr const char* kNoPrefetch = "none";

/// Files that drives keep blocks in: one leaves as a whole.
struct BucketConfig {
  Bytes size{std::int64_t{256} << 20};
  std::int64_t blocks = 500;
};
template <class V>
void describe(V& v, BucketConfig& c) {
  v.field("size", c.size, "Most bytes of a bucket.", positive());
  v.field("blocks", c.blocks, "Most blocks of a bucket.", at_least(1));
}

/// A tier of a system that keeps blocks (SystemConfig::blocks), and the edge from the tier above.
struct BlockTierConfig {
  std::optional<KvSize> capacity;
  std::optional<KvSize> idle{};
  PoolRules pool{};
  EdgeRules edge{};
  std::optional<std::int64_t> after_uses{};
  std::optional<BucketConfig> bucket{};
};
template <class V>
void describe(V& v, BlockTierConfig& c) {
  v.field("capacity", c.capacity,
          "Size of the tier in bytes, tokens (5Mitokens) or blocks (1000blocks); \"installed\": "
          "what the hardware has.",
          or_word("installed"));
  v.field(
      "idle", c.idle,
      "In hbm: most memory of KV that no running request uses, as a size like capacity. \"none\": "
      "all that running requests leave.",
      or_word("none"));
  describe(v, c.pool);
  v.field(
      "after_uses", c.after_uses,
      "A block is written here when it is used in the tier above for the n-th time, where coming "
      "in is the first use; \"none\": as write says.",
      at_least(1));
  describe(v, c.edge);
  v.field("bucket", c.bucket,
          "With fifo: blocks are kept in files, of which the oldest leaves as a whole; \"none\": "
          "as round says.",
          or_word("none"));
}

/// How one tier is used; that it is installed, and its size, is said by the hardware.
struct TierConfig {
  PolicyChoice eviction{.name = "lru", .parameters = {}};
  PolicyChoice admission{.name = kAlwaysAdmitted, .parameters = {}};
  bool inclusive = false;
  WriteMoment write = WriteMoment::on_evict;
  Tokens block_size{16};
  Bytes free_buffer{0};
  std::optional<SimDuration> ttl;
  std::optional<BlockTierConfig> blocks;
};
inline constexpr const char* kBlockTierText =
    "How the tier keeps blocks, in a system with /system/blocks; \"none\": the defaults.";
/// The keys that say when entries leave a tier unasked.
template <class V>
void describe_departures(V& v, TierConfig& c) {
  v.field("free_buffer", c.free_buffer, "Entries leave in the background until this much is free.",
          non_negative());
  v.field("ttl", c.ttl, "An entry not used for longer is dropped; \"none\": never.",
          or_word("none", positive()));
}
inline constexpr const char* kAdmissionText =
    "Admission policy: what comes into this tier at all, of what turns save and what leaves the "
    "tier above. What a running turn saves to the fastest tier has been moved by the time it is "
    "asked, at the turn's end.";
template <class V>
void describe(V& v, TierConfig& c) {
  v.field("eviction", c.eviction, "Eviction policy of this tier.");
  v.field("admission", c.admission, kAdmissionText);
  v.field("inclusive", c.inclusive,
          "An entry that moves up keeps its copy here, and only new tokens are written later.");
  v.field("write", c.write, "When an entry is written to this tier from the tier above.");
  v.field("block_size", c.block_size,
          "Storage is accounted and written in blocks of this many tokens.", at_least(1));
  describe_departures(v, c);
  v.field("blocks", c.blocks, kBlockTierText);
}

/// HBM that keeps the KV of sessions between their turns, beside that of running requests. It is
/// the fastest tier, so what a finished turn leaves is there already, and it has nothing above it.
struct HbmTierConfig : TierConfig {
  /// All GPUs together; without a value: shared with running requests.
  std::optional<Bytes> capacity;
};
template <class V>
void describe(V& v, HbmTierConfig& c) {
  v.field("capacity", c.capacity,
          "HBM set aside for the KV of sessions that wait for their next turn, all GPUs together. "
          "KV that does not fit in it goes to the next tier. \"shared\" (with blocks): the memory "
          "of running requests, of which they take what they need.",
          required(or_word("shared", positive())));
  v.field("eviction", c.eviction, "Eviction policy of this tier.");
  v.field("admission", c.admission, kAdmissionText);
  v.field("block_size", c.block_size, "Storage is accounted in blocks of this many tokens.",
          at_least(1));
  describe_departures(v, c);
  v.field("blocks", c.blocks, kBlockTierText);
}

struct TiersConfig {
  std::optional<HbmTierConfig> hbm;
  std::optional<TierConfig> dram;
  std::optional<TierConfig> cxl;
  std::optional<TierConfig> ssd;

  [[nodiscard]] int count() const {
    return (hbm ? 1 : 0) + (dram ? 1 : 0) + (cxl ? 1 : 0) + (ssd ? 1 : 0);
  }
};
/// Visits the name and the config of each tier used, the fastest first.
template <class Visit>
void for_each_tier(const TiersConfig& tiers, const Visit& visit) {
  if (tiers.hbm) {
    visit("hbm", static_cast<const TierConfig&>(*tiers.hbm));
  }
  if (tiers.dram) {
    visit("dram", *tiers.dram);
  }
  if (tiers.cxl) {
    visit("cxl", *tiers.cxl);
  }
  if (tiers.ssd) {
    visit("ssd", *tiers.ssd);
  }
}
template <class V>
void describe(V& v, TiersConfig& c) {
  v.field("hbm", c.hbm, "GPU memory between turns; \"none\": not used.");
  v.field("dram", c.dram, "Host memory; \"none\": not used.");
  v.field("cxl", c.cxl, "Memory behind CXL; \"none\": not used.");
  v.field("ssd", c.ssd, "Flash drives; \"none\": not used.");
}

/// HBM for KV and what is set aside in it.
struct KvShares {
  Bytes capacity;
  /// The tier in HBM.
  Bytes stored;
  Bytes read_buffer;
  Bytes write_buffer;
};

/// Bytes left for the KV of running requests; at least zero.
[[nodiscard]] inline Bytes left_to_run(const KvShares& hbm) {
  return std::max(Bytes(0), hbm.capacity - hbm.stored - hbm.read_buffer - hbm.write_buffer);
}

}  // namespace kvtier
