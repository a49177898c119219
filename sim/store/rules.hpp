#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/policy.hpp"

/// The rules of a KV store as data: an engine is a set of these values. "Block" is the pool's unit
/// of memory (a page in SGLang, a chunk in LMCache). A rule that configs set is described here,
/// beside its declaration, and check_rules() says which rules need others.
namespace kvtier {

enum class EvictionUnit : std::uint8_t {
  block,     // vLLM, LMCache
  node,      // a leaf of the radix tree with the borders that the engine made: SGLang
  tail,      // as much as is wanted of the end of an extent: Pensieve
  sequence,  // all that the pool has of a stream: AttentionStore, CaR
};
constexpr auto enum_names(EvictionUnit) {
  using Name = std::pair<std::string_view, EvictionUnit>;
  return std::array{Name{"block", EvictionUnit::block}, Name{"node", EvictionUnit::node},
                    Name{"tail", EvictionUnit::tail}, Name{"sequence", EvictionUnit::sequence}};
}
/// Blocks of a stream are one entry, and any EvictionPolicy chooses which entries leave.
[[nodiscard]] constexpr bool has_entries(EvictionUnit unit) {
  return unit == EvictionUnit::tail || unit == EvictionUnit::sequence;
}

/// The end of a run of blocks that comes first: into the pool, or into the order of eviction.
enum class End : std::uint8_t { tail, head };
constexpr auto enum_names(End) {
  using Name = std::pair<std::string_view, End>;
  return std::array{Name{"tail_first", End::tail}, Name{"head_first", End::head}};
}

/// When a use changes the order of eviction.
enum class Touch : std::uint8_t {
  lookup,  // when a request finds the block, from its tail to its head
  end,     // when the request ends, with the blocks that it adds
};
constexpr auto enum_names(Touch) {
  using Name = std::pair<std::string_view, Touch>;
  return std::array{Name{"lookup", Touch::lookup}, Name{"end", Touch::end}};
}

/// When a write takes memory for its blocks.
enum class Allocation : std::uint8_t {
  block,  // block by block, so that one may evict another one of the same write
  write,  // for all of them, those that are there too, before the first one comes in: LMCache
};
constexpr auto enum_names(Allocation) {
  using Name = std::pair<std::string_view, Allocation>;
  return std::array{Name{"per_block", Allocation::block}, Name{"per_write", Allocation::write}};
}

/// The longest usable hit of a prompt.
enum class HitCap : std::uint8_t {
  none,        // the prompt
  last_token,  // all but its last token, rounded down to the first pool's blocks
};
constexpr auto enum_names(HitCap) {
  using Name = std::pair<std::string_view, HitCap>;
  return std::array{Name{"prompt", HitCap::none}, Name{"all_but_last_token", HitCap::last_token}};
}

/// From when on the blocks of a request are found by others.
enum class Publication : std::uint8_t {
  scheduling,  // Store::acquire
  computed,    // Store::computed
  end,         // Store::release
  never,       // the first pool keeps nothing
};
constexpr auto enum_names(Publication) {
  using Name = std::pair<std::string_view, Publication>;
  return std::array{Name{"scheduling", Publication::scheduling},
                    Name{"computed", Publication::computed}, Name{"end", Publication::end},
                    Name{"never", Publication::never}};
}

/// Handling of blocks that a request computed although the pool has them.
enum class Duplicates : std::uint8_t {
  kept,    // a second copy with the same key, found when the first has left
  merged,  // freed: the request goes on with the pool's copy
};
constexpr auto enum_names(Duplicates) {
  using Name = std::pair<std::string_view, Duplicates>;
  return std::array{Name{"kept", Duplicates::kept}, Name{"merged", Duplicates::merged}};
}

/// Handling of blocks without a key (a partial last block) at the end of their request.
enum class Keyless : std::uint8_t {
  first,     // their memory is taken before any block is evicted
  in_order,  // they wait in the order of eviction like others
};
constexpr auto enum_names(Keyless) {
  using Name = std::pair<std::string_view, Keyless>;
  return std::array{Name{"first", Keyless::first}, Name{"in_order", Keyless::in_order}};
}

/// Blocks that begin in a range of tokens of their context leave before those with a higher
/// priority, and behind those with a lower one (TensorRT-LLM's retention, Mooncake's soft pins).
struct Retention {
  static constexpr std::int64_t kDefaultPriority = 35;
  Tokens from{0};
  std::optional<Tokens> to{};
  std::int64_t priority = kDefaultPriority;
};
template <class V>
void describe(V& v, Retention& c) {
  v.field("from", c.from, "First token of the range, counted from the start of a context.",
          non_negative());
  v.field("to", c.to, "End of the range; \"none\": that of the context.",
          or_word("none", at_least(1)));
  v.field("priority", c.priority,
          "Priority of the blocks that begin in the range: 0 leaves first, 100 last. Other blocks "
          "have 35.",
          required(between(0, 100)));
}

/// Room that is made before a pool is full.
struct Relief {
  /// It begins where so large a share of the capacity is in use.
  double from = 1;
  /// Blocks that leave at least: a share of the capacity before a write, or of the pool's blocks.
  double share = 0;
  /// Whenever time goes on, and after a write without room; else before each write (FlexKV).
  bool in_background = false;
};
template <class V>
void describe(V& v, Relief& c) {
  v.field("from", c.from, "Share of the capacity in use from which on blocks leave.",
          required(between(0, 1)));
  v.field("share", c.share,
          "Share that leaves at least: of the capacity, or in the background of the blocks.",
          required(between(0, 1)));
  v.field("in_background", c.in_background,
          "When they leave: whenever an iteration begins, and after a write that found no room; or "
          "before a request's write to the tier.");
}

inline constexpr const char* kAlwaysAdmitted = "always";

struct PoolRules {
  std::string name = "hbm";
  /// In blocks, more than 0.
  std::int64_t capacity = 0;
  Tokens block{16};
  EvictionUnit unit = EvictionUnit::block;
  /// Any policy of the registry, with these parameters. lru, lfu, fifo (of blocks) and, in an
  /// offload, arc are the pool's own (has_own_order). arc is that of vLLM (Megiddo and Modha, FAST
  /// 2003; a store adapts the target once for each of its missing blocks, then makes room; a reuse
  /// counts when its request ends). lfu counts 1 when a block comes in and 1 at each later touch;
  /// of equal counts the block that reached it first leaves first.
  std::string eviction = "lru";
  PolicyParameters eviction_parameters{};
  /// Only for blocks and lru without an admission policy, which then chooses among the blocks of
  /// the lowest priority. Ranges do not overlap, and are in order.
  std::vector<Retention> retention{};
  /// Only for blocks: of those that may leave, a block leaves behind all that
  /// follow it in any context.
  bool leaves_only = false;
  /// Not for nodes.
  std::optional<Relief> relief{};
  /// Chooses what comes in at all; "always" asks no policy.
  std::string admission = kAlwaysAdmitted;
  PolicyParameters admission_parameters{};
  /// Facts that the policy may ask for.
  TierFacts facts{};
  /// KV that was not used for longer leaves. Coming in is a use.
  std::optional<SimDuration> ttl{};
  /// KV does not make room for other within this time of its last use.
  SimDuration lease{0};
  /// Whether coming in is a use from which the lease counts.
  bool lease_newcomers = true;
  /// One round of evictions frees at least so many blocks, if so many may leave.
  std::int64_t round = 1;
  /// Only of the first pool, with requests_in_first and not of nodes: most blocks that no request
  /// holds. More leave whenever time goes on.
  std::optional<std::int64_t> idle{};
  /// Only of sequences, with Allocation::block and not of an offload: blocks that are reserved for
  /// each stream of which the pool has some, as AttentionStore (arXiv 2403.19708, 4.1) reserves a
  /// context window. In the first pool, with requests_in_first, they count for `idle` alone,
  /// which has to be set.
  std::int64_t reserved = 0;
  /// Several instances have this pool together.
  bool shared = false;
  /// Order in which the blocks of a request come in.
  End insertion = End::tail;
  Touch touch = Touch::end;
  /// Allocation::write not for nodes: in the first pool without requests_in_first, and in a cache
  /// of its own behind it. Blocks behind the last one that has room are not written.
  Allocation allocation = Allocation::block;
};
/// The rules that the keys of a tier's blocks set.
template <class V>
void describe(V& v, PoolRules& c) {
  v.field("insertion", c.insertion,
          "Which end of a request's blocks comes into the order of eviction first, and so leaves "
          "first.");
  v.field("touch", c.touch,
          "When a use counts for the order of eviction: at the request's look-up or at its end.");
  v.field(
      "allocation", c.allocation,
      "When a request's write takes memory for its blocks: block by block, so that one may evict "
      "another one of the same write; or for all of them, those that are here too, before the "
      "first one comes in.");
  v.field("lease", c.lease, "KV does not make room for other within this time of its last use.",
          non_negative());
  v.field("lease_newcomers", c.lease_newcomers,
          "Whether coming in is a use from which the lease counts; if not, uses alone are.");
  v.field("round", c.round, "An eviction frees at least so many blocks.", at_least(1));
  v.field("retention", c.retention,
          "Priorities of blocks by their place in a context. Blocks of the lowest priority leave "
          "first, and of equal ones the least recently used. Ranges are in order.");
  v.field("leaves_only", c.leaves_only,
          "A block leaves after all that follow it in any context, of those that may leave.");
  v.field("relief", c.relief, "Blocks leave before the tier is full; \"none\": when it is.",
          or_word("none"));
}

/// When KV is written to the next pool.
enum class Write : std::uint8_t {
  on_create,   // with each block that comes into the pool above, or is used there
  after_uses,  // from the n-th use above on; coming in is the first use, or being offered
  on_evict,    // when the block leaves the pool above
};
constexpr auto enum_names(Write) {
  using Name = std::pair<std::string_view, Write>;
  return std::array{Name{"on_create", Write::on_create}, Name{"after_uses", Write::after_uses},
                    Name{"on_evict", Write::on_evict}};
}

/// When the KV of a response is written behind the first pool.
enum class Responses : std::uint8_t {
  never,
  computed,  // each block, when it is full
  end,       // all of it, when its request ends
};
constexpr auto enum_names(Responses) {
  using Name = std::pair<std::string_view, Responses>;
  return std::array{Name{"never", Responses::never}, Name{"computed", Responses::computed},
                    Name{"end", Responses::end}};
}

/// Handling of a write without room.
enum class NoRoom : std::uint8_t { evict, skip };
constexpr auto enum_names(NoRoom) {
  using Name = std::pair<std::string_view, NoRoom>;
  return std::array{Name{"evict", NoRoom::evict}, Name{"skip", NoRoom::skip}};
}

/// Counts of blocks that choose which ones are written (Dynamo KVBM).
struct FrequencyFilter {
  /// A block is written if its count is so high. The count is 1 at first, and doubles whenever the
  /// block comes into the pool above again.
  std::int64_t least = 2;
  /// All counts fall by 1 whenever so much time has passed, and when there are more than `entries`.
  SimDuration forget_every{std::int64_t{600} * 1'000'000'000};
  std::int64_t entries = 1'000'000;
};
template <class V>
void describe(V& v, FrequencyFilter& c) {
  v.field("least", c.least,
          "A block is written here when its count is so high. The count is 1 when it comes into "
          "the tier above for the first time, and doubles each time that it comes there again.",
          at_least(1));
  v.field("forget_every", c.forget_every, "Time after which all counts fall by 1.", positive());
  v.field("entries", c.entries, "Blocks that are counted; if there are more, all counts fall by 1.",
          at_least(1));
}

/// The edge from a pool to the next slower one.
struct EdgeRules {
  Write write = Write::on_create;
  /// For after_uses.
  std::int64_t uses = 2;
  /// For after_uses of an offload: offers of so many blocks are counted.
  std::int64_t counted = 64'000;
  /// Only for on_create behind the second pool, of blocks: those that come into the pool above
  /// are counted.
  std::optional<FrequencyFilter> frequency{};
  /// Only for on_evict of blocks: blocks of a lower priority in the pool above are dropped.
  std::int64_t least_priority = 0;
  /// A block leaves the slower pool when it comes into the faster one.
  bool exclusive = false;
  NoRoom no_room = NoRoom::evict;
  /// Whether a hit in the slower pool comes into the faster one.
  bool promotes = true;
  /// Writes take time (only of blocks, with requests_in_first). A block that is written to the
  /// slower pool is found there when its copy has arrived (Store::copied). Till then it holds its
  /// room and does not leave. Nor does the block from which it is copied, but for the first pool's
  /// and victims (is_buffered). Without, writes take no time, as those of untimed replays.
  bool timed = false;
  /// The next iteration waits for the writes, which the store takes for complete. So it does for
  /// victims of the first pool.
  bool stalls = false;
  /// Only of has_victims_behind, and not with nodes, parts or duplicates. While less than this
  /// share of the faster pool (or of PoolRules::idle) is free, blocks leave it ahead of need, and
  /// their writes do not stall. They are found in the faster pool until their memory is taken
  /// (Pensieve, arXiv 2312.05516, 4.3).
  double ahead = 0;
  /// Only behind requests_in_first. Nodes are written when they are published.
  Responses responses = Responses::never;
  /// Only for nodes: what is found in the slower pool is loaded if it is so much, and else
  /// computed.
  Tokens least_load{0};
  /// Only for nodes: a request that computed a node of the slower pool alone, and brings it back
  /// into the faster one, is a use of it.
  bool counts_recomputed = false;
  /// Only for nodes: nothing is fetched while the fetches at work look for this share of the faster
  /// pool's capacity, or more.
  double most_in_flight = 1;
};
/// The rules that the keys of the lower tier's blocks set.
template <class V>
void describe(V& v, EdgeRules& c) {
  v.field("no_room", c.no_room, "Whether a write without room evicts other blocks or is skipped.");
  v.field("promotes", c.promotes, "Whether a block that is found here comes into the tier above.");
  v.field("responses", c.responses,
          "Of blocks, behind a tier in HBM: when the KV of a response is written here: never, each "
          "block when it is computed, or all of it at the end of its request. A tier that has what "
          "leaves HBM takes it in any case.");
  v.gone("prompts_only", "use responses: \"never\" for true, \"computed\" for false");
  v.field("least_load", c.least_load,
          "Behind nodes: fewer tokens than this are computed rather than loaded or fetched from "
          "here.",
          non_negative());
  v.field("most_in_flight", c.most_in_flight,
          "For storage behind nodes: no fetch starts while those in flight look for this share of "
          "the tier above.",
          between(0, 1));
  v.field("least_priority", c.least_priority,
          "With write on_evict: blocks of a lower priority in the tier above are dropped.",
          between(0, 100));
  v.field("ahead", c.ahead,
          "With write on_evict behind HBM, of which the tier keeps no copies (inclusive false): "
          "while less than this share of the tier above is free, blocks are written here ahead of "
          "need. They are found above, too, until their memory is taken. 0: when it is taken, and "
          "the next iteration waits.",
          between(0, 1));
  v.field("frequency", c.frequency,
          "Behind two tiers: which blocks that come into the tier above are written here; "
          "\"none\": all.",
          or_word("none"));
}

/// Rules of all pools together that configs set.
struct SharingRules {
  HitCap hit_cap = HitCap::last_token;
  /// The same for what is found in pools behind that are an engine's own.
  HitCap hit_cap_behind = HitCap::none;
  /// Only for blocks with requests_in_first, in one pool or before an exclusive edge, keyless
  /// in_order and duplicates merged: behind the whole blocks that are found, the first tokens of
  /// one more block of the first pool are reused. Last blocks that are not full are found by their
  /// tokens. A block that is free, and that nothing follows, becomes the request's; else its tokens
  /// are copied.
  bool partial_reuse = false;
  Publication publication = Publication::end;
  Duplicates duplicates = Duplicates::merged;
  Keyless keyless = Keyless::first;
  /// Only for nodes. If room asked for exceeds what is free, so much is evicted, not the shortfall.
  bool whole_need = false;
  /// Only for nodes with blocks of more than one token: room for one block more is asked for.
  bool one_block_more = false;
};
template <class V>
void describe(V& v, SharingRules& c) {
  v.field("longest_hit", c.hit_cap,
          "What of a prompt can be found: the prompt, or all_but_last_token, which an engine "
          "computes anyway.");
  v.field("longest_hit_behind", c.hit_cap_behind,
          "The same for what tiers behind one of blocks in HBM have.");
  v.field("partial_reuse", c.partial_reuse,
          "Behind the whole blocks that are found, a prompt reuses the first tokens of one more "
          "block. Last blocks that are not full are found, too.");
  v.field("found_from", c.publication,
          "From when on other requests find a request's blocks: its scheduling, the end of its "
          "prefill (computed), its end, or never: the memory of an ended request is empty.");
  v.field("duplicates", c.duplicates,
          "Blocks that a request computed although they are there: kept beside them or merged.");
  v.field("keyless", c.keyless,
          "When blocks without a key (a partial last one) are taken for new ones: first, or in the "
          "order of eviction like others.");
  v.field("whole_need", c.whole_need,
          "Of nodes: room that is asked for is the whole need, not what is short of it.");
  v.field("one_block_more", c.one_block_more,
          "Of nodes with blocks of several tokens: room for one block more is asked for.");
}

struct StoreRules : SharingRules {
  /// All layers of the model together; policies of entries see bytes.
  Bytes bytes_per_token{1};
  /// The fastest first. All have the same size of blocks, but for the pools behind
  /// requests_in_first without nodes; and the unit block, or node, or each tail or sequence. Behind
  /// two pools of nodes there may be one of blocks: storage.
  std::vector<PoolRules> pools;
  /// One less: edges[i] joins pools i and i + 1.
  std::vector<EdgeRules> edges;
  /// KV of running requests takes room in the first pool, and what they hit there stays. Without,
  /// blocks come into the pools when their request ends, and any may be evicted until then.
  ///
  /// With blocks, the pools behind are an engine's offload or cache of its own (rules.md): the
  /// second one with Touch::end as vLLM's CPU offload, with Touch::lookup as LMCache. Their blocks
  /// may be several of the first pool's. Behind an exclusive edge there is one pool, which has what
  /// the first one evicts, and gives it back when it is found (TensorRT-LLM).
  ///
  /// With nodes, the pools behind are SGLang's HiCache: the second one has copies of nodes, and the
  /// nodes that have left the first one.
  bool requests_in_first = false;
  /// A request waits for its own loads while others run: what it loads is found in the first pool
  /// when it is there. Without, its next step waits, and others find it at once.
  bool loads_alone = true;
};

/// Whether the second pool has what the first one, in which requests run, evicts.
[[nodiscard]] inline bool has_victims_behind(const StoreRules& rules) {
  return rules.requests_in_first && rules.pools.size() > 1 &&
         rules.pools[0].unit != EvictionUnit::node && rules.edges[0].exclusive;
}

/// Whether the second pool is an offload, which learns of requests by Store::offer and `end`.
[[nodiscard]] inline bool is_offload(const StoreRules& rules) {
  return rules.requests_in_first && rules.pools.size() > 1 &&
         rules.pools[0].unit != EvictionUnit::node && rules.pools[1].touch == Touch::end &&
         !rules.edges[0].exclusive;
}

/// Whether KV of tokens behind a cut stays in the pools (Store::cut). Hashed blocks and nodes are
/// found by all tokens before them, and of larger blocks the borders move.
[[nodiscard]] inline bool keeps_kv_behind_cuts(const StoreRules& rules) {
  return std::all_of(rules.pools.begin(), rules.pools.end(), [](const PoolRules& pool) {
    return has_entries(pool.unit) && pool.block == Tokens(1);
  });
}

/// The pool to which KV of requests that wait may come from the one behind it. The store brings it
/// to the second pool (Store::prefetch), and its caller to the first one, by a request that is
/// released when the KV has come.
[[nodiscard]] inline std::optional<std::size_t> prefetches_to(const StoreRules& rules) {
  if (!rules.requests_in_first || rules.pools[0].unit == EvictionUnit::node) {
    return std::nullopt;
  }
  if (rules.pools.size() > 2 && !has_victims_behind(rules)) {
    return 1;
  }
  return rules.pools.size() == 2 && rules.publication != Publication::never
             ? std::optional<std::size_t>(0)
             : std::nullopt;
}

/// Whether an admission policy chooses what comes into the pool.
[[nodiscard]] inline bool filters_admission(const PoolRules& pool) {
  return pool.admission != kAlwaysAdmitted;
}

/// Whether a pool of blocks or nodes orders what leaves by itself. Else its policies are those of
/// the registry, as those of extents and sequences always are.
[[nodiscard]] inline bool has_own_order(const StoreRules& rules, std::size_t pool) {
  const auto is_plain = [&](std::size_t i) {
    const PoolRules& one = rules.pools[i];
    return !has_entries(one.unit) && !filters_admission(one) && one.eviction_parameters.empty() &&
           (one.eviction == "lru" || one.eviction == "fifo" || one.eviction == "lfu" ||
            (one.eviction == "arc" && i == 1 && is_offload(rules) && !one.leaves_only));
  };
  if (rules.pools[pool].unit != EvictionUnit::node) {
    return is_plain(pool);
  }
  // One order chooses the nodes that leave both pools.
  return is_plain(0) && rules.pools[0].eviction != "fifo" &&
         (rules.pools.size() == 1 ||
          (is_plain(1) && rules.pools[0].eviction == rules.pools[1].eviction));
}

/// The priority of the block of so many tokens with this number in a context.
[[nodiscard]] inline std::int64_t priority_of(const PoolRules& pool, std::int64_t block) {
  const std::int64_t begin = block * pool.block.value;
  for (const Retention& range : pool.retention) {
    if (begin >= range.from.value && (!range.to || begin < range.to->value)) {
      return range.priority;
    }
  }
  return Retention::kDefaultPriority;
}

/// Blocks that leave before a write of so many (Relief, not in the background).
[[nodiscard]] inline std::int64_t relief_before_write(const PoolRules& pool, std::int64_t used,
                                                      std::int64_t wanted) {
  const Relief& relief = *pool.relief;
  const auto capacity = static_cast<double>(pool.capacity);
  const std::int64_t free = pool.capacity - used;
  if (static_cast<double>(used) < relief.from * capacity && wanted <= free) {
    return 0;
  }
  return std::max({wanted - free, static_cast<std::int64_t>(capacity * (1 - relief.from)) - free,
                   static_cast<std::int64_t>(capacity * relief.share), std::int64_t{0}});
}

/// Blocks that leave in the background. `lacked`: a write has found no room.
[[nodiscard]] inline std::int64_t relief_in_background(const PoolRules& pool, std::int64_t used,
                                                       bool lacked) {
  const Relief& relief = *pool.relief;
  const double share = static_cast<double>(used) / static_cast<double>(pool.capacity);
  if (share <= relief.from && !lacked) {
    return 0;
  }
  const double wanted = std::max(relief.share, share - relief.from + relief.share);
  return static_cast<std::int64_t>(std::ceil(wanted * static_cast<double>(used)));
}

/// Whether blocks leave the first pool for the second one before their memory is needed.
[[nodiscard]] inline bool leaves_ahead(const StoreRules& rules) {
  return has_victims_behind(rules) && (rules.edges[0].ahead > 0 || rules.pools[0].idle);
}

/// Blocks for which the first pool has room, or less than so many leave it ahead of need.
[[nodiscard]] inline std::int64_t blocks_ahead(const StoreRules& rules) {
  return rules.edges.empty()
             ? 0
             : static_cast<std::int64_t>(
                   rules.edges[0].ahead *
                   static_cast<double>(rules.pools[0].idle.value_or(rules.pools[0].capacity)));
}

/// Whether blocks that are written to a pool are found there when their copy has arrived.
[[nodiscard]] inline bool takes_time(const StoreRules& rules, std::size_t pool) {
  if (pool == 0 || !rules.edges[pool - 1].timed) {
    return false;
  }
  // Victims leave the memory of the first pool when they are written.
  const EdgeRules& edge = rules.edges[pool - 1];
  return !edge.stalls && (pool > 1 || edge.write != Write::on_evict || leaves_ahead(rules));
}

/// Whether blocks that are written to a pool leave the one before it at once, and stand in a write
/// buffer meanwhile.
[[nodiscard]] inline bool is_buffered(const StoreRules& rules, std::size_t pool) {
  return takes_time(rules, pool) &&
         (pool == 1 ? rules.publication == Publication::never || rules.pools[0].idle
                    : rules.edges[pool - 1].write == Write::on_evict);
}

/// The number of puts into a pool that the edge below waits for; 0 if it does not.
[[nodiscard]] inline std::int64_t puts_wanted(const StoreRules& rules, std::size_t pool) {
  return pool < rules.edges.size() && rules.edges[pool].write == Write::after_uses &&
                 !(pool == 0 && is_offload(rules))
             ? rules.edges[pool].uses
             : 0;
}

}  // namespace kvtier
