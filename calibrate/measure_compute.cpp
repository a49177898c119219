#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "calibrate/measure.hpp"
#include "hw/profile/profile_timing.hpp"
#include "sim/core/errors.hpp"

namespace kvtier::calibrate {
namespace {

/// Memory shared by the cells of a table, allocated for the first.
template <class T>
class Lazy {
 public:
  explicit Lazy(std::function<std::shared_ptr<T>()> make) : make_(std::move(make)) {}
  std::shared_ptr<T> get() {
    if (value_ == nullptr) {
      value_ = make_();
    }
    return value_;
  }

 private:
  std::function<std::shared_ptr<T>()> make_;
  std::shared_ptr<T> value_;
};

void expect_close(double found, double expected, double scale, double tolerance,
                  const std::string& what) {
  if (!(std::abs(found - expected) <= tolerance * scale)) {
    throw DeviceError(
        fmt::format("{}: the device computed {}, {} is right", what, found, expected));
  }
}

/// Tolerance of a sum of products in the device's element: a few units in the last place of the
/// largest.
double tolerance(const Device& device) { return device.info().element == Bytes(4) ? 1e-4 : 3e-2; }

std::vector<float> read(Device& device, const std::byte* from, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  device.read_elements(values, from);
  return values;
}

/// gemm. Weights are cold: at least three sets take turns, which fill twice the largest cache.
class Matrices {
 public:
  Matrices(const Target& target, std::int64_t elements) : device_(target.device) {
    RandomStream random(target.seed, "calibrate/weights");
    weights = Buffer(device_, MemoryKind::device, Bytes(elements * device_.info().element.value));
    fill_random(device_, weights, random);
  }

  Sample prepare(const MatrixShape& shape, std::int64_t tokens) {
    struct Rows {
      Buffer input;
      Buffer output;
    };
    const std::int64_t element = device_.info().element.value;
    RandomStream random(1, "calibrate/activations");
    auto rows = std::make_shared<Rows>();
    rows->input = Buffer(device_, MemoryKind::device, Bytes(tokens * shape.k * element));
    rows->output = Buffer(device_, MemoryKind::device, Bytes(tokens * shape.n * element));
    fill_random(device_, rows->input, random);
    const std::int64_t set = shape.n * shape.k * element;
    const std::int64_t sets = weights.size().value / set;
    const auto queue = [this, rows, set, sets, shape, tokens](Stream& stream, std::int64_t i) {
      device_.gemm({.input = rows->input.data(),
                    .weights = weights.data() + i % sets * set,
                    .output = rows->output.data(),
                    .m = tokens,
                    .n = shape.n,
                    .k = shape.k},
                   stream);
    };
    StreamTimer once(device_);
    (void)once.seconds(queue);
    verify(shape, tokens, rows->input, rows->output);
    return stream_sample(device_, queue, rows);
  }

 private:
  /// Verifies the last number of the last row.
  void verify(const MatrixShape& shape, std::int64_t tokens, const Buffer& input,
              const Buffer& output) {
    const std::int64_t element = device_.info().element.value;
    const auto row = read(device_, input.data() + (tokens - 1) * shape.k * element, shape.k);
    const auto column = read(device_, weights.data() + (shape.n - 1) * shape.k * element, shape.k);
    double sum = 0;
    double scale = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double product = static_cast<double>(row[i]) * static_cast<double>(column[i]);
      sum += product;
      scale += std::abs(product);
    }
    const auto found = read(device_, output.data() + (tokens * shape.n - 1) * element, 1);
    expect_close(static_cast<double>(found[0]), sum, scale, tolerance(device_),
                 fmt::format("{} x {} x {}", tokens, shape.k, shape.n));
  }

  Device& device_;
  Buffer weights;
};

std::vector<PlannedTable> plan_matrices(const Target& target) {
  const DeviceInfo& info = target.device.info();
  const std::int64_t element = info.element.value;
  std::vector<MatrixShape> shapes = layer_matrices(target.model, 1);
  shapes.push_back(head_matrix(target.model, 1));
  std::int64_t largest = 0;
  for (const MatrixShape& shape : shapes) {
    largest = std::max(largest, shape.n * shape.k);
  }
  constexpr std::int64_t kSets = 3;
  const std::int64_t elements = std::max(kSets * largest, 2 * info.limits.cache.value / element);
  const auto matrices = std::make_shared<Lazy<Matrices>>(
      [target, elements] { return std::make_shared<Matrices>(target, elements); });
  std::vector<std::int64_t> grid = target.full ? geometric(1, 16384, 2) : geometric(1, 2048, 2);
  // Kernels change at multiples of their tiles.
  grid.insert(grid.end(), {17, 65, 129});
  std::ranges::sort(grid);
  std::vector<PlannedTable> tables;
  for (const MatrixShape& shape : shapes) {
    PlannedTable planned{.rules = rules_of(target)};
    planned.table = {.operation = OperationId::gemm,
                     .variant = std::string(shape.name),
                     .method = info.kind == "cpu" ? "cblas_sgemm" : "cublasLtMatmul",
                     .cache = CacheState::cold,
                     .shape = {{"n", shape.n}, {"k", shape.k}, {"element_bytes", element}},
                     .axes = {"tokens"}};
    planned.cell_at = [matrices, shape, element, elements,
                       limits = info.limits](const Place& place) -> PlannedCell {
      const std::int64_t tokens = place.at[0];
      const auto n = static_cast<double>(shape.n);
      const auto k = static_cast<double>(shape.k);
      const auto m = static_cast<double>(tokens);
      const double bytes = static_cast<double>(element) * (n * k + m * (n + k));
      return {
          .at = place.at,
          .limit_seconds = std::max(2 * m * n * k / limits.flops_per_second,
                                    bytes / limits.memory_bytes_per_second),
          .memory = Bytes(element * (elements + tokens * (shape.n + shape.k))),
          .prepare = [matrices, shape, tokens] { return matrices->get()->prepare(shape, tokens); }};
    };
    for (const std::int64_t tokens : grid) {
      planned.cells.push_back(planned.cell_at({{tokens}}));
    }
    tables.push_back(std::move(planned));
  }
  return tables;
}

/// The project's kernels on stored keys, the same with rotation of keys and queries, or
/// FlashInfer's kernels on stored keys.
enum class Kernels { plain, rotating, flashinfer };

/// KV of one layer in random slots, for the three attentions. It is larger than the largest cache,
/// and each sample reads other tokens.
class KvPool {
 public:
  KvPool(const Target& target, std::int64_t tokens)
      : device_(target.device),
        shape_{.query_heads = target.model.attention_heads,
               .kv_heads = target.model.kv_heads,
               .head_dim = target.model.head_dim},
        tokens_(tokens) {
    RandomStream random(target.seed, "calibrate/kv");
    const Bytes size(tokens * row_bytes());
    for (Buffer* buffer : {&keys_, &values_}) {
      *buffer = Buffer(device_, MemoryKind::device, size);
      fill_random(device_, *buffer, random);
    }
    const std::vector<std::int32_t> once = shuffled(tokens, random);
    // The list is repeated once, so that every window of tokens is contiguous.
    std::vector<std::int32_t> places = once;
    places.insert(places.end(), once.begin(), once.end());
    slots_ = on_device<std::int32_t>(device_, places);
  }

  [[nodiscard]] std::int64_t row_bytes() const {
    return shape_.kv_heads * shape_.head_dim * device_.info().element.value;
  }

  /// Parts are [new tokens, past tokens].
  Sample prepare(const std::vector<std::vector<std::int64_t>>& parts, Kernels kernels) {
    const bool rotates = kernels == Kernels::rotating;
    struct Batch {
      Buffer queries;
      Buffer output;
      Buffer context_begin;
      Buffer query_begin;
      std::unique_ptr<AttentionPlan> plan;
      AttentionWork work;
      std::int64_t context = 0;
    };
    std::vector<std::int64_t> context_begin{0};
    std::vector<std::int64_t> query_begin{0};
    auto batch = std::make_shared<Batch>();
    AttentionWork& work = batch->work;
    for (const auto& part : parts) {
      query_begin.push_back(query_begin.back() + part[0]);
      context_begin.push_back(context_begin.back() + part[0] + part[1]);
      work.context_max = std::max(work.context_max, part[0] + part[1]);
    }
    batch->context = context_begin.back();
    const std::int64_t query_row = shape_.query_heads * shape_.head_dim;
    const Bytes size(query_begin.back() * query_row * device_.info().element.value);
    RandomStream random(1, "calibrate/queries");
    batch->queries = Buffer(device_, MemoryKind::device, size);
    fill_random(device_, batch->queries, random);
    batch->output = Buffer(device_, MemoryKind::device, size);
    batch->context_begin = on_device<std::int64_t>(device_, context_begin);
    batch->query_begin = on_device<std::int64_t>(device_, query_begin);
    work.shape = shape_;
    work.rope_base = rotates ? kRopeBase : 0;
    work.queries = batch->queries.data();
    work.keys = keys_.data();
    work.values = values_.data();
    work.output = batch->output.data();
    work.batch = {.requests = static_cast<std::int64_t>(parts.size()),
                  .slots = slots_.as<std::int32_t>(),
                  .context_begin = batch->context_begin.as<std::int64_t>(),
                  .query_begin = batch->query_begin.as<std::int64_t>()};
    const auto planning = device_.make_stream();
    device_.plan_attention(
        batch->plan,
        kernels == Kernels::flashinfer ? AttentionLibrary::flashinfer : AttentionLibrary::own,
        shape_, context_begin, query_begin, *planning);
    planning->synchronize();
    work.plan = batch->plan.get();
    const auto queue = [this, batch](Stream& stream, std::int64_t i) {
      AttentionWork turn = batch->work;
      turn.batch.slots += i * batch->context % tokens_;
      device_.attention(turn, stream);
    };
    StreamTimer once(device_);
    (void)once.seconds(queue);
    verify(batch->queries, batch->output, query_begin.back(), context_begin, rotates);
    return stream_sample(device_, queue, batch);
  }

 private:
  /// Verifies the first head of the last query against the definition of attention.
  void verify(const Buffer& queries, const Buffer& output, std::int64_t query_rows,
              const std::vector<std::int64_t>& context_begin, bool rotates) {
    constexpr std::int64_t kLongestVerified = 16384;
    if (context_begin.back() - context_begin[context_begin.size() - 2] > kLongestVerified) {
      return;  // the same kernel was verified on fewer tokens
    }
    const std::int64_t width = shape_.head_dim;
    const std::int64_t at =
        (query_rows - 1) * shape_.query_heads * width * device_.info().element.value;
    std::vector<float> query = read(device_, queries.data() + at, width);
    const std::int64_t first = context_begin[context_begin.size() - 2];
    const auto turn = [&](std::vector<float>& head, std::int64_t place) {
      if (rotates) {
        rotate(head, place - first);
      }
    };
    turn(query, context_begin.back() - 1);
    const std::vector<float> found = read(device_, output.data() + at, width);
    const std::int64_t tokens = context_begin.back() - first;
    const std::vector<float> keys = first_heads(keys_, first, tokens);
    const std::vector<float> values = first_heads(values_, first, tokens);
    std::vector<double> sums(query.size());
    double total = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<float> key(keys.begin() + t * width, keys.begin() + (t + 1) * width);
      turn(key, first + t);
      const auto value = values.begin() + t * width;
      double score = 0;
      for (std::size_t d = 0; d < query.size(); ++d) {
        score += static_cast<double>(query[d]) * static_cast<double>(key[d]);
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
      total += weight;
      for (std::size_t d = 0; d < query.size(); ++d) {
        sums[d] += weight * static_cast<double>(value[static_cast<std::ptrdiff_t>(d)]);
      }
    }
    for (std::size_t d = 0; d < query.size(); ++d) {
      expect_close(static_cast<double>(found[d]), sums[d] / total, 1, tolerance(device_),
                   "attention");
    }
  }

  /// The first heads of these tokens' keys or values, packed on the device. Reading them one by one
  /// takes minutes.
  [[nodiscard]] std::vector<float> first_heads(const Buffer& from, std::int64_t first,
                                               std::int64_t tokens) const {
    const Bytes row = shape_.head_dim * device_.info().element;
    const Buffer packed(device_, MemoryKind::device, tokens * row);
    const std::unique_ptr<Stream> stream = device_.make_stream();
    device_.gather({.from = from.data(),
                    .to = packed.data(),
                    .slots = slots_.as<std::int32_t>() + first,
                    .rows = tokens,
                    .row = row,
                    .slot_stride = Bytes(row_bytes())},
                   *stream);
    stream->synchronize();
    return read(device_, packed.data(), tokens * shape_.head_dim);
  }

  /// Rotates numbers i and i + half by position x base^(-2i / width).
  static void rotate(std::vector<float>& head, std::int64_t position) {
    const std::size_t half = head.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(half);
      const double angle = static_cast<double>(position) * std::pow(kRopeBase, -share);
      const auto a = static_cast<double>(head[i]);
      const auto b = static_cast<double>(head[i + half]);
      head[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
      head[i + half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
    }
  }

  static constexpr double kRopeBase = 10000;

  Device& device_;
  kernels::PagedAttentionShape shape_;
  std::int64_t tokens_;
  Buffer keys_;
  Buffer values_;
  Buffer slots_;
};

class AttentionTables {
 public:
  explicit AttentionTables(const Target& target) : target_(target) {
    const DeviceInfo& info = target.device.info();
    row_bytes_ = 2 * target.model.kv_heads * target.model.head_dim * info.element.value;
    // The pool takes half of the memory, for the longest contexts, and at least twice the cache.
    pool_tokens_ = std::max(target.memory.value / 2, 2 * info.limits.cache.value) / row_bytes_;
    pool_tokens_ =
        std::min(pool_tokens_, std::max(longest(), 2 * info.limits.cache.value / row_bytes_));
    pool_ = std::make_shared<Lazy<KvPool>>(
        [target, tokens = pool_tokens_] { return std::make_shared<KvPool>(target, tokens); });
  }

  std::vector<PlannedTable> tables() {
    std::vector<PlannedTable> tables;
    const bool own = target_.attention == AttentionLibrary::own;
    for (const Kernels kernels : {own ? Kernels::plain : Kernels::flashinfer, Kernels::rotating}) {
      tables.push_back(extend(kernels));
      tables.push_back(decode(kernels));
      tables.push_back(ragged(kernels));
    }
    // FlashInfer's tables follow the project's own, because a simulation takes the first match.
    if (own && target_.device.has_attention(AttentionLibrary::flashinfer,
                                            attention_heads(target_.model))) {
      tables.push_back(extend(Kernels::flashinfer));
      tables.push_back(decode(Kernels::flashinfer));
    }
    return tables;
  }

 private:
  using Parts = std::vector<std::vector<std::int64_t>>;

  [[nodiscard]] std::int64_t longest() const {
    return target_.full ? std::int64_t{1} << 20 : std::int64_t{1} << 17;
  }

  [[nodiscard]] PlannedTable table(OperationId operation, const char* variant,
                                   Kernels kernels) const {
    const ModelConfig& model = target_.model;
    PlannedTable planned{.rules = rules_of(target_)};
    planned.table = {.operation = operation,
                     .variant = kernels == Kernels::rotating     ? kRotatedVariant
                                : kernels == Kernels::flashinfer ? kFlashInferVariant
                                                                 : variant,
                     .method = kernels == Kernels::flashinfer ? "FlashInfer, pages of one token"
                               : target_.device.info().kind == "cpu"
                                   ? "paged kernel, slots of one token"
                                   : "paged kernels on tensor cores, slots of one token",
                     .cache = CacheState::cold,
                     .shape = {{"attention_heads", model.attention_heads},
                               {"kv_heads", model.kv_heads},
                               {"head_dim", model.head_dim},
                               {"element_bytes", target_.device.info().element.value}},
                     .axes = profile_operation(operation).axes};
    return planned;
  }

  [[nodiscard]] PlannedCell cell(std::vector<std::int64_t> at, const Parts& parts,
                                 Kernels kernels) const {
    const DeviceLimits& limits = target_.device.info().limits;
    double flops = 0;
    std::int64_t context = 0;
    for (const auto& part : parts) {
      const auto n = static_cast<double>(part[0]);
      const double pairs = n * static_cast<double>(part[1]) + n * (n + 1) / 2;
      flops += pairs * attention_flops_per_pair_layer(target_.model);
      context += part[0] + part[1];
    }
    // Contexts longer than the pool have no memory.
    const std::int64_t needed = std::max(context, pool_tokens_) * row_bytes_;
    const double bytes = static_cast<double>(context * row_bytes_);
    return {
        .at = std::move(at),
        .limit_seconds =
            std::max(flops / limits.flops_per_second, bytes / limits.memory_bytes_per_second),
        .memory =
            Bytes(context > pool_tokens_ ? std::max(needed, target_.memory.value + 1) : needed),
        .prepare = [pool = pool_, parts, kernels] { return pool->get()->prepare(parts, kernels); }};
  }

  [[nodiscard]] PlannedTable extend(Kernels kernels) const {
    PlannedTable planned = table(OperationId::prefill_attention, "random_slots", kernels);
    const auto added =
        target_.full ? geometric(1, 8192, 2) : std::vector<std::int64_t>{1, 8, 32, 128, 512, 2048};
    std::vector<std::int64_t> past{0};
    for (const std::int64_t p :
         target_.full ? geometric(128, 131072, 2) : geometric(128, 8192, 4)) {
      past.push_back(p);
    }
    planned.cell_at = [self = *this, kernels](const Place& place) {
      return self.cell(place.at, {place.at}, kernels);
    };
    for (const std::int64_t n : added) {
      for (const std::int64_t p : past) {
        planned.cells.push_back(planned.cell_at({{n, p}}));
      }
    }
    return planned;
  }

  [[nodiscard]] PlannedTable decode(Kernels kernels) const {
    PlannedTable planned = table(OperationId::decode_attention, "random_slots", kernels);
    const auto batches =
        target_.full ? geometric(1, 512, 2) : std::vector<std::int64_t>{1, 2, 4, 8, 16, 32};
    planned.cell_at = [self = *this, kernels](const Place& place) {
      const Parts parts(static_cast<std::size_t>(place.at[0]),
                        std::vector<std::int64_t>{1, place.at[1] - 1});
      return self.cell(place.at, parts, kernels);
    };
    // Contexts are closer to each other here, because interpolation is least accurate.
    for (const std::int64_t batch : batches) {
      for (const std::int64_t context :
           target_.full ? geometric(16, 131072, 2) : geometric(16, 8192, 2)) {
        planned.cells.push_back(planned.cell_at({{batch, context}}));
      }
    }
    return planned;
  }

  /// Batches like a server's: most requests decode, some prefill, and lengths are lognormal.
  [[nodiscard]] PlannedTable ragged(Kernels kernels) const {
    PlannedTable planned = table(OperationId::ragged_attention, "mixed", kernels);
    planned.cell_at = [self = *this, kernels](const Place& place) {
      PlannedCell cell = self.cell(place.at, place.parts, kernels);
      cell.parts = place.parts;
      return cell;
    };
    RandomStream random(target_.seed, "calibrate/ragged");
    const std::int64_t cases = target_.full ? 50 : 8;
    for (std::int64_t i = 0; i < cases; ++i) {
      constexpr std::int64_t kLargestBatch = 16;
      constexpr double kPrefillShare = 0.2;
      const std::int64_t requests = 1 + random.index(kLargestBatch);
      Parts parts;
      for (std::int64_t r = 0; r < requests; ++r) {
        const double median_past = 500;
        const double median_added = 60;
        const std::int64_t added =
            random.uniform() < kPrefillShare
                ? 1 + static_cast<std::int64_t>(random.lognormal(std::log(median_added), 1))
                : 1;
        const auto past = static_cast<std::int64_t>(random.lognormal(std::log(median_past), 1));
        parts.push_back({std::min<std::int64_t>(added, 2048), std::min<std::int64_t>(past, 8192)});
      }
      planned.cells.push_back(planned.cell_at({{i}, parts}));
    }
    return planned;
  }

  Target target_;
  std::int64_t row_bytes_ = 0;
  std::int64_t pool_tokens_ = 0;
  std::shared_ptr<Lazy<KvPool>> pool_;
};

/// elementwise and rotation. Rows lie in memory larger than the cache and each repetition takes the
/// next ones.
class Rows {
 public:
  explicit Rows(const Target& target) : device_(target.device) {
    RandomStream random(target.seed, "calibrate/rows");
    const Bytes size(std::max(2 * device_.info().limits.cache.value, target.memory.value / 8));
    from_ = Buffer(device_, MemoryKind::device, size);
    to_ = Buffer(device_, MemoryKind::device, size);
    fill_random(device_, from_, random);
    fill_random(device_, to_, random);
    constexpr std::int64_t kMostSlots = std::int64_t{1} << 18;
    slots_ = on_device<std::int32_t>(device_, shuffled(kMostSlots, random));
  }
  [[nodiscard]] static Bytes memory(const Target& target) {
    return Bytes(2 *
                 std::max(2 * target.device.info().limits.cache.value, target.memory.value / 8));
  }

  /// `rows` rows of `from_bytes`, which become rows of `to_bytes`.
  Sample prepare(std::int64_t from_bytes, std::int64_t to_bytes,
                 std::function<void(const std::byte*, std::byte*, Stream&)> queue) {
    const std::int64_t from_places = std::max<std::int64_t>(1, from_.size().value / from_bytes);
    const std::int64_t to_places = std::max<std::int64_t>(1, to_.size().value / to_bytes);
    return stream_sample(
        device_,
        [this, from_bytes, to_bytes, from_places, to_places, queue = std::move(queue)](
            Stream& stream, std::int64_t i) {
          queue(from_.data() + i % from_places * from_bytes, to_.data() + i % to_places * to_bytes,
                stream);
        },
        0);
  }
  [[nodiscard]] const std::int32_t* slots() const { return slots_.as<std::int32_t>(); }
  [[nodiscard]] std::byte* from() const { return from_.data(); }
  [[nodiscard]] std::byte* to() const { return to_.data(); }
  [[nodiscard]] Bytes size() const { return from_.size(); }
  [[nodiscard]] Device& device() const { return device_; }

 private:
  Device& device_;
  Buffer from_;
  Buffer to_;
  Buffer slots_;
};

class RowPlan {
 public:
  explicit RowPlan(const Target& target)
      : target_(target),
        rows_(std::make_shared<Lazy<Rows>>([target] { return std::make_shared<Rows>(target); })) {}

  std::vector<PlannedTable> tables() {
    const ModelConfig& model = target_.model;
    const std::int64_t kv_width = 2 * model.kv_heads * model.head_dim;
    function_table("norm", RowFunction::norm, model.hidden_size, 1, model.hidden_size);
    function_table("residual", RowFunction::add, model.hidden_size, 2, model.hidden_size);
    function_table("activation",
                   model.gated_mlp ? RowFunction::gated_activation : RowFunction::activation,
                   model.intermediate_size, model.gated_mlp ? 2 : 1, model.intermediate_size);
    function_table("sampling", RowFunction::sample, model.vocabulary_size, 1, 1);
    moving_table("embedding", model.hidden_size, true);
    moving_table("kv_write", kv_width, false);
    rope_table("rope", model.attention_heads + model.kv_heads);
    rope_table("re_embed", model.kv_heads);
    return std::move(tables_);
  }

 private:
  [[nodiscard]] std::int64_t element() const { return target_.device.info().element.value; }

  [[nodiscard]] std::vector<std::int64_t> grid() const {
    return target_.full ? geometric(1, 65536, 2) : geometric(1, 4096, 8);
  }

  PlannedTable& add(OperationId operation, const char* variant,
                    std::map<std::string, std::int64_t> shape) {
    shape["element_bytes"] = element();
    PlannedTable planned{.rules = rules_of(target_)};
    planned.table = {.operation = operation,
                     .variant = variant,
                     .method = "row kernel",
                     .cache = CacheState::cold,
                     .shape = std::move(shape),
                     .axes = {"tokens"}};
    tables_.push_back(std::move(planned));
    return tables_.back();
  }

  /// Bytes that a number of tokens reads and writes, and the sample of them.
  struct Work {
    std::int64_t read = 0;
    std::int64_t written = 0;
    std::function<Sample(Rows&)> prepare;
  };

  void fill(PlannedTable& planned, std::function<Work(std::int64_t tokens)> work) const {
    planned.cell_at = [target = target_, rows = rows_,
                       work = std::move(work)](const Place& place) -> PlannedCell {
      Work one = work(place.at[0]);
      const Bytes shared = Rows::memory(target);
      return {
          .at = place.at,
          .limit_seconds = static_cast<double>(one.read + one.written) /
                           target.device.info().limits.memory_bytes_per_second,
          .memory = std::max(one.read, one.written) > shared.value / 2
                        ? Bytes(target.memory.value + 1)
                        : shared,
          .prepare = [rows, prepare = std::move(one.prepare)] { return prepare(*rows->get()); }};
    };
    for (const std::int64_t tokens : grid()) {
      planned.cells.push_back(planned.cell_at({{tokens}}));
    }
  }

  void function_table(const char* variant, RowFunction function, std::int64_t width,
                      std::int64_t inputs, std::int64_t outputs) {
    PlannedTable& planned = add(OperationId::elementwise, variant, {{"width", width}});
    fill(planned, [=, element = element()](std::int64_t tokens) -> Work {
      const std::int64_t read = tokens * inputs * width * element;
      const std::int64_t written = tokens * outputs * std::max<std::int64_t>(element, 4);
      return {read, written, [=](Rows& rows) {
                verify(rows, function, width);
                return rows.prepare(
                    read, written,
                    [=, &rows](const std::byte* from, std::byte* to, Stream& stream) {
                      rows.device().row_function({.function = function,
                                                  .input = from,
                                                  .other = from + tokens * width * element,
                                                  .output = to,
                                                  .rows = tokens,
                                                  .width = width},
                                                 stream);
                    });
              }};
    });
  }

  /// Verifies the first number of one row against the definition.
  static void verify(Rows& rows, RowFunction function, std::int64_t width) {
    Device& device = rows.device();
    StreamTimer once(device);
    (void)once.seconds([&](Stream& stream, std::int64_t) {
      device.row_function({.function = function,
                           .input = rows.from(),
                           .other = rows.from() + width * device.info().element.value,
                           .output = rows.to(),
                           .rows = 1,
                           .width = width},
                          stream);
    });
    const std::vector<float> input = read(device, rows.from(), 2 * width);
    const auto x = static_cast<double>(input[0]);
    if (function == RowFunction::sample) {
      std::int32_t found = -1;
      device.copy(&found, rows.to(), Bytes(sizeof found), once.stream());
      once.stream().synchronize();
      const auto expected =
          std::ranges::max_element(input.begin(), input.begin() + width) - input.begin();
      expect_close(found, static_cast<double>(expected), 1, 0, "sampling");
      return;
    }
    const auto second = static_cast<double>(input[static_cast<std::size_t>(width)]);
    double expected = x / (1 + std::exp(-x)) * second;
    if (function == RowFunction::add) {
      expected = x + second;
    } else if (function == RowFunction::activation) {
      expected = x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    } else if (function == RowFunction::norm) {
      double squares = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        const auto value = static_cast<double>(input[static_cast<std::size_t>(i)]);
        squares += value * value;
      }
      expected = x / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    }
    expect_close(static_cast<double>(read(device, rows.to(), 1)[0]), expected, 1, tolerance(device),
                 "row function");
  }

  /// Rows by random slots: gathered from an embedding, or scattered into the KV.
  void moving_table(const char* variant, std::int64_t width, bool gathers) {
    PlannedTable& planned = add(OperationId::elementwise, variant, {{"width", width}});
    planned.table.method = gathers ? "gather of rows" : "scatter of rows";
    fill(planned, [gathers, row = width * element()](std::int64_t tokens) -> Work {
      return {tokens * row, tokens * row, [=](Rows& rows) {
                return slot_sample(rows, tokens, row,
                                   [&rows, gathers](const RowWork& work, Stream& stream) {
                                     if (gathers) {
                                       rows.device().gather(work, stream);
                                     } else {
                                       RowWork back = work;
                                       back.from = work.to;
                                       back.to = rows.from();
                                       rows.device().scatter(back, stream);
                                     }
                                   });
              }};
    });
  }

  void rope_table(const char* variant, std::int64_t heads) {
    const std::int64_t width = target_.model.head_dim;
    PlannedTable& planned =
        add(OperationId::rotation, variant, {{"heads", heads}, {"head_dim", width}});
    planned.table.method = "rows by random slots, rotated";
    fill(planned, [=, row = heads * width * element()](std::int64_t tokens) -> Work {
      return {tokens * row, tokens * row, [=](Rows& rows) {
                return slot_sample(
                    rows, tokens, row, [&rows, heads, width](const RowWork& work, Stream& stream) {
                      rows.device().rope({.rows = work, .heads = heads, .head_dim = width}, stream);
                    });
              }};
    });
  }

  /// Slots are those that fit in memory; the packed side takes turns.
  static Sample slot_sample(Rows& rows, std::int64_t tokens, std::int64_t row,
                            std::function<void(const RowWork&, Stream&)> queue) {
    const std::int64_t fit = rows.size().value / row;
    RandomStream random(1, "calibrate/slots");
    struct Slots {
      Buffer places;
    };
    auto slots = std::make_shared<Slots>();
    slots->places = on_device<std::int32_t>(rows.device(), shuffled(fit, random));
    const std::int64_t windows = std::max<std::int64_t>(1, fit / tokens);
    return stream_sample(
        rows.device(),
        [&rows, slots, tokens, row, windows, queue = std::move(queue)](Stream& stream,
                                                                       std::int64_t i) {
          const std::int64_t window = i % windows * tokens;
          queue({.from = rows.from(),
                 .to = rows.to() + window * row,
                 .slots = slots->places.as<std::int32_t>() + window,
                 .rows = tokens,
                 .row = Bytes(row)},
                stream);
        },
        slots);
  }

  const Target& target_;
  std::shared_ptr<Lazy<Rows>> rows_;
  std::vector<PlannedTable> tables_;
};

}  // namespace

std::vector<PlannedTable> plan_compute(const Target& target) {
  std::vector<PlannedTable> tables = plan_matrices(target);
  std::ranges::move(AttentionTables(target).tables(), std::back_inserter(tables));
  std::ranges::move(RowPlan(target).tables(), std::back_inserter(tables));
  return tables;
}

}  // namespace kvtier::calibrate
