/// Ways to attend a few new tokens to KV in scattered slots, as in Pensieve's Fig. 10 (arXiv
/// 2312.05516): multi-query attention through the slots, the same after copying the KV out to
/// contiguous memory, the case where it already is contiguous, and one query at a time. Their limit
/// is what it takes to read the slots once, in the same order, and nothing else.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
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
#include "tests/bench/device_program.hpp"

namespace kvtier::bench {
namespace {

struct Options {
  std::string device = "cpu";
  bool float16 = false;
  std::int64_t batch = 32;
  std::vector<std::int64_t> added{8};
  std::vector<std::int64_t> past;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 128;
  double seconds = 1;
  std::vector<std::string> ways;
  std::string json;
};

/// Columns of the table.
enum Way {
  multi_query,
  multi_query_rope,
  copy_out,
  contiguous,
  single_query,
  gather_limit,
  flashinfer,
  kWays
};
constexpr const char* kNames[kWays] = {"multi_query", "multi_query_rope", "copy_out",
                                       "contiguous",  "single_query",     "gather_limit",
                                       "flashinfer"};

/// One layer's KV of a batch in random slots, and what attends to it.
class Scene {
 public:
  Scene(Device& device, const Options& options, std::int64_t added, std::int64_t past)
      : device_(device),
        options_(options),
        added_(added),
        context_(past + added),
        tokens_(options.batch * context_),
        shape_{.layers = 1,
               .query_heads = options.query_heads,
               .kv_heads = options.kv_heads,
               .head_dim = options.head_dim},
        pool_(device, shape_, tokens_),
        packed_(device, shape_, tokens_) {
    RandomStream random(1, "bench/attention");
    fill(pool_, random);
    fill(packed_, random);
    slots_ = calibrate::on_device<std::int32_t>(device, calibrate::shuffled(tokens_, random));
    std::vector<std::int32_t> in_order(static_cast<std::size_t>(tokens_));
    std::iota(in_order.begin(), in_order.end(), 0);
    in_order_ = calibrate::on_device<std::int32_t>(device, in_order);
    folded_ = Buffer(device, MemoryKind::device, Bytes(4 * tokens_));
    const std::int64_t row = options.query_heads * options.head_dim;
    const Bytes size = options.batch * added * row * device.info().element;
    queries_ = Buffer(device, MemoryKind::device, size);
    calibrate::fill_random(device, queries_, random);
    output_ = Buffer(device, MemoryKind::device, size);
    whole_ = begins(context_, added, AttentionLibrary::own);
    for (int way = 0; way < kWays; ++way) {
      if (wants(static_cast<Way>(way))) {
        ways_.push_back(static_cast<Way>(way));
      }
    }
    if (measures(flashinfer)) {
      with_flashinfer_ = begins(context_, added, AttentionLibrary::flashinfer);
    }
  }

  /// Those to measure, in the order of their columns.
  [[nodiscard]] const std::vector<Way>& ways() const { return ways_; }

  /// Bytes of K and V if the batch reads each once.
  [[nodiscard]] Bytes kv_bytes() const { return tokens_ * pool_.row_bytes(); }

  void queue(Way way, Stream& stream) {
    switch (way) {
      case multi_query:
        return attend(pool_, slots_, 0, stream);
      case multi_query_rope:
        return attend(pool_, slots_, kRopeBase, stream);
      case copy_out:
        device_.gather(rows(packed_.layer(0)), stream);
        return attend(packed_, in_order_, 0, stream);
      case contiguous:
        return attend(packed_, in_order_, 0, stream);
      case single_query:
        return attend_one_by_one(stream);
      case gather_limit:
        return device_.fold(rows(folded_.data()), stream);
      case flashinfer: {
        AttentionWork one = work(pool_, slots_);
        one.plan = with_flashinfer_.plan.get();
        return device_.attention(one, stream);
      }
      case kWays:
        break;
    }
  }

  /// Runs the ways that give the same and throws if they do not.
  void verify() {
    calibrate::StreamTimer once(device_);
    const auto result = [&](Way way) {
      device_.write_elements(
          output_.data(),
          std::vector<float>(static_cast<std::size_t>(output_.size() / device_.info().element)));
      (void)once.seconds([&](Stream& stream, std::int64_t) { queue(way, stream); });
      std::vector<float> values(static_cast<std::size_t>(output_.size() / device_.info().element));
      device_.read_elements(values, output_.data());
      return values;
    };
    // Behind it the packed side has the same KV for `contiguous`.
    const std::vector<float> copied = result(copy_out);
    const double tolerance = device_.info().element == Bytes(4) ? 1e-5 : 1e-2;
    for (const Way way : {multi_query, contiguous, single_query, flashinfer}) {
      if (!measures(way)) {
        continue;
      }
      const std::vector<float> values =
          way == single_query ? in_token_order(result(way)) : result(way);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (!(std::abs(values[i] - copied[i]) <= tolerance)) {
          throw DeviceError(
              fmt::format("{} and copy_out differ: {} and {}", kNames[way], values[i], copied[i]));
        }
      }
    }
  }

 private:
  static constexpr double kRopeBase = 10000;

  struct Begins {
    Buffer contexts;
    Buffer queries;
    std::unique_ptr<AttentionPlan> plan;
  };
  /// For each request: contexts of so many tokens, so many queries.
  Begins begins(std::int64_t context, std::int64_t queries, AttentionLibrary library) {
    std::vector<std::int64_t> context_begin;
    std::vector<std::int64_t> query_begin;
    for (std::int64_t r = 0; r <= options_.batch; ++r) {
      context_begin.push_back(r * context);
      query_begin.push_back(r * queries);
    }
    Begins all{.contexts = calibrate::on_device<std::int64_t>(device_, context_begin),
               .queries = calibrate::on_device<std::int64_t>(device_, query_begin),
               .plan = nullptr};
    const auto stream = device_.make_stream();
    device_.plan_attention(all.plan, library, shape_of_heads(), context_begin, query_begin,
                           *stream);
    stream->synchronize();
    return all;
  }

  [[nodiscard]] kernels::PagedAttentionShape shape_of_heads() const {
    return {.query_heads = shape_.query_heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .kv_stride = 2 * shape_.kv_heads * shape_.head_dim};
  }

  /// Without a list, all ways that the device has.
  [[nodiscard]] bool wants(Way way) const {
    if (way == flashinfer &&
        !device_.has_attention(AttentionLibrary::flashinfer, shape_of_heads())) {
      return false;
    }
    return options_.ways.empty() || std::ranges::count(options_.ways, kNames[way]) > 0;
  }
  [[nodiscard]] bool measures(Way way) const { return std::ranges::count(ways_, way) > 0; }

  void fill(const KvPool& pool, RandomStream& random) {
    Buffer values(device_, MemoryKind::device, pool.layer_bytes());
    calibrate::fill_random(device_, values, random);
    const auto stream = device_.make_stream();
    device_.copy(pool.layer(0), values.data(), values.size(), *stream);
    stream->synchronize();
  }

  [[nodiscard]] RowWork rows(void* to) const {
    return {.from = pool_.layer(0),
            .to = to,
            .slots = slots_.as<std::int32_t>(),
            .rows = tokens_,
            .row = pool_.row_bytes()};
  }

  [[nodiscard]] AttentionWork work(const KvPool& pool, const Buffer& slots) const {
    AttentionWork work{.shape = shape_of_heads(),
                       .queries = queries_.data(),
                       .keys = pool.layer(0),
                       .values = pool.layer(0) + pool.row_bytes().value / 2,
                       .output = output_.data(),
                       .context_max = context_};
    work.plan = whole_.plan.get();
    work.batch = {.requests = options_.batch,
                  .slots = slots.as<std::int32_t>(),
                  .context_begin = whole_.contexts.as<std::int64_t>(),
                  .query_begin = whole_.queries.as<std::int64_t>()};
    return work;
  }

  void attend(const KvPool& pool, const Buffer& slots, double rope_base, Stream& stream) {
    AttentionWork one = work(pool, slots);
    one.rope_base = rope_base;
    device_.attention(one, stream);
  }

  /// Query i of every request with the tokens up to it.
  void attend_one_by_one(Stream& stream) {
    if (shorter_.empty()) {
      for (std::int64_t i = 0; i < added_; ++i) {
        std::vector<std::int32_t> slots;
        std::vector<std::int32_t> all(static_cast<std::size_t>(tokens_));
        device_.copy(all.data(), slots_.data(), slots_.size(), stream);
        stream.synchronize();
        const std::int64_t length = context_ - added_ + i + 1;
        for (std::int64_t r = 0; r < options_.batch; ++r) {
          const auto begin = all.begin() + r * context_;
          slots.insert(slots.end(), begin, begin + length);
        }
        shorter_.push_back({calibrate::on_device<std::int32_t>(device_, slots),
                            begins(length, 1, AttentionLibrary::own)});
      }
    }
    const Bytes step =
        options_.batch * shape_.query_heads * shape_.head_dim * device_.info().element;
    for (std::int64_t i = 0; i < added_; ++i) {
      const Step& s = shorter_[static_cast<std::size_t>(i)];
      AttentionWork one = work(pool_, s.slots);
      one.context_max = context_ - added_ + i + 1;
      one.plan = s.begins.plan.get();
      one.batch.context_begin = s.begins.contexts.as<std::int64_t>();
      // The queries of one step lie together, as those of a batch do.
      one.batch.query_begin = s.begins.queries.as<std::int64_t>();
      // Rows [step][request] here, [request][step] in the other ways.
      one.shape.query_stride = added_ * shape_.query_heads * shape_.head_dim;
      one.queries = queries_.data() +
                    (i * shape_.query_heads * shape_.head_dim * device_.info().element).value;
      one.output = output_.data() + (i * step).value;
      device_.attention(one, stream);
    }
  }

  [[nodiscard]] std::vector<float> in_token_order(const std::vector<float>& steps) const {
    std::vector<float> values(steps.size());
    const std::int64_t row = shape_.query_heads * shape_.head_dim;
    for (std::int64_t i = 0; i < added_; ++i) {
      for (std::int64_t r = 0; r < options_.batch; ++r) {
        std::copy_n(steps.begin() + (i * options_.batch + r) * row, row,
                    values.begin() + (r * added_ + i) * row);
      }
    }
    return values;
  }

  struct Step {
    Buffer slots;
    Begins begins;
  };

  Device& device_;
  const Options& options_;
  std::int64_t added_;
  std::int64_t context_;
  std::int64_t tokens_;
  DecoderShape shape_;
  KvPool pool_;
  KvPool packed_;
  Buffer slots_;
  Buffer in_order_;
  Buffer folded_;
  Buffer queries_;
  Buffer output_;
  Begins whole_;
  Begins with_flashinfer_;
  std::vector<Way> ways_;
  std::vector<Step> shorter_;
};

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app("Ways of attention to KV in scattered slots (Pensieve, Fig. 10), one layer");
  app.add_option("--device", o.device, "cpu or cuda:N")->capture_default_str();
  app.add_flag("--float16", o.float16, "float16 instead of bfloat16 on a GPU");
  app.add_option("--batch", o.batch, "requests")->capture_default_str();
  app.add_option("--new", o.added, "new tokens of each request; a table for each number")
      ->capture_default_str();
  app.add_option("--past", o.past,
                 "lengths of the past (1024 to 16384 by 2; 1024 to 4096 on the host)")
      ->delimiter(',');
  app.add_option("--query-heads", o.query_heads, "40 (OPT-13B); 4 on the host");
  app.add_option("--kv-heads", o.kv_heads, "as many as query heads");
  app.add_option("--head-dim", o.head_dim, "")->capture_default_str();
  app.add_option("--seconds", o.seconds, "for each cell, or longer if six runs take longer")
      ->capture_default_str();
  app.add_option("--ways", o.ways, "columns to measure (all)")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kNames), std::end(kNames))));
  app.add_option("--json", o.json, "file for the figures");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  const bool host = o.device == "cpu";
  if (o.past.empty()) {
    o.past = calibrate::geometric(1024, host ? 4096 : 16384, 2);
  }
  o.query_heads = o.query_heads > 0 ? o.query_heads : host ? 4 : 40;
  o.kv_heads = o.kv_heads > 0 ? o.kv_heads : o.query_heads;
  return o;
}

/// The median of one way, by rules that a disturbed machine relaxes.
nlohmann::ordered_json measured(Device& device, const Options& o, Scene& scene, Way way) {
  calibrate::StreamTimer timer(device);
  const auto sample = [&] {
    return timer.seconds([&](Stream& stream, std::int64_t) { scene.queue(way, stream); });
  };
  constexpr int kFewest = 5;
  constexpr double kPatience = 10;
  calibrate::StopRules rules{.warm_up = 1,
                             .samples_min = kFewest,
                             .samples_max = 200,
                             .relative_error = 0.01,
                             .budget_seconds = std::max(o.seconds, (kFewest + 1) * sample())};
  calibrate::SchedulerMonitor quiet;
  calibrate::NoMonitor none;
  const auto measure = [&](calibrate::DisturbanceMonitor& monitor) {
    return calibrate::measure(rules, 0, sample, calibrate::steady_clock(), monitor, [] {});
  };
  calibrate::Measured found;
  try {
    found = measure(quiet);
  } catch (const calibrate::OverBudget&) {
    // Other work may have delayed one sample for longer than a short budget.
    rules.budget_seconds *= kPatience;
    found = measure(none);
  }
  const bool disturbed = found.n == 0;
  if (disturbed) {
    found = measure(none);
  }
  const auto bytes = static_cast<double>(scene.kv_bytes().value);
  fmt::print("{:>25}", fmt::format("{:.3f} ({:.1f}){}", found.median_seconds * 1e3,
                                   bytes / found.median_seconds * 1e-9, disturbed ? "*" : ""));
  std::fflush(stdout);
  return {{"p25_seconds", found.p25_seconds},
          {"median_seconds", found.median_seconds},
          {"p75_seconds", found.p75_seconds},
          {"samples", found.n},
          {"disturbed", disturbed}};
}

void run(const Options& o) {
  DeviceName name = parse_device_name(o.device);
  name.element = o.float16 ? ElementType::float16 : ElementType::bfloat16;
  const std::unique_ptr<Device> device = open_device(name);
  const DeviceInfo& info = device->info();
  fmt::print("{} ({}), batch {}, {} query heads on {} KV heads of {}, one layer\n", info.name,
             info.kind, o.batch, o.query_heads, o.kv_heads, o.head_dim);
  fmt::print("median milliseconds; GB/s of KV in brackets\n");
  nlohmann::ordered_json json{{"schema", "kvtier.attention_bench/2"},
                              {"device", info.name},
                              {"kind", info.kind},
                              {"element_bytes", info.element.value},
                              {"batch", o.batch},
                              {"query_heads", o.query_heads},
                              {"kv_heads", o.kv_heads},
                              {"head_dim", o.head_dim},
                              {"cells", nlohmann::ordered_json::array()}};
  for (const std::int64_t added : o.added) {
    bool headed = false;
    for (const std::int64_t past : o.past) {
      const Bytes needed =
          3 * o.batch * (past + added) * 2 * o.kv_heads * o.head_dim * info.element;
      if (needed > device->free_memory(MemoryKind::device)) {
        fmt::print("{:>8}{:>8}  too little memory\n", added, past);
        continue;
      }
      Scene scene(*device, o, added, past);
      scene.verify();
      if (!std::exchange(headed, true)) {
        fmt::print("{:>8}{:>8}", "new", "past");
        for (const Way way : scene.ways()) {
          fmt::print("{:>25}", kNames[way]);
        }
        fmt::print("\n");
      }
      nlohmann::ordered_json cell{
          {"new_tokens", added}, {"past_tokens", past}, {"kv_bytes", scene.kv_bytes().value}};
      fmt::print("{:>8}{:>8}", added, past);
      for (const Way way : scene.ways()) {
        cell[kNames[way]] = measured(*device, o, scene, way);
      }
      fmt::print("\n");
      json["cells"].push_back(std::move(cell));
      if (!o.json.empty()) {
        write_text_output(o.json, json.dump(2) + "\n");
      }
    }
  }
  fmt::print("* other work ran on the machine during every sample\n");
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  using namespace kvtier::bench;  // NOLINT(google-build-using-namespace)
  return exit_code_of("attention_bench", [&] { run(parse(argc, argv)); });
}
