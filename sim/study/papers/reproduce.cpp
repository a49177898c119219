#include "sim/study/papers/reproduce.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/papers/experiments.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// A run with a resolved config. Runs with the same `key` have the same results.
struct PreparedRun {
  std::string key;
  ResolvedConfig resolved;
  Experiment::Function experiment;
};

/// A run and the file that defines it.
struct NamedRun {
  const PaperRun* run = nullptr;
  fs::path file;
};

/// Prepares and executes the runs of one paper. Keeps every result.
class Executor {
 public:
  Executor(const Paper& paper, const ConfigDirectory& presets, const PolicyRegistry& registry,
           const ReproduceOptions& options)
      : paper_(paper), presets_(presets), registry_(registry), options_(options) {}

  [[nodiscard]] NamedRun find(const Figure& figure, const std::string& name) const {
    const auto own = figure.runs.by_name.find(name);
    if (own != figure.runs.by_name.end()) {
      return {&own->second, figure.file};
    }
    return {&paper_.runs.by_name.at(name), paper_.file};
  }

  /// Resolves a run. `more` overrides the run's own overrides, and messages name `more_origin` for
  /// it. Throws ConfigError with all problems of the run.
  [[nodiscard]] PreparedRun prepare(const NamedRun& named, const Overrides& more,
                                    const std::string& more_origin) const {
    ConfigRequest request;
    request.file = paper_.folder / named.run->config;
    request.overrides = named.run->set.list;
    request.overrides_origin = fmt::format("{}: {}/set", named.file.string(), named.run->pointer);
    if (!more.list.empty()) {
      request.overrides.insert(request.overrides.end(), more.list.begin(), more.list.end());
      request.overrides_origin = more_origin;
    }
    if (!is_file(request.file)) {
      throw ConfigError(fmt::format("{}: {}/config: no such file: {}", named.file.string(),
                                    named.run->pointer, request.file.string()));
    }
    PreparedRun prepared{"", resolve_config(request, presets_, registry_), {}};
    prepared.key =
        json_text(write_value(prepared.resolved.config)) + prepared.resolved.base_dir.string();
    if (named.run->experiment) {
      prepared.experiment = prepare_experiment(named, prepared.resolved.config);
      prepared.key += *named.run->experiment + json_text(named.run->parameters.json);
    }
    return prepared;
  }

  /// Adds all seeds of a run to the number of runs that progress shows.
  void announce(const PreparedRun& run) {
    if (announced_.insert(run.key).second) {
      all_ += options_.replications;
    }
  }
  /// Adds a run of a search, which `announce` does not count.
  void announce_more() { ++all_; }

  const Json& result(const PreparedRun& run, std::int64_t replication) {
    std::vector<Json>& results = results_[run.key];
    while (static_cast<std::int64_t>(results.size()) <= replication) {
      results.push_back(execute(run, static_cast<std::int64_t>(results.size())));
    }
    return results[static_cast<std::size_t>(replication)];
  }

  [[nodiscard]] Json execute(const PreparedRun& run, std::int64_t replication) {
    RunConfig config = run.resolved.config;
    config.seed += replication;
    RunOptions how = options_.run;
    how.base_dir = run.resolved.base_dir;
    Json result = run.experiment ? run.experiment(config, {&registry_, how})
                                 : simulate(config, registry_, how);
    ++done_;
    if (options_.progress) {
      options_.progress(done_, all_);
    }
    return result;
  }

  [[nodiscard]] std::int64_t replications() const { return options_.replications; }

 private:
  [[nodiscard]] static Experiment::Function prepare_experiment(const NamedRun& named,
                                                               const RunConfig& config) {
    Problems problems;
    problems.set_origin("", named.file.string());
    const Experiment* found = find_experiment(*named.run->experiment);
    if (found == nullptr) {
      std::vector<std::string> known;
      for (const Experiment& experiment : experiments()) {
        known.emplace_back(experiment.name);
      }
      problems.add(named.run->pointer + "/experiment",
                   fmt::format("expected one of {}, got {}{}", detail::join(known, ", "),
                               quote_text(*named.run->experiment),
                               suggestion(*named.run->experiment, known)));
      problems.throw_if_any();
    }
    Experiment::Function function = found->prepare(named.run->parameters.json, config,
                                                   named.run->pointer + "/parameters", problems);
    problems.throw_if_any();
    return function;
  }

  const Paper& paper_;
  const ConfigDirectory& presets_;
  const PolicyRegistry& registry_;
  const ReproduceOptions& options_;
  std::map<std::string, std::vector<Json>> results_;
  std::set<std::string> announced_;
  std::int64_t done_ = 0;
  std::int64_t all_ = 0;
};

/// Adds the names of an expression's runs to `names`.
void collect_runs(const Expression& expression, std::set<std::string>& names) {
  if (expression.kind == Expression::Kind::metric) {
    names.insert(expression.run);
  }
  for (const Expression& operand : expression.operands) {
    collect_runs(operand, names);
  }
}

using PreparedRuns = std::map<std::string, PreparedRun>;

/// The runs that a figure's values and explanations name.
std::set<std::string> runs_of(const Figure& figure, bool with_explanations) {
  std::set<std::string> names;
  for (const FigureValue& value : figure.values.list) {
    collect_runs(value.expression, names);
    if (!with_explanations || !value.explain) {
      continue;
    }
    for (const auto& [name, number] : value.explain->numbers) {
      if (number.expression) {
        collect_runs(*number.expression, names);
      }
    }
  }
  return names;
}

/// Overrides that set a search's keys to `at`.
Overrides keys_at(const KeySearch& search, double at, bool whole) {
  Overrides change;
  for (const std::string& key : search.keys) {
    // Six decimals resolve nanoseconds in ms and bytes in MB.
    change.list.push_back(
        {key, !search.quantity.empty()
                  ? Json(fmt::format("{:.{}f}{}", at, whole ? 0 : 6, search.quantity))
              : whole ? Json(std::llround(at))
                      : Json(at)});
  }
  return change;
}

std::string search_pointer(const FigureValue& value, const std::string& name) {
  const std::string& row = value.expression.pointer;
  return fmt::format("{}/explain/numbers/{}/search", row.substr(0, row.rfind('/')),
                     escape_pointer(name));
}

/// The runs that a search varies, and the form of its keys' values.
class SearchWork {
 public:
  SearchWork(const Executor& executor, const Figure& figure, const FigureValue& value,
             const std::string& name, const ExplainedNumber& number)
      : executor_(executor),
        figure_(figure),
        search_(*number.search),
        origin_(fmt::format("{}: {}/keys", figure.file.string(), search_pointer(value, name))) {
    collect_runs(value.expression, runs_);
    if (number.expression) {
      collect_runs(*number.expression, runs_);
    }
    // An irrational share gives a value between the ends that is no whole number.
    constexpr double kSomewhere = 0.3819660113;
    const double between = search_.from + (search_.to - search_.from) * kSomewhere;
    whole_ = !resolves(between, false) && resolves(std::round(between), true);
  }

  /// Throws ConfigError if the keys cannot have the values at the ends.
  void check() const {
    for (const double end : {search_.from, search_.to}) {
      for (const std::string& run : runs_) {
        (void)prepare(run, end);
      }
    }
  }

  /// Whether a key takes whole numbers only.
  [[nodiscard]] bool whole() const { return whole_; }

  [[nodiscard]] PreparedRun prepare(const std::string& run, double at) const {
    return executor_.prepare(executor_.find(figure_, run), keys_at(search_, at, whole_), origin_);
  }

 private:
  [[nodiscard]] bool resolves(double at, bool whole) const {
    try {
      for (const std::string& run : runs_) {
        (void)executor_.prepare(executor_.find(figure_, run), keys_at(search_, at, whole), origin_);
      }
    } catch (const ConfigError&) {
      return false;
    }
    return true;
  }

  const Executor& executor_;
  const Figure& figure_;
  const KeySearch& search_;
  std::string origin_;
  std::set<std::string> runs_;
  bool whole_ = false;
};

void add_lines(std::vector<std::string>& lines, const ConfigError& error) {
  for (const std::string& line : error.problems()) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) {
      lines.push_back(line);
    }
  }
}

/// Adds the problems of the keys of a figure's searches to `lines`.
void check_searches(const Executor& executor, const Figure& figure,
                    std::vector<std::string>& lines) {
  for (const FigureValue& value : figure.values.list) {
    if (!value.explain) {
      continue;
    }
    for (const auto& [name, number] : value.explain->numbers) {
      try {
        if (number.search) {
          SearchWork(executor, figure, value, name, number).check();
        }
      } catch (const ConfigError& error) {
        add_lines(lines, error);
      }
    }
  }
}

/// Prepares the runs of all figures. Throws ConfigError with the problems of all figures.
std::vector<PreparedRuns> prepare_figures(Executor& executor,
                                          const std::vector<const Figure*>& figures,
                                          const Overrides& more, const std::string& more_origin,
                                          bool with_explanations) {
  std::vector<PreparedRuns> prepared;
  std::vector<std::string> lines;
  for (const Figure* figure : figures) {
    PreparedRuns runs;
    bool resolved = true;
    for (const std::string& name : runs_of(*figure, with_explanations)) {
      try {
        PreparedRun run = executor.prepare(executor.find(*figure, name), more, more_origin);
        executor.announce(run);
        runs.emplace(name, std::move(run));
      } catch (const ConfigError& error) {
        add_lines(lines, error);
        resolved = false;
      }
    }
    if (with_explanations && resolved) {
      check_searches(executor, *figure, lines);
    }
    prepared.push_back(std::move(runs));
  }
  if (!lines.empty()) {
    throw ConfigError(std::move(lines));
  }
  return prepared;
}

/// Values for the leaves of an expression.
struct Leaves {
  std::function<double(const Expression&)> metric;
  double paper = 0;
  double ours = 0;
};

double number_of(const Json& result, const Expression& leaf, const fs::path& file) {
  const std::optional<double> number = number_at(result, leaf.metric);
  if (!number) {
    throw ConfigError(fmt::format("{}: {}: the result of {} has no number at {}", file.string(),
                                  leaf.pointer, quote_text(leaf.run), leaf.metric));
  }
  return *number;
}

double evaluate(const Expression& expression, const Leaves& leaves, const fs::path& file) {
  const auto fold = [&](auto operation) {
    double value = evaluate(expression.operands.front(), leaves, file);
    for (std::size_t i = 1; i < expression.operands.size(); ++i) {
      value = operation(value, evaluate(expression.operands[i], leaves, file));
    }
    return value;
  };
  switch (expression.kind) {
    case Expression::Kind::number:
      return expression.number;
    case Expression::Kind::metric:
      return leaves.metric(expression);
    case Expression::Kind::paper:
      return leaves.paper;
    case Expression::Kind::ours:
      return leaves.ours;
    case Expression::Kind::sum:
      return fold([](double a, double b) { return a + b; });
    case Expression::Kind::difference:
      return fold([](double a, double b) { return a - b; });
    case Expression::Kind::product:
      return fold([](double a, double b) { return a * b; });
    case Expression::Kind::ratio:
      return fold([&](double a, double b) {
        if (b == 0) {
          throw ConfigError(
              fmt::format("{}: {}: a divisor is 0", file.string(), expression.pointer));
        }
        return a / b;
      });
    case Expression::Kind::largest:
      return fold([](double a, double b) { return std::max(a, b); });
  }
  KVTIER_ASSERT(false, "every kind of expression is evaluated");
}

/// Largest allowed distance of a value to the paper's, in the value's unit.
double allowed_distance(const FigureValue& asked) {
  return asked.band->absolute ? *asked.band->absolute
                              : *asked.band->relative * std::abs(*asked.paper);
}

Verdict judge(const FigureValue& asked, double shown) {
  if (!asked.band) {
    return asked.paper ? Verdict::explained : Verdict::no_number;
  }
  const double allowed = allowed_distance(asked);
  const double above = shown - *asked.paper;
  const bool too_high = asked.band->side != BandSide::at_least && above > allowed;
  const bool too_low = asked.band->side != BandSide::at_most && -above > allowed;
  return !std::isfinite(shown) || too_high || too_low ? Verdict::out : Verdict::in;
}

/// Computes the values of one figure from prepared runs.
class FigureWork {
 public:
  FigureWork(Executor& executor, const Figure& figure, const PreparedRuns& runs)
      : executor_(executor), figure_(figure), runs_(runs) {}

  [[nodiscard]] ReproducedValue value(const FigureValue& asked, bool explains) {
    ReproducedValue found;
    found.asked = asked;
    const double factor = factor_of(asked.unit);
    for (std::int64_t r = 0; r < executor_.replications(); ++r) {
      found.of_seeds.push_back(evaluate(asked.expression, leaves(asked, r, 0), figure_.file) *
                               factor);
    }
    const auto [least, most] = std::minmax_element(found.of_seeds.begin(), found.of_seeds.end());
    found.spread = *most - *least;
    for (const double one : found.of_seeds) {
      found.mean += one / static_cast<double>(found.of_seeds.size());
    }
    found.verdict = judge(asked, found.mean);
    if (explains && asked.explain) {
      explain(found);
    }
    return found;
  }

 private:
  [[nodiscard]] Leaves leaves(const FigureValue& asked, std::int64_t replication,
                              double ours) const {
    return {.metric =
                [this, replication](const Expression& leaf) {
                  return number_of(executor_.result(runs_.at(leaf.run), replication), leaf,
                                   figure_.file);
                },
            .paper = asked.paper.value_or(0) / factor_of(asked.unit),
            .ours = ours};
  }

  void explain(ReproducedValue& found) {
    const FigureValue& asked = found.asked;
    const double factor = factor_of(asked.unit);
    std::string text = asked.explain->text;
    const auto replace = [&](const std::string& name, const std::string& with) {
      const std::string mark = "{" + name + "}";
      for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += with.size()) {
        text.replace(at, mark.size(), with);
      }
    };
    for (const auto& [name, number] : asked.explain->numbers) {
      if (number.search) {
        replace(name, searched(found, name, number));
        continue;
      }
      double mean = 0;
      for (std::int64_t r = 0; r < executor_.replications(); ++r) {
        const double ours = found.of_seeds[static_cast<std::size_t>(r)] / factor;
        mean += evaluate(*number.expression, leaves(asked, r, ours), figure_.file);
      }
      mean *= factor_of(number.unit) / static_cast<double>(executor_.replications());
      found.numbers[name] = mean;
      replace(name, format_in(number.unit, mean) + suffix_of(number.unit));
    }
    replace("ours", format_in(asked.unit, found.mean) + suffix_of(asked.unit));
    if (asked.paper) {
      replace("paper", fmt::format("{:g}{}", *asked.paper, suffix_of(asked.unit)));
    }
    found.explanation = text;
  }

  /// Runs with a search's keys at `at`, on the first seed. Each run is executed once.
  class Varied {
   public:
    Varied(const FigureWork& work, const SearchWork& search, double at)
        : work_(work), search_(search), at_(at) {}
    [[nodiscard]] double evaluate_at(const Expression& expression, double paper, double ours) {
      return evaluate(expression,
                      {.metric = [this](const Expression& leaf) { return number(leaf); },
                       .paper = paper,
                       .ours = ours},
                      work_.figure_.file);
    }

   private:
    double number(const Expression& leaf) {
      auto result = results_.find(leaf.run);
      if (result == results_.end()) {
        const PreparedRun run = search_.prepare(leaf.run, at_);
        work_.executor_.announce_more();
        result = results_.emplace(leaf.run, work_.executor_.execute(run, 0)).first;
      }
      return number_of(result->second, leaf, work_.figure_.file);
    }

    const FigureWork& work_;
    const SearchWork& search_;
    double at_;
    std::map<std::string, Json> results_;
  };

  /// The text of a number that a search finds. Adds the number to `found.numbers`.
  std::string searched(ReproducedValue& found, const std::string& name,
                       const ExplainedNumber& number) {
    const KeySearch& search = *number.search;
    const FigureValue& asked = found.asked;
    const double paper = *asked.paper / factor_of(asked.unit);
    const SearchWork work(executor_, figure_, asked, name, number);
    const auto varied = [&](double at) { return Varied(*this, work, at); };
    const auto possible = [&](double at) { return work.whole() ? std::round(at) : at; };
    const auto distance = [&](double at) {
      return varied(at).evaluate_at(asked.expression, paper, 0) - paper;
    };
    constexpr int kMostSteps = 24;
    constexpr double kClose = 5e-4;
    double low = possible(search.from);
    double high = possible(search.to);
    const double at_low = distance(low);
    const double at_high = distance(high);
    if (at_low * at_high > 0) {
      return fmt::format("nothing from {:g}{} to {:g}{}", low, search.quantity, high,
                         search.quantity);
    }
    double nearest = std::abs(at_low) <= std::abs(at_high) ? low : high;
    double least = std::min(std::abs(at_low), std::abs(at_high));
    for (int step = 0; step < kMostSteps && least > kClose * std::abs(paper); ++step) {
      const double at = possible(std::sqrt(low * high));
      if (at == low || at == high) {
        break;
      }
      const double here = distance(at);
      if (std::abs(here) <= least) {
        nearest = at;
        least = std::abs(here);
      }
      (here * at_low > 0 ? low : high) = at;
    }
    const double at = nearest;
    if (!number.expression) {
      found.numbers[name] = at;
      return fmt::format("{:.3g}{}{}", at, search.quantity.empty() ? "" : " ", search.quantity);
    }
    const double value =
        varied(at).evaluate_at(*number.expression, paper, paper) * factor_of(number.unit);
    found.numbers[name] = value;
    return format_in(number.unit, value) + suffix_of(number.unit);
  }

  Executor& executor_;
  const Figure& figure_;
  const PreparedRuns& runs_;
};

Reproduction reproduce_figures(Executor& executor, const Paper& paper,
                               const std::vector<const Figure*>& figures,
                               const std::vector<PreparedRuns>& runs, bool explains) {
  Reproduction reproduction{paper.name, paper.title, paper.source, executor.replications(), {}};
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const Figure& figure = *figures[i];
    FigureWork work(executor, figure, runs[i]);
    Reproduction::FigureResult result{figure.name, figure.title, figure.source, {}};
    for (const FigureValue& value : figure.values.list) {
      result.values.push_back(work.value(value, explains));
    }
    reproduction.figures.push_back(std::move(result));
  }
  return reproduction;
}

// ---- Output ----

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::in:
      return "in";
    case Verdict::out:
      return "OUT";
    default:
      return "";
  }
}

std::string unit_name(ValueUnit unit) {
  const std::string suffix = suffix_of(unit);
  return suffix.empty() ? suffix : suffix.substr(1);
}

std::string band_text(const FigureValue& asked) {
  if (!asked.band) {
    return "";
  }
  switch (asked.band->side) {
    case BandSide::at_most:
      return fmt::format("<= {:g}", *asked.paper + allowed_distance(asked));
    case BandSide::at_least:
      return fmt::format(">= {:g}", *asked.paper - allowed_distance(asked));
    case BandSide::both:
      break;
  }
  return asked.band->absolute ? fmt::format("+-{:g}", *asked.band->absolute)
                              : fmt::format("+-{:g} %", *asked.band->relative * 100);
}

std::string value_text(const ReproducedValue& value, bool with_spread) {
  std::string text = format_in(value.asked.unit, value.mean);
  if (with_spread) {
    text += " (" + format_in(value.asked.unit, value.spread) + ")";
  }
  return text;
}

/// Wraps `text` into indented lines of at most `width` characters. A number stays with its unit.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const bool after_number =
        !words.empty() && std::isdigit(static_cast<unsigned char>(words.back().back())) != 0;
    if (after_number && !word.empty()) {
      words.back() += " " + word;
    } else if (!word.empty()) {
      words.push_back(word);
    }
    at = end + 1;
  }
  std::string lines;
  std::size_t length = 0;
  for (const std::string& word : words) {
    const bool fits = length > 0 && length + 1 + word.size() <= width;
    lines += fits ? " " : (lines.empty() ? "" : "\n") + std::string(indent, ' ');
    lines += word;
    length = (fits ? length + 1 : indent) + word.size();
  }
  return lines + "\n";
}

std::string heading(const Reproduction& reproduction) {
  return fmt::format(
      "{} ({}), {}\n", reproduction.title, reproduction.source,
      reproduction.replications == 1
          ? std::string("one seed")
          : fmt::format("mean of {} seeds (largest - smallest)", reproduction.replications));
}

constexpr std::size_t kLineWidth = 100;

Json finite(double number) { return std::isfinite(number) ? Json(number) : Json(nullptr); }

}  // namespace

std::int64_t Reproduction::count(Verdict verdict) const {
  std::int64_t sum = 0;
  for (const FigureResult& figure : figures) {
    sum += std::count_if(figure.values.begin(), figure.values.end(),
                         [&](const ReproducedValue& value) { return value.verdict == verdict; });
  }
  return sum;
}

Reproduction reproduce(const Paper& paper, const ConfigDirectory& presets,
                       const PolicyRegistry& registry, const ReproduceOptions& options) {
  Executor executor(paper, presets, registry, options);
  std::vector<const Figure*> figures;
  for (const Figure& figure : paper.figures) {
    figures.push_back(&figure);
  }
  const std::vector<PreparedRuns> runs = prepare_figures(executor, figures, {}, "", true);
  return reproduce_figures(executor, paper, figures, runs, true);
}

SensitivityResult vary(const Paper& paper, const ConfigDirectory& presets,
                       const PolicyRegistry& registry, const ReproduceOptions& options) {
  if (!paper.sensitivity) {
    throw ConfigError(fmt::format("--sensitivity: {} names no variations", paper.file.string()));
  }
  const Sensitivity& sensitivity = *paper.sensitivity;
  check_sensitivity(paper);
  std::vector<const Figure*> figures;
  for (const Figure& figure : paper.figures) {
    if (std::find(sensitivity.figures.begin(), sensitivity.figures.end(), figure.name) !=
        sensitivity.figures.end()) {
      figures.push_back(&figure);
    }
  }
  if (figures.empty()) {
    throw ConfigError(fmt::format("--figure: with --sensitivity expected one of {}",
                                  detail::join(sensitivity.figures, ", ")));
  }
  Executor executor(paper, presets, registry, options);
  const std::string file = paper.file.string();
  SensitivityResult result;
  std::vector<std::vector<PreparedRuns>> runs;
  std::vector<std::string> problems;
  const std::vector<PreparedRuns> base = prepare_figures(executor, figures, {}, "", false);
  for (std::size_t i = 0; i < sensitivity.variations.size(); ++i) {
    const Variation& variation = sensitivity.variations[i];
    result.columns.push_back({variation.name, "", {}});
    runs.emplace_back();
    if (variation.needs && !path_exists(paper.folder / *variation.needs)) {
      result.columns.back().left_out = fmt::format("there is no {}", *variation.needs);
      continue;
    }
    try {
      runs.back() =
          prepare_figures(executor, figures, variation.set,
                          fmt::format("{}: /sensitivity/variations/{}/set", file, i), false);
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  result.base = reproduce_figures(executor, paper, figures, base, false);
  for (std::size_t i = 0; i < result.columns.size(); ++i) {
    if (!result.columns[i].left_out.empty()) {
      continue;
    }
    const Reproduction varied = reproduce_figures(executor, paper, figures, runs[i], false);
    for (const Reproduction::FigureResult& figure : varied.figures) {
      result.columns[i].values.insert(result.columns[i].values.end(), figure.values.begin(),
                                      figure.values.end());
    }
  }
  return result;
}

Json to_json(const Reproduction& reproduction) {
  Json json = new_result("kvtier.reproduce/1");
  json.update(Json{{"paper", reproduction.paper},
                   {"title", reproduction.title},
                   {"source", reproduction.source},
                   {"replications", reproduction.replications},
                   {"values_in_band", reproduction.count(Verdict::in)},
                   {"values_out_of_band", reproduction.count(Verdict::out)},
                   {"values_explained", reproduction.count(Verdict::explained)},
                   {"values_without_paper", reproduction.count(Verdict::no_number)},
                   {"figures", Json::object()}});
  for (const Reproduction::FigureResult& figure : reproduction.figures) {
    Json values = Json::array();
    for (const ReproducedValue& value : figure.values) {
      Json row{{"name", value.asked.name},
               {"unit", write_value(value.asked.unit)},
               {"paper", value.asked.paper ? Json(*value.asked.paper) : Json(nullptr)},
               {"mean", finite(value.mean)},
               {"spread", finite(value.spread)},
               {"seeds", Json::array()},
               {"band", value.asked.band ? write_value(*value.asked.band) : Json(nullptr)},
               {"verdict", value.verdict == Verdict::in    ? Json("in")
                           : value.verdict == Verdict::out ? Json("out")
                                                           : Json(nullptr)}};
      for (const double one : value.of_seeds) {
        row["seeds"].push_back(finite(one));
      }
      if (!value.explanation.empty()) {
        row["explanation"] = value.explanation;
        row["numbers"] = Json::object();
        for (const auto& [name, number] : value.numbers) {
          row["numbers"][name] = finite(number);
        }
      }
      values.push_back(std::move(row));
    }
    json["figures"][figure.name] =
        Json{{"title", figure.title}, {"source", figure.source}, {"values", std::move(values)}};
  }
  return json;
}

std::string to_table(const Reproduction& reproduction) {
  constexpr std::size_t kNameWidth = 50;
  const bool spread = reproduction.replications > 1;
  std::string text = heading(reproduction);
  const auto row = [&](const auto& name, const auto& unit, const auto& paper, const auto& ours,
                       const auto& band, const auto& verdict) {
    std::string line = fmt::format("{:<{}}{:>9}{:>9}{:>16} {:>8}  {}", name, kNameWidth, unit,
                                   paper, ours, band, verdict);
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  text += "\n" + row("", "unit", "paper", "kvtier", "band", "");
  for (const Reproduction::FigureResult& figure : reproduction.figures) {
    text += fmt::format("\n{}: {}\n", figure.source, figure.title);
    for (const ReproducedValue& value : figure.values) {
      text += row("  " + value.asked.name, unit_name(value.asked.unit),
                  value.asked.paper ? fmt::format("{:g}", *value.asked.paper) : "-",
                  value_text(value, spread), band_text(value.asked), to_string(value.verdict));
    }
    for (const ReproducedValue& value : figure.values) {
      if (!value.explanation.empty()) {
        text += wrapped(value.asked.name + ": " + value.explanation, 4, kLineWidth);
      }
    }
  }
  text += fmt::format(
      "\n{} in their band, {} out, {} explained, {} that the paper gives no number for\n",
      reproduction.count(Verdict::in), reproduction.count(Verdict::out),
      reproduction.count(Verdict::explained), reproduction.count(Verdict::no_number));
  return text;
}

Json to_json(const SensitivityResult& result) {
  Json json = new_result("kvtier.sensitivity/1");
  json["as_published"] = to_json(result.base);
  json["variations"] = Json::array();
  for (const SensitivityResult::Column& column : result.columns) {
    Json entry{{"name", column.name}};
    if (!column.left_out.empty()) {
      entry["left_out"] = column.left_out;
    } else {
      entry["values"] = Json::array();
      for (const ReproducedValue& value : column.values) {
        entry["values"].push_back(
            Json{{"mean", finite(value.mean)}, {"spread", finite(value.spread)}});
      }
    }
    json["variations"].push_back(std::move(entry));
  }
  return json;
}

std::string to_table(const SensitivityResult& result) {
  constexpr std::size_t kNameWidth = 46;
  constexpr std::size_t kColumnWidth = 8;
  std::string text = heading(result.base);
  text += "\n" + fmt::format("{:<{}}{:>7}{:>8}{:>9}", "", kNameWidth, "unit", "paper", "kvtier");
  for (std::size_t i = 0; i < result.columns.size(); ++i) {
    if (result.columns[i].left_out.empty()) {
      text += fmt::format("{:>{}}", fmt::format("({})", i + 1), kColumnWidth);
    }
  }
  text += "\n";
  std::size_t row = 0;
  for (const Reproduction::FigureResult& figure : result.base.figures) {
    text += fmt::format("{}: {}\n", figure.source, figure.title);
    for (const ReproducedValue& value : figure.values) {
      text += fmt::format("{:<{}}{:>7}{:>8}{:>9}", "  " + value.asked.name, kNameWidth,
                          unit_name(value.asked.unit),
                          value.asked.paper ? fmt::format("{:g}", *value.asked.paper) : "-",
                          value_text(value, false));
      for (const SensitivityResult::Column& column : result.columns) {
        if (column.left_out.empty()) {
          const ReproducedValue& varied = column.values[row];
          // The difference exceeds the spread of the seeds.
          const bool moved =
              std::abs(varied.mean - value.mean) > std::max(varied.spread, value.spread);
          const bool leaves = varied.verdict == Verdict::out && value.verdict == Verdict::in;
          const char* mark = leaves ? "!" : moved ? "*" : " ";
          text += fmt::format("{:>{}}", value_text(varied, false) + mark, kColumnWidth);
        }
      }
      text.erase(text.find_last_not_of(' ') + 1);
      text += "\n";
      ++row;
    }
  }
  text += "\n";
  for (std::size_t i = 0; i < result.columns.size(); ++i) {
    const SensitivityResult::Column& column = result.columns[i];
    text += fmt::format("({}) {}{}\n", i + 1, column.name,
                        column.left_out.empty() ? "" : " [left out: " + column.left_out + "]");
  }
  text += "* differs by more than the seeds do among themselves\n! leaves its band\n";
  return text;
}

}  // namespace kvtier
