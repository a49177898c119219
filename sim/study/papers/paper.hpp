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

/// Papers as data. A folder of `configs/papers` has the configs, `reproduction.json` (the paper and
/// its runs), and a file in `figures/` for each figure or section. docs/papers.md describes them.
namespace kvtier {

/// A number that is computed from runs: a number, `"RUN /json/pointer"` (a number in that run's
/// result), `"paper"` or `"ours"` (the explained value), or an operation on a list of these, which
/// applies from left to right: `{"ratio": [A, B]}`.
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

/// A simulation of a config, or a built-in experiment on it.
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
  v.field("config", c.config, "Config of the run: a file in the paper's folder.", required());
  v.field("set", c.set, "Keys of the config and their values, like --set.");
  v.field("experiment", c.experiment,
          "Name of an experiment on the config; \"none\": a simulation.");
  v.field("parameters", c.parameters, "The experiment's parameters.");
}

/// Runs by name. A member with `each` becomes several runs.
struct PaperRuns {
  std::map<std::string, PaperRun> by_name;
};
void read_config(PaperRuns& runs, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const PaperRuns& runs);
[[nodiscard]] Json config_schema(const PaperRuns& runs);

/// The sides of the paper's value that the band limits.
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
  v.field("side", c.side, "The limited side: both, at_most or at_least.");
}

/// A search for the key value at which the explained value equals the paper's. All keys have the
/// same value. Bisects on the first seed, so the explained value must be monotonic between the
/// ends. For keys of whole numbers the result is the nearest whole number.
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
  v.field("quantity", c.quantity, "Unit of the keys' value, such as \"GB/s\".", required());
  v.field("from", c.from, "One end of the search.", required(positive()));
  v.field("to", c.to, "The other end.", required(positive()));
}

/// A number in an explanation. It is computed from the runs, with the keys at the result of a
/// search if there is one. A search without `value` gives its result.
struct ExplainedNumber {
  std::optional<Expression> expression;
  ValueUnit unit = ValueUnit::count;
  std::optional<KeySearch> search;
};
template <class V>
void describe(V& v, ExplainedNumber& c) {
  v.field("value", c.expression, "The number.");
  v.field("unit", c.unit, "Unit in which the number is shown.");
  v.field("search", c.search, "Search for a key value that comes first.");
}

struct Explanation {
  std::string text;
  std::map<std::string, ExplainedNumber> numbers;
};
template <class V>
void describe(V& v, Explanation& c) {
  v.field("text", c.text,
          "A sentence; {NAME} stands for a number, {paper} and {ours} for the compared values.",
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
  v.field("name", c.name, "Name of the row.", required());
  v.field("value", c.expression, "Computation from the runs.", required());
  v.field("unit", c.unit, "Unit of value, paper and band.", required());
  v.field("paper", c.paper,
          "The paper's number, which needs a band or an explanation; \"none\": no number.");
  v.field("band", c.band,
          "Largest distance to the paper's number; \"none\": the value is only shown.");
  v.field("explain", c.explain, "Why the value differs, with numbers from the runs.");
}

/// Rows of a figure. An item with `each` becomes several rows.
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

  /// The file's name without suffix, which --figure takes.
  std::string name;
  std::filesystem::path file;
};
template <class V>
void describe(V& v, Figure& c) {
  v.field("title", c.title, "Title of the figure.", required());
  v.field("source", c.source, "Place in the paper.", required());
  v.field("runs", c.runs, "Runs that only this figure needs.");
  v.field("values", c.values, "The rows.", required());
}

/// A change of all runs that shows which values depend on it.
struct Variation {
  std::string name;
  Overrides set;
  std::optional<std::string> needs;
};
template <class V>
void describe(V& v, Variation& c) {
  v.field("name", c.name, "Description of the change.", required());
  v.field("set", c.set, "Keys of the config and their values, like --set.", required());
  v.field("needs", c.needs,
          "A file, relative to the paper's folder, without which the variation is left out; "
          "\"none\": no file.");
}

struct Sensitivity {
  std::vector<std::string> figures;
  std::vector<Variation> variations;
};
template <class V>
void describe(V& v, Sensitivity& c) {
  v.field("figures", c.figures, "Figures whose values are compared.", required());
  v.field("variations", c.variations, "The changes.", required());
}

struct Paper {
  std::string title;
  std::string source;
  PaperRuns runs;
  std::optional<Sensitivity> sensitivity;

  std::string name;
  std::filesystem::path folder;
  /// The path of reproduction.json.
  std::filesystem::path file;
  std::vector<Figure> figures;
  /// All figures of the folder, also those that were not read.
  std::vector<std::string> figure_names;
};
template <class V>
void describe(V& v, Paper& c) {
  v.field("title", c.title, "Title of the paper.", required());
  v.field("source", c.source, "Publication.", required());
  v.field("runs", c.runs, "Runs that several figures need.");
  v.field("sensitivity", c.sensitivity, "Changes of the assumptions; \"none\": none.");
}

/// Sorted names of the papers that can be reproduced.
[[nodiscard]] std::vector<std::string> paper_names(const ConfigDirectory& presets);

/// Reads a paper and its figures, sorted by number. `figures` selects some of them; empty: all.
/// Throws ConfigError with all problems at once: an unknown paper or figure, a paper without
/// figures, unknown keys, keys without effect, names of missing runs.
[[nodiscard]] Paper load_paper(const ConfigDirectory& presets, const std::string& name,
                               const std::vector<std::string>& figures);

/// Throws ConfigError with every figure that `paper.sensitivity` names and the folder lacks. The
/// paper must have a `sensitivity`.
void check_sensitivity(const Paper& paper);

}  // namespace kvtier
