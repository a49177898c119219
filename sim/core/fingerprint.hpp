#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvtier {

/// FNV-1a of texts and files in order: tells inputs and results apart, no more.
class Fingerprint {
 public:
  void add(std::string_view text);
  /// A file's content, or the names and contents of a folder's; of a pipe, which can be read once
  /// only, and of what cannot be read, that.
  void add_file(const std::filesystem::path& path);
  /// 16 hexadecimal digits.
  [[nodiscard]] std::string text() const;

 private:
  void step(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

/// Of one text.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace kvtier
