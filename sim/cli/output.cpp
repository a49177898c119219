#include "sim/cli/output.hpp"

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

[[noreturn]] void throw_write(const std::string& path) {
  const int error = errno;
  throw DeviceError(fmt::format("{}: cannot write: {}", path, std::strerror(error)));
}

}  // namespace

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
    for (const std::string& input : inputs) {
      if (std::filesystem::is_regular_file(path, ignored) &&
          std::filesystem::equivalent(input, path, ignored)) {
        problems.push_back(fmt::format("{}: {} is also an input", option, path));
      }
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
