#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/core/text.hpp"
#include "sim/store/untimed_steps.hpp"
#include "sim/study/engines/named_tokens.hpp"
#include "sim/study/engines/table_calls.hpp"

namespace kvtier {
namespace {

StoreRules tree_rules(const Json& system) {
  const Tokens page(system.value("page_tokens", std::int64_t{1}));
  if (page.value < 1) {
    throw ConfigError("expected pages of one token at least");
  }
  const auto blocks = [&](const char* name) {
    return system.value(name, std::int64_t{0}) / page.value;
  };
  StoreRules rules;
  rules.requests_in_first = true;
  rules.hit_cap = HitCap::none;
  rules.whole_need = system.value("whole_need", false);
  rules.publication = Publication::computed;
  rules.pools = {{.name = "gpu",
                  .capacity = blocks("gpu_tokens"),
                  .block = page,
                  .unit = EvictionUnit::node,
                  .eviction = system.value("eviction", "lru")}};
  if (blocks("host_tokens") > 0) {
    rules.pools.push_back(rules.pools.front());
    rules.pools.back().name = "host";
    rules.pools.back().capacity = blocks("host_tokens");
    const auto write = system.value("write", "write_through");
    rules.edges.push_back({.write = write == "write_through_selective" ? Write::after_uses
                                    : write == "write_back"            ? Write::on_evict
                                                                       : Write::on_create,
                           .least_load = Tokens(system.value("least_load", std::int64_t{10}))});
  }
  if (blocks("storage_tokens") > 0) {
    rules.pools.push_back({.name = "storage", .capacity = blocks("storage_tokens"), .block = page});
    rules.edges.push_back({.least_load = Tokens(system.value("least_fetch", std::int64_t{256})),
                           .most_in_flight = 0.5});
  }
  return rules;
}

class TreeCalls final : public TableCalls {
 public:
  TreeCalls(const Json& system, const StoreKind& kind)
      : rules_(tree_rules(system)), tokens_(streams_) {
    if (rules_.pools.front().capacity < 1) {
      throw ConfigError("expected at least one page");
    }
    store_ = kind.make(rules_, streams_, {});
  }

  [[nodiscard]] Json make(const Json& call) override {
    Json results = made(call);
    store_->check_invariants();
    const std::int64_t page = rules_.pools.front().block.value;
    const std::vector<const char*> names{"gpu_tokens", "host_tokens", "storage_tokens"};
    for (std::size_t i = 0; i < rules_.pools.size(); ++i) {
      results[names[i]] = store_->resident_blocks(i) * page;
    }
    results["free_tokens"] = store_->free_blocks().available * page;
    return results;
  }

 private:
  struct Held {
    RequestId id;
    Context prompt;
    Tokens end;
  };

  Json made(const Json& call) {
    const auto name = call.at("call").get<std::string>();
    if (name == "check") {
      return Json::object();
    }
    if (name == "transfers_done") {
      finish_copies(*store_);
      return Json::object();
    }
    if (name == "lookup") {
      const Match match = store_->match(prompt_of(call));
      Json results{{"hit_tokens", match.by_pool[0].value}};
      const std::vector<const char*> names{"hit_tokens", "host_hit_tokens", "storage_hit_tokens"};
      for (std::size_t i = 1; i < match.by_pool.size(); ++i) {
        results[names[i]] = match.by_pool[i].value;
      }
      return results;
    }
    if (name == "serve") {
      Held held;
      Json results = hold(call, held);
      if (results["fits"] == true) {
        store_->release(held.id);
      }
      return results;
    }
    const auto request = call.at("request").get<std::string>();
    if (name == "begin") {
      Held held;
      Json results = hold(call, held);
      if (results["fits"] == true) {
        held_[request] = held;
      }
      return results;
    }
    if (name == "prefetch") {
      const auto prefetch = store_->prefetch(prompt_of(call));
      if (prefetch) {
        prefetches_[request] = prefetch->id;
      }
      return {{"tokens", prefetch ? prefetch->tokens.value : 0}};
    }
    if (name == "prefetched") {
      const Tokens came(call.at("tokens").get<std::int64_t>());
      return {{"added_tokens", store_->prefetched(known(prefetches_, request), came).value}};
    }
    if (name != "continue" && name != "end") {
      throw ConfigError(fmt::format("expected a call of a tree, got {}", quote_text(name)));
    }
    Held& held = known(held_, request);
    if (name == "continue") {
      store_->computed(held.id, held.end);
      held.end =
          std::min(held.prompt.tokens, held.end + Tokens(call.at("tokens").get<std::int64_t>()));
      return {{"fits", store_->grow(held.id, {held.prompt.stream, held.end})}};
    }
    store_->release(held.id);
    held_.erase(request);
    return Json::object();
  }

  template <class Value>
  static Value& known(std::map<std::string, Value>& values, const std::string& name) {
    const auto found = values.find(name);
    if (found == values.end()) {
      throw ConfigError(fmt::format("no request {} before this call", quote_text(name)));
    }
    return found->second;
  }

  [[nodiscard]] Context prompt_of(const Json& call) {
    const std::vector<std::int64_t> tokens = tokens_.of(call.at("prompt"));
    if (tokens.empty()) {
      throw ConfigError("expected a prompt of one token at least");
    }
    return {tokens_.stream(tokens, call.value("salt", "")), Tokens(std::ssize(tokens))};
  }

  Json hold(const Json& call, Held& held) {
    held.prompt = prompt_of(call);
    const Tokens found = store_->match(held.prompt).tokens;
    const Tokens first = call.contains("tokens")
                             ? found + Tokens(call.at("tokens").get<std::int64_t>())
                             : held.prompt.tokens;
    held.end = std::min(first, held.prompt.tokens);
    Match match;
    const auto id = store_->acquire(held.prompt, held.end, match);
    if (!id) {
      return {{"fits", false}};
    }
    held.id = *id;
    Json results{{"fits", true}, {"hit_tokens", match.by_pool[0].value}};
    if (match.by_pool.size() > 1) {
      results["loaded_tokens"] = match.by_pool[1].value;
    }
    return results;
  }

  StoreRules rules_;
  Streams streams_;
  NamedTokens tokens_;
  std::unique_ptr<Store> store_;
  std::map<std::string, Held> held_;
  std::map<std::string, std::uint32_t> prefetches_;
};

}  // namespace

std::unique_ptr<TableCalls> make_tree_calls(const Json& system, const StoreKind& kind) {
  return std::make_unique<TreeCalls>(system, kind);
}

}  // namespace kvtier
