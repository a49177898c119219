#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"
#include "sim/study/engines/hash_trace.hpp"

/// Calls a store in the order of engines, one request at a time and without a clock.
namespace kvtier {

/// A kind of store: the extent store, which runs use, or the reference store.
struct StoreKind {
  std::string name;
  std::unique_ptr<Store> (*make)(const StoreRules&, const Streams&, const PolicyRegistry&);
};
[[nodiscard]] std::vector<StoreKind> store_kinds();

/// The request with its response, whose tokens are a new stream. The KV of the last token is never
/// written.
Context with_response(Streams& streams, const HashRequest& request);

struct Replayed {
  Match match;
  /// Tokens of the prompt in the second pool, before the request took its KV.
  Tokens on_host{0};
  /// Blocks that the first pool evicted from the start of the replay until the prompt had its
  /// memory.
  std::int64_t evicted_for_prompt = 0;
};

/// Replays a request on a cache without held blocks: a lookup, then the insertion of all blocks.
Replayed replay_cache(Store& store, const Context& context);

/// The state of a replay on vLLM's KVCacheManager. `held` has the requests that hold blocks. The
/// oldest ends when `most_held` requests hold blocks, or when a new one has no room. With
/// `with_output`, responses add blocks.
struct VllmReplay {
  std::size_t most_held = 1;
  bool with_output = false;
  std::vector<RequestId> held;
  /// Requests that ended because another one had no room.
  std::int64_t forced = 0;
};
Replayed replay_vllm(Store& store, Streams& streams, const HashRequest& request,
                     VllmReplay& replay);

/// Replays a request on SGLang's trees. The prompt is computed in chunks (0: at once), and each
/// chunk is inserted into the tree. Copies are complete when the next request arrives.
Replayed replay_sglang(Store& store, Streams& streams, const HashRequest& request, Tokens block,
                       Tokens chunk, bool with_output);

}  // namespace kvtier
