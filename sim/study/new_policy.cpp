#include "sim/study/new_policy.hpp"

#include <list>
#include <system_error>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/policy/conformance.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// What differs between kinds. @name@ and @Name@ stand for the policy's name.
struct Skeleton {
  NewPolicyKind kind;
  /// Below policies and tests/policies.
  const char* folder;
  const char* interface;
  /// Of PolicyRegistry.
  const char* list;
  /// In a config; TIER stands for a tier's name.
  const char* setting;
  const char* code;
  const char* test_includes;
  const char* test;
};

constexpr const char* kEvictionCode =
    R"code(// @Name@: the entry that came into the tier first leaves first, as a start. Say here the idea in
// three sentences, the paper, and the cost of a victim: O(1), plus one step per entry at the list's
// front that is not offered.
@include@#include "sim/core/assert.hpp"
#include "sim/policy/entry_list.hpp"
@header@
namespace kvtier {
namespace {

class @Name@Eviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override { list_.push_back(entry.id); }
  void on_hit(EntryId, SimTime) override {}                // a turn finds it: count uses here
  void on_release(const EntryView&, SimTime) override {}  // the use is over: take recency here
  void on_remove(EntryId entry, SimTime) override { list_.remove(entry); }

  void choose(const RoomRequest&, Victims& victims) override { add_front(list_, victims); }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool) {
      ++residents;
      KVTIER_ASSERT(list_.contains(entry.id), "every resident entry is listed");
    });
    KVTIER_ASSERT(residents == list_.size(), "nothing but resident entries is listed");
  }

 private:
  EntryList list_;
};

}  // namespace

PolicyKind<EvictionPolicy> @name@_eviction() {
  return {.name = "@name@",
          .summary = "the entry that came into the tier first leaves first",
          .source = "a start for one's own",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<@Name@Eviction>(); }};
}

}  // namespace kvtier
)code";

constexpr const char* kEvictionTest = R"code(
TEST(@Name@Eviction, TheEntryThatCameFirstLeavesFirst) {
  // 0, 1 and 2 come in this order; a hit on 0 does not help it.
  TrialTier tier(@name@_eviction());
  for (const std::uint32_t entry : {0U, 1U, 2U}) {
    tier.insert(EntryId{entry});
  }
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST(@Name@Eviction, AnEntryThatMovesStays) {
  TrialTier tier(@name@_eviction());
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.begin_move(EntryId{0});
  EXPECT_EQ(tier.evict_all(), std::vector<std::uint32_t>{1});
  EXPECT_NO_THROW(tier.check());
}
)code";

constexpr const char* kAdmissionCode =
    R"code(// @Name@: every entry comes in, as a start. Say here the idea in three sentences, the paper, and the
// cost of a decision: O(1).
@include@@header@
namespace kvtier {
namespace {

class @Name@Admission final : public AdmissionPolicy {
 public:
  void on_use(EntryKey) override {}
  [[nodiscard]] bool admits(EntryKey) const override { return true; }
  [[nodiscard]] bool replaces(EntryKey, EntryKey) const override { return true; }
};

}  // namespace

PolicyKind<AdmissionPolicy> @name@_admission() {
  return {.name = "@name@",
          .summary = "every entry comes in",
          .source = "a start for one's own",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<@Name@Admission>(); }};
}

}  // namespace kvtier
)code";

constexpr const char* kAdmissionTest = R"code(
TEST(@Name@Admission, EveryEntryComesIn) {
  const auto policy = @name@_admission().make({});
  EXPECT_TRUE(policy->admits(EntryKey{1}));
  policy->on_use(EntryKey{1});
  EXPECT_TRUE(policy->admits(EntryKey{1}));
  EXPECT_TRUE(policy->replaces(EntryKey{1}, EntryKey{2}));
}
)code";

constexpr const char* kPrefetchCode =
    R"code(// @Name@: what the first waiting request needs is fetched, as a start. Say here the idea in three
// sentences, the paper, and the cost of a decision: O(1).
@include@@header@
namespace kvtier {
namespace {

class @Name@Prefetch final : public PrefetchPolicy {
 public:
  std::optional<Fetch> next_fetch(const PrefetchContext& context) override {
    const QueueView& queue = *context.queue;
    if (queue.first() == queue.end()) {
      return std::nullopt;
    }
    const EntryId entry = queue.entry_at(queue.first());
    if (!entry.valid() || !(*context.needs_fetch)(entry)) {
      return std::nullopt;
    }
    return Fetch{.entry = entry};
  }
};

}  // namespace

PolicyKind<PrefetchPolicy> @name@_prefetch() {
  return {.name = "@name@",
          .summary = "what the first waiting request needs is fetched",
          .source = "a start for one's own",
          .knowledge = Knowledge::look_ahead,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<@Name@Prefetch>(); }};
}

}  // namespace kvtier
)code";

constexpr const char* kPrefetchTest = R"code(
TEST(@Name@Prefetch, FetchesWhatTheFirstRequestNeeds) {
  const auto policy = @name@_prefetch().make({});
  bool is_slow = true;
  const std::function<bool(EntryId)> needs_fetch = [&](EntryId) { return is_slow; };
  TrialQueue queue;
  const PrefetchContext context{.queue = &queue, .needs_fetch = &needs_fetch};
  EXPECT_FALSE(policy->next_fetch(context));
  queue.push(EntryId{4});
  queue.push(EntryId{5});
  const std::optional<Fetch> fetch = policy->next_fetch(context);
  ASSERT_TRUE(fetch);
  EXPECT_EQ(fetch->entry, EntryId{4});
  is_slow = false;
  EXPECT_FALSE(policy->next_fetch(context));
}
)code";

constexpr const char* kOrderCode =
    R"code(// @Name@: requests are admitted in the order of their arrival, as a start. Say here the idea in
// three sentences, the paper, and the cost of a decision: O(1).
@include@#include "sim/core/assert.hpp"
@header@
namespace kvtier {
namespace {

class @Name@Order final : public OrderPolicy {
 public:
  QueuePosition next(const QueueView& queue) override {
    KVTIER_ASSERT(queue.first() < queue.end(), "only asked while a request waits");
    return queue.first();
  }
};

}  // namespace

PolicyKind<OrderPolicy> @name@_order() {
  return {.name = "@name@",
          .summary = "requests are admitted in the order of their arrival",
          .source = "a start for one's own",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<@Name@Order>(); }};
}

}  // namespace kvtier
)code";

constexpr const char* kOrderTest = R"code(
TEST(@Name@Order, TheRequestThatCameFirstIsAdmittedFirst) {
  const auto policy = @name@_order().make({});
  TrialQueue queue;
  queue.push(EntryId{4});
  queue.push(EntryId{5});
  EXPECT_EQ(policy->next(queue), QueuePosition{0});
  queue.leave(QueuePosition{0});
  EXPECT_EQ(policy->next(queue), QueuePosition{1});
}
)code";

constexpr const char* kTierHeaders = "#include \"sim/policy/trial_tier.hpp\"\n";
constexpr const char* kQueueHeaders = "#include \"sim/policy/trial_queue.hpp\"\n";

const Skeleton& skeleton_of(NewPolicyKind kind) {
  static const std::array kSkeletons{
      Skeleton{NewPolicyKind::eviction, "eviction", "EvictionPolicy", "eviction",
               "/system/tiers/dram/eviction", kEvictionCode, kTierHeaders, kEvictionTest},
      Skeleton{NewPolicyKind::admission, "admission", "AdmissionPolicy", "admission",
               "/system/tiers/dram/admission", kAdmissionCode, "", kAdmissionTest},
      Skeleton{NewPolicyKind::prefetch, "prefetch", "PrefetchPolicy", "prefetch",
               "/system/prefetch", kPrefetchCode, kQueueHeaders, kPrefetchTest},
      Skeleton{NewPolicyKind::order, "scheduling", "OrderPolicy", "order", "/system/order",
               kOrderCode, kQueueHeaders, kOrderTest}};
  return kSkeletons[static_cast<std::size_t>(kind)];
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

std::string filled(std::string text,
                   const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [mark, value] : values) {
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size()) {
      text.replace(at, mark.size(), value);
    }
  }
  return text;
}

struct File {
  fs::path path;
  std::string text;
};

std::string test_of(const NewPolicy& policy, const Skeleton& skeleton, const std::string& include,
                    const std::string& more_headers) {
  const bool has_tier = policy.kind == NewPolicyKind::eviction;
  const bool has_prefetch = policy.kind == NewPolicyKind::prefetch;
  std::string text = include;
  text += has_tier ? "\n#include <cstdint>\n#include <vector>\n" : "";
  text += has_prefetch ? "\n#include <functional>\n#include <optional>\n" : "";
  text += "\n#include <gtest/gtest.h>\n";
  const std::string headers = more_headers + skeleton.test_includes;
  text += headers.empty() ? "" : "\n" + headers;
  text += "\nnamespace kvtier {\nnamespace {\n";
  text += skeleton.test;
  return text;
}

std::vector<File> files_of(const NewPolicy& policy, const Skeleton& skeleton) {
  const std::string function = fmt::format("{}_{}", policy.name, skeleton.list);
  std::vector<std::pair<std::string, std::string>> values{{"@name@", policy.name},
                                                          {"@Name@", type_name(policy.name)}};
  const std::string end = "\n}  // namespace\n}  // namespace kvtier\n";
  if (policy.plugin) {
    values.push_back({"@include@", ""});
    values.push_back({"@header@", "#include \"sim/policy/plugin.hpp\"\n"});
    const std::string registration = fmt::format(
        "\nstatic void add_policies(kvtier::PolicyRegistry& registry) {{\n"
        "  registry.{}.push_back(kvtier::{}());\n}}\n\nKVTIER_POLICY_PLUGIN(add_policies);\n",
        skeleton.list, function);
    return {{policy.name + ".cpp", filled(skeleton.code, values) + registration},
            {policy.name + "_test.cpp",
             filled(test_of(policy, skeleton, "#include \"@name@.cpp\"\n", "") + end, values)}};
  }
  const fs::path folder = fs::path("policies") / skeleton.folder;
  const std::string header = (folder / (policy.name + ".hpp")).string();
  values.push_back({"@include@", fmt::format("#include \"{}\"\n\n", header)});
  values.push_back({"@header@", ""});
  std::string more;
  std::string headers;
  if (policy.kind == NewPolicyKind::eviction) {
    headers = "#include \"sim/policy/conformance.hpp\"\n";
    more =
        "\nTEST(@Name@Eviction, DoesWhatEveryEvictionPolicyOwesItsTier) {\n"
        "  EXPECT_EQ(eviction_problems(@name@_eviction()), std::vector<std::string>{});\n}\n";
  }
  std::string test = test_of(policy, skeleton, fmt::format("#include \"{}\"\n", header), headers);
  if (!more.empty()) {
    test = filled(test, {{"#include <vector>\n", "#include <string>\n#include <vector>\n"}});
  }
  return {{header, fmt::format("#pragma once\n\n#include \"sim/policy/policy.hpp\"\n\n"
                               "namespace kvtier {{\n\n[[nodiscard]] PolicyKind<{}> {}();\n\n"
                               "}}  // namespace kvtier\n",
                               skeleton.interface, function)},
          {folder / (policy.name + ".cpp"), filled(skeleton.code, values)},
          {"tests" / folder / (policy.name + "_test.cpp"), filled(test + more + end, values)}};
}

/// Where the headers are that a library needs.
fs::path include_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "include/kvtier";
  return fs::exists(installed / "sim/policy/plugin.hpp", error) ? installed
                                                                : fs::path(KVTIER_INCLUDE_DIR);
}

std::vector<std::string> steps_of(const NewPolicy& policy, const Skeleton& skeleton,
                                  const std::vector<File>& files) {
  const std::string& name = policy.name;
  const std::string use = fmt::format("--set {}={}", skeleton.setting, name);
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
          fmt::format("policies/registry.cpp: {}_{}() in the list .{}", name, skeleton.list,
                      skeleton.list),
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
  }
  return false;
}

void check(const NewPolicy& policy, const Skeleton& skeleton, const std::vector<File>& files,
           const PolicyRegistry& registry) {
  std::vector<std::string> problems;
  std::error_code error;
  // C++ keeps names with two underscores in a row for itself.
  if (!is_policy_name(policy.name) || policy.name.find("__") != std::string::npos ||
      policy.name.back() == '_') {
    problems.push_back(
        fmt::format("NAME: expected small letters, digits and single underscores between them, "
                    "beginning with a letter, got \"{}\"",
                    policy.name));
  } else if (is_taken(policy, registry)) {
    problems.push_back(fmt::format("NAME: there is a policy \"{}\" of kind {} already", policy.name,
                                   skeleton.list));
  } else {
    for (const File& file : files) {
      if (fs::exists(policy.out / file.path, error)) {
        problems.push_back(fmt::format("{}: is there already", (policy.out / file.path).string()));
      }
    }
  }
  if (!policy.plugin && !fs::exists(policy.out / "policies/registry.cpp", error)) {
    problems.push_back(
        fmt::format("--out: expected the root of kvtier's sources, got \"{}\"; --library writes a "
                    "policy that needs none",
                    policy.out.string()));
  }
  if (policy.plugin && fs::exists(policy.out, error) && !fs::is_directory(policy.out, error)) {
    problems.push_back(
        fmt::format("--out: expected a folder, got the file {}", policy.out.string()));
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

/// All or none.
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
    while (done > 0) {
      std::error_code ignored;
      fs::remove(out / files[--done].path, ignored);  // check() found none of them there
    }
    throw;
  }
}

}  // namespace

NewPolicyFiles write_new_policy(const NewPolicy& policy, const PolicyRegistry& registry) {
  const Skeleton& skeleton = skeleton_of(policy.kind);
  const std::vector<File> files = files_of(policy, skeleton);
  check(policy, skeleton, files, registry);
  write(policy.out, files);
  NewPolicyFiles result;
  for (const File& file : files) {
    result.written.push_back(file.path);
  }
  result.next_steps = steps_of(policy, skeleton, files);
  return result;
}

}  // namespace kvtier
