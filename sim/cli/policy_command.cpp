#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/config.hpp"
#include "sim/core/text.hpp"
#include "sim/policy/conformance.hpp"
#include "sim/study/config/new_policy.hpp"

namespace kvtier::cli {
namespace {

struct NewPolicyOptions {
  NewPolicy policy{.out = "."};
  std::string kind = "eviction";
  std::string out = ".";
};

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : enum_names(NewPolicyKind{})) {
    names.emplace_back(name);
  }
  return names;
}

int new_policy_command(const Program& program, NewPolicyOptions& options) {
  options.policy.out = options.out;
  for (const auto& [name, kind] : enum_names(NewPolicyKind{})) {
    if (name == options.kind) {
      options.policy.kind = kind;
    }
  }
  const NewPolicyFiles files = write_new_policy(options.policy, program.policies());
  for (const auto& file : files.written) {
    print("wrote {}\n", (options.policy.out / file).lexically_normal().string());
  }
  print("\nnext, in {}:\n", options.out);
  for (const std::string& step : files.next_steps) {
    print("  {}\n", step);
  }
  return 0;
}

template <class Interface>
void check_kind(const char* what, const std::vector<PolicyKind<Interface>>& kinds,
                const std::string& name, bool& found, std::vector<std::string>& problems) {
  const PolicyKind<Interface>* const kind = find_policy(kinds, name);
  if (kind == nullptr) {
    return;
  }
  found = true;
  std::vector<std::string> of_kind = declaration_problems(*kind);
  const auto print_checks = [&](std::size_t checks) {
    print("{} policy {}: {} checks in {} cases, {}\n", what, name, checks,
          conformance_cases(kind->parameters).size(), of_kind.empty() ? "passed" : "FAILED");
  };
  if constexpr (std::is_same_v<Interface, EvictionPolicy>) {
    const std::vector<std::string> more = eviction_problems(*kind);
    of_kind.insert(of_kind.end(), more.begin(), more.end());
    print_checks(eviction_checks().size());
  } else if constexpr (std::is_same_v<Interface, RoutingPolicy>) {
    const std::vector<std::string> more = routing_problems(*kind);
    of_kind.insert(of_kind.end(), more.begin(), more.end());
    print_checks(routing_checks().size());
  } else {
    print("{} policy {}: declaration, {}\n", what, name, of_kind.empty() ? "passed" : "FAILED");
  }
  for (const std::string& problem : of_kind) {
    problems.push_back(fmt::format("{} policy {}: {}", what, name, problem));
  }
}

int check_policy_command(const Program& program, const std::string& name) {
  const PolicyRegistry registry = load_policies(program.plugins, false);
  bool found = false;
  std::vector<std::string> problems;
  check_kind("eviction", registry.eviction, name, found, problems);
  check_kind("admission", registry.admission, name, found, problems);
  check_kind("prefetch", registry.prefetch, name, found, problems);
  check_kind("order", registry.order, name, found, problems);
  check_kind("routing", registry.routing, name, found, problems);
  if (!found) {
    throw ConfigError(fmt::format("NAME: there is no policy {}; kvtier list policies has them",
                                  quote_text(name)));
  }
  for (const std::string& problem : problems) {
    tell(problem);
  }
  return problems.empty() ? 0 : 1;
}

}  // namespace

void add_new(Program& program) {
  auto options = std::make_shared<NewPolicyOptions>();
  CLI::App* group = program.app.add_subcommand("new", "Write a policy to start from");
  group->require_subcommand(1);
  CLI::App* command =
      group->add_subcommand("policy", "Write a policy and its test, which pass as written");
  command->add_option("NAME", options->policy.name, "Name of the policy in configs")->required();
  command->add_option("--kind", options->kind, "Kind of decision that the policy makes (eviction)")
      ->check(one_of(kind_names()));
  command->add_option("--out", options->out,
                      "Root of kvtier's sources (.); with --library any folder, made if need be");
  command->add_flag("--library", options->policy.plugin,
                    "Write the source of a shared library for --plugin, and its test, instead");
  command->callback([&program, options] {
    program.run = [&program, options] { return new_policy_command(program, *options); };
  });
}

void add_check(Program& program) {
  auto name = std::make_shared<std::string>();
  CLI::App* group = program.app.add_subcommand("check", "Check that a policy keeps its contract");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand("policy",
                                            "Check a policy's declaration, and the contract of an "
                                            "eviction or routing policy");
  command->add_option("NAME", *name, "A policy of kvtier or of a --plugin")->required();
  command->callback([&program, name] {
    program.run = [&program, name] { return check_policy_command(program, *name); };
  });
}

}  // namespace kvtier::cli
