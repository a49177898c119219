#include "sim/core/file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

[[noreturn]] void throw_io(const char* what, const std::filesystem::path& path) {
  const int error = errno;
  throw DeviceError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(error)));
}

constexpr std::string_view kTemporary = ".kvtier-tmp-";
/// Random letters at the end of a temporary name.
constexpr std::size_t kLetters = 6;

/// Random letters that are not part of a run. They differ between processes, also between
/// containers with equal process ids.
std::string random_letters() {
  constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::string letters;
  while (letters.size() < kLetters) {
    letters += kAlphabet[random() % kAlphabet.size()];
  }
  return letters;
}

/// The target of the links of `path`, which need not exist.
std::filesystem::path followed(const std::filesystem::path& path) {
  constexpr int kLinksMax = 40;
  std::filesystem::path at = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(at, error); ++links) {
    if (links == kLinksMax) {
      errno = ELOOP;
      throw_io("cannot write", path);
    }
    at = at.parent_path() / std::filesystem::read_symlink(at, error);
    if (error) {
      errno = error.value();
      throw_io("cannot write", path);
    }
  }
  return at;
}

/// The type of what is at `path`, after links. A name that is too long names nothing.
std::filesystem::file_type type_at(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::none && error != std::errc::filename_too_long) {
    errno = error.value();
    throw_io("cannot open", path);
  }
  return type == std::filesystem::file_type::none ? std::filesystem::file_type::not_found : type;
}

/// Repeats a call that a signal interrupts.
template <class Call>
auto retry(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

/// Writes all of `text` by calls of `write(data, size, done)`. Each call may write a part. False if
/// a call fails.
template <class Write>
bool write_fully(std::string_view text, const Write& write) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        retry([&] { return write(text.data() + done, text.size() - done, done); });
    if (count < 0) {
      return false;
    }
    done += static_cast<std::size_t>(count);
  }
  return true;
}

/// Writes a folder's names to the disk. A process may rename files in a folder that it cannot list,
/// and some file systems have no fsync for folders.
void sync_folder(const std::filesystem::path& folder, const std::filesystem::path& shown) {
  const int descriptor =
      retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0 && errno == EACCES) {
    return;
  }
  if (descriptor < 0) {
    throw_io("cannot write its folder", shown);
  }
  const bool failed = retry([&] { return ::fsync(descriptor); }) != 0 && errno != EINVAL;
  const int error = errno;
  ::close(descriptor);
  if (failed) {
    errno = error;
    throw_io("cannot write its folder", shown);
  }
}

}  // namespace

bool is_file(const std::filesystem::path& path) {
  return type_at(path) == std::filesystem::file_type::regular;
}

bool is_folder(const std::filesystem::path& path) {
  return type_at(path) == std::filesystem::file_type::directory;
}

bool path_exists(const std::filesystem::path& path) {
  return type_at(path) != std::filesystem::file_type::not_found;
}

std::vector<std::filesystem::path> folder_entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    entries.push_back(at->path());
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    errno = error.value();
    throw_io("cannot read", folder);
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

void check_is_no_folder(const std::filesystem::path& path) {
  if (is_folder(path)) {
    throw ConfigError(fmt::format("{}: expected a file, got a folder", path.string()));
  }
  if (!path_exists(path)) {
    throw ConfigError(fmt::format("{}: no such file", path.string()));
  }
}

std::string read_text_file(const std::filesystem::path& path) {
  check_is_no_folder(path);
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
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
    : path_(std::move(path)), target_(followed(path_)) {
  std::error_code ignored;
  const auto type = std::filesystem::status(target_, ignored).type();
  const bool replaceable = type == std::filesystem::file_type::regular ||
                           type == std::filesystem::file_type::not_found ||
                           type == std::filesystem::file_type::none;
  if (type != std::filesystem::file_type::directory && !replaceable) {
    throw DeviceError(fmt::format("{}: cannot write: not a regular file", path_.string()));
  }
  remove_leftovers(target_);
  try {
    create();
  } catch (...) {
    close();
    throw;
  }
}

AtomicFile::~AtomicFile() { close(); }

/// Opens a new temporary file, locked and with the target's mode.
void AtomicFile::create() {
  constexpr mode_t kNew = 0666;  // minus the process's mask
  constexpr mode_t kPrivate = 0600;
  constexpr mode_t kPermissions = 0777;
  constexpr int kTriesMax = 100;
  struct stat existing {};
  const bool replaces = ::stat(target_.c_str(), &existing) == 0 && S_ISREG(existing.st_mode);
  for (int tries = 0; tries < kTriesMax; ++tries) {
    close();
    temporary_ = target_.string() + std::string(kTemporary) + random_letters();
    descriptor_ = retry([&] {
      return ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    replaces ? kPrivate : kNew);
    });
    if (descriptor_ < 0) {
      if (errno == EEXIST) {
        continue;
      }
      throw_io("cannot write", path_);
    }
    // Another process may lock or remove the file between open and flock. Without file locks it
    // cannot, because remove_leftovers removes only files that it can lock.
    struct stat made {};
    const bool taken = ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (taken || ::fstat(descriptor_, &made) != 0 || made.st_nlink == 0) {
      continue;
    }
    // File systems without modes fail with EPERM.
    if (replaces && ::fchmod(descriptor_, existing.st_mode & kPermissions) != 0 && errno != EPERM) {
      throw_io("cannot write", path_);
    }
    return;
  }
  throw DeviceError(fmt::format("{}: cannot write: no temporary name is free", path_.string()));
}

void AtomicFile::write(std::string_view text) {
  constexpr std::size_t kBuffer = std::size_t{1} << 16;
  buffer_ += text;
  if (buffer_.size() >= kBuffer) {
    flush();
  }
}

void AtomicFile::flush() {
  if (!write_fully(buffer_, [&](const char* data, std::size_t size, std::size_t) {
        return ::write(descriptor_, data, size);
      })) {
    throw_io("cannot write", path_);
  }
  buffer_.clear();
}

void AtomicFile::change_lines(const std::function<void(std::string&)>& change) {
  flush();
  std::string text;
  off_t begin = 0;  // position of `text` in the file
  char chunk[1 << 16];
  while (true) {
    const off_t end = begin + static_cast<off_t>(text.size());
    const ssize_t count = retry([&] { return ::pread(descriptor_, chunk, sizeof chunk, end); });
    if (count < 0) {
      throw_io("cannot read", path_);
    }
    if (count == 0) {
      return;
    }
    text.append(chunk, static_cast<std::size_t>(count));
    std::size_t at = 0;
    for (std::size_t stop = text.find('\n'); stop != std::string::npos;
         stop = text.find('\n', at)) {
      const std::string line = text.substr(at, stop - at);
      std::string changed = line;
      change(changed);
      KVTIER_ASSERT(changed.size() == line.size(), "a changed line keeps its place");
      const off_t place = begin + static_cast<off_t>(at);
      if (changed != line &&
          !write_fully(changed, [&](const char* data, std::size_t size, std::size_t done) {
            return ::pwrite(descriptor_, data, size, place + static_cast<off_t>(done));
          })) {
        throw_io("cannot write", path_);
      }
      at = stop + 1;
    }
    text.erase(0, at);
    begin += static_cast<off_t>(at);
  }
}

void AtomicFile::commit() {
  flush();
  if (retry([&] { return ::fsync(descriptor_); }) != 0) {
    throw_io("cannot write", path_);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    close();
    throw DeviceError(
        fmt::format("{}: cannot rename into place: {}", path_.string(), std::strerror(error)));
  }
  temporary_.clear();
  close();  // after the rename: closing drops the lock that protects a temporary file
  sync_folder(target_.has_parent_path() ? target_.parent_path() : ".", path_);
}

/// Removes the temporary file, unless it was renamed.
void AtomicFile::close() {
  if (descriptor_ >= 0) {
    if (!temporary_.empty()) {
      ::unlink(temporary_.c_str());
    }
    ::close(descriptor_);  // fsync has reported all errors that matter
    descriptor_ = -1;
  }
}

void remove_leftovers(const std::filesystem::path& target) {
  const std::string begin = target.filename().string() + std::string(kTemporary);
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begin) || name.size() != begin.size() + kLetters) {
      continue;
    }
    const int descriptor =
        ::open(at->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
      continue;
    }
    struct stat found {};
    if (::fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) {
      ::unlink(at->path().c_str());
    }
    ::close(descriptor);
  }
}

void write_text_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    write_standard_output(text);
    flush_standard_output();
    return;
  }
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void write_standard_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw DeviceError(fmt::format("standard output: {}", std::strerror(errno)));
  }
}

void flush_standard_output() {
  if (std::fflush(stdout) != 0) {
    throw DeviceError(fmt::format("standard output: {}", std::strerror(errno)));
  }
}

}  // namespace kvtier
