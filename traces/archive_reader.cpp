#include "traces/archive_reader.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
/// The size of a block of tar. An archive ends with blocks of zeros.
constexpr std::size_t kRecordBytes = 512;

std::string first_bytes(const std::filesystem::path& path) {
  ByteReader reader(path);
  std::array<char, 4> bytes{};
  const std::size_t count = reader.read(bytes);
  return {bytes.data(), count};
}

constexpr std::string_view kZip = "PK\x03\x04";
/// An empty zip archive: it begins with its end record.
constexpr std::string_view kEmptyZip = "PK\x05\x06";

}  // namespace

/// libarchive's reader. A zip archive is read from the file, by its directory; a tar archive from a
/// stream.
class ArchiveReader::Archive {
 public:
  explicit Archive(const std::filesystem::path& path)
      : archive_(archive_read_new()), stream_(path), block_(kBlockBytes) {
    KVTIER_ASSERT(archive_ != nullptr, "libarchive cannot start");
    const std::string first = first_bytes(path);
    empty_ = first.empty();
    ended_ = first == kEmptyZip;
    if (first == kZip) {
      archive_read_support_format_zip_seekable(archive_.get());
      opened_ = archive_read_open_filename(archive_.get(), path.c_str(), kBlockBytes);
      return;
    }
    is_tar_ = true;
    archive_read_support_format_tar(archive_.get());
    // Reads on to the end of the file, because the compression's checksum is there.
    archive_read_set_options(archive_.get(), "tar:read_concatenated_archives");
    opened_ = archive_read_open(archive_.get(), this, nullptr, &Archive::read_block, nullptr);
  }

  /// The next entry, or nullptr at the end.
  archive_entry* next(std::string& damage) {
    if (ended_) {
      return nullptr;
    }
    if (empty_) {
      damage = stream_.damage().empty() ? "the file is empty" : stream_.damage();
      return nullptr;
    }
    ++entry_;
    archive_entry* entry = nullptr;
    const int status =
        opened_ == ARCHIVE_OK ? archive_read_next_header(archive_.get(), &entry) : opened_;
    if (status == ARCHIVE_OK || status == ARCHIVE_WARN) {
      return entry;
    }
    ended_ = status == ARCHIVE_EOF;
    if (!ended_) {
      damage = failure();
    } else if (is_tar_ && !ends_in_zeros()) {
      damage = "the archive is truncated";
    }
    return nullptr;
  }

  std::size_t read(std::span<char> target, std::string& damage) {
    const la_ssize_t count = archive_read_data(archive_.get(), target.data(), target.size());
    if (count < 0) {
      damage = failure();
      return 0;
    }
    return static_cast<std::size_t>(count);
  }

  /// Number of the current entry, from 1.
  [[nodiscard]] std::int64_t entry() const { return entry_; }

 private:
  struct Freer {
    void operator()(archive* reader) const { archive_read_free(reader); }
  };

  static la_ssize_t read_block(archive*, void* self, const void** block) {
    return static_cast<Archive*>(self)->read_block(block);
  }
  /// No exception may pass through libarchive.
  la_ssize_t read_block(const void** block) {
    try {
      const std::size_t count = stream_.read(block_);
      keep_end({block_.data(), count});
      *block = block_.data();
      return stream_.damage().empty() ? static_cast<la_ssize_t>(count) : ARCHIVE_FATAL;
    } catch (...) {
      exception_ = std::current_exception();
      return ARCHIVE_FATAL;
    }
  }

  void keep_end(std::string_view bytes) {
    end_ += bytes.substr(bytes.size() - std::min(bytes.size(), kRecordBytes));
    end_.erase(0, end_.size() - std::min(end_.size(), kRecordBytes));
  }
  [[nodiscard]] bool ends_in_zeros() const {
    return end_.size() == kRecordBytes && end_.find_first_not_of('\0') == end_.npos;
  }

  std::string failure() {
    if (exception_) {
      std::rethrow_exception(exception_);
    }
    if (!stream_.damage().empty()) {
      return stream_.damage();
    }
    const char* const text = archive_error_string(archive_.get());
    if (entry_ == 1 && archive_format(archive_.get()) == 0) {
      return "expected a tar or zip archive";
    }
    return fmt::format("the archive is damaged ({})", text != nullptr ? text : "unknown error");
  }

  std::unique_ptr<archive, Freer> archive_;
  ByteReader stream_;
  std::vector<char> block_;
  std::string end_;
  std::exception_ptr exception_;
  int opened_ = ARCHIVE_OK;
  std::int64_t entry_ = 0;
  bool empty_ = false;
  bool ended_ = false;
  bool is_tar_ = false;
};

class ArchiveReader::MemberSource final : public ByteSource {
 public:
  explicit MemberSource(Archive& archive) : archive_(archive), entry_(archive.entry()) {}

  std::size_t read(std::span<char> target, std::string& damage) override {
    KVTIER_ASSERT(entry_ == archive_.entry(), "a member is read before the next one");
    return archive_.read(target, damage);
  }

 private:
  Archive& archive_;
  std::int64_t entry_;
};

ArchiveReader::ArchiveReader(std::filesystem::path path)
    : path_(std::move(path)), archive_(std::make_unique<Archive>(path_)) {}
ArchiveReader::~ArchiveReader() = default;

std::optional<ArchiveReader::Member> ArchiveReader::next() {
  std::string damage;
  while (archive_entry* const entry = archive_->next(damage)) {
    const char* text = archive_entry_pathname_utf8(entry);
    if (text == nullptr) {
      text = archive_entry_pathname(entry);  // not convertible to UTF-8
    }
    std::string name = text != nullptr ? text : "";
    if (name.starts_with("./")) {
      name.erase(0, 2);
    }
    const std::string shown = fmt::format("{}/{}", path_.string(), printable_line(name));
    const bool is_link = archive_entry_hardlink(entry) != nullptr;
    if (archive_entry_filetype(entry) == AE_IFREG && !is_link) {
      return Member{.name = std::move(name),
                    .bytes = ByteReader(shown, std::make_unique<MemberSource>(*archive_))};
    }
    if (archive_entry_filetype(entry) != AE_IFDIR) {
      throw ConfigError(fmt::format("{}: expected a file, got a link or a device", shown));
    }
  }
  if (!damage.empty()) {
    throw error(damage);
  }
  return std::nullopt;
}

bool is_archive(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  for (const char* const suffix : {".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip"}) {
    if (name.ends_with(suffix)) {
      return true;
    }
  }
  constexpr std::size_t kMagicAt = 257;
  constexpr std::string_view kMagic = "ustar";
  ByteReader reader(path);
  std::array<char, kRecordBytes> head{};
  std::size_t count = 0;
  for (std::size_t more = 1; more > 0 && count < head.size(); count += more) {
    more = reader.read(std::span(head).subspan(count));
  }
  const std::string_view bytes(head.data(), count);
  return bytes.starts_with(kZip) || bytes.starts_with(kEmptyZip) ||
         (count == head.size() && bytes.substr(kMagicAt).starts_with(kMagic));
}

std::string read_all(ByteReader& member) {
  std::string text;
  std::size_t count = 0;
  do {
    const std::size_t size = text.size();
    text.resize(size + kBlockBytes);
    count = member.read(std::span(text).subspan(size));
    text.resize(size + count);
  } while (count > 0);
  if (!member.damage().empty()) {
    throw ConfigError(fmt::format("{}: {}", member.path().string(), member.damage()));
  }
  text.shrink_to_fit();  // a reader of an archive holds the texts of all members
  return text;
}

ConfigError ArchiveReader::error(std::string_view message) const {
  return ConfigError(fmt::format("{}: {}", path_.string(), message));
}

}  // namespace kvtier
