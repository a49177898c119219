#include "sim/study/runs/run_folder.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "sim/core/file.hpp"
#include "sim/core/fingerprint.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = "results.jsonl.partial";
constexpr const char* kChecksum = "checksum";

[[noreturn]] void throw_write(const fs::path& path) {
  const int error = errno;
  throw DeviceError(fmt::format("{}: cannot write: {}", path.string(), std::strerror(error)));
}

bool has_content(const fs::path& path) {
  std::error_code none;
  return path_exists(path) && fs::file_size(path, none) > 0;
}

}  // namespace

std::string sealed_line(Json line) {
  const auto text = [&] { return json_text(line); };
  line.erase(kChecksum);
  const std::string checksum = fingerprint(text());
  line[kChecksum] = checksum;
  return text();
}

std::optional<Json> unsealed_line(std::string_view text) {
  // The checksum is of the text, because a changed digit may give the same number.
  constexpr std::string_view kBefore = R"(,"checksum":")";
  constexpr std::size_t kDigits = 16;
  constexpr std::size_t kTail = kBefore.size() + kDigits + 2;  // and a quote and a brace
  if (text.size() < kTail) {
    return std::nullopt;
  }
  const std::string_view body = text.substr(0, text.size() - kTail);
  const std::string expected =
      fmt::format(R"({}{}"}})", kBefore, fingerprint(std::string(body) + "}"));
  if (text.substr(body.size()) != expected) {
    return std::nullopt;
  }
  try {
    Json line = parse_json_strictly(text, "");
    line.erase(kChecksum);
    return line;
  } catch (const ConfigError&) {
    return std::nullopt;  // has a checksum, but is no JSON
  }
}

RunFolder::RunFolder(const RunFolderKind& kind, fs::path path, const Json& identity, bool resume,
                     std::function<void(const std::string&)> tell)
    : kind_(kind), path_(std::move(path)), tell_(std::move(tell)) {
  std::error_code error;
  if (path_exists(path_) && !is_folder(path_)) {
    throw ConfigError(fmt::format("--out: expected a folder, got the file {}", path_.string()));
  }
  for (const char* name : {kind_.identity, kRunLines, kind_.summary, kPartial}) {
    if (has_content(file(name)) && !resume) {
      throw ConfigError(fmt::format("--out: {} has results of a {} ({}); --resume completes them",
                                    path_.string(), kind_.name, name));
    }
  }
  fs::create_directories(path_, error);
  if (error) {
    throw DeviceError(
        fmt::format("{}: cannot make the folder: {}", path_.string(), error.message()));
  }
  const bool is_new = !has_content(file(kind_.identity));
  if (!is_new) {
    check_identity(identity);
  } else if (has_content(file(kRunLines)) || has_content(file(kPartial))) {
    throw ConfigError(fmt::format("--out: {} has results, but no {} that says of what",
                                  path_.string(), kind_.identity));
  }
  open_partial();
  // A process that was killed leaves its temporary files.
  for (const char* name : {kind_.identity, kRunLines, kind_.summary}) {
    remove_leftovers(file(name));
  }
  if (is_new) {
    write_text_output(file(kind_.identity).string(), json_text(identity, 2) + "\n");
  }
  if (has_content(file(kRunLines))) {
    (void)keep_lines(file(kRunLines));
  }
  const std::size_t whole = keep_lines(file(kPartial));
  if (::ftruncate(partial_, static_cast<off_t>(whole)) != 0 || ::lseek(partial_, 0, SEEK_END) < 0) {
    throw_write(file(kPartial));
  }
}

RunFolder::~RunFolder() {
  if (partial_ >= 0) {
    ::close(partial_);
  }
}

void RunFolder::check_identity(const Json& identity) const {
  const Json found =
      parse_json_strictly(read_text_file(file(kind_.identity)), file(kind_.identity).string());
  if (found == identity) {
    return;
  }
  std::vector<std::string> differences;
  for (const auto& [key, value] : identity.items()) {
    const bool same = found.is_object() && found.contains(key) && found[key] == value;
    if (!same) {
      differences.push_back(key == "hash" ? "resolved configs (or their traces)" : key);
    }
  }
  throw ConfigError(fmt::format("--out: {} has another {}; not the same: {}", path_.string(),
                                kind_.name, detail::join(differences, ", ")));
}

void RunFolder::open_partial() {
  constexpr mode_t kMode = 0666;
  partial_ = ::open(file(kPartial).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (partial_ < 0) {
    throw_write(file(kPartial));
  }
  if (::flock(partial_, LOCK_EX | LOCK_NB) != 0) {
    throw ConfigError(
        fmt::format("--out: another process writes to {} at this moment", path_.string()));
  }
}

std::size_t RunFolder::keep_lines(const fs::path& path) {
  const std::string text = read_text_file(path);
  std::vector<std::string> damaged;
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    std::string line = text.substr(begin, std::min(end, text.size()) - begin);
    if (end != std::string::npos && unsealed_line(line)) {
      kept_.push_back(std::move(line));
    } else {
      damaged.push_back(std::to_string(number));
    }
    if (end == std::string::npos) {
      break;
    }
    begin = end + 1;
  }
  if (!damaged.empty() && tell_) {
    constexpr std::size_t kMostNamed = 10;
    const std::size_t more = damaged.size() - std::min(damaged.size(), kMostNamed);
    damaged.resize(damaged.size() - more);
    tell_(fmt::format("{}: no whole line of a run: {}{}; their runs are made again", path.string(),
                      detail::join(damaged, ", "),
                      more > 0 ? fmt::format(" and {} more", more) : ""));
  }
  return begin;
}

void RunFolder::tell_of_strangers(std::int64_t lines) const {
  if (lines > 0 && tell_) {
    tell_(fmt::format("{}: {} lines are of no run of this {} and are not used", path_.string(),
                      lines, kind_.name));
  }
}

void RunFolder::append(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(partial_, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      throw_write(file(kPartial));
    }
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

void RunFolder::finish(const std::vector<std::string_view>& lines, std::string_view summary) {
  AtomicFile all(file(kRunLines));
  for (const std::string_view line : lines) {
    all.write(line);
    all.write("\n");
  }
  all.commit();
  write_text_output(file(kind_.summary).string(), summary);
  std::error_code error;
  fs::remove(file(kPartial), error);
  if (error) {
    throw DeviceError(
        fmt::format("{}: cannot remove: {}", file(kPartial).string(), error.message()));
  }
}

}  // namespace kvtier
