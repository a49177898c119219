#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <sys/mman.h>

#include "calibrate/measure.hpp"
#include "calibrate/worker.hpp"
#include "hw/device/decoder.hpp"
#include "hw/device/processors.hpp"
#include "hw/device/ring_load.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier::calibrate {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
/// Length of the pattern that the file repeats: longer than any block, and a whole number of
/// blocks.
constexpr std::int64_t kPattern = 16 * kMebibyte;
/// Size of the ring of buffers for reads.
constexpr std::int64_t kRing = 128 * kMebibyte;
constexpr std::int64_t kDepth = 128;
/// Bytes that are compared at either end of each block read.
constexpr std::size_t kCompared = 64;
/// All blocks, in per cent.
constexpr int kPercent = 100;
constexpr int kAllReads = kPercent;
constexpr int kAllWrites = 0;

/// Page-aligned memory of the host, in large pages if possible, so that a block is one piece for
/// the drive.
class Mapped {
 public:
  explicit Mapped(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* const data =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw DeviceError(fmt::format("mmap of {} bytes: {}", bytes, std::strerror(errno)));
    }
    ::madvise(data, bytes_, MADV_HUGEPAGE);
    std::memset(data, 0, bytes_);
    data_ = static_cast<std::byte*>(data);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { ::munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace

class StorageBench {
 public:
  StorageBench(std::unique_ptr<ScratchFile> file,
               const std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)>& open,
               Bytes size)
      : file_(std::move(file)),
        open_(open),
        memory_(kPattern + kRing),
        size_(size.value / kPattern * kPattern) {
    if (size_ == 0) {
      throw ConfigError(fmt::format("the test file needs at least {} MiB", kPattern / kMebibyte));
    }
    RandomStream random(1, "calibrate/file");
    auto* const words = reinterpret_cast<std::uint64_t*>(memory_.data());
    for (std::int64_t i = 0; i < kPattern / static_cast<std::int64_t>(sizeof *words); ++i) {
      words[i] = static_cast<std::uint64_t>(random.index(INT64_MAX));
    }
    StorageOptions options{.queue_depth = kDepth, .memory = memory_.span()};
    engine_ = open_(options);
    merged_at_begin_ = file_ == nullptr ? 0 : file_->merged_requests();
  }

  [[nodiscard]] StorageEngine& engine() { return *engine_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const ScratchFile* file() const { return file_.get(); }
  [[nodiscard]] const std::string& engine_name() const { return engine_->name(); }
  [[nodiscard]] std::int64_t merged() const {
    return file_ == nullptr ? 0 : file_->merged_requests() - merged_at_begin_;
  }

  /// Writes the whole file once.
  void fill(const std::function<void()>& check = [] {}) {
    if (filled_) {
      return;
    }
    write_whole(
        *engine_, Bytes(size_),
        [this](std::int64_t place) { return memory_.data() + place % kPattern; }, check);
    filled_ = true;
  }

  /// One sample: `count` blocks at random places, `depth` of them in flight, `read_percent` of them
  /// read; seconds for one block. The last blocks read are compared with the expected data after
  /// the time is taken. `moved` gets each block before its memory is used again.
  double transfer(std::int64_t block, std::int64_t depth, std::int64_t count, int read_percent,
                  RandomStream& random, bool flush,
                  const std::function<void(const std::byte*, std::int64_t)>& moved = {}) {
    struct Flight {
      std::int64_t place = 0;
      bool reads = false;
    };
    std::vector<Flight> flights(static_cast<std::size_t>(depth));
    std::vector<std::uint64_t> free;
    for (std::int64_t i = depth; i > 0; --i) {
      free.push_back(static_cast<std::uint64_t>(i - 1));
    }
    const std::int64_t blocks = size_ / block;
    std::int64_t submitted = 0;
    std::int64_t done = 0;
    std::vector<IoRequest> requests;
    // The time counts from a full queue to its last full moment. With a flush or moves, the whole
    // sample counts.
    const bool whole = flush || moved;
    KVTIER_ASSERT(whole || count > 2 * depth, "a sample has a part with a full queue");
    std::int64_t first = 0;
    std::int64_t last = count;
    std::int64_t begin = steady_clock().now_ns();
    std::int64_t end = 0;
    while (done < count) {
      requests.clear();
      while (submitted < count && !free.empty()) {
        const std::uint64_t tag = free.back();
        free.pop_back();
        Flight& flight = flights[tag];
        flight = {.place = random.index(blocks) * block,
                  .reads = read_percent == kAllReads || random.index(kPercent) < read_percent};
        requests.push_back(request(flight.reads ? IoKind::read : IoKind::write, flight.place, block,
                                   static_cast<std::int64_t>(tag)));
        ++submitted;
      }
      engine_->submit(requests);
      for (const IoCompletion& completion : engine_->wait()) {
        const Flight& flight = flights[completion.tag];
        if (moved && flight.reads) {
          moved(ring(static_cast<std::int64_t>(completion.tag), block), flight.place);
        }
        free.push_back(completion.tag);
        ++done;
      }
      if (!whole && first == 0 && done >= depth) {
        first = done;
        begin = steady_clock().now_ns();
      }
      if (!whole && end == 0 && done >= count - depth) {
        last = done;
        end = steady_clock().now_ns();
      }
    }
    if (flush) {
      engine_->flush();
    }
    if (whole) {
      end = steady_clock().now_ns();
    }
    const double seconds = static_cast<double>(end - begin) * 1e-9;
    for (std::size_t i = 0; i < std::min(flights.size(), static_cast<std::size_t>(count)); ++i) {
      if (flights[i].reads) {
        expect_pattern(ring(static_cast<std::int64_t>(i), block), flights[i].place, block);
      }
    }
    return seconds / static_cast<double>(last - first);
  }

  [[nodiscard]] const std::byte* pattern(std::int64_t place) const {
    return memory_.data() + place % kPattern;
  }

  /// An engine of the same kind for the same file, for requests into other memory.
  [[nodiscard]] std::unique_ptr<StorageEngine> open_for(const Buffer& memory,
                                                        std::int64_t depth) const {
    return open_({.queue_depth = depth,
                  .memory = {memory.data(), static_cast<std::size_t>(memory.size().value)}});
  }

 private:
  [[nodiscard]] std::byte* ring(std::int64_t tag, std::int64_t block) const {
    return memory_.data() + kPattern + tag * block;
  }

  [[nodiscard]] IoRequest request(IoKind kind, std::int64_t place, std::int64_t block,
                                  std::int64_t tag) const {
    // Writes repeat the pattern, so the file does not change.
    return {.kind = kind,
            .offset = place,
            .data = kind == IoKind::read ? ring(tag, block) : memory_.data() + place % kPattern,
            .bytes = Bytes(block),
            .tag = static_cast<std::uint64_t>(tag)};
  }

  void expect_pattern(const std::byte* data, std::int64_t place, std::int64_t block) const {
    const std::int64_t last = block - static_cast<std::int64_t>(kCompared);
    if (std::memcmp(data, pattern(place), kCompared) != 0 ||
        std::memcmp(data + last, pattern(place + last), kCompared) != 0) {
      throw DeviceError(fmt::format(
          "the drive gave other data than were written, at {} of the test file", place));
    }
  }

  std::unique_ptr<ScratchFile> file_;
  std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open_;
  Mapped memory_;
  std::int64_t size_;
  std::unique_ptr<StorageEngine> engine_;
  std::int64_t merged_at_begin_ = 0;
  bool filled_ = false;
};

std::shared_ptr<StorageBench> make_storage_bench(const std::string& directory, Bytes size,
                                                 StorageEngineKind kind) {
  auto file = std::make_unique<ScratchFile>(directory, size, Bytes(size.value / 4));
  const int descriptor = file->descriptor();
  return std::make_shared<StorageBench>(
      std::move(file),
      [descriptor, kind](StorageOptions options) {
        options.kind = kind;
        options.completion_polling = options.submission_polling = has_processors_for_polling();
        return open_storage_engine(descriptor, options);
      },
      size);
}

std::shared_ptr<StorageBench> make_storage_bench(
    std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open, Bytes size) {
  return std::make_shared<StorageBench>(nullptr, open, size);
}

ProfileStorage describe(const StorageBench& bench) {
  const ScratchFile* const file = bench.file();
  return {.file_system = file == nullptr ? "none" : file->file_system(),
          .engine = bench.engine_name(),
          .file = Bytes(bench.size()),
          .capacity = file == nullptr ? Bytes(bench.size()) : file->capacity()};
}

std::int64_t merged_requests(const StorageBench& bench) { return bench.merged(); }

namespace {

class StoragePlan {
 public:
  StoragePlan(const Target& target, std::shared_ptr<StorageBench> bench)
      : target_(target), bench_(std::move(bench)) {}

  std::vector<PlannedTable> tables() {
    grid(OperationId::drive_read, "random", kAllReads, false);
    after_idle(OperationId::drive_read, kAllReads);
    grid(OperationId::drive_write, "burst", kAllWrites, false);
    after_idle(OperationId::drive_write, kAllWrites);
    grid(OperationId::drive_write, "sustained", kAllWrites, true);
    mixed();
    through_the_host();
    load_after_idle();
    beside_memory();
    return std::move(tables_);
  }

 private:
  PlannedTable& add(OperationId operation, std::string variant, std::string method) {
    PlannedTable planned{.rules = rules_of(target_)};
    // Time for several samples of a few hundred blocks each, because drives are noisier than
    // processors.
    planned.rules.budget_seconds *= 2;
    planned.table = {.operation = operation,
                     .variant = std::move(variant),
                     .method = std::move(method),
                     .cache = CacheState::cold,
                     .shape = {},
                     .axes = profile_operation(operation).axes};
    // Waiting for processors is a part of the work of the engine's threads.
    planned.interference = true;
    tables_.push_back(std::move(planned));
    return tables_.back();
  }

  /// Adds a table whose samples begin after idle time, with time for several samples in many
  /// visits.
  PlannedTable& add_after_idle(OperationId operation, std::string method) {
    PlannedTable& planned = add(operation, kAfterIdle, std::move(method));
    planned.rules = rules_with_pauses(target_);
    planned.visits_in_round = kManyVisits / 2;
    return planned;
  }

  /// Enough blocks for a sample of some ten milliseconds.
  static std::int64_t blocks_per_sample(std::int64_t block, std::int64_t depth) {
    constexpr std::int64_t kBytes = 32 * kMebibyte;
    constexpr std::int64_t kMost = 1024;
    return std::max(depth * 6, std::min(kMost, std::max<std::int64_t>(8, kBytes / block)));
  }

  void cell(PlannedTable& planned, std::vector<std::int64_t> at, int read_percent, bool flush) {
    const std::int64_t block = at[0];
    const std::int64_t depth = at[1];
    planned.cells.push_back(
        {.at = std::move(at),
         .memory =
             block * depth > kRing ? Bytes(target_.memory.value + 1) : Bytes(kPattern + kRing),
         .prepare = [bench = bench_, block, depth, read_percent, flush, seed = target_.seed] {
           bench->fill();
           auto random = std::make_shared<RandomStream>(seed, "calibrate/places");
           return [=] {
             return bench->transfer(block, depth, blocks_per_sample(block, depth), read_percent,
                                    *random, flush);
           };
         }});
  }

  [[nodiscard]] std::vector<std::int64_t> blocks() const {
    return target_.full ? geometric(4096, 8 * kMebibyte, 2)
                        : std::vector<std::int64_t>{4096, 65536, kMebibyte, 8 * kMebibyte};
  }
  [[nodiscard]] std::vector<std::int64_t> depths() const {
    return target_.full ? geometric(1, kDepth, 2) : std::vector<std::int64_t>{1, 4, 32};
  }

  void grid(OperationId operation, const char* variant, int read_percent, bool flush) {
    PlannedTable& planned =
        add(operation, variant,
            bench_->engine_name() +
                (flush ? ", random places, fdatasync after each sample" : ", random places"));
    for (const std::int64_t block : blocks()) {
      for (const std::int64_t depth : depths()) {
        if (block * depth <= kRing) {
          cell(planned, {block, depth}, read_percent, flush);
        }
      }
    }
  }

  /// One block at a time, for the smallest and the largest request of a transfer. Drives and
  /// waiting threads are slower after idle time.
  void after_idle(OperationId operation, int read_percent) {
    PlannedTable& planned = add_after_idle(
        operation,
        fmt::format("{}, random places, {} ms apart", bench_->engine_name(), kPause.count()));
    for (const std::int64_t block : {kStorageAlignment, kDriveRequestBytes}) {
      planned.cells.push_back(
          {.at = {block, 1},
           .memory = Bytes(kPattern + kRing),
           .prepare = [bench = bench_, block, read_percent, seed = target_.seed] {
             bench->fill();
             auto random = std::make_shared<RandomStream>(seed, "calibrate/places");
             return [=] {
               std::this_thread::sleep_for(kPause);
               return bench->transfer(block, 1, 1, read_percent, *random, false,
                                      [](const std::byte*, std::int64_t) {});
             };
           }});
    }
  }

  void mixed() {
    PlannedTable& planned =
        add(OperationId::drive_mix, "random", bench_->engine_name() + ", random places");
    for (const std::int64_t block : target_.full ? std::vector<std::int64_t>{4096, 65536, kMebibyte}
                                                 : std::vector<std::int64_t>{65536, kMebibyte}) {
      for (const int read_percent : {kAllWrites, 30, 50, 70, kAllReads}) {
        constexpr std::int64_t kMixedDepth = 16;
        cell(planned, {block, kMixedDepth, read_percent}, read_percent, false);
      }
    }
  }

  static constexpr std::int64_t kMoveBlock = kDriveRequestBytes;

  /// Reads into a ring of registered memory. Each block is copied to the device while later blocks
  /// are read.
  void through_the_host() {
    PlannedTable& planned =
        add(OperationId::drive_to_device, "read_to_device",
            fmt::format("{}, blocks of 1 MiB through a ring of registered memory, 16 in flight",
                        bench_->engine_name()));
    for (const std::int64_t bytes : geometric(16 * kMebibyte, 64 * kMebibyte, 4)) {
      planned.cells.push_back(
          {.at = {bytes},
           .memory = Bytes(kPattern + kRing + bytes),
           .prepare = [bench = bench_, bytes, &device = target_.device,
                       seed = target_.seed]() -> Sample {
             bench->fill();
             auto random = std::make_shared<RandomStream>(seed, "calibrate/places");
             auto there = std::make_shared<Buffer>(device, MemoryKind::device, Bytes(bytes));
             std::shared_ptr<Stream> stream = device.make_stream();
             return [=, &device] {
               const std::int64_t count = bytes / kMoveBlock;
               std::int64_t moved = 0;
               std::int64_t last_place = 0;
               const std::int64_t begin = steady_clock().now_ns();
               (void)bench->transfer(kMoveBlock, kMoveDepth, count, kAllReads, *random, false,
                                     [&](const std::byte* data, std::int64_t place) {
                                       device.copy(there->data() + moved * kMoveBlock, data,
                                                   Bytes(kMoveBlock), *stream);
                                       // The ring's memory is read into again after this call.
                                       stream->synchronize();
                                       last_place = place;
                                       ++moved;
                                     });
               const double seconds = static_cast<double>(steady_clock().now_ns() - begin) * 1e-9;
               std::array<std::byte, kCompared> found{};
               device.copy(found.data(), there->data() + (count - 1) * kMoveBlock, Bytes(kCompared),
                           *stream);
               stream->synchronize();
               if (std::memcmp(found.data(), bench->pattern(last_place), kCompared) != 0) {
                 throw DeviceError("what was read did not arrive at the device");
               }
               return seconds;
             };
           }});
    }
  }

  /// A load of one request's KV, from one range of the file to rows all over the device's memory.
  class Load {
   public:
    Load(const Target& target, StorageBench& bench, std::int64_t bytes)
        : device_(target.device),
          bench_(bench),
          random_(target.seed, "calibrate/places"),
          ring_(device_, MemoryKind::pinned, Bytes(kRingBytes)),
          there_(device_, MemoryKind::device, Bytes(bytes)),
          engine_(bench.open_for(ring_, kMoveDepth)),
          stream_(device_.make_stream()) {
      const Bytes row = kv_row_bytes(decoder_shape(target.model), device_.info().element);
      row_ = std::gcd(row.value, kPart);
      rows_ = shuffled(bytes / row_, random_);
    }

    void move() {
      const std::int64_t bytes = there_.size().value;
      place_ = random_.index((bench_.size() - bytes) / kStorageAlignment + 1) * kStorageAlignment;
      load_through_ring(*engine_, {.parts = static_cast<std::size_t>((bytes + kPart - 1) / kPart),
                                   .read =
                                       [&](std::size_t part, PartRequests& requests) {
                                         requests.submit(
                                             {.kind = IoKind::read,
                                              .offset = place_ + at(part),
                                              .data = data(part),
                                              .bytes = Bytes(std::min(kPart, bytes - at(part)))},
                                             part);
                                       },
                                   .copy = [&](std::size_t part) { copy(part); },
                                   .synchronize = [&] { stream_->synchronize(); }});
      stream_->synchronize();
    }
    void check_last() {
      std::array<std::byte, kCompared> found{};
      device_.copy(found.data(), there_.data() + rows_.front() * row_, Bytes(kCompared), *stream_);
      stream_->synchronize();
      if (std::memcmp(found.data(), bench_.pattern(place_), kCompared) != 0) {
        throw DeviceError("what was read did not arrive at the device");
      }
    }

   private:
    static constexpr std::int64_t kPart = kRingBytes / static_cast<std::int64_t>(kRingParts);

    static std::int64_t at(std::size_t part) { return static_cast<std::int64_t>(part) * kPart; }
    [[nodiscard]] std::byte* data(std::size_t part) const {
      return ring_.data() + at(part % kRingParts);
    }
    void copy(std::size_t part) {
      std::vector<CopyPiece> pieces;
      const std::int64_t bytes = std::min(kPart, there_.size().value - at(part));
      for (std::int64_t i = 0; i < bytes / row_; ++i) {
        const std::int32_t row = rows_[static_cast<std::size_t>(at(part) / row_ + i)];
        pieces.push_back({there_.data() + row * row_, data(part) + i * row_, Bytes(row_)});
      }
      device_.copy_pieces(pieces, *stream_);
    }

    Device& device_;
    StorageBench& bench_;
    RandomStream random_;
    Buffer ring_;
    Buffer there_;
    std::unique_ptr<StorageEngine> engine_;
    std::unique_ptr<Stream> stream_;
    std::int64_t row_ = 0;
    std::vector<std::int32_t> rows_;
    std::int64_t place_ = 0;
  };

  /// Loads by another thread, as in a run, with notices of begin and end.
  void load_after_idle() {
    PlannedTable& planned = add_after_idle(OperationId::drive_to_device, kCopyEngine);
    for (const std::int64_t bytes : {kMebibyte / 16, 4 * kMebibyte}) {
      planned.cells.push_back({.at = {bytes},
                               .memory = Bytes(kPattern + kRing + bytes + kRingBytes),
                               .prepare = [bench = bench_, target = target_, bytes]() -> Sample {
                                 bench->fill();
                                 const Processors rest =
                                     share_processors(target.device, processors_of_thread()).rest;
                                 auto load = std::make_shared<std::unique_ptr<Load>>();
                                 auto worker = std::make_shared<Worker>(rest, [=] {
                                   *load = std::make_unique<Load>(target, *bench, bytes);
                                   return std::function([load] { (*load)->move(); });
                                 });
                                 return [=] {
                                   const StayOn here(rest);
                                   std::this_thread::sleep_for(kLongPause);
                                   const double seconds = worker->order().to_end;
                                   (*load)->check_last();
                                   return seconds;
                                 };
                               }});
    }
  }

  /// Reads and writes while copies both ways keep the memory and the link busy.
  void beside_memory() {
    for (const int read_percent : {kAllReads, kAllWrites}) {
      PlannedTable& planned =
          add(OperationId::drive_beside_copies, read_percent == kAllReads ? "read" : "write",
              "beside copies to and from the device");
      for (const std::int64_t bytes : {64 * kMebibyte}) {
        planned.cells.push_back(
            {.at = {bytes},
             .memory = Bytes(kPattern + kRing + 4 * bytes),
             .prepare = [bench = bench_, bytes, read_percent, &device = target_.device,
                         seed = target_.seed]() -> Sample {
               struct Copies {
                 Buffer host;
                 Buffer there;
                 std::array<std::unique_ptr<Stream>, 2> streams;
                 std::unique_ptr<Event> end;
               };
               bench->fill();
               auto random = std::make_shared<RandomStream>(seed, "calibrate/places");
               auto copies = std::make_shared<Copies>();
               copies->host = Buffer(device, MemoryKind::pinned, Bytes(2 * bytes));
               copies->there = Buffer(device, MemoryKind::device, Bytes(2 * bytes));
               fill_random(device, copies->there, *random);
               for (auto& stream : copies->streams) {
                 stream = device.make_stream();
               }
               return [=, &device, turns = 4]() mutable {
                 // The number of copies grows until they outlast the transfer of the drive.
                 constexpr int kTries = 12;
                 for (int attempt = 0; attempt < kTries; ++attempt) {
                   for (int turn = 0; turn < turns; ++turn) {
                     device.copy(copies->there.data(), copies->host.data(), Bytes(bytes),
                                 *copies->streams[0]);
                     device.copy(copies->host.data() + bytes, copies->there.data() + bytes,
                                 Bytes(bytes), *copies->streams[1]);
                   }
                   const std::int64_t begin = steady_clock().now_ns();
                   (void)bench->transfer(kMoveBlock, kMoveDepth, bytes / kMoveBlock, read_percent,
                                         *random, false);
                   const std::int64_t end = steady_clock().now_ns();
                   copies->streams[0]->synchronize();
                   copies->streams[1]->synchronize();
                   const std::int64_t all = steady_clock().now_ns();
                   constexpr std::int64_t kStillBusy = 100000;
                   if (all - end > kStillBusy) {
                     return static_cast<double>(end - begin) * 1e-9;
                   }
                   turns *= 2;
                 }
                 throw CannotMeasure("copies beside the drive always ended before it");
               };
             }});
      }
    }
  }

  const Target& target_;
  std::shared_ptr<StorageBench> bench_;
  std::vector<PlannedTable> tables_;
};

}  // namespace

std::vector<PlannedTable> plan_storage(const Target& target, std::shared_ptr<StorageBench> bench) {
  return StoragePlan(target, std::move(bench)).tables();
}

}  // namespace kvtier::calibrate
