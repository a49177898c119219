#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/study/config/overrides.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/config/value_unit.hpp"

/// The figures of a paper and their computation from runs, as data: a folder of `configs/papers`
/// with the set-ups, `reproduction.json` (the paper and its runs) and a file in `figures/` for each
/// figure or section. docs/papers.md describes the files.
namespace kvtier {

/// A number made of runs' metrics: a number, `"RUN /json/pointer"` (a number in that run's result),
/// `"paper"` or `"ours"` (of the value that is explained), or one operation on a list of these,
/// such as `{"ratio": [A, B]}`; more than two operands are taken from the left.
struct Expression {
  enum class Kind { number, metric, paper, ours, sum, difference, product, ratio, largest };
  Kind kind = Kind::number;
  double number = 0;
  std::string run;
  std::string metric;
  std::vector<Expression> operands;
  /// Pointer in its file.
  std::string pointer;
};
void read_config(Expression& expression, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const Expression& expression);
[[nodiscard]] Json config_schema(const Expression& expression);

/// A simulation, or with `experiment` one of the built-in experiments on the same config.
struct PaperRun {
  std::string config;
  Overrides set;
  std::optional<std::string> experiment;
  AnyJson parameters;

  /// Pointer in its file.
  std::string pointer;
};
template <class V>
void describe(V& v, PaperRun& c) {
  v.field("config", c.config, "Config of the run; a file of the paper's folder.", required());
  v.field("set", c.set, "Keys of the config and their values, like --set.");
  v.field("experiment", c.experiment,
          "Named experiment to do with the config; \"none\": a simulation.");
  v.field("parameters", c.parameters, "The experiment's parameters.");
}

/// Runs by name; with `each`, a member stands for several.
struct PaperRuns {
  std::map<std::string, PaperRun> by_name;
};
void read_config(PaperRuns& runs, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const PaperRuns& runs);
[[nodiscard]] Json config_schema(const PaperRuns& runs);

/// Which side of the paper's value may not be left by more than the band.
enum class BandSide { both, at_most, at_least };
constexpr auto enum_names(BandSide) {
  return std::array{std::pair<std::string_view, BandSide>{"both", BandSide::both},
                    std::pair<std::string_view, BandSide>{"at_most", BandSide::at_most},
                    std::pair<std::string_view, BandSide>{"at_least", BandSide::at_least}};
}

struct Band {
  std::optional<double> absolute;
  std::optional<double> relative;
  BandSide side = BandSide::both;
};
template <class V>
void describe(V& v, Band& c) {
  v.field("absolute", c.absolute, "Largest distance to the paper's value, in the value's unit.",
          non_negative());
  v.field("relative", c.relative, "Largest distance as a share of the paper's value.",
          non_negative());
  v.field("side", c.side, "both, or the one side that is bounded.");
}

/// Finds what one or more keys, all at the same value, would have to be for the explained value to
/// equal the paper's, by bisection on the first seed. The value must move one way between the ends.
/// If a key takes whole numbers only, the result is the whole number that comes nearest.
struct KeySearch {
  std::vector<std::string> keys;
  std::string quantity;
  double from = 0;
  double to = 0;
};
template <class V>
void describe(V& v, KeySearch& c) {
  v.field("keys", c.keys, "JSON pointers of the keys, in every run that the value needs.",
          required());
  v.field("quantity", c.quantity, "The unit that their value is written with: \"GB/s\".",
          required());
  v.field("from", c.from, "One end of the search.", required(positive()));
  v.field("to", c.to, "The other end.", required(positive()));
}

/// A number in an explanation: computed from the runs as they are, or with the keys at the value
/// that a search found; a search alone gives that value.
struct ExplainedNumber {
  std::optional<Expression> expression;
  ValueUnit unit = ValueUnit::count;
  std::optional<KeySearch> search;
};
template <class V>
void describe(V& v, ExplainedNumber& c) {
  v.field("value", c.expression, "The number.");
  v.field("unit", c.unit, "How it is shown.");
  v.field("search", c.search, "What to find first.");
}

struct Explanation {
  std::string text;
  std::map<std::string, ExplainedNumber> numbers;
};
template <class V>
void describe(V& v, Explanation& c) {
  v.field("text", c.text, "A sentence; {NAME} stands for a number, {paper} and {ours} for both.",
          required());
  v.field("numbers", c.numbers, "The numbers that the text names.");
}

struct FigureValue {
  std::string name;
  Expression expression;
  ValueUnit unit = ValueUnit::count;
  std::optional<double> paper;
  std::optional<Band> band;
  std::optional<Explanation> explain;
};
template <class V>
void describe(V& v, FigureValue& c) {
  v.field("name", c.name, "What the row shows.", required());
  v.field("value", c.expression, "How it follows from the runs.", required());
  v.field("unit", c.unit, "How value, paper and band are given.", required());
  v.field("paper", c.paper,
          "What the paper says, with a band or an explanation; \"none\": it gives no number.");
  v.field("band", c.band, "How far the value may be from the paper's; \"none\": it is only shown.");
  v.field("explain", c.explain, "Why the value differs, with numbers from the runs.");
}

/// Rows of a figure; with `each`, an item stands for several.
struct FigureValues {
  std::vector<FigureValue> list;
};
void read_config(FigureValues& values, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const FigureValues& values);
[[nodiscard]] Json config_schema(const FigureValues& values);

struct Figure {
  std::string title;
  std::string source;
  PaperRuns runs;
  FigureValues values;

  /// Its file's name without suffix: what --figure takes.
  std::string name;
  std::filesystem::path file;
};
template <class V>
void describe(V& v, Figure& c) {
  v.field("title", c.title, "What it shows.", required());
  v.field("source", c.source, "Where in the paper it stands.", required());
  v.field("runs", c.runs, "Runs that only this figure needs.");
  v.field("values", c.values, "The rows.", required());
}

/// A change of every run, to see which values depend on it.
struct Variation {
  std::string name;
  Overrides set;
  std::optional<std::string> needs;
};
template <class V>
void describe(V& v, Variation& c) {
  v.field("name", c.name, "What is different.", required());
  v.field("set", c.set, "Keys of the config and their values, like --set.", required());
  v.field("needs", c.needs,
          "A file, seen from the paper's folder, without which the variation is left out; "
          "\"none\": always there.");
}

struct Sensitivity {
  std::vector<std::string> figures;
  std::vector<Variation> variations;
};
template <class V>
void describe(V& v, Sensitivity& c) {
  v.field("figures", c.figures, "Figures whose values are looked at.", required());
  v.field("variations", c.variations, "The changes.", required());
}

struct Paper {
  std::string title;
  std::string source;
  PaperRuns runs;
  std::optional<Sensitivity> sensitivity;

  std::string name;
  std::filesystem::path folder;
  /// reproduction.json in it.
  std::filesystem::path file;
  std::vector<Figure> figures;
  /// Every figure that the folder has, whether it was read or not.
  std::vector<std::string> figure_names;
};
template <class V>
void describe(V& v, Paper& c) {
  v.field("title", c.title, "The paper.", required());
  v.field("source", c.source, "Where it was published.", required());
  v.field("runs", c.runs, "Runs that several figures need.");
  v.field("sensitivity", c.sensitivity, "Changes of the assumptions; \"none\": none.");
}

/// Papers that can be reproduced, sorted.
[[nodiscard]] std::vector<std::string> paper_names(const ConfigDirectory& presets);

/// Reads a paper and its figures, those of `figures` only unless it is empty, in the order of their
/// numbers. Throws ConfigError with every problem at once: an unknown paper or figure (with a
/// suggestion), no figure at all, files with unknown keys or keys that have no effect, names of
/// runs that there are none of.
[[nodiscard]] Paper load_paper(const ConfigDirectory& presets, const std::string& name,
                               const std::vector<std::string>& figures);

/// Throws ConfigError with every figure of `sensitivity`, which the paper must have, that the
/// folder has not. Only those who ask for the variations need them.
void check_sensitivity(const Paper& paper);

}  // namespace kvtier
