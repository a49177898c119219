#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/offload_calls.hpp"
#include "sim/study/engines/table_calls.hpp"

namespace kvtier {
namespace {

/// Makes the calls of the kinds "cpu" and "tiers" on the offload tiers of a store.
///
/// Chunks are blocks of one token, each at its own place. The chunks that a request names form a
/// stream from head to tail. Every other chunk is a stream of its own, at a place before all
/// earlier ones: the first chunk of a call is evicted first, as in an engine that does not know the
/// places.
class CpuCalls final : public TableCalls {
 public:
  CpuCalls(const Json& system, StoreRules rules, const StoreKind& kind) {
    const auto positive = [&](const char* name, std::int64_t value) {
      if (value < 1) {
        throw ConfigError(fmt::format("expected {} to be at least 1, got {}", name, value));
      }
      return value;
    };
    rules.pools[0].block = rules.pools[1].block = Tokens(1);
    rules.pools[1].capacity = positive("cpu_chunks", system.at("cpu_chunks").get<std::int64_t>());
    rules.pools[1].eviction = system.at("eviction").get<std::string>();
    if (const std::int64_t threshold = system.value("store_threshold", std::int64_t{0});
        threshold > 1) {
      rules.edges[0].write = Write::after_uses;
      rules.edges[0].uses = threshold;
      rules.edges[0].counted =
          positive("tracker_entries", system.value("tracker_entries", rules.edges[0].counted));
    }
    tiers_ = system.value("secondary_tiers", 0);
    for (int i = 0; i < tiers_; ++i) {
      rules.pools.push_back({.name = fmt::format("tier {}", i),
                             .capacity = std::int64_t{1} << 40,
                             .block = Tokens(1)});
      rules.edges.push_back({.no_room = NoRoom::skip});
    }
    store_ = kind.make(rules, streams_, {});
    offload_ = store_->offload_calls();
    is_arc_ = rules.pools[1].eviction == "arc";
  }

  [[nodiscard]] Json make(const Json& call) override {
    Json results = make(call.at("call").get<std::string>(), call);
    add_state(results);
    return results;
  }
  [[nodiscard]] Json expected(const std::string& name, const Json& value) const override {
    return name == "offers" ? sorted(value) : value;
  }

 private:
  struct Chunk {
    Json name;
    StreamId stream;
    std::int64_t place = 0;

    [[nodiscard]] Stretch block() const { return {stream, place, place + 1}; }
  };
  struct Request {
    RequestId id;
    /// Whether the request named its chunks.
    bool has_places = false;
  };

  Json make(const std::string& name, const Json& call) {
    if (name == "check" || name == "end_step") {
      return Json::object();
    }
    if (name == "request") {
      add_request(call);
      return Json::object();
    }
    if (name == "set_target") {
      offload_->set_target(call.at("target").get<double>());
      return Json::object();
    }
    if (name == "reset") {
      reset();
      return Json::object();
    }
    if (name == "put" || name == "reset_done") {
      throw Unsupported{"the call " + name};
    }
    const auto request_name = call.value("request", "r");
    if (name == "finish") {
      finish(request_name);
      return Json::object();
    }
    const std::vector<Chunk> chunks = chunks_of(call.at("keys"));
    if (name == "lookup") {
      return look_up(chunks);
    }
    if (name == "prepare_store") {
      return prepare_store(request_name, chunks);
    }
    if (name == "complete_store") {
      complete_store(chunks, call.value("good", true));
    } else if (name == "prepare_load") {
      expect_ready(chunks);
      offload_->begin_load(request(request_name).id, blocks(chunks));
    } else if (name == "complete_load") {
      expect_ready(chunks);
      offload_->end_load(blocks(chunks));
    } else if (name == "touch") {
      for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
        touch(*chunk);
      }
    } else {
      throw ConfigError(fmt::format("expected a call of the CPU tier, got {}", quote_text(name)));
    }
    return Json::object();
  }

  void add_request(const Json& call) {
    const auto name = call.at("request").get<std::string>();
    StreamId stream;
    std::int64_t end = 0;
    bool forks = false;
    for (const Json& key : call.at("keys")) {
      const auto known = chunks_.find(key.dump());
      if (known != chunks_.end()) {
        const bool follows = !stream.valid() || stream == known->second.stream ||
                             streams_.parent(known->second.stream) == stream;
        if (forks || !follows) {
          throw Unsupported{"a chunk behind another one than before"};
        }
        stream = known->second.stream;
        end = known->second.place + 1;
        continue;
      }
      if (!std::exchange(forks, true)) {
        stream = streams_.open(stream, Tokens(end));
      }
      chunks_[key.dump()] = {key, stream, next_place_++};
    }
    if (!requests_.emplace(name, Request{offload_->begin(stream), true}).second) {
      throw ConfigError(fmt::format("the request {} comes twice", quote_text(name)));
    }
  }
  Request& request(const std::string& name) {
    const auto known = requests_.find(name);
    return known != requests_.end()
               ? known->second
               : requests_.emplace(name, Request{offload_->begin(streams_.open())}).first->second;
  }
  std::vector<Chunk> chunks_of(const Json& keys) {
    std::vector<Chunk> chunks;
    for (const Json& key : keys) {
      const auto [known, is_new] = chunks_.try_emplace(key.dump());
      if (is_new) {
        known->second = {key, streams_.open(), --last_place_};
      }
      chunks.push_back(known->second);
    }
    return chunks;
  }
  static std::vector<Stretch> blocks(const std::vector<Chunk>& chunks) {
    std::vector<Stretch> blocks;
    for (const Chunk& chunk : chunks) {
      blocks.push_back(chunk.block());
    }
    return blocks;
  }
  [[nodiscard]] BlockState state(const Chunk& chunk) const {
    return offload_->state(chunk.stream, chunk.place);
  }
  void expect_ready(const std::vector<Chunk>& chunks) const {
    for (const Chunk& chunk : chunks) {
      if (state(chunk) != BlockState::ready) {
        throw ConfigError(fmt::format("expected a complete chunk, got {}", chunk.name.dump()));
      }
    }
  }

  Json look_up(const std::vector<Chunk>& chunks) {
    Json states = Json::array();
    for (const Chunk& chunk : chunks) {
      const BlockState is = state(chunk);
      for (int i = 0; i < tiers_ && is == BlockState::absent; ++i) {
        if (std::ranges::count(store_->contents(tier(i)), chunk.block()) > 0) {
          throw Unsupported{"a look-up that begins a promotion"};
        }
      }
      states.push_back(is == BlockState::absent    ? "miss"
                       : is == BlockState::written ? "writing"
                                                   : "hit");
    }
    return {{"states", std::move(states)}};
  }
  Json prepare_store(const std::string& name, const std::vector<Chunk>& chunks) {
    const OffloadCalls::Offer offer = offload_->offer(request(name).id, blocks(chunks));
    for (const Copy& copy : store_->take_copies()) {
      copies_[copy.id] = offer.written;
    }
    if (!offer.fits) {
      return {{"refused", true}};
    }
    return {
        {"refused", false}, {"stored", names(offer.written)}, {"evicted", names(offer.evicted)}};
  }
  void complete_store(const std::vector<Chunk>& chunks, bool good) {
    const std::vector<Stretch> complete = blocks(chunks);
    const auto is_complete = [&](const Stretch& block) {
      return std::ranges::count(complete, block) > 0;
    };
    for (auto copy = copies_.begin(); copy != copies_.end();) {
      const auto count = std::ranges::count_if(copy->second, is_complete);
      if (count == 0) {
        ++copy;
        continue;
      }
      if (count < std::ssize(copy->second)) {
        throw Unsupported{"a part of a store that is complete"};
      }
      store_->copied(copy->first);
      for (const Stretch& block : copy->second) {
        if (!good) {
          drop(block);
        }
      }
      copy = copies_.erase(copy);
    }
  }
  /// Drops a chunk from all tiers. It must be the last of its stream.
  void drop(const Stretch& block) {
    for (const auto& [name, chunk] : chunks_) {
      if (chunk.stream == block.stream && chunk.place > block.begin) {
        throw Unsupported{"a failed store of a request with places"};
      }
    }
    store_->truncate(block.stream, Tokens(block.begin));
  }

  /// Uses a chunk by a request that does nothing else. A use of an absent chunk changes arc's
  /// target, like a store that finds no room.
  void touch(const Chunk& chunk) {
    const BlockState is = state(chunk);
    if (is == BlockState::written) {
      throw Unsupported{"a use of a chunk that is being written"};
    }
    if (is == BlockState::ready) {
      const RequestId id = offload_->begin(chunk.stream);
      offload_->begin_load(id, {chunk.block()});
      offload_->end_load({chunk.block()});
      store_->end(id);
      return;
    }
    if (!is_arc_) {
      return;
    }
    std::vector<Stretch> ready;
    for (const auto& [name, other] : chunks_) {
      if (state(other) == BlockState::ready) {
        ready.push_back(other.block());
      }
    }
    offload_->begin_load(offload_->begin(streams_.open()), ready);
    if (offload_->facts().free > 0 ||
        offload_->offer(offload_->begin(chunk.stream), {chunk.block()}).fits) {
      throw Unsupported{"a use of a chunk that is not there, with room for it"};
    }
    offload_->end_load(ready);
  }
  void finish(const std::string& name) {
    const auto known = requests_.find(name);
    if (known == requests_.end() || !known->second.has_places) {
      throw Unsupported{"a request without places that ends"};
    }
    store_->end(known->second.id);
    requests_.erase(known);
  }
  /// Drops all chunks.
  void reset() {
    if (is_arc_ || !copies_.empty() || tiers_ > 0) {
      throw Unsupported{"a reset of more than what is there"};
    }
    for (const auto& [name, chunk] : chunks_) {
      store_->truncate(chunk.stream, Tokens(streams_.first_of(chunk.stream)));
    }
    requests_.clear();
  }

  // ---- Results ----

  [[nodiscard]] std::size_t tier(int number) const { return static_cast<std::size_t>(number) + 2; }
  [[nodiscard]] const Json& name(const Stretch& block) const {
    return std::ranges::find_if(chunks_,
                                [&](const auto& chunk) { return chunk.second.block() == block; })
        ->second.name;
  }
  [[nodiscard]] Json names(const std::vector<Stretch>& blocks) const {
    Json names = Json::array();
    for (const Stretch& block : blocks) {
      names.push_back(name(block));
    }
    return names;
  }
  static Json sorted(const Json& object) {
    std::map<std::string, Json> entries;
    for (const auto& [name, value] : object.items()) {
      entries[name] = value;
    }
    Json result = Json::object();
    for (const auto& [name, value] : entries) {
      result[name] = value;
    }
    return result;
  }
  void add_state(Json& results) const {
    const OffloadFacts facts = offload_->facts();
    results["free_chunks"] = facts.free;
    results["evictable_chunks"] = facts.evictable;
    Json offers = Json::object();
    for (const auto& [text, chunk] : chunks_) {
      if (const std::int64_t count = offload_->offers(chunk.stream, chunk.place); count > 0) {
        offers[chunk.name.is_string() ? chunk.name.get<std::string>() : text] = count;
      }
    }
    results["offers"] = sorted(offers);
    if (is_arc_) {
      std::size_t i = 0;
      for (const char* list : {"t1", "t2", "b1", "b2"}) {
        results[list] = names(facts.lists[i++]);
      }
      results["target"] = facts.target;
    }
    results["tiers"] = Json::array();
    for (int i = 0; i < tiers_; ++i) {
      Json keys = names(store_->contents(tier(i)));
      std::sort(keys.begin(), keys.end());
      results["tiers"].push_back(std::move(keys));
    }
  }

  static constexpr std::int64_t kPlaces = 10'000;

  Streams streams_;
  std::unique_ptr<Store> store_;
  OffloadCalls* offload_ = nullptr;
  bool is_arc_ = false;
  int tiers_ = 0;
  /// Chunks by the text of their names.
  std::map<std::string, Chunk> chunks_;
  std::int64_t next_place_ = 0;
  std::int64_t last_place_ = kPlaces;
  std::map<std::string, Request> requests_;
  std::map<std::uint32_t, std::vector<Stretch>> copies_;
};

}  // namespace

std::unique_ptr<TableCalls> make_cpu_calls(const Json& system, const StoreRules& rules,
                                           const StoreKind& kind) {
  return std::make_unique<CpuCalls>(system, rules, kind);
}

}  // namespace kvtier
