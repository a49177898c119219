#include "hw/device/uring_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

/// Throws for calls that return a negative error number.
void check(const char* call, int result) {
  if (result < 0) {
    throw DeviceError(fmt::format("{}: {} ({})", call, std::strerror(-result), result));
  }
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class UringEngine final : public StorageEngine {
 public:
  UringEngine(int descriptor, const StorageOptions& options, bool submission_polling,
              bool completion_polling)
      : descriptor_(descriptor),
        memory_(options.memory),
        submission_polling_(submission_polling),
        requests_(static_cast<std::size_t>(options.queue_depth)) {
    io_uring_params parameters{};
    if (completion_polling) {
      parameters.flags |= IORING_SETUP_IOPOLL;
    }
    if (submission_polling) {
      constexpr unsigned kIdleMs = 50;
      parameters.flags |= IORING_SETUP_SQPOLL;
      parameters.sq_thread_idle = kIdleMs;
    }
    const int made =
        io_uring_queue_init_params(static_cast<unsigned>(options.queue_depth), &ring_, &parameters);
    check("io_uring_queue_init", made);
    try {
      check("io_uring_register_files", io_uring_register_files(&ring_, &descriptor_, 1));
      name_ = "io_uring (registered file";
      // Registration needs locked memory, which a container may refuse. Requests work without it.
      const iovec memory{.iov_base = memory_.data(), .iov_len = memory_.size()};
      buffers_registered_ = io_uring_register_buffers(&ring_, &memory, 1) == 0;
      name_ += buffers_registered_ ? " and buffers" : ", buffers not registered";
      name_ += completion_polling ? ", polled completions" : "";
      name_ += submission_polling ? ", polled submissions" : "";
      name_ += ")";
    } catch (...) {
      io_uring_queue_exit(&ring_);
      throw;
    }
    for (std::uint32_t i = 0; i < requests_.size(); ++i) {
      free_.push_back(i);
    }
  }
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;
  ~UringEngine() override {
    try {
      drain();
    } catch (const DeviceError&) {  // the ring ends either way
    }
    io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t in_flight() const override {
    return static_cast<std::int64_t>(requests_.size() - free_.size());
  }

  void submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      KVTIER_ASSERT(!free_.empty(), "no more requests are in flight than the queue is deep");
      KVTIER_ASSERT(request.data >= memory_.data() &&
                        request.data + request.bytes.value <= memory_.data() + memory_.size(),
                    "a request stays in the engine's memory");
      const std::uint32_t slot = free_.back();
      free_.pop_back();
      requests_[slot] = {request, 0};
      prepare(slot);
      // Requests are submitted one by one: the kernel would hold a batch back until its last
      // request.
      flush_submissions();
    }
  }

  std::vector<IoCompletion> wait() override {
    std::vector<IoCompletion> done;
    while (done.empty() && in_flight() > 0) {
      io_uring_cqe* entry = nullptr;
      const int result = io_uring_wait_cqe(&ring_, &entry);
      if (result == -EINTR) {
        continue;
      }
      check("io_uring_wait_cqe", result);
      const std::int64_t at = now_ns();
      bool resubmit = false;
      while (entry != nullptr) {
        resubmit |= finish(static_cast<std::uint32_t>(entry->user_data), entry->res, at, done);
        io_uring_cqe_seen(&ring_, entry);
        entry = nullptr;
        if (io_uring_peek_cqe(&ring_, &entry) != 0) {
          entry = nullptr;
        }
      }
      if (resubmit) {
        flush_submissions();
      }
    }
    if (!failure_.empty()) {
      const std::string failure = std::exchange(failure_, "");
      drain();
      throw DeviceError(failure);
    }
    return done;
  }

  void flush() override {
    KVTIER_ASSERT(in_flight() == 0, "a flush follows the writes");
    if (::fdatasync(descriptor_) != 0) {
      throw DeviceError(fmt::format("fdatasync: {}", std::strerror(errno)));
    }
  }

 private:
  struct Request {
    IoRequest request;
    std::int64_t done = 0;
  };

  void prepare(std::uint32_t slot) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    KVTIER_ASSERT(entry != nullptr, "the ring is as deep as the queue");
    const auto& [request, done] = requests_[slot];
    std::byte* const data = request.data + done;
    const auto bytes = static_cast<unsigned>(request.bytes.value - done);
    const auto offset = static_cast<__u64>(request.offset + done);
    constexpr int kFile = 0;  // the first and only registered one
    if (buffers_registered_ && request.kind == IoKind::read) {
      io_uring_prep_read_fixed(entry, kFile, data, bytes, offset, 0);
    } else if (buffers_registered_) {
      io_uring_prep_write_fixed(entry, kFile, data, bytes, offset, 0);
    } else if (request.kind == IoKind::read) {
      io_uring_prep_read(entry, kFile, data, bytes, offset);
    } else {
      io_uring_prep_write(entry, kFile, data, bytes, offset);
    }
    entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = slot;
    ++prepared_;
  }

  void flush_submissions() {
    while (prepared_ > 0) {
      const int result = io_uring_submit(&ring_);
      if (result == -EINTR || result == -EAGAIN || result == -EBUSY) {
        continue;
      }
      check("io_uring_submit", result);
      prepared_ -= submission_polling_ ? prepared_ : result;
    }
  }

  /// Returns true if the rest of a partial request had to be prepared again.
  bool finish(std::uint32_t slot, int result, std::int64_t at, std::vector<IoCompletion>& done) {
    Request& request = requests_[slot];
    const char* const word = request.request.kind == IoKind::read ? "read" : "write";
    if (result == -EINTR || result == -EAGAIN) {
      prepare(slot);
      return true;
    }
    if (result <= 0) {
      if (failure_.empty()) {
        failure_ = result == 0
                       ? fmt::format("io_uring {}: end of file at {}", word, request.request.offset)
                       : fmt::format("io_uring {}: {} ({})", word, std::strerror(-result), result);
      }
      free_.push_back(slot);
      return false;
    }
    request.done += result;
    if (request.done < request.request.bytes.value) {
      prepare(slot);
      return true;
    }
    done.push_back({request.request.tag, at});
    free_.push_back(slot);
    return false;
  }

  /// Waits for all requests in flight and ignores their results: memory must not be written to
  /// later.
  void drain() {
    std::vector<IoCompletion> ignored;
    while (in_flight() > 0) {
      io_uring_cqe* entry = nullptr;
      const int result = io_uring_wait_cqe(&ring_, &entry);
      if (result == -EINTR) {
        continue;
      }
      check("io_uring_wait_cqe", result);
      free_.push_back(static_cast<std::uint32_t>(entry->user_data));
      io_uring_cqe_seen(&ring_, entry);
    }
  }

  int descriptor_;
  std::span<std::byte> memory_;
  bool submission_polling_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> free_;
  std::string name_;
  std::string failure_;
  bool buffers_registered_ = false;
  int prepared_ = 0;
  io_uring ring_{};
};

/// Some systems create rings and refuse every request, so one test request has to complete.
std::unique_ptr<UringEngine> try_engine(int descriptor, const StorageOptions& options,
                                        bool submission_polling, bool completion_polling,
                                        std::string& reason) {
  try {
    auto engine =
        std::make_unique<UringEngine>(descriptor, options, submission_polling, completion_polling);
    const IoRequest request{.data = options.memory.data(), .bytes = Bytes(kStorageAlignment)};
    engine->submit({&request, 1});
    engine->wait();
    return engine;
  } catch (const DeviceError& error) {
    reason = error.what();
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<StorageEngine> open_uring_engine(int descriptor, const StorageOptions& options,
                                                 std::string& reason) {
  const struct {
    bool submission;
    bool completion;
  } modes[] = {{options.submission_polling, options.completion_polling},
               {false, options.completion_polling},
               {options.submission_polling, false},
               {false, false}};
  for (const auto& mode : modes) {
    auto engine = try_engine(descriptor, options, mode.submission, mode.completion, reason);
    if (engine != nullptr) {
      reason.clear();
      return engine;
    }
  }
  return nullptr;
}

}  // namespace kvtier
