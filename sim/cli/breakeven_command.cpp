#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/study/runs/break_even.hpp"

namespace kvtier::cli {
namespace {

struct BreakEvenOptions {
  ConfigOptions config;
  std::optional<std::string> model;
  std::optional<std::string> hardware;
  std::string json;
};

int breakeven_command(const Program& program, const BreakEvenOptions& options) {
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  ConfigRequest request = options.config.request();
  for (const auto& [pointer, option, name] :
       {std::tuple{"/model", "--model", &options.model},
        std::tuple{"/hardware", "--hardware", &options.hardware}}) {
    if (*name) {
      request.overrides.push_back({pointer, Json(**name), option});
    }
  }
  const ResolvedConfig resolved = resolve_config(request, presets, registry);
  check_outputs({{"--json", options.json}}, joined({resolved.files, program.plugins}));
  Problems problems;
  if (resolved.config.cluster.shared) {
    problems.add("/cluster/shared", "expected \"none\": the links are those of one instance");
  }
  if (!resolved.config.cluster.groups.empty()) {
    problems.add("/cluster/groups", "expected none: the times are those of one instance");
  }
  problems.throw_if_any();
  const BreakEven found = break_even(resolved.config);
  TextOutput json(options.json);
  if (!options.json.empty()) {
    json.write(json_text(to_json(found), 2) + "\n");
  }
  if (options.json != "-") {
    print("{}", to_table(found));
  }
  return 0;
}

}  // namespace

void add_breakeven(Program& program) {
  auto options = std::make_shared<BreakEvenOptions>();
  CLI::App* command = program.app.add_subcommand(
      "breakeven",
      "Show, for each tier and context length, whether loading KV is faster than recomputing it");
  options->config.add_config_to(*command);
  command->add_option("--model", options->model, "Model preset or path, in place of the config's");
  command->add_option("--hardware", options->hardware, "Hardware preset, in place of the config's");
  command->add_option("--json", options->json,
                      "Write the times as JSON to a file, or to standard output (-)");
  command->callback([&program, options] {
    program.run = [&program, options] { return breakeven_command(program, *options); };
  });
}

}  // namespace kvtier::cli
