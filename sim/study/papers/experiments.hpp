#pragma once

#include <functional>
#include <vector>

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// Inputs of an experiment beside its config and parameters.
struct ExperimentContext {
  const PolicyRegistry* registry = nullptr;
  /// For the simulations that it does.
  RunOptions run;
};

/// A computation that is no single simulation, such as a few calls of the timing model. Its result
/// is a JSON object, whose numbers the values of a figure name by pointers. The same config and
/// parameters give the same bytes.
struct Experiment {
  using Function = std::function<Json(const RunConfig&, const ExperimentContext&)>;

  const char* name;
  const char* summary;
  /// The experiment with these parameters, which stand at `pointer`; what is wrong with them, by
  /// themselves or for the config, goes to `problems`.
  std::function<Function(const Json& parameters, const RunConfig& config,
                         const std::string& pointer, Problems& problems)>
      prepare;
};

/// All experiments, in the order of their names. An explicit table: a new one is a function and a
/// line in experiments.cpp.
[[nodiscard]] const std::vector<Experiment>& experiments();

/// The experiment of this name, or null.
[[nodiscard]] const Experiment* find_experiment(const std::string& name);

}  // namespace kvtier
