#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/serving/metrics.hpp"
#include "sim/serving/requests.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Metrics of the requests of each workload of a mix. Stands between a run, its sessions and its
/// observer, so that a run without a mix does nothing for it.
class ClassMetrics final : public RunObserver, public SessionSource {
 public:
  /// `sessions` outlive this; `observer`, which may be null, is told of all.
  ClassMetrics(std::size_t classes, SessionSource& sessions, RunObserver* observer)
      : sessions_(sessions), observer_(observer), counts_(classes) {}

  bool next(SessionSpec& session) override;
  [[nodiscard]] Streams* streams() override { return sessions_.streams(); }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return sessions_.named_blocks();
  }

  void on_request(const RequestRecord& record) override;
  void on_measurement_restart() override;
  void on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
              std::int64_t batch) override;
  [[nodiscard]] bool wants_iterations() const override;
  void on_iteration(const Iteration& iteration) override;
  void on_queue(std::size_t length, SimTime now) override;
  void on_session_end(EntryKey key, SimTime now) override;
  void on_transfer(const TransferRecord& transfer) override;

  /// By class.
  [[nodiscard]] const std::vector<TurnMetrics>& counts() const { return counts_; }

 private:
  SessionSource& sessions_;
  RunObserver* observer_;
  std::vector<TurnMetrics> counts_;
  /// Sessions that have begun and not ended.
  std::unordered_map<std::int64_t, std::int32_t> classes_;
};

/// By the name of the class: the hits and `ttft_seconds` as in all `metrics`.
[[nodiscard]] Json classes_report(const ClassMetrics& classes, const RunConfig& config);

}  // namespace kvtier
