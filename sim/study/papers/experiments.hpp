#pragma once

#include <functional>
#include <vector>

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// An experiment's inputs apart from its config and parameters.
struct ExperimentContext {
  const PolicyRegistry* registry = nullptr;
  /// Options of the experiment's simulations.
  RunOptions run;
};

/// A computation that is not a single simulation, such as a few calls of the timing model. Its
/// result is a JSON object, whose numbers a figure names by JSON pointers. The same config and
/// parameters give the same bytes.
struct Experiment {
  using Function = std::function<Json(const RunConfig&, const ExperimentContext&)>;

  const char* name;
  const char* summary;
  /// Returns the experiment with the parameters at `pointer`. Adds invalid parameters, and
  /// parameters that do not fit the config, to `problems`.
  std::function<Function(const Json& parameters, const RunConfig& config,
                         const std::string& pointer, Problems& problems)>
      prepare;
};

/// All experiments, sorted by name. A new one needs a function and a line in experiments.cpp.
[[nodiscard]] const std::vector<Experiment>& experiments();

/// The experiment with this name, or null.
[[nodiscard]] const Experiment* find_experiment(const std::string& name);

}  // namespace kvtier
