#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "sim/study/papers/paper.hpp"

namespace kvtier {

/// `in` and `out` of its band (a value that is no finite number is out). Without a band: the
/// paper's value is `explained`, or it gives `no_number`.
enum class Verdict { in, out, explained, no_number };

/// One row of a figure over all seeds, in the value's unit.
struct ReproducedValue {
  FigureValue asked;
  double mean = 0;
  /// Largest minus smallest.
  double spread = 0;
  std::vector<double> of_seeds;
  Verdict verdict = Verdict::no_number;
  /// The explanation with its numbers in place, or empty.
  std::string explanation;
  /// Numbers of the explanation, in their units; those that a search did not find are missing.
  std::map<std::string, double> numbers;
};

struct Reproduction {
  struct FigureResult {
    std::string name;
    std::string title;
    std::string source;
    std::vector<ReproducedValue> values;
  };
  std::string paper;
  std::string title;
  std::string source;
  std::int64_t replications = 0;
  std::vector<FigureResult> figures;

  /// How many values have this verdict.
  [[nodiscard]] std::int64_t count(Verdict verdict) const;
};

/// Values of the figures with one thing changed in every run.
struct SensitivityResult {
  struct Column {
    std::string name;
    /// Why the column has no values, or empty.
    std::string left_out;
    /// In the order of the rows of `base`.
    std::vector<ReproducedValue> values;
  };
  Reproduction base;
  std::vector<Column> columns;
};

struct ReproduceOptions {
  std::int64_t replications = 5;
  RunOptions run;
  /// Called after each run with the runs done and those known of; searches add to both.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

/// Executes what the figures need, each run once a seed whatever the number of figures that use it,
/// and compares. Every config is resolved before the first run, with the keys of searches at both
/// ends, too. Throws ConfigError (configs, metrics that a result does not have) and as simulate
/// does.
[[nodiscard]] Reproduction reproduce(const Paper& paper, const ConfigDirectory& presets,
                                     const PolicyRegistry& registry,
                                     const ReproduceOptions& options);

/// The paper's variations on the figures that it names for them. Throws ConfigError if it has none.
[[nodiscard]] SensitivityResult vary(const Paper& paper, const ConfigDirectory& presets,
                                     const PolicyRegistry& registry,
                                     const ReproduceOptions& options);

/// `kvtier.reproduce/1` and the table of the same.
[[nodiscard]] Json to_json(const Reproduction& reproduction);
[[nodiscard]] std::string to_table(const Reproduction& reproduction);
/// `kvtier.sensitivity/1` and a table with a column a variation.
[[nodiscard]] Json to_json(const SensitivityResult& result);
[[nodiscard]] std::string to_table(const SensitivityResult& result);

}  // namespace kvtier
