#include "sim/core/compressed_stream.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "sim/core/assert.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

/// A file read chunk by chunk.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path) : path_(path), buffer_(kBufferBytes) {
    check_is_no_folder(path);
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (file_ == nullptr) {
      fail("cannot open");
    }
    // This class has its own buffer.
    std::setvbuf(file_.get(), nullptr, _IONBF, 0);
    refill();
  }

  /// The bytes read and not yet consumed; empty at the end of the file.
  [[nodiscard]] std::span<const char> pending() {
    if (begin_ == end_) {
      refill();
    }
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void consume(std::size_t count) { begin_ += count; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void refill() {
    begin_ = 0;
    end_ = std::fread(buffer_.data(), 1, buffer_.size(), file_.get());
    if (end_ < buffer_.size() && std::ferror(file_.get()) != 0) {
      fail("cannot read");
    }
  }

  [[noreturn]] void fail(const char* what) const {
    const int error = errno;
    throw DeviceError(fmt::format("{}: {}: {}", path_.string(), what, std::strerror(error)));
  }

  std::filesystem::path path_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::unique_ptr<std::FILE, Closer> file_;
};

bool starts_with(std::span<const char> bytes, std::string_view magic) {
  return std::string_view(bytes.data(), bytes.size()).starts_with(magic);
}

bool is_gzip(std::span<const char> bytes) { return starts_with(bytes, "\x1f\x8b"); }

/// A zstd frame, or a skippable frame, which parallel compressors write first.
bool is_zstd(std::span<const char> bytes) {
  if (starts_with(bytes, "\x28\xb5\x2f\xfd")) {
    return true;
  }
  return bytes.size() >= 4 && (static_cast<unsigned char>(bytes[0]) & 0xf0U) == 0x50U &&
         starts_with(bytes.subspan(1), "\x2a\x4d\x18");
}

}  // namespace

namespace detail {

class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void write(AtomicFile& file, std::string_view text) = 0;
  virtual void finish(AtomicFile& file) = 0;
};

}  // namespace detail

namespace {

class PlainDecoder final : public ByteSource {
 public:
  explicit PlainDecoder(InputFile input) : input_(std::move(input)) {}

  std::size_t read(std::span<char> target, std::string&) override {
    const std::span<const char> source = input_.pending();
    const std::size_t count = std::min(source.size(), target.size());
    std::copy_n(source.data(), count, target.data());
    input_.consume(count);
    return count;
  }

 private:
  InputFile input_;
};

class GzipDecoder final : public ByteSource {
 public:
  explicit GzipDecoder(InputFile input) : input_(std::move(input)) {
    constexpr int kGzipOnly = 15 + 16;
    KVTIER_ASSERT(inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib cannot start");
  }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;
  ~GzipDecoder() override { inflateEnd(&stream_); }

  std::size_t read(std::span<char> target, std::string& damage) override {
    const auto capacity = static_cast<uInt>(std::min<std::size_t>(target.size(), 1U << 30));
    stream_.next_out = reinterpret_cast<Bytef*>(target.data());
    stream_.avail_out = capacity;
    while (stream_.avail_out == capacity) {
      const std::span<const char> source = input_.pending();
      if (source.empty()) {
        if (!between_members_) {
          damage = "the gzip data are truncated";
        }
        return 0;
      }
      if (between_members_) {
        KVTIER_ASSERT(inflateReset(&stream_) == Z_OK, "zlib cannot restart");
        between_members_ = false;
      }
      stream_.next_in =
          reinterpret_cast<Bytef*>(const_cast<char*>(source.data()));  // zlib only reads it
      stream_.avail_in = static_cast<uInt>(source.size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      input_.consume(source.size() - stream_.avail_in);
      if (status == Z_STREAM_END) {
        between_members_ = true;
      } else if (status != Z_OK) {
        damage = fmt::format("the gzip data are corrupt ({})",
                             stream_.msg != nullptr ? stream_.msg : zError(status));
        break;
      }
    }
    return capacity - stream_.avail_out;
  }

 private:
  InputFile input_;
  z_stream stream_{};
  bool between_members_ = false;
};

class ZstdDecoder final : public ByteSource {
 public:
  explicit ZstdDecoder(InputFile input) : input_(std::move(input)), context_(ZSTD_createDCtx()) {
    KVTIER_ASSERT(context_ != nullptr, "zstd cannot start");
  }

  std::size_t read(std::span<char> target, std::string& damage) override {
    ZSTD_outBuffer out{target.data(), target.size(), 0};
    while (out.pos == 0) {
      // Output that did not fit in the last call comes first, without new input.
      std::span<const char> source;
      if (!output_held_back_) {
        source = input_.pending();
        if (source.empty()) {
          if (inside_frame_) {
            damage = "the zstd data are truncated";
          }
          return 0;
        }
      }
      ZSTD_inBuffer in{source.data(), source.size(), 0};
      const std::size_t status = ZSTD_decompressStream(context_.get(), &out, &in);
      input_.consume(in.pos);
      if (ZSTD_isError(status) != 0) {
        damage = fmt::format("the zstd data are corrupt ({})", ZSTD_getErrorName(status));
        break;
      }
      inside_frame_ = status != 0;
      output_held_back_ = inside_frame_ && out.pos == out.size;
    }
    return out.pos;
  }

 private:
  struct Freer {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  InputFile input_;
  std::unique_ptr<ZSTD_DCtx, Freer> context_;
  bool inside_frame_ = false;
  bool output_held_back_ = false;
};

class PlainEncoder final : public detail::Encoder {
 public:
  void write(AtomicFile& file, std::string_view text) override { file.write(text); }
  void finish(AtomicFile&) override {}
};

class GzipEncoder final : public detail::Encoder {
 public:
  GzipEncoder() {
    constexpr int kGzip = 15 + 16;
    constexpr int kMemoryLevel = 8;
    KVTIER_ASSERT(deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, kMemoryLevel,
                               Z_DEFAULT_STRATEGY) == Z_OK,
                  "zlib cannot start");
  }
  GzipEncoder(const GzipEncoder&) = delete;
  GzipEncoder& operator=(const GzipEncoder&) = delete;
  ~GzipEncoder() override { deflateEnd(&stream_); }

  void write(AtomicFile& file, std::string_view text) override {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 30;
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, kPieceBytes);
      run(file, piece, Z_NO_FLUSH);
      text.remove_prefix(piece.size());
    }
  }
  void finish(AtomicFile& file) override { run(file, {}, Z_FINISH); }

 private:
  void run(AtomicFile& file, std::string_view text, int flush) {
    stream_.next_in =
        reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(text.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_out = static_cast<uInt>(buffer_.size());
      KVTIER_ASSERT(deflate(&stream_, flush) != Z_STREAM_ERROR, "zlib cannot compress");
      file.write({buffer_.data(), buffer_.size() - stream_.avail_out});
    } while (stream_.avail_out == 0);
  }

  z_stream stream_{};
  std::vector<char> buffer_ = std::vector<char>(kBufferBytes);
};

class ZstdEncoder final : public detail::Encoder {
 public:
  ZstdEncoder() : context_(ZSTD_createCCtx()) {
    KVTIER_ASSERT(context_ != nullptr, "zstd cannot start");
    const std::size_t status = ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
    KVTIER_ASSERT(ZSTD_isError(status) == 0, "zstd has checksums");
  }

  void write(AtomicFile& file, std::string_view text) override { run(file, text, ZSTD_e_continue); }
  void finish(AtomicFile& file) override { run(file, {}, ZSTD_e_end); }

 private:
  struct Freer {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };

  void run(AtomicFile& file, std::string_view text, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{text.data(), text.size(), 0};
    std::size_t left = 0;
    do {
      ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
      left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
      KVTIER_ASSERT(ZSTD_isError(left) == 0, "zstd cannot compress");
      file.write({buffer_.data(), out.pos});
    } while (directive == ZSTD_e_end ? left != 0 : in.pos < in.size);
  }

  std::unique_ptr<ZSTD_CCtx, Freer> context_;
  std::vector<char> buffer_ = std::vector<char>(kBufferBytes);
};

std::unique_ptr<ByteSource> make_decoder(const std::filesystem::path& path) {
  InputFile input(path);
  const std::span<const char> first = input.pending();
  if (is_gzip(first)) {
    return std::make_unique<GzipDecoder>(std::move(input));
  }
  if (is_zstd(first)) {
    return std::make_unique<ZstdDecoder>(std::move(input));
  }
  return std::make_unique<PlainDecoder>(std::move(input));
}

std::unique_ptr<detail::Encoder> make_encoder(const std::filesystem::path& path) {
  if (path.extension() == ".gz") {
    return std::make_unique<GzipEncoder>();
  }
  if (path.extension() == ".zst") {
    return std::make_unique<ZstdEncoder>();
  }
  return std::make_unique<PlainEncoder>();
}

}  // namespace

ByteReader::ByteReader(std::filesystem::path path)
    : path_(std::move(path)), source_(make_decoder(path_)) {}

std::size_t ByteReader::read(std::span<char> target) {
  KVTIER_ASSERT(!target.empty(), "a read needs room");
  return damage_.empty() ? source_->read(target, damage_) : 0;
}

LineReader::LineReader(ByteReader bytes)
    : bytes_(std::move(bytes)), buffer_(4 * kBufferBytes, '\0') {}

ConfigError LineReader::error(std::string_view message) const {
  return ConfigError(fmt::format("{}:{}: {}", bytes_.path().string(), line_number_, message));
}

bool LineReader::next(std::string_view& line) {
  const auto give = [&](std::size_t line_end) {
    line = std::string_view(buffer_.data() + begin_, line_end - begin_);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (++line_number_ == 1 && line.starts_with("\xef\xbb\xbf")) {
      line.remove_prefix(3);
    }
    begin_ = scanned_ = std::min(line_end + 1, end_);
    if (!is_utf8(line)) {
      throw error("expected UTF-8");
    }
    return true;
  };
  while (true) {
    const void* found = std::memchr(buffer_.data() + scanned_, '\n', end_ - scanned_);
    if (found != nullptr) {
      return give(static_cast<std::size_t>(static_cast<const char*>(found) - buffer_.data()));
    }
    scanned_ = end_;
    if (ended_) {
      return begin_ != end_ && give(end_);
    }
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      scanned_ = end_;
      begin_ = 0;
    }
    if (end_ == buffer_.size()) {
      if (buffer_.size() >= kLineBytesMax) {
        ++line_number_;
        begin_ = scanned_ = end_;
        ended_ = true;
        throw error(fmt::format("a line is longer than {} MiB", kLineBytesMax >> 20));
      }
      buffer_.resize(2 * buffer_.size());
    }
    const std::size_t count = bytes_.read({buffer_.data() + end_, buffer_.size() - end_});
    if (count == 0) {
      ended_ = true;
      if (!bytes_.damage().empty()) {
        ++line_number_;
        begin_ = end_;
        throw error(bytes_.damage());
      }
    }
    end_ += count;
  }
}

CompressedWriter::CompressedWriter(const std::filesystem::path& path)
    : file_(path), encoder_(make_encoder(path)) {}
CompressedWriter::~CompressedWriter() = default;

void CompressedWriter::write(std::string_view text) { encoder_->write(file_, text); }

void CompressedWriter::commit() {
  encoder_->finish(file_);
  file_.commit();
}

}  // namespace kvtier
