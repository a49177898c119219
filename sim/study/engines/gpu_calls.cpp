#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/study/engines/named_tokens.hpp"
#include "sim/study/engines/table_calls.hpp"

namespace kvtier {
namespace {

/// A block: the stream that owns its last token, and the block's number.
using Key = std::pair<StreamId, std::int64_t>;

/// Makes the calls of the kind "gpu" on a store.
class GpuCalls final : public TableCalls {
 public:
  GpuCalls(const Json& system, StoreRules rules, const StoreKind& kind) : tokens_(streams_) {
    caches_ = system.value("caching", true);
    block_ = system.at("block_tokens").get<std::int64_t>();
    rules.pools[0].block = Tokens(block_);
    rules.pools[0].capacity = system.at("gpu_blocks").get<std::int64_t>();
    if (block_ < 1 || rules.pools[0].capacity < 1) {
      throw ConfigError("expected at least one block of one token");
    }
    store_ = kind.make(rules, streams_, {});
  }

  /// Results of the call, and the state after it.
  [[nodiscard]] Json make(const Json& call) override {
    const auto name = call.at("call").get<std::string>();
    Json results = Json::object();
    if (name == "reset") {
      results = reset();
    } else if (name != "check") {
      const auto request = call.at("request").get<std::string>();
      if (name == "request") {
        add(request, call);
      } else {
        results = make(name, at(request), call);
      }
    }
    add_state(results);
    return results;
  }

  [[nodiscard]] Json expected(const std::string& name, const Json& value) const override {
    Json keys = value;
    if (name == "evicted" || name == "free_keys") {
      for (Json& key : keys) {
        key = key_name(key.get<std::string>());
      }
    }
    return keys;
  }

 private:
  struct Request {
    std::vector<std::int64_t> tokens;
    std::string salt;
    StreamId stream;
    bool looked_up = false;
    std::optional<RequestId> held{};
    std::int64_t computed = 0;
    bool skips_lookup = false;

    [[nodiscard]] Context context(std::int64_t count) const { return {stream, Tokens(count)}; }
    [[nodiscard]] Context context() const {
      return context(static_cast<std::int64_t>(tokens.size()));
    }
  };

  /// A key's name in results, from any name of it.
  [[nodiscard]] std::string key_name(const std::string& name) const {
    const std::size_t slash = name.rfind('/');
    const auto request = requests_.find(name.substr(0, slash));
    if (slash == std::string::npos || request == requests_.end() ||
        name.find_first_not_of("0123456789", slash + 1) != std::string::npos ||
        name.size() > slash + 8 || name.size() == slash + 1) {
      throw ConfigError(fmt::format("expected a key such as r0/2, got {}", quote_text(name)));
    }
    return name_of(key(request->second, std::stoll(name.substr(slash + 1))));
  }

  Request& at(const std::string& name) {
    const auto request = requests_.find(name);
    if (request == requests_.end()) {
      throw ConfigError(fmt::format("no request {} before this call", quote_text(name)));
    }
    return request->second;
  }

  void add(const std::string& name, const Json& call) {
    Request request{.tokens = tokens_.of(call.at("prompt")),
                    .salt = caches_ ? call.value("salt", "") : name};
    request.skips_lookup = call.value("skip_lookup", false);
    if (request.tokens.empty()) {
      throw ConfigError("expected a prompt of one token at least");
    }
    request.stream = tokens_.stream(request.tokens, request.salt);
    if (!requests_.emplace(name, std::move(request)).second) {
      throw ConfigError(fmt::format("the request {} comes twice", quote_text(name)));
    }
    order_.push_back(name);
  }

  Json make(const std::string& name, Request& request, const Json& call) {
    if (name == "lookup") {
      request.looked_up = !request.skips_lookup;
      return {
          {"hit_tokens", request.looked_up ? store_->match(request.context()).tokens.value : 0}};
    }
    if (name == "allocate") {
      return allocate(request, call.at("tokens").get<std::int64_t>(),
                      call.value("whole_prompt_must_fit", false));
    }
    if (name == "respond") {
      const std::vector<std::int64_t> more = tokens_.of(call.at("tokens"));
      request.tokens.insert(request.tokens.end(), more.begin(), more.end());
      request.stream = tokens_.stream(request.tokens, request.salt);
      return Json::object();
    }
    if (name == "free") {
      if (request.held) {
        store_->release(*request.held);
        if (!caches_) {
          store_->truncate(request.stream, Tokens(0));
        }
      }
      request.held.reset();
      return Json::object();
    }
    throw ConfigError(fmt::format("expected a call of the block pool, got {}", quote_text(name)));
  }

  Json allocate(Request& request, std::int64_t tokens, bool whole) {
    std::vector<Key> free = free_keys();
    const std::int64_t available = store_->free_blocks().available;
    const std::int64_t evicted = store_->counters(0).evicted;
    const auto end_at = [&](std::int64_t begin) {
      const std::int64_t end = begin + tokens;
      if (tokens < 1 || end > static_cast<std::int64_t>(request.tokens.size())) {
        throw ConfigError(fmt::format("expected tokens of the request, which has {}, got {}",
                                      request.tokens.size(), end));
      }
      return end;
    };
    std::int64_t end = 0;
    std::int64_t reused = 0;
    if (request.held) {
      if (whole) {
        throw Unsupported{"a running request whose whole prompt must fit"};
      }
      end = end_at(request.computed);
      if (!store_->grow(*request.held, request.context(end))) {
        return {{"fits", false}};
      }
    } else if (!std::exchange(request.looked_up, false)) {
      // The request starts with an empty prompt, which has no hit, and grows.
      if (whole) {
        throw Unsupported{"a request without a look-up whose whole prompt must fit"};
      }
      // vLLM's test allocates one token more than the prompt has, which fills no block.
      const bool fills_no_block =
          request.skips_lookup && tokens / block_ == std::ssize(request.tokens) / block_;
      end = fills_no_block ? tokens : end_at(0);
      Match match;
      const RequestId id = *store_->acquire(request.context(0), Tokens(0), match);
      if (!store_->grow(id, request.context(end))) {
        store_->release(id);
        return {{"fits", false}};
      }
      request.held = id;
    } else {
      Match match = store_->match(request.context());
      end = end_at(match.tokens.value);
      const Context context = request.context();
      request.held = store_->acquire(
          context, {.taken = Tokens(end), .needed = whole ? context.tokens : Tokens(end)}, match);
      if (!request.held) {
        return {{"fits", false}};
      }
      for (std::int64_t i = 0; i < match.tokens.value / block_; ++i) {
        const auto hit = std::ranges::find(free, key(request, i));
        if (hit != free.end()) {
          free.erase(hit);
          ++reused;
        }
      }
    }
    request.computed = end;
    // The store only counts victims. The eviction order gives their keys.
    const auto left = static_cast<std::size_t>(store_->counters(0).evicted - evicted);
    Json names = Json::array();
    for (std::size_t i = 0; i < left; ++i) {
      names.push_back(i < free.size() ? name_of(free[i]) : "?");
    }
    return {{"fits", true},
            {"new_blocks", available - store_->free_blocks().available - reused},
            {"evicted", std::move(names)}};
  }

  Json reset() {
    const bool held = std::ranges::any_of(
        requests_, [](const auto& request) { return request.second.held.has_value(); });
    if (!held) {
      for (const StreamId stream : tokens_.streams()) {
        store_->truncate(stream, Tokens(streams_.first_of(stream)));
      }
    }
    return {{"done", !held}};
  }

  /// Keys of evictable blocks, in eviction order.
  [[nodiscard]] std::vector<Key> free_keys() const {
    const FreeBlocks free = store_->free_blocks();
    std::vector<Key> keys = all_keys();
    keys.resize(std::min(keys.size(), static_cast<std::size_t>(free.available - free.empty)));
    return keys;
  }
  [[nodiscard]] std::vector<Key> all_keys() const {
    std::vector<Key> keys;
    for (const Stretch& block : store_->contents(0)) {
      keys.emplace_back(block.stream, block.begin);
    }
    return keys;
  }

  void add_state(Json& results) const {
    const FreeBlocks free = store_->free_blocks();
    const std::vector<Key> all = all_keys();
    results["free_blocks"] = free.available;
    results["free_without_key"] = free.empty;
    results["findable_keys"] = std::set<Key>(all.begin(), all.end()).size();
    results["free_keys"] = Json::array();
    for (const Key& key : free_keys()) {
      results["free_keys"].push_back(name_of(key));
    }
  }

  [[nodiscard]] Key key(const Request& request, std::int64_t place) const {
    return {streams_.stream_at(request.stream, Tokens((place + 1) * block_ - 1)), place};
  }
  /// NAME/PLACE, where NAME is the first request with the key.
  [[nodiscard]] std::string name_of(const Key& wanted) const {
    for (const std::string& name : order_) {
      const Request& request = requests_.at(name);
      const bool has_it =
          (wanted.second + 1) * block_ <= static_cast<std::int64_t>(request.tokens.size());
      if (has_it && key(request, wanted.second) == wanted) {
        return fmt::format("{}/{}", name, wanted.second);
      }
    }
    return "?";
  }

  Streams streams_;
  NamedTokens tokens_;
  std::unique_ptr<Store> store_;
  std::int64_t block_ = 0;
  bool caches_ = true;
  std::map<std::string, Request> requests_;
  std::vector<std::string> order_;
};

}  // namespace

std::unique_ptr<TableCalls> make_gpu_calls(const Json& system, const StoreRules& rules,
                                           const StoreKind& kind) {
  return std::make_unique<GpuCalls>(system, rules, kind);
}

}  // namespace kvtier
