#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/study/config/overrides.hpp"

/// Axes of a sweep. docs/sweeps.md describes them.
namespace kvtier {

/// A value of an axis.
struct AxisValue {
  std::string label;
  Overrides set;

  /// Pointer to the value's settings in the sweep's file.
  std::string pointer;
};
template <class V>
void describe(V& v, AxisValue& c) {
  v.field("label", c.label, "Label in tables.", required());
  v.field("set", c.set, "Keys of the config and their values, like --set.", required());
}

enum class Sampling {
  random,           // draws each key of each point independently
  latin_hypercube,  // each of as many equal parts of a key's range as points has one point
};
constexpr auto enum_names(Sampling) {
  return std::array{
      std::pair<std::string_view, Sampling>{"random", Sampling::random},
      std::pair<std::string_view, Sampling>{"latin_hypercube", Sampling::latin_hypercube}};
}

enum class Scale { linear, log };
constexpr auto enum_names(Scale) {
  return std::array{std::pair<std::string_view, Scale>{"linear", Scale::linear},
                    std::pair<std::string_view, Scale>{"log", Scale::log}};
}

/// A key of a sampled axis, which is drawn between two ends or from a list of values.
struct SampledKey {
  std::string key;
  AnyJson from{nullptr};
  AnyJson to{nullptr};
  Scale scale = Scale::linear;
  std::vector<AnyJson> values;
};
template <class V>
void describe(V& v, SampledKey& c) {
  v.field("key", c.key, "JSON pointer of the key that is drawn.", required());
  v.field("from", c.from,
          "The least value, a number or a quantity. Two whole ends, such as 8 or \"64GiB\", give "
          "whole numbers; \"1.0/s\" is not whole.");
  v.field("to", c.to, "The largest value, in the same unit.");
  v.field("scale", c.scale, "Scale on which values are distributed evenly.");
  v.field("values", c.values, "Instead of from and to: values of which one is drawn.");
}

/// An axis of points whose keys are drawn together.
struct SampledAxis {
  std::string name;
  Sampling sample = Sampling::random;
  std::int64_t points = 1;
  std::vector<SampledKey> keys;
};
template <class V>
void describe(V& v, SampledAxis& c) {
  v.field("name", c.name, "Name in tables.", required());
  v.field(
      "sample", c.sample,
      "random, or latin_hypercube: a key's range has as many equal parts as there are points, and "
      "each part has one point.",
      required());
  v.field("points", c.points, "Number of points.", required(between(1, 100000)));
  v.field("keys", c.keys, "Keys that are drawn for each point.", required());
}

/// An axis in one of three forms:
///
///     {"name", "values": [{"label", "set"}, ..]}
///     {"name", "key", "values": [JSON, ..]}     each value sets the key and is its own label
///     a SampledAxis                             draw() makes its values
struct SweepAxis {
  std::string name;
  std::vector<AxisValue> values;

  std::optional<SampledAxis> sampled;
};
void read_config(SweepAxis& axis, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const SweepAxis& axis);
[[nodiscard]] Json config_schema(const SweepAxis& axis);

/// Draws the values of the sampled axis at `pointer`. They depend only on the seed and on this
/// axis.
void draw(SweepAxis& axis, std::uint64_t seed, const std::string& pointer);

}  // namespace kvtier
