#include "tests/hw/device/device_checks.hpp"

#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <random>

#include "kernels/rope_attention.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

constexpr double kFloat = 0x1p-24;

/// e4m3: a sign, four bits of exponent with a bias of 7, three of mantissa. 0x7f is no number.
float value_of_float8(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double value =
      exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * std::ldexp(1.0, exponent - 10);
  return static_cast<float>(code < 128 ? value : -value);
}

/// The nearest e4m3 number, or 0x7f if `x` is no number.
std::uint8_t float8_of(float x) {
  constexpr std::uint8_t kNone = 0x7f;
  static const std::vector<float> values = [] {
    std::vector<float> all;
    for (std::uint8_t code = 0; code < kNone; ++code) {
      all.push_back(value_of_float8(code));
    }
    return all;
  }();
  if (std::isnan(x)) {
    return kNone;
  }
  const float size = std::abs(x);
  auto code = std::ranges::lower_bound(values, size) - values.begin();
  const auto at = [&](std::ptrdiff_t i) { return values[static_cast<std::size_t>(i)]; };
  if (code == std::ssize(values) || (code > 0 && size - at(code - 1) < at(code) - size)) {
    --code;
  }
  return static_cast<std::uint8_t>(x < 0 ? code | 0x80 : code);
}

/// How far attention of one request may be off, for each number of its output.
class AttentionBound {
 public:
  /// With `rotates`, the device rotates keys and queries itself. The given ones are rotated
  /// already.
  AttentionBound(const Device& device, bool rotates, const std::vector<double>& q,
                 const std::vector<double>& k, const std::vector<double>& v,
                 const kernels::AttentionShape& shape, const std::vector<double>& expected)
      : bounds_(q.size()) {
    // Scores: sums of `width` products in any order, of numbers that took up to four roundings when
    // they were turned, are off by (width + 12) f |q| |k| scale. f is 2^-24 for float; tensor cores
    // round sums down, 2^-23. Turned numbers are rounded to elements of 16 bits, a share u = 2^-8
    // (bfloat16) or 2^-11 (float16) each: 2 u times the sum over pairs of |q pair| |k pair| scale,
    // whatever position the pair is turned to.
    // Weights: with S the largest score, rounding the argument of exp is worth S 2^-21, exp itself
    // 2^-21 as often as the maximum changes, 20 times at most here, and the sum over a context of n
    // (n + 8) f. So the weight of key j is off by a share e_j of itself, the output by the sum of
    // e_j w_j (|v_j| + |output|). Weights are rounded to elements before they meet the values: u
    // times the sum of w_j |v_j|, and for float16 2^-25 of the largest weight for each key.
    const bool narrow = device.info().element_type != ElementType::float32;
    const double u = narrow ? rounding(device) : 0;
    const double f = narrow ? 2 * kFloat : kFloat;
    const double tiny = device.info().element_type == ElementType::float16 ? 0x1p-25 : 0;
    const std::size_t width = shape.head_dim;
    const std::size_t context = k.size() / (shape.kv_heads * width);
    const std::size_t count = q.size() / (shape.query_heads * width);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    const std::vector<double> key_pairs = pairs_of(k, width);
    const std::vector<double> query_pairs = pairs_of(q, width);
    const std::size_t half = width / 2;
    std::vector<double> scores(context);
    std::vector<double> shares(context);
    for (std::size_t row = 0; row < count * shape.query_heads; ++row) {
      const std::size_t head = row % shape.query_heads / (shape.query_heads / shape.kv_heads);
      const std::size_t sees = context - count + row / shape.query_heads + 1;
      double top = 0;
      double highest = -INFINITY;
      for (std::size_t j = 0; j < sees; ++j) {
        const std::size_t key = j * shape.kv_heads + head;
        const double dot =
            std::inner_product(&q[row * width], &q[row * width] + width, &k[key * width], 0.0);
        const double most =
            std::inner_product(&query_pairs[row * half], &query_pairs[row * half] + half,
                               &key_pairs[key * half], 0.0) *
            scale;
        scores[j] = dot * scale;
        shares[j] = (static_cast<double>(width) + 12) * f * most + (rotates ? 2.02 * u * most : 0);
        top = std::max(top, most);
        highest = std::max(highest, scores[j]);
      }
      double total = 0;
      for (std::size_t j = 0; j < sees; ++j) {
        scores[j] = std::exp(scores[j] - highest);
        total += scores[j];
      }
      const double same = top * 0x1p-21 + 20 * 0x1p-21 + (static_cast<double>(sees) + 8) * f;
      std::vector<double> off(width);
      double mean_share = 0;
      for (std::size_t j = 0; j < sees; ++j) {
        const double weight = scores[j] / total;
        const double share = weight * (shares[j] + same);
        const double* const value = &v[(j * shape.kv_heads + head) * width];
        mean_share += share;
        for (std::size_t d = 0; d < width; ++d) {
          off[d] += (1.05 * share + 1.01 * u * weight + tiny / total) * std::abs(value[d]);
        }
      }
      for (std::size_t d = 0; d < width; ++d) {
        const double right = std::abs(expected[row * width + d]);
        bounds_[row * width + d] =
            off[d] + (1.05 * mean_share + rounding(device)) * right + rounding_at_zero(device);
      }
    }
  }

  [[nodiscard]] double at(std::size_t i) const { return bounds_[i]; }

 private:
  /// The length of each pair (i, i + width / 2) of each head.
  static std::vector<double> pairs_of(const std::vector<double>& x, std::size_t width) {
    std::vector<double> lengths;
    for (std::size_t head = 0; head < x.size(); head += width) {
      for (std::size_t i = 0; i < width / 2; ++i) {
        lengths.push_back(std::hypot(x[head + i], x[head + i + width / 2]));
      }
    }
    return lengths;
  }

  std::vector<double> bounds_;
};

}  // namespace

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(engine()) / 2147483648.0F - 1;
  }
  return values;
}

Buffer elements_on(Device& device, const std::vector<float>& values) {
  Buffer buffer(device, MemoryKind::device,
                static_cast<std::int64_t>(values.size()) * device.info().element);
  device.write_elements(buffer.data(), values);
  return buffer;
}

std::vector<float> elements_from(Device& device, const void* from, std::size_t count) {
  std::vector<float> values(count);
  device.read_elements(values, from);
  return values;
}

double rounding(const Device& device) {
  switch (device.info().element_type) {
    case ElementType::bfloat16:
      return 0x1p-8;
    case ElementType::float16:
      return 0x1p-11;
    case ElementType::float32:
      break;
  }
  return kFloat;
}

double rounding_at_zero(const Device& device) {
  return device.info().element_type == ElementType::float16 ? 0x1p-25 : 0x1p-126;
}

std::vector<AttentionCase> attention_cases() {
  using Requests = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const auto shape = [](std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim) {
    return kernels::PagedAttentionShape{
        .query_heads = query_heads, .kv_heads = kv_heads, .head_dim = head_dim};
  };
  // Around the tiles of 16 queries, 32 and 64 keys, and 256 keys that eight warps take in a round.
  const Requests decode{{1, 1},  {1, 15}, {1, 16}, {1, 17},  {1, 31},  {1, 32},  {1, 33},
                        {1, 63}, {1, 64}, {1, 65}, {1, 255}, {1, 257}, {1, 1100}};
  const Requests prefill{{1, 1},   {15, 15}, {16, 16}, {17, 17},  {31, 31},
                         {32, 32}, {33, 33}, {65, 65}, {129, 129}};
  const Requests extend{{8, 300}, {15, 47}, {16, 48}, {17, 49}, {33, 290}, {2, 1025}};
  const Requests mixed{{1, 100}, {0, 40}, {7, 7}, {0, 0}, {20, 120}, {1, 1}, {3, 66}, {0, 5}};
  constexpr double kBase = 10000;
  std::vector<AttentionCase> cases;
  for (const double base : {0.0, kBase}) {
    const std::string rope = base > 0 ? "Rope" : "";
    const auto add = [&](const char* name, const kernels::PagedAttentionShape& heads,
                         const Requests& requests) -> AttentionCase& {
      cases.push_back(
          {.name = name + rope, .shape = heads, .requests = requests, .rope_base = base});
      return cases.back();
    };
    add("Decode64", shape(4, 4, 64), decode);
    add("Decode128", shape(2, 2, 128), decode);
    add("DecodeGrouped128", shape(8, 1, 128), decode);
    add("Prefill64", shape(2, 2, 64), prefill);
    add("PrefillGrouped128", shape(6, 2, 128), prefill);
    add("Extend64", shape(8, 2, 64), extend);
    add("Extend128", shape(2, 2, 128), extend);
    add("Mixed64", shape(2, 1, 64), mixed);
    add("Mixed128", shape(4, 2, 128), mixed);
    add("NarrowHead", shape(1, 1, 16), extend);
    add("OddHead", shape(2, 2, 80), extend);
    add("WidestHead", shape(6, 2, 256), extend);
    add("LargestGroup", shape(16, 1, 64), {{1, 70}, {5, 40}});
    add("Strided64", shape(4, 2, 64), mixed).strided = true;
    add("Strided128", shape(4, 4, 128), extend).strided = true;
    add("SharedPrefix", shape(4, 2, 64), {{3, 70}, {1, 65}, {10, 90}}).shared = 60;
    // The second context is the first up to its last token: a part of another's new tokens.
    add("SharedWithNewTokens", shape(2, 2, 64), {{20, 60}, {1, 50}}).shared = 49;
    // 272 items of five tiles of keys, which a GPU of 132 multiprocessors does not split.
    add("ManyTiles128", shape(8, 8, 128), Requests(34, {17, 530})).shared = 500;
    add("NothingNew", shape(2, 2, 64), {{0, 10}, {0, 0}});
    add("NoRequests", shape(2, 2, 64), {});
  }
  return cases;
}

double attention_error(Device& device, const AttentionCase& c, Mistake mistake) {
  kernels::PagedAttentionShape shape = c.shape;
  const auto width = static_cast<std::size_t>(shape.head_dim);
  const auto heads = static_cast<std::size_t>(shape.query_heads);
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const std::size_t query_row = heads * width;
  const std::size_t kv_row = kv_heads * width;
  std::vector<std::int64_t> context_begin{0};
  std::vector<std::int64_t> query_begin{0};
  AttentionWork work;
  for (const auto& [queries, context] : c.requests) {
    query_begin.push_back(query_begin.back() + queries);
    context_begin.push_back(context_begin.back() + context);
    work.context_max = std::max(work.context_max, context);
  }
  const auto tokens = static_cast<std::size_t>(context_begin.back());
  const auto queried = static_cast<std::size_t>(query_begin.back());

  // Twice as many slots as different tokens; slots outside of contexts hold no numbers.
  std::size_t different = tokens;
  for (std::size_t r = 1; r < c.requests.size(); ++r) {
    different -= static_cast<std::size_t>(std::min(c.shared, c.requests[r].second));
  }
  const std::size_t pool = 2 * different + 1;
  std::vector<std::int32_t> places(pool);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), std::mt19937(7));
  std::vector<std::int32_t> slots;
  auto place = places.begin();
  for (std::size_t r = 0; r < c.requests.size(); ++r) {
    for (std::int64_t t = 0; t < c.requests[r].second; ++t) {
      slots.push_back(r > 0 && t < c.shared ? slots[static_cast<std::size_t>(t)] : *place++);
    }
  }
  std::vector<bool> used(pool);
  for (const std::int32_t slot : slots) {
    used[static_cast<std::size_t>(slot)] = true;
  }
  const std::size_t kv_stride = c.strided ? 2 * kv_row : kv_row;
  const std::size_t query_stride = c.strided ? query_row + 2 * kv_row : query_row;
  const std::size_t values_at = c.strided ? kv_row : pool * kv_row;
  std::vector<float> kv = random_values(2 * pool * kv_row, 1);
  for (std::size_t slot = 0; slot < pool; ++slot) {
    if (!used[slot]) {
      std::fill_n(kv.begin() + static_cast<std::ptrdiff_t>(slot * kv_stride), kv_row, NAN);
      std::fill_n(kv.begin() + static_cast<std::ptrdiff_t>(values_at + slot * kv_stride), kv_row,
                  NAN);
    }
  }
  const Bytes kv_element = c.float8 ? Bytes(1) : device.info().element;
  std::vector<float> held;
  Buffer kv_on;
  if (c.float8) {
    work.kv_type = KvType::float8;
    work.key_scale = 0.75F;
    work.value_scale = 0.5F;
    std::vector<std::uint8_t> codes(kv.size());
    held.resize(kv.size());
    for (std::size_t i = 0; i < kv.size(); ++i) {
      const bool of_keys = c.strided ? i % kv_stride < kv_row : i < values_at;
      codes[i] = float8_of(kv[i]);
      held[i] = value_of_float8(codes[i]) * (of_keys ? work.key_scale : work.value_scale);
    }
    kv_on = numbers_on(device, codes);
  } else {
    kv_on = elements_on(device, kv);
    held = elements_from(device, kv_on.data(), kv.size());  // as the device holds them
  }
  const Buffer queries_on = elements_on(device, random_values(queried * query_stride + 1, 3));
  const Buffer output = elements_on(device, std::vector<float>(queried * query_row + 1, NAN));
  std::vector<std::int32_t> given = slots;
  if (mistake == Mistake::swapped_slots) {
    std::swap(given.front(), given.back());
  }
  const Buffer slots_on = numbers_on(device, given);
  const Buffer contexts_on = numbers_on(device, context_begin);
  const Buffer begins_on = numbers_on(device, query_begin);
  if (c.strided) {
    shape.query_stride = static_cast<std::int64_t>(query_stride);
    shape.kv_stride = static_cast<std::int64_t>(kv_stride);
  }
  work.shape = shape;
  work.queries = queries_on.data();
  work.keys = kv_on.data();
  work.values = kv_on.data() + (static_cast<std::int64_t>(values_at) * kv_element).value;
  work.output = output.data();
  work.batch = {.requests = static_cast<std::int64_t>(c.requests.size()),
                .slots = slots_on.as<std::int32_t>(),
                .context_begin = contexts_on.as<std::int64_t>(),
                .query_begin = begins_on.as<std::int64_t>()};
  work.rope_base = c.rope_base;
  const auto stream = device.make_stream();
  std::unique_ptr<AttentionPlan> plan;
  device.plan_attention(plan, AttentionLibrary::own, work.shape, context_begin, query_begin,
                        *stream);
  work.plan = plan.get();
  device.attention(work, *stream);
  stream->synchronize();

  const std::vector<float> found = elements_from(device, output.data(), queried * query_row);
  const std::vector<float> asked = elements_from(device, queries_on.data(), queried * query_stride);
  const kernels::AttentionShape reference{
      .query_heads = heads, .kv_heads = kv_heads, .head_dim = width, .rope_base = c.rope_base};
  double worst = 0;
  for (std::size_t r = 0; r < c.requests.size(); ++r) {
    const auto context = static_cast<std::size_t>(c.requests[r].second);
    const auto count = static_cast<std::size_t>(c.requests[r].first);
    std::vector<double> k;
    std::vector<double> v;
    for (std::size_t t = 0; t < context; ++t) {
      const std::size_t row =
          static_cast<std::size_t>(slots[static_cast<std::size_t>(context_begin[r]) + t]) *
          kv_stride;
      k.insert(k.end(), &held[row], &held[row] + kv_row);
      v.insert(v.end(), &held[values_at + row], &held[values_at + row] + kv_row);
    }
    std::vector<double> q;
    const auto first = static_cast<std::size_t>(query_begin[r]);
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = asked.begin() + static_cast<std::ptrdiff_t>((first + i) * query_stride);
      q.insert(q.end(), row, row + static_cast<std::ptrdiff_t>(query_row));
    }
    if (c.rope_base > 0) {
      std::vector<std::int64_t> positions(context);
      std::iota(positions.begin(), positions.end(), 0);
      kernels::apply_rope<double>(k, kv_heads, positions, reference);
      positions.erase(positions.begin(), positions.end() - static_cast<std::ptrdiff_t>(count));
      for (std::int64_t& position : positions) {
        position += mistake == Mistake::late_positions ? 1 : 0;
      }
      kernels::apply_rope<double>(q, heads, positions, reference);
    }
    if (mistake == Mistake::sees_next_token) {
      // One more token, so that each query sees one more.
      k.insert(k.end(), k.end() - static_cast<std::ptrdiff_t>(kv_row), k.end());
      v.insert(v.end(), v.end() - static_cast<std::ptrdiff_t>(kv_row), v.end());
    }
    std::vector<double> expected(q.size());
    kernels::attend<double>(q, k, v, reference, expected);

    const AttentionBound bound(device, c.rope_base > 0, q, k, v, reference, expected);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error =
          std::abs(static_cast<double>(found[first * query_row + i]) - expected[i]) / bound.at(i);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

std::vector<std::pair<std::string, double>> row_errors(Device& device) {
  std::vector<std::pair<std::string, double>> errors;
  const auto stream = device.make_stream();
  const double element = rounding(device);
  for (const std::int64_t rows : {0, 1, 5, 300}) {
    for (const std::int64_t width : {1, 17, 64, 1000}) {
      const auto count = static_cast<std::size_t>(rows * width);
      const auto columns = static_cast<std::size_t>(width);
      std::vector<float> wide = random_values(2 * count + 1, 5);
      std::ranges::transform(wide, wide.begin(), [](float x) { return 4 * x; });
      const Buffer input = elements_on(device, wide);
      const Buffer other = elements_on(device, random_values(count + 1, 6));
      const std::vector<float> x = elements_from(device, input.data(), 2 * count);
      const std::vector<float> y = elements_from(device, other.data(), count);
      const auto run = [&](RowFunction function) {
        Buffer output = elements_on(device, std::vector<float>(2 * count + 1, NAN));
        device.row_function({.function = function,
                             .input = input.data(),
                             .other = other.data(),
                             .output = output.data(),
                             .rows = rows,
                             .width = width},
                            *stream);
        stream->synchronize();
        return output;
      };
      // expected(i) gives the right number and the error that sums and functions in float may have.
      const auto compare = [&](const char* name, RowFunction function, const auto& expected) {
        const std::vector<float> found = elements_from(device, run(function).data(), count);
        double worst = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const auto [right, slack] = expected(i);
          const double error = std::abs(static_cast<double>(found[i]) - right) /
                               (slack + element * std::abs(right) + rounding_at_zero(device));
          worst = std::isnan(error) ? INFINITY : std::max(worst, error);
        }
        errors.emplace_back(name, worst);
      };
      compare("norm", RowFunction::norm, [&](std::size_t i) {
        double squares = 0;
        for (std::size_t d = 0; d < columns; ++d) {
          const double one = x[i / columns * columns + d];
          squares += one * one;
        }
        const double right = x[i] / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        return std::pair(right, (static_cast<double>(width) + 8) * kFloat * std::abs(right));
      });
      compare("gated_activation", RowFunction::gated_activation, [&](std::size_t i) {
        const std::size_t at = i / columns * 2 * columns + i % columns;
        const double gate = x[at];
        const double right = gate / (1 + std::exp(-gate)) * x[at + columns];
        return std::pair(right, 32 * kFloat * std::abs(right));
      });
      // Far below zero 1 + erf is a difference of almost equal numbers.
      compare("activation", RowFunction::activation, [&](std::size_t i) {
        const double one = x[i];
        return std::pair(one * 0.5 * (1 + std::erf(one / std::sqrt(2.0))),
                         8 * kFloat * std::abs(one));
      });
      compare("add", RowFunction::add, [&](std::size_t i) {
        const double right = static_cast<double>(x[i]) + static_cast<double>(y[i]);
        return std::pair(right, kFloat * std::abs(right));
      });
      const auto largest = numbers_from<std::int32_t>(device, run(RowFunction::sample).data(),
                                                      static_cast<std::size_t>(rows));
      double wrong = 0;
      for (std::size_t r = 0; r < largest.size(); ++r) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * columns);
        const auto end = begin + static_cast<std::ptrdiff_t>(columns);
        wrong += largest[r] == std::max_element(begin, end) - begin ? 0 : 2;
      }
      errors.emplace_back("sample", wrong);
    }
  }

  // Rotations: from slots to rows at positions that follow each other, and in place at positions
  // that are listed, of the first two of three heads.
  for (const std::int64_t width : {16, 64, 80, 128}) {
    constexpr std::int64_t kRows = 40;
    constexpr std::int64_t kHeads = 3;
    const std::int64_t row = kHeads * width;
    const auto count = static_cast<std::size_t>(kRows * row);
    const Buffer from = elements_on(device, random_values(count, 8));
    const std::vector<float> x = elements_from(device, from.data(), count);
    std::vector<std::int32_t> order(kRows);
    std::iota(order.rbegin(), order.rend(), 0);
    std::vector<std::int32_t> positions(kRows);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<std::int32_t>(i * i * 5);
    }
    const Buffer order_on = numbers_on(device, order);
    const Buffer positions_on = numbers_on(device, positions);
    const Buffer to = elements_on(device, std::vector<float>(count, NAN));
    const Bytes row_bytes = row * device.info().element;
    device.rope({.rows = {.from = from.data(),
                          .to = to.data(),
                          .slots = order_on.as<std::int32_t>(),
                          .rows = kRows,
                          .row = row_bytes},
                 .heads = kHeads,
                 .head_dim = width,
                 .first_position = 3000},
                *stream);
    stream->synchronize();
    const std::vector<float> gathered = elements_from(device, to.data(), count);
    device.rope({.rows = {.from = from.data(), .to = from.data(), .rows = kRows, .row = row_bytes},
                 .heads = kHeads - 1,
                 .head_dim = width,
                 .base = 500,
                 .positions = positions_on.as<std::int32_t>(),
                 .positions_end = positions.back() + 1},
                *stream);
    stream->synchronize();
    const std::vector<float> in_place = elements_from(device, from.data(), count);
    const auto worst = [&](const std::vector<float>& found, double base, std::int64_t heads,
                           const auto& source, const auto& position) {
      double largest = 0;
      for (std::int64_t i = 0; i < kRows; ++i) {
        const auto begin = x.begin() + source(i) * row;
        std::vector<double> right(begin, begin + heads * width);
        kernels::apply_rope<double>(right, static_cast<std::size_t>(heads),
                                    std::vector<std::int64_t>{position(i)},
                                    {.query_heads = 1,
                                     .kv_heads = 1,
                                     .head_dim = static_cast<std::size_t>(width),
                                     .rope_base = base});
        right.insert(right.end(), begin + heads * width, begin + row);
        for (std::size_t d = 0; d < right.size(); ++d) {
          // Two products of rounded factors and their sum; both numbers of the pair are below 1.
          const double error =
              std::abs(static_cast<double>(found[static_cast<std::size_t>(i * row) + d]) -
                       right[d]) /
              (6 * kFloat + element * std::abs(right[d]) + rounding_at_zero(device));
          largest = std::isnan(error) ? INFINITY : std::max(largest, error);
        }
      }
      return largest;
    };
    errors.emplace_back("rope by slots",
                        worst(
                            gathered, 10000, kHeads, [&](std::int64_t i) { return kRows - 1 - i; },
                            [](std::int64_t i) { return 3000 + i; }));
    errors.emplace_back("rope in place",
                        worst(
                            in_place, 500, kHeads - 1, [](std::int64_t i) { return i; },
                            [](std::int64_t i) { return i * i * 5; }));
  }
  return errors;
}

double fill_error(Device& device) {
  // More numbers than the threads of a launch, and no multiple of a block or a part.
  constexpr std::int64_t kCount = 3'000'001;
  constexpr float kBound = 0.75F;
  constexpr std::uint64_t kSeed = 7;
  const Buffer filled = elements_on(device, std::vector<float>(kCount + 1, 2));
  const auto stream = device.make_stream();
  device.fill_uniform(filled.data(), kCount, kBound, kSeed, *stream);
  stream->synchronize();
  const std::vector<float> values = elements_from(device, filled.data(), kCount + 1);
  double error = values.back() == 2 ? 0 : 1;
  for (std::int64_t i = 0; i < kCount; ++i) {
    // The 24 upper bits of the same generator, as the other streams of numbers have it.
    const std::uint64_t bits = random_bits_at(kSeed, static_cast<std::uint64_t>(i)) >> 40;
    const double wanted = kBound * (static_cast<double>(bits) * 0x1p-23 - 1);
    error = std::max(error, std::abs(values[static_cast<std::size_t>(i)] - wanted));
  }
  return error;
}

std::string moved_rows_differ(Device& device) {
  constexpr std::size_t kRows = 700;
  constexpr std::size_t kRow = 48;
  const auto stream = device.make_stream();
  std::vector<std::int32_t> slots(kRows);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
  const Buffer slots_on = numbers_on(device, slots);
  for (const std::size_t gap : {0, 16, 64}) {
    for (const bool listed : {true, false}) {
      const std::size_t packed_stride = kRow + gap;
      const std::size_t slot_stride = kRow + 2 * gap;
      std::vector<std::uint8_t> bytes(kRows * slot_stride);
      std::mt19937 engine(4);
      std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(engine()); });
      const Buffer pool = numbers_on(device, bytes);
      const Buffer packed = numbers_on(device, std::vector<std::uint8_t>(kRows * packed_stride, 7));
      const Buffer back = numbers_on(device, std::vector<std::uint8_t>(bytes.size(), 9));
      const Buffer folded = numbers_on(device, std::vector<std::uint32_t>(kRows));
      RowWork work{.from = pool.data(),
                   .to = packed.data(),
                   .slots = listed ? slots_on.as<std::int32_t>() : nullptr,
                   .rows = kRows,
                   .row = Bytes(kRow)};
      if (gap > 0) {
        work.packed_stride = Bytes(static_cast<std::int64_t>(packed_stride));
        work.slot_stride = Bytes(static_cast<std::int64_t>(slot_stride));
      }
      device.gather(work, *stream);
      RowWork fold = work;
      fold.to = folded.data();
      device.fold(fold, *stream);
      work.from = packed.data();
      work.to = back.data();
      device.scatter(work, *stream);
      stream->synchronize();
      const auto gathered =
          numbers_from<std::uint8_t>(device, packed.data(), kRows * packed_stride);
      const auto scattered = numbers_from<std::uint8_t>(device, back.data(), bytes.size());
      const auto sums = numbers_from<std::uint32_t>(device, folded.data(), kRows);
      for (std::size_t i = 0; i < kRows; ++i) {
        const std::size_t slot = listed ? static_cast<std::size_t>(slots[i]) : i;
        for (std::size_t b = 0; b < packed_stride; ++b) {
          const std::uint8_t right = b < kRow ? bytes[slot * slot_stride + b] : 7;
          if (gathered[i * packed_stride + b] != right) {
            return "gather";
          }
        }
        for (std::size_t b = 0; b < slot_stride; ++b) {
          const std::uint8_t right = b < kRow ? bytes[slot * slot_stride + b] : 9;
          if (scattered[slot * slot_stride + b] != right) {
            return "scatter";
          }
        }
        std::uint32_t sum = 0;
        for (std::size_t b = 0; b < kRow; ++b) {
          sum ^= static_cast<std::uint32_t>(bytes[slot * slot_stride + b]) << (8 * (b % 4));
        }
        if (sums[i] != sum) {
          return "fold";
        }
      }
    }
  }
  return "";
}

std::string moved_pieces_differ(Device& device) {
  const auto stream = device.make_stream();
  std::mt19937 engine(5);
  device.copy_pieces({}, *stream);
  std::vector<std::uint8_t> bytes(300000);
  std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(engine()); });
  const Buffer from = numbers_on(device, bytes);
  const Buffer host(device, MemoryKind::pinned, from.size());
  const Buffer back = numbers_on(device, std::vector<std::uint8_t>(bytes.size()));
  std::vector<CopyPiece> out;
  std::vector<CopyPiece> in;
  const std::int64_t sizes[] = {1, 15, 16, 17, 4096, 31, 100000, 3};
  std::int64_t at = 0;
  for (std::size_t i = 0; at < from.size().value; ++i) {
    const std::int64_t size = std::min(sizes[i % std::size(sizes)], from.size().value - at);
    out.push_back({host.data() + at, from.data() + at, Bytes(size)});
    in.push_back({back.data() + at, host.data() + at, Bytes(size)});
    at += size;
  }
  std::ranges::shuffle(out, engine);
  device.copy_pieces(out, *stream);
  device.copy_pieces(in, *stream);
  stream->synchronize();
  if (numbers_from<std::uint8_t>(device, back.data(), bytes.size()) != bytes) {
    return "pieces";
  }
  // Rows at different distances on each side.
  constexpr std::int64_t kRows = 50;
  constexpr std::int64_t kRow = 48;
  constexpr std::int64_t kPitch = 1000;
  constexpr std::int64_t kHostPitch = 64;
  constexpr std::int64_t kBackPitch = 3000;
  const Buffer spread = numbers_on(device, std::vector<std::uint8_t>(bytes.size()));
  const CopyPiece rows_out{.to = host.data(),
                           .from = from.data(),
                           .bytes = Bytes(kRow),
                           .rows = kRows,
                           .to_pitch = Bytes(kHostPitch),
                           .from_pitch = Bytes(kPitch)};
  const CopyPiece rows_in{.to = spread.data(),
                          .from = host.data(),
                          .bytes = Bytes(kRow),
                          .rows = kRows,
                          .to_pitch = Bytes(kBackPitch),
                          .from_pitch = Bytes(kHostPitch)};
  device.copy_pieces({&rows_out, 1}, *stream);
  device.copy_pieces({&rows_in, 1}, *stream);
  stream->synchronize();
  std::vector<std::uint8_t> expected(bytes.size());
  for (std::int64_t row = 0; row < kRows; ++row) {
    std::copy_n(bytes.begin() + row * kPitch, kRow, expected.begin() + row * kBackPitch);
  }
  if (numbers_from<std::uint8_t>(device, spread.data(), bytes.size()) != expected) {
    return "rows";
  }
  // Uploads of whole and broken units of 16 bytes, to the last byte.
  for (const std::int64_t size : {0, 1, 15, 16, 100, 4097, 299999}) {
    std::ranges::copy(bytes, host.as<std::uint8_t>());
    const Buffer uploaded = numbers_on(device, std::vector<std::uint8_t>(bytes.size()));
    device.upload(uploaded.data(), host.data(), Bytes(size), *stream);
    stream->synchronize();
    expected.assign(bytes.size(), 0);
    std::copy_n(bytes.begin(), size, expected.begin());
    if (numbers_from<std::uint8_t>(device, uploaded.data(), bytes.size()) != expected) {
      return "upload";
    }
  }
  return "";
}

std::string streams_lose_order(Device& device) {
  constexpr std::int64_t kLayers = 12;
  constexpr std::int64_t kPlaces = 3;
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kRows = 40;
  const std::int64_t count = kRows * kWidth;
  const Bytes layer = count * device.info().element;
  const Buffer host(device, MemoryKind::pinned, kLayers * layer);
  const Buffer back(device, MemoryKind::pinned, kLayers * layer);
  const Buffer ring(device, MemoryKind::device, kPlaces * layer);
  const Buffer doubled(device, MemoryKind::device, kPlaces * layer);
  const std::vector<float> values = random_values(static_cast<std::size_t>(kLayers * count), 11);
  {
    const Buffer all = elements_on(device, values);
    const auto stream = device.make_stream();
    device.copy(host.data(), all.data(), all.size(), *stream);
    stream->synchronize();
  }
  const auto loads = device.make_stream();
  const auto computes = device.make_stream();
  const auto saves = device.make_stream();
  // Each stream has a thread, as in a server; the threads queue work in turns.
  const auto in_thread = [](const auto& work) {
    return std::async(std::launch::async, work).get();
  };
  const auto events = [&] {
    std::vector<std::unique_ptr<Event>> made;
    for (std::int64_t i = 0; i < kLayers; ++i) {
      made.push_back(device.make_event());
    }
    return made;
  };
  const auto loaded = in_thread(events);
  const auto computed = in_thread(events);
  const auto saved = in_thread(events);
  const auto at = [](const auto& list, std::int64_t i) -> Event& {
    return *list[static_cast<std::size_t>(i)];
  };
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::int64_t place = i % kPlaces * layer.value;
    in_thread([&] {
      if (i >= kPlaces) {
        device.wait(*loads, at(computed, i - kPlaces));
      }
      device.copy(ring.data() + place, host.data() + i * layer.value, layer, *loads);
      device.record(at(loaded, i), *loads);
    });
    in_thread([&] {
      device.wait(*computes, at(loaded, i));
      if (i >= kPlaces) {
        device.wait(*computes, at(saved, i - kPlaces));
      }
      device.row_function({.function = RowFunction::add,
                           .input = ring.data() + place,
                           .other = ring.data() + place,
                           .output = doubled.data() + place,
                           .rows = kRows,
                           .width = kWidth},
                          *computes);
      device.record(at(computed, i), *computes);
    });
    in_thread([&] {
      device.wait(*saves, at(computed, i));
      const CopyPiece halves[] = {
          {back.data() + i * layer.value, doubled.data() + place, layer / 2},
          {back.data() + i * layer.value + layer.value / 2,
           doubled.data() + place + layer.value / 2, layer / 2}};
      device.copy_pieces(halves, *saves);
      device.record(at(saved, i), *saves);
    });
  }
  in_thread([&] { at(saved, kLayers - 1).synchronize(); });
  if (device.seconds_between(at(loaded, 0), at(saved, kLayers - 1)) < 0) {
    return "time";
  }
  const Buffer found_on(device, MemoryKind::device, back.size());
  device.copy(found_on.data(), back.data(), back.size(), *saves);
  saves->synchronize();
  const std::vector<float> found = elements_from(device, found_on.data(), values.size());
  const Buffer once = elements_on(device, values);
  const std::vector<float> held = elements_from(device, once.data(), values.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] != 2 * held[i]) {
      return "layer " + std::to_string(i / static_cast<std::size_t>(count));
    }
  }
  return "";
}

}  // namespace kvtier
