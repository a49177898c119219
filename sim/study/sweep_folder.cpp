#include "sim/study/sweep_folder.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "sim/core/file.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdentity = "sweep.json";
constexpr const char* kResults = "results.jsonl";
constexpr const char* kTable = "results.csv";
constexpr const char* kPartial = "results.jsonl.partial";
constexpr std::array kWritten{kIdentity, kResults, kTable};

/// FNV-1a: tells sweeps apart, no more.
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      step(static_cast<unsigned char>(c));
    }
    step(0);  // so that "ab", "c" is not "a", "bc"
  }
  /// A file's content; of a pipe, which can be read once only, and of what cannot be read, that.
  void add_file(const fs::path& path) {
    std::error_code ignored;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
        fs::is_regular_file(path, ignored) ? std::fopen(path.c_str(), "rb") : nullptr,
        &std::fclose);
    if (file == nullptr) {
      return add("no file");
    }
    std::array<char, 1 << 16> buffer{};
    std::size_t count = 0;
    while ((count = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0) {
      add({buffer.data(), count});
    }
  }
  [[nodiscard]] std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  void step(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

[[noreturn]] void throw_write(const fs::path& path) {
  const int error = errno;
  throw DeviceError(fmt::format("{}: cannot write: {}", path.string(), std::strerror(error)));
}

bool has_content(const fs::path& path) {
  std::error_code none;
  return fs::exists(path, none) && fs::file_size(path, none) > 0;
}

}  // namespace

Json sweep_identity(const Sweep& sweep, const std::vector<SweepPoint>& points, const Shard& shard) {
  Fingerprint all;
  std::map<fs::path, std::string> files;
  const auto add_file = [&](const fs::path& path) {
    const auto [found, is_new] = files.emplace(path, "");
    if (is_new) {
      Fingerprint content;
      content.add_file(path);
      found->second = content.text();
    }
    all.add(found->second);
  };
  for (const SweepPoint& point : points) {
    for (const std::string& label : point.labels) {
      all.add(label);
    }
    if (!point.resolved) {
      all.add("refused");
      continue;
    }
    const RunConfig& config = point.resolved->config;
    all.add(write_value(config).dump());
    if (config.hardware.profile && config.hardware.profile->loaded) {
      all.add(write_value(*config.hardware.profile->loaded).dump());
    }
    if (config.workload.trace) {
      add_file(point.resolved->base_dir / *config.workload.trace);
    }
    if (config.workload.tokenizer) {
      add_file(point.resolved->base_dir / *config.workload.tokenizer);
    }
  }
  return Json{{"format", "kvtier.sweep/1"},
              {"version", KVTIER_VERSION},
              {"axes", write_value(sweep.axes)},
              {"replications", sweep.replications},
              {"shard", fmt::format("{}/{}", shard.number, shard.of)},
              {"hash", all.text()}};
}

SweepFolder::SweepFolder(fs::path path, const Json& identity, bool resume)
    : path_(std::move(path)) {
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
    throw ConfigError(fmt::format("--out: expected a folder, got the file {}", path_.string()));
  }
  for (const char* name : {kIdentity, kResults, kTable, kPartial}) {
    if (has_content(file(name)) && !resume) {
      throw ConfigError(fmt::format(
          "--out: {} has results of a sweep ({}); --resume completes them", path_.string(), name));
    }
  }
  fs::create_directories(path_, error);
  if (error) {
    throw DeviceError(
        fmt::format("{}: cannot make the folder: {}", path_.string(), error.message()));
  }
  const bool is_new = !has_content(file(kIdentity));
  if (!is_new) {
    check_identity(identity);
  } else if (has_content(file(kResults)) || has_content(file(kPartial))) {
    throw ConfigError(fmt::format("--out: {} has results, but no {} that says of what",
                                  path_.string(), kIdentity));
  }
  open_partial();
  // A process that was killed leaves its temporary files.
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    for (const char* name : kWritten) {
      if (entry.path().filename().string().starts_with(std::string(name) + ".tmp")) {
        fs::remove(entry.path(), error);
      }
    }
  }
  if (is_new) {
    write_text_output(file(kIdentity).string(), identity.dump(2) + "\n");
  }
  if (has_content(file(kResults))) {
    (void)keep_lines(file(kResults));
  }
  const std::size_t whole = keep_lines(file(kPartial));
  if (::ftruncate(partial_, static_cast<off_t>(whole)) != 0 || ::lseek(partial_, 0, SEEK_END) < 0) {
    throw_write(file(kPartial));
  }
}

SweepFolder::~SweepFolder() {
  if (partial_ >= 0) {
    ::close(partial_);
  }
}

void SweepFolder::check_identity(const Json& identity) const {
  const Json found = parse_json_strictly(read_text_file(file(kIdentity)), file(kIdentity).string());
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
  throw ConfigError(fmt::format("--out: {} has another sweep; not the same: {}", path_.string(),
                                detail::join(differences, ", ")));
}

void SweepFolder::open_partial() {
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

std::size_t SweepFolder::keep_lines(const fs::path& path) {
  const std::string text = read_text_file(path);
  std::size_t begin = 0;
  std::size_t end = 0;
  while ((end = text.find('\n', begin)) != std::string::npos) {
    std::string line = text.substr(begin, end - begin);
    if (!Json::parse(line, nullptr, false).is_object()) {
      break;  // what follows a broken line is run again
    }
    kept_.push_back(std::move(line));
    begin = end + 1;
  }
  return begin;
}

void SweepFolder::append(std::string_view line) {
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

void SweepFolder::finish(std::string_view lines, std::string_view table) {
  write_text_output(file(kResults).string(), lines);
  write_text_output(file(kTable).string(), table);
  std::error_code error;
  fs::remove(file(kPartial), error);
  if (error) {
    throw DeviceError(
        fmt::format("{}: cannot remove: {}", file(kPartial).string(), error.message()));
  }
}

}  // namespace kvtier
