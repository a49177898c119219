#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/study/config/overrides.hpp"

/// The axes of a sweep. docs/sweeps.md describes them.
namespace kvtier {

/// A place on an axis.
struct AxisValue {
  std::string label;
  Overrides set;

  /// Pointer of its settings in the sweep's file.
  std::string pointer;
};
template <class V>
void describe(V& v, AxisValue& c) {
  v.field("label", c.label, "What tables call it.", required());
  v.field("set", c.set, "Keys of the config and their values, like --set.", required());
}

enum class Sampling {
  random,           // each point draws each key anew
  latin_hypercube,  // each key has a point in each of as many equal parts of its range
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

/// The draw of one key of a sampled axis: a number between two ends, or one of some values.
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
          "The least value, a number or a quantity. Of two whole ends, such as 8 or \"64GiB\", "
          "whole numbers are drawn; \"1.0/s\" is not whole.");
  v.field("to", c.to, "The largest value, in the same unit.");
  v.field("scale", c.scale, "Whether values or their logarithms are spread evenly.");
  v.field("values", c.values, "Instead of from and to: what is chosen from, evenly.");
}

/// One axis whose points are drawn, all keys at once.
struct SampledAxis {
  std::string name;
  Sampling sample = Sampling::random;
  std::int64_t points = 1;
  std::vector<SampledKey> keys;
};
template <class V>
void describe(V& v, SampledAxis& c) {
  v.field("name", c.name, "What tables call it.", required());
  v.field(
      "sample", c.sample,
      "random, or latin_hypercube: of as many equal parts of a key's range as there are points, "
      "each has one.",
      required());
  v.field("points", c.points, "How many points are drawn.", required(between(1, 100000)));
  v.field("keys", c.keys, "What is drawn for each point.", required());
}

/// Read from `{"name", "values": [{"label", "set"}, ..]}`, from `{"name", "key", "values": [JSON,
/// ..]}` where each value sets the one key and labels itself, or from a SampledAxis, whose values
/// are there once it is drawn.
struct SweepAxis {
  std::string name;
  std::vector<AxisValue> values;

  std::optional<SampledAxis> sampled;
};
void read_config(SweepAxis& axis, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const SweepAxis& axis);
[[nodiscard]] Json config_schema(const SweepAxis& axis);

/// Draws the values of a sampled axis that stands at `pointer`. The same seed, name and keys give
/// the same values; another axis changes none of them.
void draw(SweepAxis& axis, std::uint64_t seed, const std::string& pointer);

}  // namespace kvtier
