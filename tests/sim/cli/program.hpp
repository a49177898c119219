#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/types.h>

/// Runs the program under test as a user does, without a shell.
namespace kvtier::test {

struct Outcome {
  /// The exit code, or minus the signal that ended the program.
  int code = 0;
  std::string out;
  std::string err;
};

[[nodiscard]] std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& text);

/// A program that was started in `directory`, with its output kept in files of `capture`.
class Started {
 public:
  Started(std::vector<std::string> arguments, const std::filesystem::path& directory,
          std::filesystem::path capture, const char* program = KVTIER_PROGRAM);
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  /// Ends the program, so that a failed test leaves no long run behind.
  ~Started();
  void signal(int number) const;
  [[nodiscard]] bool running();
  /// Waits until `reached`; false if the program ended before, or five minutes brought neither.
  [[nodiscard]] bool runs_until(const std::function<bool()>& reached);
  /// Its standard output so far.
  [[nodiscard]] std::string out() const;
  /// Waits for the end.
  [[nodiscard]] Outcome outcome();

 private:
  std::filesystem::path capture_;
  pid_t process_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

/// A test with an empty folder of its own, in which the program runs.
class ProgramTest : public testing::Test {
 public:
  ~ProgramTest() override;

 protected:
  ProgramTest();

  /// Runs `kvtier ARGUMENTS...` in the test's folder.
  [[nodiscard]] Outcome kvtier(std::vector<std::string> arguments) const;
  /// Runs `kvtier_demo ARGUMENTS...` there.
  [[nodiscard]] Outcome kvtier_demo(std::vector<std::string> arguments) const;
  [[nodiscard]] Started start(std::vector<std::string> arguments) const;
  /// Runs it, expects exit code 2, nothing on standard output and exactly these lines, each without
  /// its "kvtier: ", on standard error.
  void expect_bad_input(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& lines) const;

  [[nodiscard]] std::filesystem::path path(const std::string& name) const { return work_ / name; }
  void write(const std::string& name, const std::string& text) const {
    write_file(path(name), text);
  }
  [[nodiscard]] std::string read(const std::string& name) const { return read_file(path(name)); }
  [[nodiscard]] nlohmann::json read_json(const std::string& name) const {
    return nlohmann::json::parse(read(name));
  }
  /// Names in the test's folder, sorted.
  [[nodiscard]] std::vector<std::string> files() const;

  /// Writes `run.json`, a run of a few dozen sessions, with the changes given as (pointer, value).
  void write_run(const std::vector<std::pair<std::string, nlohmann::json>>& changes = {}) const;
  /// Writes a table of turns and `run.json`, which replays it.
  void write_table_run(const std::string& name, const std::string& table) const;

 private:
  std::filesystem::path root_;
  std::filesystem::path work_;
};

/// The repository's `configs`, where the presets are.
[[nodiscard]] std::filesystem::path configs();

}  // namespace kvtier::test
