#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "calibrate/measure.hpp"
#include "calibrate/worker.hpp"
#include "hw/device/processors.hpp"
#include "sim/core/errors.hpp"

namespace kvtier::calibrate {
namespace {

enum class Way { to_device, to_host };

const char* name_of(Way way) { return way == Way::to_device ? "to_device" : "to_host"; }

/// Memory at both ends of the path, larger than the cache. Copies take turns in it. Every sample
/// marks the bytes to copy and checks the marks at the other end.
class CopyBench {
 public:
  CopyBench(Device& device, MemoryKind host_kind, std::int64_t bytes, std::uint64_t seed)
      : device_(device), bytes_(bytes) {
    RandomStream random(seed, "calibrate/copies");
    on_device_ = Buffer(device, MemoryKind::device, Bytes(bytes));
    host_ = Buffer(device, host_kind, Bytes(bytes));
    fill_random(device, on_device_, random);
    for (std::int64_t at = 0; at < bytes; at += kPage) {
      const double number = random.uniform();
      std::memcpy(host_.data() + at, &number, sizeof number);
    }
  }

  [[nodiscard]] std::byte* from(Way way, std::int64_t at) const {
    return (way == Way::to_device ? host_ : on_device_).data() + at;
  }
  [[nodiscard]] std::byte* to(Way way, std::int64_t at) const {
    return (way == Way::to_device ? on_device_ : host_).data() + at;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] Device& device() const { return device_; }

  /// The i-th copy of `bytes`. The two ways use different halves of the memory.
  void copy(Way way, std::int64_t bytes, std::int64_t i, Stream& stream) const {
    const std::int64_t at = place(way, bytes, i);
    device_.copy(to(way, at), from(way, at), Bytes(bytes), stream);
  }

  /// Writes a new mark at the beginning and the end of the i-th copy's source.
  void mark(Way way, std::int64_t bytes, std::int64_t i, Stream& stream) {
    ++mark_;
    const std::int64_t at = place(way, bytes, i);
    for (const std::int64_t where : {at, at + bytes - kMark}) {
      device_.copy(from(way, where), &mark_, Bytes(kMark), stream);
    }
    stream.synchronize();
  }
  /// Throws if the mark did not arrive.
  void expect_mark(Way way, std::int64_t bytes, std::int64_t i, Stream& stream) {
    const std::int64_t at = place(way, bytes, i);
    std::array<std::uint64_t, 2> found{};
    device_.copy(&found[0], to(way, at), Bytes(kMark), stream);
    device_.copy(&found[1], to(way, at + bytes - kMark), Bytes(kMark), stream);
    stream.synchronize();
    if (found[0] != mark_ || found[1] != mark_) {
      throw DeviceError(fmt::format("a copy of {} bytes {} did not arrive", bytes, name_of(way)));
    }
  }

 private:
  static constexpr std::int64_t kPage = 4096;
  static constexpr std::int64_t kMark = sizeof(std::uint64_t);

  [[nodiscard]] std::int64_t place(Way way, std::int64_t bytes, std::int64_t i) const {
    const std::int64_t half = bytes_ / 2;
    return (way == Way::to_device ? 0 : half) + i % (half / bytes) * bytes;
  }

  Device& device_;
  std::int64_t bytes_;
  Buffer on_device_;
  Buffer host_;
  std::uint64_t mark_ = 0;
};

/// One stream's part of a sample: copies one way, one after the other.
Sample copy_sample(const std::shared_ptr<CopyBench>& bench, Way way, std::int64_t bytes) {
  auto timer = std::make_shared<StreamTimer>(bench->device());
  return [bench, way, bytes, timer, i = std::int64_t{0}]() mutable {
    // The sample's first copy is verified.
    bool marked = false;
    std::int64_t first = 0;
    const std::int64_t begin = i;
    bench->mark(way, bytes, begin, timer->stream());
    const double seconds = timer->seconds([&](Stream& stream, std::int64_t turn) {
      if (!marked) {
        first = turn;
        marked = true;
      }
      bench->copy(way, bytes, begin + turn - first, stream);
      i = begin + turn - first + 1;
    });
    bench->expect_mark(way, bytes, begin, timer->stream());
    return seconds;
  };
}

/// Many pieces between random places, each of them the same size.
Sample pieces_sample(const std::shared_ptr<CopyBench>& bench, Way way, std::int64_t bytes,
                     std::int64_t count, std::uint64_t seed) {
  const std::int64_t piece = bytes / count;
  RandomStream random(seed, "calibrate/pieces");
  const std::vector<std::int32_t> from = shuffled(bench->bytes() / piece, random);
  const std::vector<std::int32_t> to = shuffled(bench->bytes() / piece, random);
  std::vector<CopyPiece> pieces;
  const auto turns = static_cast<std::int64_t>(from.size()) / count;
  for (std::size_t i = 0; i < static_cast<std::size_t>(turns * count); ++i) {
    pieces.push_back(
        {bench->to(way, to[i] * piece), bench->from(way, from[i] * piece), Bytes(piece)});
  }
  auto timer = std::make_shared<StreamTimer>(bench->device());
  return
      [=, pieces = std::move(pieces), mark = std::uint64_t{0}, turn = std::int64_t{0}]() mutable {
        Device& device = bench->device();
        // Different places each time, so that none lies in a cache.
        const auto pieces_of = [&](std::int64_t number) {
          const auto begin = static_cast<std::size_t>(number % turns * count);
          return std::span(pieces).subspan(begin, static_cast<std::size_t>(count));
        };
        ++mark;
        const std::span<const CopyPiece> first = pieces_of(turn);
        const std::array<const CopyPiece*, 2> ends{&first.front(), &first.back()};
        const auto size = Bytes(sizeof mark);
        for (const CopyPiece* end : ends) {
          device.copy(const_cast<void*>(end->from), &mark, size, timer->stream());
        }
        timer->stream().synchronize();
        const double seconds = timer->seconds(
            [&](Stream& stream, std::int64_t) { device.copy_pieces(pieces_of(turn++), stream); });
        for (const CopyPiece* end : ends) {
          std::uint64_t found = 0;
          device.copy(&found, end->to, size, timer->stream());
          timer->stream().synchronize();
          if (found != mark) {
            throw DeviceError(fmt::format("a piece of {} bytes did not arrive", piece));
          }
        }
        return seconds;
      };
}

/// Work that keeps a second stream busy from before a sample's first copy until after its last.
using Background = std::function<void(Stream& stream, std::int64_t i)>;

/// The time of a copy one way beside `background`. The background gets more work until it outlasts
/// the copies.
Sample copy_beside(const std::shared_ptr<CopyBench>& bench, Way way, std::int64_t bytes,
                   Background background) {
  struct State {
    std::unique_ptr<Stream> copies;
    std::unique_ptr<Stream> other;
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
    std::unique_ptr<Event> other_begin;
    std::unique_ptr<Event> other_end;
    std::int64_t work = 2;
  };
  Device& device = bench->device();
  auto state = std::make_shared<State>();
  state->copies = device.make_stream(StreamKind::background);
  state->other = device.make_stream();
  for (auto* event : {&state->begin, &state->end, &state->other_begin, &state->other_end}) {
    *event = device.make_event();
  }
  return [bench, way, bytes, background = std::move(background), state,
          i = std::int64_t{0}]() mutable {
    Device& dev = bench->device();
    constexpr std::int64_t kCopies = 4;
    // Enough doublings of the background to outlast a slow wake-up of a thread.
    constexpr int kTries = 16;
    constexpr double kQueueing = 5e-5;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      bench->mark(way, bytes, i, *state->copies);
      // Both streams start once their queues are filled.
      dev.busy(kQueueing, *state->other);
      dev.record(*state->other_begin, *state->other);
      dev.wait(*state->copies, *state->other_begin);
      for (std::int64_t work = 0; work < state->work; ++work) {
        background(*state->other, work);
      }
      dev.record(*state->other_end, *state->other);
      dev.record(*state->begin, *state->copies);
      for (std::int64_t copy = 0; copy < kCopies; ++copy) {
        bench->copy(way, bytes, i + copy, *state->copies);
      }
      dev.record(*state->end, *state->copies);
      state->copies->synchronize();
      state->other->synchronize();
      bench->expect_mark(way, bytes, i, *state->copies);
      i += kCopies;
      if (dev.seconds_between(*state->end, *state->other_end) >= 0) {
        return dev.seconds_between(*state->begin, *state->end) / static_cast<double>(kCopies);
      }
      state->work *= 2;
    }
    throw CannotMeasure("work beside a copy always ended before the copy");
  };
}

class CopyPlan {
 public:
  explicit CopyPlan(const Target& target)
      : target_(target),
        element_(target.device.info().element.value),
        largest_(target.full ? std::int64_t{256} << 20 : std::int64_t{64} << 20),
        memory_(std::max(2 * target.device.info().limits.cache.value, 2 * largest_)) {}

  std::vector<PlannedTable> tables() {
    for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::pageable}) {
      for (const Way way : {Way::to_device, Way::to_host}) {
        copies(kind, way);
      }
    }
    pinning();
    duplex();
    beside_matrices();
    overheads();
    pipeline();
    return std::move(tables_);
  }

 private:
  PlannedTable& add(OperationId operation, std::string variant, std::string method,
                    CacheState cache = CacheState::cold) {
    PlannedTable planned{.rules = rules_of(target_)};
    planned.table = {.operation = operation,
                     .variant = std::move(variant),
                     .method = std::move(method),
                     .cache = cache,
                     .shape = {},
                     .axes = profile_operation(operation).axes};
    tables_.push_back(std::move(planned));
    return tables_.back();
  }

  /// The least time for one byte.
  [[nodiscard]] double link_seconds() const {
    return 1 / target_.device.info().limits.link_bytes_per_second;
  }
  [[nodiscard]] double link_limit(std::int64_t bytes) const {
    return static_cast<double>(bytes) * link_seconds();
  }

  /// Made when the first cell needs it, and one kind at a time.
  [[nodiscard]] std::function<std::shared_ptr<CopyBench>()> bench(MemoryKind kind) {
    struct Kept {
      MemoryKind kind = MemoryKind::pinned;
      std::shared_ptr<CopyBench> bench;
    };
    if (kept_ == nullptr) {
      kept_ = std::make_shared<Kept>();
    }
    return [kept = std::static_pointer_cast<Kept>(kept_), kind, &device = target_.device,
            memory = memory_, seed = target_.seed] {
      if (kept->bench == nullptr || kept->kind != kind) {
        kept->bench.reset();
        kept->bench = std::make_shared<CopyBench>(device, kind, memory, seed);
        kept->kind = kind;
      }
      return kept->bench;
    };
  }

  void copies(MemoryKind kind, Way way) {
    const OperationId operation =
        way == Way::to_device ? OperationId::copy_h2d : OperationId::copy_d2h;
    const char* const variant = kind == MemoryKind::pinned ? "pinned" : "pageable";
    const auto make = bench(kind);
    PlannedTable& table = add(operation, variant, kCopyEngine);
    table.cell_at = [make, way, limit = link_seconds(), memory = memory_,
                     seed = target_.seed](const Place& place) -> PlannedCell {
      const std::int64_t bytes = place.at[0];
      const std::int64_t count = place.at[1];
      return {.at = place.at,
              .limit_seconds = limit * static_cast<double>(bytes),
              .memory = Bytes(2 * memory),
              .prepare = [=] {
                return count == 1 ? copy_sample(make(), way, bytes)
                                  : pieces_sample(make(), way, bytes, count, seed);
              }};
    };
    for (const std::int64_t bytes : geometric(4096, largest_, target_.full ? 2 : 4)) {
      table.cells.push_back(table.cell_at({{bytes, 1}}));
    }
    if (kind == MemoryKind::pageable) {
      return;  // KV is moved in pieces only from and to pinned memory
    }
    for (const std::int64_t piece : piece_sizes()) {
      for (const std::int64_t count : {std::int64_t{64}, std::int64_t{4096}}) {
        if (piece * count <= largest_) {
          table.cells.push_back(table.cell_at({{piece * count, count}}));
        }
      }
    }
  }

  /// Sizes of pieces, including a token's KV of one layer of the model.
  [[nodiscard]] std::vector<std::int64_t> piece_sizes() const {
    std::vector<std::int64_t> sizes = geometric(256, std::int64_t{2} << 20, target_.full ? 4 : 16);
    sizes.push_back(kv_bytes_per_token_layer(target_.model).value);
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
  }

  void pinning() {
    PlannedTable& table = add(OperationId::pin_memory, "pin", "allocation of pinned memory");
    for (const std::int64_t bytes :
         geometric(std::int64_t{1} << 20, largest_, target_.full ? 4 : 8)) {
      table.cells.push_back(
          {.at = {bytes}, .memory = Bytes(bytes), .prepare = [&device = target_.device, bytes] {
             return [&device, bytes] {
               const std::int64_t begin = steady_clock().now_ns();
               const Buffer buffer(device, MemoryKind::pinned, Bytes(bytes));
               return static_cast<double>(steady_clock().now_ns() - begin) * 1e-9;
             };
           }});
    }
  }

  [[nodiscard]] std::vector<std::int64_t> duplex_sizes() const {
    return geometric(std::int64_t{64} << 10, largest_ / 4, 16);
  }

  void duplex() {
    const auto make = bench(MemoryKind::pinned);
    for (const Way way : {Way::to_device, Way::to_host}) {
      const Way other = way == Way::to_device ? Way::to_host : Way::to_device;
      const auto cell_with = [this, make](std::function<Sample(std::int64_t bytes)> prepare) {
        return [prepare = std::move(prepare), limit = link_seconds(),
                memory = memory_](const Place& place) -> PlannedCell {
          const std::int64_t bytes = place.at[0];
          return {.at = place.at,
                  .limit_seconds = limit * static_cast<double>(bytes),
                  .memory = Bytes(2 * memory),
                  .prepare = [prepare, bytes] { return prepare(bytes); }};
        };
      };
      PlannedTable& alone = add(OperationId::copy_duplex, name_of(way), kCopyEngine);
      alone.cell_at =
          cell_with([make, way](std::int64_t bytes) { return copy_sample(make(), way, bytes); });
      for (const std::int64_t bytes : duplex_sizes()) {
        alone.cells.push_back(alone.cell_at({{bytes}}));
      }
      PlannedTable& both =
          add(OperationId::copy_duplex, fmt::format("{}_of_both", name_of(way)), kCopyEngine);
      both.interference = true;
      both.cell_at = cell_with([make, way, other](std::int64_t bytes) {
        const auto shared = make();
        return copy_beside(shared, way, bytes,
                           [shared, other, bytes](Stream& stream, std::int64_t i) {
                             shared->copy(other, bytes, i, stream);
                           });
      });
      for (const std::int64_t bytes : duplex_sizes()) {
        both.cells.push_back(both.cell_at({{bytes}}));
      }
    }
  }

  /// The largest matrix of a layer with enough rows to use every processor.
  struct Gemm {
    Gemm(const Target& target, std::int64_t rows_, std::uint64_t seed) : rows(rows_) {
      for (const MatrixShape& candidate : layer_matrices(target.model, 1)) {
        if (candidate.n * candidate.k > shape.n * shape.k) {
          shape = candidate;
        }
      }
      RandomStream random(seed, "calibrate/matrix");
      const std::int64_t element = target.device.info().element.value;
      for (const auto& [buffer, size] :
           {std::pair{&input, rows * shape.k}, std::pair{&weights, shape.n * shape.k},
            std::pair{&output, rows * shape.n}}) {
        *buffer = Buffer(target.device, MemoryKind::device, Bytes(size * element));
        fill_random(target.device, *buffer, random);
      }
    }
    void queue(Device& device, Stream& stream) const {
      device.gemm({.input = input.data(),
                   .weights = weights.data(),
                   .output = output.data(),
                   .m = rows,
                   .n = shape.n,
                   .k = shape.k},
                  stream);
    }
    std::int64_t rows;
    MatrixShape shape{"", 0, 0};
    Buffer input;
    Buffer weights;
    Buffer output;
  };

  static constexpr std::int64_t kRows = 128;

  void beside_matrices() {
    const auto make = bench(MemoryKind::pinned);
    for (const Way way : {Way::to_device, Way::to_host}) {
      PlannedTable& table =
          add(OperationId::copy_beside_compute, name_of(way), "beside matrices on every processor");
      table.interference = true;
      for (const std::int64_t bytes : duplex_sizes()) {
        table.cells.push_back({.at = {bytes},
                               .limit_seconds = link_limit(bytes),
                               .memory = Bytes(2 * memory_),
                               .prepare = [make, way, bytes, target = target_] {
                                 auto gemm = std::make_shared<Gemm>(target, kRows, target.seed);
                                 return copy_beside(
                                     make(), way, bytes,
                                     [gemm, &device = target.device](Stream& stream, std::int64_t) {
                                       gemm->queue(device, stream);
                                     });
                               }});
      }
    }
  }

  /// Bytes of a copy so small that its bytes take almost no time.
  static constexpr std::int64_t kSmall = 4096;

  void overheads() {
    Device& device = target_.device;
    const auto cell = [](std::function<Sample()> prepare) {
      return std::vector<PlannedCell>{{.at = {}, .prepare = std::move(prepare)}};
    };
    constexpr std::int64_t kCalls = 64;
    /// Seconds of the host for one of many calls.
    const auto host_time = [&device](auto call) -> Sample {
      std::shared_ptr<Stream> stream = device.make_stream();
      return [stream, call] {
        const std::int64_t begin = steady_clock().now_ns();
        for (std::int64_t i = 0; i < kCalls; ++i) {
          call(*stream);
        }
        const double passed = static_cast<double>(steady_clock().now_ns() - begin) * 1e-9;
        stream->synchronize();
        return passed / static_cast<double>(kCalls);
      };
    };
    add(OperationId::call_overhead, "launch", "empty work, one after the other", CacheState::hot)
        .cells = cell([&device] {
      return stream_sample(
          device, [&device](Stream& stream, std::int64_t) { device.busy(0, stream); }, 0);
    });
    add(OperationId::call_overhead, kEvent, "record and wait, by the host", CacheState::hot).cells =
        cell([&device, host_time] {
          std::shared_ptr<Event> event = device.make_event();
          return host_time([&device, event](Stream& stream) {
            device.record(*event, stream);
            event->synchronize();
          });
        });
    add(OperationId::call_overhead, "stream_wait", "two streams, in turns", CacheState::hot).cells =
        cell([&device] {
          std::shared_ptr<Stream> other = device.make_stream();
          std::shared_ptr<Event> there = device.make_event();
          std::shared_ptr<Event> back = device.make_event();
          return stream_sample(
              device,
              [&device, other, there, back](Stream& stream, std::int64_t) {
                device.record(*there, stream);
                device.wait(*other, *there);
                device.record(*back, *other);
                device.wait(stream, *back);
              },
              0);
        });
    add(OperationId::call_overhead, "copy_submit", "by the host", CacheState::hot).cells =
        cell([host_time, make = bench(MemoryKind::pinned)] {
          const auto shared = make();
          return host_time(
              [shared](Stream& stream) { shared->copy(Way::to_device, kSmall, 0, stream); });
        });
    between_threads(kHandOver, "to a thread that computes", Bytes(), &Worker::Times::to_begin,
                    [](const ProcessorShares& shares) {
                      return std::make_shared<Worker>(shares.compute,
                                                      [] { return std::function([] {}); });
                    });
    between_threads(kTransfer, "by a thread that is told to and tells of its end",
                    Bytes(2 * memory_), &Worker::Times::to_end,
                    [&device, make = bench(MemoryKind::pinned)](const ProcessorShares& shares) {
                      return copying_worker(device, make(), shares.rest);
                    });
  }

  static std::shared_ptr<Worker> copying_worker(Device& device, std::shared_ptr<CopyBench> bench,
                                                const Processors& processors) {
    return std::make_shared<Worker>(processors, [&device, bench = std::move(bench)] {
      std::shared_ptr<Stream> stream = device.make_stream();
      return std::function([bench, stream] {
        bench->copy(Way::to_device, kSmall, 0, *stream);
        stream->synchronize();
      });
    });
  }

  /// Times commands to waiting threads, as a scheduler gives them.
  void between_threads(const char* variant, const char* method, Bytes memory,
                       double Worker::Times::*time,
                       std::function<std::shared_ptr<Worker>(const ProcessorShares&)> make_worker) {
    PlannedTable& table =
        add(OperationId::call_overhead, variant,
            fmt::format("{}, after {} ms", method, kPause.count()), CacheState::hot);
    table.rules = rules_with_pauses(target_);
    table.visits_in_round = 2 * kManyVisits;
    table.interference = true;  // waiting for a processor is what is measured
    table.cells = {{.at = {},
                    .memory = memory,
                    .prepare = [time, make_worker = std::move(make_worker),
                                &device = target_.device]() -> Sample {
                      const ProcessorShares shares =
                          share_processors(device, processors_of_thread());
                      return [time, rest = shares.rest, worker = make_worker(shares)] {
                        const StayOn here(rest);
                        std::this_thread::sleep_for(kPause);
                        return worker->order().*time;
                      };
                    }}};
  }

  /// Each layer waits for its copy and computes, while later copies go on.
  void pipeline() {
    struct Layers {
      std::unique_ptr<Stream> copies;
      std::unique_ptr<Stream> compute;
      std::vector<std::unique_ptr<Event>> loaded;
      std::unique_ptr<Event> begin;
      std::unique_ptr<Event> end;
    };
    const std::int64_t layers = std::min<std::int64_t>(target_.model.layers, 16);
    const auto make = bench(MemoryKind::pinned);
    for (const char* variant : {"pipeline", "copies", "compute"}) {
      const bool copies = std::string(variant) != "compute";
      const bool computes = std::string(variant) != "copies";
      PlannedTable& table =
          add(OperationId::layer_pipeline, variant, "copies on one stream, matrices on another");
      table.interference = copies && computes;
      for (const std::int64_t bytes : {std::int64_t{256} << 10, std::int64_t{4} << 20}) {
        for (const std::int64_t tokens : {16, 256}) {
          table.cells.push_back(
              {.at = {layers, bytes, tokens},
               .limit_seconds = copies ? link_limit(layers * bytes) : 0,
               .memory = Bytes(2 * memory_),
               .prepare = [=, target = target_]() -> Sample {
                 const auto shared = make();
                 auto gemm = std::make_shared<Gemm>(target, tokens, target.seed);
                 auto work = std::make_shared<Layers>();
                 Device& device = target.device;
                 work->copies = device.make_stream(StreamKind::background);
                 work->compute = device.make_stream();
                 work->begin = device.make_event();
                 work->end = device.make_event();
                 for (std::int64_t l = 0; l < layers; ++l) {
                   work->loaded.push_back(device.make_event());
                 }
                 return [=, &device, turn = std::int64_t{0}]() mutable {
                   Stream& last = computes ? *work->compute : *work->copies;
                   constexpr double kQueueing = 1e-4;
                   device.busy(kQueueing, *work->copies);
                   device.record(*work->begin, *work->copies);
                   device.wait(*work->compute, *work->begin);
                   for (std::int64_t l = 0; l < layers; ++l) {
                     if (copies) {
                       shared->copy(Way::to_device, bytes, turn + l, *work->copies);
                     }
                     if (computes) {
                       if (copies) {
                         Event& loaded = *work->loaded[static_cast<std::size_t>(l)];
                         device.record(loaded, *work->copies);
                         device.wait(*work->compute, loaded);
                       }
                       gemm->queue(device, *work->compute);
                     }
                   }
                   turn += layers;
                   device.record(*work->end, last);
                   work->compute->synchronize();
                   work->copies->synchronize();
                   return device.seconds_between(*work->begin, *work->end);
                 };
               }});
        }
      }
    }
  }

  const Target& target_;
  std::int64_t element_;
  std::int64_t largest_;
  std::int64_t memory_;
  std::shared_ptr<void> kept_;
  std::vector<PlannedTable> tables_;
};

}  // namespace

std::vector<PlannedTable> plan_copies(const Target& target) { return CopyPlan(target).tables(); }

}  // namespace kvtier::calibrate
