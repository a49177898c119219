#include "sim/core/file.hpp"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

[[noreturn]] void throw_io(const char* what, const std::filesystem::path& path) {
  const int error = errno;
  throw DeviceError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(error)));
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be examined cannot be opened either, which is reported
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError(fmt::format("{}: expected a file, got a folder", path.string()));
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw ConfigError(fmt::format("{}: no such file", path.string()));
    }
    throw_io("cannot open", path);
  }
  std::string text;
  char buffer[1 << 16];
  std::size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, file)) > 0) {
    text.append(buffer, count);
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) {
    throw_io("cannot read", path);
  }
  return text;
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(path_.string() + fmt::format(".tmp{}", ::getpid())) {
  file_ = std::fopen(temporary_.c_str(), "w+b");
  if (file_ == nullptr) {
    throw_io("cannot write", path_);
  }
}

AtomicFile::~AtomicFile() {
  if (file_ != nullptr) {
    std::fclose(file_);
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
}

void AtomicFile::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) {
    throw_io("cannot write", path_);
  }
}

void AtomicFile::change_lines(const std::function<void(std::string&)>& change) {
  const auto check = [&](bool done) {
    if (!done) {
      throw_io("cannot write", path_);
    }
  };
  check(std::fseek(file_, 0, SEEK_SET) == 0);
  std::string line;
  long begin = 0;
  for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) {
    if (c != '\n') {
      line.push_back(static_cast<char>(c));
      continue;
    }
    std::string changed = line;
    change(changed);
    KVTIER_ASSERT(changed.size() == line.size(), "a changed line keeps its place");
    if (changed != line) {
      check(std::fseek(file_, begin, SEEK_SET) == 0);
      write(changed);
      check(std::fseek(file_, 1, SEEK_CUR) == 0);
    }
    begin += static_cast<long>(line.size()) + 1;
    line.clear();
  }
  check(std::ferror(file_) == 0 && std::fseek(file_, 0, SEEK_END) == 0);
}

void AtomicFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) {
    throw_io("cannot write", path_);
  }
  std::fclose(file_);
  file_ = nullptr;
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
    throw DeviceError(
        fmt::format("{}: cannot rename into place: {}", path_.string(), error.message()));
  }
}

void write_text_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
        std::fflush(stdout) != 0) {
      throw DeviceError(fmt::format("standard output: {}", std::strerror(errno)));
    }
    return;
  }
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace kvtier
