#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "sim/study/papers/paper.hpp"

namespace kvtier {

/// The comparison of a value with the paper's. `in` and `out` refer to the band; a value that is
/// not finite is out. Without a band, the paper's value is `explained`, or the paper gives
/// `no_number`.
enum class Verdict { in, out, explained, no_number };

/// One row of a figure over all seeds, in the value's unit.
struct ReproducedValue {
  FigureValue asked;
  double mean = 0;
  /// Largest minus smallest.
  double spread = 0;
  std::vector<double> of_seeds;
  Verdict verdict = Verdict::no_number;
  /// The explanation with its numbers, or empty.
  std::string explanation;
  /// Numbers of the explanation, in their units, without those that a search did not find.
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

  /// The number of values with this verdict.
  [[nodiscard]] std::int64_t count(Verdict verdict) const;
};

/// Values of the figures, for the paper's assumptions and for each change of them.
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
  /// Called after each run with the runs done and the number of known runs. Searches add to both.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

/// Executes the runs of all figures and compares their values with the paper's. Figures share runs,
/// so each run is executed once per seed. All configs are resolved before the first run, also those
/// at the ends of searches. Throws ConfigError for an invalid config or a missing metric, and as
/// `simulate` does.
[[nodiscard]] Reproduction reproduce(const Paper& paper, const ConfigDirectory& presets,
                                     const PolicyRegistry& registry,
                                     const ReproduceOptions& options);

/// Executes the paper's variations on the figures of its `sensitivity`. Throws ConfigError if the
/// paper has none.
[[nodiscard]] SensitivityResult vary(const Paper& paper, const ConfigDirectory& presets,
                                     const PolicyRegistry& registry,
                                     const ReproduceOptions& options);

/// The result as JSON (`kvtier.reproduce/1`) and as a table.
[[nodiscard]] Json to_json(const Reproduction& reproduction);
[[nodiscard]] std::string to_table(const Reproduction& reproduction);
/// The result as JSON (`kvtier.sensitivity/1`) and as a table with a column for each variation.
[[nodiscard]] Json to_json(const SensitivityResult& result);
[[nodiscard]] std::string to_table(const SensitivityResult& result);

}  // namespace kvtier
