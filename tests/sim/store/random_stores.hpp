#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sim/core/rng.hpp"
#include "sim/store/decisions.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Rules of all kinds, with small pools.
[[nodiscard]] StoreRules random_rules(RandomStream& random);
/// Nodes in two or three pools.
[[nodiscard]] StoreRules random_nodes(RandomStream& random);
/// For messages.
[[nodiscard]] std::string describe(const StoreRules& rules);

/// Contexts in a growing forest: streams that grow, are cut, fork at any token and come again.
class RandomContexts {
 public:
  explicit RandomContexts(RandomStream& random) : random_(random) {}
  [[nodiscard]] Context next();
  /// A longer context that begins with this one, in its stream or in a fork of it.
  [[nodiscard]] Context longer(const Context& context);
  /// A stream, and where its end was cut; nullopt before there is one.
  [[nodiscard]] std::optional<Context> edit();
  /// Tokens of a stream without forks that may be cut out of it (Store::cut); nullopt if there are
  /// none.
  [[nodiscard]] std::optional<Stretch> cut();
  void note_cut(const Stretch& cut);
  [[nodiscard]] std::int64_t cuts() const { return cuts_; }
  [[nodiscard]] const Streams& streams() const { return streams_; }

 private:
  RandomStream& random_;
  Streams streams_;
  std::vector<std::int64_t> lengths_;
  Context last_;
  std::int64_t cuts_ = 0;
};

/// Replays a store's decisions.
class ReplayedDecisions final : public BlockLog {
 public:
  explicit ReplayedDecisions(std::size_t pools) : pools_(pools) {}
  void on_decision(DecisionKind kind, std::size_t pool, const Stretch& blocks) override;
  void on_shift(std::size_t pool, StreamId stream, std::int64_t from, std::int64_t by) override;
  /// What a pool of the store has that the decisions did not bring in, or the other way round, or a
  /// counter that is not their sum; "" if there is neither.
  [[nodiscard]] std::string difference(const Store& store) const;
  [[nodiscard]] std::int64_t blocks(DecisionKind kind) const;

 private:
  struct Replayed {
    /// Copies of each block.
    std::map<std::pair<std::uint32_t, std::int64_t>, int> copies;
    std::map<DecisionKind, std::int64_t> blocks;
  };
  std::vector<Replayed> pools_;
  std::string error_;
};

using Stores = std::vector<std::unique_ptr<Store>>;

/// Calls two groups of instances alike and compares all that can be seen of them after each call.
/// Returns the first difference, or "".
[[nodiscard]] std::string first_difference(const Stores& a, const Stores& b,
                                           const StoreRules& rules, RandomContexts& contexts,
                                           RandomStream& random, int calls);

}  // namespace kvtier
