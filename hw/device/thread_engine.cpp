#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "hw/device/storage.hpp"
#include "hw/device/task_threads.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

class ThreadEngine final : public StorageEngine {
 public:
  ThreadEngine(std::unique_ptr<FileCalls> calls, std::int64_t queue_depth, std::string name)
      : calls_(std::move(calls)),
        name_(std::move(name)),
        queue_depth_(queue_depth),
        threads_(queue_depth) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t in_flight() const override { return in_flight_; }

  void submit(std::span<const IoRequest> requests) override {
    in_flight_ += static_cast<std::int64_t>(requests.size());
    KVTIER_ASSERT(in_flight_ <= queue_depth_,
                  "no more requests are in flight than the queue is deep");
    for (const IoRequest& request : requests) {
      threads_.add([this, request] { complete(request); });
    }
    threads_.wake();
  }

  std::vector<IoCompletion> wait() override {
    std::vector<IoCompletion> done;
    if (in_flight_ == 0) {
      return done;
    }
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !completed_.empty() || ended_in_error_ > 0; });
    if (ended_in_error_ > 0) {
      done_.wait(lock, [this] {
        return static_cast<std::int64_t>(completed_.size()) + ended_in_error_ == in_flight_;
      });
      in_flight_ = ended_in_error_ = 0;
      completed_.clear();
      throw DeviceError(failure_);
    }
    done.swap(completed_);
    in_flight_ -= static_cast<std::int64_t>(done.size());
    return done;
  }

  void flush() override {
    KVTIER_ASSERT(in_flight_ == 0, "a flush follows the writes");
    if (calls_->sync() != 0) {
      throw DeviceError(fmt::format("fdatasync: {}", std::strerror(errno)));
    }
  }

 private:
  void complete(const IoRequest& request) {
    const std::string failure = transfer(request);
    const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
    const std::lock_guard lock(mutex_);
    if (failure.empty()) {
      completed_.push_back({request.tag, at.count()});
    } else {
      ++ended_in_error_;
      failure_ = failure;
    }
    done_.notify_one();
  }

  /// Continues partial transfers. Returns the error, or an empty text.
  std::string transfer(const IoRequest& request) {
    const bool reads = request.kind == IoKind::read;
    const char* const call = reads ? "pread" : "pwrite";
    std::int64_t done = 0;
    while (done < request.bytes.value) {
      const std::int64_t left = request.bytes.value - done;
      const std::int64_t result =
          reads ? calls_->read(request.data + done, left, request.offset + done)
                : calls_->write(request.data + done, left, request.offset + done);
      if (result < 0 && errno == EINTR) {
        continue;
      }
      if (result < 0) {
        return fmt::format("{}: {} (-{})", call, std::strerror(errno), errno);
      }
      if (result == 0) {
        return fmt::format("{}: end of file at {}", call, request.offset + done);
      }
      done += result;
    }
    return "";
  }

  std::unique_ptr<FileCalls> calls_;
  std::string name_;
  std::int64_t queue_depth_;
  std::int64_t in_flight_ = 0;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<IoCompletion> completed_;
  std::int64_t ended_in_error_ = 0;
  std::string failure_;
  /// The last member, so that its threads end before the members that they use.
  TaskThreads threads_;
};

}  // namespace

std::unique_ptr<StorageEngine> make_thread_engine(std::unique_ptr<FileCalls> calls,
                                                  std::int64_t queue_depth, std::string name) {
  return std::make_unique<ThreadEngine>(std::move(calls), queue_depth, std::move(name));
}

}  // namespace kvtier
