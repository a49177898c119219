#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "sim/core/config.hpp"

/// One fuzz target a program. Each target defines `run_input` and `words`; fuzz.cpp makes
/// libFuzzer's entry points of them, and replay.cpp a program that replays files without libFuzzer.
namespace kvtier::fuzz {

/// Reads one input. Only ConfigError may come out: no input is a device's failure.
void run_input(std::string_view input);

/// Keys and values of the target's format. Mutations put them into JSON.
struct Words {
  std::set<std::string> keys;
  std::set<std::string> values;
};
[[nodiscard]] Words words();
/// Adds every key and every listed value of a JSON Schema.
void add_schema(const Json& schema, Words& words);

/// The input without what its reader refuses, as far as that is named by JSON pointers: a key with
/// a bad value, or the object that lacks a key, is taken from `whole`, or else left out. Most
/// inputs have a fault somewhere, and would show nothing of what is done with those that have none.
[[nodiscard]] Json without_faults(Json input, const Json& whole,
                                  const std::function<void(const Json&)>& read);

/// A folder of this process, removed at exit; in memory where the system has such a place.
[[nodiscard]] const std::filesystem::path& scratch_folder();
/// Writes a file of that folder anew.
[[nodiscard]] std::filesystem::path write_scratch(const std::string& name, std::string_view text);

/// Ends the process with a message, which libFuzzer and the replay take for a crash.
[[noreturn]] void fail(const std::string& message);
inline void expect(bool condition, const std::string& message) {
  if (!condition) {
    fail(message);
  }
}

}  // namespace kvtier::fuzz
