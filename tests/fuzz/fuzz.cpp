#include "tests/fuzz/fuzz.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "sim/study/runs/summary.hpp"

extern "C" {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned seed);
/// libFuzzer's own mutation of bytes; replay.cpp has one that changes nothing.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
}

namespace kvtier::fuzz {
namespace {

namespace fs = std::filesystem;

/// Values at which readers of numbers, quantities and words go wrong.
constexpr const char* kValues[] = {"0",
                                   "1",
                                   "-1",
                                   "3.5",
                                   "-0.0",
                                   "1e308",
                                   "1e-308",
                                   "9223372036854775807",
                                   "9223372036854775808",
                                   "-9223372036854775808",
                                   "18446744073709551615",
                                   "2147483648",
                                   "null",
                                   "true",
                                   "false",
                                   "[]",
                                   "{}",
                                   R"("")",
                                   R"("none")",
                                   R"("auto")",
                                   R"("/")",
                                   R"("1GiB")",
                                   R"("0B")",
                                   R"("9223372036854775807B")",
                                   R"("26GB/s")",
                                   R"("1ns")",
                                   R"("292y")",
                                   R"("5tokens")",
                                   R"("0.1%")"};

struct Scratch {
  fs::path path;
  Scratch() {
    const fs::path memory = "/dev/shm";
    const bool has_memory = ::access(memory.c_str(), W_OK | X_OK) == 0;
    std::string name = ((has_memory ? memory : fs::temp_directory_path()) / "kvtier-XXXXXX");
    expect(::mkdtemp(name.data()) != nullptr, "cannot make a folder such as " + name);
    path = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

void collect(Json& json, std::vector<Json*>& nodes) {
  nodes.push_back(&json);
  if (json.is_structured()) {
    for (Json& item : json) {
      collect(item, nodes);
    }
  }
}

/// Changes one place of a document.
class Mutation {
 public:
  Mutation(Json& root, unsigned seed) : random_(seed, "mutation") { collect(root, nodes_); }

  void run() {
    Json& node = any_node();
    const bool has_items = node.is_structured() && !node.empty();
    switch (random_.index(6)) {
      case 0:
        if (has_items) {
          node.erase(std::next(node.begin(), random_.index(std::ssize(node))));
          break;
        }
        [[fallthrough]];
      case 1:
        if (node.is_object()) {
          node[any(known().keys)] = value();
          break;
        }
        if (node.is_array()) {
          node.push_back(value());
          break;
        }
        [[fallthrough]];
      case 2:
        node = value();
        break;
      default:
        node = like(node);
    }
  }

 private:
  static const Words& known() {
    static const Words all = words();
    return all;
  }
  Json& any_node() { return *nodes_[static_cast<std::size_t>(random_.index(std::ssize(nodes_)))]; }
  const std::string& any(const std::set<std::string>& of) {
    return *std::next(of.begin(), random_.index(std::ssize(of)));
  }
  Json value() {
    switch (random_.index(3)) {
      case 0:
        return any_node();
      case 1:
        return any(known().values);
      default:
        return Json::parse(kValues[random_.index(std::ssize(kValues))]);
    }
  }
  /// Another value of the same type, a quantity with its unit: it is more likely to be accepted.
  Json like(const Json& json) {
    constexpr const char* kNumbers[] = {
        "0", "1", "2", "3", "7", "16", "64", "1000", "0.1", "0.333333", "123456789", "99999999999"};
    const std::string number = kNumbers[random_.index(std::ssize(kNumbers))];
    if (json.is_boolean()) {
      return !json.get<bool>();
    }
    if (json.is_number_integer()) {
      constexpr std::int64_t kLarge = std::int64_t{1} << 53;
      const auto old = std::clamp(json.get<std::int64_t>(), -kLarge, kLarge);
      return random_.index(2) > 0 ? old + random_.index(5) - 2 : old * (1 + random_.index(9)) / 4;
    }
    if (json.is_number()) {
      return Json::parse(number).get<double>();
    }
    if (!json.is_string()) {
      return value();
    }
    const auto text = json.get<std::string>();
    const std::size_t unit = std::min(text.find_first_not_of("0123456789."), text.size());
    if (unit > 0) {
      return number + text.substr(unit);
    }
    return random_.index(4) > 0 ? any(known().values) : mutated(text);
  }
  static std::string mutated(std::string text) {
    constexpr std::size_t kMore = 16;
    const std::size_t size = text.size();
    text.resize(size + kMore);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, text.size()));
    return text;
  }

  RandomStream random_;
  std::vector<Json*> nodes_;
};

/// The place of a JSON document in an input: all of it, or the end of a line.
struct Document {
  std::size_t begin;
  std::size_t end;
  Json json;
};
std::optional<Document> find_document(std::string_view input, RandomStream& random) {
  const auto parse = [&](std::size_t begin, std::size_t end) -> std::optional<Document> {
    const std::string_view text = input.substr(begin, end - begin);
    Json json = Json::parse(text, nullptr, false);
    return json.is_structured() ? std::optional(Document{begin, end, std::move(json)})
                                : std::nullopt;
  };
  if (auto all = parse(0, input.size())) {
    return all;
  }
  std::vector<std::size_t> begins{0};
  for (std::size_t at = 0; (at = input.find('\n', at)) != std::string_view::npos; ++at) {
    begins.push_back(at + 1);
  }
  const std::size_t line = begins[static_cast<std::size_t>(random.index(std::ssize(begins)))];
  const std::size_t end = std::min(input.find('\n', line), input.size());
  const std::size_t brace = std::min(input.find_first_of("{[", line), end);
  // A document of several lines, or one line.
  auto rest = parse(brace, input.size());
  return rest ? std::move(rest) : parse(brace, end);
}

/// Puts the value at a pointer right, or of the object around it where it is missing.
void mend(Json& json, Json::json_pointer at, const Json& whole) {
  if (!at.empty() && find_at(json, at) == nullptr) {
    const bool of_root = at.parent_pointer().empty();
    at = of_root ? at : at.parent_pointer();
  }
  if (at.empty()) {
    json = whole;
    return;
  }
  const Json* right = find_at(whole, at);
  const Json* parent = find_at(json, at.parent_pointer());
  if (parent == nullptr || !parent->is_structured()) {
    return;
  }
  Json& in = json[at.parent_pointer()];
  const Json* wrong = find_at(json, at);
  if (in.is_array()) {
    if (wrong != nullptr) {
      in.erase(static_cast<std::size_t>(wrong - &in[0]));
    }
  } else if (right != nullptr && (wrong == nullptr || *wrong != *right)) {
    in[at.back()] = *right;
  } else {
    in.erase(at.back());
  }
}

}  // namespace

Json without_faults(Json input, const Json& whole, const std::function<void(const Json&)>& read) {
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    try {
      read(input);
      break;
    } catch (const ConfigError& error) {
      // "origin: /json/pointer: message"; list items from the last on, as places shift.
      std::set<std::string, std::greater<>> pointers;
      for (const std::string& problem : error.problems()) {
        const std::size_t begin = problem.find(": /");
        const std::size_t end = problem.find(": ", begin + 1);
        if (begin != std::string::npos && end != std::string::npos) {
          pointers.insert(problem.substr(begin + 2, end - begin - 2));
        }
      }
      for (const std::string& pointer : pointers) {
        mend(input, Json::json_pointer(pointer == "/" ? "" : pointer), whole);
      }
    }
  }
  return input;
}

void add_schema(const Json& schema, Words& words) {
  if (schema.is_array()) {
    for (const Json& item : schema) {
      add_schema(item, words);
    }
  }
  if (!schema.is_object()) {
    return;
  }
  for (const auto& [key, value] : schema.items()) {
    if (key == "properties") {
      for (const auto& [name, of] : value.items()) {
        words.keys.insert(name);
      }
    } else if (key == "enum" || key == "examples") {
      for (const Json& item : value) {
        if (item.is_string()) {
          words.values.insert(item.get<std::string>());
        }
      }
    } else if (key == "const" && value.is_string()) {
      words.values.insert(value.get<std::string>());
    }
    add_schema(value, words);
  }
}

const fs::path& scratch_folder() {
  static const Scratch scratch;
  return scratch.path;
}

fs::path write_scratch(const std::string& name, std::string_view text) {
  fs::path path = scratch_folder() / name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  expect(file.flush().good(), "cannot write " + path.string());
  return path;
}

void fail(const std::string& message) {
  fmt::print(stderr, "{}\n", message);
  std::abort();
}

}  // namespace kvtier::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvtier;
  try {
    fuzz::run_input({reinterpret_cast<const char*>(data), size});
  } catch (const ConfigError& error) {
    fuzz::expect(!error.problems().empty(), "an error without a problem");
  }
  return 0;
}

/// Most mutations keep JSON well-formed, so that they reach what lies behind the parser.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned seed) {
  using namespace kvtier;
  RandomStream random(seed, "place");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  auto document = random.index(8) > 0 ? fuzz::find_document(input, random) : std::nullopt;
  if (document) {
    fuzz::Mutation(document->json, seed).run();
    const std::string text =
        fmt::format("{}{}{}", input.substr(0, document->begin),
                    document->json.dump(-1, ' ', false, Json::error_handler_t::replace),
                    input.substr(document->end));
    if (text.size() <= max_size) {
      std::copy(text.begin(), text.end(), data);
      return text.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
