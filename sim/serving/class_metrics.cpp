#include "sim/serving/class_metrics.hpp"

#include "sim/serving/result.hpp"

namespace kvtier {

bool ClassMetrics::next(SessionSpec& session) {
  if (!sessions_.next(session)) {
    return false;
  }
  classes_[session.id] = session.workload_class;
  return true;
}

void ClassMetrics::on_request(const RequestRecord& record) {
  if (record.measured) {
    counts_[static_cast<std::size_t>(classes_.at(record.session))].add(record);
  }
  if (observer_ != nullptr) {
    observer_->on_request(record);
  }
}

void ClassMetrics::on_measurement_restart() {
  counts_.assign(counts_.size(), TurnMetrics());
  if (observer_ != nullptr) {
    observer_->on_measurement_restart();
  }
}

void ClassMetrics::on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
                          std::int64_t batch) {
  if (observer_ != nullptr) {
    observer_->on_gpu(activity, begin, end, session, batch);
  }
}

bool ClassMetrics::wants_iterations() const {
  return observer_ != nullptr && observer_->wants_iterations();
}

void ClassMetrics::on_iteration(const Iteration& iteration) { observer_->on_iteration(iteration); }

void ClassMetrics::on_queue(std::size_t length, SimTime now) {
  if (observer_ != nullptr) {
    observer_->on_queue(length, now);
  }
}

void ClassMetrics::on_session_end(EntryKey key, SimTime now) {
  classes_.erase(static_cast<std::int64_t>(key.value));
  if (observer_ != nullptr) {
    observer_->on_session_end(key, now);
  }
}

void ClassMetrics::on_transfer(const TransferRecord& transfer) {
  if (observer_ != nullptr) {
    observer_->on_transfer(transfer);
  }
}

Json classes_report(const ClassMetrics& classes, const RunConfig& config) {
  Json json = Json::object();
  for (std::size_t i = 0; i < config.workload.mix.size(); ++i) {
    const TurnMetrics& turns = classes.counts()[i];
    Json& one = json[config.workload.mix[i].name];
    one = hits_report(turns, config.system, {});
    one["ttft_seconds"] = seconds_report(turns.ttft_ns);
  }
  return json;
}

}  // namespace kvtier
