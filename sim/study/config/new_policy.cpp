#include "sim/study/config/new_policy.hpp"

#include <array>
#include <list>
#include <system_error>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"
#include "sim/policy/conformance.hpp"
#include "sim/study/config/policy_templates.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// The differences between kinds of policies, apart from the templates.
struct Kind {
  const char* name;
  /// The folder in policies and in tests/policies.
  const char* folder;
  /// The config key that chooses the policy.
  const char* setting;
};

const Kind& kind_of(const NewPolicy& policy) {
  static constexpr std::array kKinds{Kind{"eviction", "eviction", "/system/tiers/dram/eviction"},
                                     Kind{"admission", "admission", "/system/tiers/dram/admission"},
                                     Kind{"prefetch", "prefetch", "/system/prefetch"},
                                     Kind{"order", "scheduling", "/system/order"},
                                     Kind{"routing", "routing", "/cluster/router"}};
  return kKinds[static_cast<std::size_t>(policy.kind)];
}

/// least_used becomes LeastUsed.
std::string type_name(const std::string& name) {
  std::string type;
  bool begins_word = true;
  for (const char c : name) {
    if (c != '_') {
      type += begins_word && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
    begins_word = c == '_';
  }
  return type;
}

struct File {
  fs::path path;
  std::string text;
};

/// A template with the policy's name in place of the marks. Lines marked @source@ or @library@ are
/// kept only for that form of policy.
std::string filled(std::string_view text, const NewPolicy& policy) {
  const std::string kind = kind_of(policy).name;
  const std::string_view kept = policy.plugin ? "@library@" : "@source@";
  const std::string_view dropped = policy.plugin ? "@source@" : "@library@";
  std::string chosen;
  for (std::size_t end = 0; !text.empty(); text.remove_prefix(end)) {
    end = text.find('\n') + 1;
    std::string_view line = text.substr(0, end);
    if (!line.starts_with(dropped)) {
      line.remove_prefix(line.starts_with(kept) ? kept.size() : 0);
      chosen += line;
    }
  }
  const std::array<std::pair<std::string_view, std::string>, 4> values{{
      {"@name@", policy.name},
      {"@Name@", type_name(policy.name)},
      {"@kind@", kind},
      {"@Kind@", type_name(kind)},
  }};
  for (const auto& [mark, value] : values) {
    for (std::size_t at = 0; (at = chosen.find(mark, at)) != std::string::npos;
         at += value.size()) {
      chosen.replace(at, mark.size(), value);
    }
  }
  return chosen;
}

std::vector<File> files_of(const NewPolicy& policy) {
  const PolicyTemplate& kind = policy_templates().kinds[static_cast<std::size_t>(policy.kind)];
  const std::string code = filled(kind.code, policy);
  const std::string test = filled(kind.test, policy);
  if (policy.plugin) {
    return {{policy.name + ".cpp", code}, {policy.name + "_test.cpp", test}};
  }
  const fs::path folder = fs::path("policies") / kind_of(policy).folder;
  return {{folder / (policy.name + ".hpp"), filled(policy_templates().header, policy)},
          {folder / (policy.name + ".cpp"), code},
          {"tests" / folder / (policy.name + "_test.cpp"), test}};
}

/// The folder of the headers that a library needs.
fs::path include_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "include/kvtier";
  return fs::exists(installed / "sim/policy/plugin.hpp", error) ? installed
                                                                : fs::path(KVTIER_INCLUDE_DIR);
}

std::vector<std::string> steps_of(const NewPolicy& policy, const std::vector<File>& files) {
  const std::string& name = policy.name;
  const std::string use = fmt::format("--set {}={}", kind_of(policy).setting, name);
  if (policy.plugin) {
    const std::string include = include_folder().string();
    return {fmt::format("g++ -std=c++20 -O2 -fPIC -shared -I {} {}.cpp -o lib{}.so", include, name,
                        name),
            fmt::format("g++ -std=c++20 -I {} {}_test.cpp -lgtest -lgtest_main -o {}_test", include,
                        name, name),
            fmt::format("./{}_test", name),
            fmt::format("kvtier check policy {} --plugin ./lib{}.so", name, name),
            fmt::format("kvtier simulate CONFIG --plugin ./lib{}.so {}", name, use)};
  }
  return {fmt::format("policies/registry.cpp: #include \"{}\"", files.front().path.string()),
          fmt::format("policies/registry.cpp: {}_{}() in the list .{}", name, kind_of(policy).name,
                      kind_of(policy).name),
          "cmake --preset release",
          "cmake --build --preset release --target kvtier tests_policies",
          fmt::format("build/release/tests/tests_policies --gtest_filter='{}*:*/{}_*'",
                      type_name(name), name),
          fmt::format("build/release/bin/kvtier check policy {}", name),
          fmt::format("build/release/bin/kvtier simulate CONFIG {}", use)};
}

bool is_taken(const NewPolicy& policy, const PolicyRegistry& registry) {
  switch (policy.kind) {
    case NewPolicyKind::eviction:
      return find_policy(registry.eviction, policy.name) != nullptr;
    case NewPolicyKind::admission:
      return find_policy(registry.admission, policy.name) != nullptr;
    case NewPolicyKind::prefetch:
      return find_policy(registry.prefetch, policy.name) != nullptr;
    case NewPolicyKind::order:
      return find_policy(registry.order, policy.name) != nullptr;
    case NewPolicyKind::routing:
      return find_policy(registry.routing, policy.name) != nullptr;
  }
  return false;
}

void check(const NewPolicy& policy, const std::vector<File>& files,
           const PolicyRegistry& registry) {
  std::vector<std::string> problems;
  // C++ reserves names with two underscores in a row.
  if (!is_policy_name(policy.name) || policy.name.find("__") != std::string::npos ||
      policy.name.back() == '_') {
    problems.push_back(
        fmt::format("NAME: expected small letters, digits and single underscores between them, "
                    "beginning with a letter, got {}",
                    quote_text(policy.name)));
  } else if (is_taken(policy, registry)) {
    problems.push_back(fmt::format("NAME: there is a policy {} of kind {} already",
                                   quote_text(policy.name), kind_of(policy).name));
  } else {
    for (const File& file : files) {
      if (path_exists(policy.out / file.path)) {
        problems.push_back(fmt::format("{}: is there already", (policy.out / file.path).string()));
      }
    }
  }
  if (!policy.plugin && !path_exists(policy.out / "policies/registry.cpp")) {
    problems.push_back(
        fmt::format("--out: expected the root of kvtier's sources, got \"{}\"; --library writes a "
                    "policy that needs none",
                    policy.out.string()));
  }
  if (policy.plugin && path_exists(policy.out) && !is_folder(policy.out)) {
    problems.push_back(
        fmt::format("--out: expected a folder, got the file {}", policy.out.string()));
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

/// Writes all files or none.
void write(const fs::path& out, const std::vector<File>& files) {
  std::list<AtomicFile> open;
  for (const File& file : files) {
    const fs::path path = out / file.path;
    std::error_code error;
    if (!path.parent_path().empty()) {
      fs::create_directories(path.parent_path(), error);
    }
    if (error) {
      throw DeviceError(fmt::format("{}: cannot make the folder: {}", path.parent_path().string(),
                                    error.message()));
    }
    open.emplace_back(path).write(file.text);
  }
  std::size_t done = 0;
  try {
    for (AtomicFile& file : open) {
      file.commit();
      ++done;
    }
  } catch (...) {
    for (std::size_t i = 0; i <= done; ++i) {
      std::error_code ignored;
      fs::remove(out / files[i].path, ignored);  // check() found none of them there
    }
    throw;
  }
}

}  // namespace

NewPolicyFiles write_new_policy(const NewPolicy& policy, const PolicyRegistry& registry) {
  const std::vector<File> files = files_of(policy);
  check(policy, files, registry);
  write(policy.out, files);
  NewPolicyFiles result;
  for (const File& file : files) {
    result.written.push_back(file.path);
  }
  result.next_steps = steps_of(policy, files);
  return result;
}

}  // namespace kvtier
