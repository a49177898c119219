#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sim/core/rng.hpp"
#include "sim/policy/trial_cluster.hpp"

namespace kvtier {

/// Drives a trial cluster through a random, reproducible sequence of all events. Prompts share
/// prefixes; instances store the blocks that they are sent, and evict some.
class RandomTraffic {
 public:
  RandomTraffic(std::uint64_t seed, Tokens block_tokens)
      : stream_(seed, "random traffic"), block_tokens_(block_tokens) {}

  /// One event. `on_choice(request, chosen)` is called after each choice, before the dispatch.
  template <class F>
  void step(TrialCluster& cluster, F on_choice) {
    cluster.advance(SimDuration(stream_.index(200'000'000)));
    switch (stream_.index(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        request(cluster, on_choice);
        break;
      case 4:
      case 5:
        first_token(cluster);
        break;
      case 6:
      case 7:
      case 8:
        finish(cluster);
        break;
      case 9:
        evict(cluster);
        break;
      case 10:
        if (stream_.index(10) == 0) {
          change_members(cluster);
        }
        break;
      default:
        store_elsewhere(cluster);
        break;
    }
  }

  /// Ends all requests.
  void drain(TrialCluster& cluster) {
    for (const std::uint64_t request : cluster.in_flight()) {
      cluster.finish(request);
    }
  }

  /// The prompt of a session: deterministic, with a first part that sessions share.
  [[nodiscard]] std::vector<BlockHash> prompt(std::uint64_t session, std::int64_t blocks) const {
    std::vector<BlockHash> hashes;
    std::uint64_t hash = 0;
    for (std::int64_t i = 0; i < blocks; ++i) {
      // Two system prompts of two blocks; after them each session has its own.
      hash = random_bits_at(hash, i < 2 ? session % 2 : session);
      hashes.push_back(BlockHash{hash});
    }
    return hashes;
  }

 private:
  static constexpr std::int64_t kSessions = 12;
  static constexpr std::int64_t kBlocksMax = 12;

  template <class T>
  [[nodiscard]] T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(stream_.index(std::ssize(values)))];
  }

  template <class F>
  void request(TrialCluster& cluster, F on_choice) {
    const auto session = static_cast<std::uint64_t>(stream_.index(kSessions));
    std::vector<BlockHash> blocks = prompt(session, stream_.index(kBlocksMax + 1));
    RoutedRequest request;
    request.id = next_request_++;
    request.session = stream_.index(5) == 0 ? kNoSession : session;
    request.priority = stream_.index(3);
    request.prompt = Tokens(block_tokens_.value * std::ssize(blocks) +
                            stream_.index(std::max<std::int64_t>(block_tokens_.value, 1)));
    request.blocks = blocks;
    InstanceId to = cluster.choose(request);
    on_choice(std::as_const(request), to);
    // Sometimes the request goes to another instance.
    if (stream_.index(10) == 0) {
      to = one_of(cluster.candidates());
    }
    cluster.dispatch(request, to);
    sent_[request.id] = {to, blocks};
    std::ranges::fill(blocks, BlockHash{});  // a policy keeps no reference to the blocks
  }

  void first_token(TrialCluster& cluster) {
    std::vector<std::uint64_t> waiting;
    for (const std::uint64_t request : cluster.in_flight()) {
      if (!cluster.decodes(request)) {
        waiting.push_back(request);
      }
    }
    if (!waiting.empty()) {
      const std::uint64_t request = one_of(waiting);
      cluster.first_token(request);
      store(cluster, sent_[request].first, BlockMedium::gpu, sent_[request].second);
    }
  }

  void finish(TrialCluster& cluster) {
    if (const std::vector<std::uint64_t> all = cluster.in_flight(); !all.empty()) {
      const std::uint64_t request = one_of(all);
      cluster.finish(request);
      sent_.erase(request);
    }
  }

  void store(TrialCluster& cluster, InstanceId instance, BlockMedium medium,
             const std::vector<BlockHash>& blocks) {
    cluster.store(instance, blocks, medium);
    stored_[{instance, medium}].insert(blocks.begin(), blocks.end());
  }

  /// Stores a part of a prompt in any medium of an instance or of the shared pool.
  void store_elsewhere(TrialCluster& cluster) {
    const std::vector<BlockHash> all =
        prompt(static_cast<std::uint64_t>(stream_.index(kSessions)), kBlocksMax);
    const std::int64_t begin = stream_.index(3);
    const std::int64_t end = begin + stream_.index(kBlocksMax - begin + 1);
    const auto medium = static_cast<BlockMedium>(stream_.index(kBlockMedia));
    const InstanceId where = stream_.index(6) == 0 ? kNoInstance : one_of(cluster.candidates());
    store(cluster, where, medium, {all.begin() + begin, all.begin() + end});
  }

  void evict(TrialCluster& cluster) {
    const InstanceId where = stream_.index(6) == 0 ? kNoInstance : one_of(cluster.candidates());
    const auto medium = static_cast<BlockMedium>(stream_.index(kBlockMedia));
    std::set<BlockHash>& held = stored_[{where, medium}];
    std::vector<BlockHash> leaving;
    for (const BlockHash hash : held) {
      if (stream_.index(3) == 0) {
        leaving.push_back(hash);
      }
    }
    if (stream_.index(4) == 0) {
      leaving.push_back(BlockHash{12'345});  // was never there
    }
    for (const BlockHash hash : leaving) {
      held.erase(hash);
    }
    cluster.remove(where, leaving, medium);
  }

  void change_members(TrialCluster& cluster) {
    std::vector<InstanceId> lost;
    for (std::uint32_t i = 0; i < cluster.facts().instances; ++i) {
      if (!cluster.load(InstanceId{i}).alive) {
        lost.push_back(InstanceId{i});
      }
    }
    if (!lost.empty() && stream_.index(2) == 0) {
      cluster.join(one_of(lost));
    } else if (cluster.candidates().size() > 1) {
      const InstanceId instance = one_of(cluster.candidates());
      cluster.lose(instance);
      for (int medium = 0; medium < kBlockMedia; ++medium) {
        stored_.erase({instance, static_cast<BlockMedium>(medium)});
      }
    }
  }

  RandomStream stream_;
  Tokens block_tokens_;
  std::uint64_t next_request_ = 0;
  std::map<std::uint64_t, std::pair<InstanceId, std::vector<BlockHash>>> sent_;
  std::map<std::pair<InstanceId, BlockMedium>, std::set<BlockHash>> stored_;
};

}  // namespace kvtier
