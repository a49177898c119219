#include "tests/sim/cli/program.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void check(int error, const char* what) {
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), what);
  }
}

fs::path new_folder() {
  std::string name = (fs::temp_directory_path() / "kvtier-cli-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp");
  }
  return name;
}

}  // namespace

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw std::runtime_error("cannot read " + path.string());
  }
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text;
  if (!stream.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

Started::Started(std::vector<std::string> arguments, const fs::path& directory, fs::path capture,
                 const char* program)
    : capture_(std::move(capture)) {
  fs::create_directories(capture_);
  const std::string out = (capture_ / "out").string();
  const std::string err = (capture_ / "err").string();
  posix_spawn_file_actions_t actions;
  check(posix_spawn_file_actions_init(&actions), "posix_spawn_file_actions_init");
  constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
  constexpr mode_t kMode = 0600;
  check(posix_spawn_file_actions_addchdir_np(&actions, directory.c_str()), "chdir");
  check(posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0), "open");
  check(posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kCreate, kMode),
        "open");
  check(posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kCreate, kMode),
        "open");
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  const int error = posix_spawn(&process_, program, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  check(error, program);
}

Started::~Started() {
  if (running()) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, &status_, 0);
  }
}

void Started::signal(int number) const {
  if (::kill(process_, number) != 0) {
    throw std::system_error(errno, std::generic_category(), "kill");
  }
}

bool Started::running() {
  if (!ended_) {
    ended_ = ::waitpid(process_, &status_, WNOHANG) == process_;
  }
  return !ended_;
}

bool Started::runs_until(const std::function<bool()>& reached) {
  // No measure of speed: it ends a test that hangs, before CTest does.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (running() && std::chrono::steady_clock::now() < give_up) {
    if (reached()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::string Started::out() const { return read_file(capture_ / "out"); }

Outcome Started::outcome() {
  while (!ended_) {
    ended_ = ::waitpid(process_, &status_, 0) == process_;
  }
  return {WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_),
          read_file(capture_ / "out"), read_file(capture_ / "err")};
}

ProgramTest::ProgramTest() : root_(new_folder()), work_(root_ / "work") {
  fs::create_directory(work_);
}

ProgramTest::~ProgramTest() {
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

Started ProgramTest::start(std::vector<std::string> arguments) const {
  return {std::move(arguments), work_, root_ / "capture"};
}

Outcome ProgramTest::kvtier(std::vector<std::string> arguments) const {
  return start(std::move(arguments)).outcome();
}

Outcome ProgramTest::kvtier_demo(std::vector<std::string> arguments) const {
  return Started(std::move(arguments), work_, root_ / "capture", KVTIER_DEMO_PROGRAM).outcome();
}

void ProgramTest::expect_bad_input(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& lines) const {
  const Outcome outcome = kvtier(arguments);
  std::string expected;
  for (const std::string& line : lines) {
    expected += "kvtier: " + line + "\n";
  }
  EXPECT_EQ(outcome.err, expected);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.code, 2);
}

std::vector<std::string> ProgramTest::files() const {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(work_)) {
    names.push_back(file.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ProgramTest::write_run(const std::vector<std::pair<std::string, json>>& changes) const {
  json run = json::parse(R"({
    "model": "llama2-13b",
    "hardware": {"preset": "a100-80g", "gpus": 2},
    "system": "attentionstore",
    "workload": {
      "generator": "sharegpt", "sessions": 40, "arrival_rate": "1/s", "warmup_turns": 20
    }
  })");
  for (const auto& [pointer, value] : changes) {
    run[json::json_pointer(pointer)] = value;
  }
  write("run.json", run.dump(2));
}

void ProgramTest::write_table_run(const std::string& name, const std::string& table) const {
  write(name, table);
  write_run({{"/workload", {{"trace", name}, {"arrival_rate", "1/s"}}}});
}

fs::path configs() { return fs::path(KVTIER_SOURCE_DIR) / "configs"; }

}  // namespace kvtier::test
