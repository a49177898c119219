#pragma once

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "sim/core/compressed_stream.hpp"
#include "sim/core/errors.hpp"
#include "traces/session.hpp"

namespace kvtier::testing {

/// A folder that lives as long as the test.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "kvtier_traces_XXXXXX").string();
    path_ = ::mkdtemp(name.data()) != nullptr ? name : "";
    EXPECT_FALSE(path_.empty());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Writes `bytes` as they are and returns the file's path.
  [[nodiscard]] std::filesystem::path file(const std::string& name, std::string_view bytes) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream << bytes;
    return path_ / name;
  }
  /// Writes `text`, compressed as the suffix of `name` says.
  [[nodiscard]] std::filesystem::path compressed(const std::string& name,
                                                 std::string_view text) const {
    CompressedWriter writer(path_ / name);
    writer.write(text);
    writer.commit();
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// The text of the ConfigError that `action` throws, without the folder of `dir` in front of file
/// names.
template <class Action>
std::string config_error_of(const TempDir& dir, Action action) {
  try {
    action();
  } catch (const ConfigError& error) {
    std::string text = error.what();
    const std::string folder = dir.path().string() + "/";
    for (std::size_t at = text.find(folder); at != std::string::npos; at = text.find(folder)) {
      text.erase(at, folder.size());
    }
    return text;
  }
  return "no ConfigError";
}

/// The next sessions of a source that has so many.
inline std::vector<SessionSpec> take(SessionSource& source, int count) {
  std::vector<SessionSpec> sessions(static_cast<std::size_t>(count));
  for (SessionSpec& session : sessions) {
    EXPECT_TRUE(source.next(session));
  }
  return sessions;
}

inline std::vector<SessionSpec> read_all(SessionSource& source) {
  std::vector<SessionSpec> sessions;
  SessionSpec session;
  while (source.next(session)) {
    sessions.push_back(session);
  }
  return sessions;
}

inline Turn turn(std::int64_t user, std::int64_t assistant, std::int64_t think_ns = 0) {
  return {.user = Tokens(user), .assistant = Tokens(assistant), .think = SimDuration(think_ns)};
}

/// All of some sessions as text, so that a difference shows.
inline std::string text_of(const std::vector<SessionSpec>& sessions) {
  std::string text;
  for (const SessionSpec& session : sessions) {
    text += std::to_string(session.id) + "@" + std::to_string(session.arrival.ns) + ":";
    if (session.shared_prompt.tokens.value > 0) {
      text += " (" + std::to_string(session.shared_prompt.id) + ": " +
              std::to_string(session.shared_prompt.tokens.value) + ")";
    }
    for (const Turn& one : session.turns) {
      text += " " + std::to_string(one.user.value) + "/" + std::to_string(one.assistant.value);
      if (one.think.ns != 0) {
        text += "+" + std::to_string(one.think.ns);
      }
    }
    text += "\n";
  }
  return text;
}

}  // namespace kvtier::testing
