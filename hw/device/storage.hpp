#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/core/units.hpp"

/// Reads and writes of files on a drive without the page cache (O_DIRECT). Two engines share one
/// interface: io_uring, and threads with pread and pwrite for systems that lack or forbid io_uring.
namespace kvtier {

/// Offsets, sizes and memory of every request are multiples of it.
inline constexpr std::int64_t kStorageAlignment = 4096;

/// A test file without a name. It is removed with its descriptor, even if the program is killed.
class ScratchFile {
 public:
  /// Makes a file in the folder `directory` for `size` bytes, rounded up to the alignment, and
  /// writes its first block. Throws ConfigError if there is no such folder. Throws DeviceError if
  /// the folder is in memory (tmpfs), its file system lacks O_DIRECT, cannot be written, or would
  /// have less than `spare` left.
  ScratchFile(const std::string& directory, Bytes size, Bytes spare = Bytes(0));
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] Bytes size() const { return size_; }
  /// The type of the file system and, if the kernel tells, the drive's model.
  [[nodiscard]] const std::string& file_system() const { return file_system_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  /// Neighbouring requests that the drive has merged since the system started, or 0 if the kernel
  /// does not tell.
  [[nodiscard]] std::int64_t merged_requests() const;

 private:
  int descriptor_ = -1;
  Bytes size_;
  Bytes capacity_;
  std::string file_system_;
  /// /sys/dev/block/MAJOR:MINOR of the drive or partition.
  std::string block_device_;
};

enum class IoKind { read, write };

struct IoRequest {
  IoKind kind = IoKind::read;
  /// Offset in the file.
  std::int64_t offset = 0;
  /// Address in the engine's memory.
  std::byte* data = nullptr;
  Bytes bytes;
  /// Returned with the completion.
  std::uint64_t tag = 0;
};

struct IoCompletion {
  std::uint64_t tag = 0;
  /// When it was seen, by std::chrono::steady_clock.
  std::int64_t at_ns = 0;
};

/// Reads and writes one file. Requests complete whole: partial ones are continued. An error throws
/// DeviceError once all requests in flight have ended. An engine is used by one thread at a time.
class StorageEngine {
 public:
  virtual ~StorageEngine() = default;
  /// "io_uring (registered file and buffers)", "threads (pread, pwrite)", ...
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// At most queue_depth requests are in flight at any time.
  virtual void submit(std::span<const IoRequest> requests) = 0;
  /// Waits for at least one completion, if any request is in flight, and returns all there are.
  virtual std::vector<IoCompletion> wait() = 0;
  [[nodiscard]] virtual std::int64_t in_flight() const = 0;
  /// fdatasync; nothing may be in flight.
  virtual void flush() = 0;
};

enum class StorageEngineKind { automatic, uring, threads };

struct StorageOptions {
  StorageEngineKind kind = StorageEngineKind::automatic;
  std::int64_t queue_depth = 32;
  /// All memory of the requests, aligned, at least one block.
  std::span<std::byte> memory;
  /// Ask for a kernel thread that submits (SQPOLL), and for polled completions (IOPOLL). Each is
  /// taken only if a test request works with it.
  bool submission_polling = false;
  bool completion_polling = false;
};

/// Whether this machine can spare a processor for polling.
[[nodiscard]] bool has_processors_for_polling();

/// The file's first block has been written. `automatic` takes io_uring if a test request works and
/// threads otherwise; the reason is in the engine's name. `uring` throws DeviceError instead.
[[nodiscard]] std::unique_ptr<StorageEngine> open_storage_engine(int descriptor,
                                                                 const StorageOptions& options);

/// Fills the first `size` bytes of the file with the data that `data` returns for each offset, one
/// MiB at a time, and flushes. First writes to unallocated blocks are slower, so measurements use a
/// filled file. No other request may be in flight. `check` is called repeatedly; its exception ends
/// the writing.
void write_whole(StorageEngine& engine, Bytes size,
                 const std::function<std::byte*(std::int64_t offset)>& data,
                 const std::function<void()>& check);

/// The system calls of the thread engine. Tests replace them.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  /// Like pread and pwrite: bytes done, or -1 and errno.
  virtual std::int64_t read(std::byte* data, std::int64_t bytes, std::int64_t offset) = 0;
  virtual std::int64_t write(const std::byte* data, std::int64_t bytes, std::int64_t offset) = 0;
  virtual int sync() = 0;
};
[[nodiscard]] std::unique_ptr<StorageEngine> make_thread_engine(std::unique_ptr<FileCalls> calls,
                                                                std::int64_t queue_depth,
                                                                std::string name);

}  // namespace kvtier
