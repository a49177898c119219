#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"
#include "sim/study/engines/hash_trace.hpp"

/// The order in which engines call a store, one request at a time and without a clock.
namespace kvtier {

/// A kind of store: the one that runs use, or the plain one.
struct StoreKind {
  std::string name;
  std::unique_ptr<Store> (*make)(const StoreRules&, const Streams&, const PolicyRegistry&);
};
[[nodiscard]] std::vector<StoreKind> store_kinds();

/// The request with its response, whose tokens are a stream of their own. KV of the last one is
/// never written.
Context with_response(Streams& streams, const HashRequest& request);

struct Replayed {
  Match match;
  /// Tokens of the prompt in the second pool, before the request took its KV.
  Tokens on_host{0};
  /// Blocks that left the first pool, since the replay began, when the prompt had its memory.
  std::int64_t evicted_for_prompt = 0;
};

/// A cache in which requests hold nothing: each is looked up, then all of its blocks come in.
Replayed replay_cache(Store& store, const Context& context);

/// vLLM's KVCacheManager, one request after the other or with several that hold their blocks. A
/// response adds blocks of its own. `held`: requests that hold blocks, of which the oldest ends
/// when there are `most_held`, or when there is no room.
struct VllmReplay {
  std::size_t most_held = 1;
  bool with_output = false;
  std::vector<RequestId> held;
  /// Requests that ended for want of room.
  std::int64_t forced = 0;
};
Replayed replay_vllm(Store& store, Streams& streams, const HashRequest& request,
                     VllmReplay& replay);

/// SGLang's trees: the prompt is computed in chunks (0: at once), each of which comes into the
/// tree. Copies that requests begin are complete when the next request comes.
Replayed replay_sglang(Store& store, Streams& streams, const HashRequest& request, Tokens block,
                       Tokens chunk, bool with_output);

}  // namespace kvtier
