#include "sim/core/config.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/core/units.hpp"

namespace kvtier {
namespace {

using namespace literals;  // NOLINT: the literals are the plain way to write what is expected

// ---- A config with every kind of field ----

enum class Discipline { blocking, layer_wise };
constexpr auto enum_names(Discipline) {
  return std::array<std::pair<std::string_view, Discipline>, 2>{
      {{"blocking", Discipline::blocking}, {"layer_wise", Discipline::layer_wise}}};
}

struct Link {
  BytesPerSecond bandwidth{26e9};
  SimDuration latency{};
};
template <class V>
void describe(V& v, Link& c) {
  v.field("bandwidth", c.bandwidth, "Peak rate of one direction.", positive());
  v.field("latency", c.latency, "Time to the first byte.", non_negative());
}

/// Reads itself: a shade from "#0" to "#9".
struct Shade {
  int value = 0;
};
void read_config(Shade& shade, const Json& json, const std::string& pointer, Problems& problems) {
  const bool good = json.is_string() && json.get_ref<const std::string&>().size() == 2 &&
                    json.get_ref<const std::string&>()[0] == '#';
  if (!good) {
    problems.add(pointer, "expected a shade, got " + quote_json(json));
    return;
  }
  shade.value = json.get_ref<const std::string&>()[1] - '0';
}
Json write_config(const Shade& shade) { return "#" + std::to_string(shade.value); }
Json config_schema(const Shade&) { return Json{{"pattern", "^#[0-9]$"}}; }

struct Everything {
  bool enabled = true;
  std::int64_t count = 7;
  std::int32_t slots = 8;
  std::uint32_t port = 9;
  double share = 0.5;
  double speed = 1;
  std::string name = "unnamed";
  Discipline discipline = Discipline::blocking;
  Bytes capacity = 128_GiB;
  Tokens window = 2048_tokens;
  SimDuration period = 1_s;
  BytesPerSecond bandwidth{25e9};
  FlopsPerSecond compute{312e12};
  PerSecond rate{1};
  DollarsPerHour price{5};
  DollarsPerGibHour storage_price{0.0088};
  std::optional<SimDuration> ttl;
  std::optional<std::int64_t> limit;
  std::vector<std::int64_t> knots{1, 2, 3};
  std::vector<Link> links;
  std::map<std::string, Bytes> sizes;
  Link link;
  Shade shade;
};
template <class V>
void describe(V& v, Everything& c) {
  v.field("enabled", c.enabled, "Whether it runs.");
  v.field("count", c.count, "Any whole number.");
  v.field("slots", c.slots, "From 1 to 64.", between(1, 64));
  v.field("port", c.port, "Not negative by its type.");
  v.field("share", c.share, "A part of one.", between(0, 1));
  v.field("speed", c.speed, "More than nothing.", positive());
  v.field("name", c.name, "What it is called.");
  v.field("discipline", c.discipline, "How it loads.");
  v.field("capacity", c.capacity, "What fits.", positive());
  v.field("window", c.window, "What is seen.", at_least(16));
  v.field("period", c.period, "How often.");
  v.field("bandwidth", c.bandwidth, "How fast.", non_negative());
  v.field("compute", c.compute, "How much work.");
  v.field("rate", c.rate, "How many.");
  v.field("price", c.price, "What it costs.");
  v.field("storage_price", c.storage_price, "What holding costs.");
  v.field("ttl", c.ttl, "When it goes.", positive());
  v.field("limit", c.limit, "How far.", or_word("auto", at_least(0)));
  v.field("knots", c.knots, "Where it bends.", non_negative());
  v.field("links", c.links, "Ways.");
  v.field("sizes", c.sizes, "Sizes by name.", positive());
  v.field("link", c.link, "The way.");
  v.field("shade", c.shade, "Its own reader.");
}

struct WithRequired {
  std::string name;
  std::int64_t count = 0;
};
template <class V>
void describe(V& v, WithRequired& c) {
  v.field("name", c.name, "Needed.", required());
  v.field("count", c.count, "Needed, and not negative.", required(non_negative()));
}

struct Limited {
  std::int64_t at_most = 0;
  std::int64_t above = 1;
  double share = 1;
};
template <class V>
void describe(V& v, Limited& c) {
  v.field("at_most", c.at_most, "", Limits{.maximum = 10});
  v.field("above", c.above, "", positive());
  v.field("share", c.share, "", Limits{.minimum = 0, .maximum = 1, .minimum_excluded = true});
}

struct LimitedQuantities {
  SimDuration pause = 1_s;
  Bytes size = 1_GiB;
  BytesPerSecond rate{1e9};
};
template <class V>
void describe(V& v, LimitedQuantities& c) {
  v.field("pause", c.pause, "", between(0, 365.0 * 86400e9));
  v.field("size", c.size, "", Limits{.maximum = 1099511627776.0});
  v.field("rate", c.rate, "", Limits{.minimum = 1e6, .maximum = 1e9, .minimum_excluded = true});
}

struct Odd {
  Link odd;
  Link even;
};
template <class V>
void describe(V& v, Odd& c) {
  v.field("a/b", c.odd, "A slash in a key.");
  v.field("c~d", c.even, "A tilde in a key.");
}

template <class T>
std::vector<std::string> problems_of(const std::string& text) {
  Problems problems;
  T value{};
  read_value(value, parse_json_strictly(text, "test.json"), "", problems);
  return problems.lines();
}

template <class T>
T read(const std::string& text) {
  Problems problems;
  T value{};
  read_value(value, parse_json_strictly(text, "test.json"), "", problems);
  problems.throw_if_any();
  return value;
}

std::vector<std::string> problems_thrown(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {"nothing was thrown"};
}

std::vector<std::string> parse_problems(const std::string& text) {
  return problems_thrown([&] { static_cast<void>(parse_json_strictly(text, "x.json")); });
}

using Lines = std::vector<std::string>;

// ---- Values ----

TEST(ConfigReader, ReadsEveryKindOfField) {
  const auto config = read<Everything>(R"({
    "enabled": false, "count": -3, "slots": 64, "port": 4294967295, "share": 1, "speed": 2.5,
    "name": "fast", "discipline": "layer_wise", "capacity": "1TiB", "window": "16tokens",
    "period": "-1ms", "bandwidth": "0B/s", "compute": "1PFLOP/s", "rate": "30/min", "price": "0$/h",
    "storage_price": "1$/h/GiB", "ttl": "5min", "limit": 0, "knots": [0, 9], "links": [{},
    {"latency": "2us"}], "sizes": {"b": "1B", "a": "2B"}, "link": {"bandwidth": "1GB/s"},
    "shade": "#4"})");
  EXPECT_FALSE(config.enabled);
  EXPECT_EQ(config.count, -3);
  EXPECT_EQ(config.slots, 64);
  EXPECT_EQ(config.port, 4294967295U);
  EXPECT_EQ(config.share, 1.0);
  EXPECT_EQ(config.speed, 2.5);
  EXPECT_EQ(config.name, "fast");
  EXPECT_EQ(config.discipline, Discipline::layer_wise);
  EXPECT_EQ(config.capacity, 1_TiB);
  EXPECT_EQ(config.window, 16_tokens);
  EXPECT_EQ(config.period, SimDuration(-1'000'000));
  EXPECT_EQ(config.bandwidth, BytesPerSecond(0));
  EXPECT_EQ(config.compute, FlopsPerSecond(1e15));
  EXPECT_EQ(config.rate, PerSecond(30 * (1.0 / 60)));
  EXPECT_EQ(config.price, DollarsPerHour(0));
  EXPECT_EQ(config.storage_price, DollarsPerGibHour(1));
  EXPECT_EQ(config.ttl, 300_s);
  EXPECT_EQ(config.limit, 0);
  EXPECT_EQ(config.knots, (std::vector<std::int64_t>{0, 9}));
  ASSERT_EQ(config.links.size(), 2U);
  EXPECT_EQ(config.links[0].bandwidth, BytesPerSecond(26e9));
  EXPECT_EQ(config.links[1].latency, 2_us);
  EXPECT_EQ(config.sizes, (std::map<std::string, Bytes>{{"a", 2_B}, {"b", 1_B}}));
  EXPECT_EQ(config.link.bandwidth, BytesPerSecond(1e9));
  EXPECT_EQ(config.shade.value, 4);
}

TEST(ConfigReader, KeepsDefaultsOfAbsentKeys) {
  const auto config = read<Everything>("{}");
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.capacity, 128_GiB);
  EXPECT_EQ(config.knots, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(config.ttl, std::nullopt);
}

TEST(ConfigReader, KeepsDefaultsOfBadValues) {
  Problems problems;
  Everything config;
  read_value(config, Json{{"capacity", "0B"}, {"count", 3.7}, {"ttl", "soon"}}, "", problems);
  EXPECT_EQ(problems.lines().size(), 3U);
  EXPECT_EQ(config.capacity, 128_GiB);
  EXPECT_EQ(config.count, 7);
  EXPECT_EQ(config.ttl, std::nullopt);
}

TEST(ConfigReader, ListsAndMapsReplaceTheirDefaults) {
  EXPECT_TRUE(read<Everything>(R"({"knots": []})").knots.empty());
  Everything config;
  config.sizes = {{"old", 1_B}};
  Problems problems;
  read_value(config, Json{{"sizes", Json{{"new", "2B"}}}}, "", problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(config.sizes, (std::map<std::string, Bytes>{{"new", 2_B}}));
}

TEST(ConfigReader, NestedObjectsKeepTheDefaultsTheyDoNotSet) {
  const auto config = read<Everything>(R"({"link": {"latency": "3us"}})");
  EXPECT_EQ(config.link.bandwidth, BytesPerSecond(26e9));
  EXPECT_EQ(config.link.latency, 3_us);
}

TEST(ConfigReader, OptionalFieldsTakeTheirWordOrNull) {
  Problems problems;
  Everything config;
  config.ttl = 1_s;
  config.limit = 5;
  read_value(config, Json{{"ttl", "none"}, {"limit", "auto"}}, "", problems);
  EXPECT_EQ(config.ttl, std::nullopt);
  EXPECT_EQ(config.limit, std::nullopt);
  config.ttl = 1_s;
  read_value(config, Json{{"ttl", nullptr}}, "", problems);
  EXPECT_EQ(config.ttl, std::nullopt);
  EXPECT_EQ(problems.lines(), Lines{});
}

TEST(ConfigReader, OptionalFieldsRefuseTheWordOfAnother) {
  EXPECT_EQ(problems_of<Everything>(R"({"ttl": "auto", "limit": "none"})"),
            (Lines{R"(/ttl: expected a duration > 0 such as "360ms", got "auto")",
                   R"(/limit: expected a whole number >= 0, got "none")"}));
}

TEST(ConfigReader, ZeroIsNotAbsent) {
  EXPECT_EQ(read<Everything>(R"({"limit": 0})").limit, 0);
  EXPECT_EQ(read<Everything>(R"({"bandwidth": "0B/s"})").bandwidth.value, 0);
  EXPECT_EQ(read<WithRequired>(R"({"name": "", "count": 0})").count, 0);
}

// ---- Every message ----

TEST(ConfigReader, RefusesANumberForATruthValue) {
  EXPECT_EQ(problems_of<Everything>(R"({"enabled": 1})"),
            Lines{"/enabled: expected true or false, got 1"});
  EXPECT_EQ(problems_of<Everything>(R"({"enabled": "true"})"),
            Lines{R"(/enabled: expected true or false, got "true")"});
}

TEST(ConfigReader, RefusesAFractionForAWholeNumber) {
  EXPECT_EQ(problems_of<Everything>(R"({"count": 3.7})"),
            Lines{"/count: expected a whole number, got 3.7"});
  EXPECT_EQ(problems_of<Everything>(R"({"count": 3.0})"),
            Lines{"/count: expected a whole number, got 3.0"});
  EXPECT_EQ(problems_of<Everything>(R"({"count": "3"})"),
            Lines{R"(/count: expected a whole number, got "3")"});
  EXPECT_EQ(problems_of<Everything>(R"({"count": true})"),
            Lines{"/count: expected a whole number, got true"});
  EXPECT_EQ(problems_of<Everything>(R"({"count": null})"),
            Lines{"/count: expected a whole number, got null"});
}

TEST(ConfigReader, RefusesNumbersThatDoNotFitTheirType) {
  // 2^64 - 5 is -5 as an unsigned number; 2^64 becomes a double.
  EXPECT_EQ(problems_of<Everything>(R"({"count": 18446744073709551611})"),
            Lines{"/count: expected a whole number, got 18446744073709551611"});
  EXPECT_EQ(problems_of<Everything>(R"({"count": 18446744073709551616})"),
            Lines{"/count: expected a whole number, got 1.8446744073709552e+19"});
  EXPECT_EQ(problems_of<Everything>(R"({"count": 9223372036854775808})"),
            Lines{"/count: expected a whole number, got 9223372036854775808"});
  EXPECT_EQ(problems_of<Everything>(R"({"port": -5})"),
            Lines{"/port: expected a whole number, got -5"});
  EXPECT_EQ(problems_of<Everything>(R"({"port": 4294967296})"),
            Lines{"/port: expected a whole number, got 4294967296"});
  EXPECT_EQ(read<Everything>(R"({"count": 9223372036854775807})").count, INT64_MAX);
  EXPECT_EQ(read<Everything>(R"({"count": -9223372036854775808})").count, INT64_MIN);
}

TEST(ConfigReader, RefusesAnInvalidNegativeNumber) {
  EXPECT_EQ(problems_of<WithRequired>(R"({"name": "a", "count": -5})"),
            Lines{"/count: expected a whole number >= 0, got -5"});
  EXPECT_EQ(problems_of<WithRequired>(R"({"name": "a", "count": 18446744073709551611})"),
            Lines{"/count: expected a whole number >= 0, got 18446744073709551611"});
}

TEST(ConfigReader, HoldsNumbersToTheirLimits) {
  EXPECT_EQ(problems_of<Everything>(R"({"slots": 0})"),
            Lines{"/slots: expected a whole number >= 1 and <= 64, got 0"});
  EXPECT_EQ(problems_of<Everything>(R"({"slots": 65})"),
            Lines{"/slots: expected a whole number >= 1 and <= 64, got 65"});
  EXPECT_EQ(problems_of<Limited>(R"({"at_most": 11, "above": 0, "share": 0})"),
            (Lines{"/at_most: expected a whole number <= 10, got 11",
                   "/above: expected a whole number > 0, got 0",
                   "/share: expected a number > 0 and <= 1, got 0"}));
  EXPECT_EQ(problems_of<Everything>(R"({"share": 1.5})"),
            Lines{"/share: expected a number >= 0 and <= 1, got 1.5"});
  EXPECT_EQ(problems_of<Everything>(R"({"speed": -0.1})"),
            Lines{"/speed: expected a number > 0, got -0.1"});
  EXPECT_EQ(problems_of<Everything>(R"({"speed": "fast"})"),
            Lines{R"(/speed: expected a number > 0, got "fast")"});
  EXPECT_EQ(problems_of<Limited>(R"({"at_most": 10, "above": 1, "share": 1})"), Lines{});
}

TEST(ConfigReader, RefusesAnotherTypeForAString) {
  EXPECT_EQ(problems_of<Everything>(R"({"name": 5})"), Lines{"/name: expected a string, got 5"});
}

TEST(ConfigReader, NamesTheWordsOfAnEnumeration) {
  EXPECT_EQ(problems_of<Everything>(R"({"discipline": "layerwise"})"),
            Lines{R"(/discipline: expected one of blocking, layer_wise, got "layerwise")"});
  EXPECT_EQ(problems_of<Everything>(R"({"discipline": 1})"),
            Lines{"/discipline: expected one of blocking, layer_wise, got 1"});
}

TEST(ConfigReader, RefusesASizeWithoutAUnitItKnows) {
  EXPECT_EQ(problems_of<Everything>(R"({"capacity": "128 foo"})"),
            Lines{R"(/capacity: expected a size > 0 such as "128GiB", got "128 foo")"});
  EXPECT_EQ(problems_of<Everything>(R"({"capacity": "128"})"),
            Lines{R"(/capacity: expected a size > 0 such as "128GiB", got "128")"});
  EXPECT_EQ(problems_of<Everything>(R"({"capacity": 128})"),
            Lines{R"(/capacity: expected a size > 0 such as "128GiB", got 128)"});
  EXPECT_EQ(problems_of<Everything>(R"({"capacity": "10ms"})"),
            Lines{R"(/capacity: expected a size > 0 such as "128GiB", got "10ms")"});
}

TEST(ConfigReader, RefusesAZeroOrNegativeCapacity) {
  EXPECT_EQ(problems_of<Everything>(R"({"capacity": "0B"})"),
            Lines{R"(/capacity: expected a size > 0 such as "128GiB", got "0B")"});
  EXPECT_EQ(problems_of<Everything>(R"({"capacity": "-1GiB"})"),
            Lines{R"(/capacity: expected a size > 0 such as "128GiB", got "-1GiB")"});
}

TEST(ConfigReader, NamesEveryQuantityInItsOwnWords) {
  EXPECT_EQ(
      problems_of<Everything>(R"({"window": "8tokens", "period": 1, "bandwidth": "-1B/s",
        "compute": "1", "rate": "often", "price": 3, "storage_price": "5$/h"})"),
      (Lines{
          R"(/window: expected a number of tokens >= 16tokens such as "4096tokens", got "8tokens")",
          R"(/period: expected a duration such as "360ms", got 1)",
          R"(/bandwidth: expected a bandwidth >= 0 such as "26GB/s", got "-1B/s")",
          R"(/compute: expected a compute rate such as "312TFLOP/s", got "1")",
          R"(/rate: expected a rate such as "1/s", got "often")",
          R"(/price: expected a price (by the hour, or bought for 1 to 20 years as "30000$ over 4y") such as "5$/h", got 3)",
          R"(/storage_price: expected a price (by the hour, or bought for 1 to 20 years as "10$/GiB over 4y") such as "0.0088$/h/GiB", got "5$/h")"}));
}

TEST(ConfigReader, StatesTheMinimumOfAQuantityInItsOwnUnit) {
  EXPECT_EQ(problems_of<LimitedQuantities>(R"({"rate": "1MB/s"})"),
            Lines{R"(/rate: expected a bandwidth > 1MB/s such as "26GB/s", got "1MB/s")"});
  EXPECT_EQ(problems_of<LimitedQuantities>(R"({"rate": "fast"})"),
            Lines{R"(/rate: expected a bandwidth > 1MB/s such as "26GB/s", got "fast")"});
}

TEST(ConfigReader, StatesTheMaximumOfAQuantityThatExceedsIt) {
  EXPECT_EQ(
      problems_of<LimitedQuantities>(R"({"pause": "366d", "size": "2TiB", "rate": "2GB/s"})"),
      (Lines{R"(/pause: expected a duration >= 0 and <= 365d such as "360ms", got "366d")",
             R"(/size: expected a size <= 1TiB such as "128GiB", got "2TiB")",
             R"(/rate: expected a bandwidth > 1MB/s and <= 1GB/s such as "26GB/s", got "2GB/s")"}));
  EXPECT_EQ(problems_of<LimitedQuantities>(R"({"pause": "-1s"})"),
            Lines{R"(/pause: expected a duration >= 0 such as "360ms", got "-1s")"});
  EXPECT_EQ(problems_of<LimitedQuantities>(R"({"pause": "365d", "size": "1TiB", "rate": "1GB/s"})"),
            Lines{});
}

TEST(ConfigReader, RefusesAnotherTypeForAListOrAnObject) {
  EXPECT_EQ(problems_of<Everything>(R"({"knots": 5, "links": {}, "sizes": [], "link": "x"})"),
            (Lines{"/knots: expected a list, got 5", "/links: expected a list, got {}",
                   "/sizes: expected an object, got []", R"(/link: expected an object, got "x")"}));
  EXPECT_EQ(problems_of<Everything>("[]"), Lines{"/: expected an object, got []"});
}

TEST(ConfigReader, ReportsAMissingKeyThatIsRequired) {
  EXPECT_EQ(problems_of<WithRequired>("{}"), (Lines{"/name: missing key", "/count: missing key"}));
}

TEST(ConfigReader, SuggestsTheKeyThatWasMeant) {
  EXPECT_EQ(problems_of<Everything>(R"({"capcity": "1GiB"})"),
            Lines{R"(/capcity: unknown key (did you mean "capacity"?))"});
  EXPECT_EQ(problems_of<Everything>(R"({"zzzzzz": 1})"), Lines{"/zzzzzz: unknown key"});
  EXPECT_EQ(problems_of<Everything>(R"({"link": {"latecny": "1us"}})"),
            Lines{R"(/link/latecny: unknown key (did you mean "latency"?))"});
}

struct Shrunk {
  std::int64_t count = 1;
};
template <class V>
void describe(V& v, Shrunk& c) {
  v.field("count", c.count, "How many.");
  v.gone("kinds", "use /count");
}

TEST(ConfigReader, NamesTheSuccessorOfAKeyThatIsGone) {
  EXPECT_EQ(problems_of<Shrunk>(R"({"kinds": 3})"), Lines{"/kinds: this key is gone: use /count"});
  EXPECT_EQ(problems_of<Shrunk>(R"({"kind": 3})"), Lines{"/kind: unknown key"});
  EXPECT_EQ(problems_of<Shrunk>(R"({"count": 3})"), Lines{});
}

TEST(ConfigWriter, PrintsNoKeyThatIsGone) {
  EXPECT_EQ(write_value(Shrunk{}).dump(), R"({"count":1})");
  Shrunk config;
  EXPECT_EQ(value_schema(config)["properties"].size(), 1U);
}

TEST(ConfigReader, UsesAFieldsOwnReader) {
  EXPECT_EQ(problems_of<Everything>(R"({"shade": "red"})"),
            Lines{R"(/shade: expected a shade, got "red")"});
}

TEST(ConfigReader, ReportsEveryProblemInTheOrderOfTheFieldsAndUnknownKeysLast) {
  EXPECT_EQ(problems_of<Everything>(R"({"colour": 1, "capacity": "big", "link": {"speed": 1,
        "bandwidth": "0B/s"}, "enabled": 0, "knots": [1, -1, 2.5]})"),
            (Lines{"/enabled: expected true or false, got 0",
                   R"(/capacity: expected a size > 0 such as "128GiB", got "big")",
                   "/knots/1: expected a whole number >= 0, got -1",
                   "/knots/2: expected a whole number >= 0, got 2.5",
                   R"(/link/bandwidth: expected a bandwidth > 0 such as "26GB/s", got "0B/s")",
                   "/link/speed: unknown key", "/colour: unknown key"}));
}

TEST(ConfigReader, PointsIntoListsAndMaps) {
  EXPECT_EQ(problems_of<Everything>(R"({"links": [{}, {"latency": 3}], "sizes": {"a": "0B"}})"),
            (Lines{R"(/links/1/latency: expected a duration >= 0 such as "360ms", got 3)",
                   R"(/sizes/a: expected a size > 0 such as "128GiB", got "0B")"}));
}

TEST(ConfigReader, EscapesKeysInPointers) {
  // RFC 6901: "~" is written ~0 and "/" is written ~1.
  EXPECT_EQ(escape_pointer("a/b~c"), "a~1b~0c");
  EXPECT_EQ(escape_pointer("plain"), "plain");
  EXPECT_EQ(problems_of<Odd>(R"({"a/b": 1, "c~d": 2, "e~/f": 3})"),
            (Lines{"/a~1b: expected an object, got 1", "/c~0d: expected an object, got 2",
                   "/e~0~1f: unknown key"}));
  EXPECT_EQ(problems_of<Everything>(R"({"sizes": {"x/y": 1}})"),
            Lines{R"(/sizes/x~1y: expected a size > 0 such as "128GiB", got 1)"});
}

TEST(ConfigReader, ShortensLongValuesInMessages) {
  const Json value = std::string(100, 'x');
  // 60 characters of the JSON text: the quotation mark and 59 letters.
  EXPECT_EQ(quote_json(value), "\"" + std::string(59, 'x') + "...");
  EXPECT_EQ(quote_json(std::string(58, 'x')), "\"" + std::string(58, 'x') + "\"");
}

TEST(ConfigReader, NeverCutsACharacterWhenItShortens) {
  // The quotation mark and 58 letters take 59 bytes; the two bytes of the next character do not
  // both fit into 60.
  const Json value = std::string(58, 'x') + "é" + std::string(20, 'x');
  EXPECT_EQ(quote_json(value), "\"" + std::string(58, 'x') + "...");
}

// ---- Origins ----

TEST(Problems, NameTheFileThatTheKeyCameFrom) {
  Problems problems;
  problems.set_origin("", "base.json");
  problems.set_origin("/system", "preset.json");
  problems.set_origin("/system/tiers/dram", "--set");
  problems.add("/model/layers", "bad");
  problems.add("/system", "bad");
  problems.add("/system/tiers", "bad");
  problems.add("/system/tiers/dram/eviction", "bad");
  problems.add("/systems", "bad");
  problems.add("", "bad");
  EXPECT_EQ(problems.lines(),
            (Lines{"base.json: /model/layers: bad", "preset.json: /system: bad",
                   "preset.json: /system/tiers: bad", "--set: /system/tiers/dram/eviction: bad",
                   "base.json: /systems: bad", "base.json: /: bad"}));
}

TEST(Problems, LeaveOutAnUnknownOrigin) {
  Problems problems;
  problems.set_origin("/system", "preset.json");
  problems.add("/model", "bad");
  EXPECT_EQ(problems.lines(), Lines{"/model: bad"});
}

TEST(Problems, AreThrownTogether) {
  Problems problems;
  EXPECT_NO_THROW(problems.throw_if_any());
  EXPECT_TRUE(problems.empty());
  problems.add("/a", "first");
  problems.add_line("second");
  EXPECT_FALSE(problems.empty());
  EXPECT_EQ(problems_thrown([&] { problems.throw_if_any(); }), (Lines{"/a: first", "second"}));
}

TEST(Problems, NestedValuesNameTheOriginOfTheirKey) {
  Problems problems;
  problems.set_origin("", "h200.json");
  problems.set_origin("/link/bandwidth", "--set");
  Everything config;
  read_value(config, Json{{"link", Json{{"bandwidth", 1}, {"latency", 1}}}}, "", problems);
  EXPECT_EQ(
      problems.lines(),
      (Lines{R"(--set: /link/bandwidth: expected a bandwidth > 0 such as "26GB/s", got 1)",
             R"(h200.json: /link/latency: expected a duration >= 0 such as "360ms", got 1)"}));
}

// ---- JSON text ----

TEST(StrictJson, ReadsEveryKindOfValueAndKeepsTheOrderOfKeys) {
  const Json json = parse_json_strictly(R"({"z": [1, -2, 2.5, "s", true, null], "a": {}})", "x");
  EXPECT_EQ(json.dump(), R"({"z":[1,-2,2.5,"s",true,null],"a":{}})");
  EXPECT_EQ(parse_json_strictly("3", "x"), Json(3));
}

TEST(StrictJson, RefusesADuplicateKey) {
  EXPECT_EQ(parse_problems(R"({"a": 1, "b": 2, "a": 3})"), Lines{"x.json: /a: duplicate key"});
}

TEST(StrictJson, PointsToADuplicateKeyAtAnyDepth) {
  EXPECT_EQ(parse_problems(R"({"a": {"b": {"c": 1, "c": 1}}})"),
            Lines{"x.json: /a/b/c: duplicate key"});
  EXPECT_EQ(parse_problems(R"({"a": [0, [], {"k": 1}, {"x/y": 1, "x/y": 2}]})"),
            Lines{"x.json: /a/3/x~1y: duplicate key"});
  EXPECT_EQ(parse_problems(R"([[{}, {"k": [1, 2], "k": 0}]])"),
            Lines{"x.json: /0/1/k: duplicate key"});
}

TEST(StrictJson, ReportsEveryDuplicateKey) {
  EXPECT_EQ(parse_problems(R"({"a": 1, "a": 2, "b": {"c": 1, "c": 2}, "a": 3})"),
            (Lines{"x.json: /a: duplicate key", "x.json: /b/c: duplicate key",
                   "x.json: /a: duplicate key"}));
}

TEST(StrictJson, AllowsTheSameKeyInDifferentObjects) {
  EXPECT_NO_THROW(static_cast<void>(
      parse_json_strictly(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "x.json")));
}

TEST(StrictJson, NamesLineAndColumnOfASyntaxError) {
  constexpr const char* kExpected = "not valid JSON: expected a value, a key or a separator here";
  // The comma before the brace is allowed in JavaScript only; the brace is the 9th character.
  EXPECT_EQ(parse_problems(R"({"a": 1,})"), Lines{std::string("x.json:1:9: ") + kExpected});
  EXPECT_EQ(parse_problems("{\n  \"a\": 1\n  \"b\": 2\n}"),
            Lines{std::string("x.json:3:5: ") + kExpected});
  EXPECT_EQ(parse_problems("{\"a\": 1} x"), Lines{std::string("x.json:1:10: ") + kExpected});
  // The text ends where a brace is missing: the place after its last character.
  EXPECT_EQ(parse_problems("{\"a\": 1"), Lines{std::string("x.json:1:8: ") + kExpected});
  EXPECT_EQ(parse_problems("{\"a\": 1\n"), Lines{std::string("x.json:2:1: ") + kExpected});
  EXPECT_EQ(parse_problems("// comment\n{}"), Lines{std::string("x.json:1:1: ") + kExpected});
}

TEST(StrictJson, SaysThatAFileIsEmpty) {
  EXPECT_EQ(parse_problems(""), Lines{"x.json:1:1: not valid JSON: the file is empty"});
  EXPECT_EQ(parse_problems(" \r\n\t\n "), Lines{"x.json:3:2: not valid JSON: the file is empty"});
}

TEST(StrictJson, ReportsADuplicateKeyTogetherWithASyntaxError) {
  EXPECT_EQ(parse_problems(R"({"a": 1, "a": 2, })"),
            (Lines{"x.json: /a: duplicate key",
                   "x.json:1:18: not valid JSON: expected a value, a key or a separator here"}));
}

TEST(StrictJson, RefusesMoreLevelsThanTheLimit) {
  const auto lists = [](std::size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  const auto objects = [](std::size_t levels) {
    std::string text;
    for (std::size_t i = 0; i < levels; ++i) {
      text += R"({"a":)";
    }
    return text + "1" + std::string(levels, '}');
  };
  constexpr std::size_t kDeepest = 200;
  EXPECT_NO_THROW((void)parse_json_strictly(lists(kDeepest), "x.json"));
  EXPECT_NO_THROW((void)parse_json_strictly(objects(kDeepest), "x.json"));
  const Lines refused{"x.json: expected at most 200 levels of nested objects and lists"};
  for (const std::size_t levels : {kDeepest + 1, std::size_t{80'000}, std::size_t{1'000'000}}) {
    EXPECT_EQ(parse_problems(lists(levels)), refused) << levels;
    EXPECT_EQ(parse_problems(objects(levels)), refused) << levels;
    EXPECT_EQ(parse_problems(std::string(levels, '[')), refused) << "without an end";
  }
}

TEST(StrictJson, RefusesANumberBeyondTheRangeOfADouble) {
  EXPECT_EQ(parse_problems(R"({"a": 1e400})"),
            Lines{"x.json: not valid JSON: a number is too large for a double"});
}

TEST(StrictJson, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(parse_problems("{\"a\": \"\xff\"}"), Lines{"x.json:1:8: expected UTF-8"});
  EXPECT_EQ(parse_problems("{\n  \"a\xc3\": 1}"), Lines{"x.json:2:5: expected UTF-8"});
}

// A pass over the list for each of its objects would take many minutes.
TEST(StrictJson, ReadsALongListInTimeProportionalToItsLength) {
  constexpr std::size_t kItems = 200'000;
  std::string text = "[";
  for (std::size_t i = 0; i < kItems; ++i) {
    text += R"({"a": 1},)";
  }
  text.back() = ']';
  EXPECT_EQ(parse_json_strictly(text, "x.json").size(), kItems);
}

// ---- Writer ----

TEST(ConfigWriter, WritesConfigsThatReadBackEqual) {
  const std::string text =
      R"({"enabled":false,"count":-3,"slots":64,"port":4294967295,"share":0.1,"speed":2.5,)"
      R"("name":"fast \"quoted\"","discipline":"layer_wise","capacity":"1TiB","window":"16tokens",)"
      R"("period":"-1ms","bandwidth":"0B/s","compute":"1PFLOP/s","rate":"2/s","price":"0$/h",)"
      R"("storage_price":"1$/h/GiB","ttl":"5min","limit":0,"knots":[0,9],)"
      R"("links":[{"bandwidth":"26GB/s","latency":"0ns"},{"bandwidth":"1MiB/s","latency":"2us"}],)"
      R"("sizes":{"a":"2B","b":"1B"},"link":{"bandwidth":"1GB/s","latency":"0ns"},"shade":"#4"})";
  const auto config = read<Everything>(text);
  EXPECT_EQ(write_value(config).dump(), text);
}

TEST(ConfigWriter, WritesDefaultsInTheOrderOfTheFieldsAndOptionalWords) {
  const Json json = write_value(Everything{});
  EXPECT_EQ(json.dump(),
            R"({"enabled":true,"count":7,"slots":8,"port":9,"share":0.5,"speed":1.0,)"
            R"("name":"unnamed","discipline":"blocking","capacity":"128GiB","window":"2048tokens",)"
            R"("period":"1s","bandwidth":"25GB/s","compute":"312TFLOP/s","rate":"1/s",)"
            R"("price":"5$/h","storage_price":"0.0088$/h/GiB","ttl":"none","limit":"auto",)"
            R"("knots":[1,2,3],"links":[],"sizes":{},)"
            R"("link":{"bandwidth":"26GB/s","latency":"0ns"},"shade":"#0"})");
  EXPECT_EQ(write_value(read<Everything>(json.dump())), json);
}

// ---- Schema ----

Json schema_of_everything() {
  Everything config;
  return value_schema(config);
}

TEST(ConfigSchema, ClosesObjectsAndNamesEveryKeyWithItsDocumentation) {
  const Json schema = schema_of_everything();
  EXPECT_EQ(schema["type"], "object");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["properties"].size(), write_value(Everything{}).size());
  EXPECT_EQ(schema["properties"]["enabled"],
            (Json{{"type", "boolean"}, {"description", "Whether it runs."}}));
  EXPECT_EQ(schema["properties"]["link"]["properties"]["latency"]["description"],
            "Time to the first byte.");
  EXPECT_EQ(schema["properties"]["link"]["additionalProperties"], false);
  EXPECT_FALSE(schema.contains("required"));
}

TEST(ConfigSchema, NamesRequiredKeys) {
  WithRequired config;
  EXPECT_EQ(value_schema(config)["required"], Json::array({"name", "count"}));
}

TEST(ConfigSchema, StatesLimits) {
  const Json properties = schema_of_everything()["properties"];
  EXPECT_EQ(properties["slots"]["minimum"], 1);
  EXPECT_EQ(properties["slots"]["maximum"], 64);
  EXPECT_EQ(properties["slots"]["type"], "integer");
  EXPECT_EQ(properties["speed"]["exclusiveMinimum"], 0);
  EXPECT_FALSE(properties["speed"].contains("minimum"));
  EXPECT_EQ(properties["speed"]["type"], "number");
  EXPECT_FALSE(properties["count"].contains("minimum"));
}

TEST(ConfigSchema, DescribesEveryKindOfValue) {
  const Json properties = schema_of_everything()["properties"];
  EXPECT_EQ(properties["name"]["type"], "string");
  EXPECT_EQ(properties["discipline"]["enum"], Json::array({"blocking", "layer_wise"}));
  EXPECT_EQ(properties["capacity"]["type"], "string");
  EXPECT_EQ(properties["capacity"]["pattern"], quantity_format<Bytes>().pattern);
  EXPECT_EQ(properties["capacity"]["examples"], Json::array({"128GiB"}));
  EXPECT_EQ(properties["knots"]["type"], "array");
  EXPECT_EQ(properties["knots"]["items"], (Json{{"type", "integer"}, {"minimum", 0.0}}));
  EXPECT_EQ(properties["links"]["items"]["properties"].size(), 2U);
  EXPECT_EQ(properties["sizes"]["additionalProperties"]["examples"], Json::array({"128GiB"}));
  EXPECT_EQ(properties["shade"]["pattern"], "^#[0-9]$");
  EXPECT_EQ(properties["limit"]["anyOf"],
            Json::array({Json{{"const", "auto"}}, Json{{"type", "integer"}, {"minimum", 0.0}}}));
  EXPECT_EQ(properties["ttl"]["anyOf"][0], (Json{{"const", "none"}}));
}

}  // namespace
}  // namespace kvtier
