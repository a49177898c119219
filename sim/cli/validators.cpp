#include "sim/cli/validators.hpp"

#include <charconv>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/cli/terminal.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"

namespace kvtier::cli {
namespace {

/// The subcommand that the command line reached.
const CLI::App& reached(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().back();
  }
  return *at;
}

/// "kvtier trace import".
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? "kvtier" : full_name(*parent) + " " + app.get_name();
}

std::vector<std::string> subcommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
  }
  return names;
}

std::vector<std::string> describe(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = reached(app);
  const std::vector<std::string> commands = subcommands(command);
  const bool no_command = command.get_require_subcommand_min() > 0;
  const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (!extras && !no_command) {
    return {error.what()};
  }
  std::vector<std::string> problems;
  for (const std::string& word : app.remaining(true)) {
    if (word.starts_with("-") && word.size() > 1) {
      const std::string name = word.substr(0, word.find('='));
      problems.push_back(
          fmt::format("unknown option {}{}", name, suggestion(name, options(command))));
    } else if (no_command) {
      problems.push_back(
          fmt::format("unknown command {}{}", quote_text(word), suggestion(word, commands)));
      break;  // the other words belong to that command
    } else {
      problems.push_back(fmt::format("unexpected argument {}", quote_text(word)));
    }
  }
  if (problems.empty()) {
    problems.push_back(no_command ? fmt::format("expected a command: {}", fmt::join(commands, ", "))
                                  : error.what());
  }
  return problems;
}

}  // namespace

CLI::Validator one_of(std::vector<std::string> names) {
  std::string described = fmt::format("{{{}}}", fmt::join(names, ","));
  return {[names = std::move(names)](std::string& text) {
            for (const std::string& name : names) {
              if (name == text) {
                return std::string();
              }
            }
            return fmt::format("expected one of {}, got {}{}", fmt::join(names, ", "),
                               quote_text(text), suggestion(text, names));
          },
          std::move(described)};
}

CLI::Validator whole_number(std::int64_t minimum, std::int64_t maximum) {
  return {[minimum, maximum](std::string& text) {
            std::int64_t value = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc() && end == text.data() + text.size() && value >= minimum &&
                value <= maximum) {
              return std::string();
            }
            return fmt::format("expected a whole number >= {} and <= {}, got {}", minimum, maximum,
                               quote_text(text));
          },
          ""};
}

CLI::Validator number_between(double minimum, double maximum) {
  return {[minimum, maximum](std::string& text) {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [last, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && last == end && value >= minimum && value <= maximum) {
              return std::string();
            }
            return fmt::format("expected a number >= {} and <= {}, got {}", minimum, maximum,
                               quote_text(text));
          },
          ""};
}

void report_command_line(const CLI::App& app, const CLI::ParseError& error) {
  for (const std::string& problem : describe(app, error)) {
    tell(problem);
  }
  tell(fmt::format("see {} --help", full_name(reached(app))));
}

}  // namespace kvtier::cli
