/// Measures passes of a decoder and copies on a device, to explain a prefill that takes longer than
/// the sum of its operations: new numbers of tokens, idle time, decodes in between, copies beside
/// it, and layers that wait for loads. The important tables come first, and the JSON file is
/// rewritten after each row, so a probe that is stopped keeps its finished rows.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "calibrate/bench.hpp"
#include "hw/device/decoder.hpp"
#include "hw/device/open_device.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/config/resolve.hpp"
#include "tests/bench/device_program.hpp"

namespace kvtier::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string device = "cpu";
  std::string model = "kvtier-tiny";
  std::string json;
  /// No row begins after this time.
  double seconds = 105;
  std::int64_t longest = 2048;
  int samples = 7;
  std::int64_t copy_bytes = std::int64_t{512} << 20;
  /// Names of tables; all if empty.
  std::vector<std::string> tables;
};

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Tables of numbers, printed and written as they grow.
class Report {
 public:
  Report(const Options& options, const DeviceInfo& info) : options_(options) {
    json_ = {{"schema", "kvtier.device_probe/1"},
             {"device", info.name},
             {"kind", info.kind},
             {"driver", info.driver},
             {"libraries", nlohmann::ordered_json::object()},
             {"model", options.model},
             {"samples", options.samples},
             {"complete", false},
             {"tables", nlohmann::ordered_json::array()}};
    for (const auto& [library, version] : info.libraries) {
      json_["libraries"][library] = version;
    }
  }

  void table(const std::string& name, const std::string& title,
             const std::vector<std::string>& columns) {
    json_["tables"].push_back({{"name", name},
                               {"title", title},
                               {"columns", columns},
                               {"rows", nlohmann::ordered_json::array()}});
    fmt::print("\n{}: {}\n{}\n", name, title, fmt::join(columns, ", "));
  }

  /// Cells are numbers and texts, one for each column.
  void row(const nlohmann::ordered_json& cells) {
    json_["tables"].back()["rows"].push_back(cells);
    std::string line;
    for (const auto& cell : cells) {
      line += line.empty() ? "" : ", ";
      line += cell.is_number_float() ? fmt::format("{:.4g}", cell.get<double>()) : cell.dump();
    }
    fmt::print("{}\n", line);
    write();
  }

  void end() {
    json_["complete"] = true;
    json_["seconds"] = since(begin_);
    write();
  }

  /// Whether the time is up.
  [[nodiscard]] bool late() const { return since(begin_) > options_.seconds; }

 private:
  void write() const {
    std::fflush(stdout);
    if (!options_.json.empty()) {
      write_text_output(options_.json, json_.dump(2) + "\n");
    }
  }

  const Options& options_;
  Clock::time_point begin_ = Clock::now();
  nlohmann::ordered_json json_;
};

/// Seconds of one pass: from its first call to its end, of the calls alone, and between two events
/// on its stream.
struct PassTimes {
  double wall = 0;
  double submit = 0;
  double device = 0;
};

constexpr std::int64_t kDecodeRequests = 6;
constexpr std::int64_t kDecodePast = 256;
constexpr double kMicro = 1e6;

class Probe {
 public:
  Probe(const Options& options, const ModelConfig& model, Device& device, Report& report)
      : options_(options),
        device_(device),
        report_(report),
        decode_past_(std::min(kDecodePast, options.longest)),
        decoder_(device, decoder_shape(model), KeyPositions::decoupled,
                 {.requests = kDecodeRequests,
                  .tokens = std::max(options.longest, kDecodeRequests),
                  .context = std::max(options.longest, kDecodeRequests * (decode_past_ + 1)),
                  .longest_context = std::max(options.longest, decode_past_ + 1)},
                 1),
        pool_(device, decoder_.shape(),
              std::max(options.longest, kDecodeRequests * (decode_past_ + 1)) + loaded_max()),
        stream_(device.make_stream()),
        begin_(device.make_event()),
        end_(device.make_event()) {}

  void run() {
    for (const auto& [name, part] : kTables) {
      if (report_.late()) {
        return;
      }
      if (options_.tables.empty() || std::ranges::count(options_.tables, name) > 0) {
        (this->*part)();
      }
    }
    if (!report_.late()) {
      report_.end();
    }
  }

 private:
  // ---- Passes ----

  [[nodiscard]] std::int64_t loaded_max() const {
    return std::min<std::int64_t>(1024, options_.longest);
  }

  /// Those of the sizes that the probe may use, or else half of its longest.
  [[nodiscard]] std::vector<std::int64_t> sizes(std::vector<std::int64_t> wanted) const {
    std::erase_if(wanted, [&](std::int64_t n) { return n > options_.longest; });
    if (wanted.empty()) {
      wanted.push_back(std::max<std::int64_t>(1, options_.longest / 2));
    }
    return wanted;
  }

  [[nodiscard]] DecoderBatch prompt(std::int64_t tokens) const {
    std::vector<std::int32_t> context(static_cast<std::size_t>(tokens));
    std::iota(context.begin(), context.end(), 0);
    DecoderBatch batch;
    batch.add(tokens_of(tokens), context);
    return batch;
  }

  [[nodiscard]] DecoderBatch decode_step() const {
    DecoderBatch batch;
    for (std::int64_t r = 0; r < kDecodeRequests; ++r) {
      std::vector<std::int32_t> context(static_cast<std::size_t>(decode_past_ + 1));
      std::iota(context.begin(), context.end(), static_cast<std::int32_t>(r * (decode_past_ + 1)));
      batch.add(tokens_of(1), context);
    }
    return batch;
  }

  [[nodiscard]] std::vector<std::int32_t> tokens_of(std::int64_t count) const {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>((7 * i + 1) % decoder_.shape().vocabulary));
    }
    return tokens;
  }

  PassTimes pass(const DecoderBatch& batch, const Decoder::Hooks& hooks = {}) {
    stream_->synchronize();
    const Clock::time_point begin = Clock::now();
    device_.record(*begin_, *stream_);
    decoder_.forward(batch, pool_, *stream_, hooks);
    device_.record(*end_, *stream_);
    const double submit = since(begin);
    stream_->synchronize();
    const double wall = since(begin);
    return {.wall = wall, .submit = submit, .device = device_.seconds_between(*begin_, *end_)};
  }

  /// Medians of `count` times.
  static PassTimes medians(int count, const std::function<PassTimes()>& once) {
    std::vector<double> wall;
    std::vector<double> submit;
    std::vector<double> device;
    for (int i = 0; i < count; ++i) {
      const PassTimes one = once();
      wall.push_back(one.wall);
      submit.push_back(one.submit);
      device.push_back(one.device);
    }
    return {.wall = median(wall), .submit = median(submit), .device = median(device)};
  }

  PassTimes later(std::int64_t tokens) {
    const DecoderBatch batch = prompt(tokens);
    (void)pass(batch);
    return medians(options_.samples, [&] { return pass(batch); });
  }

  // ---- Tables ----

  void first_passes() {
    report_.table("first_passes",
                  "the first passes of the process, microseconds: every multiple of 64 tokens",
                  {"tokens", "first wall", "second wall"});
    for (std::int64_t n = 64; n <= std::max<std::int64_t>(options_.longest, 64); n += 64) {
      const DecoderBatch batch = prompt(std::min(n, options_.longest));
      const double first = pass(batch).wall;
      const double second = pass(batch).wall;
      report_.row({std::min(n, options_.longest), first * kMicro, second * kMicro});
      if (report_.late()) {
        return;
      }
    }
  }

  void new_sizes() {
    report_.table(
        "new_sizes",
        "passes of a number of tokens that no earlier pass had, microseconds, after every "
        "multiple of 64",
        {"tokens", "first wall", "first submit", "first device", "second wall", "later wall",
         "later submit", "later device"});
    for (const std::int64_t n :
         sizes({21, 45, 99, 131, 139, 227, 381, 523, 525, 1013, 1021, 1777})) {
      if (report_.late()) {
        return;
      }
      const DecoderBatch batch = prompt(n);
      const PassTimes first = pass(batch);
      const PassTimes second = pass(batch);
      const PassTimes others = medians(options_.samples, [&] { return pass(batch); });
      report_.row({n, first.wall * kMicro, first.submit * kMicro, first.device * kMicro,
                   second.wall * kMicro, others.wall * kMicro, others.submit * kMicro,
                   others.device * kMicro});
    }
  }

  void operations() {
    report_.table(
        "operations",
        "later passes and the sum of their operations, each timed alone with cold weights, "
        "microseconds",
        {"tokens", "wall", "submit", "device", "sum of operations", "matrices", "attention",
         "rows"});
    for (const std::int64_t n : sizes({1, 8, 37, 64, 128, 137, 256, 411, 512, 1003, 1024, 2048})) {
      if (report_.late()) {
        return;
      }
      const PassTimes times = later(n);
      const double matrices = time_of_matrices(n);
      const double attention = time_of_attention();
      const double rows = time_of_rows(n);
      report_.row({n, times.wall * kMicro, times.submit * kMicro, times.device * kMicro,
                   (matrices + attention + rows) * kMicro, matrices * kMicro, attention * kMicro,
                   rows * kMicro});
    }
  }

  void idle_times() {
    report_.table("idle_times", "passes after idle time, device time in microseconds",
                  {"idle ms", "tokens", "wall", "device"});
    for (const int idle : {0, 1, 10, 50, 100, 500}) {
      for (const std::int64_t n : sizes({128, 1003})) {
        if (report_.late()) {
          return;
        }
        const DecoderBatch batch = prompt(n);
        (void)pass(batch);
        const PassTimes times = medians(std::min(options_.samples, 4), [&] {
          stream_->synchronize();
          std::this_thread::sleep_for(std::chrono::milliseconds(idle));
          return pass(batch);
        });
        report_.row({idle, n, times.wall * kMicro, times.device * kMicro});
      }
    }
  }

  void between_decodes() {
    report_.table("between_decodes",
                  "a prefill alone, and after three decode steps of 6 requests, microseconds",
                  {"tokens", "alone wall", "alone device", "between wall", "between device",
                   "decode step wall"});
    const DecoderBatch step = decode_step();
    for (const std::int64_t n : sizes({64, 137, 512, 1003})) {
      if (report_.late()) {
        return;
      }
      const DecoderBatch batch = prompt(n);
      const PassTimes alone = later(n);
      std::vector<double> steps;
      const PassTimes between = medians(options_.samples, [&] {
        for (int i = 0; i < 3; ++i) {
          steps.push_back(pass(step).wall);
        }
        return pass(batch);
      });
      report_.row({n, alone.wall * kMicro, alone.device * kMicro, between.wall * kMicro,
                   between.device * kMicro, median(steps) * kMicro});
    }
  }

  // ---- Operations alone ----

  /// Median time of one call on a stream of its own.
  double timed(const calibrate::StreamTimer::Queue& queue) {
    calibrate::StreamTimer timer(device_);
    (void)timer.seconds(queue);
    std::vector<double> times;
    for (int i = 0; i < std::min(options_.samples, 3); ++i) {
      times.push_back(timer.seconds(queue));
    }
    return median(times);
  }

  /// Room for the inputs or outputs of every operation.
  Buffer scratch(std::int64_t rows, std::int64_t width) {
    Buffer buffer(device_, MemoryKind::device, rows * width * device_.info().element);
    device_.fill_uniform(buffer.data(), rows * width, 1, 1, *stream_);
    stream_->synchronize();
    return buffer;
  }

  [[nodiscard]] std::int64_t widest() const {
    const DecoderShape& shape = decoder_.shape();
    return std::max({shape.hidden, (shape.gated ? 2 : 1) * shape.intermediate,
                     (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim});
  }

  double time_of_matrices(std::int64_t tokens) {
    const DecoderShape& shape = decoder_.shape();
    const DecoderWeights& weights = decoder_.weights();
    const Buffer input = scratch(tokens, widest());
    const Buffer output = scratch(std::max<std::int64_t>(tokens, 1), widest());
    const std::int64_t queries = shape.query_heads * shape.head_dim;
    struct Matrix {
      Buffer DecoderWeights::Layer::*weights;
      std::int64_t n;
      std::int64_t k;
    };
    const std::array<Matrix, 4> matrices{
        Matrix{&DecoderWeights::Layer::qkv, queries + 2 * shape.kv_heads * shape.head_dim,
               shape.hidden},
        Matrix{&DecoderWeights::Layer::output, shape.hidden, queries},
        Matrix{&DecoderWeights::Layer::up, (shape.gated ? 2 : 1) * shape.intermediate,
               shape.hidden},
        Matrix{&DecoderWeights::Layer::down, shape.hidden, shape.intermediate}};
    double sum = 0;
    for (const Matrix& matrix : matrices) {
      sum += static_cast<double>(shape.layers) * timed([&](Stream& stream, std::int64_t i) {
               const auto layer = static_cast<std::size_t>(i % shape.layers);
               device_.gemm({.input = input.data(),
                             .weights = (weights.layers[layer].*matrix.weights).data(),
                             .output = output.data(),
                             .m = tokens,
                             .n = matrix.n,
                             .k = matrix.k},
                            stream);
             });
    }
    const Buffer logits = scratch(1, shape.vocabulary);
    return sum + timed([&](Stream& stream, std::int64_t) {
             device_.gemm({.input = input.data(),
                           .weights = weights.head.data(),
                           .output = logits.data(),
                           .m = 1,
                           .n = shape.vocabulary,
                           .k = shape.hidden},
                          stream);
           });
  }

  /// Attention of the last pass, on the KV of one layer after another.
  double time_of_attention() {
    const std::int64_t layers = decoder_.shape().layers;
    return static_cast<double>(layers) * timed([&](Stream& stream, std::int64_t i) {
             AttentionWork work = decoder_.attention();
             work.keys = pool_.layer(i % layers);
             work.values = pool_.layer(i % layers) + pool_.row_bytes().value / 2;
             device_.attention(work, stream);
           });
  }

  double time_of_rows(std::int64_t tokens) {
    const DecoderShape& shape = decoder_.shape();
    const Bytes element = device_.info().element;
    const std::int64_t queries = shape.query_heads * shape.head_dim;
    const std::int64_t qkv_width = queries + 2 * shape.kv_heads * shape.head_dim;
    const Buffer input = scratch(tokens, widest());
    const Buffer output = scratch(tokens, widest());
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(tokens));
    std::iota(numbers.begin(), numbers.end(), 0);
    const Buffer slots =
        calibrate::on_device<std::int32_t>(device_, std::span<const std::int32_t>(numbers));
    const auto function = [&](RowFunction which, std::int64_t width) {
      return timed([&, which, width](Stream& stream, std::int64_t) {
        device_.row_function({.function = which,
                              .input = input.data(),
                              .other = which == RowFunction::add ? output.data() : nullptr,
                              .output = output.data(),
                              .rows = tokens,
                              .width = width},
                             stream);
      });
    };
    const double norm = function(RowFunction::norm, shape.hidden);
    const double add = function(RowFunction::add, shape.hidden);
    const double activation = function(
        shape.gated ? RowFunction::gated_activation : RowFunction::activation, shape.intermediate);
    const double append = timed([&](Stream& stream, std::int64_t i) {
      device_.scatter({.from = input.data() + (queries * element).value,
                       .to = pool_.layer(i % shape.layers),
                       .slots = slots.as<std::int32_t>(),
                       .rows = tokens,
                       .row = pool_.row_bytes(),
                       .packed_stride = qkv_width * element},
                      stream);
    });
    return static_cast<double>(shape.layers) * (2 * norm + 2 * add + activation + append);
  }

  // ---- Copies ----

  enum class Way { to_device, to_host };

  /// Pinned memory of the host and memory of the device, an area for each way.
  struct Areas {
    Buffer host;
    Buffer device;
  };
  Areas& area(Way way) {
    std::optional<Areas>& found = areas_.at(static_cast<std::size_t>(way));
    if (!found) {
      found.emplace(Buffer(device_, MemoryKind::pinned, Bytes(options_.copy_bytes)),
                    Buffer(device_, MemoryKind::device, Bytes(options_.copy_bytes)));
      std::fill_n(found->host.data(), options_.copy_bytes, std::byte{1});
      const std::unique_ptr<Stream> stream = device_.make_stream();
      device_.copy(found->device.data(), found->host.data(), Bytes(options_.copy_bytes), *stream);
      stream->synchronize();
    }
    return *found;
  }

  /// Pieces of this size between shuffled places, at most `most`.
  std::vector<CopyPiece> pieces(Way way, std::int64_t bytes, std::int64_t most) {
    const Areas& memory = area(way);
    const std::int64_t count = std::clamp<std::int64_t>(options_.copy_bytes / bytes, 1, most);
    RandomStream random(1, "bench/probe");
    const std::vector<std::int32_t> order = calibrate::shuffled(count, random);
    std::vector<CopyPiece> all;
    for (std::int64_t i = 0; i < count; ++i) {
      std::byte* const host = memory.host.data() + i * bytes;
      std::byte* const device = memory.device.data() + order[static_cast<std::size_t>(i)] * bytes;
      const bool in = way == Way::to_device;
      all.push_back({in ? device : host, in ? host : device, Bytes(bytes)});
    }
    return all;
  }

  static double bytes_of(const std::vector<CopyPiece>& pieces) {
    return static_cast<double>(pieces.size()) * static_cast<double>(pieces.front().bytes.value);
  }

  /// Wall time from the first call until both lists have arrived, and of the calls.
  struct CopyTimes {
    double wall = 0;
    double submit = 0;
  };
  CopyTimes copy(const std::vector<const std::vector<CopyPiece>*>& lists) {
    std::vector<double> walls;
    std::vector<double> submits;
    for (int i = 0; i < std::min(options_.samples, 3) + 1; ++i) {
      const Clock::time_point begin = Clock::now();
      for (std::size_t list = 0; list < lists.size(); ++list) {
        device_.copy_pieces(*lists[list], *copy_streams_.at(list));
      }
      const double submit = since(begin);
      for (const std::unique_ptr<Stream>& stream : copy_streams_) {
        stream->synchronize();
      }
      if (i > 0) {  // the first is a warm-up
        walls.push_back(since(begin));
        submits.push_back(submit);
      }
    }
    return {.wall = median(walls), .submit = median(submits)};
  }

  void copies() {
    open_copy_streams();
    report_.table("copies",
                  "copies in pieces, GB/s by wall time; the host's time of a call, microseconds a "
                  "piece",
                  {"piece KiB", "pieces", "to device", "to host", "both", "submit"});
    constexpr std::int64_t kMost = 1000;
    for (std::int64_t kib : {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384}) {
      if (report_.late()) {
        return;
      }
      if (kib * 1024 > options_.copy_bytes) {
        break;
      }
      const auto in = pieces(Way::to_device, kib * 1024, kMost);
      const auto out = pieces(Way::to_host, kib * 1024, kMost);
      const CopyTimes alone = copy({&in});
      const CopyTimes back = copy({&out});
      const CopyTimes both = copy({&in, &out});
      report_.row({kib, in.size(), bytes_of(in) / alone.wall * 1e-9,
                   bytes_of(out) / back.wall * 1e-9,
                   (bytes_of(in) + bytes_of(out)) / both.wall * 1e-9,
                   alone.submit / static_cast<double>(in.size()) * kMicro});
    }
  }

  void open_copy_streams() {
    for (std::unique_ptr<Stream>& stream : copy_streams_) {
      if (stream == nullptr) {
        stream = device_.make_stream(StreamKind::background);
      }
    }
  }

  void beside_copies() {
    open_copy_streams();
    report_.table(
        "beside_copies",
        "passes beside copies of another thread, device time in microseconds; GB/s of the copies",
        {"copies", "tokens", "alone", "beside", "GB/s"});
    struct Kind {
      const char* name;
      bool in;
      bool out;
      std::int64_t kib;
    };
    constexpr std::array<Kind, 4> kKinds{
        Kind{"to device, 2 MiB", true, false, 2048}, Kind{"to device, 64 KiB", true, false, 64},
        Kind{"to host, 2 MiB", false, true, 2048}, Kind{"both, 2 MiB", true, true, 2048}};
    for (const std::int64_t n : sizes({137, 1003})) {
      const DecoderBatch batch = prompt(n);
      const PassTimes alone = later(n);
      for (const Kind& kind : kKinds) {
        if (report_.late()) {
          return;
        }
        constexpr std::int64_t kList = 32 << 20;
        const std::int64_t bytes = std::min(kind.kib * 1024, options_.copy_bytes);
        std::vector<std::vector<CopyPiece>> lists;
        if (kind.in) {
          lists.push_back(pieces(Way::to_device, bytes, kList / bytes));
        }
        if (kind.out) {
          lists.push_back(pieces(Way::to_host, bytes, kList / bytes));
        }
        std::vector<double> times;
        std::vector<double> rates;
        for (int i = 0; i < std::min(options_.samples, 5); ++i) {
          const BesideTimes one = pass_beside(batch, lists);
          times.push_back(one.device);
          rates.push_back(one.rate);
        }
        report_.row(
            {kind.name, n, alone.device * kMicro, median(times) * kMicro, median(rates) * 1e-9});
      }
    }
  }

  /// Copies again and again in a thread of its own, until it is stopped.
  class CopyLoop {
   public:
    CopyLoop(Device& device, Stream& stream, const std::vector<CopyPiece>& pieces)
        : thread_([this, &device, &stream, &pieces] {
            try {
              loop(device, stream, pieces);
            } catch (...) {
              failure_ = std::current_exception();
              running_ = true;
            }
          }) {}
    CopyLoop(const CopyLoop&) = delete;
    CopyLoop& operator=(const CopyLoop&) = delete;
    ~CopyLoop() { end(); }

    void wait_until_it_runs() const {
      while (!running_) {
        std::this_thread::yield();
      }
    }
    /// Bytes per second.
    double finish() {
      end();
      if (failure_ != nullptr) {
        std::rethrow_exception(failure_);
      }
      return rate_;
    }

   private:
    void end() {
      stopping_ = true;
      if (thread_.joinable()) {
        thread_.join();
      }
    }

    void loop(Device& device, Stream& stream, const std::vector<CopyPiece>& pieces) {
      const std::array<std::unique_ptr<Event>, 2> ends{device.make_event(), device.make_event()};
      const Clock::time_point begin = Clock::now();
      double copied = 0;
      // One list is copied while the next one is queued.
      for (std::size_t i = 0; !stopping_; ++i) {
        Event& end = *ends.at(i % 2);
        if (i >= 2) {
          end.synchronize();
          running_ = true;
        }
        device.copy_pieces(pieces, stream);
        device.record(end, stream);
        copied += bytes_of(pieces);
      }
      stream.synchronize();
      rate_ = copied / since(begin);
    }

    std::atomic<bool> stopping_ = false;
    std::atomic<bool> running_ = false;
    std::exception_ptr failure_;
    double rate_ = 0;
    /// Last member, so that the others exist before it starts.
    std::thread thread_;
  };

  struct BesideTimes {
    double device = 0;
    double rate = 0;
  };
  BesideTimes pass_beside(const DecoderBatch& batch,
                          const std::vector<std::vector<CopyPiece>>& lists) {
    std::vector<std::unique_ptr<CopyLoop>> loops;
    for (std::size_t list = 0; list < lists.size(); ++list) {
      loops.push_back(std::make_unique<CopyLoop>(device_, *copy_streams_.at(list), lists[list]));
    }
    for (const std::unique_ptr<CopyLoop>& loop : loops) {
      loop->wait_until_it_runs();
    }
    BesideTimes found{.device = pass(batch).device, .rate = 0};
    for (const std::unique_ptr<CopyLoop>& loop : loops) {
      found.rate += loop->finish();
    }
    return found;
  }

  // ---- Layers that wait for loads ----

  /// Loads of all layers by another thread, which says how many are queued or have arrived.
  class Loader {
   public:
    Loader(std::int64_t layers, std::function<void(std::int64_t)> load)
        : thread_([this, layers, load = std::move(load)] {
            try {
              for (std::int64_t layer = 0; layer < layers; ++layer) {
                load(layer);
                const std::lock_guard lock(mutex_);
                ready_ = layer + 1;
                changed_.notify_one();
              }
            } catch (...) {
              const std::lock_guard lock(mutex_);
              failure_ = std::current_exception();
              changed_.notify_one();
            }
          }) {}
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;
    ~Loader() { thread_.join(); }

    void wait_for(std::int64_t layer) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ready_ > layer || failure_ != nullptr; });
      if (failure_ != nullptr) {
        std::rethrow_exception(failure_);
      }
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::int64_t ready_ = 0;
    std::exception_ptr failure_;
    std::thread thread_;
  };

  void layer_waits() {
    open_copy_streams();
    report_.table("layer_waits", "a pass whose layers wait for loads, wall time in microseconds",
                  {"tokens", "loaded tokens", "pass alone", "copies alone",
                   "events recorded before", "thread queues copies", "thread waits for copies"});
    const std::int64_t layers = decoder_.shape().layers;
    std::vector<std::unique_ptr<Event>> arrived;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      arrived.push_back(device_.make_event());
    }
    for (const std::int64_t n : sizes({37, 137, 411})) {
      const DecoderBatch batch = prompt(n);
      const double alone = later(n).wall;
      for (const std::int64_t loaded : {loaded_max() / 4, loaded_max()}) {
        if (report_.late()) {
          return;
        }
        const Bytes bytes = loaded * pool_.row_bytes();
        const Buffer host(device_, MemoryKind::pinned, layers * bytes);
        std::fill_n(host.data(), host.size().value, std::byte{0});
        Stream& copies = *copy_streams_.front();
        const auto load = [&](std::int64_t layer) {
          // Slots behind those of the pass.
          device_.copy(pool_.row(layer, pool_.slots() - loaded),
                       host.data() + (layer * bytes).value, bytes, copies);
          device_.record(*arrived[static_cast<std::size_t>(layer)], copies);
        };
        const auto wait = [&](std::int64_t layer) {
          device_.wait(*stream_, *arrived[static_cast<std::size_t>(layer)]);
        };
        const auto walls = [&](const std::function<void()>& once) {
          std::vector<double> times;
          for (int i = 0; i < options_.samples; ++i) {
            stream_->synchronize();
            copies.synchronize();
            const Clock::time_point begin = Clock::now();
            once();
            stream_->synchronize();
            copies.synchronize();
            times.push_back(since(begin));
          }
          return median(times);
        };
        const auto queue_all = [&] {
          for (std::int64_t layer = 0; layer < layers; ++layer) {
            load(layer);
          }
        };
        const double copied = walls(queue_all);
        const double before = walls([&] {
          queue_all();
          decoder_.forward(batch, pool_, *stream_, {.before_layer = wait, .after_layer = {}});
        });
        const double queued = walls([&] {
          Loader loader(layers, load);
          decoder_.forward(batch, pool_, *stream_,
                           {.before_layer =
                                [&](std::int64_t layer) {
                                  loader.wait_for(layer);
                                  wait(layer);
                                },
                            .after_layer = {}});
        });
        const double waited = walls([&] {
          Loader loader(layers, [&](std::int64_t layer) {
            load(layer);
            arrived[static_cast<std::size_t>(layer)]->synchronize();
          });
          decoder_.forward(batch, pool_, *stream_,
                           {.before_layer = [&](std::int64_t layer) { loader.wait_for(layer); },
                            .after_layer = {}});
        });
        report_.row({n, loaded, alone * kMicro, copied * kMicro, before * kMicro, queued * kMicro,
                     waited * kMicro});
      }
    }
  }

  struct Table {
    const char* name;
    void (Probe::*measure)();
  };
  /// The important ones come first.
  static constexpr std::array<Table, 8> kTables{Table{"first_passes", &Probe::first_passes},
                                                Table{"new_sizes", &Probe::new_sizes},
                                                Table{"layer_waits", &Probe::layer_waits},
                                                Table{"beside_copies", &Probe::beside_copies},
                                                Table{"idle_times", &Probe::idle_times},
                                                Table{"operations", &Probe::operations},
                                                Table{"between_decodes", &Probe::between_decodes},
                                                Table{"copies", &Probe::copies}};

  const Options& options_;
  Device& device_;
  Report& report_;
  std::int64_t decode_past_;
  Decoder decoder_;
  KvPool pool_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_;
  std::unique_ptr<Event> end_;
  std::array<std::optional<Areas>, 2> areas_;
  std::array<std::unique_ptr<Stream>, 2> copy_streams_;
};

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{"Passes of a decoder and copies on a device, in tables"};
  app.add_option("--device", o.device, "cpu, cpu:THREADS or cuda:N")->capture_default_str();
  app.add_option("--model", o.model, "a model's preset or the path of a config.json")
      ->capture_default_str();
  app.add_option("--json", o.json, "file for the figures, rewritten after each row");
  app.add_option("--seconds", o.seconds, "no row begins after this time")->capture_default_str();
  app.add_option("--longest", o.longest, "most tokens of a pass")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--samples", o.samples, "samples of each time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--tables", o.tables, "only these tables");
  app.add_option("--copy-bytes", o.copy_bytes, "memory for copies each way, in bytes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{65536}, std::int64_t{1} << 40));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

void run(const Options& o) {
  const ModelConfig model = resolve_model(o.model, ConfigDirectory::find(""), "--model");
  const std::unique_ptr<Device> device = open_device(parse_device_name(o.device));
  Report report(o, device->info());
  fmt::print("{} ({}), {}\n", device->info().name, device->info().kind, model.name);
  Probe(o, model, *device, report).run();
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  using namespace kvtier::bench;  // NOLINT(google-build-using-namespace)
  return exit_code_of("device_probe", [&] { run(parse(argc, argv)); });
}
