#include "sim/cli/output.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "sim/cli/terminal.hpp"
#include "sim/core/errors.hpp"

namespace kvtier::cli {
namespace {

constexpr std::string_view kStandardOutput = "-";

bool is_device_or_pipe(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  return type == std::filesystem::file_type::character ||
         type == std::filesystem::file_type::block || type == std::filesystem::file_type::fifo ||
         type == std::filesystem::file_type::socket;
}

/// Whether the file is one of the inputs, or a file below a folder of them, by device and inode.
bool is_any_of(const std::string& path, const std::vector<std::string>& inputs) {
  std::error_code ignored;  // a missing file is no input
  if (!std::filesystem::is_regular_file(path, ignored)) {
    return false;
  }
  return std::ranges::any_of(inputs, [&](const std::string& input) {
    if (!is_folder(input)) {
      return std::filesystem::equivalent(input, path, ignored);
    }
    // A link may lead back to its own folder.
    return std::ranges::any_of(folder_entries(input), [&](const std::filesystem::path& file) {
      return !(is_folder(file) && std::filesystem::is_symlink(file, ignored)) &&
             is_any_of(path, {file.string()});
    });
  });
}

[[noreturn]] void throw_write(const std::string& path) {
  const int error = errno;
  throw DeviceError(fmt::format("{}: cannot write: {}", path, std::strerror(error)));
}

}  // namespace

std::vector<std::string> joined(std::initializer_list<std::vector<std::string>> lists) {
  std::vector<std::string> all;
  for (const std::vector<std::string>& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

void check_outputs(const std::vector<OutputOption>& outputs,
                   const std::vector<std::string>& inputs) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path] = outputs[i];
    if (path.empty()) {
      continue;
    }
    const bool streams = std::string_view(option) == "--json";
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      problems.push_back(fmt::format("{}: expected a file, got the folder {}", option, path));
    } else if (!streams && (path == kStandardOutput || is_device_or_pipe(path))) {
      problems.push_back(fmt::format("{}: expected a file, got {}", option,
                                     path == kStandardOutput ? "standard output (-)" : path));
    }
    if (is_any_of(path, inputs)) {
      problems.push_back(fmt::format("{}: {} is also an input", option, path));
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (outputs[other].second == path && !is_device_or_pipe(path)) {
        problems.push_back(
            fmt::format("{}: {} already goes to {}", option, outputs[other].first, path));
      }
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

TextOutput::TextOutput(const std::string& path) : path_(path) {
  if (path_.empty() || path_ == kStandardOutput) {
    return;
  }
  if (!is_device_or_pipe(path_)) {
    file_.emplace(path_);
    return;
  }
  stream_ = std::fopen(path_.c_str(), "wb");
  if (stream_ == nullptr) {
    throw_write(path_);
  }
}

TextOutput::~TextOutput() {
  if (stream_ != nullptr) {
    std::fclose(stream_);
  }
}

void TextOutput::write(std::string_view text) {
  if (file_) {
    file_->write(text);
    file_->commit();
  } else if (stream_ != nullptr) {
    if (std::fwrite(text.data(), 1, text.size(), stream_) != text.size() ||
        std::fflush(stream_) != 0) {
      throw_write(path_);
    }
  } else if (!path_.empty()) {
    clear_progress();
    write_text_output(path_, text);
  }
}

}  // namespace kvtier::cli
