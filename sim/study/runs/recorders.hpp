#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/file.hpp"
#include "sim/serving/instance.hpp"

/// Files that a run writes as it goes. Each appears under its name only when complete.
namespace kvtier {

/// One row a finished turn, in order of finishing.
class RequestRecorder {
 public:
  explicit RequestRecorder(const std::string& path);
  void add(const RequestRecord& record);
  /// Rows so far are of no measured turns.
  void restart_measurement();
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

/// The same of a replay of blocks, with a column for each tier's part of the prompt.
class BlockRequestRecorder {
 public:
  /// Names of the tiers, the fastest first.
  BlockRequestRecorder(const std::string& path, const std::vector<std::string>& tiers);
  void add(const BlockRequest& request);
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

/// A Chrome trace (chrome://tracing, Perfetto) with the tracks GPU, H2D, D2H, SSD read and SSD
/// write, and a counter of the queue's length. A transfer over two links is on both their tracks.
/// Spans of one track never overlap: concurrent transfers go to further rows, "H2D 2" and so on.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(const std::string& path);
  /// Begins another run in the same file, with its own tracks under this name.
  void begin_run(const std::string& name);
  void add_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
               std::int64_t batch);
  void add_queue(std::size_t length, SimTime now);
  /// Transfers come in the order of their ends.
  void add_transfer(const TransferRecord& transfer);
  void commit();

 private:
  enum Track : std::uint8_t {
    gpu,
    host_to_device,
    device_to_host,
    ssd_read,
    ssd_write,
    cxl_read,
    cxl_write
  };
  static constexpr std::size_t kTracks = 7;

  void write(const std::string& event);
  /// The number of a row of the track, named on first use, that is free from `begin` on; it is then
  /// taken until `end`.
  [[nodiscard]] std::size_t row(Track track, SimTime begin, SimTime end);
  void add_span(Track track, const char* name, SimTime begin, SimTime end,
                const std::string& arguments);

  AtomicFile file_;
  bool first_ = true;
  int process_ = 0;
  /// Ends of the last spans of a track's rows.
  std::array<std::vector<SimTime>, kTracks> rows_;
};

/// JSON lines: each decision with the time until the entry was next asked for, written when that is
/// known; null if it never was.
class DecisionRecorder final : public DecisionObserver {
 public:
  explicit DecisionRecorder(const std::string& path);
  void on_decision(const Decision& decision) override;
  void on_use(EntryKey key, SimTime now) override;
  void end_session(EntryKey key);
  void commit();

 private:
  struct Pending {
    Decision decision;
    std::int64_t number;
  };
  void write(const Pending& pending, const SimTime* next_use);

  AtomicFile file_;
  std::int64_t next_number_ = 0;
  /// Sessions that may come back. Nothing else is held, in runs of any length. Looked up by key
  /// only; never iterated unsorted.
  std::unordered_map<std::uint64_t, std::vector<Pending>> pending_;
};

/// The content of each tier over the time of a run: means between the ends of two turns, in at most
/// kOccupancySamplesMost samples. If there would be more, neighbours are joined, and later samples
/// are twice as far apart.
class OccupancyRecorder {
 public:
  /// Before the run. The instance outlives the calls to `add`.
  void watch(const Instance& instance);
  void add(SimTime now);
  /// `seconds`: where each sample ends; `bytes`: its means, by tier.
  [[nodiscard]] Json to_json() const;

 private:
  struct Sample {
    SimTime end;
    /// Integral of each tier's account from the run's begin on, byte-nanoseconds.
    std::vector<Int128> byte_ns;
  };

  const Instance* instance_ = nullptr;
  std::vector<Medium> tiers_;
  std::vector<Sample> samples_;
  /// How far samples are at least.
  SimDuration apart_;
};
inline constexpr std::size_t kOccupancySamplesMost = 240;

/// Passes a run's events on to the recorders that there are.
class Recorders final : public RunObserver {
 public:
  std::unique_ptr<RequestRecorder> requests;
  std::unique_ptr<BlockRequestRecorder> block_requests;
  std::unique_ptr<TimelineRecorder> timeline;
  std::unique_ptr<DecisionRecorder> decisions;
  std::unique_ptr<OccupancyRecorder> occupancy;

  void on_request(const RequestRecord& record) override;
  void on_block_request(const BlockRequest& request) override;
  void on_measurement_restart() override;
  void on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
              std::int64_t batch) override;
  void on_queue(std::size_t length, SimTime now) override;
  void on_transfer(const TransferRecord& transfer) override;
  void on_session_end(EntryKey key, SimTime now) override;
  [[nodiscard]] bool any() const {
    return requests || block_requests || timeline || decisions || occupancy;
  }
  void commit();
};

}  // namespace kvtier
