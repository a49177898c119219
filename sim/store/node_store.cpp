#include "sim/store/node_store.hpp"

#include <algorithm>
#include <map>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

/// A node has a span for each stream that its blocks belong to. Blocks of a stream are found by the
/// spans of that stream, so a match never compares blocks. In the order of eviction a node stands
/// before its parent: a use moves a path from its end to its root, and a node is used no more often
/// than its parent.
class NodeStore final : public Store {
 public:
  NodeStore(const StoreRules& rules, const Streams& streams)
      : rules_(rules),
        pool_(rules_.pools.front()),
        streams_(streams),
        counts_(pool_.eviction == "lfu"),
        in_order_of_use_(pool_.eviction != "fifo") {}

  void advance(SimTime) override {}

  [[nodiscard]] Match match(const Context& prompt) const override {
    const std::int64_t found = find(prompt.stream, usable(prompt.tokens)).blocks;
    return {Tokens(found * block()), {Tokens(found * block())}};
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& asked, Match& match,
                                   RequestId) override {
    const Path path = find(prompt.stream, usable(prompt.tokens));
    match = {Tokens(path.blocks * block()), {Tokens(path.blocks * block())}};
    Request request;
    const Tokens room = std::max(asked.taken, match.tokens);
    request.context = {prompt.stream, match.tokens};
    request.held = path.blocks;
    const std::uint32_t end = use(path);
    lock(end, 1);
    request.node = end;
    const std::int64_t gate =
        std::max(blocks_up(asked.needed), blocks_up(room) + asked.reserved) + asked.watermark;
    if (gate - request.held > free_blocks().available || !extend(request, {prompt.stream, room})) {
      lock(end, -1);
      return std::nullopt;
    }
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

  void release(RequestId id) override {
    publish(requests_[id.value], requests_[id.value].context.tokens);
    abandon(id);
  }
  void abandon(RequestId id) override {
    Request& request = requests_[id.value];
    used_ -= blocks_up(request.context.tokens) - request.held;
    lock(request.node, -1);
    free_requests_.push_back(id);
  }

  void make_empty(std::int64_t blocks) override {
    make_room(blocks * block(), (pool_.capacity - used_) * block());
  }
  Match refresh(const Context& context) override {
    const Path path = find(context.stream, context.tokens.value / block());
    static_cast<void>(use(path));
    return {Tokens(path.blocks * block()), {Tokens(path.blocks * block())}};
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    return {.available = pool_.capacity - used_ + evictable_, .empty = pool_.capacity - used_};
  }

  /// Nodes leave that have no other blocks.
  void truncate(StreamId stream, Tokens tokens) override {
    const auto leaves = [&](std::uint32_t at) {
      const Span& span = spans_[nodes_[at].last];
      return nodes_[at].locks == 0 && nodes_[at].children == 0 && span.above == kNone &&
             span.stream == stream && span.begin >= tokens.value / block();
    };
    for (std::uint32_t found = 0; found != kNone;) {
      found = kNone;
      for_each_in_order([&](std::uint32_t at) { found = leaves(at) ? at : found; });
      if (found != kNone) {
        remove_node(found);
      }
    }
  }
  [[nodiscard]] bool remembers(StreamId stream) const override {
    return stream.value < heads_.size() && heads_[stream.value] != kNone;
  }

  [[nodiscard]] PoolCounters counters(std::size_t) const override { return counters_; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t) const override { return resident_; }

  [[nodiscard]] std::vector<Stretch> contents(std::size_t) const override {
    std::vector<Stretch> order;
    const auto add = [&](const Node& node) {
      const std::size_t first = order.size();
      for (std::uint32_t at = node.last; at != kNone; at = spans_[at].above) {
        for (std::int64_t i = spans_[at].end; i-- > spans_[at].begin;) {
          order.push_back({spans_[at].stream, i, i + 1});
        }
      }
      return first;
    };
    for_each_in_order([&](std::uint32_t at) {
      if (nodes_[at].locks == 0) {
        add(nodes_[at]);
      }
    });
    const auto evictable = static_cast<std::ptrdiff_t>(order.size());
    for_each_in_order([&](std::uint32_t at) {
      if (nodes_[at].locks > 0) {
        add(nodes_[at]);
      }
    });
    std::sort(order.begin() + evictable, order.end(), [](const Stretch& a, const Stretch& b) {
      return a.stream != b.stream ? a.stream < b.stream : a.begin < b.begin;
    });
    return order;
  }

  void check_invariants() const override {
    std::int64_t resident = 0;
    std::int64_t evictable = 0;
    std::size_t live = 0;
    std::vector<std::uint32_t> children(nodes_.size());
    for_each_in_order([&](std::uint32_t at) {
      const Node& node = nodes_[at];
      std::int64_t size = 0;
      for (std::uint32_t span = node.last; span != kNone; span = spans_[span].above) {
        KVTIER_ASSERT(spans_[span].node == at && spans_[span].end > spans_[span].begin,
                      "a node's spans know it");
        size += spans_[span].end - spans_[span].begin;
      }
      KVTIER_ASSERT(size == node.size, "a node's spans are its blocks");
      resident += size;
      evictable += node.locks == 0 ? size : 0;
      ++live;
      if (node.parent != kNone) {
        ++children[node.parent];
        KVTIER_ASSERT(
            nodes_[node.parent].locks >= node.locks && nodes_[node.parent].uses >= node.uses,
            "a parent is held and used as often as its children");
      }
    });
    for_each_in_order([&](std::uint32_t at) {
      KVTIER_ASSERT(children[at] == nodes_[at].children, "a node knows how many children it has");
    });
    KVTIER_ASSERT(resident == resident_ && evictable == evictable_, "accounts are those of nodes");
    KVTIER_ASSERT(live + free_nodes_.size() == nodes_.size(), "every node is in the order");
    KVTIER_ASSERT(used_ >= resident_ && used_ <= pool_.capacity,
                  "a pool holds no more than its capacity");
  }

 private:
  struct Node {
    std::uint32_t parent = kNone;
    /// Its last span.
    std::uint32_t last = kNone;
    std::int64_t size = 0;
    std::uint32_t children = 0;
    std::uint32_t locks = 0;
    /// lfu's count; 0 for other orders.
    std::uint32_t uses = 0;
    std::uint32_t before = kNone;
    std::uint32_t after = kNone;
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
  /// What the tree has of a context.
  struct Path {
    std::int64_t blocks = 0;
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
  };

  [[nodiscard]] std::int64_t block() const { return pool_.block.value; }
  [[nodiscard]] std::int64_t blocks_up(Tokens tokens) const {
    return (tokens.value + block() - 1) / block();
  }
  [[nodiscard]] std::int64_t usable(Tokens prompt) const {
    const bool capped = rules_.hit_cap == HitCap::last_token;
    return std::max<std::int64_t>(prompt.value - (capped ? 1 : 0), 0) / block();
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
    for (std::uint32_t at = end; at != kNone; at = nodes_[at].parent) {
      move_to_back(at);
    }
    return end;
  }

  /// The node keeps its last `rest` blocks; returns a new parent with the others.
  std::uint32_t split(std::uint32_t lower, std::int64_t rest) {
    const std::uint32_t upper = make_node();
    Node& low = nodes_[lower];
    Node& up = nodes_[upper];
    up = {.parent = low.parent,
          .size = low.size - rest,
          .children = 1,
          .locks = low.locks,
          .uses = low.uses};
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
    return upper;
  }

  /// Blocks [begin, end) of the path in path_ as a new node.
  std::uint32_t add_node(std::uint32_t parent, std::int64_t begin, std::int64_t end) {
    const std::uint32_t made = make_node();
    nodes_[made] = {.parent = parent, .size = end - begin};
    if (parent != kNone) {
      ++nodes_[parent].children;
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
    resident_ += end - begin;
    evictable_ += end - begin;
    counters_.inserted += end - begin;
    push_back(made);
    return made;
  }

  void remove_node(std::uint32_t at) {
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
    }
    resident_ -= node.size;
    evictable_ -= node.size;
    used_ -= node.size;
    free_nodes_.push_back(at);
  }

  void lock(std::uint32_t node, int change) {
    for (std::uint32_t at = node; at != kNone; at = nodes_[at].parent) {
      Node& locked = nodes_[at];
      evictable_ -= locked.locks == 0 ? locked.size : 0;
      locked.locks += static_cast<std::uint32_t>(change);
      evictable_ += locked.locks == 0 ? locked.size : 0;
    }
  }

  // ---- Requests ----

  /// Memory for a longer context, all or nothing.
  bool extend(Request& request, const Context& context) {
    const std::int64_t now = request.context.tokens.value;
    const std::int64_t more = context.tokens.value - now;
    if (more > 0) {
      const std::int64_t blocks = blocks_up(context.tokens) - blocks_up(request.context.tokens);
      const std::int64_t demand = more + (pool_.one_block_more && block() > 1 ? block() : 0);
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
    std::int64_t tokens = pool_.whole_need ? demand : demand - free;
    while (tokens > 0) {
      const std::uint32_t at = victim();
      if (at == kNone) {
        return;
      }
      tokens -= nodes_[at].size * block();
      counters_.evicted += nodes_[at].size;
      remove_node(at);
    }
  }

  /// The request's first tokens are in the tree, whose copies it uses where there are some.
  void publish(Request& request, Tokens tokens) {
    const std::int64_t blocks = tokens.value / block();
    const Path path = find(request.context.stream, blocks);
    std::uint32_t end = use(path);
    used_ -= std::max<std::int64_t>(path.blocks - request.held, 0);
    if (path.blocks < blocks) {
      end = add_node(end, path.blocks, blocks);
      for (std::uint32_t at = nodes_[end].parent; at != kNone; at = nodes_[at].parent) {
        move_to_back(at);
      }
    }
    lock(end, 1);
    lock(request.node, -1);
    request.node = end;
    request.held = std::max(request.held, blocks);
    if (counts_) {
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
    for (std::uint32_t at = end; at != kNone; at = nodes_[at].parent) {
      move_to_back(at);
    }
    request.counted = std::max(request.counted, blocks);
  }

  // ---- The order of eviction ----

  Ends& ends_of(std::uint32_t node) { return counts_ ? by_uses_[nodes_[node].uses] : ends_; }

  template <class Visit>
  void for_each_in_order(Visit visit) const {
    const auto walk = [&](std::uint32_t at) {
      for (; at != kNone; at = nodes_[at].after) {
        visit(at);
      }
    };
    walk(ends_.front);
    for (const auto& [uses, ends] : by_uses_) {
      walk(ends.front);
    }
  }
  [[nodiscard]] std::uint32_t first_leaf(std::uint32_t at) const {
    while (at != kNone && (nodes_[at].locks > 0 || nodes_[at].children > 0)) {
      at = nodes_[at].after;
    }
    return at;
  }
  [[nodiscard]] std::uint32_t victim() const {
    for (const auto& [uses, ends] : by_uses_) {
      const std::uint32_t leaf = first_leaf(ends.front);
      if (leaf != kNone) {
        return leaf;
      }
    }
    return first_leaf(ends_.front);
  }

  void push_back(std::uint32_t at) {
    Ends& ends = ends_of(at);
    nodes_[at].before = ends.back;
    nodes_[at].after = kNone;
    (ends.back != kNone ? nodes_[ends.back].after : ends.front) = at;
    ends.back = at;
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
      by_uses_.erase(node.uses);
    }
  }
  void move_to_back(std::uint32_t at) {
    if (in_order_of_use_) {
      unlink(at);
      push_back(at);
    }
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
  bool counts_;
  bool in_order_of_use_;
  std::vector<Node> nodes_;
  std::vector<Span> spans_;
  std::vector<std::uint32_t> free_nodes_;
  std::vector<std::uint32_t> free_spans_;
  std::vector<std::uint32_t> heads_;
  Ends ends_;
  std::map<std::uint32_t, Ends> by_uses_;
  std::vector<Request> requests_;
  std::vector<RequestId> free_requests_;
  std::int64_t used_ = 0;
  std::int64_t resident_ = 0;
  std::int64_t evictable_ = 0;
  PoolCounters counters_;
  mutable std::vector<Stretch> path_;
  mutable std::uint32_t last_ = kNone;
};

}  // namespace

std::unique_ptr<Store> make_node_store(const StoreRules& rules, const Streams& streams) {
  return std::make_unique<NodeStore>(rules, streams);
}

}  // namespace kvtier
