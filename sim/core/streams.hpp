#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// Dense number of a stream. The number of a closed stream is reused.
struct StreamId {
  std::uint32_t value = UINT32_MAX;

  friend constexpr auto operator<=>(StreamId, StreamId) = default;
  [[nodiscard]] constexpr bool valid() const { return value != UINT32_MAX; }
};
inline constexpr StreamId kNoStream{};

/// The first tokens of a stream: the context of a request, or the part of it that a store holds.
struct Context {
  StreamId stream;
  Tokens tokens;
};

/// Neighbouring tokens, or blocks, [begin, end) of one stream, counted from the context's start.
struct Stretch {
  StreamId stream;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const Stretch&, const Stretch&) = default;
};

/// The forest of streams. A stream is a sequence of tokens with an identity. It may fork from a
/// parent at a token: the tokens before the fork are the parent's. A session is a stream that
/// grows. A system prompt is a stream from which sessions fork. Each unary chain of the trie of
/// block hashes is a stream. Streams have no length: a context says how many tokens it has.
class Streams {
 public:
  /// Opens a stream whose first `fork` tokens are the parent's. Without a parent, `fork` is 0.
  StreamId open(StreamId parent = kNoStream, Tokens fork = Tokens(0)) {
    KVTIER_ASSERT(
        parent.valid() ? is_open(parent) && fork.value >= first_of(parent) : fork.value == 0,
        "a stream forks from an open parent, behind the parent's own fork");
    StreamId id{static_cast<std::uint32_t>(streams_.size())};
    if (!free_.empty()) {
      id = free_.back();
      free_.pop_back();
    } else {
      streams_.emplace_back();
    }
    streams_[id.value] = {parent, ++births_, fork.value, 0, true};
    if (parent.valid()) {
      ++streams_[parent.value].children;
    }
    return id;
  }
  /// Closes a stream without children. No request will name it again, and no store holds KV of it.
  void close(StreamId id) {
    Stream& stream = streams_[id.value];
    KVTIER_ASSERT(stream.open && stream.children == 0, "a stream with children stays");
    stream.open = false;
    if (stream.parent.valid()) {
      --streams_[stream.parent.value].children;
    }
    free_.push_back(id);
  }

  [[nodiscard]] bool is_open(StreamId id) const {
    return id.value < streams_.size() && streams_[id.value].open;
  }
  /// Number of streams opened up to this one, which no other stream has.
  [[nodiscard]] std::uint32_t birth(StreamId id) const { return streams_[id.value].birth; }
  [[nodiscard]] StreamId parent(StreamId id) const { return streams_[id.value].parent; }
  /// Position of the stream's first own token.
  [[nodiscard]] std::int64_t first_of(StreamId id) const { return streams_[id.value].fork; }
  /// The stream from which another may fork at this token: this stream, or the ancestor that has
  /// the token.
  [[nodiscard]] StreamId stream_at(StreamId id, Tokens at) const {
    while (first_of(id) > at.value) {
      id = parent(id);
    }
    return id;
  }
  /// The common prefix of two contexts.
  [[nodiscard]] Tokens common(Context a, Context b) const {
    while (a.stream != b.stream) {
      Context& later = first_of(a.stream) >= first_of(b.stream) ? a : b;
      Context& raised = parent(later.stream).valid() ? later : &later == &a ? b : a;
      if (!parent(raised.stream).valid()) {
        return Tokens(0);
      }
      raised = {parent(raised.stream), std::min(raised.tokens, Tokens(first_of(raised.stream)))};
    }
    return std::min(a.tokens, b.tokens);
  }
  [[nodiscard]] std::size_t children(StreamId id) const { return streams_[id.value].children; }
  /// Streams have numbers below this.
  [[nodiscard]] std::size_t size() const { return streams_.size(); }

  /// The stretches of the first `units` units of a context, from its start on. A unit of `size`
  /// tokens belongs to the stream of its last token. Empty stretches are left out.
  void path(StreamId stream, std::int64_t units, std::int64_t size,
            std::vector<Stretch>& out) const {
    out.clear();
    std::int64_t end = units;
    for (StreamId at = stream; at.valid() && end > 0; at = parent(at)) {
      const std::int64_t begin = first_of(at) / size;
      if (begin < end) {
        out.push_back({at, begin, end});
        end = begin;
      }
    }
    for (std::size_t i = 0; i < out.size() / 2; ++i) {
      std::swap(out[i], out[out.size() - 1 - i]);
    }
  }

 private:
  struct Stream {
    StreamId parent;
    std::uint32_t birth = 0;
    std::int64_t fork = 0;
    std::uint32_t children = 0;
    bool open = false;
  };
  std::uint32_t births_ = 0;
  std::vector<Stream> streams_;
  std::vector<StreamId> free_;
};

}  // namespace kvtier
