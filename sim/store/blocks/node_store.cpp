#include "sim/store/blocks/node_store.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/blocks/extent_pool.hpp"
#include "sim/store/blocks/store_log.hpp"

namespace kvtier {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

/// A node has a span for each stream that its blocks belong to. Blocks of a stream are found by the
/// spans of that stream, so a match never compares blocks.
///
/// Nodes in the first pool are in its order of eviction, those in the second pool alone are in that
/// pool's. The parent of a node in the first pool is there, too. A use moves a path from its end to
/// its root, so a node stands before its parent if it was not used more often.
class NodeStore final : public Store {
 public:
  NodeStore(const StoreRules& rules, const Streams& streams, const PolicyRegistry& registry,
            std::shared_ptr<ExtentPool> storage)
      : rules_(rules),
        pool_(rules_.pools.front()),
        streams_(streams),
        storage_(std::move(storage)),
        is_ranked_(!has_own_order(rules, 0)),
        counts_(pool_.eviction == "lfu" && !is_ranked_),
        has_second_(rules_.pools.size() > 1),
        writes_back_(has_second_ && rules_.edges[0].write == Write::on_evict),
        counters_(rules_.pools.size()),
        log_(rules_.pools.size()) {
    for (std::size_t i = 0; is_ranked_ && i < std::min<std::size_t>(2, rules.pools.size()); ++i) {
      policies_[i] = make_policy_order(rules, i, streams, registry);
    }
  }

  void advance(SimTime now) override {
    for (const auto& policies : policies_) {
      if (policies != nullptr) {
        policies->advance(now);
      }
    }
    if (storage_ != nullptr) {
      storage_->advance(now);
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    const std::int64_t most = usable(prompt.tokens);
    const Path path = find(prompt.stream, most);
    Match match = match_of(path.device, path.blocks - path.device);
    if (storage_ != nullptr) {
      match.by_pool[2] = Tokens(stored(path.blocks, most) * block());
      match.tokens += match.by_pool[2];
    }
    return match;
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& asked, Match& match,
                                   RequestId) override {
    const Path path = find(prompt.stream, usable(prompt.tokens));
    const std::uint32_t end = use(path);
    Request request;
    request.node = end;
    while (request.node != kNone && !nodes_[request.node].on_device) {
      request.node = nodes_[request.node].parent;
    }
    lock(request.node, 1);
    request.context = {prompt.stream, Tokens(path.device * block())};
    request.held = path.device;
    const auto fits = [&](std::int64_t found) {
      const std::int64_t taken = std::max(blocks_up(asked.taken), found) + asked.reserved;
      const std::int64_t gate = std::max(blocks_up(asked.needed), taken) + asked.watermark;
      return gate - request.held <= free_blocks().available;
    };
    const std::int64_t behind = path.blocks - path.device;
    const bool loads = behind > 0 && behind * block() >= rules_.edges[0].least_load.value &&
                       fits(path.blocks) && load(request, end, behind);
    match = match_of(path.device, loads ? behind : 0);
    if (!fits(request.held) ||
        !extend(request, {prompt.stream, std::max(asked.taken, match.tokens)})) {
      end_load(request);
      lock(request.node, -1);
      return std::nullopt;
    }
    const Tokens room = request.context.tokens;
    note_uses(request, match.tokens);
    hit(request);
    RequestId id{static_cast<std::uint32_t>(requests_.size())};
    if (!free_requests_.empty()) {
      id = free_requests_.back();
      free_requests_.pop_back();
      requests_[id.value] = request;
    } else {
      requests_.push_back(request);
    }
    if (rules_.publication == Publication::scheduling) {
      publish(requests_[id.value], room);
    }
    return id;
  }

  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_[id.value];
    if (!extend(request, context)) {
      return false;
    }
    if (rules_.publication == Publication::scheduling) {
      publish(request, context.tokens);
    }
    return true;
  }

  void computed(RequestId id, Tokens tokens) override {
    if (rules_.publication == Publication::computed) {
      publish(requests_[id.value], tokens);
    }
  }

  void loaded(RequestId id) override { end_load(requests_[id.value]); }

  void release(RequestId id) override {
    end_load(requests_[id.value]);
    publish(requests_[id.value], requests_[id.value].context.tokens);
    abandon(id);
  }
  void abandon(RequestId id) override {
    Request& request = requests_[id.value];
    end_load(request);
    used_ -= blocks_up(request.context.tokens) - request.held;
    release_hits(request);
    lock(request.node, -1);
    drop_refused(request.node);
    free_requests_.push_back(id);
  }

  void make_empty(std::int64_t blocks) override {
    make_room(blocks * block(), (pool_.capacity - used_) * block());
  }
  Match refresh(const Context& context) override {
    const Path path = find(context.stream, context.tokens.value / block());
    static_cast<void>(use(path));
    return match_of(path.device, path.blocks - path.device);
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    return {.available = pool_.capacity - used_ + evictable_, .empty = pool_.capacity - used_};
  }

  [[nodiscard]] std::vector<Copy> take_copies() override { return std::exchange(begun_, {}); }
  void copied(std::uint32_t id) override {
    const auto found = copies_.find(id);
    if (found == copies_.end()) {
      return;
    }
    const CopyInFlight copy = std::move(found->second);
    copies_.erase(found);
    if (copy.pool == 1) {
      lock(copy.node, -1);
      write_to_storage(copy.node, copy.stretches);
      return;
    }
    change_host_locks(copy.node, -1);
    walk(copy.stretches, rules_.pools[2].insertion,
         [&](const BlockRun& run) { put_in_storage(run); });
  }

  std::optional<Prefetch> prefetch(const Context& prompt) override {
    if (storage_ == nullptr) {
      return std::nullopt;
    }
    const std::int64_t most = usable(prompt.tokens);
    const Path path = find(prompt.stream, most);
    Fetch fetch{.stream = prompt.stream, .begin = path.blocks, .span = most - path.blocks};
    fetch.node = use(path);
    const EdgeRules& edge = rules_.edges[1];
    const auto too_few = [&](std::int64_t blocks) {
      return blocks <= 0 || blocks * block() < edge.least_load.value;
    };
    if ((fetch.node != kNone && !nodes_[fetch.node].on_host) || too_few(fetch.span) ||
        static_cast<double>(fetching_) >=
            edge.most_in_flight * static_cast<double>(rules_.pools[1].capacity)) {
      return std::nullopt;
    }
    std::int64_t blocks = stored(path.blocks, most);
    if (too_few(blocks)) {
      return std::nullopt;
    }
    change_host_locks(fetch.node, 1);
    if (blocks > host_free()) {
      evict_from_host(blocks);
      blocks = std::min(blocks, host_free());
    }
    if (too_few(blocks)) {
      change_host_locks(fetch.node, -1);
      return std::nullopt;
    }
    fetch.blocks = blocks;
    streams_.path(prompt.stream, most, block(), path_);
    for (const Stretch& stretch : path_) {
      const Stretch part{stretch.stream, std::max(stretch.begin, path.blocks),
                         std::min(stretch.end, path.blocks + blocks)};
      if (part.begin < part.end) {
        fetch.stretches.push_back(part);
      }
    }
    fetch.end = path.blocks + blocks;
    walk(fetch.stretches, rules_.pools[2].insertion, [&](const BlockRun& run) {
      for_each_piece(*storage_, run, [&](const Piece& piece) {
        storage_->touch({run.stream, piece.begin, piece.end, run.first}, piece.segment);
      });
    });
    host_used_ += blocks;
    fetching_ += fetch.span;
    Prefetch begun{++last_fetch_, Tokens(blocks * block()), Tokens(fetch.span * block())};
    if (log_.is_set()) [[unlikely]] {
      begun.stretches = fetch.stretches;
    }
    fetches_.emplace(last_fetch_, std::move(fetch));
    return begun;
  }

  Tokens prefetched(std::uint32_t id, Tokens came) override {
    const auto found = fetches_.find(id);
    KVTIER_ASSERT(found != fetches_.end(), "a prefetch ends once");
    const Fetch fetch = std::move(found->second);
    fetches_.erase(found);
    host_used_ -= fetch.blocks;
    fetching_ -= fetch.span;
    change_host_locks(fetch.node, -1);
    const std::int64_t end = std::min(fetch.end, fetch.begin + came.value / block());
    if (end <= fetch.begin) {
      return Tokens(0);
    }
    const Path path = find(fetch.stream, end);
    std::uint32_t last = use(path);
    std::int64_t added = 0;
    if (!writes_back_) {
      for (std::uint32_t at = last; at != fetch.node; at = nodes_[at].parent) {
        if (!nodes_[at].on_host) {
          added += nodes_[at].size;
          tell(DecisionKind::prefetch, 1, at);
        }
        put_on_host(at);
      }
    }
    if (path.blocks < end) {
      tell(DecisionKind::prefetch, 1, add_node(last, path.blocks, end, false));
      added += end - path.blocks;
      move_path_to_back(last);
    }
    counters_[1].inserted += added;
    counters_[1].promoted += added;
    return Tokens(added * block());
  }

  /// Nodes leave that have no other blocks.
  void truncate(StreamId stream, Tokens tokens) override {
    const std::int64_t first = tokens.value / block();
    const auto leaves = [&](std::uint32_t at) {
      const Span& span = spans_[nodes_[at].last];
      return nodes_[at].locks == 0 && nodes_[at].host_locks == 0 && nodes_[at].children == 0 &&
             span.above == kNone && span.stream == stream && span.begin >= first;
    };
    if (storage_ != nullptr) {
      storage_->truncate(stream, first);
      for (auto& [id, fetch] : fetches_) {
        for (const Stretch& stretch : fetch.stretches) {
          if (stretch.stream == stream && stretch.end > first) {
            fetch.end = std::min(fetch.end, std::max(stretch.begin, first));
          }
        }
      }
    }
    for (std::uint32_t found = 0; found != kNone;) {
      found = kNone;
      for_each_in_order([&](std::uint32_t at) { found = leaves(at) ? at : found; });
      if (found != kNone) {
        if (nodes_[found].on_device) {
          tell(DecisionKind::invalidate, 0, found);
        }
        if (nodes_[found].on_host) {
          tell(DecisionKind::invalidate, 1, found);
        }
        remove_node(found);
      }
    }
  }
  [[nodiscard]] bool remembers(StreamId stream) const override {
    const auto names = [&](const auto& entry) {
      return std::any_of(entry.second.stretches.begin(), entry.second.stretches.end(),
                         [&](const Stretch& one) { return one.stream == stream; });
    };
    // Policies may remember the keys of what has left.
    return is_ranked_ || (stream.value < heads_.size() && heads_[stream.value] != kNone) ||
           (storage_ != nullptr && (storage_->is_ranked() || storage_->remembers(stream) ||
                                    std::any_of(copies_.begin(), copies_.end(), names) ||
                                    std::any_of(fetches_.begin(), fetches_.end(), names)));
  }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    return pool == 2 ? storage_->resident() : pool == 1 ? host_resident_ : resident_;
  }

  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    if (pool == 2) {
      return storage_->contents();
    }
    std::vector<Stretch> order;
    std::vector<bool> gone(nodes_.size());
    const auto add = [&](std::uint32_t node) {
      gone[node] = true;
      for (std::uint32_t at = nodes_[node].last; at != kNone; at = spans_[at].above) {
        for (std::int64_t i = spans_[at].end; i-- > spans_[at].begin;) {
          order.push_back({spans_[at].stream, i, i + 1});
        }
      }
    };
    // Nodes leave one after the other; one whose children have left is a leaf.
    std::vector<std::uint32_t> children(nodes_.size());
    for_each_in_order([&](std::uint32_t at) {
      children[at] = pool == 0 ? nodes_[at].device_children : nodes_[at].children;
    });
    for (std::uint32_t next = 0; next != kNone;) {
      next = kNone;
      orders_[pool].visit([&](std::uint32_t front) {
        for (std::uint32_t at = front; at != kNone && next == kNone; at = nodes_[at].after) {
          const bool locked = pool == 0 ? nodes_[at].locks > 0 : nodes_[at].host_locks > 0;
          next = !locked && children[at] == 0 && !gone[at] ? at : kNone;
        }
      });
      if (next != kNone) {
        add(next);
        if (nodes_[next].parent != kNone) {
          --children[nodes_[next].parent];
        }
      }
    }
    const auto evictable = static_cast<std::ptrdiff_t>(order.size());
    for_each_in_order([&](std::uint32_t at) {
      if (!gone[at] && (pool == 0 ? nodes_[at].on_device : nodes_[at].on_host)) {
        add(at);
      }
    });
    std::sort(order.begin() + evictable, order.end(), [](const Stretch& a, const Stretch& b) {
      return a.stream != b.stream ? a.stream < b.stream : a.begin < b.begin;
    });
    return order;
  }

  [[nodiscard]] std::vector<PolicyOrder*> looking_ahead() override {
    std::vector<PolicyOrder*> found;
    add_looking_ahead(policies_, found);
    add_looking_ahead(std::array{storage_.get()}, found);
    return found;
  }
  bool set_log(BlockLog* log) override {
    log_.set(log);
    if (storage_ != nullptr) {
      storage_->set_log(log, 2);
    }
    return true;
  }
  void check_invariants() const override {
    std::int64_t resident = 0;
    std::int64_t on_host = 0;
    std::int64_t evictable = 0;
    std::size_t live = 0;
    std::vector<std::uint32_t> children(nodes_.size());
    std::vector<std::uint32_t> device_children(nodes_.size());
    for_each_in_order([&](std::uint32_t at) {
      const Node& node = nodes_[at];
      std::int64_t size = 0;
      for (std::uint32_t span = node.last; span != kNone; span = spans_[span].above) {
        KVTIER_ASSERT(spans_[span].node == at && spans_[span].end > spans_[span].begin,
                      "a node's spans know it");
        size += spans_[span].end - spans_[span].begin;
      }
      KVTIER_ASSERT(size == node.size, "a node's spans are its blocks");
      KVTIER_ASSERT(node.on_device || node.on_host, "a node is in a pool");
      KVTIER_ASSERT(node.on_device || node.locks == 0, "requests hold nodes in the first pool");
      resident += node.on_device ? size : 0;
      on_host += node.on_host ? size : 0;
      evictable += node.on_device && node.locks == 0 ? size : 0;
      ++live;
      if (node.parent != kNone) {
        const Node& parent = nodes_[node.parent];
        ++children[node.parent];
        device_children[node.parent] += node.on_device ? 1 : 0;
        KVTIER_ASSERT(parent.locks >= node.locks && (has_second_ || parent.uses >= node.uses),
                      "a parent is held and used as often as its children");
        KVTIER_ASSERT((parent.on_device || !node.on_device) &&
                          (parent.on_host || !node.on_host || writes_back_),
                      "a parent is where its children are");
      }
    });
    for_each_in_order([&](std::uint32_t at) {
      KVTIER_ASSERT(
          children[at] == nodes_[at].children && device_children[at] == nodes_[at].device_children,
          "a node knows how many children it has");
    });
    std::int64_t coming = 0;
    for (const auto& [id, fetch] : fetches_) {
      coming += fetch.blocks;
    }
    KVTIER_ASSERT(resident == resident_ && evictable == evictable_ && on_host == host_resident_ &&
                      host_used_ == host_resident_ + coming,
                  "accounts are those of nodes");
    KVTIER_ASSERT(free_requests_.size() < requests_.size() || used_ == resident_,
                  "memory is of nodes where no request has any");
    KVTIER_ASSERT(live + free_nodes_.size() == nodes_.size(), "every node is in an order");
    KVTIER_ASSERT(used_ >= resident_ && used_ <= pool_.capacity &&
                      (!has_second_ || host_used_ <= rules_.pools[1].capacity),
                  "a pool holds no more than its capacity");
    if (storage_ != nullptr) {
      storage_->check_invariants();
    }
    for (std::size_t i = 0; i < policies_.size(); ++i) {
      if (policies_[i] != nullptr) {
        for_each_in_order([&](std::uint32_t at) {
          const std::uint32_t entry = nodes_[at].entries[i];
          KVTIER_ASSERT((entry != kNone) == (i == 0 ? nodes_[at].on_device : nodes_[at].on_host) &&
                            (entry == kNone || policies_[i]->is_offered(entry) == may_leave(at, i)),
                        "a policy may choose what may leave");
        });
        policies_[i]->check_invariants();
      }
    }
  }

 private:
  struct Node {
    std::uint32_t parent = kNone;
    /// Its last span.
    std::uint32_t last = kNone;
    std::int64_t size = 0;
    bool on_device = true;
    bool on_host = false;
    /// It stays in the first pool for the eviction at work: it cannot be written.
    bool stays = false;
    std::uint32_t children = 0;
    std::uint32_t device_children = 0;
    /// It stays in the first pool: requests hold it, or it is written.
    std::uint32_t locks = 0;
    /// It stays in the second pool, and so do the nodes before it.
    std::uint32_t host_locks = 0;
    /// Requests that load it.
    std::uint32_t loads = 0;
    /// The count of lfu and of after_uses; 0 if nothing is counted.
    std::uint32_t uses = 0;
    /// Its last use, where the two orders have to agree.
    std::int64_t used = 0;
    /// When it came to be in both pools; 0: it is not, or that does not matter.
    std::int64_t in_both_since = 0;
    std::uint32_t before = kNone;
    std::uint32_t after = kNone;
    /// The numbers that the policies of both pools have for it.
    std::array<std::uint32_t, 2> entries{kNone, kNone};
  };
  struct Span {
    StreamId stream;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::uint32_t node = kNone;
    /// The node's span before this one.
    std::uint32_t above = kNone;
    /// In the stream, by position.
    std::uint32_t ahead = kNone;
    std::uint32_t behind = kNone;
  };
  struct Ends {
    std::uint32_t front = kNone;
    std::uint32_t back = kNone;
  };
  /// Nodes that may leave a pool. lfu: one for each count.
  struct Order {
    Ends all;
    std::map<std::uint32_t, Ends> by_uses;

    /// The front of each, until `visit` has enough of them.
    template <class Visit>
    void visit(Visit visit_front) const {
      visit_front(all.front);
      for (const auto& [uses, ends] : by_uses) {
        visit_front(ends.front);
      }
    }
  };
  /// The part of a context in the tree.
  struct Path {
    std::int64_t blocks = 0;
    /// The part of those in the first pool, at the head.
    std::int64_t device = 0;
    /// The deepest node, of which the path has all but `rest` blocks.
    std::uint32_t node = kNone;
    std::int64_t rest = 0;
  };
  struct Request {
    Context context;
    /// The end of the path that it locks, and its length.
    std::uint32_t node = kNone;
    std::int64_t held = 0;
    /// lfu: nodes up to here have counted the request.
    std::int64_t counted = 0;
    /// The last node that it loads, and how many blocks up to its end.
    std::uint32_t loads = kNone;
    std::int64_t load_blocks = 0;
    /// Blocks whose nodes it found, which its policy knows as in use.
    std::int64_t hits = 0;
    /// Tokens whose use admission policies know of.
    Tokens noted{};
  };
  /// A copy of a node, which may have been split since, to the next pool.
  struct CopyInFlight {
    std::size_t pool = 1;
    std::uint32_t node = kNone;
    std::vector<Stretch> stretches;
  };
  /// Blocks of a context that come from storage.
  struct Fetch {
    StreamId stream;
    /// They follow this node.
    std::uint32_t node = kNone;
    std::int64_t begin = 0;
    /// Behind the last one that is wanted.
    std::int64_t end = 0;
    /// Blocks set aside for them, and blocks looked for.
    std::int64_t blocks = 0;
    std::int64_t span = 0;
    std::vector<Stretch> stretches;
  };

  [[nodiscard]] std::int64_t block() const { return pool_.block.value; }
  [[nodiscard]] std::int64_t blocks_up(Tokens tokens) const {
    return (tokens.value + block() - 1) / block();
  }
  [[nodiscard]] std::int64_t usable(Tokens prompt) const {
    const bool capped = rules_.hit_cap == HitCap::last_token;
    return std::max<std::int64_t>(prompt.value - (capped ? 1 : 0), 0) / block();
  }

  void tell(DecisionKind kind, std::size_t pool, std::uint32_t node) {
    if (!log_.is_set()) [[likely]] {
      return;
    }
    for (std::uint32_t at = nodes_[node].last; at != kNone; at = spans_[at].above) {
      log_.tell(kind, pool, {spans_[at].stream, spans_[at].begin, spans_[at].end});
    }
  }

  // ---- The tree ----

  [[nodiscard]] std::uint32_t locate(StreamId stream, std::int64_t position) const {
    std::uint32_t found = kNone;
    if (stream.value < heads_.size()) {
      for (std::uint32_t at = heads_[stream.value]; at != kNone && spans_[at].begin <= position;
           at = spans_[at].behind) {
        found = at;
      }
    }
    return found;
  }

  [[nodiscard]] Path find(StreamId stream, std::int64_t blocks) const {
    Path found;
    streams_.path(stream, blocks, block(), path_);
    for (const Stretch& stretch : path_) {
      while (found.blocks < stretch.end) {
        const std::uint32_t at = locate(stretch.stream, found.blocks);
        if (at == kNone || spans_[at].end <= found.blocks) {
          return with_rest(found);
        }
        found.blocks = std::min(spans_[at].end, stretch.end);
        found.node = spans_[at].node;
        found.device = nodes_[found.node].on_device ? found.blocks : found.device;
        last_ = at;
      }
    }
    return with_rest(found);
  }
  [[nodiscard]] Path with_rest(Path found) const {
    if (found.node != kNone) {
      // The spans behind the one in which the path ends.
      for (std::uint32_t at = nodes_[found.node].last; at != last_; at = spans_[at].above) {
        found.rest += spans_[at].end - spans_[at].begin;
      }
      found.rest += spans_[last_].end - found.blocks;
    }
    return found;
  }

  /// Counts a use of a path: the node in which it ends is split there, and the part that is not
  /// used moves, too. Returns the end of the path.
  std::uint32_t use(const Path& path) {
    std::uint32_t end = path.node;
    if (path.rest > 0) {
      end = split(path.node, path.rest);
      move_to_back(path.node);
    }
    move_path_to_back(end);
    return end;
  }
  void move_path_to_back(std::uint32_t end) {
    for (std::uint32_t at = end; at != kNone; at = nodes_[at].parent) {
      move_to_back(at);
    }
  }

  /// The node keeps its last `rest` blocks; returns a new parent with the others.
  std::uint32_t split(std::uint32_t lower, std::int64_t rest) {
    const std::uint32_t upper = make_node();
    Node& low = nodes_[lower];
    Node& up = nodes_[upper];
    up = {.parent = low.parent,
          .size = low.size - rest,
          .on_device = low.on_device,
          .on_host = low.on_host,
          .children = 1,
          .device_children = low.on_device ? 1U : 0U,
          .locks = low.locks,
          .loads = low.loads,
          .uses = low.uses,
          .used = low.used};
    low.parent = upper;
    low.size = rest;
    std::uint32_t* link = &low.last;
    std::int64_t left = rest;
    while (spans_[*link].end - spans_[*link].begin <= left) {
      left -= spans_[*link].end - spans_[*link].begin;
      if (left == 0) {
        up.last = spans_[*link].above;
        spans_[*link].above = kNone;
        break;
      }
      link = &spans_[*link].above;
    }
    if (left > 0) {
      const std::uint32_t cut = *link;
      const std::uint32_t made = make_span(spans_[cut]);
      spans_[made].end = spans_[cut].begin = spans_[cut].end - left;
      // The new one is the upper one.
      spans_[cut].above = kNone;
      spans_[made].behind = cut;
      (spans_[made].ahead != kNone ? spans_[spans_[made].ahead].behind
                                   : heads_[spans_[made].stream.value]) = made;
      spans_[cut].ahead = made;
      up.last = made;
    }
    for (std::uint32_t at = up.last; at != kNone; at = spans_[at].above) {
      spans_[at].node = upper;
    }
    insert_after(upper, lower);
    note_in_both(upper);
    for (std::size_t i = 0; i < policies_.size(); ++i) {
      if (const std::uint32_t entry = nodes_[lower].entries[i]; entry != kNone) {
        const Span& first = first_span(lower);
        set_entry(upper, i, entry);
        set_entry(
            lower, i,
            policies_[i]->split(entry, key_of(first.stream, first.begin), nodes_[upper].size));
      }
    }
    refresh(upper);
    refresh(lower);
    return upper;
  }

  /// Blocks [begin, end) of the path in path_ as a new node.
  std::uint32_t add_node(std::uint32_t parent, std::int64_t begin, std::int64_t end,
                         bool on_device = true) {
    const std::uint32_t made = make_node();
    nodes_[made] = {
        .parent = parent, .size = end - begin, .on_device = on_device, .on_host = !on_device};
    if (parent != kNone) {
      ++nodes_[parent].children;
      nodes_[parent].device_children += on_device ? 1 : 0;
    }
    for (const Stretch& stretch : path_) {
      const std::int64_t from = std::max(stretch.begin, begin);
      const std::int64_t to = std::min(stretch.end, end);
      if (from < to) {
        const std::uint32_t span =
            make_span({.stream = stretch.stream, .begin = from, .end = to, .node = made});
        spans_[span].above = nodes_[made].last;
        nodes_[made].last = span;
        link_in_stream(span);
      }
    }
    if (on_device) {
      resident_ += end - begin;
      evictable_ += end - begin;
      counters_[0].inserted += end - begin;
    } else {
      host_resident_ += end - begin;
      host_used_ += end - begin;
    }
    push_back(made);
    learn(made, on_device ? 0 : 1);
    refresh(made);
    refresh(parent);
    return made;
  }

  void remove_node(std::uint32_t at) {
    forget_in_both(at);
    forget(at, 0);
    forget(at, 1);
    const Node node = nodes_[at];
    unlink(at);
    for (std::uint32_t span = node.last; span != kNone; span = spans_[span].above) {
      const Span& gone = spans_[span];
      (gone.ahead != kNone ? spans_[gone.ahead].behind : heads_[gone.stream.value]) = gone.behind;
      if (gone.behind != kNone) {
        spans_[gone.behind].ahead = gone.ahead;
      }
      free_spans_.push_back(span);
    }
    if (node.parent != kNone) {
      --nodes_[node.parent].children;
      nodes_[node.parent].device_children -= node.on_device ? 1 : 0;
    }
    if (node.on_device) {
      resident_ -= node.size;
      evictable_ -= node.size;
      used_ -= node.size;
    }
    if (node.on_host) {
      host_resident_ -= node.size;
      host_used_ -= node.size;
    }
    free_nodes_.push_back(at);
    refresh(node.parent);
  }

  void lock(std::uint32_t node, int change) {
    for (std::uint32_t at = node; at != kNone; at = nodes_[at].parent) {
      Node& locked = nodes_[at];
      evictable_ -= locked.locks == 0 ? locked.size : 0;
      locked.locks += static_cast<std::uint32_t>(change);
      evictable_ += locked.locks == 0 ? locked.size : 0;
      refresh(at);
    }
  }

  // ---- Requests ----

  /// Memory for a longer context, all or nothing.
  bool extend(Request& request, const Context& context) {
    const std::int64_t now = request.context.tokens.value;
    const std::int64_t more = context.tokens.value - now;
    if (more > 0) {
      const std::int64_t blocks = blocks_up(context.tokens) - blocks_up(request.context.tokens);
      const std::int64_t demand = more + (rules_.one_block_more && block() > 1 ? block() : 0);
      const std::int64_t free = (pool_.capacity - used_) * block();
      if (blocks > pool_.capacity - used_ + evictable_) {
        return false;
      }
      make_room(demand, free);
      if (blocks > pool_.capacity - used_) {
        return false;
      }
      used_ += blocks;
    }
    request.context = context;
    return true;
  }

  /// For so many tokens, beside so many that are free.
  void make_room(std::int64_t demand, std::int64_t free) {
    if (demand <= free) {
      return;
    }
    std::int64_t tokens = rules_.whole_need ? demand : demand - free;
    std::vector<std::uint32_t> stay;
    while (tokens > 0) {
      const std::uint32_t at = is_ranked_ ? ranked_victim(0) : victim();
      if (at == kNone) {
        break;
      }
      const std::int64_t size = nodes_[at].size;
      if (leave_device(at)) {
        tokens -= size * block();
        counters_[0].evicted += size;
      } else {
        nodes_[at].stays = true;
        stay.push_back(at);
        if (is_ranked_) {
          // For the policy it has left, and comes back.
          forget(at, 0);
          learn(at, 0);
        }
      }
    }
    for (const std::uint32_t at : stay) {
      nodes_[at].stays = false;
      refresh(at);
    }
  }

  /// The request's first tokens are in the tree, whose copies it uses where there are some.
  void publish(Request& request, Tokens tokens) {
    note_uses(request, tokens);
    const std::int64_t blocks = tokens.value / block();
    const Path path = find(request.context.stream, blocks);
    std::uint32_t end = use(path);
    used_ -= std::max<std::int64_t>(path.device - request.held, 0);
    for (std::uint32_t at = end; at != kNone && !nodes_[at].on_device; at = nodes_[at].parent) {
      put_on_device(at, DecisionKind::insert);
    }
    if (path.blocks < blocks) {
      end = add_node(end, path.blocks, blocks);
      tell(DecisionKind::insert, 0, end);
      move_path_to_back(nodes_[end].parent);
    }
    lock(end, 1);
    lock(request.node, -1);
    request.node = end;
    request.held = std::max(request.held, blocks);
    if (has_second_ && !writes_back_) {
      count_and_write(end, path, blocks, request);
    } else if (counts_ && !has_second_) {
      count(end, blocks, request);
    }
  }
  /// Nodes that end behind what has counted the request count it.
  void count(std::uint32_t end, std::int64_t blocks, Request& request) {
    std::int64_t ends_at = blocks;
    for (std::uint32_t at = end; at != kNone && ends_at > request.counted; at = nodes_[at].parent) {
      unlink(at);
      ++nodes_[at].uses;
      push_back(at);
      ends_at -= nodes_[at].size;
    }
    // A parent stands behind its children.
    move_path_to_back(end);
    request.counted = std::max(request.counted, blocks);
  }

  // ---- The second pool ----

  [[nodiscard]] Match match_of(std::int64_t device, std::int64_t behind) const {
    Match match{Tokens((device + behind) * block()), std::vector<Tokens>(rules_.pools.size())};
    match.by_pool[0] = Tokens(device * block());
    if (has_second_) {
      match.by_pool[1] = Tokens(behind * block());
    }
    return match;
  }
  [[nodiscard]] std::int64_t host_free() const { return rules_.pools[1].capacity - host_used_; }

  /// Nodes of a published path from its root on: those that were in the first pool, or are new,
  /// count the request once, and are written if their count says so.
  void count_and_write(std::uint32_t end, const Path& path, std::int64_t blocks, Request& request) {
    const EdgeRules& edge = rules_.edges[0];
    std::vector<std::uint32_t>& counting = nodes_on_path_;
    counting.clear();
    std::int64_t ends_at = blocks;
    for (std::uint32_t at = end; at != kNone && ends_at > request.counted; at = nodes_[at].parent) {
      if (ends_at <= path.device || ends_at > path.blocks || edge.counts_recomputed) {
        counting.push_back(at);
      }
      ends_at -= nodes_[at].size;
    }
    request.counted = std::max(request.counted, blocks);
    const std::int64_t wanted = edge.write == Write::after_uses ? edge.uses : 1;
    while (!counting.empty()) {
      const std::uint32_t at = counting.back();
      counting.pop_back();
      if (counts_) {
        unlink(at);
        ++nodes_[at].uses;
        push_back(at);
      } else {
        ++nodes_[at].uses;
      }
      if (!nodes_[at].on_host && nodes_[at].uses >= wanted) {
        write_path(at);
      }
    }
    move_path_to_back(end);
  }
  /// Begins to write a node, and first those before it that are not written, as long as there is
  /// room.
  bool write_path(std::uint32_t at) {
    const std::uint32_t parent = nodes_[at].parent;
    if (parent != kNone && !nodes_[parent].on_host && !write_path(parent)) {
      return false;
    }
    if (!admits(at, 1) || !make_host_room(at)) {
      counters_[1].skipped += nodes_[at].size;
      tell(DecisionKind::skip, 1, at);
      return false;
    }
    put_on_host(at);
    counters_[1].inserted += nodes_[at].size;
    tell(DecisionKind::insert, 1, at);
    lock(at, 1);
    copies_.emplace(++last_copy_,
                    CopyInFlight{.pool = 1, .node = at, .stretches = stretches_of(at)});
    begin_copy(at);
    return true;
  }
  /// The copy last_copy_ of a node to the second pool.
  void begin_copy(std::uint32_t at) {
    begun_.push_back({.id = last_copy_, .blocks = nodes_[at].size, .waits = writes_back_});
    if (log_.is_set()) [[unlikely]] {
      begun_.back().stretches = stretches_of(at);
    }
  }
  [[nodiscard]] std::vector<Stretch> stretches_of(std::uint32_t at) const {
    std::vector<Stretch> stretches;
    for (std::uint32_t span = nodes_[at].last; span != kNone; span = spans_[span].above) {
      stretches.push_back({spans_[span].stream, spans_[span].begin, spans_[span].end});
    }
    std::reverse(stretches.begin(), stretches.end());
    return stretches;
  }

  /// Whether a node may come into the second pool now.
  bool make_host_room(std::uint32_t newcomer) {
    const std::int64_t blocks = nodes_[newcomer].size;
    if (blocks > host_free() && rules_.edges[0].no_room == NoRoom::evict) {
      const EntryKey key = key_of_node(newcomer);
      evict_from_host(rules_.whole_need ? blocks : blocks - host_free(), &key);
    }
    return blocks <= host_free();
  }
  /// `newcomer`: the room is for this node.
  void evict_from_host(std::int64_t blocks, const EntryKey* newcomer = nullptr) {
    for (const bool spares_leaves : {true, false}) {
      for (auto next = in_both_.begin(); next != in_both_.end() && blocks > 0;) {
        const std::uint32_t at = next->second;
        ++next;
        const Node& node = nodes_[at];
        const bool leaf = node.locks == 0 && node.device_children == 0;
        if (node.loads == 0 && node.host_locks == 0 && !(spares_leaves && leaf)) {
          blocks -= node.size;
          leave_host(at);
        }
      }
    }
    while (blocks > 0) {
      const std::uint32_t at = is_ranked_ ? ranked_victim(1, newcomer) : host_victim();
      if (at == kNone) {
        return;
      }
      blocks -= nodes_[at].size;
      counters_[1].evicted += nodes_[at].size;
      tell(DecisionKind::evict, 1, at);
      remove_node(at);
    }
  }
  /// A node in both pools leaves the second one.
  void leave_host(std::uint32_t at) {
    forget_in_both(at);
    forget(at, 1);
    nodes_[at].on_host = false;
    host_resident_ -= nodes_[at].size;
    host_used_ -= nodes_[at].size;
    counters_[1].evicted += nodes_[at].size;
    tell(DecisionKind::evict, 1, at);
  }

  /// A leaf of the first pool leaves it. False if it has to stay.
  bool leave_device(std::uint32_t at) {
    if (!has_second_) {
      tell(DecisionKind::evict, 0, at);
      remove_node(at);
      return true;
    }
    const bool demoted = !nodes_[at].on_host && writes_back_ && write_back(at);
    if (!nodes_[at].on_host) {
      return drop(at);
    }
    tell(demoted ? DecisionKind::demote : DecisionKind::evict, 0, at);
    forget_in_both(at);
    forget(at, 0);
    unlink(at);
    Node& node = nodes_[at];
    node.on_device = false;
    resident_ -= node.size;
    evictable_ -= node.size;
    used_ -= node.size;
    if (node.parent != kNone) {
      --nodes_[node.parent].device_children;
    }
    insert_by_use(at);
    refresh(at);
    refresh(node.parent);
    return true;
  }
  bool write_back(std::uint32_t at) {
    const std::int64_t blocks = nodes_[at].size;
    if (!admits(at, 1) || !make_host_room(at)) {
      counters_[1].skipped += blocks;
      tell(DecisionKind::skip, 1, at);
      return false;
    }
    put_on_host(at);
    counters_[1].inserted += blocks;
    tell(DecisionKind::insert, 1, at);
    counters_[0].demoted += blocks;
    ++last_copy_;
    begin_copy(at);
    write_to_storage(at, stretches_of(at));
    return true;
  }
  /// A node that is not written leaves with all that is behind it, unless something of that stays.
  bool drop(std::uint32_t at) {
    std::vector<std::uint32_t> behind{at};
    if (nodes_[at].children > 0) {
      // Behind it are nodes of the second pool alone.
      orders_[1].visit([&](std::uint32_t front) {
        for (std::uint32_t other = front; other != kNone; other = nodes_[other].after) {
          std::uint32_t before = other;
          while (before != kNone && before != at) {
            before = nodes_[before].parent;
          }
          if (before == at) {
            behind.push_back(other);
          }
        }
      });
    }
    if (std::any_of(behind.begin(), behind.end(),
                    [&](std::uint32_t node) { return nodes_[node].host_locks > 0; })) {
      return false;
    }
    for (const std::uint32_t gone : behind) {
      counters_[1].evicted += gone == at ? 0 : nodes_[gone].size;
      tell(DecisionKind::evict, gone == at ? 0 : 1, gone);
      remove_node(gone);
    }
    return true;
  }

  /// KV of a node comes into the first pool, in memory that is taken already.
  void put_on_device(std::uint32_t at, DecisionKind how) {
    unlink(at);
    Node& node = nodes_[at];
    node.on_device = true;
    resident_ += node.size;
    evictable_ += node.size;
    counters_[0].inserted += node.size;
    tell(how, 0, at);
    if (node.parent != kNone) {
      ++nodes_[node.parent].device_children;
    }
    insert_by_use(at);
    note_in_both(at);
    learn(at, 0);
    refresh(at);
    refresh(node.parent);
  }
  void put_on_host(std::uint32_t at) {
    Node& node = nodes_[at];
    if (!node.on_host) {
      node.on_host = true;
      host_resident_ += node.size;
      host_used_ += node.size;
      note_in_both(at);
      learn(at, 1);
      refresh(at);
    }
  }
  /// Nodes in both pools leave the second one first, if they are written on eviction.
  void note_in_both(std::uint32_t at) {
    if (writes_back_ && nodes_[at].on_device && nodes_[at].on_host) {
      nodes_[at].in_both_since = ++clock_;
      in_both_.emplace(nodes_[at].in_both_since, at);
    }
  }
  void forget_in_both(std::uint32_t at) {
    if (nodes_[at].in_both_since > 0) {
      in_both_.erase(std::exchange(nodes_[at].in_both_since, 0));
    }
  }
  void change_host_locks(std::uint32_t at, int change) {
    if (at != kNone) {
      nodes_[at].host_locks += static_cast<std::uint32_t>(change);
      refresh(at);
    }
  }

  /// Loads the blocks that end with this node, all of them or none.
  bool load(Request& request, std::uint32_t end, std::int64_t blocks) {
    change_host_locks(end, 1);
    make_room(blocks * block(), (pool_.capacity - used_) * block());
    change_host_locks(end, -1);
    if (blocks > pool_.capacity - used_) {
      return false;
    }
    used_ += blocks;
    counters_[0].promoted += blocks;
    for (std::uint32_t at = end; at != request.node; at = nodes_[at].parent) {
      put_on_device(at, DecisionKind::promote);
      ++nodes_[at].loads;
    }
    lock(end, 1);
    lock(request.node, -1);
    request.node = end;
    request.held += blocks;
    request.context.tokens += Tokens(blocks * block());
    request.loads = end;
    request.load_blocks = blocks;
    return true;
  }
  void end_load(Request& request) {
    std::uint32_t at = std::exchange(request.loads, kNone);
    for (std::int64_t left = request.load_blocks; at != kNone && left > 0; at = nodes_[at].parent) {
      --nodes_[at].loads;
      left -= nodes_[at].size;
    }
  }

  // ---- Storage ----

  /// How many of the path's blocks [begin, end) it has, up to the first that is missing.
  [[nodiscard]] std::int64_t stored(std::int64_t begin, std::int64_t end) const {
    std::int64_t at = begin;
    for (const Stretch& stretch : path_) {
      const std::int64_t last = std::min(stretch.end, end);
      while (at >= stretch.begin && at < last) {
        const Piece piece = storage_->first_piece(stretch.stream, at, last);
        if (!piece.present) {
          return at - begin;
        }
        at = piece.end;
      }
    }
    return at - begin;
  }
  /// A node whose blocks are in the second pool is written to the storage behind.
  void write_to_storage(std::uint32_t at, const std::vector<Stretch>& stretches) {
    if (storage_ == nullptr) {
      return;
    }
    change_host_locks(at, 1);
    std::int64_t blocks = 0;
    for (const Stretch& stretch : stretches) {
      blocks += stretch.end - stretch.begin;
    }
    copies_.emplace(++last_copy_, CopyInFlight{.pool = 2, .node = at, .stretches = stretches});
    begun_.push_back({.id = last_copy_, .blocks = blocks, .pool = 2});
    if (log_.is_set()) [[unlikely]] {
      begun_.back().stretches = stretches;
    }
  }
  void put_in_storage(const BlockRun& run) {
    for_each_piece(*storage_, run, [&](const Piece& piece) {
      BlockRun rest{run.stream, piece.begin, piece.end, run.first};
      if (piece.present) {
        storage_->touch(rest, piece.segment);
        return;
      }
      while (rest.size() > 0) {
        const std::int64_t free = storage_->free();
        std::int64_t room = free;
        if (free == 0 && rules_.edges[1].no_room == NoRoom::evict) {
          room = storage_->victims_before_newcomers(rest.size());
        }
        const std::int64_t part =
            storage_->is_ranked() ? std::min<std::int64_t>(room, 1) : std::min(room, rest.size());
        if (part == 0) {
          counters_[2].skipped += rest.size();
          log_.tell(DecisionKind::skip, 2, rest);
          return;
        }
        BlockRun now = rest;
        if (run.first == End::tail) {
          rest.end = now.begin = rest.end - part;
        } else {
          rest.begin = now.end = rest.begin + part;
        }
        if (!storage_->admits(now.stream, now.begin) ||
            (free == 0 && !storage_->choose(room, &now))) {
          counters_[2].skipped += part;
          log_.tell(DecisionKind::skip, 2, now);
          continue;
        }
        if (free == 0) {
          std::vector<BlockRun> victims;
          storage_->evict(room, victims);
          for (const BlockRun& victim : victims) {
            counters_[2].evicted += victim.size();
            log_.tell(DecisionKind::evict, 2, victim);
          }
        }
        storage_->insert(now);
        counters_[2].inserted += part;
        log_.tell(DecisionKind::insert, 2, now);
      }
    });
  }

  // ---- Policies of the registry ----

  [[nodiscard]] const Span& first_span(std::uint32_t node) const {
    std::uint32_t at = nodes_[node].last;
    while (spans_[at].above != kNone) {
      at = spans_[at].above;
    }
    return spans_[at];
  }
  void set_entry(std::uint32_t node, std::size_t pool, std::uint32_t entry) {
    nodes_[node].entries[pool] = entry;
    if (entry >= node_of_[pool].size()) {
      node_of_[pool].resize(static_cast<std::size_t>(entry) + 1, kNone);
    }
    node_of_[pool][entry] = node;
  }
  /// The node is in the pool from here on.
  void learn(std::uint32_t at, std::size_t pool) {
    if (policies_[pool] != nullptr) {
      const Span& first = first_span(at);
      set_entry(
          at, pool,
          policies_[pool]->insert(key_of(first.stream, first.begin), first.begin, nodes_[at].size));
    }
  }
  void forget(std::uint32_t at, std::size_t pool) {
    if (nodes_[at].entries[pool] != kNone) {
      policies_[pool]->remove(std::exchange(nodes_[at].entries[pool], kNone));
    }
  }
  [[nodiscard]] bool may_leave(std::uint32_t at, std::size_t pool) const {
    const Node& node = nodes_[at];
    return pool == 0
               ? node.on_device && node.locks == 0 && node.device_children == 0 && !node.stays
               : node.on_host && !node.on_device && node.children == 0 && node.host_locks == 0;
  }
  void refresh(std::uint32_t at) {
    for (std::size_t i = 0; is_ranked_ && at != kNone && i < 2; ++i) {
      if (const std::uint32_t entry = nodes_[at].entries[i]; entry != kNone) {
        policies_[i]->offer(entry, may_leave(at, i));
      }
    }
  }
  /// The node that leaves a pool next, and has to; kNone if none may, or shall leave the second
  /// pool.
  [[nodiscard]] std::uint32_t ranked_victim(std::size_t pool, const EntryKey* newcomer = nullptr) {
    PolicyOrder& policies = *policies_[pool];
    if (!policies.choose(1, demand_of(rules_, pool), newcomer) && pool == 0) {
      policies.choose_oldest(1);
    }
    const std::vector<PolicyOrder::Chosen> chosen = policies.take_chosen();
    return chosen.empty() ? kNone : node_of_[pool][chosen.front().entry];
  }
  [[nodiscard]] bool admits(std::uint32_t at, std::size_t pool) const {
    if (policies_[pool] == nullptr || !policies_[pool]->filters()) {
      return true;
    }
    return policies_[pool]->admits(key_of_node(at));
  }
  [[nodiscard]] EntryKey key_of_node(std::uint32_t at) const {
    const Span& first = first_span(at);
    return key_of(first.stream, first.begin);
  }
  /// Admission policies learn once which blocks a request uses.
  void note_uses(Request& request, Tokens tokens) {
    if (tokens <= request.noted || (!is_ranked_ && storage_ == nullptr)) {
      return;
    }
    std::vector<Stretch> path;
    streams_.path(request.context.stream, tokens.value / block(), block(), path);
    const auto note = [&](auto* policies) {
      if (policies != nullptr && policies->filters()) {
        for (const Stretch& stretch : path) {
          for (std::int64_t i = std::max(stretch.begin, request.noted.value / block());
               i < stretch.end; ++i) {
            note_use(*policies, stretch.stream, i);
          }
        }
      }
    };
    note(policies_[0].get());
    note(policies_[1].get());
    note(storage_.get());
    request.noted = tokens;
  }
  static void note_use(PolicyOrder& policies, StreamId stream, std::int64_t block) {
    policies.note_use(key_of(stream, block));
  }
  static void note_use(ExtentPool& pool, StreamId stream, std::int64_t block) {
    pool.note_use(stream, block);
  }
  /// A request uses the nodes that it has found, until release_hits. Copies in the second pool stay
  /// there.
  void hit(Request& request) {
    if (!is_ranked_) {
      return;
    }
    request.hits = request.held;
    for (std::uint32_t at = request.node; at != kNone; at = nodes_[at].parent) {
      policies_[0]->hit(nodes_[at].entries[0]);
      if (const std::uint32_t entry = nodes_[at].entries[1]; entry != kNone) {
        policies_[1]->hit(entry);
        policies_[1]->release(entry);
      }
    }
  }
  void release_hits(const Request& request) {
    std::int64_t end = request.held;
    for (std::uint32_t at = request.node; is_ranked_ && at != kNone; at = nodes_[at].parent) {
      if (end <= request.hits) {
        policies_[0]->release(nodes_[at].entries[0]);
      }
      end -= nodes_[at].size;
    }
  }
  /// Nodes that the first pool does not admit leave when no request holds them, from the leaf on.
  void drop_refused(std::uint32_t at) {
    while (at != kNone && may_leave(at, 0) && !nodes_[at].on_host && nodes_[at].children == 0 &&
           !admits(at, 0)) {
      const std::uint32_t parent = nodes_[at].parent;
      tell(DecisionKind::drop_save, 0, at);
      remove_node(at);
      at = parent;
    }
  }

  // ---- The order of eviction ----

  Order& order_of(std::uint32_t node) { return orders_[nodes_[node].on_device ? 0 : 1]; }
  Ends& ends_of(std::uint32_t node) {
    Order& order = order_of(node);
    return counts_ ? order.by_uses[nodes_[node].uses] : order.all;
  }

  template <class Visit>
  void for_each_in_order(Visit visit) const {
    for (const Order& order : orders_) {
      order.visit([&](std::uint32_t front) {
        for (std::uint32_t at = front; at != kNone; at = nodes_[at].after) {
          visit(at);
        }
      });
    }
  }
  template <class MayLeave>
  [[nodiscard]] std::uint32_t first_in_order(const Order& order, MayLeave may_leave) const {
    std::uint32_t found = kNone;
    order.visit([&](std::uint32_t front) {
      for (std::uint32_t at = front; at != kNone && found == kNone; at = nodes_[at].after) {
        found = may_leave(nodes_[at]) ? at : kNone;
      }
    });
    return found;
  }
  [[nodiscard]] std::uint32_t victim() const {
    return first_in_order(orders_[0], [](const Node& node) {
      return node.locks == 0 && node.device_children == 0 && !node.stays;
    });
  }
  [[nodiscard]] std::uint32_t host_victim() const {
    return first_in_order(
        orders_[1], [](const Node& node) { return node.children == 0 && node.host_locks == 0; });
  }

  /// To its place by the last use, behind what was used before.
  void insert_by_use(std::uint32_t at) {
    std::uint32_t place = ends_of(at).back;
    while (place != kNone && nodes_[place].used > nodes_[at].used) {
      place = nodes_[place].before;
    }
    if (place != kNone) {
      insert_after(at, place);
      return;
    }
    Ends& ends = ends_of(at);
    nodes_[at].before = kNone;
    nodes_[at].after = ends.front;
    (ends.front != kNone ? nodes_[ends.front].before : ends.back) = at;
    ends.front = at;
  }
  void push_back(std::uint32_t at) {
    Ends& ends = ends_of(at);
    nodes_[at].before = ends.back;
    nodes_[at].after = kNone;
    (ends.back != kNone ? nodes_[ends.back].after : ends.front) = at;
    ends.back = at;
    nodes_[at].used = ++clock_;
  }
  void insert_after(std::uint32_t at, std::uint32_t place) {
    Ends& ends = ends_of(at);
    nodes_[at].before = place;
    nodes_[at].after = nodes_[place].after;
    (nodes_[at].after != kNone ? nodes_[nodes_[at].after].before : ends.back) = at;
    nodes_[place].after = at;
  }
  void unlink(std::uint32_t at) {
    Ends& ends = ends_of(at);
    const Node& node = nodes_[at];
    (node.before != kNone ? nodes_[node.before].after : ends.front) = node.after;
    (node.after != kNone ? nodes_[node.after].before : ends.back) = node.before;
    if (counts_ && ends.front == kNone) {
      order_of(at).by_uses.erase(node.uses);
    }
  }
  void move_to_back(std::uint32_t at) {
    unlink(at);
    push_back(at);
  }

  // ---- Arrays ----

  std::uint32_t make_node() {
    if (free_nodes_.empty()) {
      nodes_.emplace_back();
      return static_cast<std::uint32_t>(nodes_.size() - 1);
    }
    const std::uint32_t at = free_nodes_.back();
    free_nodes_.pop_back();
    return at;
  }
  std::uint32_t make_span(const Span& like) {
    const Span span = like;
    if (free_spans_.empty()) {
      spans_.push_back(span);
      return static_cast<std::uint32_t>(spans_.size() - 1);
    }
    const std::uint32_t at = free_spans_.back();
    free_spans_.pop_back();
    spans_[at] = span;
    return at;
  }
  void link_in_stream(std::uint32_t at) {
    Span& span = spans_[at];
    if (span.stream.value >= heads_.size()) {
      heads_.resize(static_cast<std::size_t>(span.stream.value) + 1, kNone);
    }
    span.ahead = locate(span.stream, span.begin);
    std::uint32_t& next =
        span.ahead != kNone ? spans_[span.ahead].behind : heads_[span.stream.value];
    span.behind = next;
    next = at;
    if (span.behind != kNone) {
      spans_[span.behind].ahead = at;
    }
  }

  StoreRules rules_;
  const PoolRules& pool_;
  const Streams& streams_;
  /// Null if there is no third pool.
  std::shared_ptr<ExtentPool> storage_;
  /// Policies of the registry choose the nodes that leave.
  bool is_ranked_;
  std::array<std::unique_ptr<PolicyOrder>, 2> policies_;
  /// The nodes of their entries.
  std::array<std::vector<std::uint32_t>, 2> node_of_;
  bool counts_;
  bool has_second_;
  bool writes_back_;
  std::vector<Node> nodes_;
  std::vector<Span> spans_;
  std::vector<std::uint32_t> free_nodes_;
  std::vector<std::uint32_t> free_spans_;
  std::vector<std::uint32_t> heads_;
  /// Orders of the first pool, and of nodes in the second one only.
  std::array<Order, 2> orders_;
  std::int64_t clock_ = 0;
  std::vector<Request> requests_;
  std::vector<RequestId> free_requests_;
  std::int64_t used_ = 0;
  std::int64_t resident_ = 0;
  std::int64_t evictable_ = 0;
  /// Blocks of nodes in the second pool, and with what comes from storage.
  std::int64_t host_resident_ = 0;
  std::int64_t host_used_ = 0;
  /// Nodes in both pools, if they are written on eviction.
  std::map<std::int64_t, std::uint32_t> in_both_;
  std::map<std::uint32_t, CopyInFlight> copies_;
  std::vector<Copy> begun_;
  std::uint32_t last_copy_ = 0;
  std::map<std::uint32_t, Fetch> fetches_;
  std::uint32_t last_fetch_ = 0;
  /// Blocks that prefetches have looked for.
  std::int64_t fetching_ = 0;
  std::vector<std::uint32_t> nodes_on_path_;
  std::vector<PoolCounters> counters_;
  StoreLog log_;
  mutable std::vector<Stretch> path_;
  mutable std::uint32_t last_ = kNone;
};

}  // namespace

std::vector<std::unique_ptr<Store>> make_node_stores(const StoreRules& rules,
                                                     const Streams& streams,
                                                     const PolicyRegistry& registry,
                                                     std::size_t instances) {
  std::vector<std::unique_ptr<Store>> stores;
  std::shared_ptr<ExtentPool> storage;
  for (std::size_t i = 0; i < instances; ++i) {
    if (rules.pools.size() > 2 && (storage == nullptr || !rules.pools[2].shared)) {
      auto policies = make_block_entries(rules, 2, streams, registry);
      const Streams* forks = policies != nullptr ? &streams : nullptr;
      storage = std::make_shared<ExtentPool>(rules.pools[2], 0, forks, std::move(policies));
    }
    stores.push_back(std::make_unique<NodeStore>(rules, streams, registry, storage));
  }
  return stores;
}

}  // namespace kvtier
