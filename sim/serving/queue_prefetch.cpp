#include "sim/serving/queue_prefetch.hpp"

#include <utility>

namespace kvtier {

QueuePrefetch::QueuePrefetch(Setup setup)
    : setup_(std::move(setup)),
      needs_fetch_([this](EntryId request) { return setup_.lacking(request.value).value > 0; }),
      fetch_duration_([this](EntryId request) {
        return setup_.duration(setup_.bytes_per_token * setup_.lacking(request.value).value);
      }),
      context_{.queue = setup_.queue,
               .running = setup_.running,
               .memory = setup_.memory,
               .needs_fetch = &needs_fetch_,
               .fetch_duration = &fetch_duration_} {}

void QueuePrefetch::begin_waiting(QueuePosition position, std::span<const Stretch> path,
                                  Tokens prompt) {
  waiting_.add(position, path);
  prompts_ += prompt;
  ++requests_;
}

void QueuePrefetch::note_demoted(const std::vector<Stretch>& blocks) {
  for (const Stretch& stretch : blocks) {
    const QueuePosition position = waiting_.first(stretch.stream, stretch.begin);
    if (position != kNotQueued) {
      setup_.policy->on_demoted(setup_.queue->entry_at(position), position);
    }
  }
}

std::optional<Fetch> QueuePrefetch::next(SimTime now) {
  context_.now = now;
  context_.mean_entry = setup_.reserved > Bytes(0) ? setup_.reserved
                        : requests_ > 0 ? setup_.bytes_per_token * prompts_.value / requests_
                                        : Bytes(0);
  return setup_.policy->next_fetch(context_);
}

bool QueuePrefetch::sets_timer(SimTime at) {
  const bool sets = at < asks_at_;
  asks_at_ = std::min(asks_at_, at);
  return sets;
}

void QueuePrefetch::begin(std::uint32_t place, Tokens tokens, Tokens whole, SimTime now) {
  fetching_ = place;
  const auto [fetch, is_first] = fetches_.try_emplace(place);
  counters_.unused += is_first || fetch->second.passed_over ? 0 : 1;
  fetch->second = {.tokens = tokens, .whole = whole, .began = now};
  ++counters_.begun;
}

std::pair<std::uint32_t, Tokens> QueuePrefetch::end(SimTime now) {
  const std::uint32_t place = *std::exchange(fetching_, std::nullopt);
  OfRequest& fetch = fetches_.at(place);
  fetch.ended = now;
  return {place, fetch.tokens};
}

void QueuePrefetch::pass_over(SimTime now) {
  OfRequest& fetch = fetches_.at(*fetching_);
  if (!fetch.passed_over) {
    fetch.passed_over = now;
    ++counters_.late;
  }
}

std::optional<SimDuration> QueuePrefetch::use(std::uint32_t place, Tokens found, SimTime now) {
  const auto fetch = fetches_.extract(place);
  if (fetch.empty()) {
    return std::nullopt;
  }
  const OfRequest& of = fetch.mapped();
  if (of.passed_over) {
    return now - *of.passed_over;
  }
  const SimDuration idle = now - of.ended;
  const bool is_used = found >= of.whole;
  std::int64_t& outcome = !is_used                      ? counters_.unused
                          : idle <= of.ended - of.began ? counters_.on_time
                                                        : counters_.early;
  ++outcome;
  counters_.idle_byte_ns +=
      static_cast<Int128>((setup_.bytes_per_token * of.tokens.value).value) * idle.ns;
  return std::nullopt;
}

}  // namespace kvtier
