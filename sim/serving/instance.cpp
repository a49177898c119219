#include "sim/serving/instance.hpp"

#include "sim/core/assert.hpp"
#include "sim/serving/block_batcher.hpp"
#include "sim/serving/prefill_batches.hpp"
#include "sim/serving/prefill_first.hpp"

namespace kvtier {
namespace {

std::unique_ptr<Batcher> make_batcher(const Instance::Setup& setup, Requests& requests) {
  if (setup.config->system.blocks) {
    const BlockBatcher::Setup of_blocks{.config = setup.config,
                                        .registry = setup.registry,
                                        .backend = setup.backend,
                                        .requests = &requests,
                                        .decisions = setup.decisions,
                                        .plain_store = setup.plain_store,
                                        .store = setup.store};
    if (setup.config->system.batching == Batching::separate &&
        setup.config->system.blocks->unit == EvictionUnit::node) {
      return std::make_unique<PrefillBatches>(of_blocks);
    }
    return std::make_unique<BlockBatcher>(of_blocks);
  }
  return std::make_unique<PrefillFirst>(PrefillFirst::Setup{.config = setup.config,
                                                            .registry = setup.registry,
                                                            .backend = setup.backend,
                                                            .requests = &requests,
                                                            .decisions = setup.decisions});
}

bool is_users(Completion completion) {
  return completion.kind == CompletionKind::timer && completion.payload != kBatcherTimer &&
         completion.payload != kDeadlineTimer;
}

}  // namespace

Instance::Instance(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_({.config = setup.config,
                 .registry = setup.registry,
                 .backend = setup.backend,
                 .sessions = setup.sessions,
                 .observer = setup.observer,
                 .progress = setup.progress,
                 .dispatcher = setup.dispatcher,
                 .load = setup.load}),
      batcher_(make_batcher(setup, requests_)) {
  requests_.on_measurement_begin = [this] {
    tiers_before_ = tier_counters();
    preemptions_before_ = batcher_->preemptions();
    prefetches_before_ = batcher_->prefetches();
    if (on_measurement_begin) {
      on_measurement_begin();
    }
  };
  requests_.on_measurement_end = [this] {
    tiers_after_ = tier_counters();
    preemptions_after_ = batcher_->preemptions();
    prefetches_ = batcher_->prefetches() - prefetches_before_;
    if (on_measurement_end) {
      on_measurement_end();
    }
  };
}

void Instance::on_completion(Completion completion) {
  if (is_users(completion)) {
    const SessionSlot slot = requests_.begin_turn(completion.payload);
    batcher_->on_turn(slot);
    batcher_->on_enqueued(slot, requests_.enqueue(slot));
  } else {
    batcher_->on_completion(completion);
  }
}

void Instance::run() {
  requests_.begin();
  while (requests_.any_left()) {
    on_completion(backend_.wait());
  }
  requests_.end_measurement(requests_.last_finish());
  while (backend_.pending()) {
    const Completion completion = backend_.wait();
    KVTIER_ASSERT(completion.kind == CompletionKind::transfer ||
                      (completion.kind == CompletionKind::timer && !is_users(completion)),
                  "only transfers and the batcher's timers outlast the last turn");
    batcher_->on_completion(completion);
  }
  requests_.check_finished();
  batcher_->check_invariants();
}

/// Batchers count bytes when a transfer starts, or when a request that will start it is admitted.
/// Bytes of a transfer behind HBM count here when they move.
std::vector<TierCounters> Instance::tier_counters() const {
  std::vector<TierCounters> counters;
  for (std::size_t i = 0; i < batcher_->tier_count(); ++i) {
    TierCounters& tier = counters.emplace_back(batcher_->counters(i));
    const Medium medium = batcher_->medium(i);
    if (medium == Medium::hbm) {
      continue;
    }
    for (std::size_t other = 0; other < kMedia; ++other) {
      tier.in_flight += backend_.in_flight(static_cast<Medium>(other), medium);
      tier.read -= backend_.in_flight(medium, static_cast<Medium>(other));
    }
    tier.written -= tier.in_flight;
  }
  return counters;
}

}  // namespace kvtier
