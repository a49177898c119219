#include "hw/device/cpu_device.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "hw/device/blas.hpp"
#include "hw/device/host_memory.hpp"
#include "hw/device/processors.hpp"
#include "hw/device/task_threads.hpp"
#include "hw/device/thread_pool.hpp"
#include "kernels/row_functions.hpp"
#include "kernels/uniform_numbers.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/quantity.hpp"

namespace kvtier {
namespace {

using Clock = std::chrono::steady_clock;

struct CpuEvent final : Event {
  /// Counts a recording. A wait needs its number, because it does not wait for later ones.
  std::int64_t record() {
    const std::lock_guard lock(mutex);
    return ++recorded;
  }
  [[nodiscard]] std::int64_t last() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
  /// Notifies before it unlocks, because the waiting thread may then destroy the event.
  void reach(std::int64_t recording) {
    const std::lock_guard lock(mutex);
    at = Clock::now();
    reached = recording;
    changed.notify_all();
  }
  void wait_for(std::int64_t recording) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= recording; });
  }
  void synchronize() override { wait_for(last()); }

  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t recorded = 0;
  std::int64_t reached = 0;
  Clock::time_point at;
};

class CpuStream final : public Stream {
 public:
  void push(std::function<void()> task) {
    threads_.add(std::move(task));
    threads_.wake();
  }
  void synchronize() override { threads_.drain(); }

 private:
  TaskThreads threads_;
};

std::string first_line_with(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) {
      const std::size_t at = line.find_first_not_of(" \t:", key.size());
      return at == std::string::npos ? "" : line.substr(at);
    }
  }
  return "";
}

/// The largest data cache of the first processor.
Bytes largest_cache() {
  namespace fs = std::filesystem;
  std::int64_t largest = 0;
  std::error_code none;
  for (const fs::directory_entry& entry :
       fs::directory_iterator("/sys/devices/system/cpu/cpu0/cache", none)) {
    std::ifstream in(entry.path() / "size");
    std::int64_t size = 0;
    char unit = ' ';
    if (in >> size >> unit) {
      largest = std::max(largest, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
    }
  }
  constexpr std::int64_t kUsual = std::int64_t{32} << 20;
  return Bytes(largest > 0 ? largest : kUsual);
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::int64_t threads) : pool_(threads > 0 ? threads : available_processors()) {
    info_.kind = "cpu";
    info_.name = first_line_with("/proc/cpuinfo", "model name");
    if (info_.name.empty()) {
      info_.name = "unknown processor";
    }
    if (pool_.threads() != std::thread::hardware_concurrency()) {
      info_.name +=
          fmt::format(", {} of {} threads", pool_.threads(), std::thread::hardware_concurrency());
    }
    utsname system{};
    ::uname(&system);
    info_.driver = fmt::format("{} {}", system.sysname, system.release);
    // "OpenBLAS 0.3.21 NO_AFFINITY ... MAX_THREADS=64"; the name of the chosen core is more useful.
    std::string build = blas_.config();
    build = build.substr(build.find(' ') + 1);
    info_.libraries = {
        {"openblas", fmt::format("{} ({})", build.substr(0, build.find(' ')), blas_.core_name())}};
    info_.processors = pool_.threads();
    info_.memory = host_memory();
    info_.element_type = ElementType::float32;
    info_.element = Bytes(sizeof(float));
    info_.limits = measure_limits();
  }

  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] Bytes free_memory(MemoryKind) const override { return available_host_memory(); }

  [[nodiscard]] std::unique_ptr<Stream> make_stream(StreamKind /*kind*/) override {
    return std::make_unique<CpuStream>();
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<CpuEvent>();
  }
  void record(Event& event, Stream& stream) override {
    auto& point = static_cast<CpuEvent&>(event);
    push(stream, [&point, recording = point.record()] { point.reach(recording); });
  }
  void wait(Stream& stream, Event& event) override {
    auto& point = static_cast<CpuEvent&>(event);
    push(stream, [&point, recording = point.last()] { point.wait_for(recording); });
  }
  [[nodiscard]] double seconds_between(const Event& first, const Event& last) const override {
    return std::chrono::duration<double>(static_cast<const CpuEvent&>(last).at -
                                         static_cast<const CpuEvent&>(first).at)
        .count();
  }

  void copy(void* to, const void* from, Bytes bytes, Stream& stream) override {
    if (bytes > Bytes()) {  // empty copies may have null addresses
      push(stream, [=] { std::memcpy(to, from, static_cast<std::size_t>(bytes.value)); });
    }
  }
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    push(stream, [all = std::vector(pieces.begin(), pieces.end())] {
      for (const CopyPiece& piece : all) {
        for_each_row(piece, [&](void* to, const void* from) {
          std::memcpy(to, from, static_cast<std::size_t>(piece.bytes.value));
        });
      }
    });
  }
  void gather(const RowWork& work, Stream& stream) override {
    for_rows(work, stream, [work](std::int64_t i, std::int64_t slot) {
      std::memcpy(static_cast<std::byte*>(work.to) + work.from_packed(i).value,
                  static_cast<const std::byte*>(work.from) + work.from_slot(slot).value,
                  static_cast<std::size_t>(work.row.value));
    });
  }
  void scatter(const RowWork& work, Stream& stream) override {
    for_rows(work, stream, [work](std::int64_t i, std::int64_t slot) {
      std::memcpy(static_cast<std::byte*>(work.to) + work.from_slot(slot).value,
                  static_cast<const std::byte*>(work.from) + work.from_packed(i).value,
                  static_cast<std::size_t>(work.row.value));
    });
  }
  void fold(const RowWork& work, Stream& stream) override {
    for_rows(work, stream, [work](std::int64_t i, std::int64_t slot) {
      constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::uint32_t));
      static_cast<std::uint32_t*>(work.to)[i] = kernels::fold_row(
          reinterpret_cast<const std::uint32_t*>(static_cast<const std::byte*>(work.from) +
                                                 work.from_slot(slot).value),
          work.row.value / kWord);
    });
  }
  void gemm(const GemmWork& work, Stream& stream) override {
    push(stream, [this, work] {
      // The longer side of the output is divided, in whole vectors. Each thread then reads the
      // whole matrix of the shorter side.
      constexpr std::int64_t kVector = 16;
      const bool by_rows = work.m >= work.n;
      const std::int64_t side = by_rows ? work.m : work.n;
      const std::int64_t vectors = (side + kVector - 1) / kVector;
      const std::int64_t parts = std::min(pool_.threads(), vectors);
      const double operations = 2.0 * static_cast<double>(work.m) * static_cast<double>(work.n) *
                                static_cast<double>(work.k);
      share(parts, operations, [&](std::int64_t part) {
        const std::int64_t first = part * vectors / parts * kVector;
        const std::int64_t count = std::min(side, (part + 1) * vectors / parts * kVector) - first;
        const std::int64_t row = by_rows ? first : 0;
        const std::int64_t column = by_rows ? 0 : first;
        const auto size = [](std::int64_t n) { return static_cast<blasint>(n); };
        blas_.sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size(by_rows ? count : work.m),
                    size(by_rows ? work.n : count), size(work.k), 1,
                    static_cast<const float*>(work.input) + row * work.k, size(work.k),
                    static_cast<const float*>(work.weights) + column * work.k, size(work.k), 0,
                    static_cast<float*>(work.output) + row * work.n + column, size(work.n));
      });
    });
  }
  void attention(const AttentionWork& work, Stream& stream) override {
    if (!kernels::is_valid(work.shape)) {
      throw DeviceError(fmt::format(
          "attention: {} query heads on {} KV heads of width {} are not what the kernel takes",
          work.shape.query_heads, work.shape.kv_heads, work.shape.head_dim));
    }
    if (work.kv_type != KvType::element) {
      throw DeviceError("attention: the host has keys and values in float32 alone");
    }
    std::shared_ptr<const kernels::RotaryTable> table;
    if (work.rope_base > 0) {
      table = rotary_table(work.shape.head_dim, work.rope_base, work.context_max);
    }
    push(stream, [this, work, table] {
      attend(work, table != nullptr ? table->angles() : kernels::RotaryAngles{});
    });
  }
  void rope(const RopeWork& work, Stream& stream) override {
    const std::int64_t end =
        work.positions != nullptr ? work.positions_end : work.first_position + work.rows.rows;
    for_rows(work.rows, stream,
             [work, table = rotary_table(work.head_dim, work.base, end)](std::int64_t i,
                                                                         std::int64_t slot) {
               const std::int64_t position =
                   work.positions != nullptr ? work.positions[i] : work.first_position + i;
               const std::int64_t angle = position * work.head_dim / 2;
               const auto* const from = reinterpret_cast<const float*>(
                   static_cast<const std::byte*>(work.rows.from) + work.rows.from_slot(slot).value);
               auto* const to = reinterpret_cast<float*>(static_cast<std::byte*>(work.rows.to) +
                                                         work.rows.from_packed(i).value);
               kernels::rotate(from, to, work.heads, work.head_dim, table->angles().cosines + angle,
                               table->angles().sines + angle);
             });
  }
  void row_function(const RowFunctionWork& work, Stream& stream) override {
    push(stream, [this, work] {
      const auto* const input = static_cast<const float*>(work.input);
      const std::int64_t width = work.width;
      const double bytes = static_cast<double>(work.rows * width) * sizeof(float);
      switch (work.function) {
        case RowFunction::norm:
          share(work.rows, bytes, [&](std::int64_t i) {
            kernels::rms_norm(input + i * width, static_cast<float*>(work.output) + i * width,
                              width);
          });
          break;
        case RowFunction::gated_activation:
          share(work.rows, bytes, [&](std::int64_t i) {
            kernels::gated_activation(input + i * 2 * width,
                                      static_cast<float*>(work.output) + i * width, width);
          });
          break;
        case RowFunction::activation:
          share(work.rows, bytes, [&](std::int64_t i) {
            kernels::activation(input + i * width, static_cast<float*>(work.output) + i * width,
                                width);
          });
          break;
        case RowFunction::add:
          share(work.rows, bytes, [&](std::int64_t i) {
            kernels::add(input + i * width, static_cast<const float*>(work.other) + i * width,
                         static_cast<float*>(work.output) + i * width, width);
          });
          break;
        case RowFunction::sample:
          share(work.rows, bytes, [&](std::int64_t i) {
            static_cast<std::int32_t*>(work.output)[i] =
                kernels::index_of_largest(input + i * width, width);
          });
          break;
      }
    });
  }
  void busy(double seconds, Stream& stream) override {
    push(stream, [seconds] {
      const auto end = Clock::now() + std::chrono::duration<double>(seconds);
      while (Clock::now() < end) {
      }
    });
  }

  void fill_uniform(void* to, std::int64_t count, float bound, std::uint64_t seed,
                    Stream& stream) override {
    push(stream, [this, to, count, bound, seed] {
      constexpr std::int64_t kPart = std::int64_t{1} << 16;
      const auto bytes = static_cast<double>(count) * sizeof(float);
      share((count + kPart - 1) / kPart, bytes, [&](std::int64_t part) {
        for (std::int64_t i = part * kPart; i < std::min(count, (part + 1) * kPart); ++i) {
          static_cast<float*>(to)[i] =
              bound * kernels::uniform_at(seed, static_cast<std::uint64_t>(i));
        }
      });
    });
  }
  void write_elements(void* to, std::span<const float> values) override {
    std::ranges::copy(values, static_cast<float*>(to));
  }
  void read_elements(std::span<float> values, const void* from) override {
    std::copy_n(static_cast<const float*>(from), values.size(), values.data());
  }

 private:
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;

  /// Large pages save address translation in kernels, and drives get requests in fewer pieces.
  static bool in_large_pages(MemoryKind kind, Bytes size) {
    return kind == MemoryKind::device ||
           (kind == MemoryKind::pinned && size.value >= static_cast<std::int64_t>(kLargePage));
  }

  static std::size_t mapped_size(MemoryKind kind, Bytes size) {
    const std::size_t unit =
        in_large_pages(kind, size) ? kLargePage : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto bytes = std::max<std::size_t>(1, static_cast<std::size_t>(size.value));
    return (bytes + unit - 1) / unit * unit;
  }

  [[nodiscard]] std::byte* allocate(MemoryKind kind, Bytes size) override {
    // A system that overcommits memory would kill the program instead of refusing.
    if (size > free_memory(kind)) {
      throw DeviceError(fmt::format("cpu: cannot allocate {}: {} of memory are free",
                                    format_quantity(size), format_quantity(free_memory(kind))));
    }
    const std::size_t bytes = mapped_size(kind, size);
    void* const data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw DeviceError(
          fmt::format("cpu: mmap of {}: {}", format_quantity(size), std::strerror(errno)));
    }
    if (in_large_pages(kind, size)) {
      ::madvise(data, bytes, MADV_HUGEPAGE);  // if it is refused, pages are small
    }
    if (kind != MemoryKind::pageable) {
      std::memset(data, 0, bytes);
    }
    return static_cast<std::byte*>(data);
  }
  void release(MemoryKind kind, std::byte* data, Bytes size) noexcept override {
    ::munmap(data, mapped_size(kind, size));
  }

  static void push(Stream& stream, std::function<void()> task) {
    static_cast<CpuStream&>(stream).push(std::move(task));
  }

  /// Runs body(0) .. body(count - 1). Threads share them if the bytes or operations are worth
  /// waking them.
  template <class Body>
  void share(std::int64_t count, double work, const Body& body) {
    constexpr double kWorthWaking = 256 * 1024;
    if (work < kWorthWaking || count < 2) {
      for (std::int64_t i = 0; i < count; ++i) {
        body(i);
      }
      return;
    }
    constexpr std::int64_t kPartsPerThread = 8;
    const std::int64_t parts = std::min(count, pool_.threads() * kPartsPerThread);
    pool_.run(parts, [&](std::int64_t part) {
      for (std::int64_t i = part * count / parts; i < (part + 1) * count / parts; ++i) {
        body(i);
      }
    });
  }

  /// Calls body(i, slot) for the rows of `work`.
  template <class Body>
  void for_rows(const RowWork& work, Stream& stream, Body body) {
    push(stream, [this, work, body = std::move(body)] {
      share(work.rows, static_cast<double>(work.rows) * static_cast<double>(work.row.value),
            [&](std::int64_t i) { body(i, work.slots != nullptr ? work.slots[i] : i); });
    });
  }

  /// A table of at least `positions` positions. Queued work keeps its table alive.
  std::shared_ptr<const kernels::RotaryTable> rotary_table(std::int64_t head_dim, double base,
                                                           std::int64_t positions) {
    const std::lock_guard lock(rotary_mutex_);
    auto& table = rotary_tables_[{head_dim, base}];
    if (table == nullptr || table->positions() < positions) {
      const std::int64_t known = table == nullptr ? 0 : table->positions();
      table = std::make_shared<const kernels::RotaryTable>(head_dim, base,
                                                           std::max(positions, 2 * known));
    }
    return table;
  }

  void attend(const AttentionWork& work, kernels::RotaryAngles angles) {
    struct Unit {
      std::int64_t request;
      std::int64_t tile;
    };
    const kernels::PagedBatch& batch = work.batch;
    std::vector<Unit> units;
    double read = 0;
    for (std::int64_t r = 0; r < batch.requests; ++r) {
      const std::int64_t queries = batch.query_begin[r + 1] - batch.query_begin[r];
      // The last tiles are the longest. They start first, so that no thread ends late.
      for (std::int64_t tile = (queries - 1) / kernels::kQueryTile; tile >= 0; --tile) {
        units.push_back({r, tile});
        read += static_cast<double>(batch.context_begin[r + 1] - batch.context_begin[r]);
      }
    }
    const std::int64_t heads = work.shape.kv_heads;
    const auto one = [&](std::int64_t i) {
      const Unit& unit = units[static_cast<std::size_t>(i / heads)];
      kernels::attend_paged(work.shape, batch, angles, static_cast<const float*>(work.queries),
                            static_cast<const float*>(work.keys),
                            static_cast<const float*>(work.values),
                            static_cast<float*>(work.output), unit.request, i % heads, unit.tile);
    };
    constexpr double kWorthWaking = 64 * 1024;
    const auto count = static_cast<std::int64_t>(units.size()) * heads;
    if (read * static_cast<double>(heads * work.shape.head_dim) < kWorthWaking) {
      for (std::int64_t i = 0; i < count; ++i) {
        one(i);
      }
    } else {
      pool_.run(count, one);
    }
  }

  /// The best rate of all threads in registers. A load port moves at most two bytes from any cache
  /// in the time of one such operation. Other processes may use the machine, so the best of several
  /// tries counts. A quarter is added for rising clocks.
  DeviceLimits measure_limits() {
    constexpr int kTries = 8;
    constexpr std::int64_t kRounds = 60000;
    constexpr double kBytesPerFlop = 2;
    double seconds = std::numeric_limits<double>::infinity();
    std::atomic<float> sink = 0;
    for (int i = 0; i < kTries; ++i) {
      const auto begin = Clock::now();
      sink = sink + kernels::multiply_add_in_registers(kRounds, 0.5F);
      seconds = std::min(seconds, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    constexpr double kMargin = 1.25;
    const double flops = kMargin *
                         static_cast<double>(kRounds * kernels::kRegisterFlops * pool_.threads()) /
                         seconds;
    return {.flops_per_second = flops,
            .memory_bytes_per_second = kBytesPerFlop * flops,
            .link_bytes_per_second = kBytesPerFlop * flops,
            .cache = largest_cache()};
  }

  /// The pool divides matrices among its threads.
  const Blas& blas_ = blas();
  ThreadPool pool_;
  DeviceInfo info_;
  std::mutex rotary_mutex_;
  std::map<std::pair<std::int64_t, double>, std::shared_ptr<const kernels::RotaryTable>>
      rotary_tables_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(std::int64_t threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace kvtier
