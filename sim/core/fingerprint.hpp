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
  /// Adds the content of a file, or the names and contents of a folder. For a pipe, which can be
  /// read only once, or an unreadable file it adds this fact.
  void add_file(const std::filesystem::path& path);
  /// 16 hexadecimal digits.
  [[nodiscard]] std::string text() const;

 private:
  void step(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

/// The fingerprint of one text.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace kvtier
