#include "sim/study/sweep/sweep_axis.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr const char* kKeyWord = "key";
constexpr const char* kSampleWord = "sample";

/// The two forms of an axis with listed values.
struct LabelledAxis {
  std::string name;
  std::vector<AxisValue> values;
};
template <class V>
void describe(V& v, LabelledAxis& c) {
  v.field("name", c.name, "Name in tables.", required());
  v.field("values", c.values, "Values of the axis, in order.", required());
}

struct KeyAxis {
  std::string name;
  std::string key;
  std::vector<AnyJson> values;
};
template <class V>
void describe(V& v, KeyAxis& c) {
  v.field("name", c.name, "Name in tables.", required());
  v.field(kKeyWord, c.key, "JSON pointer of the key that the axis sets.", required());
  v.field("values", c.values, "The key's values, in order.", required());
}

std::string label_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

/// An end of a range: a number and its unit.
struct End {
  double number = 0;
  std::string unit;
  bool is_whole = false;
};
std::optional<End> parse_end(const Json& json) {
  if (json.is_number()) {
    return End{json.get<double>(), "", json.is_number_integer()};
  }
  if (!json.is_string()) {
    return std::nullopt;
  }
  const auto& text = json.get_ref<const std::string&>();
  End end;
  const auto [rest, error] =
      std::from_chars(text.data(), text.data() + text.size(), end.number, std::chars_format::fixed);
  end.unit = std::string(rest, text.data() + text.size());
  end.is_whole = end.number == std::floor(end.number) && text.find('.') == std::string::npos;
  return error == std::errc() && !end.unit.empty() ? std::optional(end) : std::nullopt;
}

void check_range(const SampledKey& key, const std::string& pointer, Problems& problems) {
  const std::optional<End> from = parse_end(key.from.json);
  const std::optional<End> to = parse_end(key.to.json);
  const auto check_end = [&](const char* name, const AnyJson& end, bool is_end) {
    if (!is_end) {
      problems.add(pointer + "/" + name,
                   "expected a number or a quantity, got " + quote_json(end.json));
    }
  };
  check_end("from", key.from, from.has_value());
  check_end("to", key.to, to.has_value());
  if (!from || !to) {
    return;
  }
  if (from->unit != to->unit) {
    problems.add(pointer + "/to", fmt::format("expected the unit of from, {}, got {}",
                                              quote_text(from->unit), quote_json(key.to.json)));
  } else if (from->number >= to->number) {
    problems.add(pointer + "/to", fmt::format("expected more than from, {}, got {}",
                                              label_of(key.from.json), label_of(key.to.json)));
  } else if (key.scale == Scale::log && from->number <= 0) {
    problems.add(pointer + "/from", fmt::format("expected more than 0 on a log scale, got {}",
                                                label_of(key.from.json)));
  }
}

void check_sampled(const SampledAxis& axis, const std::string& pointer, Problems& problems) {
  if (axis.keys.empty()) {
    problems.add(pointer + "/keys", "expected one key at least, got []");
  }
  std::set<std::string> seen;
  for (std::size_t i = 0; i < axis.keys.size(); ++i) {
    const SampledKey& key = axis.keys[i];
    const std::string at = fmt::format("{}/keys/{}", pointer, i);
    check_pointer(key.key, at + "/" + kKeyWord, problems);
    if (!seen.insert(key.key).second) {
      problems.add(at + "/" + kKeyWord, fmt::format("the axis draws {} already", key.key));
    }
    const bool has_end = !key.from.json.is_null() || !key.to.json.is_null();
    if (has_end == !key.values.empty()) {
      problems.add(at, "expected from and to, or values");
    } else if (has_end) {
      check_range(key, at, problems);
    }
  }
}

double with_four_digits(double number) {
  const std::string text = fmt::format("{:.4g}", number);
  // std::stod throws on denormal numbers.
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The value at a share `u` in [0, 1) of the key's range.
Json value_at(const SampledKey& key, double u) {
  if (!key.values.empty()) {
    const auto count = static_cast<double>(key.values.size());
    return key.values[static_cast<std::size_t>(u * count)].json;
  }
  const End from = *parse_end(key.from.json);
  const End to = *parse_end(key.to.json);
  const bool is_whole = from.is_whole && to.is_whole;
  const double above = is_whole ? to.number + 1 : to.number;
  double number = key.scale == Scale::log ? from.number * std::pow(above / from.number, u)
                                          : from.number + (above - from.number) * u;
  // Four digits keep labels short.
  number = is_whole ? std::floor(number) : with_four_digits(number);
  number = std::clamp(number, from.number, to.number);
  if (!from.unit.empty()) {
    return fmt::format("{}{}", number, from.unit);
  }
  return is_whole ? Json(static_cast<std::int64_t>(number)) : Json(number);
}

/// Shares in [0, 1) of one key's range, one for each point.
std::vector<double> draw_shares(Sampling sampling, std::size_t points, RandomStream& random) {
  std::vector<double> shares(points);
  std::vector<std::size_t> part(points);
  std::iota(part.begin(), part.end(), std::size_t{0});
  for (std::size_t i = points; i > 1; --i) {
    std::swap(part[i - 1],
              part[static_cast<std::size_t>(random.index(static_cast<std::int64_t>(i)))]);
  }
  for (std::size_t i = 0; i < points; ++i) {
    const double u = random.uniform();
    shares[i] = sampling == Sampling::random
                    ? u
                    : (static_cast<double>(part[i]) + u) / static_cast<double>(points);
  }
  return shares;
}

}  // namespace

void read_config(SweepAxis& axis, const Json& json, const std::string& pointer,
                 Problems& problems) {
  axis = SweepAxis{};
  if (json.is_object() && json.contains(kSampleWord)) {
    SampledAxis sampled;
    const std::size_t before = problems.lines().size();
    read_value(sampled, json, pointer, problems);
    if (problems.lines().size() == before) {
      check_sampled(sampled, pointer, problems);
    }
    axis.name = sampled.name;
    axis.sampled = std::move(sampled);
    return;
  }
  if (!json.is_object() || !json.contains(kKeyWord)) {
    LabelledAxis labelled;
    read_value(labelled, json, pointer, problems);
    axis = {labelled.name, labelled.values, std::nullopt};
    for (std::size_t i = 0; i < axis.values.size(); ++i) {
      axis.values[i].pointer = fmt::format("{}/values/{}/set", pointer, i);
    }
    return;
  }
  KeyAxis of_key;
  read_value(of_key, json, pointer, problems);
  check_pointer(of_key.key, pointer + "/" + kKeyWord, problems);
  axis.name = of_key.name;
  for (std::size_t i = 0; i < of_key.values.size(); ++i) {
    const Json& value = of_key.values[i].json;
    axis.values.push_back({.label = label_of(value),
                           .set = {{{of_key.key, value}}},
                           .pointer = fmt::format("{}/values/{}", pointer, i)});
  }
}
Json write_config(const SweepAxis& axis) {
  return write_value(LabelledAxis{axis.name, axis.values});
}
Json config_schema(const SweepAxis&) {
  LabelledAxis labelled;
  KeyAxis of_key;
  SampledAxis sampled;
  return Json{{"anyOf",
               Json::array({value_schema(labelled), value_schema(of_key), value_schema(sampled)})}};
}

void draw(SweepAxis& axis, std::uint64_t seed, const std::string& pointer) {
  KVTIER_ASSERT(axis.sampled.has_value(), "the axis is sampled");
  const SampledAxis& sampled = *axis.sampled;
  const auto points = static_cast<std::size_t>(sampled.points);
  axis.values.assign(points, {.label = "", .set = {}, .pointer = pointer});
  for (const SampledKey& key : sampled.keys) {
    RandomStream random(seed, fmt::format("sweep {} {}", sampled.name, key.key));
    const std::vector<double> shares = draw_shares(sampled.sample, points, random);
    for (std::size_t i = 0; i < points; ++i) {
      const Json value = value_at(key, shares[i]);
      axis.values[i].set.list.push_back({key.key, value});
      axis.values[i].label +=
          (axis.values[i].label.empty() ? fmt::format("{}: ", i) : ", ") + label_of(value);
    }
  }
}

}  // namespace kvtier
