#include "sim/study/papers/paper.hpp"

#include <algorithm>
#include <cctype>
#include <functional>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "sim/core/file.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPaperFile = "reproduction.json";
constexpr const char* kFigures = "figures";
constexpr const char* kEachKey = "each";
constexpr const char* kPaperWord = "paper";
constexpr const char* kOursWord = "ours";

struct Operation {
  const char* name;
  Expression::Kind kind;
};
constexpr std::array kOperations{
    Operation{"sum", Expression::Kind::sum}, Operation{"difference", Expression::Kind::difference},
    Operation{"product", Expression::Kind::product}, Operation{"ratio", Expression::Kind::ratio},
    Operation{"largest", Expression::Kind::largest}};

/// Replaces every `{name}` in keys and texts of `json`. A text that is only the mark becomes the
/// value itself. Returns whether there was a mark.
bool substitute(Json& json, const std::string& name, const Json& value) {
  const std::string mark = "{" + name + "}";
  const auto in_text = [&](std::string& text) {
    bool found = false;
    const std::string with = value.is_string() ? value.get<std::string>() : json_text(value);
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += with.size()) {
      text.replace(at, mark.size(), with);
      found = true;
    }
    return found;
  };
  if (json.is_string()) {
    if (json.get_ref<const std::string&>() == mark) {
      json = value;
      return true;
    }
    return in_text(json.get_ref<std::string&>());
  }
  bool found = false;
  if (json.is_array()) {
    for (Json& item : json) {
      found = substitute(item, name, value) || found;
    }
  } else if (json.is_object()) {
    Json renamed = Json::object();
    for (auto& [key, item] : json.items()) {
      std::string new_key = key;
      found = in_text(new_key) || found;
      found = substitute(item, name, value) || found;
      renamed[new_key] = std::move(item);
    }
    json = std::move(renamed);
  }
  return found;
}

/// Returns [name, json]. If `json` has `"each": [{KEY: VALUE, ..}, ..]`, returns a copy for each
/// item of the list, with the values in place of `{KEY}`.
std::vector<Json> expand_each(const std::string& name, const Json& json, const std::string& pointer,
                              Problems& problems) {
  if (!json.is_object() || !json.contains(kEachKey)) {
    return {Json::array({name, json})};
  }
  const Json& list = json[kEachKey];
  const std::string at = pointer + "/" + kEachKey;
  if (!list.is_array() || list.empty()) {
    problems.add(at, "expected a list of objects, got " + quote_json(list));
    return {};
  }
  Json pattern = Json::array({name, json});
  pattern[1].erase(kEachKey);
  std::vector<Json> copies;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string item = at + "/" + std::to_string(i);
    if (!list[i].is_object()) {
      problems.add(item, "expected an object, got " + quote_json(list[i]));
      continue;
    }
    Json copy = pattern;
    for (const auto& [key, value] : list[i].items()) {
      if (!substitute(copy, key, value)) {
        problems.add(item + "/" + escape_pointer(key),
                     fmt::format("no text beside \"{}\" has {{{}}}", kEachKey, key));
      }
    }
    copies.push_back(std::move(copy));
  }
  return copies;
}

/// Reads a file into `target` and adds its problems to `lines`.
template <class T>
void read_file(T& target, const fs::path& path, std::vector<std::string>& lines,
               const std::function<void(const T&, Problems&)>& check) {
  Problems problems;
  problems.set_origin("", path.string());
  try {
    read_value(target, parse_json_strictly(read_text_file(path), path.string()), "", problems);
    if (problems.empty()) {
      check(target, problems);
    }
  } catch (const ConfigError& error) {
    lines.insert(lines.end(), error.problems().begin(), error.problems().end());
  }
  // Copies of one item have the same problems.
  for (const std::string& line : problems.lines()) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) {
      lines.push_back(line);
    }
  }
}

class FigureCheck {
 public:
  FigureCheck(const Paper& paper, const Figure& figure, Problems& problems)
      : figure_(figure), problems_(problems) {
    for (const PaperRuns* runs : {&paper.runs, &figure.runs}) {
      for (const auto& [name, run] : runs->by_name) {
        names_.push_back(name);
      }
    }
    for (const auto& [name, run] : figure.runs.by_name) {
      if (paper.runs.by_name.contains(name)) {
        problems_.add(run.pointer,
                      fmt::format("{} has a run {}, too", kPaperFile, quote_text(name)));
        shadows_.insert(name);
      }
    }
  }

  void value(const FigureValue& value) {
    const std::string at = value.expression.pointer.substr(0, value.expression.pointer.rfind('/'));
    expression(value.expression, value.paper.has_value(), false);
    if (value.band) {
      if (!value.paper) {
        problems_.add(at + "/band", "there is no \"paper\" to compare with");
      }
      if (value.band->absolute.has_value() == value.band->relative.has_value()) {
        problems_.add(at + "/band", "expected one of \"absolute\" and \"relative\"");
      }
    }
    if (value.paper && !value.band && !value.explain) {
      problems_.add(at + "/paper", "expected a \"band\" or an \"explain\" beside it");
    }
    if (value.explain) {
      explanation(*value.explain, value.paper.has_value(), at + "/explain");
    }
  }

  /// Checks that every run is used. Call it after `value` for all values.
  void runs() {
    for (const auto& [name, run] : figure_.runs.by_name) {
      if (!used_.contains(name) && !shadows_.contains(name)) {
        problems_.add(run.pointer, fmt::format("no value names the run {}", quote_text(name)));
      }
    }
  }

 private:
  void explanation(const Explanation& explanation, bool has_paper, const std::string& at) {
    std::set<std::string> unused;
    for (const auto& [name, number] : explanation.numbers) {
      unused.insert(name);
      const std::string pointer = at + "/numbers/" + escape_pointer(name);
      if (number.expression) {
        expression(*number.expression, has_paper, true);
      } else if (!number.search) {
        problems_.add(pointer, "expected a \"value\" or a \"search\"");
      }
      if (number.search) {
        if (!has_paper) {
          problems_.add(pointer + "/search", "there is no \"paper\" to search for");
        }
        for (std::size_t i = 0; i < number.search->keys.size(); ++i) {
          check_pointer(number.search->keys[i], fmt::format("{}/search/keys/{}", pointer, i),
                        problems_);
        }
      }
    }
    const std::string& text = explanation.text;
    for (std::size_t open = 0; (open = text.find('{', open)) != std::string::npos; ++open) {
      const std::size_t close = text.find('}', open);
      const std::string name = text.substr(open + 1, close - open - 1);
      unused.erase(name);
      const bool known = name == kOursWord || (name == kPaperWord && has_paper) ||
                         explanation.numbers.contains(name);
      if (close == std::string::npos || !known) {
        problems_.add(at + "/text", fmt::format("{{{}}} is no number of the explanation", name));
      }
    }
    for (const std::string& name : unused) {
      problems_.add(at + "/numbers/" + escape_pointer(name), "the text does not use this number");
    }
  }

  void expression(const Expression& expression_, bool has_paper, bool explains) {
    switch (expression_.kind) {
      case Expression::Kind::metric:
        used_.insert(expression_.run);
        if (std::find(names_.begin(), names_.end(), expression_.run) == names_.end()) {
          problems_.add(expression_.pointer,
                        fmt::format("there is no run {}{}", quote_text(expression_.run),
                                    suggestion(expression_.run, names_)));
        }
        break;
      case Expression::Kind::paper:
        if (!has_paper) {
          problems_.add(expression_.pointer, "the value has no \"paper\"");
        }
        break;
      case Expression::Kind::ours:
        if (!explains) {
          problems_.add(expression_.pointer, "only an explanation can say \"ours\"");
        }
        break;
      default:
        for (const Expression& operand : expression_.operands) {
          expression(operand, has_paper, explains);
        }
    }
  }

  const Figure& figure_;
  Problems& problems_;
  std::vector<std::string> names_;
  std::set<std::string> used_;
  std::set<std::string> shadows_;
};

/// Orders figures by their number, then by the rest of their name.
bool before(const std::string& a, const std::string& b) {
  const auto key = [](const std::string& name) {
    std::size_t digits = 0;
    long number = 0;
    constexpr std::size_t kMostDigits = 9;
    while (digits < name.size() && digits < kMostDigits &&
           std::isdigit(static_cast<unsigned char>(name[digits])) != 0) {
      number = number * 10 + (name[digits++] - '0');
    }
    return std::pair{digits == 0 ? -1 : number, name.substr(digits)};
  };
  return key(a) < key(b);
}

std::vector<std::string> figure_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& file : folder_entries(folder / kFigures)) {
    if (file.extension() == ".json") {
      names.push_back(file.stem().string());
    }
  }
  std::sort(names.begin(), names.end(), before);
  return names;
}

std::string unknown_figure(const std::string& figure, const std::vector<std::string>& known) {
  return fmt::format("expected one of {}, got {}{}", detail::join(known, ", "), quote_text(figure),
                     suggestion(figure, known));
}

}  // namespace

void read_config(Expression& expression, const Json& json, const std::string& pointer,
                 Problems& problems) {
  expression = Expression{};
  expression.pointer = pointer;
  if (json.is_number()) {
    expression.number = json.get<double>();
    return;
  }
  if (json.is_string()) {
    const std::string text = json.get<std::string>();
    const std::size_t blank = text.find(" /");
    if (text == kPaperWord) {
      expression.kind = Expression::Kind::paper;
      return;
    }
    if (text == kOursWord) {
      expression.kind = Expression::Kind::ours;
      return;
    }
    if (blank != std::string::npos && blank > 0) {
      expression.kind = Expression::Kind::metric;
      expression.run = text.substr(0, blank);
      expression.metric = text.substr(blank + 1);
      try {
        (void)Json::json_pointer(expression.metric);
        return;
      } catch (const Json::parse_error&) {
        problems.add(pointer, "expected a JSON pointer after the run, got " + quote_json(json));
        return;
      }
    }
  }
  if (json.is_object() && json.size() == 1 && json.begin()->is_array() &&
      json.begin()->size() >= 2) {
    for (const Operation& operation : kOperations) {
      if (json.begin().key() == operation.name) {
        expression.kind = operation.kind;
        for (std::size_t i = 0; i < json.begin()->size(); ++i) {
          expression.operands.emplace_back();
          read_config(expression.operands.back(), (*json.begin())[i],
                      fmt::format("{}/{}/{}", pointer, operation.name, i), problems);
        }
        return;
      }
    }
  }
  problems.add(pointer,
               "expected a number, \"RUN /json/pointer\", \"paper\", \"ours\", or one of sum, "
               "difference, product, ratio, largest with a list of two or more, got " +
                   quote_json(json));
}

Json write_config(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::number:
      return expression.number;
    case Expression::Kind::metric:
      return expression.run + " " + expression.metric;
    case Expression::Kind::paper:
      return kPaperWord;
    case Expression::Kind::ours:
      return kOursWord;
    default:
      break;
  }
  Json operands = Json::array();
  for (const Expression& operand : expression.operands) {
    operands.push_back(write_config(operand));
  }
  for (const Operation& operation : kOperations) {
    if (operation.kind == expression.kind) {
      return Json{{operation.name, operands}};
    }
  }
  return nullptr;
}

Json config_schema(const Expression&) {
  return Json{{"type", Json::array({"number", "string", "object"})}};
}

void read_config(PaperRuns& runs, const Json& json, const std::string& pointer,
                 Problems& problems) {
  runs.by_name.clear();
  if (!json.is_object()) {
    problems.add(pointer, "expected an object, got " + quote_json(json));
    return;
  }
  for (const auto& [key, member] : json.items()) {
    const std::string at = pointer + "/" + escape_pointer(key);
    // `each` also substitutes marks in the run's name.
    for (const Json& copy : expand_each(key, member, at, problems)) {
      // Substitution turns a name that is only a mark into its value, which may be a number.
      const std::string name =
          copy[0].is_string() ? copy[0].get<std::string>() : json_text(copy[0]);
      PaperRun run;
      run.pointer = at;
      read_value(run, copy[1], at, problems);
      if (!run.experiment && copy[1].is_object() && copy[1].contains("parameters")) {
        problems.add(at + "/parameters", "there is no \"experiment\" that takes them");
      }
      if (name.empty() || name.find(" /") != std::string::npos) {
        problems.add(at, "a run's name is not empty and has no / after a blank");
      } else if (!runs.by_name.emplace(name, std::move(run)).second) {
        problems.add(at, fmt::format("there is a run {} already", quote_text(name)));
      }
    }
  }
}

Json write_config(const PaperRuns& runs) { return write_value(runs.by_name); }
Json config_schema(const PaperRuns&) { return Json{{"type", "object"}}; }

void read_config(FigureValues& values, const Json& json, const std::string& pointer,
                 Problems& problems) {
  values.list.clear();
  if (!json.is_array()) {
    problems.add(pointer, "expected a list, got " + quote_json(json));
    return;
  }
  if (json.empty()) {
    problems.add(pointer, "expected one value at least, got []");
  }
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string at = fmt::format("{}/{}", pointer, i);
    for (const Json& copy : expand_each("", json[i], at, problems)) {
      values.list.emplace_back();
      read_value(values.list.back(), copy[1], at, problems);
    }
  }
}

Json write_config(const FigureValues& values) { return write_value(values.list); }
Json config_schema(const FigureValues&) { return Json{{"type", "array"}}; }

std::vector<std::string> paper_names(const ConfigDirectory& presets) {
  std::vector<std::string> names;
  for (const fs::path& folder : folder_entries(presets.path() / "papers")) {
    if (is_file(folder / kPaperFile)) {
      names.push_back(folder.filename().string());
    }
  }
  return names;
}

Paper load_paper(const ConfigDirectory& presets, const std::string& name,
                 const std::vector<std::string>& figures) {
  const std::vector<std::string> papers = paper_names(presets);
  if (std::find(papers.begin(), papers.end(), name) == papers.end()) {
    throw ConfigError(fmt::format("PAPER: expected one of {}, got {}{}", detail::join(papers, ", "),
                                  quote_text(name), suggestion(name, papers)));
  }
  Paper paper;
  const fs::path folder = presets.path() / "papers" / name;
  const std::vector<std::string> known = figure_names(folder);
  std::vector<std::string> lines;
  if (known.empty()) {
    lines.push_back(fmt::format("{}: the paper has no figures", (folder / kFigures).string()));
  } else {
    for (const std::string& figure : figures) {
      if (std::find(known.begin(), known.end(), figure) == known.end()) {
        lines.push_back("--figure: " + unknown_figure(figure, known));
      }
    }
  }
  read_file<Paper>(paper, folder / kPaperFile, lines, [](const Paper&, Problems&) {});
  paper.name = name;
  paper.folder = folder;
  paper.file = folder / kPaperFile;
  paper.figure_names = known;
  for (const std::string& figure_name : known) {
    if (!figures.empty() &&
        std::find(figures.begin(), figures.end(), figure_name) == figures.end()) {
      continue;
    }
    Figure figure;
    const fs::path file = folder / kFigures / (figure_name + ".json");
    read_file<Figure>(figure, file, lines, [&](const Figure& read, Problems& problems) {
      FigureCheck check(paper, read, problems);
      for (const FigureValue& value : read.values.list) {
        check.value(value);
      }
      check.runs();
    });
    figure.name = figure_name;
    figure.file = file;
    paper.figures.push_back(std::move(figure));
  }
  if (!lines.empty()) {
    throw ConfigError(std::move(lines));
  }
  return paper;
}

void check_sensitivity(const Paper& paper) {
  Problems problems;
  problems.set_origin("", paper.file.string());
  const std::vector<std::string>& figures = paper.sensitivity->figures;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    if (std::find(paper.figure_names.begin(), paper.figure_names.end(), figures[i]) ==
        paper.figure_names.end()) {
      problems.add(fmt::format("/sensitivity/figures/{}", i),
                   unknown_figure(figures[i], paper.figure_names));
    }
  }
  problems.throw_if_any();
}

}  // namespace kvtier
