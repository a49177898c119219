#include "sim/study/engines/replays.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/untimed_steps.hpp"

namespace kvtier {

std::vector<StoreKind> store_kinds() {
  return {{"extents", make_store}, {"reference", make_reference_store}};
}

Replayed replay_cache(Store& store, const Context& context) {
  Replayed replayed;
  const auto request = store.acquire(context, context.tokens, replayed.match);
  store.release(request.value());
  replayed.evicted_for_prompt = store.counters(0).evicted;
  return replayed;
}

Context with_response(Streams& streams, const HashRequest& request) {
  const StreamId response = streams.open(request.stream, request.prompt);
  return {response, request.prompt + std::max(request.output, Tokens(1)) - Tokens(1)};
}

namespace {

void must(bool done, const HashRequest& request) {
  if (!done) {
    throw ConfigError(fmt::format("a request of {} tokens and a response of {} has no room",
                                  request.prompt.value, request.output.value));
  }
}

}  // namespace

Replayed replay_vllm(Store& store, Streams& streams, const HashRequest& request,
                     VllmReplay& replay) {
  const auto end_oldest = [&] {
    store.release(replay.held.front());
    replay.held.erase(replay.held.begin());
  };
  if (replay.held.size() == replay.most_held) {
    end_oldest();
  }
  Replayed replayed;
  auto held = store.acquire(request.context(), request.prompt, replayed.match);
  while (!held) {
    must(!replay.held.empty(), request);
    end_oldest();
    ++replay.forced;
    held = store.acquire(request.context(), request.prompt, replayed.match);
  }
  replayed.evicted_for_prompt = store.counters(0).evicted;
  if (replay.with_output) {
    must(store.grow(*held, with_response(streams, request)), request);
  }
  replay.held.push_back(*held);
  if (replay.most_held == 1) {
    end_oldest();
  }
  return replayed;
}

Replayed replay_sglang(Store& store, Streams& streams, const HashRequest& request, Tokens block,
                       Tokens chunk, bool with_output) {
  const auto chunk_end = [&](Tokens begin) {
    const std::int64_t end = begin.value + chunk.value;
    return chunk.value == 0 || end >= request.prompt.value
               ? request.prompt
               : Tokens(end / block.value * block.value);
  };
  finish_copies(store);
  Replayed replayed;
  const Match before = store.match(request.context());
  replayed.on_host = before.by_pool.size() > 1 ? before.by_pool[1] : Tokens(0);
  Tokens end = chunk_end(before.tokens);
  const auto held = store.acquire(request.context(), end, replayed.match);
  must(held.has_value(), request);
  while (end < request.prompt) {
    store.computed(*held, end);
    end = chunk_end(end);
    must(store.grow(*held, {request.stream, end}), request);
  }
  if (with_output) {
    store.computed(*held, request.prompt);
    must(store.grow(*held, with_response(streams, request)), request);
  }
  store.release(*held);
  replayed.evicted_for_prompt = store.counters(0).evicted;
  return replayed;
}

}  // namespace kvtier
